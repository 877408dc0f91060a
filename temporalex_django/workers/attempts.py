"""Attempts: a worker runs an activity's function in a thread, on the event loop or in a process of its own."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from asgiref.sync import async_to_sync

from temporalex_django.authoring import activity, django_tasks
from temporalex_django.authoring.activity import Activity
from temporalex_django.authoring.activity_context import ActivityContext, use_context
from temporalex_django.conf import get_settings
from temporalex_django.core import process
from temporalex_django.core.failures import error_line
from temporalex_django.db.activity_tasks import process_name
from temporalex_django.db.atomic_activities import completed_result, encode_payload, send_activity_signal
from temporalex_django.db.attempt_scope import AttemptScope, call_in_scope
from temporalex_django.db.graph_storage import TaskSource
from temporalex_django.engine import activity_policy, background_task, policy
from temporalex_django.engine.contracts.records import TaskResult, TaskState
from temporalex_django.engine.executors import attempt_hooks, report_failure
from temporalex_django.engine.turn_metrics import record_attempt
from temporalex_django.errors import PayloadError, TaskCancelled
from temporalex_django.interceptors.chain import chain
from temporalex_django.telemetry.recording import recorder

# --- attempts ---------------------------------------------------------------------------------------------------------
#
# One attempt of an activity: decode the arguments, call the function, turn its end into a result.


log = logging.getLogger("temporalex_django.workers")


class UnfitResult(PayloadError):
    """Raised when an activity in another process returned a value that can never be stored, so no retry would help."""


@dataclass(slots=True, eq=False)
class Attempt:
    """An attempt of an activity that this process runs: its task, when it was claimed and started, and its heartbeats.

    ``now`` returns the database's time. ``cancelled`` is set when its result would come too late.
    """

    task: TaskState
    now: Callable[[], datetime]
    is_async: bool = False  # it runs in the event loop
    claimed_at: float = field(default_factory=time.monotonic)
    is_started: bool = False
    started_at: float = 0.0
    is_start_recorded: bool = False  # its row has the moment
    cancelled: bool = False
    pending_details: list[Any] = field(default_factory=list)  # of a heartbeat that is not stored yet
    last_details: bytes | None = None
    pending_progress: Mapping[str, Any] | None = None  # that is not stored yet
    progress_at: float = -math.inf  # when one was stored
    future: Any = None  # of an async attempt
    loop: Any = None  # the event loop of the future

    @property
    def key(self) -> tuple[int, int, int]:
        """The values that identify the attempt: task id, attempt and owner (the epoch of the worker)."""
        return (self.task.id, self.task.attempt, self.task.owner or 0)

    @property
    def workflow(self) -> str:
        """The name of the workflow class of the run, by which attempts take turns."""
        return self.task.workflow

    def context(self) -> ActivityContext:
        """Return the context that the code of the activity sees."""
        return activity_policy.activity_context(
            self.task,
            send_heartbeat=self._heartbeat,
            report_progress=self._report_progress,
            is_cancelled=lambda: self.cancelled or self.task.cancelled_at is not None,
        )

    def _heartbeat(self, details: Any) -> None:
        """Keep the latest details until they are stored. Encoded here, bad ones fail the activity that sent them.

        Raises ``TaskCancelled`` in a background task that somebody has cancelled.
        """
        self._require_not_cancelled()
        if details is not None:
            label, limit = f"heartbeat details of {self.task.activity}", get_settings().MAX_PAYLOAD_BYTES
            details = encode_payload(details, description=label)
            if len(details) > limit:
                raise PayloadError(f"{label} are {len(details):,} bytes, more than the {limit:,} allowed")
            self.last_details = details
        self.pending_details[:] = [details]

    def _report_progress(self, progress: Mapping[str, Any]) -> None:
        """Keep the latest progress until it is stored. It counts as a heartbeat, and raises like one."""
        self._require_not_cancelled()
        self.pending_progress = progress
        if not self.pending_details:
            self.pending_details[:] = [None]

    def _require_not_cancelled(self) -> None:
        if self.task.cancelled_at is not None:
            raise TaskCancelled(activity_policy.CANCELLED_TEXT)

    def take_progress(self) -> Mapping[str, Any] | None:
        """Return the progress that is to be stored now, at most one each second; None if there is none."""
        now = time.monotonic()
        if self.pending_progress is None or now - self.progress_at < policy.PROGRESS_SECONDS:
            return None
        progress, self.pending_progress, self.progress_at = self.pending_progress, None, now
        return progress

    def run(self, *, call_in_process: Callable[[Attempt], Any] | None = None) -> TaskResult:
        """Run the activity in this thread and return its result. Never raises.

        An async activity gets an event loop of its own. With ``call_in_process``, that function runs the activity and
        returns its value.
        """
        return self._run_guarded(call_function if call_in_process is None else lambda *_: call_in_process(self))

    async def run_async(self) -> TaskResult:
        """Run the activity in the event loop of this thread and return its result.

        Raises ``CancelledError`` when the attempt was cancelled, and ``GeneratorExit`` when the event loop ends it.
        """
        prepared = self._prepare()
        if isinstance(prepared, TaskResult):
            return prepared
        act, fn, args, kwargs = prepared
        try:
            async with AttemptScope(self.task.activity):
                with attempt_hooks(self.task), use_context(self.context()):
                    process.reached("effect: before")
                    value = await fn(*args, **kwargs)
                    process.reached("effect: after")
            return self._completed_result(act, act.encode_result(value, self.task.args, TaskSource(self.task)))
        except asyncio.CancelledError:
            if not self.cancelled:
                return self.failure_result(RuntimeError("the activity raised CancelledError, but nobody cancelled it"))
            raise
        except GeneratorExit:
            raise
        except BaseException as exc:  # noqa: BLE001 - the policy decides; what leaves a task ends its loop
            return self.failure_result(exc)

    def _run_guarded(self, invoke: Callable[[Callable[..., Any], Any, Any], Any]) -> TaskResult:
        """Run the activity and return its result. Never raises."""
        prepared = self._prepare()
        if isinstance(prepared, TaskResult):
            return prepared
        act, *arguments = prepared

        def call() -> Any:
            with attempt_hooks(self.task), use_context(self.context()):
                process.reached("effect: before")
                value = invoke(*arguments)
                process.reached("effect: after")
                return value

        try:
            value = call_in_scope(self.task.activity, call)
            return self._completed_result(act, act.encode_result(value, self.task.args, TaskSource(self.task)))
        except UnfitResult as exc:
            return activity_policy.failed_result(self.task, PayloadError(str(exc)), self.now(), final=True)
        except BaseException as exc:  # noqa: BLE001 - also SystemExit: it ends the attempt, not the worker
            return self.failure_result(exc)

    def _prepare(self) -> TaskResult | tuple[Activity[Any, Any], Callable[..., Any], Any, Any]:
        """Return the activity, its function and its decoded arguments, or the result if that is not possible."""
        task = self.task
        # A pool has recorded the start already; it counts from the thread that runs the attempt.
        self.started_at = self.started_at or time.monotonic()
        try:
            act = activity.find(task.activity)
            fn, args, kwargs = act.decode_call(task.args, task.kwargs, TaskSource(task))
        except activity_policy.UNAVAILABLE_ERRORS as exc:
            return activity_policy.deferred_result(task, exc, self.now())
        except PayloadError as exc:
            return activity_policy.unreadable_result(task, exc)
        except BaseException as exc:  # noqa: BLE001 - a graph that could not be read: the policy decides
            return self.failure_result(exc)
        if task.cancelled_at is not None:
            return activity_policy.cancelled_result(task)
        if task.chain_id is None:
            task.started_at = self.now()
            notify_safely(lambda: django_tasks.host().notify_started(task))
        else:
            send_activity_signal("activity_started", task, attempt=task.attempt)
        return act, fn, args, kwargs

    def _completed_result(self, act: Activity[Any, Any], value: Any) -> TaskResult:
        """Return the result, encoded here, where its activity is known; a failure if it cannot be stored."""
        try:
            begin = self.now() - timedelta(seconds=time.monotonic() - self.started_at)
            # A success has no row of its own, so its event says when it began, and where.
            return completed_result(self.task, value, act, begin=begin.isoformat(), worker=process_name())
        except PayloadError as exc:
            return activity_policy.failed_result(self.task, exc, self.now(), final=True)

    def failure_result(self, exc: BaseException) -> TaskResult:
        """Return the result of an attempt that raised ``exc``: due again by its retry policy, or failed for good."""
        task = self.task
        try:
            result = activity_policy.failed_result(task, exc, self.now())
        except BaseException:  # noqa: BLE001 - an error is an object of a class of the user's
            exc = RuntimeError(f"{task.activity} raised an exception that cannot be described")
            result = activity_policy.failed_result(task, exc, self.now())
        if task.chain_id is None:
            result.error_entry = background_task.error_entry(exc)
        log.warning(
            "%s failed on attempt %d%s: %s",
            *(task.activity, task.attempt, "" if result.outcome is None else " (the last)", error_line(exc)),
            extra={"workflow_id": task.workflow_id, "run_id": str(task.run_id)},
        )
        return result


def call_function(fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call the function of an activity and return its value; an async one gets an event loop of its own.

    ``args`` and ``kwargs`` are its decoded arguments.
    """
    value = fn(*args, **kwargs)
    # Not ``asyncio.run``: calls of the ORM inside have to be made by this thread, on its connection.
    if _is_awaitable(value):
        return async_to_sync(_await_result)(value)
    return value


