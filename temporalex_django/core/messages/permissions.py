"""The permissions of senders. The host judges them at first execution only. See decision 37."""

from __future__ import annotations

from temporalex_django.core import current
from temporalex_django.core.failures import exception_message, exception_name
from temporalex_django.core.messages.sender import Judge, Sender
from temporalex_django.errors import JudgingFailed


class Permissions:
    """The judge of the current activation and the refusals of a replay.

    Without a judge, a named sender may do nothing that needs a permission.
    """

    __slots__ = ("_judge", "refused")

    def __init__(self) -> None:
        self._judge: Judge | None = None
        self.refused: tuple[int, ...] = ()  # numbers of signals that were refused in the replayed activation

    def begin(self, judge: Judge | None, refused: tuple[int, ...]) -> None:
        """Begin a new activation."""
        self._judge, self.refused = judge, refused

    def is_permitted(self, permission: str, sender: Sender | None, message: str) -> bool:
        """Return True if the sender may send the message. Code (no sender) may send everything.

        The judge may use the database. Raises ``JudgingFailed`` with the error of the judge as its cause.
        """
        return sender is None or self.has_permission(permission, sender, message=message)

    def has_permission(self, permission: str, sender: Sender, *, message: str) -> bool:
        """Return True if a person has the permission, which may also be a word for candidates (``HumanTaskSpec``)."""
        if self._judge is None:
            return False
        try:
            # The judge is code of the host: it may use the database, which the guard would refuse to workflow code.
            with current.outside_workflow(None):
                return self._judge(sender.key, permission, message)
        except Exception as exc:
            raise JudgingFailed(
                f"checking {permission!r} of {sender.name!r} for {message} failed: "
                f"{exception_name(type(exc))}: {exception_message(exc)}"
            ) from exc
