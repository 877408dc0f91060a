"""Operations of people on a run, such as pause, a skipped timer or a result entered by hand. No I/O.

They produce ordinary events of the history. The attribute ``by`` of such an event is the person, or None for code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from temporalex_django.core.history.events import CLOSED_STATUSES, end_kinds_of
from temporalex_django.core.messages.sender import Sender
from temporalex_django.core.names import gettext_noop
from temporalex_django.core.payloads import codec
from temporalex_django.engine import activity_policy
from temporalex_django.engine.blocked import CRASH
from temporalex_django.engine.contracts.records import BlockMark, PauseMark, RunState, RunWrite, TaskResult, TaskState
from temporalex_django.engine.external_messages import NewMessage
from temporalex_django.errors import ActionNotPossible, PayloadError, WorkflowClosed

_TIMER_ENDS = end_kinds_of("timer")

# --- rules ------------------------------------------------------------------------------------------------------------
#
# The operations of people on a run: who may perform each of them, with what inputs, and when it is impossible.
#
# A reason is a text that the caller may translate. ``{status}`` in it stands for the words of the run's status.


#: A condition of an operation: a test of a run or an activity, and the reason why the operation is impossible without.
Condition = tuple[Callable[[Any], bool], str]

_OPEN: Final[Condition] = (
    lambda run: run.status not in CLOSED_STATUSES,
    gettext_noop("the run is already closed ({status})"),
)
_CLOSED: Final[Condition] = (
    lambda run: run.status in CLOSED_STATUSES,
    gettext_noop("the run is open: cancel or terminate it first"),
)
_PAUSED: Final[Condition] = (lambda run: run.paused is not None, gettext_noop("the run is not paused"))
_BLOCKED: Final[Condition] = (lambda run: run.blocked is not None, gettext_noop("the run is not blocked"))
_IDLE: Final[Condition] = (lambda task: task.owner is None, gettext_noop("an attempt is running now"))
_TRIED: Final[Condition] = (lambda task: task.attempt > 0, gettext_noop("it has not been attempted yet"))

EARLIER_RUN: Final = gettext_noop("this belongs to an earlier run: the chain has continued as new")
NO_SUCH_ACTIVITY: Final = gettext_noop("no activity with that number is open: it has ended, or was cancelled")
NOT_BY_HAND: Final = gettext_noop("the code of the activity does not allow operators to do this (by_hand=False)")
ALREADY_FIRED: Final = gettext_noop("somebody has already fired it")
ALREADY_DUE: Final = gettext_noop("it is already due: the next worker that polls its queue retries it")
NO_FAILED_MESSAGE: Final = gettext_noop("the run has no failed message")
NO_SUCH_FAILED_MESSAGE: Final = gettext_noop("the run has no failed message with the id {id}")
CHAIN_EXPIRED: Final = gettext_noop("the time limit of its chain (execution_timeout) has passed: fork it instead")
ID_TAKEN: Final = gettext_noop("another open run now has its id")


def _unpaused(reason: str) -> Condition:
    return lambda run: run.paused is None, reason


@dataclass(frozen=True, slots=True)
class OperatorRule:
    """The rule of one operation of people on a run.

    - ``permission``: the code name of the model permission that a user needs.
    - ``run``: the conditions of the run.
    - ``task``: the conditions of the activity; None if the operation is not about one.
    - ``inputs``: the types of its inputs by name, or the choices of a text. ``object`` stands for any JSON.
    - ``edits``: the input that replaces the input of activities, which needs further permissions, or "".
    - ``sees_payloads``: True if the user needs ``view_payload`` too: nobody should answer for an activity without
      having seen its input.
    """

    permission: str
    run: Sequence[Condition] = (_OPEN,)
    task: Sequence[Condition] | None = None
    inputs: Mapping[str, type | tuple[str, ...]] = field(default_factory=dict)
    edits: str = ""
    sees_payloads: bool = False

    def further_permissions(self, inputs: Mapping[str, Any]) -> list[str]:
        """Return the code names of the permissions that a user needs besides ``permission`` for these inputs."""
        edits = bool(self.edits) and inputs.get(self.edits) is not None
        return ["edit_activity_input"] * edits + ["view_payload"] * (edits or self.sees_payloads)


def why_not(conditions: Sequence[Condition] | None, subject: object) -> str | None:
    """Return the reason of the first condition that a run or an activity does not meet, or None."""
    return next((reason for is_met, reason in conditions or () if not is_met(subject)), None)


#: Choices for the messages behind the point of a reset or fork: they are delivered again, or dropped.
REDELIVER, DROP = "again", "drop"
_REPLAY: Final[dict[str, type | tuple[str, ...]]] = {"to": int, "messages": (REDELIVER, DROP), "edited": object}

#: The rules of all operations of people on a run, by name.
OPERATOR_RULES: Final[Mapping[str, OperatorRule]] = {
    "cancel": OperatorRule("cancel_instance"),
    "complete_activity": OperatorRule("complete_activity", task=(), inputs={"result": object}, sees_payloads=True),
    "delete": OperatorRule("delete_instance", (_CLOSED,)),
    "discard": OperatorRule("redeliver_message", (), inputs={"message": str}),
    "fail_activity": OperatorRule("fail_activity", task=(), inputs={"message": str, "type": str}, sees_payloads=True),
    "fork": OperatorRule("reset_instance", (), inputs={**_REPLAY, "id": str}, edits="edited"),
    "pause": OperatorRule("pause_instance", (_OPEN, _unpaused(gettext_noop("the run is already paused")))),
    "redeliver": OperatorRule("redeliver_message", inputs={"message": str}),
    "reset": OperatorRule("reset_instance", (), inputs=_REPLAY, edits="edited"),
    "retry_activity": OperatorRule("retry_activity", task=(_IDLE, _TRIED), inputs={"input": object}, edits="input"),
    "skip_timer": OperatorRule("retry_activity"),
    "terminate": OperatorRule("terminate_instance"),
    "try_again": OperatorRule(
        "pause_instance", (_OPEN, _BLOCKED, _unpaused(gettext_noop("the run is paused: unpause it first")))
    ),
    "unpause": OperatorRule("pause_instance", (_OPEN, _PAUSED)),
}


def check_input(name: str, value: Any, *, kind: type | tuple[str, ...], limit: int = codec.MAX_BYTES) -> Any:
    """Return the value of an input of an operation as it will be stored.

    Raises ``PayloadError`` if it is not of the ``kind``: a type (str, int, bool, float, or object for any JSON), or the
    choices of a text. Raises it also if the JSON is larger than ``limit`` bytes.
    """
    label, choices = f"the input {name!r}", kind if isinstance(kind, tuple) else ()
    if isinstance(kind, tuple):
        kind = str
    if kind is object:
        return codec.to_plain(value, label=label, limit=limit)
    # bool is a subclass of int, so True and 1 must be distinguished by hand; an int is accepted as a float.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (isinstance(value, kind) and is_number == (kind in (int, float))) and not (kind is float and is_number):
        raise PayloadError(f"{label} must be {kind.__name__}, not {type(value).__name__}")
    if kind is str:
        value = codec.check_text(value, label=label)
    if choices and value not in choices:
        raise PayloadError(f"{label} must be one of {', '.join(choices)}")
    return value


def refusal_error(
    operation: str, run_label: str, reason: object, *, closed: bool
) -> WorkflowClosed | ActionNotPossible:
    """Return the error for an ``operation`` on the run ``run_label`` that is impossible for the ``reason``.

    It is ``WorkflowClosed`` if the run is ``closed``.
    """
    message = f"{operation} of {run_label} refused: {reason}"
    return WorkflowClosed(message) if closed else ActionNotPossible(message)


# --- overrides --------------------------------------------------------------------------------------------------------
#
# The writes of the operations.


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
