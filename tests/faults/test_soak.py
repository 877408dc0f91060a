"""The soak itself: a few seconds of it, what it tells, and that who comes to an armed point first dies there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from temporalex_django.core import process
from tests.soak.arms import Arms

pytestmark = [pytest.mark.slow, pytest.mark.once]


def test_a_few_seconds_of_it_add_up_and_say_what_was_not_hit(tmp_path: Path) -> None:
    ours = ("TX_TEST", "DJANGO_SETTINGS", "DATABASE_URL", "PYTEST_XDIST")  # it has a database of its own
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    command = [sys.executable, "-W", "ignore", "-m", "tests.soak", "--seconds", "4", "--seed", "3"]
    ended = subprocess.run(
        [*command, "--json", tmp_path / "said"], env=env, check=False, capture_output=True, text=True
    )
    assert ended.returncode == 1, ended.stderr[-4000:]  # in so short a time nobody comes to every point
    said = json.loads((tmp_path / "said").read_text())
    assert list(said["points"]) == [*process.POINTS]
    missing = [point for point, hits in said["points"].items() if not hits]
    assert said["wrong"] == [f"points that were never hit: {', '.join(missing)}"]
    assert said["kills"]
    assert sum(said["started"].values()) > 10


def test_every_workflow_of_the_example_project_has_a_tale() -> None:
    code = (
        "import django; django.setup()\n"
        "from temporalex_django.authoring import workflow\n"
        "from tests.soak.tales import TALES\n"
        "there = {name for name, cls in workflow.registry.items() if cls.__module__.startswith('example_project.')}\n"
        "print(sorted(there ^ {tale.of for tale in TALES}))"
    )
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.soak.settings"}
    said = subprocess.run([sys.executable, "-c", code], env=env, check=False, capture_output=True, text=True)
    assert said.stdout == "[]\n", said.stderr


def test_one_dies_at_a_point_that_is_armed_and_what_fails_does_so_as_often_as_was_said(tmp_path: Path) -> None:
    arms = Arms(tmp_path)
    arms.reached("turn: before commit")
    arms.arm("turn: after commit", {"turn: before commit": 2})
    for _ in range(2):
        with pytest.raises(RuntimeError, match="injected"):
            arms.reached("turn: before commit")
    arms.reached("turn: before commit")
    assert not arms.hit
    for expected in (-9, 0):  # the second one comes too late
        child = os.fork()
        if not child:
            arms.reached("turn: after commit")
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == expected
    assert arms.disarm()
    arms.arm("late: after commit", {})
    assert not arms.disarm()
