"""What a run has for others: messages, and children to start. They are stored with its activation, as rows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

from temporalex_django.authoring.workflow import find_version, require_signal
from temporalex_django.core.history.events import DELIVERED
from temporalex_django.engine.run_start import RunStart
from temporalex_django.errors import AlreadyRunning, AmbiguousId, TemporalexError, UnknownSignal


@dataclass(slots=True, kw_only=True)
class NewMessage:
    """A message to another chain, to a child or to the newest open run of an id.

    ``chain_id``, ``child`` (run, number) or ``workflow_id`` names it.

    ``ask`` is (chain, run, number) of a sender that waits to hear whether it was stored: the answer is a message of
    kind ``external``.
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

    def check_delivery(self, delivery: Delivery) -> Delivery:
        """Where it goes, if the run there can take it.

        Not a signal that is none of those which its class declares, as far as this process has it.
        """
        checks_signal = self.kind == "signal" and self.ask is not None and delivery.chain_id is not None
        code = (
            find_version(delivery.workflow, delivery.version)
            if checks_signal and delivery.workflow is not None
            else None
        )
        if code is not None:
            try:
                require_signal(code, self.name)
            except UnknownSignal as exc:
                return delivery._replace(chain_id=None, error=exc)
        return delivery

    def answer(self, delivery: Delivery) -> tuple[str, dict[str, Any]]:
        """Name and body of what the sender that asked hears."""
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
    """Where a message to an id goes: an open chain, or none; ``exists``: there was a run of it.

    ``error``: several could be meant, or the one does not take it. ``workflow`` and ``version`` are its class.
    """

    chain_id: UUID | None
    exists: bool = True
    error: AmbiguousId | UnknownSignal | None = None
    workflow: str | None = None
    version: int = 0


#: Body of the message to a child whose parent closed.
PARENT_CLOSED: Final = {"reason": "its parent closed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewChild(RunStart):
    """A run to start for another one.

    When its id is taken, the parent gets ``ChildFailed`` with the type AlreadyRunning.
    """

    seed: int
    at: datetime
    parent: str
    parent_chain: UUID
    parent_run: UUID
    parent_seq: int
    parent_close: str

    def refusal_message(self, error: TemporalexError | None = None) -> NewMessage:
        """What the parent hears when the id is taken, or cannot be had for another reason."""
        error = error or AlreadyRunning(f"{self.workflow} {self.workflow_id!r} is open already")
        payload = {"seq": self.parent_seq, "type": type(error).__name__, "message": str(error)}
        return NewMessage(
            kind="child", name="ChildFailed", payload=payload, chain_id=self.parent_chain, run_id=self.parent_run
        )
