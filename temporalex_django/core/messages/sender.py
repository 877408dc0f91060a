"""Senders: the facts about a person that travel with a message, into the history and to ``api.sender()``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: ``judge(key, permission, message)`` returns True if the user with this key has the permission. ``message`` describes
#: the message in words. It is called outside workflow code, never on replay.
Judge = Callable[[str, str, str], bool]


@dataclass(frozen=True, slots=True)
class Sender:
    """The person who sent a message.

    ``key`` is the primary key of the user as text, or ``""`` for somebody who is not stored. ``name`` is the user name
    at the time of sending.
    """

    key: str
    name: str

    def __str__(self) -> str:
        return self.name or "somebody without a name"

    def as_dict(self) -> dict[str, str]:
        return {"key": self.key, "name": self.name}


def sender_attributes(sender: Sender | None) -> dict[str, Any]:
    """Return the sender as attributes of jobs, commands and events; an empty dictionary if code sent the message."""
    return {} if sender is None else {"sender": sender.as_dict()}


def sender_from(attributes: dict[str, Any]) -> Sender | None:
    """Return the sender from attributes that ``sender_attributes`` made."""
    sender_dict = attributes.get("sender")
    return None if sender_dict is None else Sender(sender_dict["key"], sender_dict["name"])
