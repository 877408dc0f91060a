"""Who has the wheel of a worker while an atomic activity takes long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine import policy
from temporalex_django.engine.contracts.records import TaskState
from temporalex_django.workers.turn_runner import TurnHandover
from tests.support.waiting import wait_for

TASK = cast("TaskState", type("Task", (), {"activity": "book", "run_id": 1, "chain_id": 2}))


class Storage:
    """As far as it is asked: who uses it, one after the other."""

    alias = "default"

    def __init__(self, *, writer_lock: bool) -> None:
        self.sql = type("Sql", (), {"writer_lock": writer_lock})
        self.user: str | None = None

    def detach(self) -> str | None:
        user, self.user = self.user, None
        return user

    def attach(self, kept: str | None) -> None:
        assert self.user is None
        self.user = kept


class Worker:
    def __init__(self, *, most: int = 2, writer_lock: bool = False) -> None:
        self.storage = Storage(writer_lock=writer_lock)
        self.turned: set[str] = set()
        self.relief = TurnHandover(cast("DjangoStorage", self.storage), max_helpers=most, run_turns=self._turns)
        self.relief.register_thread()

    def _turns(self, relieved: Callable[[], bool]) -> None:
        while not relieved():
            with self.relief.turn_lock:
                assert self.storage.user is None
                self.storage.user = threading.current_thread().name
                self.turned.add(self.storage.user)
                self.storage.user = None


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "HANDOVER_SECONDS", -1.0)


def looked(worker: Worker) -> bool:
    worker.relief.check()
    return bool(worker.turned)


def test_another_thread_turns_until_the_first_one_is_back() -> None:
    worker = Worker()
    with worker.relief.turn_lock:
        worker.storage.user = "own"
        with worker.relief.running_activity(TASK, releases_lock=True):
            wait_for(lambda: looked(worker))
            assert (worker.relief.busy, worker.relief.is_running(cast("Any", 2))) == (True, True)
        assert worker.storage.user == "own"
        helpers = [one for one in threading.enumerate() if one.name == "temporalex-relief"]
        worker.storage.user = None
    worker.relief.join(seconds=30)
    assert not any(one.is_alive() for one in helpers)
    assert not worker.relief.busy
    worker.turned.clear()
    assert not looked(worker)


@pytest.mark.parametrize(
    ("worker", "hands_over"), [(Worker(most=0), True), (Worker(writer_lock=True), True), (Worker(), False)]
)
def test_nobody_takes_a_wheel_that_was_not_let_go(worker: Worker, hands_over: bool) -> None:
    worker.relief.register_thread()
    with worker.relief.turn_lock:
        with worker.relief.running_activity(TASK, releases_lock=hands_over):
            assert worker.relief.turn_lock.locked()
            assert not looked(worker)
        assert worker.relief.turn_lock.locked()


def test_an_error_of_the_activity_comes_with_the_wheel() -> None:
    worker = Worker()
    with worker.relief.turn_lock:
        with pytest.raises(KeyError), worker.relief.running_activity(TASK, releases_lock=True):
            raise KeyError("x")
        assert worker.relief.turn_lock.locked()


def test_what_runs_for_long_is_told_of_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "SLOW_ATOMIC_SECONDS", -1.0)
    worker = Worker(most=0)
    with worker.relief.turn_lock, worker.relief.running_activity(TASK, releases_lock=True):
        worker.relief.check()
        worker.relief.check()
    assert [record.getMessage()[:33] for record in caplog.records] == ["atomic activity book of run 1 has"]
