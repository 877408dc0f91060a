"""What becomes of an attempt: pure decisions. Whoever runs activities (workers, environments) asks here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from temporalex_django.authoring.activity import Activity
from temporalex_django.authoring.activity_context import ActivityContext
from temporalex_django.authoring.retry import next_delay
from temporalex_django.core import payloads
from temporalex_django.core.failures import AttemptFailure, ReturnedErr, attempt_failure, describe, failure_types
from temporalex_django.core.handing_over import encode_lossless
from temporalex_django.engine.storage import NewTask, TaskResult, TaskState
from temporalex_django.errors import ActivityNotFound, ApplicationError, KeyMissing, PayloadError, UnknownWorkflow

#: Timeouts by which state of a task they count from.
_QUEUED_TIMEOUTS = ("schedule_to_start", "schedule_to_close")
_RUNNING_TIMEOUTS = ("start_to_close", "heartbeat", "schedule_to_close")


#: When an activity is offered again that a worker gave back because it lacks what that needs.
REOFFER_DELAY = timedelta(seconds=2)


def idempotency_key(task: TaskState) -> str:
    """The same for every attempt of one call of an activity, also where a reset schedules it anew."""
    return derive_key(task.run_id, task.seq, task.options)


def activity_context(
    task: TaskState,
    *,
    send_heartbeat: Callable[[Any], None] = lambda _: None,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> ActivityContext:
    """The context of an attempt.

    Without ``send_heartbeat`` its heartbeats go nowhere, for one that is over before they could.
    """
    return ActivityContext(
        attempt=task.attempt,
        idempotency_key=idempotency_key(task),
        workflow_id=task.workflow_id,
        run_id=str(task.run_id),
        heartbeat_details=task.heartbeat_details,
        _seq=task.seq,
        _heartbeat=send_heartbeat,
        _is_cancelled=is_cancelled,
    )


def derive_key(run_id: object, seq: int, options: Mapping[str, Any]) -> str:
    """The same of the row of an activity."""
    return str(options.get("key") or f"{run_id}:{seq}")


def final_result(task: TaskState, kind: str, attributes: dict[str, Any]) -> TaskResult:
    """The end of an activity, with its last input where somebody edited that."""
    if task.options.get("edited"):
        attributes["edited"] = edited_input(task.args, task.kwargs, task.options, key=idempotency_key(task))
    return TaskResult(task=task, outcome=(kind, attributes))


def edited_input(
    args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any], *, key: str
) -> dict[str, Any]:
    """What an activity had at last that somebody edited (option ``edited``, which says ``by`` whom)."""
    edit = options["edited"]
    return {"args": list(args), "kwargs": dict(kwargs), "key": key, **(edit if isinstance(edit, dict) else {})}


def edited_inputs(tasks: Iterable[TaskState]) -> dict[str, Any]:
    """The last inputs of those that somebody edited, by number: see ``RunWrite.add_edited_inputs``."""
    return {
        str(task.seq): edited_input(task.args, task.kwargs, task.options, key=idempotency_key(task))
        for task in tasks
        if isinstance(task.options.get("edited"), Mapping)
    }


def completed_result(
    task: TaskState,
    value: Any,
    *,
    limit: int = payloads.MAX_BYTES,
    attempts: int | None = None,
    activity: Activity[Any, Any] | None = None,
) -> TaskResult:
    """The attempt returned ``value``. Raises ``PayloadError`` when that cannot be encoded.

    And where workflow code would get something else of ``activity``, whose function gave it; None: somebody gave plain
    data. ``attempts``: how many it took, if not as many as this one counts; told where it was not the first.
    """
    label = f"the result of {task.activity}"
    if activity is None:
        result = payloads.to_plain(value, label=label, limit=limit)
    else:
        result = encode_lossless(
            value, label=label, limit=limit, read=activity.read_result, annotate=activity.annotate_result
        )
    attempt_count = task.attempt if attempts is None else attempts
    extra_attributes = {"attempts": attempt_count} if attempt_count > 1 else {}
    return final_result(task, "ActivityCompleted", {"seq": task.seq, "result": result, **extra_attributes})


def failed_result(task: TaskState, error: BaseException, now: datetime, *, final: bool = False) -> TaskResult:
    """The attempt raised, or (a step's) returned ``Err``: due again by its policy, or over."""
    final = final or (isinstance(error, ApplicationError) and error.non_retryable)
    retry_at = None if final else _retry_at(task, now, failure_types(error))
    if retry_at is not None:
        failure = attempt_failure(error, at=now, attempt=task.attempt)
        return TaskResult(task=task, retry_at=retry_at, failure=failure)
    attributes = {"seq": task.seq, **describe(error), "attempts": task.attempt, "timeout": None}
    if isinstance(error, ReturnedErr):
        attributes.update(type="Err", reason=error.reason)
    return final_result(task, "ActivityFailed", attributes)


def next_timeout(
    task: TaskState | NewTask, *, started_at: datetime | None, heartbeat_at: datetime | None
) -> tuple[datetime, str] | None:
    """When the next timeout of an activity in this state passes, and which; None when it has none.

    A queued one (``started_at`` None) counts ``schedule_to_start``, from when it is due (it may have been given back),
    and ``schedule_to_close``; a running one counts the others.
    """
    names: Sequence[str] = _QUEUED_TIMEOUTS if started_at is None else _RUNNING_TIMEOUTS
    is_claimed = isinstance(task, TaskState) and task.owner is not None
    if started_at is None and task.attempt > is_claimed:
        names = ("schedule_to_close",)  # it was begun once: a retry that waits is not "never started"
    return first_timeout(task, names, started_at=started_at, heartbeat_at=heartbeat_at)


def first_timeout(
    task: TaskState | NewTask, names: Sequence[str], *, started_at: datetime | None, heartbeat_at: datetime | None
) -> tuple[datetime, str] | None:
    """The first of the timeouts ``names`` to pass."""
    since = {"schedule_to_start": task.due_at, "start_to_close": started_at, "heartbeat": heartbeat_at or started_at}
    timeouts = [
        ((since.get(name) or task.scheduled_at) + timedelta(seconds=task.options[name]), name)
        for name in names
        if task.options.get(name) is not None
    ]
    return min(timeouts, default=None)


def check_timeout(task: TaskState, now: datetime) -> TaskResult | None:
    """What the passing of a timeout makes of a task; None when none has passed."""
    timeout = next_timeout(task, started_at=task.started_at, heartbeat_at=task.beat_at)
    return None if timeout is None or timeout[0] > now else timeout_result(task, timeout[1], now)


def timeout_result(task: TaskState, timeout: str, now: datetime) -> TaskResult:
    """``start_to_close`` and ``heartbeat`` end an attempt, the two others the activity."""
    message = f"{timeout} of {task.options[timeout]:g} s passed"
    if timeout in ("start_to_close", "heartbeat"):
        retry_at = _retry_at(task, now, ["TimeoutError"])
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


def _retry_at(task: TaskState, now: datetime, error_types: Sequence[str]) -> datetime | None:
    """When it is tried again: by its policy, and before ``schedule_to_close`` passes."""
    delay = next_delay(task.options.get("retry"), task.attempt, error_types)
    if delay is None:
        return None
    retry_at = now + timedelta(seconds=delay)
    close = task.options.get("schedule_to_close")
    return retry_at if close is None or retry_at < task.scheduled_at + timedelta(seconds=close) else None


#: What another worker may have: not the fault of whoever is being run.
UNAVAILABLE_ERRORS = (ActivityNotFound, KeyMissing, UnknownWorkflow)


class ActivityUnavailable(Exception):
    """An atomic activity needs what this process lacks.

    Undoes the transaction of its turn, which is another worker's then.
    """


def is_permanent_error(error: BaseException) -> bool:
    """A payload that does not fit, or, where there is no other worker, no code for it.

    Another attempt would end the same way.
    """
    return isinstance(error, (ActivityNotFound, PayloadError))


def unreadable_result(task: TaskState, error: BaseException) -> TaskResult:
    """Its arguments cannot be read, or do not fit: not worth another attempt."""
    return failed_result(task, error, task.due_at, final=True)


def deferred_result(task: TaskState, error: BaseException, now: datetime) -> TaskResult:
    """This process has not what it takes (code, or the key of a payload).

    Another worker is to have the attempt, uncounted.
    """
    match error:
        case KeyMissing():
            requirement = f"the key {error.key!r}"
        case UnknownWorkflow():
            requirement = f"the class {task.workflow}"
        case _:
            requirement = f"{task.activity} in {task.workflow}"
    return TaskResult(task=task, retry_at=now + REOFFER_DELAY, count=False, waits_for=requirement)


def lost_result(task: TaskState, now: datetime) -> TaskResult:
    """The worker of this attempt died.

    Due again at once, unless it was the last one (``max_attempts=1`` means at most once).
    """
    max_attempts = (task.options.get("retry") or {}).get("max_attempts", 0)
    if not max_attempts or task.attempt < max_attempts:
        attributes = worker_lost_attributes(task.seq, task.attempt)
        failure = AttemptFailure(type=attributes["type"], message=attributes["message"], at=now, attempt=task.attempt)
        return TaskResult(task=task, retry_at=now, failure=failure)
    return final_result(task, "ActivityFailed", worker_lost_attributes(task.seq, task.attempt))


def worker_lost_attributes(seq: int, attempt: int, reason: str | None = None) -> dict[str, Any]:
    """Attributes of the end of an activity whose last attempt died with its worker."""
    message = reason or "the worker that ran it was lost"
    message += "; whether it took effect is not known"
    return {"seq": seq, "type": "WorkerLost", "message": message, "attempts": attempt, "timeout": None}
