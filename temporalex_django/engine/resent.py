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


class Sent(NamedTuple):
    """What makes a message this one. ``body`` is plain data."""

    kind: str
    name: str
    body: Any
    sender: Sender | None

    def require_same(self, request_id: str, again: Sent, *, exact: bool) -> None:
        """Raises ``MessageIdTaken`` when ``again`` is another message, or somebody else's.

        With ``exact`` also for another body.
        """
        if (self.kind, self.name) != (again.kind, again.name):
            what = "this is another message"
        elif (self.sender and self.sender.key) != (again.sender and again.sender.key):
            what = "somebody else sent it"
        elif exact and payloads.encode(self.body) != payloads.encode(again.body):  # bytes: 1 is not True
            what = "it said something else"
        else:
            return
        raise MessageIdTaken(
            f"{quoted(request_id)} is the id of the {self.kind} {self.name!r} of this run, and {what}: take another id"
        )
