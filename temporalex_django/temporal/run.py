"""One run in the cache of a worker of the SDK, which passes its activations to the executor of this package."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, cast

from temporalio import workflow as sdk
from temporalio.bridge.proto.workflow_activation import InitializeWorkflow, QueryWorkflow, WorkflowActivation
from temporalio.bridge.proto.workflow_commands import WorkflowCommand
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion

from temporalex_django.authoring.workflow import Workflow
from temporalex_django.core.executor import Executor
from temporalex_django.core.failures import error_data, error_line
from temporalex_django.core.history.activation import NO_DELIVERY, Activation, Completion, RunInfo, started_attributes
from temporalex_django.core.history.events import Command
from temporalex_django.core.messages.phase import HandlerFixed
from temporalex_django.core.names import TEMPORAL
from temporalex_django.errors import TemporalexError, WorkflowClosed
from temporalex_django.temporal import names
from temporalex_django.temporal.activation import ActivationReader, Inbound
from temporalex_django.temporal.commands import CommandWriter, write_record
from temporalex_django.temporal.failures import fault_data, task_failure
from temporalex_django.temporal.history import TemporalHistory
from temporalex_django.temporal.inbox import TemporalInbox, is_rest
from temporalex_django.temporal.instance import InstanceFacts
from temporalex_django.temporal.options import HostOptions
from temporalex_django.temporal.start_facts import TASK_LIMITS, StartFacts, TaskRoom

logger = logging.getLogger("temporalex_django.temporal")

#: Most calls of one run without a result. The server refuses a task that leaves more than 2,000 of one kind pending.
MAX_PENDING: Final = 1_900
#: Answers to updates. One that the previous run of the chain has accepted gets none here.
_ANSWERS: Final = ("AcceptUpdate", "CompleteUpdate", "FailUpdate")
_LATEST: Final = datetime.max.replace(tzinfo=UTC)


class TemporalRun(InstanceFacts):
    """One run in the cache of a worker. The SDK calls ``activate`` with one activation at a time."""

    def __init__(self, options: HostOptions, info: sdk.Info) -> None:
        super().__init__(info)
        self._options = options
        self._payloads = options.payloads
        self._called: dict[int, Mapping[str, Any]] = {}  # attributes of activities, children and messages, by number
        self._reader = ActivationReader(self._payloads, lambda number: self._called.get(number, {}))
        self._inbox = TemporalInbox()
        self._rest_timers = 0  # how many were started
        self._protocol_ids: dict[str, str] = {}
        self._markers = 0  # of delivery records
        self._replayed: list[Activation] | None = []  # all so far, while the past is executed again
        self._seed: int | None = None
        self._patches: list[str] = []

    # -- the interface of the SDK -------------------------------------------------------------------------------------

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        """Return the commands for an activation of the SDK.

        Raises nothing: an error becomes the failure of the workflow task in the result, and the server tries the task
        again.
        """
        self._thread_id = threading.get_ident()
        completion = WorkflowActivationCompletion(run_id=act.run_id)
        completion.successful.SetInParent()
        if any(job.HasField("remove_from_cache") for job in act.jobs):
            self.evict()
            return completion
        try:
            completion.successful.commands.extend(self._perform(act))
        except Exception as exc:  # noqa: BLE001 - the task fails, and the server tries it again
            self.report_failure(exc)
            completion.failed.CopyFrom(task_failure(exc))
        return completion

    def report_failure(self, error: Exception) -> None:
        """Log that a workflow task of the run has failed; the run stays as it is, and the server tries it again."""
        logger.error("%s %s: a task failed: %s", self._info.workflow_type, self._info.workflow_id, error_line(error))

    def find_class(self, name: str, version: int | None) -> type[Workflow]:
        """Return the class of the run. Raises ``UnknownWorkflow``."""
        return self._options.find_class(name, version)

    def evict(self) -> None:
        """Drop the run from memory without running its code."""
        if hasattr(self, "executor"):
            self.executor.evict()

    # -- an activation ------------------------------------------------------------------------------------------------

    def now(self, act: WorkflowActivation, inbound: Inbound) -> datetime:
        """Return the time of an activation."""
        del inbound
        return act.timestamp.ToDatetime(UTC)

    def _perform(self, act: WorkflowActivation) -> list[WorkflowCommand]:
        inbound = self._reader.read(act)
        start = None if inbound.start is None else self._begin(inbound.start)
        self._protocol_ids.update(inbound.protocol_ids)
        self._patches += inbound.patches
        self.executor.expect_markers(inbound.patches)
        if inbound.seed is not None:
            self._seed = inbound.seed
        written = [self._write_rejection(key, error_data(error)) for key, error in inbound.refused_updates]
        now = self.now(act, inbound)
        if inbound.cancel is not None and self._class.cancels_at_once:
            written += self._cancel_at_once(inbound, now)
        elif self.history.closing is None:
            written += self._advance(act, inbound, start, now)
        written += [self._answer(query) for query in inbound.queries]
        return written

    def _begin(self, init: InitializeWorkflow) -> dict[str, Any]:
        """Create the executor, and return the attributes with which the run starts."""
        arguments = [*map(self._payloads.decode, init.arguments)]
        self._facts = facts = cast("StartFacts", arguments[1] if len(arguments) > 1 else {})
        self._class = self.find_class(init.workflow_type, facts.get("version"))
        parent = init.parent_workflow_info.workflow_id if init.HasField("parent_workflow_info") else None
        self.run_info = RunInfo(
            workflow=init.workflow_type,
            id=facts.get("id", init.workflow_id),
            # After a reset the history goes on under another id. The code must see the id that it saw.
            run_id=facts.get("run") or init.original_execution_run_id or self._info.run_id,
            version=facts.get("version") or self._class.version,
            attempt=facts.get("attempt", 1),
            parent=facts.get("parent", parent),
            scheduled_for=datetime.fromisoformat(slot) if (slot := facts.get("scheduled_for")) else None,
            headers=facts.get("headers"),
        )
        self._room = TaskRoom(facts.get("limits"))
        self.history = TemporalHistory()
        self._new_executor(skip_failed=False)
        self._writer = CommandWriter(
            payloads=self._payloads,
            info=self.run_info,
            namespace=self._info.namespace,
            task_queue=self._info.task_queue,
            queue_name=self._options.queue_name,
            workflow_id=self._options.workflow_id,
            child_facts=self._child_facts,
        )
        return started_attributes(
            self.run_info,
            args=arguments[0] if arguments else None,
            seed=init.randomness_seed,
            carried=facts.get("carried"),
            snapshot=facts.get("snapshot"),
            search_attributes=facts.get("search_attributes"),
        )

    def _new_executor(self, *, skip_failed: bool) -> None:
        self.executor = Executor(
            self._class.definition,
            self.run_info,
            unexpected_error=self._options.unexpected_error,
            skip_failed=skip_failed,
            backend=TEMPORAL,
        )
        self.executor.expect_markers(self._patches)

    def _advance(
        self, act: WorkflowActivation, inbound: Inbound, start: dict[str, Any] | None, now: datetime
    ) -> list[WorkflowCommand]:
        """Deliver the jobs of an activation to the executor, and return its commands as commands of the SDK.

        ``start`` has the attributes with which a new run starts, or is None.
        """
        order = self._inbox.prepare_repeated(inbound, self.executor.dispatcher, replaying=act.is_replaying)
        carried = self._facts.get("carried") if start is not None else None
        timers = {number for _, number in self.executor.due_timers(_LATEST)} if inbound.skips else ()
        failed = self.executor.dispatcher.handler_runner.failures.open_failures
        jobs, skipped = self._inbox.order_jobs(inbound, carried, timers=timers, failed=failed)
        written = [self._writer.write(Command("CancelTimer", number, {}), {}) for number in skipped]
        rests = self.executor.pending_commands.can_emit and any(map(is_rest, inbound.answers))
        if not (jobs or start is not None or self.executor.unfinished or rests):
            return written
        self._room.begin(act.history_length)
        activation = Activation(
            now=now,
            jobs=tuple(jobs),
            start=start,
            history_length=len(self.history.events),
            suggests_continue_as_new=act.continue_as_new_suggested,
            seed=self._seed,
            replaying=act.is_replaying,
            admit_updates=True,
            max_pending=MAX_PENDING,
            max_calls=self._room.calls,
            max_bytes=self._room.bytes,
            consumes_all=True,
            delivery=inbound.record,
        )
        completion = self._activate(activation)
        self._room.take(self.executor.pending_commands.emitted, self.executor.pending_commands.emitted_bytes)
        if completion.changed:
            self._seed = None
            self.history.record(activation, completion, self.executor)
        record = replace(completion.delivery, order=order) if order else completion.delivery
        if record != NO_DELIVERY:
            self._markers += 1
            written.append(write_record(self._markers, record))
        return written + self._write(completion)

    def _activate(self, activation: Activation) -> Completion:
        """Give an activation to the executor.

        If the replay finds that a failed handler was corrected, all activations so far are executed once more, with a
        new executor that skips such handlers.
        """
        if not activation.replaying:
            self._replayed = None
        elif self._replayed is not None:
            self._replayed.append(activation)
        try:
            return self._options.run_code(partial(self.executor.activate, activation, judge=self._options.judge))
        except HandlerFixed:
            assert self._replayed is not None
            self.executor.evict()
            self._new_executor(skip_failed=True)
            return [self.executor.activate(earlier) for earlier in self._replayed][-1]

    def _cancel_at_once(self, inbound: Inbound, now: datetime) -> list[WorkflowCommand]:
        """Close the run as cancelled without running its code, which graphs need; return the commands."""
        assert inbound.cancel is not None
        error = error_data(WorkflowClosed(f"{self.run_info.workflow} {self.run_info.id} is closed"))
        requests = [job for job in inbound.messages if job.kind != "SignalReceived"]
        written = [self._write_rejection(job.attributes["id"], error) for job in requests]
        if self.history.closing is None:
            self.history.add("WorkflowCancelled", {**inbound.cancel.attributes, "outside": True}, now)
            written.append(self._writer.write(Command("CancelWorkflow", None, {}), {}))
        return written

    # -- what goes out ------------------------------------------------------------------------------------------------

    def _write(self, completion: Completion) -> list[WorkflowCommand]:
        """Return the commands of the SDK for a completion; answers to updates and requests come first."""
        written = [
            self._writer.write(Command(kind, None, {"id": request_id, "result": None}), self._protocol_ids)
            for request_id in completion.granted
            if request_id in self._protocol_ids
            for kind in ("AcceptUpdate", "CompleteUpdate")
        ]
        rejected = [(update_id, error_data(error)) for update_id, error in completion.rejected]
        rejected += [(fault.update_id, fault_data(fault)) for fault in completion.faults]
        written += [self._write_rejection(update_id, error) for update_id, error in rejected]
        for command in completion.commands:
            if command.seq is not None and command.kind not in ("StartTimer", "CancelTimer"):
                self._called.setdefault(command.seq, command.attributes)
            if command.kind == "ContinueAsNew":
                written.append(self._continue_as_new(command, completion))
            elif command.kind not in _ANSWERS or command.attributes["id"] in self._protocol_ids:
                written.append(self._writer.write(command, self._protocol_ids))
        return written + self._start_rest_timer(completion)

    def _continue_as_new(self, command: Command, completion: Completion) -> WorkflowCommand:
        """Return the command that starts the next run of the chain.

        The facts for that run contain the messages that no code took, because the cluster does not deliver them again.
        """
        assert completion.carried is not None
        carried = completion.carried
        signals = [*carried["signals"], *(job.attributes for job in self._inbox.signals)]
        facts: StartFacts = {
            "version": self.run_info.version,
            "attempt": self.run_info.attempt + 1,
            "carried": {**carried, "signals": signals},
        }
        ids = {name: self._facts[name] for name in ("id", "parent") if name in self._facts}
        facts = self.add_facts(cast("StartFacts", {**facts, **ids}), dict(self.executor.search_attributes), child=False)
        return self._writer.continue_as_new(self.run_info.workflow, command.attributes["args"], facts)

    def _child_facts(self, attributes: Mapping[str, Any]) -> StartFacts:
        """Return the facts that a child gets besides its input; ``attributes`` are those of its ``StartChild``."""
        facts: StartFacts = {"version": attributes["version"]}
        if self._options.workflow_id(attributes["id"]) != attributes["id"]:
            facts |= {"id": attributes["id"], "parent": self.run_info.id}
        return self.add_facts(facts, attributes.get("search_attributes"), child=True)

    def add_facts(self, facts: StartFacts, search_attributes: dict[str, Any] | None, *, child: bool) -> StartFacts:
        """Return ``facts`` with those that every run gets which this one starts, a child or the next of its chain.

        They are its snapshot, its search attributes and the headers of this run. ``child`` is True for a child.
        """
        snapshot, headers = self.executor.four_eyes_snapshot(child=child), self.run_info.headers
        shared = {"snapshot": snapshot, "search_attributes": search_attributes, "headers": headers}
        return cast(
            "StartFacts", {**facts, "limits": TASK_LIMITS, **{key: fact for key, fact in shared.items() if fact}}
        )

    def _start_rest_timer(self, completion: Completion) -> list[WorkflowCommand]:
        """Return a timer of no seconds, which causes another activation, if signals or calls were too many for one."""
        if completion.closed is not None or not (self._inbox.signals or self.executor.pending_commands.can_emit):
            return []
        return [self._rest_timer()]

    def _rest_timer(self) -> WorkflowCommand:
        self._rest_timers += 1
        return self._writer.write(Command("StartTimer", names.REST_TIMERS + self._rest_timers, {"duration": 0}), {})

    def _write_rejection(self, update_id: str, error: Mapping[str, Any]) -> WorkflowCommand:
        return self._writer.write_rejection(self._protocol_ids[update_id], error)

    def _answer(self, query: QueryWorkflow) -> WorkflowCommand:
        """Return the command that answers a query: one of the class, or the built-in one for the run's state."""
        arguments = [*map(self._payloads.decode, query.arguments)]
        args = arguments[0] if arguments else None
        try:
            if query.query_type == names.STATE:
                answer = self.history.state(self.executor, after=(args or {}).get("after", 0))
            else:
                answer = self._class.answer(query.query_type, args, self.executor.published)
            return self._writer.write_query_answer(query.query_id, answer)
        except TemporalexError as exc:
            return self._writer.write_query_failure(query.query_id, error_data(exc))
