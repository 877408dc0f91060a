"""Turns go on while an atomic activity takes long.

An atomic activity is part of a turn, and a worker's turns are one thread's. That one lets go of the wheel while it runs
the code of one; where it is away for long, another thread takes the wheel until it is back. So what the activity keeps
waiting is its own run, and whoever wants rows that it has locked. The idea is that of schedulers which hand their
processor on when a system call does not come back (Go's ``sysmon``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from temporalex_django.db.connections import worker_session
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.storage import TaskState

log = logging.getLogger("temporalex_django.workers")

#: So many threads besides the worker's own. The last one runs no atomic activity itself: turns never wait for one.
MAX_HELPERS: Final = 2
#: Seconds that a thread is away until somebody takes the wheel, and until somebody is told.
_LONG = 0.25
_SLOW = 1.0


@dataclass(eq=False, slots=True)
class _RunningActivity:
    """An atomic activity that runs now."""

    task: TaskState
    thread: int
    started_at: float = field(default_factory=time.monotonic)
    is_reported: bool = False


class TurnHandover:
    """The wheel of one worker loop, and who has it. ``turns(relieved)`` turns until ``relieved()``.

    Whoever uses the loop's storage holds ``turn_lock``. ``max_helpers`` threads help at once. ``check`` is for another
    thread, to call several times a second.
    """

    def __init__(
        self, storage: DjangoStorage, *, max_helpers: int, run_turns: Callable[[Callable[[], bool]], None]
    ) -> None:
        self.turn_lock = threading.Lock()
        self.max_helpers = max_helpers
        self._storage = storage
        self._run_turns = run_turns
        self._turn_threads: list[int] = []  # threads that turn, the worker's own first
        self._helpers: list[threading.Thread] = []
        self._running: dict[int, _RunningActivity] = {}  # by thread

    def register_thread(self) -> None:
        """The calling thread is the one that turns; before nobody relieves it."""
        self._turn_threads = [threading.get_ident()]

    @property
    def busy(self) -> bool:
        """Whether an atomic activity runs."""
        return bool(self._running)

    @property
    def oldest_started_at(self) -> float:
        """When the one that has run longest began, by the monotonic clock; now where none does."""
        return min((activity.started_at for activity in [*self._running.values()]), default=time.monotonic())

    def is_running(self, chain: UUID) -> bool:
        """Whether an atomic activity of it runs here, whatever the server says of its lock."""
        return any(activity.task.chain_id == chain for activity in self._running.values())

    @property
    def is_last_helper(self) -> bool:
        """Whether the calling thread is to leave atomic activities to others: nobody would relieve it."""
        return len(self._turn_threads) > max(self.max_helpers, 1) and self._turn_threads[-1] == threading.get_ident()

    @contextmanager
    def running_activity(self, task: TaskState, *, releases_lock: bool) -> Iterator[None]:
        """While the calling thread, which has the wheel, runs an atomic activity.

        ``releases_lock``: it lets go of the wheel, and of the storage.
        """
        thread = threading.get_ident()
        self._running[thread] = _RunningActivity(task, thread)
        releases_lock = (
            releases_lock
            and self.max_helpers > 0
            and thread in self._turn_threads
            and not self._storage.sql.writer_lock
        )
        transaction_state = self._storage.detach() if releases_lock else (None, None)
        if releases_lock:
            self.turn_lock.release()
        try:
            yield
        finally:
            del self._running[thread]  # before it waits: whoever has the wheel now goes no further
            if releases_lock:
                self.turn_lock.acquire()
                self._storage.attach(transaction_state)

    def check(self) -> None:
        """Take the wheel where all who could are away for long, and tell of what runs for long. Never waits."""
        now, running = time.monotonic(), [*self._running.values()]
        for entry in running:
            if now - entry.started_at > _SLOW and not entry.is_reported:
                entry.is_reported = True
                log.warning(
                    "atomic activity %s of run %s has held its transaction for %.1f s and goes on: its run waits, and "
                    "whoever wants rows that it has locked",
                    *(entry.task.activity, entry.task.run_id, now - entry.started_at),
                )
        turn_threads, helpers = self._turn_threads, [entry for entry in self._helpers if entry.is_alive()]
        if not turn_threads or len(helpers) >= min(self.max_helpers, len(turn_threads)) or self.turn_lock.locked():
            return
        if {entry.thread for entry in running} == {*turn_threads} and now - max(
            entry.started_at for entry in running
        ) > _LONG:
            helper = threading.Thread(target=self._run_helper, name="temporalex-relief", daemon=True)
            self._helpers = [*helpers, helper]
            helper.start()

    def _run_helper(self) -> None:
        own_thread = threading.get_ident()
        self._turn_threads.append(own_thread)
        try:
            with worker_session(self._storage.alias):
                self._run_turns(
                    lambda: any(
                        thread not in self._running
                        for thread in self._turn_threads[: self._turn_threads.index(own_thread)]
                    )
                )
        finally:
            self._turn_threads.remove(own_thread)

    def join(self, *, seconds: float) -> None:
        """Wait for those who help, who were told to stop with the others, so long at most."""
        until = time.monotonic() + seconds
        for helper in self._helpers:
            helper.join(max(0.0, until - time.monotonic()))
