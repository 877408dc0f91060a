"""Each benchmark runs, small, and prints what its notes name; how fast is not asked. Broken off it leaves nothing."""

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
from typing import Any

import pytest

from benchmarks import goals, results
from benchmarks.measures import TooLong, break_off, wait_until, within
from tests.support.campaign import SCALE
from tests.support.processes import minding_interrupts
from tests.support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
TINY = ("--count", "20", "--sizes", "2,4", "--rounds", "1")
#: So small that what is measured is that it works.
FEW = ("--queued", "20", "--starts", "10", "--calls", "5", "--updates", "5", "--effects", "20", "--timers", "10",
       "--parked", "30", "--signals", "200", "--branches", "2,10", "--seconds", "1", "--crowd", "20", "--naps", "20",
       "--chain", "20", "--switches", "1")  # fmt: skip


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", "run", *arguments]
    env = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "DJANGO_SETTINGS_MODULE")}
    return subprocess.run(
        command, cwd=ROOT, env=env | environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_those_in_memory_print_their_figures(tmp_path: Path) -> None:
    only = "replay,steps,fan_core,long_core,memory,guard"
    done = run("--only", only, "--gc", "worker", *TINY, "--json", str(tmp_path / "out"))

    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures == json.loads((tmp_path / "out").read_text(encoding="utf-8"))
    assert set(figures) == {"machine", *only.split(","), "ratios", "goals"}
    assert figures["steps"]["ours"]["steps_per_s"] > 0
    assert figures["replay"]["ours"]["steps_events_per_s"] > 0
    for name in ("fan_core", "long_core"):
        assert set(figures[name]["ours"]) == {"at_once", "one_by_one", "environment"}
        assert set(figures[name]["ours"]["at_once"]) == {"us_at_2", "us_at_4", "growth"}
    assert 0 < figures["memory"]["ours"]["activity_bytes"] < figures["memory"]["ours"]["cart_bytes"]


def test_one_on_sqlite_prints_its_figures() -> None:
    done = run("--db", "sqlite", "--only", "beside,kit", *TINY, *FEW)

    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["machine"]["journal_mode"] == "wal"
    assert figures["beside"]["ours"]["workflows_per_s"] > 0
    assert figures["beside"]["ours"]["update"]["p99_ms"] > 0
    assert [goal["met"] for goal in figures["goals"] if goal["goal"] == "kit.ours.statements"] == [True]


@pytest.mark.slow
def test_those_on_postgresql_print_their_figures(room: Path) -> None:
    """Each process that is started costs a second: the long form, ``TEST_SCALE=2``, has the rest of the rows."""
    only = "one,wake"
    if SCALE > 1:
        only += ",recover,crowded,naps,chain,switched,ten,atomic,two,starts,update,latency,fan,long,parked"
    done = run("--only", only, "--peers", "django-q2" if SCALE > 1 else "", *TINY, *FEW, TMPDIR=str(room))

    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    ours = {name: figures[name]["ours"] for name in only.split(",")}
    assert [name for name, found in ours.items() if "absent" in found] == []
    assert (figures["machine"]["fsync"], figures["machine"]["synchronous_commit"]) == ("on", "on")
    assert ours["one"]["events_per_workflow"] == 6
    assert ours["one"]["per_s_with_queued"].keys() == {"20"}
    assert ours["wake"] | {"seconds": 0} == {"timers": 10, "asleep_when_due": 10, "seconds": 0, "lost": 0}
    assert {goal["goal"] for goal in figures["goals"]} >= {"wake.ours.seconds", "wake.ours.lost"}
    if SCALE > 1:
        assert (ours["recover"]["runs_lost"], ours["recover"]["effects_never"]) == (0, 0)
        assert 0 < ours["update"]["round_trips"] <= ours["update"]["statements"]
        assert ours["parked"]["runs"] >= 30
        assert set(figures["ratios"]) == {"one_vs_django_q2", "starts_vs_django_q2"}


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    for option, given, known in (("--only", "replay,stpes", "steps"), ("--peers", "bdos", "dbos")):
        done = run(option, given)

        assert done.returncode == 2
        assert f"{given.rpartition(',')[2]} (available: " in done.stderr
        assert known in done.stderr


def test_a_ratio_says_how_many_times_as_good_ours_is() -> None:
    figures: dict[str, Any] = {
        "one": {"ours": {"workflows_per_s": 600}, "dbos": {"workflows_per_s": 100}, "seconds": 3.0},
        "latency": {"ours": {"p50_ms": 2.0}, "dbos": {"p50_ms": 3.0}, "absurd": {"absent": "why"}},
        "ten": {"ours": {"absent": "too long"}, "dbos": {"steps_per_s": 1}},
    }

    assert goals.compared(figures) == {"one_vs_dbos": 6.0, "latency_vs_dbos": 1.5}


def test_a_goal_without_a_figure_is_not_judged_and_one_that_is_missed_is_said_to_be(tmp_path: Path) -> None:
    figures: dict[str, Any] = {
        "machine": {"at": "today", "database": "postgres", "fsync": "on"},
        "one": {"ours": {"workflows_per_s": 600}, "dbos": {"workflows_per_s": 100}, "absurd": {"absent": "no package"}},
        "wake": {"ours": {"seconds": 5, "lost": 0}},
    }
    figures["ratios"] = goals.compared(figures)
    figures["goals"] = goals.judged(figures)

    assert {goal["goal"]: goal["met"] for goal in figures["goals"]} == {
        "ratios.one_vs_dbos": False,
        "wake.ours.seconds": True,
        "wake.ours.lost": True,
    }
    (tmp_path / "figures").write_text(json.dumps(figures), encoding="utf-8")
    results.write([tmp_path / "figures"], tmp_path / "RESULTS.md")
    page = (tmp_path / "RESULTS.md").read_text(encoding="utf-8")
    assert "| `one` | workflows_per_s | 600 | dbos 100 |  | 6.0 |" in page
    assert "absurd absent: no package" in page
    assert "| ratios.one_vs_dbos | ≥ 10 | 6.0 | **missed** |" in page


@pytest.fixture
def room() -> Iterator[Path]:
    """A folder for temporary files that the user of an embedded server may enter."""
    folder = Path(tempfile.mkdtemp(prefix="tx-b-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_broken_off_where_python_loses_what_is_raised_it_ends_all_the_same() -> None:
    class Collected:
        def __del__(self) -> None:
            break_off(TooLong("now"))

    with within(60):
        Collected()
        with pytest.raises(TooLong, match="now"):
            wait_until(lambda: False, seconds=30)
    assert wait_until(lambda: True, seconds=1)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_broken_off_it_leaves_no_process_behind(room: Path, number: signal.Signals) -> None:
    """Neither a worker, which is two processes and has its hands full, nor the server."""
    command = [sys.executable, "-m", "benchmarks", "run", "--only", "graph", "--count", "4000"]
    env = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"} | {"TMPDIR": str(room)}
    with (
        minding_interrupts(),
        subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as bench,
    ):
        try:
            wait_for(lambda: works_in(room), seconds=60)
            assert sum("temporalex" in line for line in started_in(room).values()) == 2
            bench.send_signal(number)
            bench.send_signal(number)  # somebody is impatient
            bench.wait(30)
            wait_for(lambda: not started_in(room), seconds=20, what="the end of everything that it started")
            assert number == signal.SIGKILL or not [*room.glob("tx-bench-*")], "its folder"
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
