"""What the two test environments share: driving runs until every unit is blocked, a virtual clock, stand-ins for activities."""

from __future__ import annotations

import asyncio
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast, overload
from uuid import UUID

from temporalex_django.authoring import activity as activities_of
from temporalex_django.authoring.activity import Activity
from temporalex_django.authoring.facade import Startable
from temporalex_django.authoring.people import Person, person, require, sender
from temporalex_django.authoring.typed import R, Runs
from temporalex_django.authoring.unique import check_id
from temporalex_django.authoring.workflow import Workflow, code_of, defined_so_far, newest
from temporalex_django.core import payloads, places
from temporalex_django.core.commands import Command
from temporalex_django.core.durations import wait_seconds
from temporalex_django.core.events import CLOSED_STATUSES, HistoryEvent
from temporalex_django.core.failures import ReturnedErr
from temporalex_django.core.names import check_name
from temporalex_django.core.replaying import replay
from temporalex_django.core.senders import Sender
from temporalex_django.errors import InvalidId, TemporalexError, WorkflowNotFound
from temporalex_django.graph.activities import activity_of
from temporalex_django.graph.projection import Projections
from temporalex_django.graph.steps import Step, StepRef
from temporalex_django.runtime import activities
from temporalex_django.runtime.activity_context import ActivityContext, running
from temporalex_django.runtime.memory import MemoryRun
from temporalex_django.runtime.room import Room
from temporalex_django.runtime.storage import Outcome, Refused, TaskResult, TaskState
from temporalex_django.runtime.turn import Engine, TurnReport
from temporalex_django.testing import created
from temporalex_django.testing.handles import EnvironmentHandle

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_ALL_TIMEOUTS = ("schedule_to_start", "start_to_close", "heartbeat", "schedule_to_close")
_TURN = 1000
#: A test whose runs keep each other busy for ever is stopped here.
_MOST_TURNS = 100_000
OWNER = 1


#: Where ``crash_at`` lets a worker die.
CRASH_POINTS = ("before_turn", "after_turn", "before_activity", "after_activity", "after_result")


class _Crash(BaseException):
    """A worker dies in the middle of a transaction."""


