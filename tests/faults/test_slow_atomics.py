"""An atomic activity that takes long keeps its own run waiting, and no other: in real workers."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from django.contrib.auth import get_user_model
from django.test import override_settings

from temporalex_django.db.inserts import StartedRun
from temporalex_django.models import Chain
from temporalex_django.workers.maintenance import activity_threads, handover_threads
from tests.faults.test_crash_marks import closed, start
from tests.faults.test_guardian import env_with
from tests.faults.test_health import health, only
from tests.support.processes import worker
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


class Held:
    """A run whose atomic activity goes on until it is let go."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.hold, self.log = folder / f"{name}.hold", folder / f"{name}.log"
        self.hold.touch()
        args = {"name": name, "path": str(self.log), "hold": str(self.hold)}
        self.run = start("Booking", args, workflow_id=name)

    def runs(self) -> bool:
        return self.log.exists()

    def let_go(self) -> None:
        with suppress(FileNotFoundError):
            self.hold.unlink()

    def is_done_once(self) -> bool:
        users = get_user_model().objects.filter(username=self.name).count()
        return closed(self.run) and (users, self.log.read_text().count("\n")) == (1, 1)


def others(number: int, *, what: str) -> list[StartedRun]:
    return [start("Doubling", {"n": n}, workflow_id=f"{what}{n}") for n in range(number)]


@pytest.mark.postgres
def test_turns_of_others_go_on_and_it_is_named_while_it_runs(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    slow = Held(tmp_path, "ann")
    with worker(subprocess_env, tmp_path) as process:
        wait_for(slow.runs)
        first = others(5, what="first")
        wait_for(lambda: all(map(closed, first)), what="runs that began behind it")
        process.says("has held its transaction for")
        slow_too = Held(tmp_path, "bob")  # by whoever took the wheel
        wait_for(slow_too.runs)
        second = others(5, what="second")
        wait_for(lambda: all(map(closed, second)), what="runs behind two of them")
        assert not closed(slow.run)
        assert not closed(slow_too.run)

        slow.let_go()
        wait_for(slow.is_done_once)
        assert not closed(slow_too.run)
        slow_too.let_go()
        wait_for(slow_too.is_done_once)
        quick, third = others(3, what="last"), Held(tmp_path, "eve")
        third.let_go()
        wait_for(lambda: all(map(closed, quick)) and third.is_done_once())
        assert process.terminate() == 0
    assert not Chain.objects.filter(closed=False).exists()


@pytest.mark.postgres
def test_a_third_one_waits_and_keeps_nobody_waiting(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    slow = [Held(tmp_path, name) for name in ("ann", "bob", "eve")]
    with worker(subprocess_env, tmp_path):
        wait_for(lambda: sum(one.runs() for one in slow) == 2)
        beside = others(10, what="beside")
        wait_for(lambda: all(map(closed, beside)))
        assert sum(one.runs() for one in slow) == 2
        for one in slow:
            one.let_go()
        wait_for(lambda: all(one.is_done_once() for one in slow))


@pytest.mark.postgres
def test_who_is_killed_meanwhile_has_done_nothing_twice(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    slow = Held(tmp_path, "ann")
    with worker(subprocess_env, tmp_path, name="first") as process:
        wait_for(slow.runs)
        beside = others(3, what="beside")
        wait_for(lambda: all(map(closed, beside)))
        process.kill()
    assert not get_user_model().objects.exists()
    slow.let_go()
    with worker(subprocess_env, tmp_path, name="second"):
        wait_for(lambda: closed(slow.run))
    assert get_user_model().objects.count() == 1


def test_one_that_does_not_come_back_makes_its_worker_unlive(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    """Turns of others or not: whoever supervises the worker is to know."""
    with worker(env_with(subprocess_env, HEALTH_SECONDS=1.0), tmp_path) as process:
        me = ("--pid", str(process.pid))
        wait_for(lambda: health(*me)["well"])
        slow = Held(tmp_path, "ann")

        def is_unlive() -> bool:
            seen = only(*me)  # one look: the next one may see another turn
            return not seen["live"] and any("not looked for work" in why for why in seen["why"])

        wait_for(is_unlive)
        slow.let_go()
        wait_for(slow.is_done_once)
        wait_for(lambda: only(*me)["live"])
        assert process.terminate() == 0


@pytest.mark.postgres
def test_told_to_stop_it_ends_with_what_it_runs(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    slow = [Held(tmp_path, name) for name in ("ann", "bob")]
    with worker(env_with(subprocess_env, DRAIN_SECONDS=20.0), tmp_path) as process:
        wait_for(lambda: all(one.runs() for one in slow))
        process.popen.terminate()
        for one in slow:
            one.let_go()
        assert process.popen.wait(30) == 0
    assert all(one.is_done_once() for one in slow)


@pytest.mark.parametrize(
    ("connections", "threads", "relief"), [(None, 8, 2), (6, 1, 0), (13, 8, 0), (14, 8, 1), (15, 8, 2), (99, 8, 2)]
)
def test_its_threads_are_within_the_number_of_connections(connections: int | None, threads: int, relief: int) -> None:
    with override_settings(TEMPORALEX={"WORKER_CONNECTIONS": connections}):
        assert (activity_threads(), handover_threads()) == (threads, relief)
