"""The local runner: it runs a graph with threads and no database."""

from __future__ import annotations

import asyncio
import heapq
import inspect
import itertools
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from temporalex_django.authoring.activity_options import check_id, delay_after, jitter_draw
from temporalex_django.authoring.authorization import matches_candidate, split_decider
from temporalex_django.authoring.authorization import sender_key as key_of_user
from temporalex_django.authoring.definition import DURATIONS
from temporalex_django.core import human_tasks
from temporalex_django.core.failures import ReturnedErr, describe, error_line, exception_name, retry_request
from temporalex_django.core.human_tasks import require_four_eyes, roles_text
from temporalex_django.core.names import wait_seconds
from temporalex_django.core.payloads import codec
from temporalex_django.core.payloads.round_trip import encode_lossless
from temporalex_django.core.results import Err
from temporalex_django.errors import (
    ActionNotPermitted,
    AlreadyRunning,
    EngineNotFound,
    NestingError,
    NotConfigured,
    PayloadError,
    ResultTimeout,
    ResumeRefused,
    WorkflowClosed,
    WorkflowNotFound,
)
from temporalex_django.graph import engine
from temporalex_django.graph.contracts import OPEN, Identity, Storage, Timer, Timers, checked, identity
from temporalex_django.graph.definition import bits
from temporalex_django.graph.durable_run import activity_of, deciders, parse_resume, resume_request
from temporalex_django.graph.engine import find_declared_event, validate_event_data
from temporalex_django.graph.instance import Instance
from temporalex_django.graph.progress import Failure, Progress, Result, TimerEvent, decode_step_result
from temporalex_django.graph.steps import (
    Approval,
    StepRef,
    events_of,
    human_task_spec_of,
    key_of,
    name_of,
    timer_event_of,
    timer_of,
)

# --- local runner -----------------------------------------------------------------------------------------------------
#
# A runner that executes graphs with threads of this process, on any ``Storage``. It is as durable as the storage.
#
# A waiting instance holds no thread. The lock of an instance is held while results are folded (recorded in the
# instance, with the steps that follow) and stored, never while a step runs.
#
# An instance that was started elsewhere, or before a crash, continues from its stored state. Steps that had started are
# executed again. Timers start again, since they are in memory only. Two processes must not run the same instances.
#
# The runner does not support ``activity_context()``; ``atomic``, ``timeout``, ``heartbeat`` and ``queue`` of steps; or
# timeouts and ``retention`` of a class. The durable runtime supports all of these. A graph that declares one is refused
# here.


logger = logging.getLogger("temporalex_django.graph")

#: Seconds before an instance is started again from the storage, for each turn in a row that crashed.
RESTARTS = (0.1, 0.5, 2.0, 10.0, 60.0)

Change = Callable[[Progress, datetime], None]
RunListener = Callable[[Instance, str, dict[str, Any]], None]


class _LocalRun:
    """The state of one open instance in a runner. Read and write its attributes only while you hold ``lock``.

    ``executing`` has the numbers of the steps that run, and ``timers`` the timers by step number. ``crashes`` counts
    the turns in a row that crashed, and ``crash`` is the error with which the runner gave up.
    """

    def __init__(self, instance: Instance) -> None:
        self.key = identity(instance)
        self.lock = threading.RLock()
        self.progress = Progress(instance)
        self.is_started = False
        self.busy = False  # in the middle of a turn
        self.is_finished = False  # no more changes: closed, deleted, replaced, or given up
        self.executing: set[int] = set()
        self.timers: dict[int, Timer] = {}
        self.crashes = 0
        self.crash: Exception | None = None
        self.finished_event = threading.Event()

    def finish(self) -> None:
        """Cancel the timers, ignore further changes, and wake everybody who waits for the end."""
        with self.lock:
            self.is_finished = True
            for timer in self.timers.values():
                timer.cancel()
            self.timers.clear()
        self.finished_event.set()


class _StepCycle:
    """A group of steps that became active together.

    They run concurrently. Their results are recorded together, in the order of the step numbers.
    """

    def __init__(self, run: _LocalRun, instance: Instance, numbers: Iterable[int]) -> None:
        self.run = run
        self.instance = instance
        self._remaining = set(numbers)
        self._results: dict[int, Result] = {}
        self._lock = threading.Lock()

    def add_result(self, number: int, result: Result) -> list[tuple[int, Result]]:
        """Return ``(step number, result)`` of the whole group after its last result, else an empty list."""
        with self._lock:
            self._results[number] = result
            self._remaining.discard(number)
            if self._remaining:
                return []
            return [(n, self._results[n]) for n in sorted(self._results)]


