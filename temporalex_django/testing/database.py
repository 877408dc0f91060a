"""``DjangoEnvironment``, which runs workflows in the test's own transaction, and ``drain``, for committed data."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import fields
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar, cast
from uuid import UUID

from asgiref.sync import async_to_sync, sync_to_async
from django.db import DatabaseError, connections
from django.db.backends.base.creation import TEST_DATABASE_PREFIX

from temporalex_django.authoring import activity as activities_of
from temporalex_django.authoring import django_tasks
from temporalex_django.authoring.authorization import Person, has_permission, is_authorized
from temporalex_django.authoring.backend import FailedMessage
from temporalex_django.authoring.declared_messages import read_answer
from temporalex_django.authoring.handle import WorkflowHandle
from temporalex_django.authoring.human_tasks import OpenHumanTask
from temporalex_django.authoring.requests import RunAddress, RunRequest, StartRequest, inputs
from temporalex_django.authoring.schedules.schedule import Schedule
from temporalex_django.authoring.start_api import Startable
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.backends.host import OperationHost, use_host
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.client import READS, DatabaseBackend, build_action
from temporalex_django.conf import get_settings
from temporalex_django.core.failures import error_line, is_error
from temporalex_django.core.messages.sender import Judge
from temporalex_django.db import background_hooks
from temporalex_django.db.atomic_activities import send_activity_signal as attempt_announced
from temporalex_django.db.attempt_scope import call_in_scope
from temporalex_django.db.claims.limited import Switches
from temporalex_django.db.human_tasks import DatabaseJudge
from temporalex_django.db.inserts import (
    message_outcome,
    update_outcome,
)
from temporalex_django.db.messages.notify import send_turn_signals
from temporalex_django.engine import activity_policy
from temporalex_django.engine.contracts.records import Inbox, Outcome, TaskResult, TaskState
from temporalex_django.engine.memory.tables import RunRow, start_labels
from temporalex_django.engine.schedules import SlotRecord
from temporalex_django.engine.turn import WorkflowEngine
from temporalex_django.engine.turn_report import ClaimedRuns, TurnReport
from temporalex_django.errors import (
    AlreadyRunning,
    NotConfigured,
    ScheduleNotFound,
    TemporalexError,
    UpdateTimeout,
    WorkflowNotFound,
    WorkflowSwitchedOff,
)
from temporalex_django.liveness.leases import wake_switched_on
from temporalex_django.models import Chain, Instance, ScheduleSlot
from temporalex_django.models import Schedule as ScheduleRow
from temporalex_django.operations.base import Action
from temporalex_django.operations.human_tasks import inbox
from temporalex_django.operations.read import describe
from temporalex_django.operations.run_lookup import find_run
from temporalex_django.operations.runs.update import SendUpdate
from temporalex_django.operations.schedules.fire import fire_due
from temporalex_django.operations.schedules.operations import PauseSchedule, TriggerSchedule, UnpauseSchedule
from temporalex_django.operations.schedules.store import slot_of
from temporalex_django.operations.schedules.sync import put_declaration, sync_schedules
from temporalex_django.testing.engine_environment import TURN_LIMIT, EngineEnvironment
from temporalex_django.testing.environment_base import EPOCH, EnvironmentHandle, EnvironmentUpdate
from temporalex_django.testing.environment_host import (
    EnvironmentStorage,
    HandleHost,
    commit_point,
    has_open_transaction,
    hide_savepoint,
    is_entered,
    run_application,
)
from temporalex_django.testing.pending_work import PendingWork, read_pending_work
from temporalex_django.testing.schedules import EnvironmentSchedules
from temporalex_django.workers.attempts import announce_result, notify_safely
from temporalex_django.workers.loop import run_until_idle

#: Columns that ``RunRow`` has under the name of the model.
_COLUMNS = {field.name for field in fields(RunRow)} & {field.name for field in Instance._meta.concrete_fields}  # noqa: SLF001 - public, in spite of its name


def drain(timeout: float | None = 20.0, *, schedules: bool = False) -> int:
    """Run turns, activities and due timers on committed data, in this thread, until nothing is due.

    Schedules that are due are fired as well. ``schedules`` creates and updates the rows of those declared in code
    first, which a migration of a test database does not do.

    Return the number of turns of runs. It commits. Raises ``TimeoutError`` when there is still work after ``timeout``
    seconds.
    """
    if schedules:
        sync_schedules(get_settings().DATABASE)
    return run_until_idle(timeout=timeout)


async def _await(coroutine: Any) -> Any:
    return await coroutine


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _check_test_database(allow_database: str | None) -> None:
    """Raise ``NotConfigured`` unless runs are stored in a test database, or in the database with that name."""
    database = connections[get_settings().DATABASE].settings_dict
    name, test_name = str(database["NAME"]), database["TEST"]["NAME"]
    is_test = (
        name in (str(test_name), allow_database)
        or Path(name).name.startswith(TEST_DATABASE_PREFIX)
        or ":memory:" in name
        or "mode=memory" in name
        or (test_name is not None and _is_clone(name, str(test_name)))
    )
    if not is_test:
        raise NotConfigured(
            f"DjangoEnvironment works on test databases only, and {name} is not one: the environment would execute the "
            "runs that are stored there. In a test, use the fixture django_environment, a TestCase of Django, or the "
            f"fixture db. Elsewhere, name the database: DjangoEnvironment(allow_database={name!r})"
        )


def _is_clone(name: str, test_name: str) -> bool:
    """Return True if Django's or pytest-xdist's parallel processes name a copy of the test database like this."""
    stem, suffix = (Path(test_name).stem, Path(test_name).suffix) if "/" in test_name else (test_name, "")
    return Path(name).name.startswith(f"{Path(stem).name}_") and name.endswith(suffix)


class DjangoEnvironment(EngineEnvironment):
    """A test environment that runs workflows on the test's database, in its transaction, with a virtual clock.

    It works in a plain ``TestCase``. Activities run at once, and each result is delivered in an activation of its own,
    as in ``WorkflowEnvironment``. After each commit of a worker, Django signals are sent and ``on_commit`` callbacks
    are called.

    Enter the environment (``with``, or ``self.enterContext(DjangoEnvironment())`` in ``setUp``) to run the application
    on it. Runs that views and signal receivers start and message then belong to the environment.
    ``django.utils.timezone.now`` returns its clock, which starts at ``now`` (aware; by default 2026-01-01T00:00Z).
    ``evict=True`` rebuilds each run from its history before every activation.

    Raises ``NotConfigured`` if the database is not a test database, because the environment would execute the runs that
    are stored there. ``allow_database`` is the ``NAME`` of another database that it may use.
    """

    def __init__(self, *, evict: bool = False, now: datetime | None = None, allow_database: str | None = None) -> None:
        _check_test_database(allow_database)
        super().__init__()
        self._exit_stack = ExitStack()
        self._has_worker = False
        self._switches = Switches()
        self._pending_work: PendingWork | None = None
        self._runs: dict[UUID, bool] = {}  # the chains for the next turn; True: it has messages
        self.clock = EPOCH if now is None else now
        self.storage = EnvironmentStorage(clock=self.now)
        self.backend = backend = EnvironmentBackend(self)
        self.schedules = DatabaseSchedules(self, backend.host)
        # An activation takes the whole inbox, so that tests do not depend on the size of a page.
        self.storage.inbox_page = 1_000_000
        self.engine = WorkflowEngine(
            self.storage,
            self.storage,
            cache_size=0 if evict else 1_000_000,
            inline_atomic=False,
            perform=self._perform_atomic,
            resolve=self._class_to_run,
            strict_replay=get_settings().STRICT_REPLAY,
            budgeted=False,
            make_judge=self._judges,
            unexpected_error=get_settings().UNEXPECTED_ERROR,
        )

    def __enter__(self) -> Self:
        """Run the application on this environment: its runs live here, and its clock is the virtual one.

        Raises ``TemporalexError`` where another environment is entered.
        """
        self._exit_stack.enter_context(run_application(self))
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._exit_stack.close()

    @contextmanager
    def worker(self) -> Iterator[None]:
        """Return a context manager that runs a worker in a thread, on committed data, for tests with a live server.

        The worker does work as it becomes due. Time passes by ``advance`` alone. Raises ``TemporalexError`` inside a
        transaction, and for an SQLite database in memory.
        """
        with live_worker(self):
            self._has_worker = True
            try:
                yield
            finally:
                self._has_worker = False

    def _skip(self, duration: timedelta, *, idle: bool = False) -> None:
        # The driver of a browser may run an event loop in the thread of the test, where Django refuses queries.
        if self._has_worker and _has_running_loop():
            call_in_thread(partial(super()._skip, duration, idle=idle))
        else:
            super()._skip(duration, idle=idle)

    def _forget_pending(self) -> None:
        self._pending_work = None

    def _pending(self) -> PendingWork:
        """Return the work that waits. It is read again when something may have been written since the last time."""
        if self._pending_work is None:
            self._pending_work = self._read_pending()
        return self._pending_work

    def _read_pending(self, *, blocked: bool = False) -> PendingWork:
        """Read the work that waits, and wake runs whose class was switched on again.

        ``blocked`` asks also if there are blocked runs.
        """
        held_ids = [task.id for task in self._held_tasks]
        read = partial(read_pending_work, self.storage, held_ids=held_ids, blocked=blocked)
        pending = read(now=self.clock, switches=self._switches)
        # Runs that waited for a switch are woken once, when it changes, as recovery does in a worker.
        while pending.switches != self._switches:
            self._switches = pending.switches
            self.storage.switched_off = self._switches.activities
            wake_switched_on(self.storage, self._switches.workflows)
            pending = read(now=self.clock, switches=self._switches)
        return pending

    def _held_until(self, task: TaskState) -> datetime | None:
        until = None
        if self._switches.holds and not task.atomic:
            until = self._switches.held_until(task.queue, task.options.get("concurrency_key"))
        return until if until is not None and until > self.clock else None

    def _run_bulk_jobs(self) -> bool:
        """Work on bulk jobs if the environment is entered, because the jobs belong to the application."""
        if not is_entered(self) or not background_hooks.has_work(self.storage.alias):
            return False
        self._forget_pending()
        return background_hooks.run_hooks(self.storage.alias)

    def _class_to_run(self, chain_id: UUID, name: str, version: int) -> type[Workflow]:
        """Return the class with which a run continues.

        Raises ``WorkflowSwitchedOff`` if an operator switched it off.
        """
        if name in self._switches.workflows:
            raise WorkflowSwitchedOff(f"{name} is switched off")
        return self.class_of(chain_id, name, version)

    def _judges(self) -> Judge:
        """Return a function that decides in one turn whether a sender has a permission.

        It asks the database about stored users, and any other user itself. Its arguments are the key of the sender, the
        permission and the name of the message.
        """
        database_judge = DatabaseJudge(self.storage.alias)

        def judge(key: str, permission: str, message: str) -> bool:
            user = self._people.get(key)
            if user is None or hasattr(user, "pk"):
                return database_judge(key, permission, message)
            return is_authorized(user, permission, permits=has_permission)

        return judge

    def run_ids(self, chain_id: UUID) -> list[UUID]:
        runs = Instance.objects.using(self.storage.alias).filter(chain_id=chain_id).order_by("id")
        return list(runs.values_list("pk", flat=True))

    def row(self, run_id: UUID) -> RunRow:
        run = self._run(run_id)
        columns = {name: value for name in _COLUMNS if (value := getattr(run, name)) is not None}
        columns |= {"published": run.published_state, "closing": run.closing_value}
        return RunRow(
            facts=self.storage.run_records([run_id])[run_id],
            labels=start_labels(run),
            events=self.storage.histories({run_id: 0}).get(run_id, []),
            **columns,
        )

    def _run(self, run_id: UUID) -> Instance:
        return Instance.objects.using(self.storage.alias).get(pk=run_id)

    def outcome(self, message_id: int) -> Outcome | None:
        return message_outcome(message_id, storage=self.storage)

    def update_outcome(self, chain_id: UUID, update_id: str) -> Outcome | None:
        return update_outcome(chain_id, update_id, storage=self.storage)

    def human_tasks(self, run_id: UUID, *, by: Person | None = None) -> list[OpenHumanTask]:
        tasks = inbox.all_tasks_of_run(run_id)
        return [inbox.to_open_human_task(task) for task in tasks if by is None or inbox.may_view(by, task)]

    def _failed_messages(self, chain_id: UUID) -> list[FailedMessage]:
        return describe.failed_messages_of(chain_id, storage=self.storage)

    def inbox(self, user: Person) -> list[OpenHumanTask]:
        return [inbox.to_open_human_task(task) for task in inbox.inbox(user, now=self.clock)]

    async def from_async(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return await sync_to_async(call)(*args, **options)

    def _run_async(self, coroutine: Any) -> Any:
        """Run the coroutine of an async activity and return its value.

        Its ORM calls use this thread, which has the test's own connection.
        """
        return async_to_sync(_await)(coroutine) if not _has_running_loop() else super()._run_async(coroutine)

    def _call_in_scope(self, task: TaskState, call: Callable[[], Any]) -> Any:
        return call_in_scope(task.activity, call, atomic=task.atomic)

    def _perform_atomic(self, task: TaskState) -> TaskResult:
        """Run an atomic activity in a transaction of the application, whose update awaits it; a held call waits."""
        if task.activity in self._held_activities:
            return TaskResult(task=task, retry_at=self.clock, count=False)
        self._announce_attempt(task)
        return activity_policy.completed_result(task, self.perform(task), activity=activities_of.find(task.activity))

    def _commit_point(self) -> AbstractContextManager[None]:
        return commit_point(self.storage.alias)

    @contextmanager
    def _attempt_savepoint(self, task: TaskState) -> Iterator[None]:
        with self.storage.savepoint():
            # An external activity runs outside of a transaction in a worker: on_commit and nested blocks must act the
            # same here.
            if not task.atomic:
                hide_savepoint(self.storage.alias)
            yield

    def _announce(self, report: TurnReport) -> None:
        self._after_commit(partial(send_turn_signals, report))

    def _announce_attempt(self, task: TaskState, result: TaskResult | None = None) -> None:
        if result is None and task.chain_id is None:
            notify_safely(lambda: django_tasks.host().notify_started(task))
        elif result is None:
            attempt_announced("activity_started", task, attempt=task.attempt)
        else:
            self._after_commit(partial(announce_result, result))

    def _after_commit(self, callback: Callable[[], None]) -> None:
        """Call the callback now, or after the commit of a transaction that the test itself has opened."""
        if has_open_transaction(self.storage.alias):
            self.storage.on_commit(callback)
        else:
            callback()

    def _breaks_transaction(self, error: BaseException) -> bool:
        return is_error(error, DatabaseError)

    def _set_clock(self, now: datetime) -> None:
        """Do nothing, because the storage of this environment reads the attribute ``clock`` itself."""

    def _next_due(self) -> datetime | None:
        # Work that is switched off is not run, so ``advance`` must not stop at its due time for ever.
        return self._pending().next_due()

    def has_schedules(self) -> bool:
        """Return True if the database has any schedules."""
        return self._pending().has_schedules

    def _wake_blocked(self) -> None:
        self._pending_work = self._read_pending(blocked=True)
        if self._pending_work.has_blocked_runs:
            blocked_chains = Chain.objects.using(self.storage.alias).filter(failed_tries__gt=0, closed=False)
            blocked_chains.update(due_at=self.clock)
            self._forget_pending()

    def _run_turn(self) -> TurnReport | None:
        if self._finished is None:
            self._runs = self._pending().runs(self.clock)
            if not self._runs:
                return TurnReport()
        else:
            self._runs = {}
        try:
            return super()._run_turn()
        finally:
            self._forget_pending()

    def _claim_runs(self, chains: Collection[UUID]) -> ClaimedRuns:
        # A run that was read without messages does not need its inbox read.
        runs = dict.fromkeys(chains, True) or self._runs
        names = [chain for chain in runs if not self.storage.is_deferred(chain)][:TURN_LIMIT]
        if not names:
            return ClaimedRuns()
        order = {chain: number for number, chain in enumerate(names)}
        states = self.storage.claim(limit=TURN_LIMIT, queues=(), chains=names)
        return ClaimedRuns(
            sorted(states, key=lambda state: order[state.chain_id]),
            inbox=lambda chain_ids: {chain: Inbox() for chain in chain_ids if not runs[chain]},
        )

    def _run_next_activity(self) -> bool:
        if not self._queues():
            return False
        try:
            return super()._run_next_activity()
        finally:
            self._forget_pending()

    def _expired_tasks(self) -> list[TaskState]:
        expiry = self._pending().next_expiry
        return super()._expired_tasks() if expiry is not None and expiry <= self.clock else []

    def _queues(self) -> Sequence[str]:
        pending = self._pending()
        self.storage.priority_queues = pending.priority_queues
        return pending.activity_queues(self.clock)

    def chain_ids(self) -> list[UUID]:
        return list(Chain.objects.using(self.storage.alias).order_by("pk").values_list("pk", flat=True))


# --- database backend -------------------------------------------------------------------------------------------------
#
# The backend of ``DjangoEnvironment``: it performs production's operations, with the environment as the worker.


T = TypeVar("T")


class EnvironmentBackend(DatabaseBackend):
    """The backend of a ``DjangoEnvironment``: it performs production's operations on the database of the test.

    Before a call returns, the environment does the turns and activities that the call makes due.
    """

    def __init__(self, env: DjangoEnvironment) -> None:
        self._env = env
        self.host = HandleHost(env)

    def __reduce__(self) -> Any:
        raise TypeError("the handle of an environment cannot be copied or pickled: its runs live in the environment")

    def start(self, request: StartRequest) -> EnvironmentHandle[Any]:
        env = self._env
        env.remember_person(request.by)
        with use_host(self.host):
            handle = cast("EnvironmentHandle[Any]", super().start(request))
        env.remember_class(handle.chain_id, request.workflow)
        env.work()
        return handle

    def start_many(self, requests: Sequence[StartRequest]) -> list[WorkflowHandle[Any] | AlreadyRunning]:
        env = self._env
        for request in requests:
            env.remember_person(request.by)
        with use_host(self.host):
            results = super().start_many(requests)
        for request, result in zip(requests, results, strict=True):
            if not isinstance(result, AlreadyRunning):
                env.remember_new_class(cast("UUID", result.chain_id), request.workflow)
        env.work()
        return results

    def signal_with_start(self, request: StartRequest, signal: str, payload: Any) -> EnvironmentHandle[Any]:
        env = self._env
        env.remember_person(request.by)
        with use_host(self.host):
            handle = cast("EnvironmentHandle[Any]", super().signal_with_start(request, signal, payload))
        env.remember_new_class(handle.chain_id, request.workflow)
        env.work()
        return handle

    def handle(self, id: str, *, workflow: type[Startable] | None = None) -> EnvironmentHandle[Any]:
        with use_host(self.host):
            target = self._find_started(id, workflow)
        return EnvironmentHandle(self._env, target.workflow_id, target.chain_id, pinned=target.pinned)

    def _find_started(self, id: str, workflow: type[Startable] | None) -> RunTarget:
        """Return the run with that run id or business id. Raises ``WorkflowNotFound``."""
        try:
            return find_run(id, storage=self._env.storage, workflow=None if workflow is None else workflow.name)
        except WorkflowNotFound:
            raise WorkflowNotFound(f"no run with the id {id!r} was started in this environment") from None

    def list(
        self, workflow: type[Startable], filters: dict[str, Any], *, by: Person | None = None
    ) -> Iterator[EnvironmentHandle[Any]]:
        env = self._env
        with use_host(self.host):
            runs = [*super().list(workflow, filters, by=by)]
        return (EnvironmentHandle(env, handle.id, cast("UUID", handle.chain_id)) for handle in runs)

    def perform(self, address: RunAddress, request: RunRequest[T]) -> T:
        env = self._env
        env.remember_person(request.by)
        with use_host(self.host):
            try:
                result = super().perform(address, request)
            except UpdateTimeout:
                # In a batch nothing is delivered yet. The outcome of a decision is not awaited then.
                if not env.batching or request.operation not in ("resume", "decide"):
                    raise
                return cast("T", None)
        if request.operation not in (*READS, "query"):
            env.work()
        return result

    async def aperform(self, address: RunAddress, request: RunRequest[T]) -> T:
        # The environment works in the thread of the call, so the call is the one of sync code.
        return await sync_to_async(self.perform)(address, request)

    def send_update(
        self, address: RunAddress, name: Any, args: Any, *, id: str | None, by: Person | None
    ) -> EnvironmentUpdate:
        """Send the update ``name`` with ``args`` to a run, and let the environment do the work that is due.

        Returns the update without asking for its response. ``id`` is its message id, or None to generate one.
        """
        env = self._env
        env.remember_person(by)
        request: RunRequest[Any] = RunRequest("update", by, inputs(update=name, args=args, id=id))
        with use_host(self.host):
            update = cast("SendUpdate", build_action(address, request))
            update.send()
            code = update.target.workflow_class
        env.work()
        assert update.message_number is not None
        label = f"update {update.message!r} of {address.id}"
        read = partial(read_answer, code, request, may_be_redacted=False)
        return EnvironmentUpdate(env, update.target.chain_id, update.message_number, update.message_id, label, read)

    def _handle(self, target: RunTarget, *, workflow: type[Startable] | None) -> EnvironmentHandle[Any]:
        del workflow
        return EnvironmentHandle(self._env, target.workflow_id, target.chain_id)

    def _result(self, address: RunAddress, request: RunRequest[Any], action: Action[Any], result: Any) -> Any:
        """Convert the result of an operation into what the handle returns.

        If the operation is a fork, the class of the new run is remembered first, because the environment then runs it.
        """
        if request.operation == "fork":
            assert address.chain_id is not None
            code = self._env.class_of(address.chain_id, result.workflow, result.version)
            self._env.remember_class(result.chain_id, code)
        return super()._result(address, request, action, result)


# --- database schedules -----------------------------------------------------------------------------------------------
#
# The schedules of a ``DjangoEnvironment``: rows, fired by the code that workers use.


class DatabaseSchedules(EnvironmentSchedules):
    """The schedules of a ``DjangoEnvironment``, stored as rows; the environment fires them as a worker would."""

    def __init__(self, env: DjangoEnvironment, host: OperationHost) -> None:
        super().__init__()
        self._env = env
        self._host = host
        self._is_firing = False

    @contextmanager
    def _on_host(self) -> Iterator[None]:
        """Return a context manager that selects the host (storage, clock and ids) on which operations run.

        It is the host of the application if the environment is entered, or else the host of the environment's handles.
        """
        with use_host(None if is_entered(self._env) else self._host):
            yield

    def add(self, schedule: Schedule) -> None:
        if schedule.workflow is not None:
            self.workflows[schedule.workflow.name] = schedule.workflow
        with self._on_host():
            put_declaration(schedule, self._env.storage)

    def slots(self, name: str) -> list[SlotRecord]:
        rows = ScheduleSlot.objects.using(self._env.storage.alias).filter(schedule_id=self._find(name).pk)
        return [slot_of(row) for row in rows.order_by("at")]

    def trigger(self, name: str) -> SlotRecord:
        with self._on_host():
            slot = TriggerSchedule(name).execute()
        self._env.work()
        return slot

    def pause(self, name: str, *, reason: str = "") -> None:
        with self._on_host():
            PauseSchedule(name, reason=reason).execute()

    def unpause(self, name: str) -> None:
        with self._on_host():
            UnpauseSchedule(name).execute()
        self._env.work()

    def fire(self) -> bool:
        if self._is_firing or not self._env.has_schedules():
            return False
        self._is_firing = True
        try:
            with self._on_host():
                return fire_due(self._env.storage.alias)
        finally:
            self._is_firing = False

    def _find(self, name: str) -> ScheduleRow:
        row = ScheduleRow.objects.using(self._env.storage.alias).filter(name=name).first()
        if row is None:
            raise ScheduleNotFound(f"there is no schedule {name!r}: add it with env.schedule(…)")
        return row


# --- live worker ------------------------------------------------------------------------------------------------------
#
# A worker of an environment in a thread of its own, for tests in which a browser uses a live server.


logger = logging.getLogger("temporalex_django.testing")

#: Seconds between two polls.
_POLL = 0.02


@contextmanager
def live_worker(env: DjangoEnvironment) -> Iterator[None]:
    """Return a context manager that runs a worker while its block runs, on a database connection of its own.

    An error of the worker is raised at the end of the block.
    """
    _require_committed_data(env.storage.alias)
    worker = _LiveWorker(env)
    worker.start()
    try:
        yield
    finally:
        worker.stop()
    if worker.error is not None:
        raise worker.error


def call_in_thread(call: Callable[[], None]) -> None:
    """Call ``call()`` in a thread with its own database connection, and wait until it returns.

    Where an event loop runs, Django refuses the connection of the calling thread. An error of the call is raised.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as exc:  # noqa: BLE001 - raised below
            errors.append(exc)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run, name="temporalex-environment-call")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


