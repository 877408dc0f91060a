"""Whatever waits behind a handler is delivered when the handler ends, and no other message is needed for that."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connections

from temporalex_django.models import Message
from tests.app.turns import CUSTOMERS, SERVICES, Counter, GraphCounter
from tests.support.processes import worker
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


class Senders:
    """Threads that each send one message to a run and wait for its answer, all at once."""

    def __init__(self, calls: list[Callable[[], Any]]) -> None:
        self.answers: list[Any] = []
        self.errors: list[BaseException] = []
        gate = threading.Barrier(len(calls))
        self._threads = [threading.Thread(target=self._send, args=(call, gate), daemon=True) for call in calls]
        for thread in self._threads:
            thread.start()

    def _send(self, call: Callable[[], Any], gate: threading.Barrier) -> None:
        try:
            gate.wait(30)
            self.answers.append(call())
        except BaseException as exc:  # the test reports it
            self.errors.append(exc)
        finally:
            connections.close_all()

    def join(self, seconds: float) -> None:
        for thread in self._threads:
            thread.join(seconds)
        assert self.errors == []
        assert not any(thread.is_alive() for thread in self._threads)


def start_counter(kind: str) -> Any:
    handle = Counter.start({"kind": kind, "parts": 2}, id="counter")
    wait_for(lambda: handle.describe().accepts["updates"])
    return handle


def update_all(handle: Any) -> Senders:
    return Senders([lambda name=name: handle.update("take", name, timeout=120.0) for name in CUSTOMERS])


def check(handle: Any, senders: Senders) -> None:
    """Each is answered, in some order, and nothing waits any more."""
    senders.join(120)
    assert sorted(senders.answers) == list(range(12))
    assert not Message.objects.filter(settled=False).exists()
    handle.signal("stop")
    assert sorted(handle.result(timeout=60)) == sorted(CUSTOMERS)
    assert get_user_model().objects.count() == 24


def test_twelve_senders_at_once_are_all_answered(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    with worker(subprocess_env, tmp_path):
        handle = start_counter("atomic")
        check(handle, update_all(handle))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*SERVICES])
def test_killed_workers_leave_none_of_them_behind(subprocess_env: dict[str, str], tmp_path: Path, kind: str) -> None:
    with worker(subprocess_env, tmp_path, name="first") as first:
        handle = start_counter(kind)
        senders = update_all(handle)
        wait_for(lambda: len(senders.answers) >= 3)
        first.kill()
    with worker(subprocess_env, tmp_path, name="second") as second:
        wait_for(lambda: len(senders.answers) >= 6, seconds=120)
        second.kill()
    with worker(subprocess_env, tmp_path, name="third"):
        check(handle, senders)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [False, True])
def test_all_events_of_a_graph_with_atomic_steps_are_taken(
    subprocess_env: dict[str, str], tmp_path: Path, *, kills: bool
) -> None:
    with worker(subprocess_env, tmp_path, name="first") as first:
        handle = GraphCounter.start("one", {})
        wait_for(lambda: len(handle.describe().waiting_for) == 12)
        senders = Senders([lambda name=name: handle.resume("take", name, timeout=120.0) for name in CUSTOMERS])
        if kills:
            wait_for(lambda: get_user_model().objects.count() >= 2)
            first.kill()
        else:
            wait_for(lambda: handle.describe().closed_at is not None)
    with worker(subprocess_env, tmp_path, name="second"):
        senders.join(120)
        wait_for(lambda: handle.describe().closed_at is not None)
    assert (len(senders.answers), get_user_model().objects.count()) == (12, 12)
    assert not Message.objects.filter(settled=False).exists()
