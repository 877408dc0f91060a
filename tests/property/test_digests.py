"""Neither the Python version nor the hash seed changes a command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.property.digests import digests, kept

ROOT = Path(__file__).resolve().parents[2]


def test_every_lane_gives_the_digests_that_are_kept() -> None:
    """TX-178 TX-190: commands, histories and outcomes of programs written down once."""
    assert digests() == [one["digest"] for one in kept()]


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_the_hash_seed_does_not_matter(seed: str) -> None:
    """TX-190: a process with another order of its sets."""
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    command = [sys.executable, "-m", "tests.property.digests"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.split()) == (0, [one["digest"] for one in kept()]), done.stderr
