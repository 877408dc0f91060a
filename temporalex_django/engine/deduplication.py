"""A message that is sent again under its id counts once; another message under the same id is refused.

For code the id is its own key: whatever the body says, the first outcome comes back. A face, whose callers are
strangers, asks for the same body too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from temporalex_django.core import payloads
from temporalex_django.core.names import quoted
from temporalex_django.core.senders import Sender
from temporalex_django.errors import MessageIdTaken


class MessageFingerprint(NamedTuple):
    """What makes a message this one. ``payload`` is plain data."""

    kind: str
    name: str
    payload: Any
    sender: Sender | None

    def require_same(self, message_id: str, other: MessageFingerprint, *, exact: bool) -> None:
        """Raises ``MessageIdTaken`` when ``other`` is another message, or somebody else's.

        With ``exact`` also for another body.
        """
        if (self.kind, self.name) != (other.kind, other.name):
            difference = "this is another message"
        elif (self.sender and self.sender.key) != (other.sender and other.sender.key):
            difference = "somebody else sent it"
        elif exact and payloads.encode(self.payload) != payloads.encode(other.payload):  # bytes: 1 is not True
            difference = "it said something else"
        else:
            return
        raise MessageIdTaken(
            f"{quoted(message_id)} is the id of the {self.kind} {self.name!r} of this run, and {difference}: take another id"
        )
