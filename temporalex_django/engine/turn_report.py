"""What a claim gives a turn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from uuid import UUID

from temporalex_django.engine.storage import Inbox, RunState


class ClaimedRuns(list[RunState]):
    """Runs that a claim has locked. ``now``: the storage's clock after that, where it came with them.

    ``inbox(chains)``: what was asked with the locks of runs that were wanted ``first``, as ``RunStorage.inbox`` gives
    it, of those of ``chains`` that are among them.
    """

    __slots__ = ("inbox", "now")

    def __init__(
        self,
        runs: Iterable[RunState] = (),
        *,
        now: datetime | None = None,
        inbox: Callable[[Collection[UUID]], dict[UUID, Inbox]] = lambda _: {},
    ) -> None:
        super().__init__(runs)
        self.now = now
        self.inbox = inbox
