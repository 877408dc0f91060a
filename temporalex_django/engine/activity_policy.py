"""The policy of activities: what the end of an attempt means for its activity and its run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Any, Final

from temporalex_django import errors
from temporalex_django.authoring.activity import Activity
from temporalex_django.authoring.activity_context import ActivityContext, PreviousFailure
from temporalex_django.authoring.activity_options import delay_after, jitter_draw, next_delay
from temporalex_django.authoring.backend import Description
from temporalex_django.core.failures import (
    AttemptFailure,
    ReturnedErr,
    attempt_failure,
    clean_traceback,
    describe,
    error_attribute,
    exception_message,
    is_about_code,
    is_error,
    retry_request,
    step_prefix,
)
from temporalex_django.core.history import events
from temporalex_django.core.history.activation import Completion, Fault
from temporalex_django.core.names import BEFORE_ALL
from temporalex_django.core.payloads import codec
from temporalex_django.core.payloads.codec import deep_copy
from temporalex_django.core.payloads.round_trip import encode_lossless
from temporalex_django.engine import policy
from temporalex_django.engine.contracts.records import Hold, NewTask, Outcome, RunState, TaskResult, TaskState
from temporalex_django.errors import (
    ActivityNotFound,
    ApplicationError,
    KeyMissing,
    PayloadError,
    UnknownWorkflow,
)
from temporalex_django.errors.execution import LONGEST_HOLD
from temporalex_django.interceptors.chain import chain

# --- activity policy --------------------------------------------------------------------------------------------------
#
# The rules for what follows the end of an attempt of an activity: a result, a retry or a failure. No I/O.
#
# Workers and test environments share them.


#: Kind of the result of a background task that was cancelled. No run gets it, so it is no event.
CANCELLED: Final = "TaskCancelled"
CANCELLED_TEXT: Final = "the task was cancelled"
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
    report_progress: Callable[[Mapping[str, Any]], None] = lambda _: None,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> ActivityContext:
    """Return the context in which an attempt of the activity runs.

    ``send_heartbeat`` takes the details of each heartbeat, and ``report_progress`` each progress; without them they are
    dropped. ``is_cancelled`` returns
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
        _progress=report_progress,
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
    if task.cancelled_at is not None:
        return cancelled_result(task)
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
    """Return the hold that the error asks for (``RetryLater(hold=…)``), until the next attempt if one follows."""
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
    if task.cancelled_at is not None:
        return cancelled_result(task)
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
    """Return the time of the next attempt; None if none follows by ``schedule_to_close``. No error: a timeout."""
    policy, draw = task.options.get("retry"), jitter_draw(task.run_id, task.seq, task.attempt)
    attempt = _counted_attempt(task)
    if error is None:
        delay = next_delay(policy, attempt, ["TimeoutError"], draw=draw)
    else:
        delay = delay_after(policy, attempt, error, now=now, draw=draw)
    if delay is None:
        return None
    retry_at = now + timedelta(seconds=delay)
    close = task.options.get("schedule_to_close")
    if close is None or retry_at < task.scheduled_at + timedelta(seconds=close):
        return retry_at
    return None


def _counted_attempt(task: TaskState) -> int:
    """Return the number of the attempt for the retry policy: attempts before a person retried the task do not count."""
    return task.attempt - int(task.options.get("attempts_before") or 0)


def cancelled_result(task: TaskState) -> TaskResult:
    """Return the final result of a background task that somebody has cancelled. No attempt follows."""
    attributes = {"seq": task.seq, "type": "TaskCancelled", "message": CANCELLED_TEXT, "attempts": task.attempt}
    return TaskResult(task=task, outcome=(CANCELLED, attributes))


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
    if task.cancelled_at is not None:
        return cancelled_result(task)
    max_attempts = (task.options.get("retry") or {}).get("max_attempts", 0)
    if not max_attempts or _counted_attempt(task) < max_attempts:
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


# --- fates ------------------------------------------------------------------------------------------------------------
#
# The decision of a turn about a claimed run, without I/O; ``WorkflowEngine`` carries it out.


class TurnDecision(Enum):
    """The actions that a turn can take on a run that it has claimed."""

    #: The chain is closed: late messages are answered as undelivered.
    ANSWER = auto()
    #: The run is closed without running its code: it was terminated, its parent closed, or its time is over.
    END = auto()
    #: The run is paused, or blocked and not due, or begins later: its messages wait and make nothing due.
    PARK = auto()
    #: An atomic activity of the run is due, which takes a transaction of its own (see decision 4).
    ATOMIC = auto()
    #: The code of the run continues.
    ACTIVATE = auto()


