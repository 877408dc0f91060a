"""The handover of turns to another thread while an atomic activity takes a long time.

An atomic activity is part of a turn, and one thread of a worker runs all turns. That thread releases ``turn_lock``
while it runs the code of an activity. If that takes a long time, another thread (a helper) takes the lock and runs
turns until the first one is back. So the activity delays only its own run, and transactions that need rows which it has
locked.
Schedulers do the same when a system call does not return: they give the processor to another thread (Go's ``sysmon``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import UUID

from temporalex_django.db.connections import worker_session
from temporalex_django.engine import policy
from temporalex_django.engine.contracts.records import TaskState
from temporalex_django.engine.contracts.storage import WorkerStorage

log = logging.getLogger("temporalex_django.workers")


@dataclass(eq=False, slots=True)
class _RunningActivity:
    """An atomic activity that is running.

    ``thread`` is the id of its thread, and ``started_at`` the time of its start (``time.monotonic``). ``is_reported``
    is True once a warning has named it as slow.
    """

    task: TaskState
    thread: int
    started_at: float = field(default_factory=time.monotonic)
    is_reported: bool = False


class TurnHandover:
    """Lets other threads of a worker run its turns while an atomic activity keeps the worker's own thread busy.

    ``run_turns(is_relieved)`` runs turns until ``is_relieved()`` is True: until a thread that ran turns before this one
    is back. A thread has to hold ``turn_lock`` while it uses the loop's storage. At most ``max_helpers`` further
    threads run turns. Another thread has to call ``check`` several times a second.
    """

    def __init__(
        self, storage: WorkerStorage, *, max_helpers: int, run_turns: Callable[[Callable[[], bool]], None]
    ) -> None:
        self.turn_lock = threading.Lock()
        self.max_helpers = max_helpers
        self._storage = storage
        self._run_turns = run_turns
        self._turn_threads: list[int] = []  # threads that turn, the worker's own first
        self._helpers: list[threading.Thread] = []
        self._running: dict[int, _RunningActivity] = {}  # by thread

    def register_thread(self) -> None:
        """Make the calling thread the one that runs turns. Call it once, before any helper may start."""
        self._turn_threads = [threading.get_ident()]

    @property
    def busy(self) -> bool:
        """True if an atomic activity is running."""
        return bool(self._running)

    @property
    def oldest_started_at(self) -> float:
        """The time (monotonic clock) at which the longest running activity started; now if none runs."""
        return min((activity.started_at for activity in [*self._running.values()]), default=time.monotonic())

    def is_running(self, chain: UUID) -> bool:
        """Return True if this process runs an atomic activity of the chain, even if the lock of the chain is lost."""
        return any(activity.task.chain_id == chain for activity in self._running.values())

    @property
    def is_last_helper(self) -> bool:
        """True if the calling thread must not run atomic activities, because no other thread is left to run turns."""
        return len(self._turn_threads) > max(self.max_helpers, 1) and self._turn_threads[-1] == threading.get_ident()

    @contextmanager
    def running_activity(self, task: TaskState, *, releases_lock: bool) -> Iterator[None]:
        """Register an atomic activity as running in the calling thread while the block runs.

        The thread holds ``turn_lock``. With ``releases_lock`` it gives up the lock, and the storage, until the activity
        has ended.
        """
        thread = threading.get_ident()
        self._running[thread] = _RunningActivity(task, thread)
        # Where the database has a writer lock, this transaction keeps it, and no other turn could write.
        releases_lock = (
            releases_lock
            and self.max_helpers > 0
            and thread in self._turn_threads
            and not self._storage.sql.writer_lock
        )
        if releases_lock:
            transaction_state = self._storage.detach()
        else:
            transaction_state = (None, None)
        if releases_lock:
            self.turn_lock.release()
        try:
            yield
        finally:
            # Before it waits for the lock: the helper that has it now runs no further turn.
            del self._running[thread]
            if releases_lock:
                self.turn_lock.acquire()
                self._storage.attach(transaction_state)

    def check(self) -> None:
        """Start a helper if all threads that run turns have long been busy with an activity; warn of slow ones.

        It never waits.
        """
        now, running = time.monotonic(), [*self._running.values()]
        for entry in running:
            if now - entry.started_at > policy.SLOW_ATOMIC_SECONDS and not entry.is_reported:
                entry.is_reported = True
                log.warning(
                    "atomic activity %s of run %s has held its transaction for %.1f s and is still running: its run "
                    "waits, and so do others that need the rows it has locked",
                    *(entry.task.activity, entry.task.run_id, now - entry.started_at),
                )
        turn_threads, helpers = self._turn_threads, [entry for entry in self._helpers if entry.is_alive()]
        if not turn_threads or len(helpers) >= min(self.max_helpers, len(turn_threads)) or self.turn_lock.locked():
            return
        # All threads that could run turns are inside an activity, and the latest of these has run for long, too.
        if {entry.thread for entry in running} == {*turn_threads} and now - max(
            entry.started_at for entry in running
        ) > policy.HANDOVER_SECONDS:
            helper = threading.Thread(target=self._run_helper, name="temporalex-relief", daemon=True)
            self._helpers = [*helpers, helper]
            helper.start()

    def _run_helper(self) -> None:
        """Run turns until a thread that ran them before is free again; the function of a helper's thread."""
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
        """Wait at most ``seconds`` for the helpers to end. They stop when the loop does."""
        until = time.monotonic() + seconds
        for helper in self._helpers:
            helper.join(max(0.0, until - time.monotonic()))
