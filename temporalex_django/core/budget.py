"""How much of what is there one activation takes: its host says when it has enough, a history how much it was."""

from __future__ import annotations

from collections.abc import Callable

from temporalex_django.core.journal import Journal
from temporalex_django.core.standing import Standing


class Budget:
    """Of the present activation. ``taken``: messages that phases and waits took from the mailbox."""

    __slots__ = ("_enough", "_journal", "_most", "_standing", "taken")

    def __init__(self, standing: Standing, journal: Journal) -> None:
        self._standing = standing
        self._journal = journal
        self._enough: Callable[[], bool] | None = None
        self._most: int | None = None
        self.taken = 0

    def begin(self, *, enough: Callable[[], bool] | None, most: int | None) -> None:
        """A new activation: see ``Executor.activate``. ``most``: ``Activation.dispatched``."""
        self._enough, self._most, self.taken = enough, most, 0

    def take(self) -> None:
        """A message is taken from the mailbox."""
        self.taken += 1

    def ends_before(self, index: int) -> bool:
        """Whether message ``index`` of those that arrive is for the next activation.

        Not the first one, unless the activation has had another effect: each comes further than the one before.
        """
        return self._enough is not None and (index > 0 or self._journal.recording) and self._enough()

    def spent(self, *, since: int) -> bool:
        """Whether the other messages in the mailbox are for the next activation: from then on, all of them.

        Not before one was taken beyond ``since``. To be asked only where a message would be taken: a replay answers by
        their count.
        """
        completion = self._journal.completion
        if completion.dispatched is None:
            if self._standing.replaying:
                full = self.taken == self._most
            else:
                full = self.taken > since and self._enough is not None and self._enough()
            if full:
                completion.dispatched = self.taken
        return completion.dispatched is not None
