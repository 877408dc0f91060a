"""Running of atomic activities inside the transaction of a turn (see decision 4)."""

from __future__ import annotations

from typing import Any

from temporalex_django import signals
from temporalex_django.authoring import activity, workflow
from temporalex_django.authoring.activity import Activity
from temporalex_django.authoring.activity_context import use_context
from temporalex_django.conf import codec, get_settings
from temporalex_django.core import process
from temporalex_django.core.payloads.codec import error_reason
from temporalex_django.db.attempt_scope import call_in_scope
from temporalex_django.db.graph_storage import TaskSource
from temporalex_django.engine import activity_policy
from temporalex_django.engine.contracts.records import TaskResult, TaskState
from temporalex_django.engine.executors import attempt_hooks
from temporalex_django.errors import KeyMissing, PayloadError


def run_atomic_activity(task: TaskState) -> TaskResult:
    """Run an atomic activity inside the turn's transaction, and return its result.

    Raises what the function raises. Raises ``PayloadError`` if a payload does not fit, and
    ``activity_policy.ActivityUnavailable`` if this process lacks code or a key.
    """
    try:
        act = activity.find(task.activity)
        fn, args, kwargs = act.decode_call(task.args, task.kwargs, TaskSource(task))
    except activity_policy.UNAVAILABLE_ERRORS as exc:
        raise activity_policy.ActivityUnavailable(str(exc)) from exc
    send_activity_signal("activity_started", task, attempt=task.attempt)

    def call() -> Any:
        with attempt_hooks(task), use_context(activity_policy.activity_context(task)):
            process.reached("atomic effect: before")
            value = fn(*args, **kwargs)
            process.reached("atomic effect: after")
            return value

    value = call_in_scope(task.activity, call, atomic=True)
    try:
        return completed_result(task, act.encode_result(value, task.args, TaskSource(task)), act)
    except KeyMissing as exc:  # none of its writes are committed, so another worker can run it
        raise activity_policy.ActivityUnavailable(str(exc)) from exc


def completed_result(task: TaskState, value: Any, act: Activity[Any, Any], **about: str) -> TaskResult:
    """Return the result of an attempt that returned ``value``, which is plain data.

    ``about`` has further attributes of the event of the result: ``begin`` and ``worker``. Raises ``PayloadError`` if it
    cannot be stored.
    """
    result = activity_policy.completed_result(task, value, limit=get_settings().MAX_PAYLOAD_BYTES, activity=act)
    assert result.outcome is not None
    result.outcome[1].update(about)
    result.encoded = encode_payload(result.outcome[1], description=f"the result of {task.activity}")
    return result


def encode_payload(value: Any, *, description: str) -> bytes:
    """Encode plain data with the codec.

    ``description`` names the data in errors. Raises ``KeyMissing`` if this process lacks a key, and ``PayloadError``
    for any other error of the codec.
    """
    try:
        return codec().encode(value)
    except KeyMissing:
        raise
    except Exception as exc:
        raise PayloadError(f"{description} cannot be stored: {error_reason(exc)}") from exc


def send_activity_signal(name: str, task: TaskState, **facts: Any) -> None:
    """Send the Django signal ``name`` (of ``signals.ALL``) about an activity, if it has receivers.

    ``facts`` are further arguments of the signal.
    """
    signal = signals.ALL[name]
    if not signal.receivers:
        return
    sender = workflow.signal_sender(task.workflow)
    if signal.has_listeners(sender):
        signals.send(
            name,
            sender,
            workflow=task.workflow,
            workflow_id=task.workflow_id,
            run_id=str(task.run_id),
            activity=task.activity,
            seq=task.seq,
            **facts,
        )
