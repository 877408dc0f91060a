"""Send a signal."""

from __future__ import annotations

from typing import Any, ClassVar

from temporalex_django.actions.base import CODE, Actor, to_plain_payload
from temporalex_django.actions.targets import RunAction, RunTarget
from temporalex_django.authoring.declared_messages import warn_lossy
from temporalex_django.authoring.workflow import require_signal
from temporalex_django.core import payloads
from temporalex_django.core.names import check_message_id, check_name
from temporalex_django.db.inserts import find_message, insert_message, notify_on_commit, update_outcome
from temporalex_django.engine.deduplication import MessageFingerprint


class SendSignal(RunAction[None]):
    """One INSERT into the inbox of the chain, on the caller's connection: it vanishes with his transaction.

    Locks nothing.

    With ``message_id`` it may be sent again: what the chain has of that id already is not sent twice (``exact``: nor
    taken for it when its payload is another). One that has become a failed message is delivered again, with this
    payload, and the audit has the digests of both. Raises ``WorkflowClosed`` when the run was closed when ``target``
    was read, ``PayloadError``, ``InvalidId``, and ``UnknownSignal`` where its class is here and declares others. A run
    that closes before it reads the signal leaves it settled as undelivered.
    """

    name: ClassVar[str] = "signal"
    permission: ClassVar[str] = "signal_instance"
    authorized_by_run: ClassVar[bool] = True
    is_routine: ClassVar[bool] = True

    def __init__(
        self,
        target: RunTarget,
        *,
        signal: str,
        payload: Any = None,
        id: str | None = None,
        exact: bool = False,
        by: Actor = CODE,
    ) -> None:
        super().__init__(by=by)
        self.target = target
        self.signal = signal
        self.payload = payload
        self.message_id = id
        self.exact = exact
        self._replaces_failed = False

    @property
    def is_audited(self) -> bool:
        """Also where code sends a signal again that failed: its payload is another one now."""
        return self._replaces_failed or super().is_audited

    @property
    def message_name(self) -> str:
        return str(self.signal)

    def perform(self) -> None:
        target, name = self.target, check_name(self.signal, label="signal")
        payload = to_plain_payload(self.payload, label=f"the payload of signal {name!r}")
        message_id = None if self.message_id is None else check_message_id(self.message_id, label="signal")
        fingerprint = MessageFingerprint("signal", name, payload, self.by.sender)
        if target.closed and message_id is not None and self._was_read(message_id, fingerprint):
            return
        target.require_open(f"signal {name!r}")
        if (code := target.workflow_class) is not None:
            require_signal(code, name)
            warn_lossy(code, "signal", name, self.payload, payload)
        with self.audit_transaction():
            inserted = insert_message(
                target.chain_id,
                kind="signal",
                name=name,
                body=payload,
                request_id=message_id,
                sender=self.by.sender,
                exact=self.exact,
                storage=self.storage,
            )
            if inserted.replaced is not None:  # it takes the place of a failed message
                self._replaces_failed = True
                self.record(
                    target.audit_subject,
                    signal=name,
                    message=message_id,
                    digest=payloads.digest(payload),
                    replaced=inserted.replaced,
                )
            elif inserted.new:
                self.record(target.audit_subject, signal=name)
        notify_on_commit(alias=self.storage.alias, queues=[target.queue])

    def _was_read(self, message_id: str, fingerprint: MessageFingerprint) -> bool:
        """Whether the run got it before it closed: sent again, that is a success too. Raises ``MessageIdTaken``."""
        if (earlier_message := find_message(self.target.chain_id, message_id, storage=self.storage)) is None:
            return False
        earlier_message[1].require_same(message_id, fingerprint, exact=self.exact)
        outcome = update_outcome(self.target.chain_id, message_id, storage=self.storage)
        return outcome is not None and outcome.status == "completed"
