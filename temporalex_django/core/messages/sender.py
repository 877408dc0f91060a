"""Senders of messages, and headers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from temporalex_django.core import current
from temporalex_django.core.failures import exception_message, exception_name
from temporalex_django.core.names import quoted
from temporalex_django.errors import InvalidHeaders, JudgingFailed

# --- sender -----------------------------------------------------------------------------------------------------------
#
# Senders: the facts about a person that travel with a message, into the history and to ``api.sender()``.


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


def sender_from(attributes: Mapping[str, Any]) -> Sender | None:
    """Return the sender from attributes that ``sender_attributes`` made."""
    sender_dict = attributes.get("sender")
    return None if sender_dict is None else Sender(sender_dict["key"], sender_dict["name"])


class Permissions:
    """The check of permissions during an activation: the judge of the host, and the refusals that a replay repeats.

    ``refused``, ``refused_arrivals`` and ``denied`` are those of the ``DeliveryRecord`` that is replayed. Without a
    judge, a named sender may do nothing that needs a permission.
    """

    __slots__ = ("_judge", "_replaying", "denied", "refused", "refused_arrivals")

    def __init__(self) -> None:
        self._judge: Judge | None = None
        self._replaying = False
        self.refused: tuple[int, ...] = ()
        self.refused_arrivals: tuple[int, ...] = ()
        self.denied: tuple[str, ...] = ()

    def begin(
        self,
        judge: Judge | None,
        refused: tuple[int, ...],
        refused_arrivals: tuple[int, ...],
        denied: tuple[str, ...],
        replaying: bool,  # noqa: FBT001 - a keyword costs a tenth of the call, once for each activation
    ) -> None:
        """Begin a new activation with its judge (None: nobody is asked), and the refusals that a replay repeats."""
        self._judge = judge
        self._replaying = replaying
        self.refused = refused
        self.refused_arrivals = refused_arrivals
        self.denied = denied

    def is_permitted(
        self, permission: str, sender: Sender | None, message: str, accepted_id: str | None = None
    ) -> bool:
        """Return True if the sender may send the message. Code (no sender) may send everything.

        ``message`` names the message in errors. ``accepted_id`` is the id of an update that was accepted before it is
        judged; a refusal is then added to ``denied``, where a replay finds it. The judge may use the database. Raises
        ``JudgingFailed`` with the error of the judge as its cause.
        """
        if accepted_id is not None and self._replaying:
            return accepted_id not in self.denied
        is_permitted = sender is None or self.has_permission(permission, sender, message=message)
        if accepted_id is not None and not is_permitted:
            self.denied = (*self.denied, accepted_id)
        return is_permitted

    def has_permission(self, permission: str, sender: Sender, *, message: str) -> bool:
        """Return True if a person has ``permission``, or is one of the candidates whom that word names.

        Words for candidates are those of ``HumanTaskSpec.candidates``. ``message`` names the message in errors. Raises
        ``JudgingFailed`` as ``is_permitted`` does.
        """
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


# --- headers ----------------------------------------------------------------------------------------------------------
#
# Headers: short texts by name that travel with starts, messages and activities, such as ``traceparent``.
#
# A replay does not compare them. It reads them from the history, so ``api.headers()`` returns the same again.


Headers = Mapping[str, str]

#: Largest size of all headers of a message: the bytes of their names and values in UTF-8.
MAX_HEADER_BYTES: Final = 4096
NO_HEADERS: Final[Headers] = MappingProxyType({})
#: A token of HTTP in lower case.
_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


def check_headers(headers: Headers | None, *, label: str) -> dict[str, str] | None:
    """Return a copy of ``headers``, or None if there are none.

    ``label`` names what they belong to. Raises ``InvalidHeaders``, which names the header, unless all of them are texts
    without control characters, the names are tokens in lower case, and they have at most ``MAX_HEADER_BYTES``.
    """
    if headers is None:
        return None
    if not isinstance(headers, Mapping):
        raise InvalidHeaders(f"{label}: headers must be a mapping of names to texts, not {type(headers).__name__}")
    size = 0
    for name, value in headers.items():
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise InvalidHeaders(
                f"{label}: {quoted(name)} is not the name of a header: use lower-case letters, digits and '-'"
            )
        if not isinstance(value, str):
            raise InvalidHeaders(f"{label}: the header {quoted(name)} must be text, not {type(value).__name__}")
        size += len(name) + _size_of(value, f"{label}: the header {quoted(name)}")
    if size > MAX_HEADER_BYTES:
        raise InvalidHeaders(
            f"{label}: the headers have {size} bytes, more than {MAX_HEADER_BYTES}: the longest one is "
            f"{quoted(max(headers, key=lambda name: len(headers[name])))}"
        )
    return dict(headers) or None


def _size_of(value: str, label: str) -> int:
    """Return the size in bytes. Raises ``InvalidHeaders``."""
    if _CONTROL.search(value) is not None:
        raise InvalidHeaders(f"{label} has a control character, such as a line break")
    if value.isascii():
        return len(value)
    try:
        return len(value.encode())
    except UnicodeEncodeError:
        raise InvalidHeaders(f"{label} has a character that UTF-8 cannot encode") from None


def headers_attributes(headers: Headers | None) -> dict[str, Any]:
    """Return headers as attributes of jobs, commands and events; an empty dictionary if there are none."""
    return {"headers": dict(headers)} if headers else {}


def headers_from(attributes: Mapping[str, Any]) -> Headers | None:
    """Return the headers from attributes that ``headers_attributes`` made, or None if they have none."""
    return attributes.get("headers")
