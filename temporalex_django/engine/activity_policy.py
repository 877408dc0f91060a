"""The rules for what follows the end of an attempt of an activity: a result, a retry or a failure. No I/O.

Workers and test environments share them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from temporalex_django.authoring.activity import Activity
from temporalex_django.authoring.activity_context import ActivityContext, PreviousFailure
from temporalex_django.authoring.activity_options import delay_after, jitter_draw, next_delay
from temporalex_django.core.failures import (
    AttemptFailure,
    ReturnedErr,
    attempt_failure,
    clean_traceback,
    describe,
    error_attribute,
    exception_message,
    is_error,
    retry_request,
)
from temporalex_django.core.payloads import codec
from temporalex_django.core.payloads.round_trip import encode_lossless
from temporalex_django.engine import policy
from temporalex_django.engine.contracts.records import Hold, NewTask, TaskResult, TaskState
from temporalex_django.errors import (
    ActivityNotFound,
    ApplicationError,
    KeyMissing,
    PayloadError,
    UnknownWorkflow,
)
from temporalex_django.errors.execution import LONGEST_HOLD
from temporalex_django.interceptors.chain import chain

#: Timeouts that count for an activity that is queued, and for one that is running.
_QUEUED_TIMEOUTS = ("schedule_to_start", "schedule_to_close")
_RUNNING_TIMEOUTS = ("start_to_close", "heartbeat", "schedule_to_close")


def idempotency_key(task: TaskState) -> str:
    """Return the idempotency key of an activity, which all attempts of one call share, also after a reset."""
    return derive_key(task.run_id, task.seq, task.options)


def activity_context(
    task: TaskState,
    *,
    send_heartbeat: Callable[[Any], None] = lambda _: None,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> ActivityContext:
    """Return the context in which an attempt of the activity runs.

    ``send_heartbeat`` takes the details of each heartbeat; without it heartbeats are dropped. ``is_cancelled`` returns
    True once the result of the attempt would come too late.
    """
    return ActivityContext(
        attempt=task.attempt,
        idempotency_key=idempotency_key(task),
        workflow_id=task.workflow_id,
        run_id=str(task.run_id),
        heartbeat_details=task.heartbeat_details,
        previous_failure=PreviousFailure.from_payload(task.previous_failure),
        headers=dict(task.headers or {}),
        _seq=task.seq,
        _heartbeat=send_heartbeat,
        _is_cancelled=is_cancelled,
    )


def derive_key(run_id: object, seq: int, options: Mapping[str, Any]) -> str:
    """Return the idempotency key of the activity that command number ``seq`` of a run scheduled.

    It is the ``key`` in ``options``, if there is one, else it is made of ``run_id`` and ``seq``.
    """
    return str(options.get("key") or f"{run_id}:{seq}")


def final_result(task: TaskState, kind: str, attributes: dict[str, Any]) -> TaskResult:
    """Return the final result of an activity, after which no attempt follows.

    ``kind`` and ``attributes`` are those of the event that records the result. If a person edited the input of the
    activity, the result includes its last input.
    """
    if task.options.get("edited"):
        attributes["edited"] = edited_input(task.args, task.kwargs, task.options, key=idempotency_key(task))
    return TaskResult(task=task, outcome=(kind, attributes))


def edited_input(
    args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any], *, key: str
) -> dict[str, Any]:
    """Return the last input of an activity that a person edited, in the form of the event attribute ``edited``.

    ``args`` and ``kwargs`` are that input, ``options`` are those of the activity, whose item ``edited`` says who edited
    it, and ``key`` is the idempotency key.
    """
    edit = options["edited"]
    return {"args": list(args), "kwargs": dict(kwargs), "key": key, **(edit if isinstance(edit, dict) else {})}


def edited_inputs(tasks: Iterable[TaskState]) -> dict[str, Any]:
    """Return the last inputs of the activities whose input a person edited, by command number."""
    return {
        str(task.seq): edited_input(task.args, task.kwargs, task.options, key=idempotency_key(task))
        for task in tasks
        if isinstance(task.options.get("edited"), Mapping)
    }


def completed_result(
    task: TaskState,
    value: Any,
    *,
    limit: int = codec.MAX_BYTES,
    attempts: int | None = None,
    activity: Activity[Any, Any] | None = None,
) -> TaskResult:
    """Return the result of an attempt that returned ``value``.

    ``activity`` is the one whose function returned it; None means that a person gave plain data. ``limit`` is the
    largest size in bytes. ``attempts`` is the number of attempts to record, by default the number of the task's
    attempt. Raises ``PayloadError`` when ``value`` cannot be encoded, or when workflow code would read a different
    value from the one that ``activity`` returned.
    """
    label = f"the result of {task.activity}"
    if activity is None:
        result = codec.to_plain(value, label=label, limit=limit)
    else:
        result = encode_lossless(
            value, label=label, limit=limit, read=activity.read_result, annotate=activity.annotate_result
        )
    if attempts is None:
        attempt_count = task.attempt
    else:
        attempt_count = attempts
    extra_attributes = {}
    if attempt_count > 1:
        extra_attributes = {"attempts": attempt_count}
    return final_result(task, "ActivityCompleted", {"seq": task.seq, "result": result, **extra_attributes})


def failed_result(task: TaskState, error: BaseException, now: datetime, *, final: bool = False) -> TaskResult:
    """Return the result of an attempt that raised ``error``: due again by the retry policy, or failed for good.

    A step that returns ``Err`` counts as one that raised. ``RetryLater`` says itself when the activity is due again.
    With ``final`` no further attempt follows, whatever the policy says.
    """
    final = final or (is_error(error, ApplicationError) and error_attribute(error, "non_retryable") is True)
    retry_at = None
    if not final:
        retry_at = _retry_at(task, now, error)
    if retry_at is not None:
        failure = attempt_failure(error, at=now, attempt=task.attempt)
        request = retry_request(error)
        count = request is None or request.counts
        hold = _hold(task, error, now, retry_at)
        return TaskResult(task=task, retry_at=retry_at, failure=failure, count=count, hold=hold)
    attributes = {"seq": task.seq, **describe(error), "attempts": task.attempt, "timeout": None}
    if type(error) is ReturnedErr:
        attributes.update(type="Err", reason=error.reason)
    else:
        # A run that fails with the activity has the place that raised as its cause.
        attributes["traceback"] = clean_traceback(error)
    result = final_result(task, "ActivityFailed", attributes)
    result.hold = _hold(task, error, now, None)
    if chain.problem:
        result.error = error
    return result


def _hold(task: TaskState, error: BaseException, now: datetime, retry_at: datetime | None) -> Hold | None:
    """Return the request of a failed attempt to keep back other activities (``RetryLater(hold=…)``); or None.

    The hold ends when the next attempt begins (``retry_at``), or at the time that the error names if no attempt is
    left.
    """
    request = retry_request(error)
    if request is None or request.hold is None or task.atomic:
        return None
    key = task.options.get("concurrency_key") if request.hold == "key" else None
    if retry_at is None:
        retry_at = now + timedelta(seconds=request.seconds_from(now) or 0.0)
    if retry_at <= now or (request.hold == "key" and key is None):
        return None
    reason, longest = exception_message(error), now + timedelta(seconds=LONGEST_HOLD)
    if retry_at > longest:
        reason = f"{reason.rstrip('.')} (asked until {retry_at:%Y-%m-%d %H:%M} UTC; a hold lasts at most an hour)"
    return Hold(
        queue=task.queue, key=key, since=now, until=min(retry_at, longest), activity=task.activity, reason=reason
    )


def next_timeout(
    task: TaskState | NewTask, *, started_at: datetime | None, heartbeat_at: datetime | None
) -> tuple[datetime, str] | None:
    """Return ``(time, name)`` of the timeout of an activity that passes next; None if it has no timeout.

    A queued activity (``started_at`` None) has ``schedule_to_start``, which counts from its due time, and
    ``schedule_to_close``. A running one has ``start_to_close``, ``heartbeat`` and ``schedule_to_close``.
    ``heartbeat_at`` is the time of its last heartbeat.
    """
    names: Sequence[str] = _QUEUED_TIMEOUTS if started_at is None else _RUNNING_TIMEOUTS
    is_claimed = isinstance(task, TaskState) and task.owner is not None
    if started_at is None and task.attempt > is_claimed:
        # It has started once, so a retry that waits does not count as never started.
        names = ("schedule_to_close",)
    return first_timeout(task, names, started_at=started_at, heartbeat_at=heartbeat_at)


def first_timeout(
    task: TaskState | NewTask, names: Sequence[str], *, started_at: datetime | None, heartbeat_at: datetime | None
) -> tuple[datetime, str] | None:
    """Return ``(time, name)`` of the timeout among ``names`` that passes first; None if the activity has none of them.

    ``started_at`` is the time at which the attempt started, and ``heartbeat_at`` the time of its last heartbeat.
    """
    since = {"schedule_to_start": task.due_at, "start_to_close": started_at, "heartbeat": heartbeat_at or started_at}
    timeouts = [
        ((since.get(name) or task.scheduled_at) + timedelta(seconds=task.options[name]), name)
        for name in names
        if task.options.get(name) is not None
    ]
    return min(timeouts, default=None)


def check_timeout(task: TaskState, now: datetime) -> TaskResult | None:
    """Return the result for the timeout of the activity that has passed at ``now``, or None if none has passed."""
    timeout = next_timeout(task, started_at=task.started_at, heartbeat_at=task.beat_at)
    if timeout is None or timeout[0] > now:
        return None
    return timeout_result(task, timeout[1], now)


def timeout_result(task: TaskState, timeout: str, now: datetime) -> TaskResult:
    """Return the result of an activity that has exceeded the timeout with the name ``timeout``.

    ``start_to_close`` and ``heartbeat`` end one attempt, and another one may follow. ``schedule_to_start`` and
    ``schedule_to_close`` end the activity.
    """
    message = f"the {timeout} timeout of {task.options[timeout]:g} s expired"
    if timeout in ("start_to_close", "heartbeat"):
        retry_at = _retry_at(task, now)
        if retry_at is not None:
            failure = AttemptFailure(type="TimeoutError", message=message, at=now, attempt=task.attempt)
            return TaskResult(task=task, retry_at=retry_at, failure=failure)
    attributes = {
        "seq": task.seq,
        "type": "TimeoutError",
        "message": message,
        "attempts": task.attempt,
        "timeout": timeout,
    }
    return final_result(task, "ActivityTimedOut", attributes)


def _retry_at(task: TaskState, now: datetime, error: BaseException | None = None) -> datetime | None:
    """Return the time of the attempt after one that raised ``error``, or that timed out (None); None if none follows.

    A time after ``schedule_to_close`` counts as none.
    """
    policy, draw = task.options.get("retry"), jitter_draw(task.run_id, task.seq, task.attempt)
    if error is None:
        delay = next_delay(policy, task.attempt, ["TimeoutError"], draw=draw)
    else:
        delay = delay_after(policy, task.attempt, error, now=now, draw=draw)
    if delay is None:
        return None
    retry_at = now + timedelta(seconds=delay)
    close = task.options.get("schedule_to_close")
    if close is None or retry_at < task.scheduled_at + timedelta(seconds=close):
        return retry_at
    return None


#: Errors about what another worker may have. They are not the fault of the run or the activity (see decision 28).
UNAVAILABLE_ERRORS = (ActivityNotFound, KeyMissing, UnknownWorkflow)


class ActivityUnavailable(Exception):
    """Raised when an atomic activity needs code or an encryption key that this process lacks.

    The transaction of the turn is rolled back, and another worker runs the activity.
    """


def is_permanent_error(error: BaseException) -> bool:
    """Return True if another attempt would fail with the same error.

    That is so for a payload that does not fit and for an activity without code in an environment that has no other
    worker.
    """
    return is_error(error, ActivityNotFound, PayloadError)


def unreadable_result(task: TaskState, error: BaseException) -> TaskResult:
    """Return the final failure of an activity whose arguments cannot be read, or do not fit its function."""
    return failed_result(task, error, task.due_at, final=True)


def deferred_result(task: TaskState, error: BaseException, now: datetime) -> TaskResult:
    """Return the result of an attempt for which this process lacks the code, or the encryption key of a payload.

    The attempt does not count, and the activity is due again for another worker.
    """
    match error:
        case KeyMissing():
            requirement = f"the key {error.key!r}"
        case UnknownWorkflow():
            requirement = f"the class {task.workflow}"
        case _:
            requirement = f"{task.activity} in {task.workflow}"
    return TaskResult(task=task, retry_at=now + policy.REOFFER_DELAY, count=False, waits_for=requirement)


def lost_result(task: TaskState, now: datetime) -> TaskResult:
    """Return the result of an attempt whose worker died.

    The activity is due again at once. If it was the last attempt, the result is a final failure (so ``max_attempts=1``
    means at most once).
    """
    max_attempts = (task.options.get("retry") or {}).get("max_attempts", 0)
    if not max_attempts or task.attempt < max_attempts:
        attributes = worker_lost_attributes(task.seq, task.attempt)
        failure = AttemptFailure(type=attributes["type"], message=attributes["message"], at=now, attempt=task.attempt)
        return TaskResult(task=task, retry_at=now, failure=failure)
    return final_result(task, "ActivityFailed", worker_lost_attributes(task.seq, task.attempt))


def worker_lost_attributes(seq: int, attempt: int, reason: str | None = None) -> dict[str, Any]:
    """Return the attributes of ``ActivityFailed`` for an activity whose last attempt died with its worker.

    ``seq`` is the number of its command. ``reason`` says more about the death, if that is known.
    """
    message = reason or "its worker was lost"
    message += "; it is not known whether it took effect"
    return {"seq": seq, "type": "WorkerLost", "message": message, "attempts": attempt, "timeout": None}
