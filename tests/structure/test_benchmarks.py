"""The benchmarks that need no server run, and print what their notes name; how fast is not asked here.

One that is broken off leaves nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.processes import minding_interrupts
from tests.support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
TINY = ("--count", "20", "--sizes", "2,4", "--rounds", "1")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", "run", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_those_in_process_print_their_figures(tmp_path: Path) -> None:
    done = run("--only", "replay,steps,fan,long,memory,guard", "--gc", "worker", *TINY, "--json", str(tmp_path / "out"))

    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures == json.loads((tmp_path / "out").read_text(encoding="utf-8"))
    assert set(figures) == {"machine", "replay", "steps", "fan", "long", "memory", "guard"}
    assert figures["steps"]["ours"]["steps_per_s"] > 0
    assert figures["replay"]["ours"]["steps_events_per_s"] > 0
    for name in ("fan", "long"):
        assert set(figures[name]["ours"]) == {"at_once", "one_by_one", "environment"}
        assert set(figures[name]["ours"]["at_once"]) == {"us_at_2", "us_at_4", "growth"}
    assert 0 < figures["memory"]["ours"]["activity_bytes"] < figures["memory"]["ours"]["cart_bytes"]


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    done = run("--only", "replay,stpes")

    assert done.returncode == 2
    assert "no such benchmark: stpes" in done.stderr
    assert "steps" in done.stderr


@pytest.fixture
def room() -> Iterator[Path]:
    """A folder for temporary files that the user of an embedded server may enter."""
    folder = Path(tempfile.mkdtemp(prefix="tx-b-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_broken_off_it_leaves_no_process_behind(room: Path, number: signal.Signals) -> None:
    """Neither a worker, which is two processes, nor the server."""
    command = [sys.executable, "-m", "benchmarks", "run", "--only", "update", "--updates", "1000"]
    env = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"} | {"TMPDIR": str(room)}
    with (
        minding_interrupts(),
        subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as bench,
    ):
        try:
            wait_for(lambda: works_in(room), seconds=60)
            assert sum("temporalex" in line for line in started_in(room).values()) == 2
            bench.send_signal(number)
            bench.wait(30)
            wait_for(lambda: not started_in(room), seconds=20, what="the end of everything that it started")
        finally:
            bench.kill()
            for pid in started_in(room):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def started_in(room: Path) -> dict[int, str]:
    """The processes that were started with this folder for temporary files, with their commands.

    The benchmark itself is among them.
    """
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"TMPDIR={room}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
    return found


def works_in(room: Path) -> bool:
    """Whether a worker with this folder has come so far that its watchdog beats: the second number of its marker."""
    return any(any(marker.read_bytes()[8:16]) for marker in room.glob("temporalex-*/*.marker"))
