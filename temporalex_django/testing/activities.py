"""The activities of a test environment: each call runs at once, or is held until the test ends it.

A test can replace the function of an activity by a stand-in.
"""

from __future__ import annotations

import asyncio
import decimal
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from temporalex_django.authoring import activity as activities_of
from temporalex_django.authoring.activity import Activity
from temporalex_django.authoring.activity_context import use_context
from temporalex_django.authoring.django_tasks import activity_of as task_activity
from temporalex_django.authoring.django_tasks import is_task
from temporalex_django.core import current
from temporalex_django.core.failures import ReturnedErr, is_error
from temporalex_django.engine import activity_policy, background_task
from temporalex_django.engine.contracts.records import TaskResult, TaskState
from temporalex_django.engine.executors import attempt_hooks
from temporalex_django.engine.scheduling import Capacity
from temporalex_django.graph.durable_run import activity_of
from temporalex_django.graph.steps import Step, StepRef
from temporalex_django.testing.environment_base import Crash, EnvironmentBase

_ALL_TIMEOUTS = ("schedule_to_start", "start_to_close", "heartbeat", "schedule_to_close")
#: The number of activities that one search for timeouts reads.
_EXPIRY_LIMIT = 1000
OWNER = 1


class EnvironmentActivities(EnvironmentBase):
    """The part of a test environment that runs activities, with stand-ins, held calls, retries and timeouts."""

    def mock(self, activity: Activity[Any, Any] | StepRef, stand_in: Callable[..., Any]) -> None:
        """Run ``stand_in`` instead of the function of an activity, or instead of the steps of a step class.

        The stand-in takes the arguments of the original and may be a plain or an async function.
        """
        if not callable(stand_in):
            raise TypeError(f"mock: the stand-in is a function, such as `lambda *args: {stand_in!r}`, not {stand_in!r}")
        self._stand_ins[_activity_name(activity)] = stand_in

    def hold(self, activity: Activity[Any, Any] | StepRef) -> None:
        """Leave every later call of the activity open until the test ends it by ``complete`` or ``fail``."""
        self._held_activities.add(_activity_name(activity))

    def complete(self, activity: Activity[Any, Any] | StepRef, value: Any = None) -> None:
        """End the oldest held call of the activity with ``value``, as if its function had returned it.

        The result is final: a step's ``Err`` is not tried again. Raises ``LookupError`` when no call is held.
        """
        self._end_held_call(activity, lambda task: self._complete_task(task, value))

    def fail(self, activity: Activity[Any, Any] | StepRef, error: BaseException) -> None:
        """End the oldest held call of the activity as failed, as if its function had raised ``error``.

        The failure is final: no retry follows. Raises ``LookupError`` when no call is held.
        """
        self._end_held_call(activity, lambda task: activity_policy.failed_result(task, error, self.clock, final=True))

    def _complete_task(self, task: TaskState, value: Any) -> TaskResult:
        """Return the final result of an activity for which the test has passed ``value`` to ``complete``."""
        act = activities_of.find(task.activity)
        try:
            outgoing = act.encode_result(value, task.args, EnvironmentSource(self, task))
        except ReturnedErr as exc:
            return activity_policy.failed_result(task, exc, self.clock, final=True)
        return activity_policy.completed_result(task, outgoing, activity=act)

    def _end_held_call(
        self, activity: Activity[Any, Any] | StepRef, make_result: Callable[[TaskState], TaskResult]
    ) -> None:
        """End the oldest held call of the activity that is still open.

        Its result is ``make_result(task)``, where ``task`` is the row of the call. Raises ``LookupError`` if no call is
        held.
        """
        name = _activity_name(activity)
        for task in [task for task in self._held_tasks if task.activity == name]:
            task_result = make_result(task)
            self._held_tasks.remove(task)
            # False means that the call is not open any more (for example, its run was closed): try the next one.
            if self._tasks.finish_tasks([task_result]):
                self._drive()
                return
        raise LookupError(f"no call of {name} is held: call env.hold(...) before it is scheduled")

    def perform(self, task: TaskState) -> Any:
        """Run an activity, or its stand-in, at once in this thread, and return the encoded result."""
        activity = activities_of.find(task.activity)
        own, args, kwargs = activity.decode_call(task.args, task.kwargs, EnvironmentSource(self, task))
        fn = self._stand_ins.get(task.activity, own)

        def heartbeat(details: Any) -> None:
            self._heartbeats[task.id, task.attempt, OWNER] = details

        def report(progress: Mapping[str, Any]) -> None:
            self._progress_reports[task.id, task.attempt, OWNER] = progress

        context = activity_policy.activity_context(task, send_heartbeat=heartbeat, report_progress=report)

        def call() -> Any:
            # An activity is no part of a workflow, so the guard must not refuse what it does.
            with current.outside_workflow(None), attempt_hooks(task), use_context(context):
                value = fn(*args, **kwargs)
                return self._run_async(value) if asyncio.iscoroutine(value) else value

        value = self._call_in_scope(task, call)
        return activity.encode_result(value, task.args, EnvironmentSource(self, task))

    def _call_in_scope(self, task: TaskState, call: Callable[[], Any]) -> Any:
        """Call ``call``, which runs an attempt, so that what it leaves in its context ends with it."""
        del task
        return copy_context().run(_call_in_own_decimals, call)

    def _commit_attempt(self, task: TaskState) -> None:
        with self._commit_point():
            self._run_attempt(task)

    def _run_attempt(self, task: TaskState) -> None:
        """Run one attempt of an activity and record its result.

        The worker dies before, after or during the attempt if the test has asked for it by ``crash_at``.
        """
        if self._maybe_crash("before_activity"):
            self._tasks.finish_tasks([self._lost_result(task)])
            return
        self._announce_attempt(task)
        result, failure = self._perform_in_savepoint(task)
        crashed = is_error(failure, Crash)
        if crashed or (not task.atomic and self._maybe_crash("after_activity")):
            result = self._lost_result(task)
        elif failure is not None:
            result = self._failed_result(task, failure)
        assert result is not None
        # Store the last heartbeat before the result: a retry reads its details. A worker that died has sent none.
        if self._heartbeats and not crashed:
            self._tasks.record_heartbeats(self._heartbeats)
        self._heartbeats.clear()
        if self._progress_reports and not crashed:
            self._tasks.record_progress(self._progress_reports)
        self._progress_reports.clear()
        self._store_result(result)

    def _store_result(self, result: TaskResult) -> None:
        """Store the result of an attempt, which becomes a message to the run, and announce it."""
        # Announce only a result that counts: the attempt may have closed or cancelled its own run.
        if self._tasks.finish_tasks([result]):
            self._announce_attempt(result.task, result)
        self._maybe_crash("after_result")

    def _perform_in_savepoint(self, task: TaskState) -> tuple[TaskResult | None, BaseException | None]:
        """Run the activity in a savepoint, and return ``(result, None)`` or ``(None, error)``.

        The error is a ``Crash`` if the test lets the worker die before the savepoint ends.
        """
        result: TaskResult | None = None
        failure: BaseException | None = None
        try:
            with self._attempt_savepoint(task):
                try:
                    result = activity_policy.completed_result(
                        task, self.perform(task), activity=activities_of.find(task.activity)
                    )
                except BaseException as exc:
                    if task.atomic or self._breaks_transaction(exc):
                        raise
                    # An external activity has no transaction, so what it wrote before it failed stays.
                    failure = exc
                if task.atomic and self._maybe_crash("after_activity"):
                    # Leave the savepoint by an error: that rolls back all that the atomic activity wrote.
                    raise Crash
        except BaseException as exc:  # noqa: BLE001 - user code, as in a worker; its policy decides
            failure = exc
        return result, failure

    def _failed_result(self, task: TaskState, failure: BaseException) -> TaskResult:
        """Return the result of an attempt that raised ``failure``. The retry policy decides about another attempt."""
        final = activity_policy.is_permanent_error(failure)
        result = activity_policy.failed_result(task, failure, self.clock, final=final)
        if task.chain_id is None:
            result.error_entry = background_task.error_entry(failure)
        return result

    def _lost_result(self, task: TaskState) -> TaskResult:
        """Return the result of an attempt whose worker died.

        An atomic activity was part of the transaction that was rolled back, so its attempt does not count.
        """
        if task.atomic:
            return TaskResult(task=task, retry_at=self.clock, count=False)
        return activity_policy.lost_result(task, self.clock)

    @abstractmethod
    def _held_until(self, task: TaskState) -> datetime | None:
        """Return when the queue or the concurrency key of the activity is no longer held back; None if it is not held.

        An attempt that raises ``RetryLater`` with ``hold`` keeps other activities back in this way.
        """

    def _run_next_activity(self) -> bool:
        """Run the activity that is due first. Return False if none is due.

        Its result is delivered in an activation of its own.
        """
        claim = self._tasks.claim_tasks
        # One at a time, so that the order of attempts is the same in every run of the test.
        while tasks := claim(capacity=Capacity(threads=1), queues=self._queues(), owner=OWNER, atomic=True):
            if (held_until := self._held_until(tasks[0])) is not None:
                # The virtual clock stops at due times, so a hold moves the due time to its end.
                self._tasks.finish_tasks([TaskResult(task=tasks[0], retry_at=held_until, count=False)])
                continue
            tasks[0].started_at = self.clock
            if tasks[0].activity not in self._held_activities:
                self._commit_attempt(tasks[0])
                return True
            # A held call stays claimed, as if a worker were busy with it. The search continues with the next one.
            self._held_tasks.append(tasks[0])
        return False

    # -- timeouts ------------------------------------------------------------------------------------------------------

    def _next_held_timeout(self) -> datetime | None:
        """Return the time at which the first timeout of a held call passes, or None if no held call has a timeout."""
        passes = [passes[0] for task in self._held_tasks if (passes := _first_timeout(task)) is not None]
        return min(passes, default=None)

    def _expire(self) -> None:
        """End attempts that have exceeded a timeout by the virtual clock; the retry policy decides if others follow."""
        # The test decides when a held call has heartbeats or a result, so all four timeouts are checked here. The
        # database search covers the other tasks.
        for task in list(self._held_tasks):
            timeout = _first_timeout(task)
            if timeout is not None and timeout[0] <= self.clock:
                self._held_tasks.remove(task)
                self._tasks.finish_tasks([activity_policy.timeout_result(task, timeout[1], self.clock)])
                self._forget_pending()
        held_ids = {task.id for task in self._held_tasks}
        for task in self._expired_tasks():
            result = activity_policy.check_timeout(task, self.clock) if task.id not in held_ids else None
            if result is not None:
                self._tasks.finish_tasks([result])
                self._forget_pending()

    def _expired_tasks(self) -> list[TaskState]:
        """Return activities that have exceeded a timeout."""
        return self._tasks.expired_tasks(limit=_EXPIRY_LIMIT)


