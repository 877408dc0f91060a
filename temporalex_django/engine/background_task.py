"""Background tasks: Django tasks that were enqueued by themselves and not called by a run, as data. No I/O.

Beside the options of every activity, their ``options`` hold ``backend`` (its alias), ``run_after`` and ``retention``
(seconds for which the result is kept). Their ``log`` has an entry for each attempt that has ended. See decision 44.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple
from uuid import UUID

from temporalex_django.core.failures import clean_traceback, exception_name, run_failure_cause
from temporalex_django.engine import activity_policy
from temporalex_django.engine.contracts.records import TaskResult, TaskState

Status = Literal["READY", "RUNNING", "FAILED", "SUCCESSFUL", "CANCELLED"]
#: Exceptions for failures without an exception of the task: those that an awaiting workflow would get.
_FAILURE_CLASS = "temporalex_django.errors.ActivityFailure"
_TIMEOUT_CLASS = "builtins.TimeoutError"
_CANCELLED_CLASS = "temporalex_django.errors.TaskCancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundTask:
    """A background task in its present state.

    ``path`` is the import path of its function, and ``backend`` the alias of its task backend. ``log`` holds its
    attempts, each in the form of ``log_entry``. ``value`` is the result of a successful task. ``waits_for`` names what
    the last worker lacked that deferred it. ``cancelled_at`` is when somebody asked a running task to end. ``progress``
    is the last one that an attempt reported (``done``, ``total``, ``text``), and ``enqueued_by`` the run whose activity
    enqueued it.
    """

    id: UUID
    path: str
    backend: str
    queue: str
    priority: int
    status: Status
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    enqueued_at: datetime
    run_after: datetime | None = None
    finished_at: datetime | None = None
    log: Sequence[Mapping[str, Any]] = ()
    value: Any = None
    attempts: int = field(default=0)
    waits_for: str | None = None
    cancelled_at: datetime | None = None
    progress: Mapping[str, Any] | None = None
    enqueued_by: UUID | None = None

    @property
    def started_at(self) -> datetime | None:
        """The time at which the first attempt started, or None if none has."""
        return next((moment for moment in self._attempt_times), None)

    @property
    def last_attempted_at(self) -> datetime | None:
        return next((moment for moment in reversed(self._attempt_times)), None)

    @property
    def worker_ids(self) -> list[str]:
        return [attempt["worker"] for attempt in self.log if attempt["worker"]]

    @property
    def errors(self) -> list[Mapping[str, str]]:
        """The ``class`` (its path) and ``traceback`` of each attempt that failed."""
        return [attempt["error"] for attempt in self.log if attempt["error"]]

    @property
    def _attempt_times(self) -> list[datetime]:
        return [datetime.fromisoformat(attempt["at"]) for attempt in self.log if attempt["at"]]


def log_entry(worker: int | None, at: datetime | None, error: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the log entry of an attempt of a background task.

    ``worker`` is the epoch of the worker (the number under which it owns what it claims), ``at`` the time when the
    attempt started, and ``error`` its class path and traceback, or None.
    """
    return {
        "worker": None if worker is None else str(worker),
        "at": None if at is None else at.isoformat(),
        "error": None if error is None else dict(error),
    }


def error_entry(error: BaseException) -> dict[str, str]:
    """Return an exception as the log of a background task stores it: ``{"class": path, "traceback": text}``."""
    cls = type(error)
    return {"class": f"{cls.__module__}.{exception_name(cls)}", "traceback": clean_traceback(error)}


