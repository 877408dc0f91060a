"""Operations of people on a run, such as pause, a skipped timer or a result entered by hand. No I/O.

They produce ordinary events of the history. The attribute ``by`` of such an event is the person, or None for code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from temporalex_django.core.history.events import end_kinds_of
from temporalex_django.core.messages.sender import Sender
from temporalex_django.core.payloads import codec
from temporalex_django.engine import activity_policy
from temporalex_django.engine.blocked import CRASH
from temporalex_django.engine.contracts.records import BlockMark, PauseMark, RunState, RunWrite, TaskResult, TaskState
from temporalex_django.engine.external_messages import NewMessage

_TIMER_ENDS = end_kinds_of("timer")


def allows_overrides(options: Mapping[str, Any]) -> bool:
    """Return True if the ``options`` of an activity let people complete or fail it, or give it another input."""
    return options.get("by_hand") is not False


def input_digests(old_args: Sequence[Any], old_kwargs: Mapping[str, Any], call: Mapping[str, Any]) -> dict[str, str]:
    """Return the digests of an activity's old and new input, as ``{"old": digest, "new": digest}``, for the audit log.

    ``old_args`` and ``old_kwargs`` are the old input. ``call`` has the new one, by ``args`` and ``kwargs``.
    """
    old_digest = codec.digest({"args": [*old_args], "kwargs": {**old_kwargs}})
    return {"old": old_digest, "new": codec.digest({"args": [*call["args"]], "kwargs": {**call["kwargs"]}})}


def immediate_retry(task: TaskState, *, now: datetime) -> TaskResult:
    """Return a result that makes a failed activity due at ``now``; it does not count as an attempt."""
    # An atomic one without an owner counts the attempt to come, see ``TaskStorage.find_task``: that is taken off again.
    return TaskResult(task=task, retry_at=now, count=not (task.atomic and task.owner is None))


def with_edited_input(
    task: TaskState, args: Sequence[Any], kwargs: Mapping[str, Any], *, sender: Sender | None
) -> TaskState:
    """Return the activity with another input (``args`` and ``kwargs``) and another idempotency key.

    With the old key, an effect of the old input would count as one of the new input. ``sender`` is the person who
    edited it.
    """
    key = f"{task.run_id}:{task.seq}:{task.fence[1]}"
    return replace(
        task, args=args, kwargs=kwargs, options={**task.options, "key": key, "edited": _sender_attribute(sender)}
    )


def retry_atomic(run: RunState, *, now: datetime) -> RunWrite:
    """Make the atomic activities of a run due now, and return the ``RunWrite`` to store.

    The caller has locked the run. A turn then runs the activities. A paused run stays paused.
    """
    if run.atomic_due is not None:
        run.atomic_due = now
        if not run.paused:
            run.due_at = now
    return RunWrite(run=run)


def operator_completion(
    task: TaskState, value: Any, *, sender: Sender | None, limit: int = codec.MAX_BYTES
) -> TaskResult:
    """Return the final result of an activity with the value that a person (``sender``) gave for it.

    ``limit`` is the largest size of the value in bytes; ``PayloadError`` is raised for a larger one.
    """
    return _with_sender(activity_policy.completed_result(task, value, limit=limit, attempts=task.fence[1]), sender)


def operator_failure(task: TaskState, *, type: str, message: str, sender: Sender | None) -> TaskResult:
    """Return the final failure of an activity that a person (``sender``) declared, with its type and message."""
    attributes = {"seq": task.seq, "type": type, "message": message, "attempts": task.fence[1], "timeout": None}
    return _with_sender(activity_policy.final_result(task, "ActivityFailed", attributes), sender)


def pending_timers(events: Iterable[tuple[str, dict[str, Any]]]) -> dict[int, datetime]:
    """Return the due times of the timers that still run, by the number of their command.

    ``events`` are the kinds and attributes of a run's events, in the order of its history.
    """
    due_times: dict[int, datetime] = {}
    for kind, attributes in events:
        # What stands in place of attributes that cannot be read is no dict. Such a run is blocked, and has no timer.
        if not isinstance(attributes, dict) or "seq" not in attributes:
            continue
        if kind == "TimerStarted":
            due_times[attributes["seq"]] = datetime.fromisoformat(attributes["due"])
        elif kind in _TIMER_ENDS:
            due_times.pop(attributes["seq"], None)
    return due_times


def absent_timer_text(numbers: Iterable[int]) -> str:
    """Return why a timer that does not run cannot be skipped; ``numbers`` are those of the timers that run."""
    text = "no timer with that number is running: it has fired, was cancelled, or never began"
    if running := ", ".join(map(str, sorted(numbers))):
        text += f"; the timers that run: {running}"
    return text


def skip_message_id(run_id: UUID, seq: int) -> str:
    """Return the id of the message that skips the timer of command ``seq``; sent twice, it counts once."""
    return f"skip:{run_id}:{seq}"


def skip_timer(run: RunState, seq: int, *, sender: Sender | None) -> RunWrite:
    """Make a locked run due with a message that lets the timer of command ``seq`` fire, and return the changes.

    The changes are a ``RunWrite`` to store. ``sender`` is the person who skips the timer, or None for code.
    """
    message = NewMessage(
        kind="timer",
        name="TimerFired",
        payload={"seq": seq, **_sender_attribute(sender)},
        chain_id=run.chain_id,
        run_id=run.run_id,
        message_id=skip_message_id(run.run_id, seq),
    )
    return RunWrite(run=run, messages=[message])


def _with_sender(result: TaskResult, sender: Sender | None) -> TaskResult:
    assert result.outcome is not None
    kind, attributes = result.outcome
    return replace(result, outcome=(kind, {**attributes, **_sender_attribute(sender)}))


def _sender_attribute(sender: Sender | None) -> dict[str, Any]:
    return {"by": None if sender is None else sender.as_dict()}


def pause_run(run: RunState, *, reason: str, sender: Sender | None, now: datetime) -> RunWrite:
    """Pause a run, and return the ``RunWrite`` to store. The caller has locked the run.

    ``sender`` is the person who pauses it, or None for code.
    """
    run.paused = True
    run.due_at = None
    mark: PauseMark = {"since": now.isoformat(), "reason": reason, "by": None if sender is None else sender.as_dict()}
    return RunWrite(run=run, instance={"paused": mark})


def unpause_run(run: RunState, *, blocked: BlockMark | None, now: datetime) -> RunWrite:
    """End the pause of a run, which is then due and reads all messages that came meanwhile.

    Returns the ``RunWrite`` to store. The caller has locked the run. ``blocked`` says why the run is also blocked, or
    is None. A run that is blocked because it ended processes is not made due. That would be a try that nobody asked for
    (see decision 22).
    """
    run.paused = False
    if blocked is not None and blocked["code"] == CRASH:
        run.due_at = run.deadline
    else:
        run.due_at = now
    return RunWrite(run=run, instance={"paused": None})
