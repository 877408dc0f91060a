"""Who sent a message: what of a person travels with it, into the history and to ``api.sender()``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: Whether the sender of that key has a permission; ``message`` says for what, in words. Called outside of workflow
#: code, never on replay.
Judge = Callable[[str, str, str], bool]


@dataclass(frozen=True, slots=True)
class Sender:
    """``key`` is the user's primary key as text, ``name`` his user name as it was then.

    Somebody who is not stored has the key ``""``.
    """

    key: str
    name: str

    def __str__(self) -> str:
        return self.name or "somebody without a name"

    def as_dict(self) -> dict[str, str]:
        return {"key": self.key, "name": self.name}


def sender_attributes(sender: Sender | None) -> dict[str, Any]:
    """What stands in attributes of jobs, commands and events: nothing where code sent the message."""
    return {} if sender is None else {"sender": sender.as_dict()}


def sender_from(attributes: dict[str, Any]) -> Sender | None:
    """The sender that ``sender_attributes`` noted."""
    sender_dict = attributes.get("sender")
    return None if sender_dict is None else Sender(sender_dict["key"], sender_dict["name"])
