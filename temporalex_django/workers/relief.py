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

log = logging.getLogger("temporalex_django.runtime")

#: So many threads besides the worker's own. The last one runs no atomic activity itself: turns never wait for one.
MOST: Final = 2
#: Seconds that a thread is away until somebody takes the wheel, and until somebody is told.
_LONG = 0.25
_SLOW = 1.0


@dataclass(eq=False, slots=True)
class _Away:
    """An atomic activity that runs now."""

    task: TaskState
    thread: int
    began: float = field(default_factory=time.monotonic)
    told: bool = False


class Relief:
    """The wheel of one worker loop, and who has it. ``turns(relieved)`` turns until ``relieved()``.

    Whoever uses the loop's storage holds ``wheel``. ``most`` threads help at once. ``look`` is for another thread, to
    call several times a second.
    """

    def __init__(self, storage: DjangoStorage, *, most: int, turns: Callable[[Callable[[], bool]], None]) -> None:
        self.wheel = threading.Lock()
        self.most = most
        self._storage = storage
        self._turns = turns
        self._crew: list[int] = []  # threads that turn, the worker's own first
        self._helpers: list[threading.Thread] = []
        self._away: dict[int, _Away] = {}  # by thread

    def begin(self) -> None:
        """The calling thread is the one that turns; before nobody relieves it."""
        self._crew = [threading.get_ident()]

    @property
    def busy(self) -> bool:
        """Whether an atomic activity runs."""
        return bool(self._away)

    @property
    def since(self) -> float:
        """When the one that has run longest began, by the monotonic clock; now where none does."""
        return min((one.began for one in [*self._away.values()]), default=time.monotonic())

    def runs(self, chain: UUID) -> bool:
        """Whether an atomic activity of it runs here, whatever the server says of its lock."""
        return any(one.task.chain_id == chain for one in self._away.values())

    @property
    def spared(self) -> bool:
        """Whether the calling thread is to leave atomic activities to others: nobody would relieve it."""
        return len(self._crew) > max(self.most, 1) and self._crew[-1] == threading.get_ident()

    @contextmanager
    def away(self, task: TaskState, *, hands_over: bool) -> Iterator[None]:
        """While the calling thread, which has the wheel, runs an atomic activity.

        ``hands_over``: it lets go of the wheel, and of the storage.
        """
        thread = threading.get_ident()
        self._away[thread] = _Away(task, thread)
        hands_over = hands_over and self.most > 0 and thread in self._crew and not self._storage.sql.writer_lock
        kept = self._storage.left_open() if hands_over else (None, None)
        if hands_over:
            self.wheel.release()
        try:
            yield
        finally:
            del self._away[thread]  # before it waits: whoever has the wheel now goes no further
            if hands_over:
                self.wheel.acquire()
                self._storage.taken_up(kept)

    def look(self) -> None:
        """Take the wheel where all who could are away for long, and tell of what runs for long. Never waits."""
        now, away = time.monotonic(), [*self._away.values()]
        for one in away:
            if now - one.began > _SLOW and not one.told:
                one.told = True
                log.warning(
                    "atomic activity %s of run %s has held its transaction for %.1f s and goes on: its run waits, and "
                    "whoever wants rows that it has locked",
                    *(one.task.activity, one.task.run_id, now - one.began),
                )
        crew, helpers = self._crew, [one for one in self._helpers if one.is_alive()]
        if not crew or len(helpers) >= min(self.most, len(crew)) or self.wheel.locked():
            return
        if {one.thread for one in away} == {*crew} and now - max(one.began for one in away) > _LONG:
            helper = threading.Thread(target=self._help, name="temporalex-relief", daemon=True)
            self._helpers = [*helpers, helper]
            helper.start()

    def _help(self) -> None:
        own = threading.get_ident()
        self._crew.append(own)
        try:
            with worker_session(self._storage.alias):
                self._turns(lambda: any(one not in self._away for one in self._crew[: self._crew.index(own)]))
        finally:
            self._crew.remove(own)

    def end(self, *, seconds: float) -> None:
        """Wait for those who help, who were told to stop with the others, so long at most."""
        until = time.monotonic() + seconds
        for helper in self._helpers:
            helper.join(max(0.0, until - time.monotonic()))