class Environment(ABC):
    """Not used by itself: ``WorkflowEnvironment`` (memory) and ``DjangoEnvironment`` (database) say where runs live."""

    engine: Engine
    clock: datetime

    def __init__(self) -> None:
        #: One list of commands per recorded activation, in running order over all runs.
        self.commands: list[list[Command]] = []
        self._stand_ins: dict[str, Callable[..., Any]] = {}
        self._holding: set[str] = set()
        self._beats: dict[tuple[int, int, int], Any] = {}  # of the attempt that is running
        self._held: list[TaskState] = []
        self._batch: list[Callable[[], None]] | None = None
        self._seeds = random.Random(0)  # noqa: S311 - the same test draws the same numbers each time
        self._made_ids = 0
        self.projections = Projections(lambda run, after: self.row(run).events[after:])
        self._classes: dict[UUID, tuple[type[Workflow], int]] = {}
        self.errors: dict[UUID, BaseException] = {}  # of blocked runs
        self.refused: list[Refused] = []  # signals that the permission of a handler kept out
        self.crashes: list[str] = []  # points at which a worker died, see ``crash_at``
        self._crash_points: dict[str, int] = {}
        for listener in created.listeners:
            listener(self)

    # -- where runs live ----------------------------------------------------------------------------------------------

    @abstractmethod
    def _insert(self, cls: type[Workflow], workflow_id: str, args: Any, seed: int) -> UUID:
        """Store a new chain, due now; its id. Raises ``AlreadyRunning``."""

    @abstractmethod
    def _chain_of(self, ref: str, workflow: str | None = None) -> UUID | None:
        """The chain that an id means, of one workflow if it is named. Raises ``AmbiguousId``."""

    @abstractmethod
    def run_ids(self, chain_id: UUID) -> list[UUID]: ...

    @abstractmethod
    def row(self, run_id: UUID) -> MemoryRun: ...

    @abstractmethod
    def _send(
        self, chain_id: UUID, kind: str, name: str, body: Any, dedupe: str | None, sender: Sender | None
    ) -> int: ...

    @abstractmethod
    def outcome(self, message_id: int) -> Outcome | None: ...

    @abstractmethod
    def _close(self, chain_id: UUID, status: str, reason: str) -> None: ...

    @abstractmethod
    def _set_clock(self, now: datetime) -> None: ...

    @abstractmethod
    def _next_due(self) -> datetime | None:
        """The next time at which a run, a retry or a timeout is due."""

    @abstractmethod
    def _wake_blocked(self) -> None: ...

    def _make_revocable(self, *, revocable: bool) -> None:
        """Whether the next transaction may be rolled back by a crash; a database always can."""
        del revocable

    @abstractmethod
    def chain_ids(self) -> list[UUID]:
        """Of every chain that lives here, oldest first."""

    def _queues(self) -> Sequence[str]:
        return ()

    # -- runs ---------------------------------------------------------------------------------------------------------

    @overload
    def start(
        self,
        workflow: type[Runs[Any, R]],
        args: Any = None,
        id: str | None = None,
        value: str | None = None,
        version: int | None = None,
        *,
        by: Person | None = None,
    ) -> EnvironmentHandle[R]: ...
    @overload
    def start(
        self,
        workflow: type[Startable],
        args: Any = None,
        id: str | None = None,
        value: str | None = None,
        version: int | None = None,
        *,
        by: Person | None = None,
        **options: Any,
    ) -> EnvironmentHandle: ...
    def start(
        self,
        workflow: Any,
        args: Any = None,
        id: str | None = None,
        value: str | None = None,
        version: int | None = None,
        *,
        by: Person | None = None,
        **options: Any,
    ) -> EnvironmentHandle:
        """Start a run and drive it until every unit is blocked.

        Raises ``AlreadyRunning``, ``InvalidId``, ``UnknownVersion``, ``PayloadError``, ``ActionNotPermitted``.
        """
        require(by, "start", what="start")
        workflow = cast("type[Startable]", workflow).choose(version, options)
        if value is not None:
            if id is not None:
                raise InvalidId(f"{workflow.name}: give id= or value=, not both")
            if workflow.unique is None:
                raise InvalidId(f"{workflow.name} has no `unique`, so it takes an id, not a value")
            id = workflow.unique.run_id_for(value, self._suffix)  # noqa: A001 - the field's name
        if id is None:
            self._made_ids += 1
            id = f"{workflow.name}-{self._made_ids}"  # noqa: A001
        workflow_id = check_id(id)
        plain = payloads.plain(args, what=f"the input of {workflow.name}")
        chain_id = self._insert(workflow, workflow_id, plain, self._seeds.getrandbits(62))
        self._classes[chain_id] = workflow, defined_so_far()
        self._drive()
        return EnvironmentHandle(self, workflow_id, chain_id)

    def _suffix(self) -> str:
        return f"{self._seeds.getrandbits(32):08x}"

    def signal_with_start(
        self,
        workflow: type[Workflow],
        signal: str,
        payload: Any = None,
        args: Any = None,
        *,
        id: str,
        by: Person | None = None,
    ) -> EnvironmentHandle:
        """Send a signal to the open run of that id and class; start it first when there is none. The run sees both at once.

        Raises ``AlreadyRunning`` when a run of another class has the id, and what ``start`` raises.
        """
        by = person(by)
        plain = payloads.plain(payload, what=f"the payload of signal {check_name(signal, what='signal')!r}")
        chain_id = self._chain_of(check_id(id), workflow.name)
        if chain_id is not None:
            row = self.row(self.run_ids(chain_id)[-1])
            if row.status not in CLOSED_STATUSES and row.facts.workflow_id == id:
                self.send(chain_id, "signal", signal, plain, by=by)
                return EnvironmentHandle(self, id, chain_id)
        with nullcontext() if self._batch is not None else self.batch():
            handle = self.start(workflow, args, id=id, by=by)
            self.send(handle.chain_id, "signal", signal, plain, by=by)
        return handle

    def class_of(self, chain_id: UUID, name: str, version: int) -> type[Workflow]:
        """The class that was started, or one of its name that was defined since: tests define many of one name."""
        started, at = self._classes.get(chain_id, (None, 0))
        if started is None or started.name != name or (started.dispatched_by and started.version != version):
            return code_of(name, version)
        return newest(started, at)

    def handle(self, id: str, *, workflow: type[Startable] | None = None) -> EnvironmentHandle:
        """The handle of the run of that run id, else of the newest chain of that id; ``workflow`` narrows it to one class.

        Raises ``WorkflowNotFound``, and ``AmbiguousId`` for an id that several workflows used.
        """
        chain_id = self._chain_of(id, None if workflow is None else workflow.name)
        if chain_id is None:
            raise WorkflowNotFound(f"no run with the id {id!r} was started in this environment")
        return EnvironmentHandle(self, self.row(self.run_ids(chain_id)[-1]).facts.workflow_id, chain_id)

    def send(
        self,
        chain_id: UUID,
        kind: str,
        name: str,
        body: Any,
        dedupe: str | None = None,
        *,
        by: Person | None = None,
    ) -> int:
        """Put a message into an inbox and drive. The id of the message."""
        plain = payloads.plain(body, what=f"the payload of {kind} {name!r}")
        number = self._send(chain_id, kind, name, plain, dedupe, self._sender(by))
        self._drive()
        return number

    def _sender(self, by: Person | None) -> Sender | None:
        """What travels with a message of that person."""
        return sender(by)

    def close(self, chain_id: UUID, status: str, reason: str) -> None:
        """End a run at once: ``terminated``, or (a graph) ``cancelled``."""
        self._close(chain_id, status, reason)
        self._drive()

    @property
    def batching(self) -> bool:
        return self._batch is not None

    # -- time ---------------------------------------------------------------------------------------------------------

    def advance(self, duration: timedelta | float) -> None:
        """Skip time: each due time on the way is set in turn, and what it fires runs until blocked."""
        until = self.clock + timedelta(seconds=wait_seconds(duration, what="advance"))
        if self._batch is not None:
            self._move(until)
            return
        self._wake_blocked()
        self._drive()
        while (due := self._due_by(until)) is not None:
            self._move(max(due, self.clock))
            self._expire()
            self._drive()
        self._move(until)

    def _due_by(self, until: datetime) -> datetime | None:
        times = [self._next_due()]
        for task in self._held:
            passes = activities.first_timeout(task, _ALL_TIMEOUTS, started_at=task.started_at, beat_at=task.beat_at)
            times.append(passes[0] if passes else None)
        due = min((moment for moment in times if moment is not None), default=None)
        return due if due is not None and due <= until else None

    def _move(self, now: datetime) -> None:
        self.clock = now
        self._set_clock(now)

    def _expire(self) -> None:
        for task in list(self._held):
            passes = activities.first_timeout(task, _ALL_TIMEOUTS, started_at=task.started_at, beat_at=task.beat_at)
            if passes is not None and passes[0] <= self.clock:
                self._held.remove(task)
                self.engine.tasks.finish_tasks([activities.ended_by(task, passes[1], self.clock)])
        held = {task.id for task in self._held}
        for task in self.engine.tasks.expired_tasks(limit=_TURN):
            result = activities.timed_out(task, self.clock) if task.id not in held else None
            if result is not None:
                self.engine.tasks.finish_tasks([result])

    # -- activities ---------------------------------------------------------------------------------------------------

    def mock(self, activity: Activity[Any, Any] | StepRef, stand_in: Callable[..., Any]) -> None:
        """Run ``stand_in`` (plain or async, same arguments) instead of the activity, or of the steps of a class."""
        self._stand_ins[_name_of(activity)] = stand_in

    def hold(self, activity: Activity[Any, Any] | StepRef) -> None:
        """Leave every call of the activity open until ``complete`` or ``fail``."""
        self._holding.add(_name_of(activity))

    def complete(self, activity: Activity[Any, Any] | StepRef, value: Any = None) -> None:
        """End the oldest held call with a value, for good (a step's ``Err`` is not tried again). Raises ``LookupError`` when none is held."""
        self._resolve(activity, lambda task: self._completed(task, value))

    def fail(self, activity: Activity[Any, Any] | StepRef, error: BaseException) -> None:
        """End the oldest held call with an error, for good. Raises ``LookupError`` when none is held."""
        self._resolve(activity, lambda task: activities.failed(task, error, self.clock, final=True))

    def _completed(self, task: TaskState, value: Any) -> TaskResult:
        try:
            outgoing = activities_of.find(task.activity).outgoing(value, task.args, _Source(self, task))
        except ReturnedErr as exc:
            return activities.failed(task, exc, self.clock, final=True)
        return activities.completed(task, outgoing)

    def _resolve(self, activity: Activity[Any, Any] | StepRef, result: Callable[[TaskState], TaskResult]) -> None:
        name = _name_of(activity)
        for task in [task for task in self._held if task.activity == name]:
            ended = result(task)
            self._held.remove(task)
            if self.engine.tasks.finish_tasks([ended]):
                self._drive()
                return
        raise LookupError(f"no call of {name} is held: call env.hold(...) before it is scheduled")

    def perform(self, task: TaskState) -> Any:
        """Run an activity, or its stand-in, here and now."""
        activity = activities_of.find(task.activity)
        own, args, kwargs = activity.prepared(task.args, task.kwargs, _Source(self, task))
        fn = self._stand_ins.get(task.activity, own)

        def beat(details: Any) -> None:
            self._beats[task.id, task.attempt, OWNER] = details

        context = ActivityContext(
            attempt=task.attempt,
            idempotency_key=activities.idempotency_key(task),
            workflow_id=task.workflow_id,
            run_id=str(task.run_id),
            heartbeat_details=task.heartbeat_details,
            _beat=beat,
        )
        with places.nowhere(None), running(context):
            value = fn(*args, **kwargs)
            value = self._run_async(value) if asyncio.iscoroutine(value) else value
        return activity.outgoing(value, task.args, _Source(self, task))

    def instance(self, handle: EnvironmentHandle) -> Any:
        """The newest run of a graph as an instance of the pure engine, from its history."""
        row = self.row(self.run_ids(handle.chain_id)[-1])
        cls = self.class_of(handle.chain_id, row.facts.workflow, row.facts.version)
        return self.projections.of(row.facts.run_id, cls).instance

    def _run_async(self, coroutine: Any) -> Any:
        return _finished(coroutine)

    async def from_async(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """``call(*args, **options)`` for async code."""
        return call(*args, **options)

    def _spoils(self, error: BaseException) -> bool:
        """Whether what an external activity wrote before ``error`` must be undone for the test's transaction to go on."""
        del error
        return False

    def _attempt(self, task: TaskState) -> None:
        result: TaskResult | None = None
        failure: BaseException | None = None
        if self._crashes("before_activity"):
            self.engine.tasks.finish_tasks([self._lost(task)])
            return
        crashed = False
        try:
            with self.engine.storage.savepoint():
                try:
                    result = activities.completed(task, self.perform(task))
                except BaseException as exc:
                    if task.atomic or self._spoils(exc):
                        raise
                    failure = exc  # an external activity is no transaction: what it did before it failed stays
                if task.atomic and self._crashes("after_activity"):
                    raise _Crash  # its transaction is rolled back, with all that it wrote
        except _Crash:
            crashed = True
        except BaseException as exc:  # noqa: BLE001 - user code, as in a worker; its policy decides
            failure = exc
        if crashed or (not task.atomic and self._crashes("after_activity")):
            result = self._lost(task)
        elif failure is not None or result is None:
            assert failure is not None
            result = activities.failed(task, failure, self.clock, final=activities.hopeless(failure))
        if self._beats and not crashed:
            self.engine.tasks.heartbeat(self._beats)
        self._beats.clear()
        self.engine.tasks.finish_tasks([result])
        self._crashes("after_result")

    def _lost(self, task: TaskState) -> TaskResult:
        """The worker died. An atomic activity was a part of its transaction: nothing of it was, its attempt included."""
        if task.atomic:
            return TaskResult(task=task, retry_at=self.clock, count=False)
        return activities.lost(task, self.clock)

    # -- driving ------------------------------------------------------------------------------------------------------

    @contextmanager
    def batch(self) -> Iterator[None]:
        """What is done inside arrives in one activation, in that order, when the block ends."""
        if self._batch is not None:
            raise TemporalexError("env.batch() cannot be nested")
        self._batch = []
        try:
            yield
        finally:
            self._batch = None
        self._expire()
        self._drive()

    def _drive(self) -> None:
        if self._batch is not None:
            return
        for _ in range(_MOST_TURNS):
            report = self._turn()
            if report is None:
                continue  # it crashed
            self._note(report)
            if report.runs:
                self._crashes("after_turn")
                continue
            if not self._one_activity():
                return
        raise TemporalexError(f"still busy after {_MOST_TURNS:,} turns: is something starting itself over and over?")

    def _turn(self) -> TurnReport | None:
        """One turn; None when a crash point took it."""
        storage = self.engine.storage
        self._make_revocable(revocable="before_turn" in self._crash_points)
        try:
            with storage.transaction():
                report = self.engine.advance(limit=_TURN, queues=self._queues())
                if report.runs and self._crashes("before_turn"):
                    raise _Crash
        except _Crash:
            return None
        finally:
            self._make_revocable(revocable=False)
        return report

    def crash_at(self, point: str, times: int = 1) -> None:
        """Let the worker die at ``point``, the next ``times`` times it comes there, and another one take over.

        Points, in the order in which a worker passes them: ``before_turn`` (a turn is worked out and not committed: it is lost and
        done again), ``after_turn`` (committed), ``before_activity`` (an activity is taken and not begun), ``after_activity`` (it has
        run and its result is not committed: it runs again as the next attempt, or fails as WorkerLost where none is left; what an
        atomic one wrote is rolled back, and its attempt does not count),
        ``after_result`` (committed). Whatever lived in memory is gone each time. ``crashes`` lists those that happened. Raises
        ``ValueError`` for another point.
        """
        if point not in CRASH_POINTS:
            raise ValueError(f"crash_at({point!r}): the points are {', '.join(CRASH_POINTS)}")
        self._crash_points[point] = times

    def _crashes(self, point: str) -> bool:
        """Whether the worker dies here; its memory is gone then."""
        left = self._crash_points.get(point, 0)
        if not left:
            return False
        if left > 1:
            self._crash_points[point] = left - 1
        else:
            del self._crash_points[point]
        self.crashes.append(point)
        self.engine.cache.clear()
        return True

    def _note(self, report: TurnReport) -> None:
        for write in report.writes:
            self.refused += write.refused
            if write.commands is not None:
                self.commands.append(list(write.commands))
            if write.instance.get("blocked", 0) is None:
                self.errors.pop(write.run.run_id, None)
        self.errors.update(report.blocked)

    def _one_activity(self) -> bool:
        """Run the activity that is due first; its result is an activation of its own."""
        claim = self.engine.tasks.claim_tasks
        while tasks := claim(room=Room(threads=1), queues=self._queues(), owner=OWNER, atomic=True):
            tasks[0].started_at = self.clock
            if tasks[0].activity not in self._holding:
                self._attempt(tasks[0])
                return True
            self._held.append(tasks[0])
        return False

    # -- replay -------------------------------------------------------------------------------------------------------

    def replay(self, handle: EnvironmentHandle) -> None:
        """Rebuild every run of the handle from its history. Raises ``NondeterminismError``."""
        for run_id in self.run_ids(handle.chain_id):
            row = self.row(run_id)
            facts = row.facts
            replay(self.class_of(handle.chain_id, facts.workflow, facts.version).definition, row.events)

    def replay_all(self) -> None:
        """``replay`` of every run that lives here. Raises ``NondeterminismError`` for the first that does not fit."""
        for chain_id in self.chain_ids():
            self.replay(EnvironmentHandle(self, "", chain_id))

    def replay_history(self, workflow: type[Workflow], history: Sequence[HistoryEvent]) -> None:
        """Run ``workflow`` against a history. Raises ``NondeterminismError``."""
        replay(workflow.definition, history)


@dataclass(frozen=True, slots=True)
class _Source:
    """``authoring.activity.Source`` of an attempt in an environment."""

    env: Environment
    task: TaskState

    def workflow(self, version: int) -> Any:
        return self.env.class_of(self.task.chain_id, self.task.workflow, version)

    def instance(self, version: int) -> Any:
        return self.env.projections.of(self.task.run_id, self.workflow(version)).begun[self.task.seq]


def _name_of(activity: Activity[Any, Any] | StepRef) -> str:
    """An activity's, or that of the activity that runs a step."""
    is_step = isinstance(activity, (Step, type))
    return activity_of(activity).name if is_step else activity.name  # type: ignore[arg-type,union-attr] # by is_step


def _finished(coroutine: Any) -> Any:
    """The value of an async activity, also where an event loop is running already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    box: list[Any] = []

    def run() -> None:
        try:
            box.append((asyncio.run(coroutine), None))
        except BaseException as exc:  # noqa: BLE001 - handed to the thread that waits
            box.append((None, exc))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    value, error = box[0]
    if error is not None:
        raise error
    return value