def _first_timeout(task: TaskState) -> tuple[datetime, str] | None:
    """Return ``(time, name)`` of the first timeout of a held call, or None if it has no timeout."""
    return activity_policy.first_timeout(task, _ALL_TIMEOUTS, started_at=task.started_at, heartbeat_at=task.beat_at)


@dataclass(frozen=True, slots=True)
class EnvironmentSource:
    """The access of an activity to its workflow class and, for a step of a graph, its instance, in an environment.

    It implements the protocol ``authoring.activity.RunSource``.
    """

    env: EnvironmentBase
    task: TaskState

    def workflow(self, version: int) -> Any:
        assert self.task.chain_id is not None
        return self.env.class_of(self.task.chain_id, self.task.workflow, version)

    def instance(self, version: int) -> Any:
        return self.env.projections.get(self.task.run_id, self.workflow(version)).activity_instances[self.task.seq]


def _activity_name(activity: Activity[Any, Any] | StepRef) -> str:
    """Return the name of an activity, or of the activity that runs a step."""
    if is_task(activity):
        return task_activity(activity).name
    is_step = isinstance(activity, (Step, type))
    if not is_step and not isinstance(activity, Activity):
        raise TypeError(f"{activity!r} is not an activity: pass the name under which @activity stands")
    return activity_of(activity).name if is_step else activity.name  # type: ignore[arg-type,union-attr] # by is_step


def _call_in_own_decimals(call: Callable[[], Any]) -> Any:
    """Call ``call`` with a new decimal context, since a copy of the surrounding context has the same object."""
    decimal.setcontext(decimal.DefaultContext)
    return call()
