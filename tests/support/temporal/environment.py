"""``TemporalEnvironment``: the environment of the tests whose runs live on a real server of Temporal.

Code runs on the server alone. What handles and tests read is a mirror: runs in memory as each activation left them.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.update.v1 import UpdateRef
from temporalio.api.workflowservice.v1 import PollWorkflowExecutionUpdateRequest
from temporalio.client import WorkflowExecutionStatus, WorkflowUpdateFailedError, WorkflowUpdateStage
from temporalio.client._interceptor import SignalWorkflowInput, StartWorkflowUpdateInput
from temporalio.exceptions import ApplicationError, FailureError, TimeoutType, WorkflowAlreadyStartedError
from temporalio.exceptions import TimeoutError as SdkTimeoutError
from temporalio.service import RPCError

from temporalex_django.authoring.authorization import check_person, require_permission, sender_of
from temporalex_django.authoring.workflow import class_for_run, last_definition_number, newest_class
from temporalex_django.core.failures import error_data
from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.core.payloads.codec import check_text
from temporalex_django.core.process import REQUEST
from temporalex_django.engine import run_closing
from temporalex_django.engine.activity_policy import FAULT
from temporalex_django.engine.contracts.records import Outcome, RunState, TaskState
from temporalex_django.engine.contracts.storage import TaskStorage
from temporalex_django.engine.external_messages import PARENT_CLOSED, FinishedActivity
from temporalex_django.engine.memory.storage import MemoryRunStorage
from temporalex_django.engine.operator_overrides import OPERATOR_RULES, absent_timer_text, pending_timers
from temporalex_django.engine.run_start import RunStart
from temporalex_django.engine.turn_report import TurnReport
from temporalex_django.engine.watchdog import watchdog
from temporalex_django.errors import ActionNotPossible, WorkflowClosed
from temporalex_django.temporal import names
from temporalex_django.temporal.failures import failure_details
from temporalex_django.temporal.start_facts import TASK_LIMITS
from temporalex_django.testing.environment_base import EPOCH
from temporalex_django.testing.memory_backend import MemoryBackend
from tests.support.runs import replay_all
from tests.support.temporal.mirror import Mirror
from tests.support.temporal.refusals import refuse
from tests.support.temporal.runs import CLOCK, TASK_TIMEOUT, RunReport, VirtualPlugin
from tests.support.temporal_cluster import Cluster

_LONGEST_WAIT = 5.0
_LOOK_AGAIN = 0.3


class VirtualCluster(Cluster):
    plugin_class = VirtualPlugin


class MirrorStorage(MemoryRunStorage):
    """Runs in memory as the server has them. What a caller inserts goes to the server."""

    def __init__(self, env: TemporalEnvironment, now: datetime) -> None:
        super().__init__(now)
        self._env = env

    def start(self, start: RunStart) -> UUID:
        if start.is_delayed or start.start_before is not None or start.first_timeout is not None:
            refuse("second part" if start.first_timeout is None else "clock")
        chain_id = super().start(start)
        self._env.start_run(chain_id, start)
        return chain_id

    def rekey(self, chain_id: UUID, run_id: UUID) -> None:
        """Give the newest run of a chain the id that it has on the server."""
        state = self.chains[chain_id]
        row = self.runs[state.run_id]
        self.runs.discard(state.run_id)
        self._chain_of_run.discard(state.run_id)
        self.runs[run_id] = replace(row, facts=replace(row.facts, run_id=run_id))
        self._chain_of_run[run_id] = chain_id
        self.run_ids[chain_id] = (*self.run_ids[chain_id][:-1], run_id)
        self.chains[chain_id] = replace(state, run_id=run_id, due_at=None)

    def send(
        self, chain_id: UUID, kind: str, name: str, payload: Any, *, message_id=None, sender=None, headers=None
    ) -> int:
        known = set(self.messages)
        number = super().send(chain_id, kind, name, payload, message_id=message_id, sender=sender, headers=headers)
        self._inboxes[chain_id].discard(number)
        self._fresh.discard(chain_id)
        if number not in known:
            self._env.send(chain_id, number, kind, name, payload, message_id, sender, headers)
        return number

    def deliver(self, activities: Sequence[FinishedActivity]) -> None:
        for activity in activities:
            self._env.end_activity(activity)


class TemporalBackend(MemoryBackend):
    def insert_run(self, request: Any) -> Any:
        self._env._pending_class = request.workflow
        try:
            return super().insert_run(request)
        finally:
            self._env._pending_class = None

    def perform(self, address: Any, request: Any) -> Any:
        if request.operation in ("reset", "fork"):
            refuse("fork and edited input")
        if request.operation in OPERATOR_RULES.keys() - {"cancel", "terminate", "skip_timer"}:
            refuse("operator actions")
        if request.operation == "skip_timer":
            require_permission(check_person(request.by), "retry_activity", action="call skip_timer")
            check_text(request.inputs["reason"], label="the reason")
            row = self._env.row(self._env.storage.chains[address.chain_id].run_id)
            timers = pending_timers((event.kind, event.attributes) for event in row.events)
            if request.inputs["seq"] not in timers:
                raise ActionNotPossible(absent_timer_text(timers))
            sender = sender_of(check_person(request.by))
            by = None if sender is None else sender.as_dict()
            self._env._signal(address.chain_id, names.SKIP_TIMER, {"seq": request.inputs["seq"], "by": by})
            self._env.work()
            return None
        return super().perform(address, request)


class NoSchedules:
    workflows: dict[str, Any] = {}

    def next_due(self) -> None:
        return None

    def fire(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        refuse("second part")


class TemporalEnvironment(Mirror):
    """Runs on the server at ``address``, in a worker of this process that keeps ``cache`` runs in memory.

    The worker dies in the activation number ``dies_at``: the server hears nothing of it, and another worker goes on.
    """

    def __init__(
        self,
        address: str,
        *,
        cache: int = 1000,
        now: datetime | None = None,
        dies_at: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.clock = EPOCH if now is None else now
        self.storage = MirrorStorage(self, self.clock)
        self.backend = TemporalBackend(self)
        self.schedules = NoSchedules()
        self._prefix = uuid.uuid4().hex[:8]
        self._cache = cache
        self._reports: queue.SimpleQueue[RunReport] = queue.SimpleQueue()
        self._progress = threading.Condition()
        self._started: set[tuple[str, int]] = set()
        self._classes_of_ids: dict[str, tuple[Any, int]] = {}
        self._chain_of_id: dict[str, UUID] = {}  # by id on the server: the newest chain
        self._id_of_chain: dict[UUID, str] = {}
        self._latest: dict[UUID, RunReport] = {}  # by run
        self._told: dict[UUID, datetime] = {}  # by chain: the time that it knows
        self._sent: defaultdict[UUID, int] = defaultdict(int)  # signals, by chain
        self._cancels: set[UUID] = set()
        self._seen_cancels: set[tuple[str, int]] = set()
        self._updates: dict[int, tuple[UUID, Future[Any]]] = {}
        self._ended: set[tuple[UUID, int]] = set()
        self._children_of: dict[str, tuple[UUID, int, dict[str, Any]]] = {}
        self._seen_children: set[tuple[UUID, int]] = set()
        self._known_commands: dict[tuple[UUID, int], int] = {}
        self.dies_at, self.is_dead = dies_at, False
        self._activation_count = 0
        self._dead: Any = None  # the worker that died
        self._buried = threading.Event()
        #: Seconds within which code must reach a wait. The SDK has a limit of its own.
        self.code_limit: float | None = None
        self.cluster = VirtualCluster(
            address,
            report=self._take_report,
            started=self._note_started,
            class_of=self._class_of_id,
            workflow_id=self.cluster_id,
            judge=self._judge,
            run_code=self._run_code,
            dies=None if dies_at is None else self._dies,
            **options,
        )
        self._worker: tuple[Any, Any] | None = None
        self._unexpected: list[Exception] = []

    # -- the server ---------------------------------------------------------------------------------------------------

    def cluster_id(self, workflow_id: str) -> str:
        return f"{self._prefix}/{workflow_id}"

    def _class_of_id(self, cluster_id: str, name: str, version: int | None) -> Any:
        cls, at = self._classes_of_ids.get(cluster_id, (None, 0))
        if cls is None or cls.name != name or (cls.dispatched_by and cls.version != version):
            return class_for_run(name, version or 1)
        return newest_class(cls, at)

    def _run_code(self, function: Any) -> Any:
        return watchdog.run(function, limit=self.code_limit, label="the workflow", force=True)

    def _dies(self) -> bool:
        """Return True in the activation in which the worker dies, once the worker is buried."""
        with self._progress:
            self._activation_count += 1
            if self._activation_count != self.dies_at:
                return False
            self.is_dead = True
            self._progress.notify_all()
        self._buried.wait()
        return True

    def _bury(self) -> None:
        """Take another worker. The one that died polls no more, and never answers."""
        assert self._worker is not None
        self._dead, self._worker = self._worker, None
        self.cluster.submit(self._dead[1].shutdown())
        self.cluster.reconnect()  # a client may have one worker for a queue
        self._ensure_worker()

    def remember_class(self, chain_id: UUID, workflow: Any) -> None:
        super().remember_class(chain_id, workflow)

    def _take_report(self, report: RunReport) -> None:
        with self._progress:
            self._reports.put(report)
            self._progress.notify_all()

    def _note_started(self, run_id: str, seq: int) -> None:
        with self._progress:
            self._started.add((run_id, seq))
            self._progress.notify_all()

    def _ensure_worker(self) -> None:
        """Start a worker, also in place of one that has old code of a run in memory: a deploy restarts workers."""
        for chain_id, state in self.storage.chains.items():
            report = self._latest.get(state.run_id)
            if state.closed or report is None or report.visible is None:
                continue
            facts = self.storage.runs[state.run_id].facts
            if self._class_of_id(self._id_of_chain[chain_id], facts.workflow, facts.version) is not report.run._class:
                self._stop_worker()
                break
        if self._worker is None:
            worker = self.cluster.worker(cache=self._cache)
            self._worker = (worker, worker.__enter__())
            if self.dies_at is not None:  # a dead worker is silent: it does not even report that its code hangs
                self._worker[1]._workflow_worker._deadlock_timeout_seconds = None

    def _stop_worker(self) -> None:
        if self._worker is not None:
            worker, self._worker = self._worker[0], None
            worker.__exit__(None, None, None)

    def close_down(self) -> None:
        for chain_id, state in self.storage.chains.items():
            if not state.closed:
                with suppress(RPCError):
                    self.cluster.call(self._handle(chain_id).terminate("the test is over"))
        self._buried.set()
        if self._dead is not None:
            self._dead[0].__exit__(None, None, None)
        with suppress(Exception):  # a run that loops for ever keeps its worker
            self._stop_worker()
        self.cluster.close()

    def check(self) -> None:
        """Replay every run, with the replayer of the SDK and with ours, and compare its history with a rebuilt one."""
        replay_all(self, list(self.storage.chains))
        for run_id, report in self._latest.items():
            if report.error is None:
                chain_id = self.storage._chain_of_run[run_id]
                self.cluster.replay(self.cluster.history(self._handle(chain_id, run_id)))

    def _handle(self, chain_id: UUID, run_id: UUID | None = None) -> Any:
        return self.cluster.client.get_workflow_handle(
            self._id_of_chain[chain_id], run_id=None if run_id is None else str(run_id)
        )

    @contextmanager
    def batch(self) -> Iterator[None]:
        self._stop_worker()
        with super().batch():
            yield

    # -- to the server ------------------------------------------------------------------------------------------------

    def start_run(self, chain_id: UUID, start: RunStart) -> None:
        cluster_id = self.cluster_id(start.workflow_id)
        number = 1
        while (other := self._chain_of_id.get(cluster_id)) is not None and not self.storage.chains[other].closed:
            number += 1
            cluster_id = f"{self.cluster_id(start.workflow_id)}#{number}"
        facts: dict[str, Any] = {"version": start.version, "id": start.workflow_id, "now": self.clock.isoformat()}
        facts["limits"] = TASK_LIMITS
        if start.snapshot is not None:
            facts["snapshot"] = dict(start.snapshot)
        if start.search_attributes:
            facts["search_attributes"] = dict(start.search_attributes)
        if start.headers:
            facts["headers"] = dict(start.headers)
        self._register(chain_id, cluster_id)
        workflow = self._pending_class
        if workflow is not None:
            self._classes_of_ids[cluster_id] = workflow, last_definition_number()
        handle = self.cluster.call(self._start(start.workflow, [start.args, facts], cluster_id))
        self.storage.rekey(chain_id, UUID(handle.first_execution_run_id))
        self._told[chain_id] = self.clock

    async def _start(self, workflow: str, args: list[Any], cluster_id: str) -> Any:
        while True:
            try:
                return await self.cluster.client.start_workflow(
                    workflow, args=args, id=cluster_id, task_queue=self.cluster.queue, task_timeout=TASK_TIMEOUT
                )
            except WorkflowAlreadyStartedError:  # the one that has just closed: the server is told in this moment
                await asyncio.sleep(0.01)

    _pending_class: Any = None

    def _register(self, chain_id: UUID, cluster_id: str) -> None:
        self._chain_of_id[cluster_id] = chain_id
        self._id_of_chain[chain_id] = cluster_id

    def _headers(self, **values: Any) -> dict[str, Payload]:
        encode = self.cluster.payloads.encode
        return {name: encode(value) for name, value in values.items() if value is not None}

    def send(
        self,
        chain_id: UUID,
        number: int,
        kind: str,
        name: str,
        payload: Any,
        message_id: str | None,
        sender: Any,
        own_headers: Any,
    ) -> None:
        self._tell_time()
        person = None if sender is None else sender.as_dict()
        origin = {names.SENDER: person, names.HEADERS: own_headers}
        cluster_id = self._id_of_chain[chain_id]
        if kind == "signal" and self.storage.chains[chain_id].closed:
            self._answer(number, Outcome(status="undelivered", value=None))
        elif kind == "signal":
            headers = self._headers(**origin, **{names.MESSAGE_ID: message_id})
            try:
                self._signal(chain_id, name, payload, headers)
            except RPCError:
                self._answer(number, Outcome(status="undelivered", value=None))
        elif kind == "cancel":
            self._cancels.add(chain_id)
            try:
                self.cluster.call(self._handle(chain_id).cancel(reason=payload["reason"]))
            except RPCError:
                self._cancels.discard(chain_id)
        else:
            update = names.RESUME if kind == REQUEST else name
            self._updates[number] = (
                chain_id,
                self.cluster.submit(
                    self._send_update(cluster_id, update, payload, message_id, self._headers(**origin))
                ),
            )
            self.cluster.call(self._wait_until_admitted(cluster_id, message_id, self._updates[number][1]))

    def _signal(self, chain_id: UUID, name: str, payload: Any, headers: Any = None) -> None:
        request = SignalWorkflowInput(
            id=self._id_of_chain[chain_id],
            run_id=None,
            signal=name,
            args=[payload],
            headers=headers or {},
            rpc_metadata={},
            rpc_timeout=None,
        )
        self.cluster.call(self.cluster.client._impl.signal_workflow(request))
        self._sent[chain_id] += 1

    async def _wait_until_admitted(self, cluster_id: str, update_id: str | None, sent: Future[Any]) -> None:
        """Wait until the server has the update, so that the messages of a batch keep their order."""
        request = PollWorkflowExecutionUpdateRequest(
            namespace="default",
            update_ref=UpdateRef(
                workflow_execution=WorkflowExecution(workflow_id=cluster_id), update_id=update_id or ""
            ),
        )
        while not sent.done():
            try:
                await self.cluster.client.workflow_service.poll_workflow_execution_update(request)
            except RPCError:
                await asyncio.sleep(0.001)
            else:
                return

    async def _send_update(self, cluster_id: str, name: str, payload: Any, update_id: str, headers: Any) -> Outcome:
        request = StartWorkflowUpdateInput(
            id=cluster_id,
            run_id=None,
            first_execution_run_id=None,
            update_id=update_id,
            update=name,
            args=[payload],
            wait_for_stage=WorkflowUpdateStage.ACCEPTED,
            headers=headers,
            ret_type=None,
            rpc_metadata={},
            rpc_timeout=None,
        )
        try:
            handle = await self.cluster.client._impl.start_workflow_update(request)
            if handle._known_outcome is None:
                return Outcome(status="accepted", value=None)
            return Outcome(status="completed", value=await handle.result())
        except WorkflowUpdateFailedError as exc:
            details = getattr(exc.cause, "details", ())
            data = details[0]["temporalex"] if details and "temporalex" in details[0] else {"message": str(exc.cause)}
            return Outcome(status=FAULT if data.get("code") == "update_failed" else "rejected", value=data)
        except RPCError as exc:
            return Outcome(status="rejected", value=error_data(WorkflowClosed(f"the run is closed: {exc.message}")))

    def end_activity(self, activity: FinishedActivity) -> None:
        """End an activity on the server, with the result that the host has for it."""
        key = (str(activity.run_id), activity.attributes["seq"])
        if not self.batching:
            self._ensure_worker()
        self._tell_time()
        with self._progress:
            if not self._progress.wait_for(lambda: key in self._started, timeout=_LONGEST_WAIT):
                raise AssertionError(f"the server did not start the activity {key}")
        cluster_id, seq = self._id_of_chain[activity.chain_id], str(activity.attributes["seq"])
        handle = self.cluster.client.get_async_activity_handle(
            workflow_id=cluster_id, run_id=str(activity.run_id), activity_id=seq
        )
        attributes = {name: value for name, value in activity.attributes.items() if name != "seq"}
        try:
            if activity.kind == "ActivityCompleted":
                metadata = {"attempts": str(attributes["attempts"]).encode()} if "attempts" in attributes else {}
                payload = self.cluster.payloads.encode(attributes["result"], **metadata)
                self.cluster.call(handle.complete(_raw(payload)))
            else:
                self.cluster.call(handle.fail(_failure(activity.kind, attributes)))
        except RPCError:
            return  # the run no longer waits for it
        self._ended.add((activity.run_id, activity.attributes["seq"]))

    def _close_run(self, run: RunState, status: str, reason: str) -> None:
        chain_id = run.chain_id
        handle = self._handle(chain_id)
        self._tell_time()
        if status == "cancelled":
            self._cancels.add(chain_id)
            self.cluster.call(handle.cancel(reason=reason))
        else:
            self.cluster.call(handle.terminate(reason))
            self._mirror_termination(chain_id, reason)

    def _mirror_termination(self, chain_id: UUID, reason: str) -> None:
        run = replace(self.storage.chains[chain_id])
        record = self.storage.run_records([run.run_id])[run.run_id]
        run.length = len(self.storage.runs[run.run_id].events)
        write = run_closing.terminate(run, reason=reason, now=self.clock, record=record)
        self.storage._write_run(write)
        self.errors.pop(run.run_id, None)

    # -- from the server ----------------------------------------------------------------------------------------------

    @property
    def _tasks(self) -> TaskStorage:
        return self.storage  # type: ignore[return-value]

    def _attempt_savepoint(self, task: TaskState) -> AbstractContextManager[None]:
        return self.storage.savepoint() if task.atomic else nullcontext()

    def _forget_runs(self) -> None:
        self._stop_worker()

    def _wake_blocked(self) -> None:
        """Wait until the server tries the tasks of blocked runs again."""
        self._ensure_worker()
        for chain_id in [chain_id for chain_id in self.storage.chains if self._is_blocked(chain_id)]:
            run_id, deadline = self.storage.chains[chain_id].run_id, time.monotonic() + 4 * TASK_TIMEOUT.total_seconds()
            report = self._latest[run_id]
            while self._latest[run_id] is report and time.monotonic() < deadline:
                with self._progress:
                    self._progress.wait_for(lambda: not self._reports.empty(), timeout=0.1)
                while not self._reports.empty():
                    self._mirror(self._reports.get())

    def evict_run(self, run_id: UUID) -> None:
        del run_id
        self._stop_worker()
        self._drive()

    def _run_turn(self) -> TurnReport | None:
        self._tell_time()  # before there is a worker: it must not take the messages of a batch without the time
        if not self.batching:
            self._ensure_worker()
        self._unexpected: list[Exception] = []
        count = self._settle()
        return TurnReport(run_count=count, unexpected_errors=self._unexpected)

    def _tell_time(self) -> None:
        """Tell open runs the time, and which of their timers fire."""
        for chain_id, state in list(self.storage.chains.items()):
            due_at = state.due_at
            if state.closed or (self._told.get(chain_id) == self.clock and (due_at is None or due_at > self.clock)):
                continue
            report = self._latest.get(state.run_id)
            timers = [] if report is None or report.error else report.run.executor.due_timers(self.clock)
            if report is not None and report.error is not None and self._told.get(chain_id) == self.clock:
                continue
            self._told[chain_id] = self.clock
            fire = [number for _, number in timers]
            try:
                self._signal(chain_id, CLOCK, {"now": self.clock.isoformat(), "fire": fire})
            except RPCError:
                continue

    def _settle(self) -> int:
        """Wait until the server has no work for the runs, and return the number of activations."""
        count, began = 0, time.monotonic()
        deadline, looked = began + _LONGEST_WAIT, began
        while True:
            if self.is_dead and self._dead is None:
                self._bury()
                deadline += 3 * TASK_TIMEOUT.total_seconds()
            while not self._reports.empty():
                count += self._mirror(self._reports.get())
            if time.monotonic() - looked > _LOOK_AGAIN:
                looked = time.monotonic()
                self._mirror_terminations()
            missing = self._missing()
            if missing is None:
                if self._reports.empty():
                    return count
                continue
            with self._progress:
                if self._reports.empty():
                    self._progress.wait(0.02)
            if time.monotonic() > deadline:
                raise AssertionError(f"the server has not settled: {missing}")

    def _mirror_terminations(self) -> None:
        """Find the runs that the server has terminated, which no activation shows."""
        for chain_id, state in list(self.storage.chains.items()):
            if not state.closed:
                description = self.cluster.call(self._handle(chain_id).describe())
                if description.status == WorkflowExecutionStatus.TERMINATED:
                    self._mirror_termination(chain_id, PARENT_CLOSED["reason"])

    def _missing(self) -> str | None:
        """What has still to happen on the server, or None."""
        self._expect_cancels()
        for number, (chain_id, future) in list(self._updates.items()):
            if future.done():
                del self._updates[number]
                self._settle_update(chain_id, number, future.result())
            elif not self._is_blocked(chain_id):
                return f"update {number}"
        expected = self._expected_signals()
        for chain_id, state in self.storage.chains.items():
            report = self._latest.get(state.run_id)
            if state.closed or self._is_blocked(chain_id):
                continue
            if report is None:
                return f"first activation of {self._id_of_chain[chain_id]}"
            runs = [r for run in self.storage.run_ids[chain_id] if (r := self._latest.get(run)) is not None]
            seen = sum(r.signals for r in runs)
            if seen < expected[chain_id]:
                return f"signals of {report.workflow_id}: {seen} of {expected[chain_id]}"
            if chain_id in self._cancels and not any(r.cancelled for r in runs):
                return f"cancel of {report.workflow_id}"
            if report.rest:
                return f"{report.rest} signals that wait in {report.workflow_id}"
            if report.externals:
                return f"messages of {report.workflow_id}"
            if (problem := self._missing_child(report)) is not None:
                return problem
            ended = {seq for run_id, seq in self._ended if run_id == state.run_id}
            if ended and (left := ended - self._ended_seqs(report)):
                return f"results {left} of {report.workflow_id}"
        for task in self.storage.open_tasks.values():
            is_open = task.chain_id is not None and not self._is_blocked(task.chain_id)
            if is_open and (str(task.run_id), task.seq) not in self._started:
                return f"start of the activity {task.seq} of {task.workflow_id}"
        return self._missing_close()

    def _is_blocked(self, chain_id: UUID) -> bool:
        report = self._latest.get(self.storage.chains[chain_id].run_id)
        return report is not None and report.error is not None

    def _expected_signals(self) -> defaultdict[UUID, int]:
        expected = defaultdict(int, self._sent)
        for report in self._latest.values():
            delivered = {
                seq for e in report.events if e.kind == "ActivationStarted" for seq in e.attributes.get("delivered", ())
            }
            for event in report.events:
                if event.kind == "ExternalSignalSent" and event.attributes["seq"] in delivered:
                    target = self._chain_of_id.get(self.cluster_id(event.attributes["id"]))
                    if target is not None:
                        expected[target] += 1
        return expected

    def _expect_cancels(self) -> None:
        """Note the cancel requests that runs have sent to others, and to their children."""
        for report in self._latest.values():
            for event in report.events:
                if event.kind != "ExternalCancelSent" or (report.run_id, event.number) in self._seen_cancels:
                    continue
                target = self._chain_of_id.get(self.cluster_id(event.attributes["id"]))
                is_sent = "child" in event.attributes or event.attributes["seq"] not in report.externals
                if target is not None and is_sent:
                    self._seen_cancels.add((report.run_id, event.number))
                    if not self.storage.chains[target].closed:
                        self._cancels.add(target)

    def _missing_child(self, report: RunReport) -> str | None:
        for event in report.events:
            if event.kind != "ChildStarted" or event.attributes["seq"] not in report.children:
                continue
            cluster_id = self.cluster_id(event.attributes["id"])
            chain_id = self._chain_of_id.get(cluster_id)
            if chain_id is None:
                return f"child {cluster_id}"
            facts = self.storage.runs[self.storage.run_ids[chain_id][0]].facts
            if (facts.parent_run, facts.parent_seq) != (UUID(report.run_id), event.attributes["seq"]):
                return f"start of the child {cluster_id}"
            if self.storage.chains[chain_id].closed and self._children_of.get(cluster_id, (None, None))[:2] == (
                UUID(report.run_id),
                event.attributes["seq"],
            ):
                return f"result of child {cluster_id}"
        return None

    def _missing_close(self) -> str | None:
        """What the server has still to do with runs that closed: their next runs, and their children."""
        for chain_id, state in self.storage.chains.items():
            row = self.storage.runs[state.run_id]
            if row.status == "continued_as_new":
                return f"next run of {self._id_of_chain[chain_id]}"
        for cluster_id, (parent, _, attributes) in self._children_of.items():
            chain_id = self._chain_of_id.get(cluster_id)
            if chain_id is None or self.storage.chains[chain_id].closed or parent not in self.storage.runs:
                continue
            if self.storage.runs[self.storage.run_ids[chain_id][0]].facts.parent_run != parent:
                continue  # the id was taken, so the child was never started
            if self.storage.runs[parent].status not in CLOSED_STATUSES:
                continue
            policy = attributes["parent_close"]
            if policy == "terminate":
                description = self.cluster.call(self._handle(chain_id).describe())
                if description.status == WorkflowExecutionStatus.RUNNING:
                    return f"termination of {cluster_id}"
                self._mirror_termination(chain_id, PARENT_CLOSED["reason"])
                return f"termination of {cluster_id} is mirrored"
            if policy == "request_cancel" and chain_id not in self._cancels:
                self._cancels.add(chain_id)
                return f"cancel of {cluster_id}"
        return None

    def _settle_update(self, chain_id: UUID, number: int, outcome: Outcome) -> None:
        row = self.storage.messages.get(number)
        if row is not None and row.outcome is None:
            self._answer(number, outcome)


def _raw(payload: Payload) -> Any:
    from temporalio.common import RawValue

    return RawValue(payload)


def _failure(kind: str, attributes: dict[str, Any]) -> FailureError:
    """The error of the SDK for an activity that has failed or timed out for good by the clock of the host."""
    if kind == "ActivityFailed":
        return ApplicationError(
            attributes["message"] or "", failure_details(attributes), type=attributes["type"], non_retryable=True
        )
    error = SdkTimeoutError(
        attributes["message"], type=TimeoutType[attributes["timeout"].upper()], last_heartbeat_details=[]
    )
    earlier = {"type": "Earlier", "message": "", "attempts": attributes["attempts"] - 1}
    if attributes["attempts"] > 1:
        error.__cause__ = ApplicationError("an earlier attempt", failure_details(earlier), type="Earlier")
    return error
