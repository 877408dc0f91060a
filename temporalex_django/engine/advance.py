"""One activation of one claimed run: what the inbox holds goes in, what is to be written comes out. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal
from uuid import UUID, uuid5

from temporalex_django.core.executor import Executor
from temporalex_django.core.failures import error_data, run_failure_cause
from temporalex_django.core.history.activation import Activation, Completion, Fault
from temporalex_django.core.history.commands import Command
from temporalex_django.core.history.events import CLOSING, DELIVERED, SIGNAL_FAILED, Job
from temporalex_django.core.human_tasks import HumanTasks
from temporalex_django.core.process import REQUEST, REQUESTED
from temporalex_django.core.senders import Judge, sender_attributes
from temporalex_django.core.stored import stored_fields
from temporalex_django.core.typed_dicts import AcceptedNames
from temporalex_django.engine.blocked import cause_of_block, mark_of, next_try
from temporalex_django.engine.cache import Cached
from temporalex_django.engine.endings import ending, started_attributes, terminated, timed_out
from temporalex_django.engine.in_hand import TaskInHand
from temporalex_django.engine.other_runs import NewChild, NewMessage
from temporalex_django.engine.outcomes import update_failed, update_fault
from temporalex_django.engine.refusals import NotTaken, Refused
from temporalex_django.engine.shapes import RowAtPresent, RowChanges
from temporalex_django.engine.storage import (
    HumanTaskWrite,
    Inbox,
    InboxMessage,
    NewEvent,
    NewRun,
    NewTask,
    Outcome,
    RunFacts,
    RunState,
    RunWrite,
)
from temporalex_django.errors import ActionNotPermitted, RunBlocked, RunPaused, WorkflowClosed

_Shown = Literal["waiting_for", "waits", "accepts"]
_RESULTS = ("activity", "child", "external", "timer")
_MESSAGES = ("signal", "update", REQUEST)


class Advance:
    """Builds the ``RunWrite`` of one run."""

    def __init__(self, run: RunState, messages: Inbox, now: datetime, *, inline_atomic: bool = True) -> None:
        self.run = run
        self.left = messages.more  # whether there is more in the inbox than is read, and in the end than was delivered
        self._inline_atomic = inline_atomic
        # updates that waited were here before all others, whatever their ids
        self.messages: Sequence[InboxMessage] = messages
        if len(messages) > 1:
            self.messages = sorted(messages, key=_waited_first)
        self.now = max(now, run.activated_at) if run.activated_at is not None else now
        self.write = RunWrite(run=run)
        self.in_hand: Sequence[TaskInHand] = ()  # what comes behind the results in the inbox, without being there
        self.faults: list[tuple[str, Fault]] = []  # of validators, with the references that their senders get
        self._sent: list[tuple[Job, InboxMessage]] = []  # signals that somebody is named for

    def closed(self, facts: RunFacts | None) -> RunWrite:
        """The chain is closed: its messages are answered, never silently dropped.

        ``facts`` are wanted only where some of them are ``redelivered``.
        """
        for message in self.messages:
            self._undelivered(message, facts)
        self.run.due_at = None
        return self.write

    @property
    def ends(self) -> bool:
        """Whether the run is to be closed without running its code: its parent closed, or its time is over."""
        run = self.run
        if run.closed:
            return False
        late = run.deadline is not None and run.deadline <= self.now and not run.paused
        return late or any(message.kind == "terminate" for message in self.messages)

    @property
    def redelivered(self) -> bool:
        """Whether a reset or fork delivered one of the messages again."""
        return any(message.redelivered for message in self.messages)

    @property
    def asked(self) -> bool:
        """Whether somebody waits for the answer to a message."""
        return any(message.kind in ("update", REQUEST) for message in self.messages)

    def ended(self, facts: RunFacts) -> RunWrite:
        """Close it, whatever state it is in."""
        reasons = [message.body.get("reason", "") for message in self.messages if message.kind == "terminate"]
        if reasons:
            self.write = terminated(self.run, reason=reasons[0], now=self.now, facts=facts)
        else:
            self.write = timed_out(self.run, now=self.now, facts=facts)
        for message in self.messages:
            self._undelivered(message, facts)
        return self.write

    def parked(self, why: str = "") -> RunWrite:
        """The run is blocked or paused and not due: its messages wait without waking anybody.

        Updates and requests are refused: whoever sent them waits for an answer. Not those that are delivered again.
        ``why`` it is blocked.
        """
        for message in self.messages:
            if message.kind not in ("update", REQUEST) or message.redelivered:
                self.write.parked.append(message.id)
                continue
            what = f"{message.kind} {message.name!r}"
            error: RunPaused | RunBlocked
            if self.run.paused:
                error = RunPaused(f"the run is paused: {what} refused")
            else:
                error = RunBlocked(f"the run is blocked: {what} was withdrawn", reason=why)
            self.write.settled[message.id] = Outcome(status="rejected", value=error_data(error))
        if self.run.paused:  # whoever set it due did not know
            self.run.due_at = None
        return self.write

    def blocked(
        self, error: BaseException, *, retry: bool = True, waits_for: str | None = None, since: str | None = None
    ) -> RunWrite:
        """The activation failed: nothing of it is written, the run stays open and says why.

        ``waits_for`` what no worker has. ``since``: of the failed try before this one.
        """
        run = self.run
        run.failed_tries += 1
        again = next_try(run.failed_tries, self.now) if retry else None
        run.due_at = min((moment for moment in (again, run.deadline) if moment is not None), default=None)
        mark = mark_of(error, tries=run.failed_tries, now=self.now, waits_for=waits_for)
        self.write.instance["blocked"] = mark if since is None else {**mark, "since": since}
        self.write.instance["cause"] = cause_of_block(mark)
        return self.parked(mark["error"])

    def activate(
        self,
        entry: Cached,
        *,
        token: int,
        new_run_id: Callable[[], UUID],
        results: Sequence[Job] = (),
        limits: Mapping[str, Any] = MappingProxyType({}),
        enough: Callable[[], bool] | None = None,
        judge: Judge | None = None,
    ) -> RunWrite:
        """Deliver what is there. ``results`` are outcomes of atomic activities of this very transaction.

        Of the messages as many as ``enough`` (see ``Executor.activate``) lets through: with some left the run is due
        again at once. ``limits`` are ``admit_updates`` and ``max_pending`` of the activation, where the host has them;
        ``judge`` says who may send what.
        """
        self._new_run_id = new_run_id
        self.write.executed = True
        run, executor = self.run, entry.executor
        start, jobs = self._jobs(entry, results)
        # what killed may come with the next delivery: a rebuild that came through proves nothing
        activated = self.write.delivered = bool(jobs) or start is not None or executor.unfinished
        if activated:
            activation = Activation(now=self.now, jobs=tuple(jobs), start=start, history_length=run.length, **limits)
            completion = executor.activate(activation, is_budget_spent=enough, judge=judge)
            entry.payloads += sum(message.size for message in self.messages)
            entry.payloads += sum(len(one.body) for one in self.in_hand if one.body is not None)
        else:
            completion = Completion()
        if completion.changed:
            self._record(completion, entry, start, {"head": token, **limits})
            self.write.commands = completion.commands
            self.write.notes = completion.notes
        if completion.refused:
            self._refuse(completion, entry)
        self.write.failed = completion.failed
        self._settle(completion, entry, token)
        self._commands(completion, entry)
        if (tasks := executor.opened_human_tasks) is not None:
            self._ask_people(tasks, completion, entry, activated=activated)
        if run.failed_tries:
            run.failed_tries = 0
            self.write.instance["blocked"] = self.write.instance["cause"] = None
        if completion.closed is not None and completion.changed:
            self._close(completion, entry)
        else:
            self.left = self.left or completion.unapplied > 0 or completion.dispatched is not None
            moments = (executor.next_timer(), run.atomic_due, run.deadline, self.now if self.left else None)
            run.due_at = min((moment for moment in moments if moment is not None), default=None)
            self._show(entry)
        return self.write

    # -- in -----------------------------------------------------------------------------------------------------------

    def _jobs(self, entry: Cached, results: Sequence[Job]) -> tuple[dict[str, Any] | None, list[Job]]:
        """Jobs in the order in which they are applied.

        Timers by their time, results, a cancel request, then messages in order of arrival.
        """
        run = self.run
        start = None
        delivered: list[Job] = []
        jobs = [Job("TimerFired", {"seq": number}) for _, number in entry.executor.due_timers(self.now)]
        jobs += results
        cancels: list[Job] = []
        later: list[Job] = []
        if run.head_token is None:
            facts = entry.facts
            start = _beginning(facts)
            if facts.carried_messages is not None:
                signals, cancel = facts.carried_messages["signals"], facts.carried_messages["cancel"]
                start["carried"] = len(signals)
                start["failed"] = facts.carried_messages.get("failed", [])
                later = [Job("SignalReceived", dict(signal)) for signal in signals]
                cancels += [] if cancel is None else [Job("CancelRequested", cancel)]
        for message in self.messages:
            if message.kind in _RESULTS:
                self.write.consumed.append(message.id)
                if message.run_id == run.run_id:
                    (delivered if message.name == DELIVERED else jobs).append(Job(message.name, message.body))
            elif message.kind == "cancel":
                self.write.consumed.append(message.id)
                cancels.append(Job("CancelRequested", message.body))
            elif message.kind == "terminate":
                continue  # came while an atomic activity ran; the next turn obeys it
            elif message.kind == "signal":
                own_id = {} if message.request_id is None else {"id": message.request_id}
                signal = {"name": message.name, "payload": message.body, **own_id, **sender_attributes(message.sender)}
                later.append(Job("SignalReceived", signal))
                if message.sender is not None:
                    self._sent.append((later[-1], message))
            elif message.kind == REQUEST:
                asked = {"id": message.request_id, "request": message.body, **_marks(message)}
                later.append(Job(REQUESTED, asked))
            else:
                update = {"id": message.request_id, "name": message.name, "args": message.body, "after": message.after}
                later.append(Job("UpdateRequested", {**update, **_marks(message)}))
        jobs += [Job(one.kind, one.attributes) for one in self.in_hand]
        return start, [*delivered, *jobs, *cancels, *later]

    # -- out ----------------------------------------------------------------------------------------------------------

    def _record(
        self, completion: Completion, entry: Cached, start: dict[str, Any] | None, stamp: dict[str, Any]
    ) -> None:
        run = self.run
        run.activations += 1
        run.activated_at = self.now
        run.head_token = stamp["head"]
        if start is not None:
            self._event("WorkflowStarted", started_attributes(entry.facts))
        if delivered := [job.attributes["seq"] for job in completion.jobs if job.kind == DELIVERED]:
            stamp["delivered"] = delivered
        if refused := [refusal.number for refusal in completion.refused if refusal.number is not None]:
            stamp["refused"] = refused
        if completion.dispatched is not None:
            stamp["dispatched"] = completion.dispatched
        self._event("ActivationStarted", stamp)
        entry.head, entry.head_at = stamp["head"], run.length
        bodies = {id(one.attributes): one.body for one in self.in_hand}
        for job in completion.jobs:
            if job.kind != DELIVERED:
                self._event(job.kind, job.attributes, bodies.get(id(job.attributes)))
        for failed in completion.failed:
            self._event(SIGNAL_FAILED, failed.event_attributes())
        for command in completion.commands:
            self._event(command.event_kind, command.event_attributes())
        entry.length = run.length

    def _event(self, kind: str, attributes: dict[str, Any], body: bytes | None = None) -> None:
        run = self.run
        run.length += 1
        self.write.events.append(
            NewEvent(
                number=run.length,
                activation=run.activations,
                kind=kind,
                at=self.now,
                attributes=attributes,
                body=body,
            )
        )

    def _refuse(self, completion: Completion, entry: Cached) -> None:
        """Signals whose senders may not send them: settled with the reason, and audited."""
        facts, by_job = entry.facts, {id(job): message for job, message in self._sent}
        for refusal in completion.refused:
            refused = Refused(
                run_id=self.run.run_id,
                workflow=facts.workflow,
                workflow_id=facts.workflow_id,
                at=self.now,
                signal=refusal.name,
                permission=refusal.permission,
                sender=refusal.sender,
            )
            self.write.refused.append(refused)
            message = by_job.get(id(refusal.job))
            if message is not None:
                error = ActionNotPermitted(refused.reason)
                self.write.settled[message.id] = Outcome(status="rejected", value=error_data(error))

    def _settle(self, completion: Completion, entry: Cached, token: int) -> None:
        """Every message that was read has an end now, or a place to wait.

        ``token`` is that of the activation: the reference of a fault is made of it.
        """
        write = self.write
        outcomes = _outcomes(completion)
        if not self.messages:
            write.outcomes.update(outcomes)
            return
        rejected = {
            update: Outcome(status="rejected", value=error_data(error)) for update, error in completion.rejected
        }
        rejected |= self._faults(completion, token)
        pending = dict(completion.pending)
        inbox = [message for message in self.messages if message.kind in _MESSAGES]
        cut = len(inbox) - completion.unapplied
        for message in inbox[:cut]:
            if message.id in write.settled:
                continue  # a signal that was refused
            if message.kind == "signal" and message.request_id is None:
                write.consumed.append(message.id)
            elif message.kind == "signal":  # its row stays, so that it is not taken twice when it is sent again
                write.settled[message.id] = Outcome(status="completed")
            elif message.request_id in outcomes:
                write.settled[message.id] = outcomes.pop(message.request_id)
            elif message.request_id in rejected:
                write.settled[message.id] = rejected[message.request_id]
                if message.redelivered:
                    self._refuse_redelivered(message, entry.facts)
            elif message.request_id in pending:
                write.waiting[message.id] = pending[message.request_id]
        if completion.closed not in (None, "ContinueAsNew"):  # else the next turn, or run of the chain, reads them
            for message in inbox[cut:]:
                self._undelivered(message, entry.facts)
        write.outcomes.update(outcomes)

    def _faults(self, completion: Completion, token: int) -> dict[str, Outcome]:
        """The answers to updates whose validator failed by a fault of the code, by update id."""
        found: dict[str, Outcome] = {}
        for number, fault in enumerate(completion.faults):
            reference = f"{token:x}-{number}" if number else f"{token:x}"
            found[fault.update_id] = update_fault(fault, reference=reference)
            self.faults.append((reference, fault))
        return found

    def _refuse_redelivered(self, message: InboxMessage, facts: RunFacts) -> None:
        """A message that a reset or fork delivered again is refused: its sender may be gone, so the audit says it."""
        outcome = self.write.settled[message.id]
        not_taken = NotTaken(
            run_id=self.run.run_id,
            workflow=facts.workflow,
            workflow_id=facts.workflow_id,
            at=self.now,
            kind=message.kind,
            name=message.name,
            code=outcome.value["code"],
            sender=message.sender,
        )
        self.write.not_taken.append(not_taken)

    def _undelivered(self, message: InboxMessage, facts: RunFacts | None) -> None:
        if message.kind in _MESSAGES:
            error = WorkflowClosed(f"the run was closed before the {message.kind} {message.name!r} was delivered")
            status = "undelivered" if message.kind == "signal" else "rejected"
            self.write.settled[message.id] = Outcome(status=status, value=error_data(error))
            if message.redelivered and facts is not None:
                self._refuse_redelivered(message, facts)
        elif message.id not in self.write.consumed:
            self.write.consumed.append(message.id)

    def _commands(self, completion: Completion, entry: Cached) -> None:
        run, facts, write = self.run, entry.facts, self.write
        cancelled = {command.seq for command in completion.commands if command.kind == "CancelActivity"}
        definition = entry.executor.definition
        for command in completion.commands:
            if command.kind == "ScheduleActivity" and command.seq is not None and command.seq not in cancelled:
                attributes = command.attributes
                options = attributes.get("options", {})
                atomic = bool(options.get("atomic"))
                task = NewTask(
                    run_id=run.run_id,
                    chain_id=run.chain_id,
                    workflow_id=facts.workflow_id,
                    workflow=facts.workflow,
                    seq=command.seq,
                    activity=attributes["activity"],
                    args=attributes["args"],
                    kwargs=attributes.get("kwargs", {}),
                    options=options,
                    queue=options.get("queue") or run.queue,
                    atomic=atomic,
                    scheduled_at=self.now,
                    tags=definition.tags,
                    metadata=definition.metadata,
                )
                write.tasks.append(task)
                if atomic and self._inline_atomic:  # else whoever claims tasks runs it
                    run.atomic_due = self.now
            elif command.kind == "StartChild":
                write.children.append(self._child(command, entry))
            elif command.kind in ("SignalExternal", "CancelExternal"):
                write.messages.append(self._message(command, facts))
        write.cancelled_tasks = sorted(seq for seq in cancelled if seq is not None)

    def _ask_people(self, tasks: HumanTasks, completion: Completion, entry: Cached, *, activated: bool) -> None:
        """Rows of human tasks: those that changed; all that are open, where it is not known what the rows say."""
        changes = {key: (one.changes, one.task) for key, one in tasks.changes.items()} if activated else {}
        for key, task in tasks.open_tasks.items():
            if completion.closed is not None and completion.changed:
                changes[key] = ("closed",), task.as_closed("run_closed", self.now)
            elif entry.shown is None:
                changes.setdefault(key, ((), task))
        run, facts = self.run, entry.facts
        self.write.human_tasks += [
            HumanTaskWrite(
                run_id=run.run_id,
                chain_id=run.chain_id,
                workflow=facts.workflow,
                workflow_id=facts.workflow_id,
                changes=changed,
                task=task,
            )
            for changed, task in changes.values()
        ]

    def _child(self, command: Command, entry: Cached) -> NewChild:
        attributes, facts = command.attributes, entry.facts
        assert command.seq is not None
        options = {name: value for name, value in attributes.items() if name != "id"}
        return NewChild(
            workflow_id=attributes["id"],
            seed=uuid5(self.run.run_id, str(command.seq)).int >> 66,
            at=self.now,
            parent=facts.workflow_id,
            parent_chain=self.run.chain_id,
            parent_run=self.run.run_id,
            parent_seq=command.seq,
            snapshot=entry.executor.four_eyes_snapshot(child=True),
            **options,
        )

    def _message(self, command: Command, facts: RunFacts) -> NewMessage:
        attributes, run = command.attributes, self.run
        assert command.seq is not None
        signal = command.kind == "SignalExternal"
        child = attributes.get("child")
        return NewMessage(
            kind="signal" if signal else "cancel",
            name=attributes["name"] if signal else "",
            body=attributes["payload"] if signal else {"reason": f"asked by {facts.workflow_id}"},
            workflow_id=attributes["id"],
            child=None if child is None else (run.run_id, child),
            ask=(run.chain_id, run.run_id, command.seq),
        )

    def _close(self, completion: Completion, entry: Cached) -> None:
        run, write = self.run, self.write
        event = write.events[-1]
        status = CLOSING[event.kind]
        write.drop_tasks = write.left_open = bool(entry.executor.pending_commands.activities or write.cancelled_tasks)
        write.tasks = []
        write.close_children = entry.executor.had_children
        run.atomic_due = None
        write.instance.update(
            {
                "status": status,
                "closed_at": self.now,
                "closing": event.attributes,
            }
        )
        if status == "failed":
            write.instance["cause"] = run_failure_cause(event.attributes)
        before = entry.shown
        if self._said(before, "waiting_for"):
            write.instance["waiting_for"] = []
        if self._said(before, "waits"):
            write.instance["waits"] = []
        if self._said(before, "accepts"):
            write.instance["accepts"] = {"signals": [], "updates": []}
        if run.activations == 1:
            write.instance["started_at"] = self.now
        if entry.shown is None or entry.shown.get("publications") != entry.executor.publications:
            _publish(write.instance, entry.executor)
        _set_attributes(write.instance, entry.executor, entry.shown)
        if completion.closed == "ContinueAsNew":
            write.next_run = NewRun(
                run_id=self._new_run_id(),
                args=event.attributes["args"],
                seed=entry.executor.rng.getrandbits(62),
                carried_messages=completion.carried,
                snapshot=entry.executor.four_eyes_snapshot(child=False),
                search_attributes=entry.executor.search_attributes or None,
            )
            facts = entry.facts
            run.due_at = self.now
            run.deadline = facts.deadline(self.now)
            return
        run.closed = True
        run.due_at = None
        run.deadline = None
        write.messages += ending(entry.facts, status, event.attributes)
        error = WorkflowClosed(
            f"{entry.facts.workflow} {entry.facts.workflow_id} closed ({status}) before the update was done"
        )
        write.closing = Outcome(status="failed", value=error_data(error))

    def _show(self, entry: Cached) -> None:
        """Columns of the run's row that differ from what they say now."""
        executor = entry.executor
        shown: RowAtPresent = {
            "status": "running" if executor.is_busy else "waiting",
            "waiting_for": executor.waiting_for,
            "waits": executor.wait_infos,
            "accepts": executor.accepts,
            "publications": executor.publications,
            "search_attributes": executor.search_attributes,
        }
        before, entry.shown = entry.shown, shown
        changes = self.write.instance
        if before is None or before["status"] != shown["status"]:
            changes["status"] = shown["status"]
        if self._differs(before, shown, "waiting_for"):
            changes["waiting_for"] = shown["waiting_for"]
        if self._differs(before, shown, "waits"):
            changes["waits"] = shown["waits"]
        if self._differs(before, shown, "accepts"):
            changes["accepts"] = shown["accepts"]
        if before is None or before["publications"] != shown["publications"]:
            _publish(changes, executor)
        _set_attributes(changes, executor, before)
        if self.run.activations == 1 and self.write.events:
            changes["started_at"] = self.now

    def _said(self, shown: RowAtPresent | None, name: _Shown) -> bool:
        """Whether the row may say something of that. That of a new run says nothing, and is not written to say so."""
        return _says(shown[name]) if shown is not None else self.run.activations != 1

    def _differs(self, before: RowAtPresent | None, shown: RowAtPresent, name: _Shown) -> bool:
        if before is not None:
            return before[name] != shown[name]
        return self.run.activations != 1 or _says(shown[name])


