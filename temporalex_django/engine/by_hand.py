"""What people do to single activities and timers of a run, as data. Pure.

What comes of it are ordinary events of the history, with ``by``: who did it (None: code).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from temporalex_django.core import payloads
from temporalex_django.core.senders import Sender
from temporalex_django.engine import activity_policy
from temporalex_django.engine.other_runs import NewMessage
from temporalex_django.engine.storage import RunState, RunWrite, TaskResult, TaskState

#: Kinds of the events that say which timers are running.
TIMERS: Final = ("TimerStarted", "TimerFired", "TimerCancelled")


def takes_hands(options: Mapping[str, Any]) -> bool:
    """Whether people may complete or fail an activity with these options, or give it another input."""
    return options.get("by_hand") is not False


def input_digests(before: Sequence[Any], kept: Mapping[str, Any], call: Mapping[str, Any]) -> dict[str, str]:
    """The digests of the input that an activity had (``before`` and, by name, ``kept``), and of the one it gets."""
    old = payloads.digest({"args": [*before], "kwargs": {**kept}})
    return {"old": old, "new": payloads.digest({"args": [*call["args"]], "kwargs": {**call["kwargs"]}})}


def retried(task: TaskState, *, now: datetime) -> TaskResult:
    """Due at once; nothing is counted."""
    return TaskResult(task=task, retry_at=now, count=not (task.atomic and task.owner is None))


def edited(task: TaskState, args: Sequence[Any], kwargs: Mapping[str, Any], *, by: Sender | None) -> TaskState:
    """The same with another input: what was done with the old one is not to be taken for it, so the key is another."""
    key = f"{task.run_id}:{task.seq}:{task.fence[1]}"
    return replace(task, args=args, kwargs=kwargs, options={**task.options, "key": key, "edited": _by(by)})


def tried_again(run: RunState, *, now: datetime) -> RunWrite:
    """An atomic activity of a locked run is due: that belongs to a turn."""
    if run.atomic_due is not None:
        run.atomic_due = now
        if not run.paused:
            run.due_at = now
    return RunWrite(run=run)


def completed(task: TaskState, value: Any, *, by: Sender | None, limit: int = payloads.MAX_BYTES) -> TaskResult:
    """Somebody gave the result in place of the worker. Raises ``PayloadError`` for one that is too large."""
    return _signed(activity_policy.completed(task, value, limit=limit, attempts=task.fence[1]), by)


def failed(task: TaskState, *, type: str, message: str, by: Sender | None) -> TaskResult:
    """Somebody said that it failed, for good."""
    facts = {"seq": task.seq, "type": type, "message": message, "attempts": task.fence[1], "timeout": None}
    return _signed(activity_policy.ended(task, "ActivityFailed", facts), by)


def pending_timers(events: Iterable[tuple[str, dict[str, Any]]]) -> dict[int, datetime]:
    """Numbers of the timers that are running, and when they are due, of kinds and attributes of events in order."""
    found: dict[int, datetime] = {}
    for kind, attributes in events:
        if kind == "TimerStarted":
            found[attributes["seq"]] = datetime.fromisoformat(attributes["due"])
        elif kind in TIMERS:
            found.pop(attributes["seq"], None)
    return found


def skip_id(run_id: UUID, seq: int) -> str:
    """Id of the message by which a timer is skipped: there is one at most."""
    return f"skip:{run_id}:{seq}"


def skipped(run: RunState, seq: int, *, by: Sender | None) -> RunWrite:
    """A timer of a locked run fires with its next activation."""
    message = NewMessage(
        kind="timer",
        name="TimerFired",
        body={"seq": seq, **_by(by)},
        chain_id=run.chain_id,
        run_id=run.run_id,
        request_id=skip_id(run.run_id, seq),
    )
    return RunWrite(run=run, messages=[message])


def _signed(result: TaskResult, by: Sender | None) -> TaskResult:
    assert result.outcome is not None
    kind, attributes = result.outcome
    return replace(result, outcome=(kind, {**attributes, **_by(by)}))


def _by(by: Sender | None) -> dict[str, Any]:
    return {"by": None if by is None else by.as_dict()}