def attempt_log(options: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the log entries of the attempts that have ended, from the options of a background task."""
    return list(options.get("log") or ())


def options_with_log(result: TaskResult) -> dict[str, Any]:
    """Return the options of the background task of ``result``, with the attempt that has ended in their ``log``.

    The options of a task have an entry for each attempt. An attempt that does not count is not added.
    """
    task, log = result.task, attempt_log(result.task.options)
    if result.count:
        log.append(log_entry(task.owner, task.started_at, _attempt_error(result)))
    return {**task.options, "log": log}


def _attempt_error(result: TaskResult) -> Mapping[str, str] | None:
    if result.error_entry is not None:
        return result.error_entry
    if result.failure is not None:
        kind, message = result.failure.type, result.failure.message
    elif result.outcome is not None and result.outcome[0] == activity_policy.CANCELLED:
        return {"class": _CANCELLED_CLASS, "traceback": f"TaskCancelled: {activity_policy.CANCELLED_TEXT}"}
    elif result.outcome is not None and result.outcome[0] != "ActivityCompleted":
        kind, message = result.outcome[1]["type"], result.outcome[1]["message"]
    else:
        return None
    return {"class": _TIMEOUT_CLASS if kind == "TimeoutError" else _FAILURE_CLASS, "traceback": f"{kind}: {message}"}


class TaskEnd(NamedTuple):
    """The columns that a background task gets when it has ended, in addition to those of its activity row.

    ``task`` is the import path of the function, and ``outcome`` holds the attributes of the last event, with the value
    or the failure. ``cause`` and ``fault`` are those of a failure, see ``core.failures.FailureCause``. After
    ``keep_until`` the row is deleted; None keeps it.
    """

    task: str
    backend: str
    options: dict[str, Any]
    outcome: Any
    status: str
    cause: str | None
    fault: str | None
    attempts: int
    started_at: datetime | None
    finished_at: datetime
    keep_until: datetime | None


def task_end(result: TaskResult, now: datetime) -> TaskEnd:
    """Return the columns of a background task that ended at ``now`` with ``result``, the result of its last attempt.

    ``outcome`` is encoded if the result was encoded before.
    """
    assert result.outcome is not None
    task, options, retention = result.task, options_with_log(result), result.task.options.get("retention")
    kind, attributes = result.outcome
    first_started_at = next(
        (datetime.fromisoformat(attempt["at"]) for attempt in options["log"] if attempt["at"]), None
    )
    cause = None if kind in ("ActivityCompleted", activity_policy.CANCELLED) else run_failure_cause(attributes)
    return TaskEnd(
        task=function_path(task.activity),
        backend=str(options.get("backend")),
        options=options,
        outcome=attributes if result.encoded is None else result.encoded,
        status=task_status(kind),
        cause=None if cause is None else cause.text,
        fault=None if cause is None else cause.fault,
        attempts=task.attempt,
        started_at=first_started_at,
        # The worker reckoned the start by an earlier reading of the database's clock, so it may lie after ``now``.
        finished_at=now if first_started_at is None else max(now, first_started_at),
        keep_until=None if retention is None else now + timedelta(seconds=retention),
    )


def task_status(kind: str) -> Status:
    """Return the status for a kind of result, such as ``ActivityCompleted``."""
    if kind == activity_policy.CANCELLED:
        return "CANCELLED"
    return "SUCCESSFUL" if kind == "ActivityCompleted" else "FAILED"


def function_path(activity: str) -> str:
    """Return the import path of the function of a background task, from the name of its activity."""
    return activity.partition(":")[2]


def started_task(task: TaskState) -> BackgroundTask:
    """Return the background task of an activity whose attempt runs now; its log ends with an entry for that attempt."""
    return _from_state(
        task, status="RUNNING", log=[*attempt_log(task.options), log_entry(task.owner, task.started_at, None)]
    )


def finished_task(result: TaskResult, now: datetime) -> BackgroundTask:
    """Return the background task that ``result`` ended at ``now``, with its value and its status."""
    assert result.outcome is not None
    kind, attributes = result.outcome
    changes: dict[str, Any] = {"status": task_status(kind), "log": options_with_log(result)["log"], "finished_at": now}
    return _from_state(result.task, **changes, value=attributes.get("result"))


def _from_state(task: TaskState, **changes: Any) -> BackgroundTask:
    run_after = task.options.get("run_after")
    return BackgroundTask(
        id=task.run_id,
        path=function_path(task.activity),
        backend=str(task.options.get("backend")),
        queue=task.queue,
        priority=int(task.options.get("priority") or 0),
        args=task.args,
        kwargs=task.kwargs,
        enqueued_at=task.scheduled_at,
        run_after=None if run_after is None else datetime.fromisoformat(run_after),
        attempts=task.attempt,
        **changes,
    )


def killed_result(task: TaskState, reason: str) -> TaskResult:
    """Return the final failure of a background task during which too many workers died."""
    return TaskResult(
        task=task, outcome=("ActivityFailed", activity_policy.worker_lost_attributes(task.seq, task.attempt, reason))
    )
