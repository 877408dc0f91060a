"""The attributes of each kind of event. They are JSON data.

``seq`` is the number of the command that an event belongs to. ``sender`` is absent if code sent a message. Those of a
command are the attributes of its event without ``seq``.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class SenderAttributes(TypedDict):
    """A person: see ``core.messages.sender``."""

    key: str
    name: str


class EditedInput(TypedDict):
    """The input that a person gave to an activity. ``by`` is there if the activity itself was edited."""

    args: list[Any]
    kwargs: dict[str, Any]
    key: NotRequired[str]
    by: NotRequired[Any]


CopyMark = TypedDict(
    "CopyMark",
    {
        "how": str,
        "from": str,
        "activation": int,
        "run_id": str,
        "id": str,
        "parent": str | None,
        "excluded": NotRequired[dict[str, str]],
        "edited": NotRequired[dict[str, EditedInput]],
    },
)
CopyMark.__doc__ = "The mark behind copied events: see ``prefix.build_copy_mark``."


class SequenceAttributes(TypedDict):
    """Attributes of an event that says nothing but the number of its command."""

    seq: int


class WorkflowStartedAttributes(TypedDict):
    """``carried`` counts the signals that came from the previous run, and ``failed`` has its failed messages."""

    workflow: str
    id: str
    run_id: str
    version: int
    args: Any
    seed: int
    engine: int
    format: int
    attempt: int
    parent: str | None
    carried: NotRequired[int]
    failed: NotRequired[list[dict[str, Any]]]
    snapshot: NotRequired[dict[str, Any]]
    search_attributes: NotRequired[dict[str, Any]]


class ActivationStartedAttributes(TypedDict):
    """Facts of an activation: see ``activation.Activation``. ``head`` is its token."""

    head: int
    admit_updates: NotRequired[bool]
    max_pending: NotRequired[int | None]
    delivered: NotRequired[list[int]]
    refused: NotRequired[list[int]]
    dispatched: NotRequired[int]
    seed: NotRequired[int]
    copied: NotRequired[CopyMark]


class ActivityScheduledAttributes(TypedDict):
    """``args`` and ``kwargs`` are the input as the code gave it, before an edit."""

    seq: int
    activity: str
    args: list[Any]
    kwargs: NotRequired[dict[str, Any]]
    options: NotRequired[dict[str, Any]]


class ActivityEnd(TypedDict):
    """The part that all ends of an activity share. ``by`` is who ended it by hand: a person, or None for code."""

    seq: int
    by: NotRequired[SenderAttributes | None]
    edited: NotRequired[EditedInput]


class ActivityCompletedAttributes(ActivityEnd):
    """``attempts`` is absent for one attempt."""

    result: Any
    attempts: NotRequired[int]


class ActivityFailedAttributes(ActivityEnd):
    """``timeout`` is the name of the timeout that passed. ``reason`` is that of an ``Err`` of a step."""

    type: str | None
    message: str | None
    attempts: int
    timeout: str | None
    details: NotRequired[Any]
    reason: NotRequired[Any]
    traceback: NotRequired[str | None]


class TimerStartedAttributes(TypedDict):
    """``then``, ``step`` and ``task`` say what the timer is for. ``duration`` is in seconds."""

    seq: int
    duration: float
    due: str
    then: NotRequired[str]
    step: NotRequired[str]
    task: NotRequired[str]


class TimerFiredAttributes(TypedDict):
    """``by`` is who skipped it: a person, or None for code."""

    seq: int
    by: NotRequired[SenderAttributes | None]


class ChildStartedAttributes(TypedDict):
    """``workflow`` is the class. The options are those of a start."""

    seq: int
    workflow: str
    id: str
    args: Any
    parent_close: str
    version: int
    queue: str
    scope: str
    execution_timeout: NotRequired[float | None]
    run_timeout: NotRequired[float | None]
    search_attributes: NotRequired[dict[str, Any] | None]
    tags: NotRequired[list[str] | None]
    metadata: NotRequired[dict[str, Any] | None]


class ChildCompletedAttributes(TypedDict):
    """The result of a child, as its class encodes it."""

    seq: int
    result: Any


class ChildFailedAttributes(TypedDict):
    """``status`` is absent if the child could not be started."""

    seq: int
    type: str
    message: str
    status: NotRequired[str]


class ExternalSignalSentAttributes(TypedDict):
    """A signal to the run of the id."""

    seq: int
    id: str
    name: str
    payload: Any


class ExternalCancelSentAttributes(TypedDict):
    """``child`` is the number of the child that the run stopped waiting for."""

    seq: int
    id: str
    child: NotRequired[int]


class ExternalFailedAttributes(TypedDict):
    """``candidates`` and ``known`` are facts of the errors that have them."""

    seq: int
    type: str
    message: str
    candidates: NotRequired[list[Any]]
    known: NotRequired[list[str]]


class CancelRequestedAttributes(TypedDict):
    """A cancel request."""

    reason: str
    sender: NotRequired[SenderAttributes]


class SignalReceivedAttributes(TypedDict):
    """``id`` is there if the sender gave one. ``question`` and ``shown`` belong to decisions: see ``core.process``."""

    name: str
    payload: Any
    id: NotRequired[str]
    sender: NotRequired[SenderAttributes]
    question: NotRequired[Any]
    shown: NotRequired[Any]


class SignalFailedAttributes(TypedDict):
    """``number`` counts the signals of the run: see ``activation.FailedSignal``."""

    number: int
    id: str
    name: str
    untouched: bool
    type: str
    message: str


class PatchMarkedAttributes(TypedDict):
    """A patch, and True if the code deprecates it."""

    id: str
    deprecated: bool


class UpdateAcceptedAttributes(TypedDict):
    """``after`` is the number of signals before the update."""

    id: str
    name: str
    args: Any
    after: int
    sender: NotRequired[SenderAttributes]


class UpdateCompletedAttributes(TypedDict):
    """The answer to an update."""

    id: str
    name: str
    result: Any


class UpdateFailedAttributes(TypedDict):
    """The exception of the handler of an update."""

    id: str
    name: str
    type: str
    message: str
    details: NotRequired[Any]


class ClosingAttributes(TypedDict):
    """The part that all closing events share.

    - ``outside`` is True if the run was closed from outside by an event that code may write, too.
    - ``never_consumed`` has the names of signals that no code took. ``failed_signals`` has failed ones.
    - ``edited`` has the inputs that people gave to dropped activities, by number. ``unread`` has results that came and
      were never read.
    """

    outside: NotRequired[bool]
    never_consumed: NotRequired[list[str]]
    failed_signals: NotRequired[list[str]]
    edited: NotRequired[dict[str, EditedInput]]
    unread: NotRequired[list[dict[str, Any]]]


class WorkflowCompletedAttributes(ClosingAttributes):
    """The result of the run."""

    result: Any


class WorkflowFailedAttributes(ClosingAttributes):
    """``reason`` is that of ``Err``. ``activity``, ``attempts`` and ``cause`` belong to a failed activity."""

    type: str | None
    message: str | None
    reason: Any
    traceback: NotRequired[str | None]
    details: NotRequired[Any]
    activity: NotRequired[str]
    attempts: NotRequired[int]
    cause: NotRequired[str | None]
    cause_type: NotRequired[str | None]
    step: NotRequired[str]
    step_name: NotRequired[str]


class WorkflowCancelledAttributes(ClosingAttributes):
    """``reason`` is there if the run was closed from outside."""

    reason: NotRequired[str]


class WorkflowContinuedAsNewAttributes(ClosingAttributes):
    """The input of the next run."""

    args: Any


class WorkflowTerminatedAttributes(ClosingAttributes):
    """``run_id`` is the run that continues after a reset."""

    reason: str
    run_id: NotRequired[str]


class WorkflowTimedOutAttributes(ClosingAttributes):
    """The name of the timeout that passed."""

    timeout: str
