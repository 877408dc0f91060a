"""What nothing inside of a worker can stop is ended from outside; a worker that was stopped is nobody's fault."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from temporalex_django.liveness.crash_markers import MarkedWork, read_marker
from temporalex_django.liveness.process_identity import identity_of, process_state
from temporalex_django.models import Chain, Instance, Worker
from tests.faults.test_crash_marks import closed, instance, start, supervised
from tests.support.processes import running, worker
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.once_on_postgres]


def env_with(env: dict[str, str], **settings: Any) -> dict[str, str]:
    return {
        **env,
        "DJANGO_SETTINGS_MODULE": "tests.settings_of_processes",
        "TX_TEST_TEMPORALEX": json.dumps(settings),
    }


def ticks_of(pid: int) -> int:
    """Of the processor, that a process has used: a hundred a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@pytest.mark.parametrize("in_c", [False, True], ids=["a loop that catches everything", "a regular expression"])
def test_a_run_that_nothing_can_interrupt_is_blocked_and_the_others_go_on(
    subprocess_env: dict[str, str], tmp_path: Path, in_c: bool
) -> None:
    env = env_with(subprocess_env, DEADLOCK_TIMEOUT=0.3, HARD_DEADLOCK_TIMEOUT=1.0)
    armed = tmp_path / "armed"
    armed.touch()
    hanging = start("Hanging", {"path": str(armed), "in_c": in_c})
    others = [start("Doubling", {"n": n}, workflow_id=f"d{n}") for n in range(5)]

    deaths = supervised(
        env, tmp_path, lambda: bool(instance(hanging).blocked) and all(closed(other) for other in others)
    )

    blocked = instance(hanging).blocked
    assert blocked is not None
    assert deaths >= 3  # on a busy machine a worker may not beat for a second and is ended without a fault of its own
    assert blocked["code"] == "crash"
    assert "the guardian killed the last one, because nothing could interrupt it for 1 s" in blocked["error"]


@pytest.mark.parametrize("in_c", [False, True], ids=["at rest", "in code that nothing can interrupt"])
def test_the_guardian_dies_and_so_does_the_worker(subprocess_env: dict[str, str], tmp_path: Path, in_c: bool) -> None:
    log = tmp_path / "log"
    log.touch()
    with worker(env_with(subprocess_env, HARD_DEADLOCK_TIMEOUT=600.0), tmp_path) as process:
        child = process.child
        if in_c:
            start("HopelessActivity", {"path": str(log)})
            wait_for(log.read_text)
        os.kill(process.pid, signal.SIGKILL)
        process.popen.wait(20)
        wait_for(lambda: not identity_of(child), what="the worker to end with its guardian")
        assert process.popen.returncode == -signal.SIGKILL


def test_the_guardian_is_stopped_and_so_is_the_worker_until_it_goes_on(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    with worker(subprocess_env, tmp_path) as process:
        child = process.child
        for n in range(2):
            os.kill(process.pid, signal.SIGSTOP)
            wait_for(lambda: process_state(child) == "T", what="the worker to be stopped with its guardian")
            started = start("Doubling", {"n": n}, workflow_id=f"d{n}")
            os.kill(process.pid, signal.SIGCONT)
            wait_for(lambda run=started: closed(run))  # type: ignore[misc]
        assert process.terminate() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_both_is_one_signal(subprocess_env: dict[str, str], tmp_path: Path, number: signal.Signals) -> None:
    """As a terminal and systemd send it: it finishes what it has in hand all the same."""
    log, hold = tmp_path / "log", tmp_path / "hold"
    log.touch()
    hold.touch()
    started = start("Recording", {"path": str(log), "hold": str(hold)})
    with worker(subprocess_env, tmp_path) as process:
        wait_for(log.read_text)
        os.killpg(process.pid, number)
        hold.unlink()
        assert process.popen.wait(30) == 0
    assert not Worker.objects.exists()
    with running(["temporalex", "worker", "--burst"], subprocess_env, tmp_path / "burst.log") as burst:
        assert burst.popen.wait(30) == 0
    assert closed(started)
    assert len(log.read_text().splitlines()) == 1


def test_a_worker_that_was_stopped_in_a_turn_blames_nobody(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    """Not for a deadlock when it goes on, and not for a death when another one takes it for dead."""
    env = env_with(subprocess_env, DEADLOCK_TIMEOUT=1.0, HARD_DEADLOCK_TIMEOUT=3.0, LEASE_SECONDS=2.0)
    busy = tmp_path / "busy"
    busy.touch()
    with worker(env, tmp_path) as process:
        child = process.child
        marker = Worker.objects.get().crash_marker
        run = start("BusyWhile", {"path": str(busy)})
        wait_for(lambda: (left := read_marker(marker)) is not None and MarkedWork("chain", run.chain_id) in left.marks)
        os.kill(child, signal.SIGSTOP)
        wait_for(lambda: process_state(child) == "T")
        began, used = time.monotonic(), ticks_of(child)
        wait_for(lambda: time.monotonic() - began > 5.0, what="longer than all limits")
        os.kill(child, signal.SIGCONT)
        wait_for(lambda: ticks_of(child) > used + 20, what="the watchdog to have had a look at it meanwhile")
        busy.unlink()
        wait_for(lambda: closed(run))
        assert process.child == child
    assert instance(run).status == "completed"
    assert "did not reach a wait" not in (tmp_path / "worker.log").read_text()
    assert Instance.objects.get(pk=run.run_id).closing_value == {"result": "done"}


def test_an_activity_that_keeps_the_interpreter_fails_at_the_third_time(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    env = env_with(subprocess_env, HARD_DEADLOCK_TIMEOUT=1.0)
    log = tmp_path / "log"
    log.touch()
    run = start("HopelessActivity", {"path": str(log)})

    assert supervised(env, tmp_path, lambda: closed(run)) == 3

    failure = instance(run).closing_value
    assert "3 workers died while running it; the guardian killed the last one" in failure["message"]
    assert len(log.read_text().splitlines()) == 3


def test_a_frozen_worker_loses_its_activities_to_others_and_finds_out(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    """Its session lock stands all the while; what it has to say afterwards is refused."""
    env = env_with(subprocess_env, LEASE_SECONDS=2.0)
    log, hold = tmp_path / "log", tmp_path / "hold"
    log.touch()
    hold.touch()
    with worker(env, tmp_path, name="frozen") as frozen:
        started = start("Recording", {"path": str(log), "hold": str(hold)})
        wait_for(log.read_text)
        epoch = Worker.objects.get().epoch
        os.kill(frozen.child, signal.SIGSTOP)
        with worker(env, tmp_path, name="other"):
            wait_for(lambda: len(log.read_text().splitlines()) == 2)
            os.kill(frozen.child, signal.SIGCONT)
            wait_for(lambda: Worker.objects.filter(pid=frozen.child).exclude(epoch=epoch).exists())
            hold.unlink()
            wait_for(lambda: closed(started))
        assert frozen.popen.poll() is None

    assert instance(started).status == "completed"
    kinds = [event.kind for event in instance(started).events.all()]
    assert kinds.count("ActivityCompleted") == 1
    assert Chain.objects.get(pk=started.chain_id).crashes == 0
