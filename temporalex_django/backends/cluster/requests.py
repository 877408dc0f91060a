"""Updates, resumes and decisions of runs on the cluster."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

from asgiref.sync import sync_to_async
from temporalio.api.workflowservice import v1 as service
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from temporalex_django.backends.cluster import answers, calls, mirror, outgoing
from temporalex_django.backends.cluster.client import ClusterClient, cluster_client, send
from temporalex_django.backends.cluster.runs import LAST, ClusterRun, run_of
from temporalex_django.backends.host import inside_transaction
from temporalex_django.backends.protocol import RequestCall
from temporalex_django.core.process import REQUEST
from temporalex_django.db import outbox
from temporalex_django.db.inserts import find_message
from temporalex_django.db.outbox import OutboxRow
from temporalex_django.engine import policy
from temporalex_django.engine.contracts.records import Outcome
from temporalex_django.engine.external_messages import MessageFingerprint
from temporalex_django.engine.refusals import waiting_run_error
from temporalex_django.errors import (
    ActionNotPossible,
    RunPaused,
    UpdateTimeout,
    WorkflowClosed,
    WorkflowSwitchedOff,
)
from temporalex_django.models import HumanTask
from temporalex_django.temporal import names

#: Seconds between two tries of an update that a run could not take now, such as between two runs of a chain.
_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
#: Seconds for which an update is still sent after the deadline of its caller.
_GRACE: Final = 10.0
#: Statuses of the outcomes of messages that the run has taken.
_TAKEN: Final = frozenset({"completed", "failed", "accepted"})
#: Parts of the server's texts for updates that were not judged, and are to be sent again.
_UNJUDGED: Final = ("aborted", "continued as new", "continue as new", "unable to process", "not ready")


class ClusterRequest:
    """A message that waits for its outcome, to a run on the cluster; ``call`` is the operation that sends it.

    Outside of a transaction it is sent at once. A resume and a decision are committed to the outbox first, so that a
    process that dies has not lost them. Inside ``atomic()`` they are only committed, and an update is refused.
    """

    message_number: int | None = None  # the message has no row of the inbox

    def __init__(self, call: RequestCall) -> None:
        self.call = call
        self.target, self.storage = call.target, call.storage
        self._future: Future[Outcome] | None = None
        self._outcome: Outcome | None = None
        self._row: OutboxRow | None = None

    def begin(self) -> None:
        """Send the message. Raises the error for a run that is closed, paused or switched off.

        Inside a transaction, a resume or a decision is only stored in the outbox, and an update raises
        ``ActionNotPossible``.
        """
        call, is_inside = self.call, inside_transaction(self.storage.alias)
        if call.kind == "update" and is_inside:
            raise ActionNotPossible(
                f"{call.request_label} inside a transaction: the run lives on a Temporal cluster, which cannot see what "
                "the transaction has written. Send a signal instead, or send the update in transaction.on_commit()"
            )
        self._require_open()
        run = run_of(self.target, before=LAST, storage=self.storage)
        if run.is_behind and not is_inside:
            self._wait_for_earlier_rows()
            run = run_of(self.target, storage=self.storage)
        if run.first_run_id is None and not is_inside:  # its start was refused meanwhile
            raise self._closed_error()
        if call.kind == "update":
            self._note_message()
        else:
            # Outside of a transaction this process sends it first; a dispatcher takes it over if the process dies.
            self._insert_row(hold_seconds=0.0 if is_inside else policy.OUTBOX_LEASE)
        if is_inside:
            self._outcome = Outcome(status="completed")
            return
        client = cluster_client()
        self._future = client.submit(lambda sdk: self._send(sdk, client, run))

    enqueue = begin  # it waits for nothing

    def _require_open(self) -> None:
        call, target = self.call, self.target
        if target.closed:
            if self._earlier() is not None:
                return  # the cluster knows the outcome of an update that it has taken
            raise self._closed_error()
        if target.off:
            raise WorkflowSwitchedOff(f"{target.workflow} is switched off: {call.request_label} refused")
        if target.paused:
            raise self._paused_error()

    def _paused_error(self) -> RunPaused:
        target = self.target
        return RunPaused(f"{target.workflow} {target.workflow_id} is paused: {self.call.request_label} refused")

    def _closed_error(self) -> Exception:
        call, target = self.call, self.target
        closed = WorkflowClosed(
            f"{target.workflow} {target.workflow_id} is closed: {call.kind} {call.message!r} refused"
        )
        error = call.closed_error(closed)
        error.__cause__ = closed
        return error

    def _wait_for_earlier_rows(self) -> None:
        """Send what is committed for the chain already, so that the run is there and messages keep their order.

        Waits for rows that another process sends, or that could not be sent. Raises ``NotAccepting`` for a run that
        begins later, and ``UpdateTimeout`` at the deadline. Nothing of this message is stored then.
        """
        call, target = self.call, self.target
        while (row := outgoing.send_waiting(target.chain_id, storage=self.storage)) is not None:
            if not row.tries and row.due_at > self.storage.now():
                raise waiting_run_error(call.request_label, paused=False, starts_at=row.due_at, reason="")
            if not call.deadline.seconds_left:
                reason = row.error or "another process is sending it"
                raise UpdateTimeout(
                    f"{call.request_label}: an earlier message of the run has not reached the Temporal cluster "
                    f"({reason}). Nothing was sent; try again",
                    update_id=call.message_id,
                )
            time.sleep(min(_PAUSE, call.deadline.seconds_left))

    def _earlier(self) -> MessageFingerprint | None:
        row = find_message(self.target.chain_id, self.call.message_id, storage=self.storage)
        return None if row is None else row[1]

    def _note_message(self) -> bool:
        """Note that the message was sent, so that its id cannot be used for another one; return True if it is new.

        The audit row is written with it, whatever becomes of the message. Raises ``MessageIdTaken``.
        """
        call = self.call
        message = MessageFingerprint(call.kind, call.message, call.payload, call.by.sender)
        with self.storage.transaction():
            while not outgoing.note_message(self.target, call.message_id, message, storage=self.storage):
                if (earlier := self._earlier()) is not None:
                    earlier.require_same(call.message_id, message, exact=call.exact)
                    return False
            call.record(self.target.audit_subject, **{call.kind: call.message, "update_id": call.message_id})
        return True

    def _insert_row(self, *, hold_seconds: float) -> None:
        """Commit a resume or a decision to the outbox, and mark the human task that it decides."""
        call = self.call
        with self.storage.transaction():
            call.before_insert()
            if not self._note_message():
                return
            self._row = outgoing.insert(
                self.target.chain_id,
                "request",
                {**self._body, "task": self._mark_task()},
                sender=call.by.sender,
                hold_seconds=hold_seconds,
                storage=self.storage,
            )

    @property
    def _body(self) -> dict[str, Any]:
        """The message as it is sent. The run does not know the id of its row, so a decision lacks it.

        The row of the task was judged here, and the run compares the question that the person saw.
        """
        call, payload = self.call, self.call.payload
        if isinstance(payload, dict) and "task" in payload:
            payload = {name: value for name, value in payload.items() if name != "run"}
        return calls.message_body(payload, message_id=call.message_id, sender=call.by.sender, headers=call.headers)

    def _mark_task(self) -> str | None:
        """Mark the human task of a decision as being decided, and return its id; None for another message."""
        call = self.call
        key = call.payload.get("task") if call.kind == REQUEST and isinstance(call.payload, dict) else None
        if key is None or call.payload.get("run") is None:
            return None
        tasks = HumanTask.objects.using(self.storage.alias).filter(run_id=UUID(call.payload["run"]), key=key)
        by = "" if call.by.sender is None else call.by.sender.name
        mark = {"outcome": call.message, "by": by, "at": self.storage.now().isoformat()}
        tasks.update(deciding=mark)
        return next((str(pk) for pk in tasks.values_list("pk", flat=True)), None)

    # -- on the event loop of the client ------------------------------------------------------------------------------

    async def _send(self, sdk: Client, client: ClusterClient, run: ClusterRun) -> Outcome:
        """Send the update until it is judged, and return its outcome. Few of a run are on their way at a time.

        Raises ``TimeoutError`` some time after the deadline of the caller, who has gone.
        """
        name = self.call.message if self.call.kind == "update" else names.RESUME
        request = calls.update_request(client, run, name, self._body)
        left = self._seconds_left
        async with asyncio.timeout(None if left is None else left + _GRACE), client.update_slots(run.chain_id):
            return await _send_until_judged(sdk, client, request)

    # -- the answer ---------------------------------------------------------------------------------------------------

    def wait(self) -> None:
        """Wait for the outcome until the deadline of the call.

        If there is none by then, a worker stores the outcome of a resume or a decision later.
        """
        if self._future is None:
            return
        with self.call.wait_slot() as is_granted, suppress(Exception):  # ``_finish`` raises it
            self._future.result(self._seconds_left if is_granted else 0.0)
        self._finish()

    async def await_outcome(self) -> None:
        """Wait as ``wait`` does, without blocking a thread."""
        if self._future is None:
            return
        with suppress(Exception):  # as above
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self._future)), self._seconds_left)
        await sync_to_async(self._finish)()

    @property
    def _seconds_left(self) -> float | None:
        left = self.call.deadline.seconds_left
        return None if left == float("inf") else left

    def _finish(self) -> None:
        """Store the outcome, or raise what the cluster has answered instead.

        Without an answer the caller has gone. A worker then asks for the outcome of a resume or a decision.
        """
        call, target = self.call, self.target
        assert self._future is not None
        with answers.report_unavailable(call.request_label, update_id=call.message_id):
            try:
                self._outcome = self._future.result(0.0)
            except TimeoutError:
                if self._row is not None:
                    outbox.make_due(self._row.id, storage=self.storage)
                return
            except RPCError as exc:
                if not (answers.is_pause(exc) or answers.is_gone(exc)):
                    raise
                self._store(None)
                if answers.is_gone(exc):
                    raise self._closed_error() from exc
                mirror.copy_pause(target.chain_id, target.run_id, is_paused=True, storage=self.storage)
                raise self._paused_error() from exc
        self._store(self._outcome)

    def _store(self, outcome: Outcome | None) -> None:
        """Store the outcome; None means that the run cannot take the message. The row of the outbox goes.

        The id of a message that the run has not taken is free again, and its human task has no pending decision.
        """
        chain_id, message_id, storage = self.target.chain_id, self.call.message_id, self.storage
        is_taken = outcome is not None and outcome.status in _TAKEN
        if self._row is None and outcome is not None and is_taken:
            outgoing.store_outcome(chain_id, message_id, outcome, storage=storage)
            return
        with storage.transaction():
            if self._row is not None:
                outgoing.settle_request(self._row, is_taken=is_taken, storage=storage)
            if not is_taken:
                outgoing.forget_message(chain_id, message_id, storage=storage)

    def outcome(self) -> Outcome | None:
        """Return the outcome, or None if there is none yet."""
        return self._outcome


async def _send_until_judged(
    sdk: Client, client: ClusterClient, request: service.UpdateWorkflowExecutionRequest
) -> Outcome:
    """Send an update again and again until a run has judged it, and return its outcome. The pauses grow."""
    pause = _PAUSE
    while True:
        sent: Any = None
        try:
            answer = await send(sdk, request)
            sent = answer.update_ref
            while not answer.HasField("outcome"):
                poll = service.PollWorkflowExecutionUpdateRequest(update_ref=sent, wait_policy=calls.WAIT_POLICY)
                answer = await send(sdk, poll)
        except RPCError as exc:
            # A run that has admitted an update may close without it. The next run of the chain may take it.
            if not (_is_unjudged(exc) or (sent is not None and answers.is_gone(exc))):
                raise
        else:
            if not answer.outcome.HasField("failure"):
                return Outcome(status="completed", value=answers.first_value(answer.outcome.success, client.payloads))
            failure = answer.outcome.failure
            if not any(part in failure.message.lower() for part in _UNJUDGED) or failure.source:
                return answers.outcome_of_failure(failure, client.payloads)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _is_unjudged(error: RPCError) -> bool:
    """Return True if the update was not judged, and is to be sent again with its id."""
    if error.status in (RPCStatusCode.ABORTED, RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED):
        return True
    return any(part in error.message.lower() for part in _UNJUDGED)