def decide(run: RunState, *, closing: bool, parked: bool, atomic: bool, early: bool = False) -> TurnDecision:
    """Return the action that a turn takes on a claimed run.

    ``closing`` is True if the run must be closed without running its code. ``parked`` is True if its code may not run
    now, because the run is paused, or blocked and not due. ``atomic`` is True if an atomic activity of the run is due,
    and ``early`` if the run begins later.
    """
    if run.closed:
        return TurnDecision.ANSWER
    if closing:
        return TurnDecision.END
    if parked or early:
        return TurnDecision.PARK
    if atomic:
        return TurnDecision.ATOMIC
    return TurnDecision.ACTIVATE


def is_parked(run: RunState, now: datetime, *, force: bool) -> bool:
    """Return True if the run is paused, or blocked and not due; its messages then wait, and its code does not run.

    A message does not make a blocked run try again. With ``force``, a blocked run that is not due does not count.
    """
    return not run.closed and bool(run.paused or (run.failed_tries and not force and not is_due(run.due_at, now)))


def is_unstarted(run: RunState) -> bool:
    """Return True if the run has not executed any of its code: it has had no turn, and no turn of it has failed."""
    return run.head_token is None and not run.closed and not run.failed_tries


def may_begin_later(run: RunState, now: datetime) -> bool:
    """Return True if the run has had no turn, is not paused and is due later than ``now``.

    Read the record of such a run to see if its start was delayed. If it was not, a clock was set back, or the run waits
    after a crash.
    """
    return is_unstarted(run) and not run.paused and run.due_at is not None and run.due_at > now


def begins_later(run: RunState, starts_at: datetime | None, now: datetime) -> bool:
    """Return True if the run has had no turn, and begins at ``starts_at``, which is later than ``now``."""
    return is_unstarted(run) and starts_at is not None and starts_at > now


def is_due(moment: datetime | None, now: datetime) -> bool:
    """Return True if ``moment`` is set and has come."""
    return moment is not None and moment <= now


def has_come(moment: datetime | None, now: datetime) -> bool:
    """Return True if ``moment`` is set, has come, and is not in place of a time that cannot be read.

    It is for times that decide about a run. ``is_due`` is for the time that only wakes it.
    """
    return moment is not None and BEFORE_ALL < moment <= now


# --- outcomes ---------------------------------------------------------------------------------------------------------
#
# Results of runs and updates for callers, made from stored data: a value, or a typed error to raise.


#: Errors that refuse a message under their own type. An update that is refused otherwise raises ``UpdateRejected``.
_REFUSALS = (
    errors.WorkflowClosed,
    errors.RunPaused,
    errors.RunBlocked,
    errors.NotAccepting,
    errors.ResumeRefused,
    errors.FourEyes,
    errors.HumanTaskClosed,
    errors.ActionNotPermitted,
    errors.PayloadError,
)


#: Status of an update whose validator failed by a fault of the code. Its id is free, as after a rejection.
FAULT: Final = "fault"


def fault_outcome(fault: Fault, *, reference: str) -> Outcome:
    """Return the answer to an update whose validator raised because of a fault in the code.

    It names the exception and ``reference``, under which the log has the details.
    """
    failure = describe(fault.error)
    cause_text = ""
    if is_about_code(fault.error):
        cause_text = f" ({failure['type']}: {failure['message']})"
    message = (
        f"the validator of the update {fault.name!r} failed{cause_text}; "
        f"see the log entry with the reference {reference}"
    )
    cause = {"type": failure["type"], "cause": failure["message"]}
    return Outcome(status=FAULT, value={"code": "update_failed", "message": message, "reference": reference, **cause})


def failed_outcome(failure: Mapping[str, Any]) -> Outcome:
    """Return the outcome of an update whose handler raised, from the attributes of ``UpdateFailed``."""
    attributes = {key: failure[key] for key in ("type", "message")}
    return Outcome(status="failed", value={"code": "update_failed", **attributes})


