"""Send a signal to a run."""

from __future__ import annotations

from typing import Any, ClassVar

from temporalex_django.authoring.declared_messages import check_payload
from temporalex_django.authoring.workflow import require_signal
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.backends.routing import backend_of
from temporalex_django.core.messages.sender import Headers, check_headers
from temporalex_django.core.names import check_message_id, check_name
from temporalex_django.core.payloads import codec
from temporalex_django.db.inserts import find_message, update_outcome
from temporalex_django.engine.external_messages import MessageFingerprint
from temporalex_django.operations.base import CODE, Actor, to_plain_payload
from temporalex_django.operations.run_lookup import RunAction


class SendSignal(RunAction[None]):
    """Operation that sends a signal to a chain.

    It is one INSERT into the inbox, in the caller's transaction if one is open, and locks nothing.

    With ``id`` it is safe to send the signal again: a message of that id is stored once. With ``exact``, a message that
    has the id and another payload raises ``MessageIdTaken``. If the earlier message has become a failed message, this
    one replaces it and is delivered; the audit log then records the digests of both payloads.

    Raises ``PayloadError``, ``InvalidId``, ``InvalidHeaders``, and ``UnknownSignal`` if this process has the class and
    it declares no such signal. Raises ``WorkflowClosed`` if the run was closed when ``target`` was read. If the run
    closes before it reads the signal, nothing is raised, and the message is settled as undelivered.
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
        headers: Headers | None = None,
        exact: bool = False,
        by: Actor = CODE,
    ) -> None:
        super().__init__(by=by)
        self.target = target
        self.signal = signal
        self.payload = payload
        self.message_id = id
        self.headers = check_headers(headers, label=f"signal {signal!r}")
        self.exact = exact
        self._replaces_failed = False

    @property
    def is_audited(self) -> bool:
        """True if a person or a forced operation sent the signal, or if it has replaced a failed message."""
        return self._replaces_failed or super().is_audited

    @property
    def message_name(self) -> str:
        return str(self.signal)

    def perform(self) -> None:
        target, name = self.target, check_name(self.signal, label="signal")
        payload = to_plain_payload(self.payload, label=f"the payload of signal {name!r}")
        message_id = None
        if self.message_id is not None:
            message_id = check_message_id(self.message_id, label="signal")
        fingerprint = MessageFingerprint("signal", name, payload, self.by.sender)
        # A sender that lost its connection repeats the signal, and must not fail because the first one did its work.
        if target.closed and message_id is not None and self._was_read(message_id, fingerprint):
            return
        target.require_open(f"signal {name!r}")
        if (code := target.workflow_class) is not None:
            require_signal(code, name)
            check_payload(code, "signal", name, self.payload, payload)
        # The insert locks nothing of the run, so senders never wait for workers (see decision 6).
        with self.audit_transaction():
            inserted = backend_of(target).send(
                target,
                kind="signal",
                name=name,
                body=payload,
                message_id=message_id,
                sender=self.by.sender,
                headers=self.headers,
                exact=self.exact,
                storage=self.storage,
            )
            # The message takes the place of a failed one (see decision 46).
            if inserted.replaced is not None:
                self._replaces_failed = True
                self.record(
                    target.audit_subject,
                    signal=name,
                    message=message_id,
                    digest=codec.digest(payload),
                    replaced=inserted.replaced,
                )
            elif inserted.new:
                self.record(target.audit_subject, signal=name)

    def _was_read(self, message_id: str, fingerprint: MessageFingerprint) -> bool:
        """Return True if the run received the message of that id before it closed.

        Raises ``MessageIdTaken`` if the id belongs to a message with other content than ``fingerprint``.
        """
        if (earlier_message := find_message(self.target.chain_id, message_id, storage=self.storage)) is None:
            return False
        earlier_message[1].require_same(message_id, fingerprint, exact=self.exact)
        outcome = update_outcome(self.target.chain_id, message_id, storage=self.storage)
        return outcome is not None and outcome.status == "completed"
