"""The budget of an activation: how many messages it takes before the rest waits for the next activation.

The host decides during the first execution. A replay takes as many messages as the history says. See decision 20.
"""

from __future__ import annotations

from collections.abc import Callable

from temporalex_django.core.journal import Journal
from temporalex_django.core.run_context import RunContext


class Budget:
    """The budget of the current activation.

    ``dispatch_count`` is the number of messages taken from the mailbox. ``spent_at`` is that number when the budget was
    spent while more messages were in the mailbox; None until then.
    """

    __slots__ = ("_dispatch_limit", "_is_budget_spent", "_journal", "_run_context", "dispatch_count", "spent_at")

    def __init__(self, run_context: RunContext, journal: Journal) -> None:
        self._run_context = run_context
        self._journal = journal
        self._is_budget_spent: Callable[[], bool] | None = None
        self._dispatch_limit: int | None = None
        self.dispatch_count = 0
        self.spent_at: int | None = None

    def begin(self, *, is_budget_spent: Callable[[], bool] | None, dispatch_limit: int | None) -> None:
        """Begin a new activation.

        ``is_budget_spent()`` returns True once the host has had enough; see ``Executor.activate``. ``dispatch_limit``
        is the number of messages after which a replay stops (``DeliveryRecord.dispatched``).
        """
        self._is_budget_spent, self._dispatch_limit = is_budget_spent, dispatch_limit
        self.dispatch_count, self.spent_at = 0, None

    def count_dispatch(self) -> None:
        """Count a message that is taken from the mailbox."""
        self.dispatch_count += 1

    def is_spent_before(self, index: int) -> bool:
        """Return True if the activation must end before it takes the arriving message with this ``index``, from 0.

        That message and the later ones then wait for the next activation. The first message is always taken, unless the
        activation has already had another effect. So each activation makes progress.
        """
        return (
            self._is_budget_spent is not None and (index > 0 or self._journal.is_recording) and self._is_budget_spent()
        )

    def is_spent(self, *, since: int) -> bool:
        """Return True if the messages that are still in the mailbox must wait for the next activation.

        The budget is not spent before more than ``since`` messages of the activation were taken: a caller that passes
        the number so far takes at least one more. Once it is spent, it stays so until the activation ends. Call this
        only where a message would be taken next, because a replay decides by the number of messages taken.
        """
        # The clock of the host differs between executions, so the count at which it stopped is part of the history.
        if self.spent_at is None:
            if self._run_context.replaying:
                full = self.dispatch_count == self._dispatch_limit
            else:
                full = self.dispatch_count > since and self._is_budget_spent is not None and self._is_budget_spent()
            if full:
                self.spent_at = self.dispatch_count
        return self.spent_at is not None