class LocalRunner:
    """A runner that executes the steps of graphs in a thread pool of this process.

    ``threads`` is the number of steps that run at a time. ``clock()`` returns the present time as an aware datetime.
    ``timers`` is the scheduler for waiting steps, retries and restarts. ``tell(instance, name, facts)`` is called,
    after the instance is stored, for everything that a durable run reports by a Django signal.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        threads: int = 8,
        clock: Callable[[], datetime] | None = None,
        timers: Timers | None = None,
        tell: RunListener | None = None,
    ) -> None:
        self.storage = storage
        self._clock = clock or (lambda: datetime.now(UTC))
        self._timers = timers or ThreadTimers()
        self._listener = tell
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="graph")
        self._lock = threading.Lock()
        self._runs: dict[Identity, _LocalRun] = {}
        self._stopped = False

    # -- the contract -------------------------------------------------------------------------------------------------

    def start_instance(
        self,
        workflow: Any,
        *,
        id: str,
        context: Mapping[str, Any] | None = None,
        version: int | None = None,
        telemetry: Mapping[str, Any] | None = None,
    ) -> str:
        """Store a pending instance of ``workflow`` (a class) and return its id; a pool thread starts the instance.

        ``context`` is the data that it starts with. ``version`` selects one version of a workflow that has several.
        ``telemetry`` is merged into the reports about its steps. This method does not check whether the id is open
        already; ``Engine`` does.
        """
        self._require_running()
        number, cls = workflow.resolve_version(version)
        _refuse_options(cls)
        instance = Instance.new(
            id=check_id(id), workflow=cls, version=number, initial=context, telemetry_metadata=telemetry
        )
        for open_instance in self.storage.query(id=id, workflow=cls, status=OPEN):
            if identity(open_instance) == identity(instance):
                raise AlreadyRunning(f"{cls.name} {id!r} is open already ({open_instance.status})")
        # Replace the run before the insert, so that nothing of an earlier instance is applied to the new one.
        run = self._get_run(instance, replace=True)
        try:
            self.storage.put(instance)
        except BaseException:
            self._finish_run(run)
            raise
        self._submit(lambda: self._drive(run))
        return id

    def resume(
        self,
        id: str,
        event: str,
        *,
        step: StepRef | str | None = None,
        data: Any = None,
        by: Any = None,
        workflow: str | None = None,
        version: int | None = None,
    ) -> None:
        """Check and store the event ``event`` for the step that waits for it; the pool executes the steps that follow.

        ``step`` (a step or its key) selects the step if several wait. ``by`` is a user or a name, and is recorded with
        ``data``. Raises ``WorkflowNotFound``, ``WorkflowClosed``, ``ResumeRefused`` and ``PayloadError``. Raises
        ``ActionNotPermitted`` when ``by`` is not a user with the role of the step, or when the groups of the user
        cannot be known.
        """
        user, name = split_decider(by)
        sender_name = str(user) if user is not None else name
        request = resume_request(event, step=step, data=data, by=sender_name, key=key_of_user(user))
        request["data"] = codec.to_plain(data, label=f"the data of resume({event!r})")

        def change(progress: Progress, now: datetime) -> None:
            waiting_step = engine.resumed_by(progress.instance, request["event"], request["step"])
            label = f"{id}: {request['by'] or 'nobody'} may not decide {name_of(waiting_step)}"
            if (spec := human_task_spec_of(waiting_step)) is not None:
                if spec.candidates and not any(matches_candidate(user, word) for word in spec.candidates):
                    raise ActionNotPermitted(
                        f"{label}: this requires {roles_text(spec.candidates)} of a user (by=user)"
                    )
                if spec.four_eyes:
                    start_data = {"started_by": progress.instance.started_by}
                    excluded_keys = human_tasks.barred_people(spec.four_eyes, start_data, deciders(progress.instance))
                    require_four_eyes(label, excluded_keys, key=request["by_key"])
                if spec.form is not None:
                    codec.convert(data, spec.form.type, label=f"the data of resume({event!r})")
            if (declared := find_declared_event(waiting_step, request["event"])) is not None:
                permission = declared.permission
                if permission is not None and user is not None and not matches_candidate(user, f"perm:{permission}"):
                    raise ActionNotPermitted(f"{label}: {event!r} requires the permission {permission}")
                validate_event_data(declared, request["data"], progress.instance.context)
            progress.fold([parse_resume(progress.instance, {**request, "step": key_of(waiting_step)})], now)

        self._apply_change(f"resume({event!r})", id, workflow, version, change)

    def schedule_resume(
        self, id: str, step: StepRef | str, delay: float, *, workflow: str | None = None, version: int | None = None
    ) -> Timer:
        """Deliver the event of the step's timer after ``delay`` seconds, or ``timeout`` for a step without a timer.

        This timer is in memory only.
        """
        instance = self._require_open("schedule_resume", id, workflow, version)
        ref = instance.graph.by_key.get(step if isinstance(step, str) else key_of(step))
        if ref is None:
            raise ResumeRefused(f"{id}: {instance.workflow.__name__} has no step {step!r}")
        event = timer_event_of(ref) or "timeout"
        if event not in events_of(ref):
            raise ResumeRefused(
                f"{id}: step {name_of(ref)} has no event {event!r} to deliver (it has: {', '.join(events_of(ref))})"
            )
        seconds = wait_seconds(delay, label="delay")
        return self._fire_after(seconds, self._get_run(instance), instance.graph.number[ref], event)

    def cancel(self, id: str, *, workflow: str | None = None, version: int | None = None) -> None:
        """Cancel the instance at once. A step that is running ends in its own time, and its result is ignored."""

        def change(progress: Progress, now: datetime) -> None:
            progress.instance = engine.cancel(progress.instance)

        self._apply_change("cancel", id, workflow, version, change)

    def wait(
        self, id: str, *, timeout: float | None, workflow: str | None = None, version: int | None = None
    ) -> Instance:
        """Wait until the instance is closed and return it. ``timeout`` is in seconds; None waits for ever.

        Raises ``ResultTimeout`` if it is not closed in time, or if this runner has stopped or does not run it.
        """
        instance = self.storage.get(id, workflow=workflow, version=version)
        with self._lock:
            run = self._runs.get(identity(instance))
        # The event is set after the instance is stored, so the storage is read again below.
        if run is not None and not instance.closed:
            run.finished_event.wait(timeout)
        instance = self.storage.get(id, workflow=workflow, version=version)
        if not instance.closed:
            crash_text = ""
            if run is not None and run.crash is not None:
                crash_text = f", and its execution was abandoned: {run.crash!r}"
            raise ResultTimeout(
                f"{instance.workflow.name} {id!r} has no result yet: it is {instance.status}{crash_text}"
            )
        return instance

    def recover(self) -> int:
        """Continue the open instances of the storage; closed ones stay as they are. Return the number of open ones."""
        self._require_running()
        instances = self.storage.query(status=OPEN)
        # The query returns the newest first; continue the oldest first.
        for instance in reversed(instances):
            self._recover(instance)
        return len(instances)

    def forget(self, id: str) -> None:
        """Stop executing and timing the instances of that id, which are about to be deleted."""
        with self._lock:
            runs = [self._runs.pop(key) for key in [*self._runs] if key[0] == id]
        for run in runs:
            run.finish()

    def stop(self) -> None:
        """Let the running steps end, then stop the threads and timers.

        A result is stored if no other step of its cycle (the steps that became active together) is missing. All other
        work waits for ``recover``.
        """
        with self._lock:
            self._stopped = True
        # Before the timers: steps that end now may start timers.
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._timers.stop()
        with self._lock:
            runs = [self._runs.pop(key) for key in [*self._runs]]
        for run in runs:
            run.finish()

    # -- instances and their turns -------------------------------------------------------------------------------------

    def _get_run(self, instance: Instance, *, replace: bool = False) -> _LocalRun:
        """Return the state, a new one if it is missing or finished. A replaced state ignores results still to come."""
        key = identity(instance)
        with self._lock:
            old_run = self._runs.get(key)
            if old_run is not None and not old_run.is_finished and not replace:
                return old_run
            run = self._runs[key] = _LocalRun(instance)
        if old_run is not None:
            old_run.finish()
        return run

    def _require_open(self, operation: str, id: str, workflow: str | None, version: int | None) -> Instance:
        """Raise ``WorkflowClosed``; ``operation`` says what was refused."""
        self._require_running()
        instance = self.storage.get(id, workflow=workflow, version=version)
        if instance.closed:
            raise WorkflowClosed(f"{instance.workflow.name} {id} is closed ({instance.status}): {operation} refused")
        return instance

    def _recover(self, instance: Instance) -> None:
        run = self._get_run(instance)
        self._submit(lambda: self._drive(run))

    def _apply_change(self, operation: str, id: str, workflow: str | None, version: int | None, change: Change) -> None:
        """Apply the change in the thread of the caller and store it. If ``change`` raises, nothing has changed."""
        while True:
            run = self._get_run(self._require_open(operation, id, workflow, version))
            with run.lock:
                # The run may have been replaced before its lock was free: look it up again, and raise if it is closed.
                if not run.is_finished and self._run_turn(run, change):
                    return

    def _drive(self, run: _LocalRun, change: Change | None = None) -> None:
        """Apply the change; None starts the instance. A crashed turn is repeated a few times from stored data."""
        with run.lock:
            if run.is_finished:
                return
            try:
                self._run_turn(run, change)
                run.crashes = 0
            except WorkflowNotFound:
                self._finish_run(run)
            except Exception as exc:  # noqa: BLE001 - the storage, or a bug: logged, and kept on the run
                if run.crashes == len(RESTARTS):
                    logger.error(
                        "%s %s is abandoned until it is recovered: %s", run.key[1], run.key[0], error_line(exc)
                    )
                    run.crash = exc
                    self._finish_run(run)
                    return
                logger.warning("%s %s is restarted from the storage: %s", run.key[1], run.key[0], error_line(exc))
                run.crashes += 1
                delay = RESTARTS[run.crashes - 1]
                self._timers.start(delay, lambda: self._submit(lambda: self._drive(run, change)))

    def _run_turn(self, run: _LocalRun, change: Change | None) -> bool:
        """Load, change and store the instance, then start steps and timers. The caller holds ``run.lock``.

        ``change`` is None if the instance only has to start. False means that it was closed before.
        """
        name, workflow, version = run.key
        # The lock is reentrant, so a transition that calls the engine would get here in the middle of its own turn.
        if run.busy:
            raise NestingError(f"{name}: a transition of the instance cannot act on the instance itself")
        notes: list[tuple[str, dict[str, Any]]] = []
        run.busy = True
        try:
            stored = self.storage.get(name, workflow=workflow, version=version)
            if stored.closed:
                self._finish_run(run)
                return False
            progress, now = run.progress, self._clock()
            # The storage is the truth: a turn that crashed may have left another instance in memory.
            progress.instance = stored
            progress.listener = None if self._listener is None else lambda name, facts: notes.append((name, facts))
            # The start and the first change are one turn: a resume may come before the pool gets to the start.
            if not run.is_started:
                notes.append(("runner_initialized", {"recovered": stored.status != "pending"}))
                progress.begin(now)
            if change is not None:
                change(progress, now)
            instance = progress.instance
            # The functions of the engine return the same object if nothing has changed.
            if instance is not stored:
                self.storage.put(instance)
            run.is_started = True
        finally:
            run.busy = False
        if instance.closed:
            self._finish_run(run)
        else:
            self._update_timers(run, instance)
            self._start_steps(run, instance)
        # Only now, when everything is stored and no error can undo it.
        self._announce(instance, notes)
        return True

    def _finish_run(self, run: _LocalRun) -> None:
        with self._lock:
            # Another run may have replaced this one under the same key.
            if self._runs.get(run.key) is run:
                del self._runs[run.key]
        run.finish()

    def _announce(self, instance: Instance, notes: list[tuple[str, dict[str, Any]]]) -> None:
        """Call the listener for each ``(name of a signal, facts)``. Its errors are logged."""
        for name, facts in notes if self._listener is not None else ():
            try:
                self._listener(instance, name, {**instance.telemetry_metadata, **facts})  # type: ignore[misc] # not None
            except Exception as exc:  # noqa: BLE001 - a listener is no part of the run
                logger.error("%s: a listener to %s failed: %s", instance.id, name, error_line(exc))

    # -- timers and steps ----------------------------------------------------------------------------------------------

    def _update_timers(self, run: _LocalRun, instance: Instance) -> None:
        # Timers follow the stored instance: cancel those of steps that wait no more, and start the missing ones.
        for number in [n for n in run.timers if not instance.waiting >> n & 1]:
            run.timers.pop(number).cancel()
        for number in bits(instance.waiting):
            timer = timer_of(instance.graph.steps[number], self._clock())
            if timer is not None and number not in run.timers:
                run.timers[number] = self._fire_after(timer[0], run, number, timer[1])

    def _fire_after(self, seconds: float, run: _LocalRun, number: int, event: str) -> Timer:
        """Give the event to the step after ``seconds``. The returned timer can be cancelled."""

        def change(progress: Progress, now: datetime) -> None:
            # A resume may have ended the step after the timer fired and before this turn.
            if progress.instance.waiting >> number & 1:
                progress.fold([(number, TimerEvent(event))], now)

        return self._timers.start(seconds, lambda: self._submit(lambda: self._drive(run, change)))

    def _start_steps(self, run: _LocalRun, instance: Instance) -> None:
        active = {*bits(instance.active)}
        new_numbers = sorted(active - run.executing)
        # Steps of this turn run as one cycle: their results are folded together, in a fixed order.
        run.executing = active
        cycle = _StepCycle(run, instance, new_numbers)
        for number in new_numbers:
            self._submit_attempt(cycle, number, 1)

    def _submit_attempt(self, cycle: _StepCycle, number: int, attempt: int) -> None:
        self._submit(lambda: self._run_attempt(cycle, number, attempt))

    def _run_attempt(self, cycle: _StepCycle, number: int, attempt: int) -> None:
        """Run an attempt, then schedule the next one, or apply the results if the cycle is complete."""
        run = cycle.run
        if run.is_finished:
            return
        result = run_attempt(cycle.instance, number, attempt)
        # A pause holds no thread of the pool.
        if isinstance(result, NextAttempt):
            self._timers.start(result.seconds, lambda: self._submit_attempt(cycle, number, result.number))
            return
        results = cycle.add_result(number, result)

        def change(progress: Progress, now: datetime) -> None:
            # A turn that crashed may have been stored all the same: fold no result twice.
            progress.fold([(n, step_result) for n, step_result in results if progress.instance.active >> n & 1], now)

        if results:
            self._drive(run, change)

    def _submit(self, fn: Callable[[], None]) -> None:
        """Run the function in the pool. After ``stop`` this does nothing: stored instances wait for ``recover``."""
        with self._lock:
            if not self._stopped:
                self._pool.submit(_run_logged, fn)

    def _require_running(self) -> None:
        if self._stopped:
            raise EngineNotFound(
                "the engine has stopped: start another one with the same storage to continue the open instances"
            )


_STEP_OPTIONS = ("atomic", "timeout", "heartbeat", "queue")


def _refuse_options(cls: Any) -> None:
    """Raise ``NotConfigured`` for declared options that would have no effect here."""
    option_names = [
        f"{name} of step {name_of(ref)}" for ref in cls.graph() for name in _STEP_OPTIONS if _has_option(ref, name)
    ]
    option_names += [f"{name} of step {name_of(ref)}" for ref in cls.graph() for name in _approval_options(ref)]
    option_names += [name for name in DURATIONS if getattr(cls, name) is not None]
    if option_names:
        raise NotConfigured(
            f"{cls.name} uses {', '.join(option_names)}, which a local runner does not support: "
            "run it on Django's backend"
        )


def _approval_options(ref: StepRef) -> list[str]:
    """Return options that need stored human tasks. Candidates are checked here, too."""
    if not isinstance(ref, Approval):
        return []
    option_names = [name for name in ("title", "remind", "escalate") if getattr(ref, name) is not None]
    if isinstance(ref.form, str):
        return [*option_names, "form"]
    return option_names


def _has_option(ref: StepRef, name: str) -> bool:
    return not ref.waits and bool(getattr(ref, name))  # the timeout of a waiting step is its own timer


def _run_logged(fn: Callable[[], None]) -> None:
    try:
        fn()
    except Exception as exc:  # noqa: BLE001 - the thread also serves other instances
        logger.error("a thread of the local runner failed: %s", error_line(exc))


# --- attempts ---------------------------------------------------------------------------------------------------------
#
# One attempt of a step in this process, with the same rules for results and retries as on the durable runtime.


class _InstanceSource:
    """The access of a step's activity to its workflow class and its instance, where the instance is in memory.

    It implements the protocol ``authoring.activity.RunSource``.
    """

    def __init__(self, instance: Instance) -> None:
        self._instance = instance

    def workflow(self, version: int) -> Any:
        del version
        return self._instance.workflow

    def instance(self, version: int) -> Instance:
        del version
        return self._instance


@dataclass(frozen=True, slots=True)
class NextAttempt:
    """The next attempt of a step after a failed one: the ``seconds`` until it begins, and its ``number`` from 1."""

    seconds: float
    number: int


def run_attempt(instance: Instance, number: int, attempt: int) -> Result | NextAttempt:
    """Run the step with that number and return its result, or the next attempt if it is tried again.

    ``attempt`` is the number of this attempt, from 1. An undeclared event, a value that is no result, and data that
    cannot be encoded fail the step at once. An exception and an ``Err`` fail it after the last attempt that its retry
    policy allows. ``RetryLater`` says itself when the next attempt begins; its ``hold`` is ignored here.
    """
    graph = instance.graph
    step, activity, source = graph.steps[number], activity_of(graph.steps[number]), _InstanceSource(instance)
    policy = instance.workflow.options[number].get("retry")
    draw = jitter_draw(instance.id, number, attempt)
    args = [graph.keys[number], instance.log.configs.get(number), instance.version]
    try:
        fn, call_data, _ = activity.decode_call(args, {}, source)
    except PayloadError as exc:
        return Failure(**describe(exc))
    try:
        value = fn(*call_data)
        if inspect.isawaitable(value):
            value = asyncio.run(_await(value))
    except BaseException as exc:  # noqa: BLE001 - a step that raises SystemExit must not end a thread of the pool
        next_attempt = _next_attempt(policy, attempt, exc, draw)
        if next_attempt is not None:
            return next_attempt
        attempts_text = ""
        if attempt > 1:
            attempts_text = f" (after {attempt} attempts)"
        return Failure(exception_name(type(exc)), f"{describe(exc)['message']}{attempts_text}")
    try:
        label = f"the result of step {name_of(step)}"
        call_data = activity.encode_result(value, args, source)
        # Refuse a result that would come back changed, as the durable runtime does (see decision 14).
        return decode_step_result(encode_lossless(call_data, label=label))
    except ReturnedErr as exc:
        return _next_attempt(policy, attempt, exc, draw) or Err(exc.reason)
    except PayloadError as exc:
        return Failure(**describe(exc))


def _next_attempt(policy: dict[str, Any] | None, attempt: int, error: BaseException, draw: float) -> NextAttempt | None:
    """Return None if no attempt is left. ``draw`` is the share of the jitter, from 0 to 1, that shortens the pause."""
    delay = delay_after(policy, attempt, error, now=datetime.now(UTC), draw=draw)
    request = retry_request(error)
    counts = request is None or request.counts
    return None if delay is None else NextAttempt(delay, attempt + counts)


async def _await(value: Awaitable[Any]) -> Any:
    return await value


# --- timers -----------------------------------------------------------------------------------------------------------
#
# The timers of a process: one thread for all of them, and no thread while there is no timer.


class _ScheduledCall:
    """A call of the function ``fn`` that is scheduled for later and can be cancelled; ``fn`` is None after that."""

    __slots__ = ("fn",)

    def __init__(self, fn: Callable[[], None]) -> None:
        self.fn: Callable[[], None] | None = fn

    def cancel(self) -> None:
        self.fn = None


class ThreadTimers:
    """A scheduler of later calls, on the monotonic clock, with one thread. The timers are lost with the process.

    It implements ``contracts.Timers``.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._heap: list[tuple[float, int, _ScheduledCall]] = []
        self._order = itertools.count()
        self._thread: threading.Thread | None = None

    def start(self, seconds: float, fn: Callable[[], None]) -> _ScheduledCall:
        """Call ``fn`` after ``seconds`` in the thread of the timers, and return the scheduled call."""
        entry = _ScheduledCall(fn)
        with self._condition:
            # The number decides between equal times: calls cannot be compared.
            heapq.heappush(self._heap, (time.monotonic() + seconds, next(self._order), entry))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="graph-timers", daemon=True)
                self._thread.start()
            self._condition.notify()
        return entry

    def stop(self) -> None:
        """Cancel all calls that were not made yet."""
        with self._condition:
            self._heap.clear()
            self._condition.notify()

    def _run(self) -> None:
        while (fn := self._wait_for_next()) is not None:
            try:
                fn()
            except Exception as exc:  # noqa: BLE001 - the thread also serves other timers
                logger.error("a timer failed: %s", error_line(exc))

    def _wait_for_next(self) -> Callable[[], None] | None:
        """Wait for the next due call. None means that no timer is left; the thread then ends."""
        with self._condition:
            while self._heap:
                due, _, entry = self._heap[0]
                seconds_left = due - time.monotonic()
                if entry.fn is None or seconds_left <= 0:
                    heapq.heappop(self._heap)
                    if entry.fn is not None:
                        return entry.fn
                else:
                    # A new timer may be due earlier: it notifies, and the loop looks at the heap again.
                    self._condition.wait(min(seconds_left, threading.TIMEOUT_MAX))
            # Under the lock, so that a timer that starts now sees that it needs a new thread.
            self._thread = None
            return None