def _waited_first(message: InboxMessage) -> bool:
    return message.after is None


def _marks(message: InboxMessage) -> dict[str, Any]:
    """The marks that a job has of an update or a request, beside the message itself."""
    redelivered = {"redelivered": True} if message.redelivered else {}
    return {**redelivered, **sender_attributes(message.sender)}


def _says(value: Sequence[Any] | AcceptedNames) -> bool:
    return any(value.values()) if isinstance(value, dict) else bool(value)


def _beginning(facts: RunFacts) -> dict[str, Any]:
    """What a run begins with, but for what it carries."""
    begin: dict[str, Any] = {"args": facts.args, "seed": facts.seed}
    beside = {"snapshot": facts.snapshot, "search_attributes": facts.search_attributes or None}
    return begin | {name: value for name, value in beside.items() if value is not None}


def _publish(changes: RowChanges, executor: Executor) -> None:
    changes["published"] = executor.published
    if declared := executor.definition.stored:
        changes["stored"] = stored_fields(executor.published, declared)


def _set_attributes(changes: RowChanges, executor: Executor, shown: RowAtPresent | None) -> None:
    """What the row of a rebuilt run says is not known; of one that never set any it is what it began with."""
    differ = executor.sets_attributes if shown is None else shown["search_attributes"] != executor.search_attributes
    if differ:
        changes["search_attributes"] = executor.search_attributes or None


def _outcomes(completion: Completion) -> dict[str, Outcome]:
    """What the updates and requests that ended, or were accepted, get for an answer."""
    found: dict[str, Outcome] = {}
    for command in completion.commands:
        attributes = command.attributes
        match command.kind:
            case "AcceptUpdate":
                found[attributes["id"]] = Outcome(status="accepted")
            case "CompleteUpdate":
                found[attributes["id"]] = Outcome(status="completed", value=attributes["result"])
            case "FailUpdate":
                found[attributes["id"]] = update_failed(attributes)
    found.update((request, Outcome(status="completed")) for request in completion.granted)
    return found
