"""One activation of a claimed run: it reads the run's inbox and collects what the turn has to write. No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any
from uuid import UUID, uuid5

from temporalex_django.core.executor import VisibleState
from temporalex_django.core.failures import error_data
from temporalex_django.core.history import events
from temporalex_django.core.history.activation import Activation, Completion, Definition, Fault, activation_events
from temporalex_django.core.history.events import DELIVERED, SUGGEST_CONTINUE_AS_NEW, Command, Job
from temporalex_django.core.history.prefix import EXTERNAL_KINDS
from temporalex_django.core.human_tasks import HumanTaskChange
from temporalex_django.core.messages.mailbox import undelivered_error
from temporalex_django.core.messages.sender import Headers, Judge, check_headers, headers_attributes, sender_attributes
from temporalex_django.core.process import REQUEST, REQUESTED
from temporalex_django.engine.activity_policy import fault_outcome, update_outcomes
from temporalex_django.engine.blocked import block_cause, block_mark_of, next_retry_at
from temporalex_django.engine.contracts.records import (
    RESULT_KINDS,
    HumanTaskWrite,
    Inbox,
    InboxMessage,
    NewEvent,
    NewTask,
    Outcome,
    RowChanges,
    RunRecord,
    RunState,
    RunWrite,
    TaskState,
)
from temporalex_django.engine.executors import CachedRun
from temporalex_django.engine.external_messages import FinishedActivity, NewChild, NewMessage
from temporalex_django.engine.refusals import RefusedRedelivery, RefusedSignal, waiting_run_error
from temporalex_django.engine.run_closing import (
    cancel,
    cause_columns,
    parent_messages,
    started_attributes,
    terminate,
    time_out,
)
from temporalex_django.engine.turn_metrics import DROPPED, attempt_outcomes, ended_attempts
from temporalex_django.errors import ActionNotPermitted, WorkflowClosed
from temporalex_django.interceptors import ActivationCall, Cause, Outgoing
from temporalex_django.interceptors.chain import around, chain
from temporalex_django.telemetry.recording import recorder


class ActivationStep:
    """One activation of a run in a turn: it takes the inbox and collects in a ``RunWrite`` what the turn stores.

    ``now`` is the time of the turn. ``inline_atomic`` is True if turns run atomic activities. ``starts_at`` is the time
    at which the run begins, if that is later than now.
    """

    def __init__(
        self,
        run: RunState,
        messages: Inbox,
        now: datetime,
        *,
        inline_atomic: bool = True,
        starts_at: datetime | None = None,
    ) -> None:
        self.run = run
        # True if the inbox has more than was read and, after the activation, more than was delivered.
        self.has_more_messages = messages.has_more
        self._inline_atomic = inline_atomic
        # Updates that waited were here before all others, whatever their ids.
        self.messages: Sequence[InboxMessage] = messages
        if len(messages) > 1:
            self.messages = sorted(messages, key=_waiting_first_key)
        self.now = run.next_moment(now)
        self.write = RunWrite(run=run)
        # Results without a row of the inbox; they are delivered after those of the inbox (see decision 45).
        self.finished_activities: Sequence[FinishedActivity] = ()
        #: Atomic activities of the same transaction, whose results it delivers.
        self.atomic_tasks: Sequence[TaskState] = ()
        self.starts_at = starts_at
        self.validator_faults: list[tuple[str, Fault]] = []  # of validators, with the references that their senders get
        self._signals_with_sender: list[tuple[Job, InboxMessage]] = []  # signals that name a sender

    def answer_closed(self, record: RunRecord | None) -> RunWrite:
        """Reject the messages of a closed chain. ``record`` is needed only if one of them was delivered again."""
        for message in self.messages:
            self._reject_undelivered(message, record)
        self.run.due_at = None
        return self.write

    @property
    def must_close(self) -> bool:
        """True if the run must be closed without running its code.

        This is so if its parent has closed and asks for that, if its deadline has passed, or if it is cancelled before
        it begins.
        """
        run = self.run
        if run.closed:
            return False
        is_overdue = run.is_overdue(self.now) and not run.paused
        closing_kinds = ("terminate",) if self.starts_at is None else ("terminate", "cancel")
        return is_overdue or any(message.kind in closing_kinds for message in self.messages)

    @property
    def has_redelivered(self) -> bool:
        """True if a reset or fork delivered one of the messages again."""
        return any(message.redelivered for message in self.messages)

    @property
    def has_waiting_sender(self) -> bool:
        """True if a sender waits for the answer to a message."""
        return any(message.kind in ("update", REQUEST) for message in self.messages)

    def close(self, record: RunRecord) -> RunWrite:
        """Close the run without its code, as terminated, cancelled or timed out, and reject its messages.

        ``record`` has the facts of the run that do not change, such as its workflow and input.
        """
        ends = [message for message in self.messages if message.kind in ("terminate", "cancel")]
        reasons = {message.kind: message.payload.get("reason", "") for message in reversed(ends)}
        if "terminate" in reasons:
            self.write = terminate(self.run, reason=reasons["terminate"], now=self.now, record=record)
        elif self.starts_at is not None and "cancel" in reasons:
            self.write = cancel(self.run, reason=reasons["cancel"], now=self.now, record=record)
        else:
            self.write = time_out(self.run, now=self.now, record=record)
        for message in self.messages:
            self._reject_undelivered(message, record)
        return self.write

    def park(self, reason: str = "") -> RunWrite:
        """Let the messages of a run wait, because its code may not run now: it is blocked or paused, or begins later.

        The messages do not make the run due. Updates and requests are rejected, because their senders wait for an
        answer, unless a reset or fork delivered them again. ``reason`` says in the errors why the run is blocked; empty
        if it is not.
        """
        for message in self.messages:
            if message.kind not in ("update", REQUEST) or message.redelivered:
                self.write.parked.append(message.id)
                continue
            error = waiting_run_error(
                f"{message.kind} {message.name!r}", paused=self.run.paused, starts_at=self.starts_at, reason=reason
            )
            self.write.settled[message.id] = Outcome(status="rejected", value=error_data(error))
        if self.run.paused:  # what made it due did not know of the pause
            self.run.due_at = None
        elif self.starts_at is not None:
            moments = (self.starts_at, self.run.deadline)
            self.run.due_at = min(moment for moment in moments if moment is not None)
        return self.write

    def block(
        self, error: BaseException, *, retry: bool = True, waits_for: str | None = None, since: str | None = None
    ) -> RunWrite:
        """Block the run because its activation failed: only the block is written, not what the activation did.

        ``retry`` False sets no time for another try. ``waits_for`` names the code or key that no worker has. ``since``
        is when the run was first blocked, in ISO format (None: now).
        """
        run = self.run
        run.failed_tries += 1
        retry_at = None
        if retry:
            retry_at = next_retry_at(run.failed_tries, self.now)
        run.due_at = run.deadline if retry_at is None or run.is_overdue(retry_at) else retry_at
        mark = block_mark_of(error, tries=run.failed_tries, now=self.now, waits_for=waits_for)
        self.write.instance["blocked"] = mark if since is None else {**mark, "since": since}
        self.write.instance["cause"], self.write.instance["fault"] = block_cause(mark)
        return self.park(mark["error"])

    def activate(
        self,
        entry: CachedRun,
        *,
        token: int,
        new_run_id: Callable[[], UUID],
        results: Sequence[Job] = (),
        limits: Mapping[str, Any] = MappingProxyType({}),
        enough: Callable[[], bool] | None = None,
        judge: Judge | None = None,
    ) -> RunWrite:
        """Deliver results, timers and messages to the executor of ``entry``, and return what the activation writes.

        ``token`` is a new random number: the activation is stored under it, and only an executor that has executed the
        activation knows it. ``new_run_id()`` returns an id for the next run of the chain. ``results``
        are those of atomic activities of the same transaction. Messages are delivered until ``enough`` returns True; if
        some are left, the run is due again at once. ``limits`` are the arguments ``admit_updates`` and ``max_pending``
        of ``Activation``, if any. ``judge`` decides who may send what.
        """
        self._new_run_id = new_run_id
        self.write.executed = True
        started_at = time.monotonic() if recorder.is_active else None
        start, jobs = self._build_jobs(entry, results)
        attempts = [] if started_at is None else ended_attempts(jobs, entry.executor.pending_commands.activities)
        deliver = partial(self._deliver, entry, start, jobs, token=token, limits=limits, enough=enough, judge=judge)
        if chain.activation and (jobs or start is not None or entry.executor.unfinished):
            with around(chain.activation, self._intercepted_activation(entry.record, start)):
                deliver()
        else:
            deliver()
        if started_at is not None:
            self.write.seconds = time.monotonic() - started_at
            self.write.attempt_outcomes += attempt_outcomes(attempts, self.write.events)
        return self.write

    def _deliver(
        self,
        entry: CachedRun,
        start: dict[str, Any] | None,
        jobs: Sequence[Job],
        *,
        token: int,
        limits: Mapping[str, Any],
        enough: Callable[[], bool] | None,
        judge: Judge | None,
    ) -> None:
        """Deliver ``jobs`` to the executor and collect what that causes. ``start`` is None for a started run."""
        run, executor, completion = self.run, entry.executor, Completion()
        # A rebuild that came through proves nothing: what killed may come with the next delivery (see decision 22).
        was_activated = self.write.delivered = bool(jobs) or start is not None or executor.unfinished
        if was_activated:
            activation = Activation(
                now=self.now,
                jobs=tuple(jobs),
                start=start,
                history_length=run.length,
                suggests_continue_as_new=run.length >= SUGGEST_CONTINUE_AS_NEW,
                **limits,
            )
            completion = executor.activate(activation, is_budget_spent=enough, judge=judge)
            entry.payload_bytes += self._received_bytes()
        if completion.changed:
            self._record_events(completion, entry, start, {"head": token, **limits})
            self.write.commands = completion.commands
            self.write.notes = completion.notes
        if completion.refused:
            self._reject_signals(completion, entry)
        self.write.failed_signals = completion.failed
        self._settle_messages(completion, entry, token)
        self._apply_commands(completion, entry)
        if executor.opened_human_tasks is not None:
            self._write_human_tasks(entry, activated=was_activated)
        if run.failed_tries:
            run.failed_tries = 0
            self.write.instance["blocked"] = self.write.instance["cause"] = self.write.instance["fault"] = None
        if completion.closed is not None and completion.changed:
            self._write_closing(completion, entry)
        else:
            self._schedule_next_turn(completion, entry)

    def _intercepted_activation(self, record: RunRecord, start: dict[str, Any] | None) -> ActivationCall:
        """Return the facts for interceptors. ``start`` is None for a run that has started."""
        run_headers = record.headers or {}
        causes = [] if start is None else [Cause(kind="start", name=record.workflow, headers=run_headers)]
        causes += [Cause(kind=m.kind, name=m.name, headers=m.headers or {}) for m in self.messages]
        causes += [
            Cause(kind="activity", name=done.kind, headers=done.headers or {}) for done in self.finished_activities
        ]
        causes += [Cause(kind="activity", name=task.activity, headers=task.headers or {}) for task in self.atomic_tasks]
        return ActivationCall(
            workflow=record.workflow,
            workflow_id=record.workflow_id,
            run_id=str(record.run_id),
            queue=self.run.queue,
            number=self.run.activations + 1,
            run_headers=run_headers,
            causes=causes,
        )

    def _received_bytes(self) -> int:
        """Return the size of the payloads that the run receives, as far as it is known."""
        results = (activity.encoded for activity in self.finished_activities)
        return sum(message.size for message in self.messages) + sum(len(body) for body in results if body is not None)

    def _schedule_next_turn(self, completion: Completion, entry: CachedRun) -> None:
        """Set when an open run is due again, and write what its row shows."""
        run = self.run
        self.has_more_messages |= completion.unapplied > 0 or completion.delivery.dispatched is not None
        next_turn = None
        if self.has_more_messages:
            next_turn = self.now
        moments = (entry.executor.next_timer(), run.atomic_due, run.deadline, next_turn)
        run.due_at = min((moment for moment in moments if moment is not None), default=None)
        write_row(self.write, entry, now=self.now)

    # -- in -----------------------------------------------------------------------------------------------------------

    def _build_jobs(self, entry: CachedRun, results: Sequence[Job]) -> tuple[dict[str, Any] | None, list[Job]]:
        """Return ``(start, jobs)``, in order: timers by time, results, cancel request, messages (see decision 9)."""
        run = self.run
        start = None
        delivered_jobs: list[Job] = []
        jobs = [Job("TimerFired", {"seq": number}) for _, number in entry.executor.due_timers(self.now)]
        jobs += results
        cancel_jobs: list[Job] = []
        message_jobs: list[Job] = []
        if run.head_token is None:
            record = entry.record
            start = started_attributes(record)
            # From here on the limit of the wait is over, and the others remain.
            if record.start_before is not None:
                run.deadline = record.deadline(self.now)
            if record.carried_messages is not None:
                signals, cancel = record.carried_messages["signals"], record.carried_messages["cancel"]
                message_jobs = [Job("SignalReceived", dict(signal)) for signal in signals]
                if cancel is not None:
                    cancel_jobs += [Job("CancelRequested", cancel)]
        for message in self.messages:
            if message.kind in RESULT_KINDS:
                self.write.consumed.append(message.id)
                if message.run_id == run.run_id:
                    (delivered_jobs if message.name == DELIVERED else jobs).append(Job(message.name, message.payload))
                elif message.kind == "activity":
                    self.write.attempt_outcomes.append(DROPPED)
            elif message.kind == "cancel":
                self.write.consumed.append(message.id)
                cancel_jobs.append(Job("CancelRequested", message.payload))
            elif message.kind == "terminate":
                continue  # came while an atomic activity ran; the next turn closes the run
            else:
                message_jobs.append(self._message_job(message))
        jobs += [Job(activity.kind, activity.attributes) for activity in self.finished_activities]
        return start, [*delivered_jobs, *jobs, *cancel_jobs, *message_jobs]

    def _message_job(self, message: InboxMessage) -> Job:
        if message.kind == "signal":
            signal = {"name": message.name, "payload": message.payload}
            if message.message_id is not None:
                signal["id"] = message.message_id
            job = Job("SignalReceived", {**signal, **_origin(message)})
            if message.sender is not None:
                self._signals_with_sender.append((job, message))
            return job
        if message.kind == REQUEST:
            return Job(REQUESTED, {"id": message.message_id, "request": message.payload, **_job_marks(message)})
        update = {"id": message.message_id, "name": message.name, "args": message.payload}
        return Job("UpdateRequested", {**update, "after": message.after, **_job_marks(message)})

    # -- out ----------------------------------------------------------------------------------------------------------

    def _record_events(
        self, completion: Completion, entry: CachedRun, start: dict[str, Any] | None, stamp: dict[str, Any]
    ) -> None:
        run = self.run
        run.activations += 1
        run.activated_at = self.now
        run.head_token = stamp["head"]
        entry.head, entry.head_number = stamp["head"], run.length + (1 if start is None else 2)
        bodies = {id(activity.attributes): activity.encoded for activity in self.finished_activities}
        for kind, attributes in activation_events(completion, start=start, stamp=stamp):
            self._append_event(kind, attributes, bodies.get(id(attributes)))
        entry.length = run.length

    def _append_event(self, kind: str, attributes: dict[str, Any], encoded: bytes | None = None) -> None:
        run = self.run
        run.length += 1
        self.write.events.append(
            NewEvent(
                number=run.length,
                activation=run.activations,
                kind=kind,
                at=self.now,
                attributes=attributes,
                encoded=encoded,
            )
        )

    def _reject_signals(self, completion: Completion, entry: CachedRun) -> None:
        """Settle signals whose senders lack the permission, with the reason, and audit them."""
        record, by_job = entry.record, {id(job): message for job, message in self._signals_with_sender}
        for refusal in completion.refused:
            refused_signal = RefusedSignal(
                run_id=self.run.run_id,
                workflow=record.workflow,
                workflow_id=record.workflow_id,
                at=self.now,
                signal=refusal.name,
                permission=refusal.permission,
                sender=refusal.sender,
            )
            self.write.refused_signals.append(refused_signal)
            message = by_job.get(id(refusal.job))
            if message is not None:
                error = ActionNotPermitted(refused_signal.reason)
                self.write.settled[message.id] = Outcome(status="rejected", value=error_data(error))

    def _settle_messages(self, completion: Completion, entry: CachedRun, token: int) -> None:
        """Give every message that was read its outcome, or leave it in the inbox to wait."""
        write = self.write
        outcomes = update_outcomes(completion)
        if not self.messages:
            write.outcomes.update(outcomes)
            return
        rejected = {
            update: Outcome(status="rejected", value=error_data(error)) for update, error in completion.rejected
        }
        rejected |= self._fault_outcomes(completion, token)
        pending = dict(completion.pending)
        inbox = [message for message in self.messages if message.kind in EXTERNAL_KINDS]
        applied_count = len(inbox) - completion.unapplied
        for message in inbox[:applied_count]:
            if message.kind == "signal":
                self._settle_signal(message)
            elif message.message_id in outcomes:
                write.settled[message.id] = outcomes.pop(message.message_id)
            elif message.message_id in rejected:
                self._settle_rejected(message, rejected[message.message_id], entry.record)
            elif message.message_id in pending:
                write.waiting[message.id] = pending[message.message_id]
        if completion.closed not in (None, "ContinueAsNew"):  # otherwise the next turn, or run of the chain, reads them
            for message in inbox[applied_count:]:
                if message.kind != "signal" and message.message_id in rejected:
                    self._settle_rejected(message, rejected[message.message_id], entry.record)
                else:
                    self._reject_undelivered(message, entry.record, entry.executor.run_context.failure)
        write.outcomes.update(outcomes)

    def _settle_rejected(self, message: InboxMessage, outcome: Outcome, record: RunRecord) -> None:
        self.write.settled[message.id] = outcome
        if message.redelivered:
            self._audit_refusal(message, record)

    def _settle_signal(self, message: InboxMessage) -> None:
        """Settle a signal that was delivered; one that was refused is settled already."""
        if message.id in self.write.settled:
            return
        if message.message_id is None:
            self.write.consumed.append(message.id)
        else:  # its row stays, so that a second delivery is recognized
            self.write.settled[message.id] = Outcome(status="completed")

    def _fault_outcomes(self, completion: Completion, token: int) -> dict[str, Outcome]:
        """Return answers by update id. Each has a reference, under which the log has the fault of the validator."""
        outcomes: dict[str, Outcome] = {}
        for number, fault in enumerate(completion.faults):
            if number:
                reference = f"{token:x}-{number}"
            else:
                reference = f"{token:x}"
            outcomes[fault.update_id] = fault_outcome(fault, reference=reference)
            self.validator_faults.append((reference, fault))
        return outcomes

    def _audit_refusal(self, message: InboxMessage, record: RunRecord) -> None:
        """Audit the refusal of a message that a reset or fork delivered again: its sender may be gone."""
        outcome = self.write.settled[message.id]
        refused_message = RefusedRedelivery(
            run_id=self.run.run_id,
            workflow=record.workflow,
            workflow_id=record.workflow_id,
            at=self.now,
            kind=message.kind,
            name=message.name,
            code=outcome.value["code"],
            sender=message.sender,
        )
        self.write.refused_redeliveries.append(refused_message)

    def _reject_undelivered(self, message: InboxMessage, record: RunRecord | None, failure: str | None = None) -> None:
        """Settle a message that comes too late for a closed run, or delete it if it needs no answer."""
        if message.kind in EXTERNAL_KINDS:
            error = undelivered_error(message.kind, message.name, failure)
            if message.kind == "signal":
                status = "undelivered"
            else:
                status = "rejected"
            self.write.settled[message.id] = Outcome(status=status, value=error_data(error))
            if message.redelivered and record is not None:
                self._audit_refusal(message, record)
        elif message.id not in self.write.consumed:
            self.write.consumed.append(message.id)
            if message.kind == "activity":
                self.write.attempt_outcomes.append(DROPPED)

    def _apply_commands(self, completion: Completion, entry: CachedRun) -> None:
        run, record, write = self.run, entry.record, self.write
        cancelled = {command.seq for command in completion.commands if command.kind == "CancelActivity"}
        definition = entry.executor.definition
        for command in completion.commands:
            if command.kind == "ScheduleActivity" and command.seq is not None and command.seq not in cancelled:
                task = new_task(command, run, record, definition, now=self.now)
                write.tasks.append(task)
                if task.atomic and self._inline_atomic:  # otherwise the process that claims activities runs it
                    run.atomic_due = self.now
            elif command.kind == "StartChild":
                write.children.append(new_child(command, run, entry, now=self.now))
            elif command.kind in ("SignalExternal", "CancelExternal", "CancelChild"):
                write.messages.append(new_message(command, run, record))
        write.cancelled_tasks = sorted(seq for seq in cancelled if seq is not None)

    def _write_human_tasks(self, entry: CachedRun, *, activated: bool) -> None:
        """Write human tasks that changed, or all open ones where the content of their rows is not known."""
        changes: list[HumanTaskChange] = []
        if activated:
            changes = entry.executor.human_task_changes(every=entry.row is None)
        elif entry.row is None:
            open_tasks = entry.executor.visible_state().human_tasks
            changes = [HumanTaskChange(changes=(), task=task) for task in open_tasks]
        run, record = self.run, entry.record
        self.write.human_tasks += [
            HumanTaskWrite(
                run_id=run.run_id,
                chain_id=run.chain_id,
                workflow=record.workflow,
                workflow_id=record.workflow_id,
                changes=change.changes,
                task=change.task,
            )
            for change in changes
        ]

    def _write_closing(self, completion: Completion, entry: CachedRun) -> None:
        """Write that the code has closed the run, and start the next one after a continue-as-new."""
        run, write = self.run, self.write
        event = write.events[-1]
        write.drop_tasks = write.left_open = bool(entry.executor.pending_commands.activities or write.cancelled_tasks)
        # Activities that this activation scheduled would be dropped at once, so they are not stored.
        write.tasks = []
        write.close_children = entry.executor.had_children
        run.atomic_due = None
        visible = write_row(write, entry, now=self.now, closing=event.attributes)
        if completion.closed == "ContinueAsNew":
            write.next_run = entry.record.successor(
                self._new_run_id(),
                seed=entry.executor.rng.getrandbits(62),
                args=events.WORKFLOW_CONTINUED_AS_NEW.read(event)["args"],
                carried_messages=completion.carried,
                snapshot=visible.four_eyes,
                search_attributes=visible.search_attributes or None,
            )
            record = entry.record
            run.due_at = self.now
            run.deadline = record.deadline(self.now)
            return
        run.closed = True
        run.due_at = None
        run.deadline = None
        write.messages += parent_messages(entry.record, visible.status, event.attributes)
        run_label = f"{entry.record.workflow} {entry.record.workflow_id}"
        error = WorkflowClosed(f"{run_label} closed ({visible.status}) before the update completed")
        write.closing = Outcome(status="failed", value=error_data(error))
        unread = {message.id for message in self.messages}.difference(write.consumed, write.settled)
        updates = entry.executor.dispatcher.handler_runner.open_updates
        # An earlier run of the chain may have accepted an update, too.
        write.leaves_messages = bool(unread or updates or self.has_more_messages or entry.record.carried_messages)


def _waiting_first_key(message: InboxMessage) -> bool:
    return message.after is None


def _origin(message: InboxMessage) -> dict[str, Any]:
    """Return who sent a message, and its headers, as attributes of a job."""
    return {**sender_attributes(message.sender), **headers_attributes(message.headers)}


def _job_marks(message: InboxMessage) -> dict[str, Any]:
    """Return who sent an update or request, and if a reset or fork delivers it again."""
    redelivered = {"redelivered": True} if message.redelivered else {}
    return {**redelivered, **_origin(message)}


# --- row changes ------------------------------------------------------------------------------------------------------
#
# The columns of a run's row that an activation changes. Only differences are written.


#: What the row of a run shows before its first activation.
_UNBEGUN = VisibleState(
    status="pending",
    waiting_for=[],
    waits=[],
    accepts={"signals": [], "updates": []},
    published=None,
    publications=0,
    stored={},
    search_attributes={},
    human_tasks=(),
    four_eyes=None,
)


def write_row(
    write: RunWrite, entry: CachedRun, *, now: datetime, closing: dict[str, Any] | None = None
) -> VisibleState:
    """Add the columns of a run that differ from its present ones to ``write.instance``, and return its visible state.

    ``entry`` has the executor and the content of the row, as far as it is known; ``now`` is the time of the activation.
    ``closing`` has the attributes of the closing event, if its own code has closed the run.
    """
    visible = entry.executor.visible_state()
    previous, entry.row = entry.row, visible
    changes, is_first = write.instance, write.run.activations == 1
    if previous is None or previous.status != visible.status:
        changes["status"] = visible.status
    if closing is not None:
        changes.update({"closed_at": now, "closing": closing})
        if visible.status == "failed":
            changes.update(cause_columns(closing))
    if previous is not None:
        _write_changed_waits(changes, previous, visible)
    elif not is_first:
        changes.update({"waiting_for": visible.waiting_for, "waits": visible.waits, "accepts": visible.accepts})
    else:
        _write_changed_waits(changes, _UNBEGUN, visible)
    if previous is None or previous.publications != visible.publications:
        changes.update({"published": visible.published, "published_at": visible.published_at})
        if entry.executor.definition.stored:
            changes["stored"] = visible.stored
    # A row that is not known has the attributes of the start, unless the code of the run sets any.
    if entry.executor.sets_attributes if previous is None else previous.search_attributes != visible.search_attributes:
        changes["search_attributes"] = visible.search_attributes or None
    if is_first and write.events:
        changes["started_at"] = now
    return visible


def _write_changed_waits(changes: RowChanges, previous: VisibleState, visible: VisibleState) -> None:
    if previous.waiting_for != visible.waiting_for:
        changes["waiting_for"] = visible.waiting_for
    if previous.waits != visible.waits:
        changes["waits"] = visible.waits
    if previous.accepts != visible.accepts:
        changes["accepts"] = visible.accepts


# --- outgoing ---------------------------------------------------------------------------------------------------------
#
# The commands of an activation that lead outside of its run, as activities, children and messages to store.


def outgoing_headers(record: RunRecord, kind: str, name: str, workflow_id: str | None = None) -> Headers | None:
    """Return the headers of something that a run sends: its own, with those that interceptors add.

    For ``kind``, ``name`` and ``workflow_id`` see ``Outgoing``. Raises ``InterceptorFailed`` and ``InvalidHeaders``.
    """
    if not chain.outgoing:
        return record.headers
    outgoing = Outgoing(kind=kind, name=name, workflow_id=workflow_id, headers=dict(record.headers or {}))
    chain.prepare(outgoing)
    return check_headers(outgoing.headers, label=f"the {kind} {name} with interceptors")


def new_task(command: Command, run: RunState, record: RunRecord, definition: Definition, *, now: datetime) -> NewTask:
    """Return the activity that a command of the run schedules at ``now``.

    ``definition`` describes the workflow class of the run.
    """
    assert command.seq is not None
    attributes = events.ACTIVITY_SCHEDULED.read(command)
    options = attributes.get("options", {})
    return NewTask(
        run_id=run.run_id,
        chain_id=run.chain_id,
        workflow_id=record.workflow_id,
        workflow=record.workflow,
        seq=command.seq,
        activity=attributes["activity"],
        args=attributes["args"],
        kwargs=attributes.get("kwargs", {}),
        options=options,
        queue=options.get("queue") or run.queue,
        atomic=bool(options.get("atomic")),
        scheduled_at=now,
        headers=outgoing_headers(record, "activity", attributes["activity"]),
        tags=definition.tags,
        metadata=definition.metadata,
    )


def new_child(command: Command, run: RunState, entry: CachedRun, *, now: datetime) -> NewChild:
    """Return the child that a command of the run starts at ``now``. ``entry`` has the executor of the run."""
    attributes, record = command.attributes, entry.record
    assert command.seq is not None
    options: dict[str, Any] = {name: value for name, value in attributes.items() if name != "id"}
    for name in ("start_at", "start_before"):
        if name in options:
            options[name] = datetime.fromisoformat(options[name])
    return NewChild(
        workflow_id=attributes["id"],
        seed=uuid5(run.run_id, str(command.seq)).int >> 66,
        at=now,
        parent=record.workflow_id,
        parent_chain=run.chain_id,
        parent_run=run.run_id,
        parent_seq=command.seq,
        snapshot=entry.executor.four_eyes_snapshot(child=True),
        headers=outgoing_headers(record, "child", attributes["workflow"], attributes["id"]),
        **options,
    )


def new_message(command: Command, run: RunState, record: RunRecord) -> NewMessage:
    """Return the message to another run that a command sends, a signal or a cancel request."""
    assert command.seq is not None
    ask = (run.chain_id, run.run_id, command.seq)
    if command.kind == "SignalExternal":
        signal = events.EXTERNAL_SIGNAL_SENT.read(command)
        return NewMessage(
            kind="signal",
            name=signal["name"],
            payload=signal["payload"],
            workflow_id=signal["id"],
            ask=ask,
            headers=outgoing_headers(record, "signal", signal["name"], signal["id"]),
        )
    request = events.EXTERNAL_CANCEL_SENT.read(command)
    payload = {"reason": f"requested by {record.workflow_id}"}
    target = None
    if command.kind == "CancelChild":
        target = (run.run_id, request["child"])
    return NewMessage(
        kind="cancel",
        name="",
        payload=payload,
        workflow_id=request["id"],
        child=target,
        ask=ask,
        headers=outgoing_headers(record, "cancel", "cancel", request["id"]),
    )