class _LiveWorker(threading.Thread):
    """A thread that repeatedly lets the environment do the work that is due, until it is stopped.

    ``error`` is the error that ended it, or None.
    """

    def __init__(self, env: DjangoEnvironment) -> None:
        super().__init__(name="temporalex-environment", daemon=True)
        self.env = env
        self.error: Exception | None = None
        self._stop_event = threading.Event()

    def run(self) -> None:
        try:
            while not self._stop_event.wait(_POLL):
                self._poll()
        except Exception as exc:  # noqa: BLE001 - raised in the thread of the test
            self.error = exc
        finally:
            connections.close_all()

    def _poll(self) -> None:
        try:
            self.env.work()
        except DatabaseError as exc:
            # The live server writes at the same time: a lock that was not available (SQLite) is no failure of the test.
            if not self.env.storage.is_transient(exc):
                raise
            logger.warning("the database is busy, trying again: %s", error_line(exc))

    def stop(self) -> None:
        self._stop_event.set()
        self.join()


def _require_committed_data(alias: str) -> None:
    """Raise ``TemporalexError`` if another connection could not see the data of the test on the database ``alias``."""
    connection = connections[alias]
    if connection.in_atomic_block:
        raise TemporalexError(
            "a worker alongside the test sees only committed data: use a TransactionTestCase, a "
            "StaticLiveServerTestCase or the fixtures transactional_db and live_server"
        )
    # Only the SQLite backend has this method.
    in_memory = getattr(connection, "is_in_memory_db", None)
    if in_memory is not None and in_memory():
        raise TemporalexError(
            "a worker alongside the test needs its own connection, which an in-memory database cannot provide: "
            f'use a file, DATABASES[{alias!r}]["TEST"] = {{"NAME": "test.sqlite3"}}'
        )
