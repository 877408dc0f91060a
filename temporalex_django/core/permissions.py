"""Who may send a message that takes a permission: asked of the host, at first execution only."""

from __future__ import annotations

from temporalex_django.core import current
from temporalex_django.core.failures import exception_message, exception_name
from temporalex_django.core.senders import Judge, Sender
from temporalex_django.errors import JudgingFailed


class Permissions:
    """``judge`` is the host's, of the present activation; without one, who is named may do nothing that takes one."""

    __slots__ = ("_judge", "refused")

    def __init__(self) -> None:
        self._judge: Judge | None = None
        self.refused: tuple[int, ...] = ()  # numbers of signals, of the activation that is replayed

    def begin(self, judge: Judge | None, refused: tuple[int, ...]) -> None:
        """A new activation."""
        self._judge, self.refused = judge, refused

    def is_permitted(self, permission: str, sender: Sender | None, message: str) -> bool:
        """Whether somebody may send that; code may send everything. The judge may use the database.

        Raises ``JudgingFailed`` with what the judge raised as its cause.
        """
        return sender is None or self.has_permission(permission, sender, message=message)

    def has_permission(self, permission: str, sender: Sender, *, message: str) -> bool:
        """The same of a person; ``permission`` may also be a word for people (see ``human_tasks.Asking``)."""
        if self._judge is None:
            return False
        try:
            with current.outside_workflow(None):
                return self._judge(sender.key, permission, message)
        except Exception as exc:
            raise JudgingFailed(
                f"judging {message} of {sender.name!r} for {permission!r} failed: "
                f"{exception_name(type(exc))}: {exception_message(exc)}"
            ) from exc
