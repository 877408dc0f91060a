"""Updates of a run, their outcome and their metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from uuid import uuid4

from asgiref.sync import sync_to_async
from django.utils.functional import Promise

from temporalex_django import access
from temporalex_django.authoring.declared_messages import check_payload
from temporalex_django.authoring.handle import ANSWER_TIMEOUT
from temporalex_django.authoring.redaction import HIDDEN, UNREDACTED, Redactor
from temporalex_django.backends.host import (
    Deadline,
    WaitSlot,
    unlimited_wait,
)
from temporalex_django.backends.protocol import BackendRequest, RunTarget
from temporalex_django.backends.tables.requests import TablesRequest, update_status
from temporalex_django.core.failures import exception_name
from temporalex_django.core.messages.sender import Headers, check_headers
from temporalex_django.core.names import check_message_id, check_name, check_wait, quoted
from temporalex_django.db.inserts import find_message
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.activity_policy import update_result
from temporalex_django.engine.contracts.records import Outcome
from temporalex_django.errors import (
    ActionNotPermitted,
    RunBlocked,
    TemporalexError,
    UpdateFailed,
    UpdateRejected,
    UpdateTimeout,
    WorkflowClosed,
    WorkflowNotFound,
)
from temporalex_django.models import Instance
from temporalex_django.operations.base import CODE, Actor, logger, to_plain_payload
from temporalex_django.operations.fleet.stats import live_workers
from temporalex_django.operations.run_lookup import RunAction
from temporalex_django.telemetry import definitions
from temporalex_django.telemetry.recording import recorder

# --- update -----------------------------------------------------------------------------------------------------------
#
# Send an update, or another message with an answer, and wait for its outcome.


class RequestAction(RunAction[Any]):
    """Base class of the operations that send a message and wait for its outcome: an update, a resume or a decision.

    Outside of a transaction, this process inserts the message and runs a turn in one transaction. It needs the class of
    the run for that, and the lock of the chain within ``UPDATE_LOCK_WAIT`` seconds. Otherwise it commits only the
    message, and waits without a transaction until a worker has processed it. With ``mode`` "worker" only workers
    process it; the other mode is "auto". ``timeout`` is the longest wait in seconds; None waits for ever. ``wait_slot``
    limits how many callers wait at a time.

    Inside ``atomic()`` it waits for nothing but the lock, and everything commits or is rolled back with the caller's
    transaction. A rejected message leaves nothing behind.

    A message id that was accepted once returns its first outcome, whatever the payload. With ``exact``, another payload
    raises ``MessageIdTaken``.

    Raises ``PayloadError``, ``InvalidId``, ``InvalidHeaders``, ``UpdateRejected``, ``NotAccepting``, ``RunPaused``,
    ``RunBlocked``, ``WorkflowSwitchedOff``, ``WorkflowClosed``, ``TooManyUpdates``, ``UpdateFailed``, ``NestingError``,
    ``ActionNotPossible`` and ``UpdateTimeout``. After a timeout, send it again with the ``update_id`` of the error. The
    code of the error is ``unknown`` if the connection was lost while the message was sent.
    """

    kind: ClassVar[str]
    cluster: ClassVar[str | Promise] = "asks"
    authorized_by_run: ClassVar[bool] = True

    def __init__(
        self,
        target: RunTarget,
        *,
        message: str,
        payload: Any,
        id: str | None,
        timeout: float | None,
        mode: str,
        by: Actor,
        headers: Headers | None = None,
        exact: bool = False,
        wait_slot: WaitSlot = unlimited_wait,
    ) -> None:
        super().__init__(by=by)
        self.headers = check_headers(headers, label=f"{self.kind} {message!r}")
        self.exact = exact
        self.wait_slot = wait_slot
        wait = check_wait(timeout, mode)
        self.target = target
        self.message = check_name(message, label=self.kind)
        self.payload = to_plain_payload(payload, label=f"the body of {self.kind} {message!r}")
        self.message_id = str(uuid4()) if id is None else check_message_id(id, label="update")
        self.deadline = Deadline(wait)
        self.mode = mode
        remote = self.remote
        self._request: BackendRequest = TablesRequest(self) if remote is None else remote.request(self)

    @property
    def message_name(self) -> str:
        return str(self.message)

    def perform(self) -> Any:
        with record_update(self.target.workflow):
            self._request.begin()
            self._request.wait()
            return self._result()

    def send(self) -> None:
        """Check access and store the message for a worker, whatever the state of the run is, without any wait.

        A turn of the run answers it, even if the run is closed or paused. Raises ``TooManyUpdates``.
        """
        with self.client_call(), self.audit_denials():
            self.check()
            self._request.enqueue()

    @property
    def message_number(self) -> int | None:
        """The primary key of the row of the message; None until it is sent."""
        return self._request.message_number

    async def aexecute(self) -> Any:
        """Execute the operation from async code and return the answer; no thread is held during the wait."""
        with self.client_call(), record_update(self.target.workflow):
            await sync_to_async(self._check_and_begin)()
            await self._request.await_outcome()
            return await sync_to_async(self._audited_result)()

    def _audited_result(self) -> Any:
        with self.audit_denials():
            return self._result()

    def _check_and_begin(self) -> None:
        with self.audit_denials():
            self.check()
            self._request.begin()

    def before_insert(self) -> None:
        """Hook that is called before the message is inserted, in the same transaction. It may refuse the message."""

    def closed_error(self, error: WorkflowClosed) -> Exception:
        """Return the error to raise in place of ``error``, which says that the run is closed."""
        return error

    @property
    def request_label(self) -> str:
        return f"{self.kind} {self.message!r} of {self.target.workflow} {self.target.workflow_id}"

    def _result(self) -> Any:
        outcome = _redact_for_sender(self._request.outcome(), self._redactor)
        try:
            return self._redact_answer(update_result(outcome, update_id=self.message_id, label=self.request_label))
        except RunBlocked as exc:
            raise blocked_error(exc, self.request_label, self._redactor) from None
        except UpdateTimeout as exc:
            raise UpdateTimeout(
                f"{exc}{self._waiting_reason()}", update_id=self.message_id, accepted=exc.accepted
            ) from None

    def _redact_answer(self, value: Any) -> Any:
        """Hide the answer if the access policy raises: the update has taken effect, and an error would deny that."""
        try:
            return self._redactor.redact_answer(value, message_name=self.message)
        except Exception as exc:  # noqa: BLE001 - a policy is the project's own
            log_message = "%s is done; its answer is hidden because the access policy failed: %s"
            logger.error(log_message, self.request_label, exception_name(type(exc)))
            return HIDDEN

    def _waiting_reason(self) -> str:
        run = Instance.objects.using(self.storage.alias).filter(pk=self.target.run_id).values("blocked").first()
        blocked = run["blocked"] if run else None
        if blocked:
            return f" (the run is blocked: {self._redactor.redact_text(str(blocked.get('error')))})"
        target = self.target
        missing_worker = live_workers(alias=self.storage.alias).missing_worker(
            workflow=target.workflow, version=target.version, queue=target.queue
        )
        if missing_worker:
            return f" (it is waiting for {missing_worker})"
        return ""

    @property
    def redacts_answer(self) -> bool:
        """True if parts of the answer may be hidden from the sender."""
        return self._redactor is not UNREDACTED

    @property
    def _redactor(self) -> Redactor:
        """The redactor of the answer. Answers for code are not redacted, even in the name of a user."""
        user = self.by.user
        if user is None or self.by.source == CODE.source:
            return UNREDACTED
        return access.redactor_for(user, self.row)


class SendUpdate(RequestAction):
    """Operation that sends an update with ``args`` to a run and returns the answer of its handler.

    Where possible, this process runs the turn that handles the update; otherwise the operation waits up to ``timeout``
    seconds for a worker. ``id`` makes it safe to send the update again. For locks and errors see ``RequestAction``.
    """

    name: ClassVar[str] = "update"
    permission: ClassVar[str] = "update_instance"
    is_routine: ClassVar[bool] = True
    kind: ClassVar[str] = "update"

    def __init__(
        self,
        target: RunTarget,
        *,
        update: str,
        args: Any = None,
        id: str | None = None,
        timeout: float | None = ANSWER_TIMEOUT,
        mode: str = "auto",
        headers: Headers | None = None,
        by: Actor = CODE,
        exact: bool = False,
        wait_slot: WaitSlot = unlimited_wait,
    ) -> None:
        payload = to_plain_payload(args, label=f"the arguments of update {update!r}")
        super().__init__(
            target,
            message=update,
            payload=payload,
            id=id,
            timeout=timeout,
            mode=mode,
            headers=headers,
            by=by,
            exact=exact,
            wait_slot=wait_slot,
        )
        if (code := target.workflow_class) is not None:
            check_payload(code, "update", update, args, payload)


# --- update metrics ---------------------------------------------------------------------------------------------------
#
# The metrics of updates, resumes and decisions, as their senders see them.


@contextmanager
def record_update(workflow: str) -> Iterator[None]:
    """Record how long the block took and how it ended; the block sends an update to a run of this class and waits."""
    if not recorder.is_active:
        yield
        return
    started_at, outcome = time.monotonic(), "completed"
    try:
        yield
    except BaseException as exc:
        outcome = _outcome_of(exc)
        raise
    finally:
        if outcome:
            recorder.record(definitions.UPDATES, workflow=workflow, outcome=outcome)
            recorder.record(definitions.UPDATE_SECONDS, time.monotonic() - started_at, workflow=workflow)


def _outcome_of(error: BaseException) -> str:
    """Return the outcome in the metrics; "" for an update that was not sent at all."""
    # The subclasses of ``UpdateRejected`` say why a run takes no updates now.
    if type(error) is UpdateRejected:
        return "rejected"
    if isinstance(error, UpdateFailed):
        return "failed"
    if isinstance(error, UpdateTimeout):
        return "timeout"
    if isinstance(error, ActionNotPermitted):
        return ""
    return "refused" if isinstance(error, TemporalexError) else "error"


# --- update outcome ---------------------------------------------------------------------------------------------------
#
# The outcome of an update: read from its row, and redacted for the reader.


def blocked_error(exc: RunBlocked, label: str, redactor: Redactor) -> RunBlocked:
    """Return the ``RunBlocked`` for the sender of a message, with a reason that is redacted by ``redactor``.

    The reason of the block may quote payloads. ``label`` names the message.
    """
    reason = redactor.redact_text(str(exc.reason))
    return RunBlocked(f"{label} was withdrawn because the run is blocked: {reason}", reason=reason)


def read_outcome(target: RunTarget, update: str, update_id: str, *, storage: DjangoStorage, by: Actor = CODE) -> Any:
    """Return the answer of an update that was sent before with the message id ``update_id``.

    ``update`` is its name, and ``by`` the actor who asks. Its sender gets the answer; for other users it is redacted as
    a payload. Raises ``WorkflowNotFound`` for an unknown id, ``UpdateTimeout`` if there is no answer yet, and the error
    of an update that was rejected or failed.
    """
    earlier_message = find_message(target.chain_id, check_message_id(update_id, label="update"), storage=storage)
    status = update_status(target.chain_id, update_id, storage=storage)
    if status is None or earlier_message is None or earlier_message[1][:2] != ("update", update):
        raise WorkflowNotFound(
            f"{target.workflow} {target.workflow_id} has no update {quoted(update)} with the id {update_id!r}"
        )
    label = f"the update {update_id!r} of {target.workflow} {target.workflow_id}"
    if by.user is None:
        return update_result(status.outcome, update_id=update_id, label=label)
    redactor = access.redactor_for(by.user, target.row)
    if earlier_message[1].sender == by.sender:
        own_outcome = _redact_for_sender(status.outcome, redactor)
        return redactor.redact_answer(update_result(own_outcome, update_id=update_id, label=label), message_name=update)
    shown_outcome = _redact_for_others(status.outcome, redactor)
    return redactor.redact_payload(update_result(shown_outcome, update_id=update_id, label=label), message_name=update)


def _redact_for_sender(outcome: Outcome | None, redactor: Redactor) -> Outcome | None:
    """Redact the message of a failure, which may quote values that the class hides."""
    if outcome is None or outcome.status != "failed" or not isinstance(outcome.value, dict):
        return outcome
    return Outcome(
        status=outcome.status,
        value={**outcome.value, "message": redactor.redact_own_failure(outcome.value.get("message") or "")},
    )


def _redact_for_others(outcome: Outcome | None, redactor: Redactor) -> Outcome | None:
    """Redact message and reason of a failure or rejection, which may quote payloads."""
    if outcome is None or outcome.status not in ("failed", "rejected"):
        return outcome
    failure = outcome.value or {}
    redacted_failure = {**failure, "message": redactor.redact_text(failure.get("message") or "")}
    if "reason" in failure:
        redacted_failure["reason"] = (
            redacted_failure["message"]
            if redacted_failure["message"] != failure.get("message")
            else redactor.redact_payload(failure["reason"])
        )
    return Outcome(status=outcome.status, value=redacted_failure)
