"""The watchdog's thread: awake while it is needed, and at rest when it is not."""

from __future__ import annotations

import threading

import pytest

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