def run_result(
    status: str, closing: dict[str, Any] | None, *, workflow: str, workflow_id: str, blocked: Any = None
) -> Any:
    """Return the result of a completed run, from its status and the attributes of its closing event.

    ``blocked`` is the reason why an open run is blocked, if it is. Raises ``WorkflowFailed``, ``WorkflowTerminated``,
    ``WorkflowTimedOut`` or ``WorkflowCancelled`` if the run closed otherwise, and ``ResultTimeout`` while it is open.
    """
    name, attributes = f"{workflow} {workflow_id}", closing or {}
    match status:
        case "completed":
            return deep_copy(attributes.get("result"))
        case "failed":
            reason, kind = attributes.get("reason"), attributes.get("type")
            if kind:
                cause_text = f"{kind}: {attributes.get('message')}"
            else:
                cause_text = f"{reason!r}"
            raise errors.WorkflowFailed(
                f"{name} failed: {step_prefix(attributes)}{cause_text}",
                reason=reason,
                type=kind,
                traceback=attributes.get("traceback"),
                details=attributes.get("details"),
            )
        case "terminated":
            reason = attributes.get("reason")
            raise errors.WorkflowTerminated(f"{name} was terminated: {reason or 'no reason given'}", reason=reason)
        case "timed_out":
            raise errors.WorkflowTimedOut(
                f"{name} exceeded its {attributes.get('timeout', 'timeout')}", reason=attributes.get("timeout")
            )
        case "cancelled":
            raise errors.WorkflowCancelled(f"{name} was cancelled")
    cause_text = ""
    if blocked:
        cause_text = f"; it is blocked: {blocked}"
    raise errors.ResultTimeout(f"{name} has no result yet: it is {status}{cause_text}")


def open_run_text(description: Description) -> str:
    """Return the state of an open run for ``ResultTimeout``: what it waits for, and the activities that fail."""
    if description.blocked is not None:
        return f"blocked: {description.blocked.get('error')}"
    text = description.status
    if description.waiting_for:
        text += f", waiting for {', '.join(description.waiting_for)}"
    failing = [(activity, activity.last_failure) for activity in description.activities if activity.last_failure]
    for activity, failure in failing[:3]:  # more would hide the first
        attempt = f"{failure.attempt} of {activity.max_attempts}" if activity.max_attempts else str(failure.attempt)
        then = (
            "the next attempt is running"
            if activity.next_try is None
            else f"the next one is at {activity.next_try:%Y-%m-%dT%H:%M:%S%z}"
        )
        text += f"; attempt {attempt} of {activity.activity} failed with {failure.type}: {failure.message}, and {then}"
    return text


def update_result(outcome: Outcome | None, *, update_id: str, label: str) -> Any:
    """Return the response of a completed update; ``label`` names the update in errors.

    Raises ``UpdateFailed`` if its handler raised, and ``UpdateRejected`` or another refusal such as ``WorkflowClosed``
    if it was refused. Raises ``UpdateTimeout`` while there is no response.
    """
    if outcome is None or outcome.status == "accepted":
        accepted = outcome is not None
        if accepted:
            state = "was accepted but has not finished yet"
        else:
            state = "has not been processed yet"
        raise errors.UpdateTimeout(
            f"{label} {state}; send it again with the same id", update_id=update_id, accepted=accepted
        )
    if outcome.status == "completed":
        return deep_copy(outcome.value)
    attributes = outcome.value or {}
    message, code = attributes.get("message") or "", attributes.get("code")
    rejection = {
        "reason": attributes.get("reason"),
        "accepts": attributes.get("accepts"),
        "path": attributes.get("path"),
    }
    if outcome.status == FAULT:
        raise errors.UpdateFailed(
            message, type=attributes.get("type"), accepted=False, reference=attributes.get("reference")
        )
    # Only the code of the error is stored, so the class is found by it.
    for refusal in _REFUSALS:
        if code == refusal.code:
            raise refusal(message, **rejection) if issubclass(refusal, errors.UpdateRejected) else refusal(message)
    if outcome.status == "rejected":
        raise errors.UpdateRejected(message, **rejection)
    raise errors.UpdateFailed(f"{label} failed: {attributes.get('type')}: {message}", type=attributes.get("type"))


def update_outcomes(completion: Completion) -> dict[str, Outcome]:
    """Return the outcomes of updates and resumes that an activation accepted or ended, by message id.

    ``completion`` is the result of the activation.
    """
    outcomes: dict[str, Outcome] = {}
    for command in completion.commands:
        match command.kind:
            case "AcceptUpdate":
                outcomes[events.UPDATE_ACCEPTED.read(command)["id"]] = Outcome(status="accepted")
            case "CompleteUpdate":
                answer = events.UPDATE_COMPLETED.read(command)
                outcomes[answer["id"]] = Outcome(status="completed", value=answer["result"])
            case "FailUpdate":
                outcomes[events.UPDATE_FAILED.read(command)["id"]] = failed_outcome(command.attributes)
    outcomes.update((request, Outcome(status="completed")) for request in completion.granted)
    return outcomes
