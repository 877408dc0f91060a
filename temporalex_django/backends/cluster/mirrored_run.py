"""Runs in a worker of the SDK whose rows mirror them: each activation that is no replay is shown to an observer."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, Protocol
from uuid import UUID

from temporalio import workflow as sdk
from temporalio.api.enums.v1 import VersioningBehavior
from temporalio.bridge.proto.workflow_activation import (
    InitializeWorkflow,
    QueryWorkflow,
    RemoveFromCache,
    WorkflowActivation,
)
from temporalio.bridge.proto.workflow_commands import WorkflowCommand
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion

from temporalex_django.authoring.activity_options import RetryPolicy
from temporalex_django.backends.cluster import deployments, failing, names
from temporalex_django.backends.cluster.ids import cluster_id_of, task_queue
from temporalex_django.conf import codec, get_settings
from temporalex_django.core.executor import VisibleState
from temporalex_django.core.failures import error_line
from temporalex_django.core.history.activation import Activation, Completion, RunInfo
from temporalex_django.core.history.events import Command, HistoryEvent, Job
from temporalex_django.core.human_tasks import HumanTaskChange
from temporalex_django.core.payloads import codec as payloads
from temporalex_django.engine.ids import next_run_id, uuid7
from temporalex_django.errors import NondeterminismError
from temporalex_django.temporal.activation import ActivationReader, Inbound
from temporalex_django.temporal.failures import task_failure
from temporalex_django.temporal.options import HostOptions
from temporalex_django.temporal.payloads import Payloads
from temporalex_django.temporal.plugin import TemporalexPlugin
from temporalex_django.temporal.run import TemporalRun
from temporalex_django.temporal.start_facts import StartFacts

logger = logging.getLogger("temporalex_django.backends")

#: Options of the activity that delivers a message to the tables.
_DELIVERY: Final = {"start_to_close": 30.0, "retry": RetryPolicy(max_interval=10).as_dict()}
#: Signals of a run after which it is to continue as new. The server refuses those after 10,000, and suggests nothing.
MANY_SIGNALS: Final = 8_000
#: Kinds of events of an activation that changes at most which activities a run waits for.
_LITTLE: Final = frozenset(
    {
        *("WorkflowStarted", "ActivationStarted", "ActivityScheduled", "ActivityCompleted"),
        *("SignalReceived", "UpdateAccepted", "UpdateCompleted", "UpdateFailed"),
    }
)
#: Seconds after the last write of the rows of a run within which the next one may be combined with a later one. So the
#: rows that a dead worker has left behind are among those that were written so shortly before.
COMBINED_AFTER: Final = 10.0
#: The parts of the rows on which others may act, before the first activation, and when they were written (never).
_NOTHING: Final[tuple[Any, ...]] = "running", [], 0, {"signals": [], "updates": []}, {}, {}
_UNWRITTEN: Final[tuple[Any, float]] = None, 0.0
_MISMATCH: Final = RemoveFromCache.EvictionReason.NONDETERMINISM


class MirroredFacts(StartFacts, total=False):
    """The facts with which a run starts whose state is mirrored in rows.

    ``chain`` is the id of the row of its chain, and ``run`` that of its own row. Both are absent if another client of
    the cluster has started the run. After a reset, ``run`` is the id of the earlier run.
    """

    chain: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRun:
    """A run after an activation, before the server has the completion of the activation.

    ``execution`` has its ids on the cluster, its task queue and its parent there. ``original_run_id`` is the id of the
    run that was reset, or its own.
    ``info`` and ``facts`` are those with which it started, and ``start`` has the attributes of its first event, which
    happened at ``started_at``. ``now`` is the time of the activation by the clock of the cluster, and ``activation``
    its number. ``events`` are those that it added; ``length`` counts all. ``closing`` is the event that closed the run,
    or None. ``human_tasks`` are those that changed, or all open ones if the run was rebuilt for this activation.
    ``stores`` is True if the class declares stored fields. ``next_facts`` are those of the next run of the chain, if
    there is one. ``completion`` has the signals whose handler has failed in this activation, and messages that waited
    after a reset and that nothing has taken.
    """

    execution: sdk.Info
    original_run_id: str
    info: RunInfo
    facts: MirroredFacts
    start: Mapping[str, Any]
    started_at: datetime
    now: datetime
    activation: int
    length: int
    events: Sequence[HistoryEvent]
    closing: HistoryEvent | None
    visible: VisibleState
    human_tasks: Sequence[HumanTaskChange]
    stores: bool
    next_facts: StartFacts | None
    completion: Completion

    @property
    def run_id(self) -> str:
        """The id of the run on the cluster."""
        return self.execution.run_id


class Observer(Protocol):
    """The protocol of an object that receives the runs of a worker after their activations."""

    def observe(self, run: ObservedRun) -> None:
        """Process a run after an activation, before the cluster gets the commands of the activation.

        If this raises, the workflow task fails and the cluster repeats it.
        """

    def observe_soon(self, run: ObservedRun) -> None:
        """Process a run like ``observe``, but perhaps later, or together with its next activation."""

    def note_failure(self, run_id: str, error: Exception) -> None:
        """Record that a workflow task failed, because the code of the run raised or this worker lacks that code.

        The cluster repeats the task.
        """

    def leave(self, run: MirroredRun) -> None:
        """Process a run that leaves memory."""


class ByHandReader(ActivationReader):
    """Reads activations, with the activities that persons have ended by hand, and with messages to runs on the tables.

    ``undelivered`` has the numbers of the messages that the server has not delivered and that an activity has to take
    to the tables. It does if ``delivers`` is True. ``old_answers`` are markers of this activation with answers of the
    tables, by the numbers of the messages.
    """

    def __init__(self, payloads: Payloads, command_of: Callable[[int], Mapping[str, Any]]) -> None:
        super().__init__(payloads, command_of)
        self.delivers = False
        self.undelivered: list[int] = []
        self.old_answers: dict[int, str] = {}

    def _notify_patch(self, inbound: Inbound, job: Any) -> None:
        if job.patch_id == names.DELIVERY:
            self.delivers = True
        elif job.patch_id.startswith(names.OLD_ANSWER):
            self.old_answers[int(job.patch_id.split(":", 2)[1])] = job.patch_id
        else:
            super()._notify_patch(inbound, job)

    def _resolve_external(self, inbound: Inbound, job: Any) -> None:
        if job.seq in self.old_answers:
            inbound.answers.append(Job(*json.loads(self.old_answers[job.seq].split(":", 2)[2])))
        elif self.delivers and job.HasField("failure"):
            self.undelivered.append(job.seq)
        else:
            super()._resolve_external(inbound, job)

    def _resolve_activity(self, inbound: Inbound, job: Any) -> None:
        if job.result.HasField("completed") and "activity" not in self._command_of(job.seq):
            kind, attributes = self._payloads.decode(job.result.completed.result)
            inbound.answers.append(Job(kind, {**attributes, "seq": job.seq}))
            return
        super()._resolve_activity(inbound, job)
        metadata = job.result.completed.result.metadata
        if names.FAILURE in metadata:
            attributes = {"seq": job.seq, "attempts": 1, "timeout": None, **json.loads(metadata[names.FAILURE])}
            inbound.answers[-1] = Job("ActivityFailed", attributes)
        if names.BY in metadata:
            inbound.answers[-1].attributes["by"] = json.loads(metadata[names.BY])

    readers: ClassVar[Mapping[str, Callable[[Any, Inbound, Any], None]]] = {
        **ActivationReader.readers,
        "notify_has_patch": _notify_patch,
        "resolve_activity": _resolve_activity,
        "resolve_signal_external_workflow": _resolve_external,
        "resolve_request_cancel_external_workflow": _resolve_external,
    }


class MirroredRun(TemporalRun):
    """One run in the cache of a worker, whose rows are written after each of its activations."""

    _reader: ByHandReader

    def __init__(self, options: HostOptions, info: sdk.Info, observer: Observer) -> None:
        super().__init__(options, info)
        self._reader = ByHandReader(self._payloads, lambda number: self._called.get(number, {}))
        self._observer = observer
        self._seen = 0  # events that the observer has seen, or that were replayed
        self._was_rebuilt = False
        self._next_facts: StartFacts | None = None
        self._completion = Completion()  # of the last activation
        self._tasks: dict[int, int] = {}
        self._last_task = 0
        self._now = datetime.now(UTC)
        self._original_run_id = info.run_id
        self._begin_error: Exception | None = None
        self._signals = 0
        self._is_versioned = deployments.build() is not None
        self._delivers = False  # whether a marker says that activities take messages to the tables
        self._task_error: Exception | None = None
        self._written = _UNWRITTEN

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        """Activate the run, pass it to the observer and return its commands.

        If the code or the observer raises, return the failure of the workflow task; the cluster then repeats it.
        Replays and queries are not observed.
        """
        self._completion = Completion()
        self._note_mismatch(act)
        if act.HasField("timestamp"):
            self._now = act.timestamp.ToDatetime(UTC)
        self._drop_foreign_signals(act)
        self._count_signals(act)
        is_query = _is_query(act)
        if not is_query:
            self._last_task = act.history_length
        completion = super().activate(act)
        self._pin(completion)
        if completion.HasField("failed") and self._task_error is not None:
            completion.failed.failure.stack_trace = failing.places_of(self._task_error)
            self._task_error = None
        history = getattr(self, "history", None)
        if history is None or completion.HasField("failed"):
            return completion
        if history.events:
            self._tasks.setdefault(history.events[-1].activation, self._last_task)
        if act.is_replaying or is_query or any(job.HasField("remove_from_cache") for job in act.jobs):
            self._seen, self._was_rebuilt, self._written = len(history.events), True, _UNWRITTEN
            return completion
        try:
            self._show()
        except Exception as exc:  # noqa: BLE001 - the task fails, and the server has it done again
            super().report_failure(exc)
            self._written = _UNWRITTEN
            completion.failed.CopyFrom(task_failure(exc, message=error_line(exc)))  # a database quotes rows
        return completion

    def _count_signals(self, act: WorkflowActivation) -> None:
        """Suggest continue-as-new to a run that has received many signals; the server does not count them in time."""
        self._signals += sum(job.HasField("signal_workflow") for job in act.jobs)
        if self._signals >= MANY_SIGNALS and "limits" in getattr(self, "_facts", {}):
            act.continue_as_new_suggested = True

    def _pin(self, completion: WorkflowActivationCompletion) -> None:
        """Keep a run of a pinned class on the build of this worker."""
        if self._is_versioned and completion.HasField("successful") and self._class.versioning == "pinned":
            completion.successful.versioning_behavior = VersioningBehavior.VERSIONING_BEHAVIOR_PINNED

    def _perform(self, act: WorkflowActivation) -> list[WorkflowCommand]:
        """Do the activation, and have the messages delivered that the server could not deliver.

        Raises ``WorkflowSwitchedOff`` if the class of a run in memory has been switched off, and again what has kept
        the run from beginning in this process.
        """
        if self._begin_error is not None and not any(job.HasField("initialize_workflow") for job in act.jobs):
            raise self._begin_error
        if hasattr(self, "executor") and not act.is_replaying and not _is_query(act):
            self.find_class(self.run_info.workflow, self._facts.get("version"))
        self._reader.delivers = self._reader.delivers or not act.is_replaying
        self._reader.old_answers.clear()
        written = super()._perform(act)
        markers = [self._marker(marker) for marker in self._reader.old_answers.values()]
        return [*markers, *self._deliver(act), *written]

    def _deliver(self, act: WorkflowActivation) -> list[WorkflowCommand]:
        """Return the activities that take messages to the tables, as many as the task may emit.

        A marker before the first one tells replays that such activities follow. A timer of no seconds causes another
        activation for the rest.
        """
        waiting, written = self._reader.undelivered, []
        if waiting and not self._delivers:
            self._delivers = True
            written.append(self._marker(names.DELIVERY))
        self._room.begin(act.history_length)
        while waiting and self._room.calls != 0:
            seq = waiting.pop(0)
            message = dict(self._called[seq])
            call = {"activity": names.DELIVERY, "args": [message], "options": _DELIVERY}
            written.append(self._writer.write(Command("ScheduleActivity", seq, call), {}))
            self._room.take(1, len(payloads.encode(message)))
        return [*written, *([self._rest_timer()] if waiting else ())]

    def _marker(self, marker: str) -> WorkflowCommand:
        return self._writer.write(Command("SetPatchMarker", None, {"id": marker, "deprecated": False}), {})

    def report_failure(self, error: Exception) -> None:
        """Log the failure of a workflow task, and pass it to the observer."""
        super().report_failure(error)
        self._task_error, self._written = error, _UNWRITTEN
        self._observer.note_failure(self._info.run_id, error)

    def evict(self) -> None:
        self._observer.leave(self)
        super().evict()

    def _note_mismatch(self, act: WorkflowActivation) -> None:
        """Report a run that the SDK evicts because its code no longer matches its history.

        The SDK compares them by itself, and fails the task then. A query that meets the mismatch fails no task.
        """
        for job in act.jobs:
            is_mismatch = job.HasField("remove_from_cache") and job.remove_from_cache.reason == _MISMATCH
            if is_mismatch and failing.has_task(self._info.workflow_id, self._info.run_id):
                self._observer.note_failure(self._info.run_id, NondeterminismError(job.remove_from_cache.message))

    def _drop_foreign_signals(self, act: WorkflowActivation) -> None:
        """Remove the signals for another chain, which had the id of this run before. A replay removes the same."""
        for number in reversed(range(len(act.jobs))):
            signal = act.jobs[number].signal_workflow
            if names.CHAIN not in signal.headers:
                continue
            if self._payloads.decode(signal.headers[names.CHAIN]) != self._info.first_execution_run_id:
                logger.warning("dropped a signal %r for an earlier chain of this id", signal.signal_name)
                del act.jobs[number]

    def _show(self) -> None:
        """Pass the run to the observer. What others need to know at once is written before the server has it."""
        seen, self._seen = self._seen, len(self.history.events)
        every, self._was_rebuilt = self._was_rebuilt, False
        run = self.observed(self.history.events[seen:], self.executor.human_task_changes(every=every))
        if self._differs_little(run):
            self._observer.observe_soon(run)
        else:
            self._observer.observe(run)

    def _differs_little(self, run: ObservedRun) -> bool:
        """Return True if the activation has changed at most which activities the run waits for.

        The first activation of a run counts if the run has its rows from its start.
        """
        seen, now = run.visible, time.monotonic()
        state = seen.status, seen.waits, seen.publications
        parts = *state, dict(seen.accepts), dict(seen.search_attributes), seen.stored
        (before, written_at), self._written = self._written, (parts, now)
        if run.activation == 1:
            has_rows = run.info.attempt == 1 and run.original_run_id == run.run_id and self._info.parent is None
            before, written_at = _NOTHING if has_rows and "chain" in run.facts else None, now
        return (
            parts == before
            and now - written_at < COMBINED_AFTER
            and not (run.closing or run.human_tasks or run.completion.failed or run.completion.lost or seen.human_tasks)
            and all(event.kind in _LITTLE for event in run.events)
        )

    def observed(self, events: Sequence[HistoryEvent], human_tasks: Sequence[HumanTaskChange]) -> ObservedRun:
        """Return the run in its state after the last activation, with these events and human tasks."""
        first = self.history.events[0] if self.history.events else None
        return ObservedRun(
            execution=self._info,
            original_run_id=self._original_run_id,
            info=self.run_info,
            facts=self._facts,  # type: ignore[arg-type] # facts of a run with rows have more keys
            start={} if first is None else first.attributes,
            started_at=self._now if first is None else first.at,
            now=self._now,
            activation=0 if first is None else self.history.events[-1].activation,
            length=len(self.history.events),
            events=events,
            closing=self.history.closing,
            visible=self.executor.visible_state(),
            human_tasks=human_tasks,
            stores=bool(self.executor.definition.stored),
            next_facts=self._next_facts,
            completion=self._completion,
        )

    def _begin(self, init: InitializeWorkflow) -> dict[str, Any]:
        self._original_run_id = init.original_execution_run_id or self._info.run_id
        try:
            attributes = super()._begin(init)
        except Exception as exc:
            self._begin_error = exc
            raise
        self._begin_error = None
        return attributes

    def _activate(self, activation: Activation) -> Completion:
        self._completion = super()._activate(activation)
        return self._completion

    def add_facts(self, facts: StartFacts, search_attributes: dict[str, Any] | None, *, child: bool) -> StartFacts:
        """Return the start facts of a child, or of the next run of the chain, with the id that its row will have.

        The next run has the chain of this one, and a replay gives it the same row id. A child gets a random row id.
        """
        facts = super().add_facts(facts, search_attributes, child=child)
        if child:
            facts["run"] = str(uuid7())
        else:
            mine = UUID(self._facts["run"]) if "run" in self._facts else None
            facts["run"] = str(next_run_id(self._info.run_id, at=self._now, after=mine))
            if "chain" in self._facts:
                facts["chain"] = self._facts["chain"]  # type: ignore[typeddict-unknown-key, typeddict-item]
            self._next_facts = facts
        return facts

    def _answer(self, query: QueryWorkflow) -> WorkflowCommand:
        answer: dict[str, Any]
        if query.query_type == names.TASKS:
            tasks = {str(activation): event for activation, event in self._tasks.items()}
            answer = {"tasks": tasks, "last": self._last_task}
        elif query.query_type == names.COUNTS:
            updates = sum(event.kind == "UpdateAccepted" for event in self.history.events)
            answer = {"signals": self._signals, "updates": updates}
        else:
            return super()._answer(query)
        return self._writer.write_query_answer(query.query_id, answer)


def _is_query(act: WorkflowActivation) -> bool:
    return all(job.HasField("query_workflow") for job in act.jobs)


class MirroredPlugin(TemporalexPlugin):
    """The plugin of this project for workers and replayers. ``observer`` gets each run after an activation."""

    def __init__(self, observer: Observer, **options: Any) -> None:
        super().__init__(
            codec=codec(),
            queue_name=task_queue,
            workflow_id=cluster_id_of,
            unexpected_error=get_settings().UNEXPECTED_ERROR,
            **options,
        )
        self._observer = observer

    def new_run(self, info: sdk.Info) -> TemporalRun:
        return MirroredRun(self.options, info, self._observer)
