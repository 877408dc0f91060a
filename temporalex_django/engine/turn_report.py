"""The result of a claim for a turn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from uuid import UUID

from temporalex_django.engine.contracts.run_storage import Inbox, RunState


class ClaimedRuns(list[RunState]):
    """Runs that a claim has locked; ``now`` is the storage's clock after that, where it came with them.

    ``inbox(chains)`` returns inboxes that were requested together with the locks, as ``RunStorage.inbox`` does. It has
    those of ``chains`` that the claim wanted ``first``.
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
