"""Who has the wheel of a worker while an atomic activity takes long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.storage import TaskState
from temporalex_django.workers import relief as module
from temporalex_django.workers.relief import Relief
from tests.support.waiting import wait_for

TASK = cast("TaskState", type("Task", (), {"activity": "book", "run_id": 1, "chain_id": 2}))


class Storage:
    """As far as it is asked: who uses it, one after the other."""

    alias = "default"

    def __init__(self, *, writer_lock: bool) -> None:
        self.sql = type("Sql", (), {"writer_lock": writer_lock})
        self.user: str | None = None

    def left_open(self) -> str | None:
        user, self.user = self.user, None
        return user

    def taken_up(self, kept: str | None) -> None:
        assert self.user is None
        self.user = kept


class Worker:
    def __init__(self, *, most: int = 2, writer_lock: bool = False) -> None:
        self.storage = Storage(writer_lock=writer_lock)
        self.turned: set[str] = set()
        self.relief = Relief(cast("DjangoStorage", self.storage), most=most, turns=self._turns)
        self.relief.begin()

    def _turns(self, relieved: Callable[[], bool]) -> None:
        while not relieved():
            with self.relief.wheel:
                assert self.storage.user is None
                self.storage.user = threading.current_thread().name
                self.turned.add(self.storage.user)
                self.storage.user = None


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONG", -1.0)


def looked(worker: Worker) -> bool:
    worker.relief.look()
    return bool(worker.turned)


def test_another_thread_turns_until_the_first_one_is_back() -> None:
    worker = Worker()
    with worker.relief.wheel:
        worker.storage.user = "own"
        with worker.relief.away(TASK, hands_over=True):
            wait_for(lambda: looked(worker))
            assert (worker.relief.busy, worker.relief.runs(cast("Any", 2))) == (True, True)
        assert worker.storage.user == "own"
        helpers = [one for one in threading.enumerate() if one.name == "temporalex-relief"]
        worker.storage.user = None
    worker.relief.end(seconds=30)
    assert not any(one.is_alive() for one in helpers)
    assert not worker.relief.busy
    worker.turned.clear()
    assert not looked(worker)


@pytest.mark.parametrize(
    ("worker", "hands_over"), [(Worker(most=0), True), (Worker(writer_lock=True), True), (Worker(), False)]
)
def test_nobody_takes_a_wheel_that_was_not_let_go(worker: Worker, hands_over: bool) -> None:
    worker.relief.begin()
    with worker.relief.wheel:
        with worker.relief.away(TASK, hands_over=hands_over):
            assert worker.relief.wheel.locked()
            assert not looked(worker)
        assert worker.relief.wheel.locked()


def test_an_error_of_the_activity_comes_with_the_wheel() -> None:
    worker = Worker()
    with worker.relief.wheel:
        with pytest.raises(KeyError), worker.relief.away(TASK, hands_over=True):
            raise KeyError("x")
        assert worker.relief.wheel.locked()


def test_what_runs_for_long_is_told_of_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SLOW", -1.0)
    worker = Worker(most=0)
    with worker.relief.wheel, worker.relief.away(TASK, hands_over=True):
        worker.relief.look()
        worker.relief.look()
    assert [record.getMessage()[:33] for record in caplog.records] == ["atomic activity book of run 1 has"]
