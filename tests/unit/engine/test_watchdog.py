"""The watchdog's thread: awake while it is needed, and at rest when it is not."""

from __future__ import annotations

import threading
import time

import pytest

from temporalex_django.engine import policy
from temporalex_django.engine.watchdog import Watchdog
from temporalex_django.errors import DeadlockDetected
from tests.support.waiting import wait_for


class Counted(threading.Event):
    sets = 0

    def set(self) -> None:
        self.sets += 1
        super().set()


def spins() -> None:
    while True:
        pass


def test_who_comes_again_at_once_does_not_wake_it_again_and_later_it_rests() -> None:
    watchdog = Watchdog()
    busy = watchdog._busy = Counted()
    for _ in range(2):  # the second time it had rested
        before = busy.sets
        for number in range(100):
            assert watchdog.run(lambda number=number: number, limit=30, label="a call") == number
        assert busy.sets == before + 1
        with pytest.raises(DeadlockDetected):
            watchdog.run(spins, limit=0.1, label="a loop")
        wait_for(lambda: not busy.is_set())


def test_processor_time_is_that_of_the_thread() -> None:
    """Another thread computes all the time, and this one waits for longer than its limit."""
    watchdog, stop = Watchdog(), threading.Event()

    def compute() -> None:
        while not stop.is_set():
            pass

    other = threading.Thread(target=compute)
    other.start()
    try:
        assert watchdog.run(lambda: stop.wait(0.3), limit=0.1, label="a wait", by_processor_time=True) is False
        with pytest.raises(DeadlockDetected, match=r"a loop did not reach a wait within 0\.1 s of processor time"):
            watchdog.run(spins, limit=0.1, label="a loop", by_processor_time=True)
    finally:
        stop.set()
        other.join()


def test_code_that_waits_for_something_else_is_interrupted_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "PROCESSOR_WAIT_FACTOR", 0.2)

    def waits() -> None:
        while True:
            time.sleep(0.01)

    with pytest.raises(DeadlockDetected):
        Watchdog().run(waits, limit=1.0, label="a wait", by_processor_time=True)
