"""How much of what is there one activation takes: its host says when it has enough, a history how much it was."""

from __future__ import annotations

from collections.abc import Callable

from temporalex_django.core.journal import Journal
from temporalex_django.core.run_context import RunContext


class Budget:
    """Of the present activation. ``dispatch_count``: messages that phases and waits took from the mailbox."""

    __slots__ = ("_dispatch_limit", "_is_budget_spent", "_journal", "_run_context", "dispatch_count")

    def __init__(self, run_context: RunContext, journal: Journal) -> None:
        self._run_context = run_context
        self._journal = journal
        self._is_budget_spent: Callable[[], bool] | None = None
        self._dispatch_limit: int | None = None
        self.dispatch_count = 0

    def begin(self, *, is_budget_spent: Callable[[], bool] | None, dispatch_limit: int | None) -> None:
        """A new activation: see ``Executor.activate``. ``dispatch_limit``: ``Activation.dispatched``."""
        self._is_budget_spent, self._dispatch_limit, self.dispatch_count = is_budget_spent, dispatch_limit, 0

    def count_dispatch(self) -> None:
        """A message is taken from the mailbox."""
        self.dispatch_count += 1

    def is_spent_before(self, index: int) -> bool:
        """Whether message ``index`` of those that arrive is for the next activation.

        Not the first one, unless the activation has had another effect: each comes further than the one before.
        """
        return (
            self._is_budget_spent is not None and (index > 0 or self._journal.is_recording) and self._is_budget_spent()
        )

    def is_spent(self, *, since: int) -> bool:
        """Whether the other messages in the mailbox are for the next activation: from then on, all of them.

        Not before one was taken beyond ``since``. To be asked only where a message would be taken: a replay answers by
        their count.
        """
        completion = self._journal.completion
        if completion.dispatched is None:
            if self._run_context.replaying:
                full = self.dispatch_count == self._dispatch_limit
            else:
                full = self.dispatch_count > since and self._is_budget_spent is not None and self._is_budget_spent()
            if full:
                completion.dispatched = self.dispatch_count
        return completion.dispatched is not None