def _is_awaitable(value: Any) -> bool:
    try:
        return inspect.isawaitable(value)
    except Exception:  # noqa: BLE001 - a value may raise whatever is asked of it
        return False


async def _await_result(value: Any) -> Any:
    return await value


def notify_safely(callback: Callable[[], None]) -> None:
    """Call ``callback`` and log its exceptions: a failing receiver of a signal must not affect the attempt."""
    try:
        callback()
    except Exception as exc:  # noqa: BLE001 - the attempt goes on, what is committed stays so
        log.error("could not send a signal about a Django task: %s", error_line(exc))


def announce_result(result: TaskResult) -> None:
    """Send the Django signals (``activity_completed`` and so on) about the committed result of an attempt.

    A result with which the activity is only due again has no signal. Its metrics are recorded in any case.
    """
    if recorder.is_active:
        record_attempt(result)
    if chain.problem:
        report_failure(result)
    if result.outcome is None:
        return
    if result.task.chain_id is None:
        django_tasks.notify_finished(result)
        return
    kind, attributes = result.outcome
    if kind == "ActivityCompleted":
        send_activity_signal("activity_completed", result.task)
    else:
        send_activity_signal(
            "activity_failed", result.task, type=attributes.get("type"), attempts=attributes.get("attempts")
        )


# --- pooled calls -----------------------------------------------------------------------------------------------------
#
# Calls in the threads of a pool that are no attempts of the tables: those of activities on a Temporal cluster.


@dataclass(slots=True, eq=False)
class PooledCall:
    """A function that waits for a thread of a pool, and the future of its result.

    ``workflow`` is the name by which calls and attempts take turns. ``claimed_at`` is a time of the monotonic clock.
    """

    workflow: str
    function: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future)
    claimed_at: float = field(default_factory=time.monotonic)

    def run(self) -> None:
        """Call the function and set the future, unless it was cancelled before. Never raises."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.function()
        except BaseException as exc:  # noqa: BLE001 - the one who waits for the future gets it
            self.future.set_exception(exc)
        else:
            self.future.set_result(result)