# --- memory -----------------------------------------------------------------------------------------------------------
#
# A storage of instances in the memory of this process: for tests, for scripts, and for graphs without Django.


class MemoryStorage:
    """A storage of instances in a dict; its instances are lost with the process.

    It implements ``contracts.Storage``. Instances are stored without a copy, because they never change.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._instances: dict[str, dict[Identity, Instance]] = {}  # by id; the newest start is the last one
        self._start_numbers: dict[Identity, int] = {}  # the order of the starts
        self._count = 0

    def get(self, id: str, *, workflow: str | None = None, version: int | None = None) -> Instance:
        """Return the newest instance with that id, workflow (a name) and version. Raises ``WorkflowNotFound``."""
        with self._lock:
            for instance in reversed(self._instances.get(id, {}).values()):
                if workflow in (None, instance.workflow.name) and version in (None, instance.version):
                    return instance
        workflow_text = ""
        if workflow:
            workflow_text = f" of {workflow}"
        raise WorkflowNotFound(f"no instance{workflow_text} has the id {id!r}")

    def put(self, instance: Instance) -> None:
        """Insert the instance, or overwrite the stored one that has its id, its workflow and its version.

        The version counts only where the scope of the workflow's ``unique`` is ``version``.
        """
        key = identity(instance)
        with self._lock:
            instances = self._instances.setdefault(instance.id, {})
            old_instance = instances.get(key)
            # A new start under an old identity moves to the end, as a new row would.
            if old_instance is None or (old_instance.closed and not instance.closed):
                instances.pop(key, None)
                self._count += 1
                self._start_numbers[key] = self._count
            instances[key] = instance

    def delete(self, id: str) -> None:
        """Delete all instances with that id; a missing id is no error."""
        with self._lock:
            for key in self._instances.pop(id, {}):
                del self._start_numbers[key]

    def query(self, **filters: Any) -> list[Instance]:
        """Return the instances that match all filters, newest start first; without a filter, all of them.

        The filters are ``id``, ``status`` (one, or a list), ``version`` and ``workflow`` (a class or its name). Raises
        ``TypeError`` for others.
        """
        criteria = checked(filters)
        with self._lock:
            groups = [self._instances.get(criteria["id"], {})] if "id" in criteria else [*self._instances.values()]
            pairs = [(self._start_numbers[key], instance) for group in groups for key, instance in group.items()]
        pairs.sort(key=lambda pair: -pair[0])
        return [instance for _, instance in pairs if _matches(instance, criteria)]


def _matches(instance: Instance, criteria: dict[str, Any]) -> bool:
    return (
        criteria.get("workflow", instance.workflow.name) == instance.workflow.name
        and criteria.get("version", instance.version) == instance.version
        and instance.status in criteria.get("status", (instance.status,))
    )
