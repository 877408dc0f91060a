"""Deduplication of messages: a message sent twice under its id counts once, and a different one is refused.

For code the id is the whole key: whatever the payload is, the first outcome comes back. REST, whose callers are
strangers, requires the same payload, too. See decision 25.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from temporalex_django.core.messages.sender import Sender
from temporalex_django.core.names import quoted
from temporalex_django.core.payloads import codec
from temporalex_django.errors import MessageIdTaken


class MessageFingerprint(NamedTuple):
    """The parts of a message that are compared when a second message comes with its id.

    They are its kind, name, sender and ``payload`` (plain data).
    """

    kind: str
    name: str
    payload: Any
    sender: Sender | None

    def require_same(self, message_id: str, other: MessageFingerprint, *, exact: bool) -> None:
        """Raise ``MessageIdTaken`` if ``other``, a message with the same id, is a different message.

        It is different if its kind, name or sender differs and, with ``exact``, if its payload does. ``message_id`` is
        the id of both.
        """
        if (self.kind, self.name) != (other.kind, other.name):
            difference = "this is a different message"
        elif (self.sender and self.sender.key) != (other.sender and other.sender.key):
            difference = "this one has a different sender"
        elif exact and codec.canonical_bytes(self.payload) != codec.canonical_bytes(other.payload):
            difference = "this one has a different payload"
        else:
            return
        raise MessageIdTaken(
            f"{quoted(message_id)} is already the id of the {self.kind} {self.name!r} of this run, and {difference}: "
            "use another id"
        )
