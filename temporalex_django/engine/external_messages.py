"""Messages from outside, and keys by which they arrive once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

from temporalex_django.authoring.workflow import find_version, require_signal
from temporalex_django.core.history.events import DELIVERED
from temporalex_django.core.messages.sender import Headers, Sender
from temporalex_django.core.names import quoted
from temporalex_django.core.payloads import codec
from temporalex_django.engine.run_start import RunStart
from temporalex_django.errors import AlreadyRunning, AmbiguousId, MessageIdTaken, TemporalexError, UnknownSignal

# --- external messages ------------------------------------------------------------------------------------------------
#
# Messages from a run to other runs, and children to start. The activation that produces them stores them as rows.


@dataclass(slots=True, kw_only=True)
class NewMessage:
    """A message that a turn sends to another chain, to a child, or to the open run with a business id.

    ``kind``, ``name`` and ``payload`` are those of ``InboxMessage``. One of ``chain_id``, ``child`` (run id, command
    number) and ``workflow_id`` names the receiver. ``run_id`` is the run that waits for a result. ``ask`` is (chain,
    run, command number) of a sender that waits to learn whether the message was stored. The answer to it is a message
    of kind ``external``.
    """

    kind: str
    name: str
    payload: Any
    chain_id: UUID | None = None
    workflow_id: str | None = None
    run_id: UUID | None = None
    message_id: str | None = None
    child: tuple[UUID, int] | None = None
    ask: tuple[UUID, UUID, int] | None = None
    headers: Headers | None = None

    def check_delivery(self, delivery: Delivery) -> Delivery:
        """Return ``delivery`` if the run there can take the message, else a copy that names no chain but the error.

        A run cannot take a signal that its class does not declare. This is not checked if this process lacks the class.
        """
        checks_signal = self.kind == "signal" and self.ask is not None and delivery.chain_id is not None
        code = None
        if checks_signal and delivery.workflow is not None:
            code = find_version(delivery.workflow, delivery.version)
        if code is not None:
            try:
                require_signal(code, self.name)
            except UnknownSignal as exc:
                return delivery._replace(chain_id=None, error=exc)
        return delivery

    def answer(self, delivery: Delivery) -> tuple[str, dict[str, Any]]:
        """Return ``(name, payload)`` of the message that tells the sender if this message was stored.

        ``delivery`` says where the message went, or why it went nowhere.
        """
        assert self.ask is not None
        payload: dict[str, Any] = {"seq": self.ask[2]}
        if delivery.chain_id is not None:
            return DELIVERED, payload
        if isinstance(error := delivery.error, AmbiguousId):
            payload |= {"type": "AmbiguousId", "message": str(error), "candidates": error.candidates}
        elif isinstance(error, UnknownSignal):
            payload |= {"type": "UnknownSignal", "message": str(error), "known": error.known}
        elif delivery.exists:
            payload |= {"type": "WorkflowClosed", "message": f"the run {self.workflow_id!r} is closed"}
        else:
            payload |= {
                "type": "WorkflowNotFound",
                "message": f"no run with the id {self.workflow_id!r} was ever started",
            }
        return "ExternalFailed", payload


class Delivery(NamedTuple):
    """The chain to which a message to another run goes, or the reason why it goes nowhere (``chain_id`` is None).

    ``exists`` is True if there was a run with the id. ``error`` is set if several runs could be meant, or if the run
    does not take the message. ``workflow`` and ``version`` name the class of the run. ``is_elsewhere`` is True if the
    state of the run is not in this database, but on a Temporal cluster.
    """

    chain_id: UUID | None
    exists: bool = True
    error: AmbiguousId | UnknownSignal | None = None
    workflow: str | None = None
    version: int = 0
    is_elsewhere: bool = False


#: Payload of the message to a child whose parent closed.
PARENT_CLOSED: Final = {"reason": "its parent closed"}
#: The kind of that message by the ``parent_close`` of the child. With another one (abandon) there is no message.
PARENT_CLOSE_KINDS: Final = {"request_cancel": "cancel", "terminate": "terminate"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewChild(RunStart):
    """A run to start for another one, its parent; ``at`` is the time of the start.

    ``parent_seq`` is the number of the command that starts it, and ``parent_close`` says what happens to it when the
    parent closes. If its id is taken, the parent gets ``ChildFailed`` with the type AlreadyRunning.
    """

    seed: int
    at: datetime
    parent: str
    parent_chain: UUID
    parent_run: UUID
    parent_seq: int
    parent_close: str

    def refusal_message(self, error: TemporalexError | None = None) -> NewMessage:
        """Return the message that tells the parent that its child did not start.

        ``error`` says why; None means that an open run has the id.
        """
        error = error or AlreadyRunning(f"{self.workflow} {self.workflow_id!r} is open already")
        payload = {"seq": self.parent_seq, "type": type(error).__name__, "message": str(error)}
        return NewMessage(
            kind="child", name="ChildFailed", payload=payload, chain_id=self.parent_chain, run_id=self.parent_run
        )


@dataclass(slots=True, kw_only=True, eq=False)
class FinishedActivity:
    """An activity that ended in the open transaction, and whose result its run has not received.

    ``kind`` is the kind of the event with the result. ``attributes`` is the result as it will be read back, and
    ``encoded`` as it is stored, if known. ``queue`` is the queue of the run. The caller passes the result to a turn of
    the same transaction, or sends it to the chain as a message (``TaskStorage.deliver``). See decision 45.
    """

    id: int
    chain_id: UUID
    run_id: UUID
    queue: str
    kind: str
    attributes: dict[str, Any]
    encoded: bytes | None = None
    headers: Headers | None = None  # those of the activity


# --- deduplication ----------------------------------------------------------------------------------------------------
#
# Deduplication of messages: a message sent twice under its id counts once, and a different one is refused.
#
# For code the id is the whole key: whatever the payload is, the first outcome comes back. REST, whose callers are
# strangers, requires the same payload, too. See decision 25.


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
