"""The attributes of each kind of event. They are JSON data.

``seq`` is the number of the command that an event belongs to. ``sender`` is absent if code sent a message. A command
has the attributes of the event that it becomes, without ``seq``.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class SenderAttributes(TypedDict):
    """The person who sent a message: the ``key`` and ``name`` of ``core.messages.sender.Sender``."""

    key: str
    name: str


class EditedInput(TypedDict):
    """The input that a person gave to an activity in place of the input from the code.

    ``key`` is the idempotency key that goes with it. ``by`` says who edited the activity itself. It is absent if a
    reset gave the input.
    """

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
    """Attributes of an event that has nothing but ``seq``, the number of its command."""

    seq: int


class WorkflowStartedAttributes(TypedDict):
    """The input of a run and the facts with which it starts.

    ``engine`` is the engine number, and ``format`` the number of the format of the stored events. ``attempt`` is the
    number of the run in its chain. ``scheduled_for`` is the time of the slot of a schedule (ISO 8601, UTC). ``carried``
    counts the signals that came from the previous run, and ``failed`` has its failed messages. ``headers`` are those of
    the start.
    """

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
    scheduled_for: NotRequired[str]
    carried: NotRequired[int]
    failed: NotRequired[list[dict[str, Any]]]
    snapshot: NotRequired[dict[str, Any]]
    search_attributes: NotRequired[dict[str, Any]]
    headers: NotRequired[dict[str, str]]


class ActivationStartedAttributes(TypedDict):
    """Facts of an activation; see ``activation.Activation``.

    ``head`` is a random number: only an executor in memory that knows it has seen this activation, and may be used
    again. ``delivered`` has the command numbers of messages to other runs that have reached an inbox.
    """

    head: int
    admit_updates: NotRequired[bool]
    max_pending: NotRequired[int | None]
    max_calls: NotRequired[int]
    max_bytes: NotRequired[int]
    delivered: NotRequired[list[int]]
    refused: NotRequired[list[int]]
    denied: NotRequired[list[str]]
    dispatched: NotRequired[int]
    seed: NotRequired[int]
    copied: NotRequired[CopyMark]


class ActivityScheduledAttributes(TypedDict):
    """The call of an activity. ``args`` and ``kwargs`` are the input from the code, before a person edited it.

    ``options`` are the ``ActivityOptions`` that are set, as plain data.
    """

    seq: int
    activity: str
    args: list[Any]
    kwargs: NotRequired[dict[str, Any]]
    options: NotRequired[dict[str, Any]]


class ActivityEnd(TypedDict):
    """Attributes that all events share with which an activity ends.

    ``by`` is there if the activity was ended by hand: the person, or None for code. ``edited`` is the input that a
    person gave to the activity.
    """

    seq: int
    by: NotRequired[SenderAttributes | None]
    edited: NotRequired[EditedInput]


class ActivityCompletedAttributes(ActivityEnd):
    """The result of an activity. ``attempts`` is absent if there was one attempt.

    ``begin`` is the time at which the attempt began, as an ISO text, and ``worker`` the name of its worker. They are
    absent for an atomic activity, which its turn runs, and for a result that a person gave.
    """

    result: Any
    attempts: NotRequired[int]
    begin: NotRequired[str]
    worker: NotRequired[str]


class ActivityFailedAttributes(ActivityEnd):
    """The failure of an activity. ``timeout`` is the name of the timeout that passed, or None.

    ``reason`` is there for a step that returned ``Err(reason)``.
    """

    type: str | None
    message: str | None
    attempts: int
    timeout: str | None
    details: NotRequired[Any]
    reason: NotRequired[Any]
    traceback: NotRequired[str | None]


class TimerStartedAttributes(TypedDict):
    """A timer: its ``duration`` in seconds, and ``due`` as an ISO text.

    ``then`` says what follows when it fires. ``step`` or ``task`` is the key of the step or human task that it belongs
    to.
    """

    seq: int
    duration: float
    due: str
    then: NotRequired[str]
    step: NotRequired[str]
    task: NotRequired[str]


class TimerFiredAttributes(TypedDict):
    """A timer that fired. ``by`` is there if somebody skipped it: the person, or None for code."""

    seq: int
    by: NotRequired[SenderAttributes | None]


class ChildStartedAttributes(TypedDict):
    """The start of a child: the name of its class in ``workflow``, and the options of the start.

    Timeouts are in seconds. ``parent_close`` says what happens to the child when its parent closes. ``start_at`` and
    ``start_before`` are times in ISO format.
    """

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
    start_at: NotRequired[str]
    start_before: NotRequired[str]


class ChildCompletedAttributes(TypedDict):
    """The result of a child, as its class encodes it."""

    seq: int
    result: Any


class ChildFailedAttributes(TypedDict):
    """The failure of a child. ``status`` is its final status, and is absent if the child could not be started."""

    seq: int
    type: str
    message: str
    status: NotRequired[str]


class ExternalSignalSentAttributes(TypedDict):
    """A signal ``name`` to the run with the business id ``id``."""

    seq: int
    id: str
    name: str
    payload: Any


class ExternalCancelSentAttributes(TypedDict):
    """A cancel request to the run with the business id ``id``.

    ``child`` is there if that run is a child for which this run stopped waiting: the number of the command that started
    it.
    """

    seq: int
    id: str
    child: NotRequired[int]


class ExternalFailedAttributes(TypedDict):
    """The error of a signal or cancel request that reached no other run.

    ``candidates`` are the runs that an ambiguous id may mean, and ``known`` the signals that the other run declares.
    """

    seq: int
    type: str
    message: str
    candidates: NotRequired[list[Any]]
    known: NotRequired[list[str]]


class CancelRequestedAttributes(TypedDict):
    """A cancel request, with its reason. ``sender`` is there if a person sent it."""

    reason: str
    sender: NotRequired[SenderAttributes]


class SignalReceivedAttributes(TypedDict):
    """A signal. ``id`` and ``headers`` are there if the sender gave some.

    A decision of a human task is recorded as a signal, too. ``question`` and ``shown`` belong to it; see
    ``core.process``.
    """

    name: str
    payload: Any
    id: NotRequired[str]
    sender: NotRequired[SenderAttributes]
    headers: NotRequired[dict[str, str]]
    question: NotRequired[Any]
    shown: NotRequired[Any]


class SignalFailedAttributes(TypedDict):
    """A signal whose handler failed. For ``number`` and ``untouched`` see ``activation.FailedSignal``."""

    number: int
    id: str
    name: str
    untouched: bool
    type: str
    message: str
    details: NotRequired[Any]


class PatchMarkedAttributes(TypedDict):
    """The marker of a patch: its id, and whether the code has deprecated the patch."""

    id: str
    deprecated: bool


class UpdateAcceptedAttributes(TypedDict):
    """An accepted update. ``after`` is the number of signals that the run had received before the update.

    ``waits`` is True if the update was accepted before a phase took it, after a reset on a cluster.
    """

    id: str
    name: str
    args: Any
    after: int
    waits: NotRequired[bool]
    sender: NotRequired[SenderAttributes]
    headers: NotRequired[dict[str, str]]


class UpdateCompletedAttributes(TypedDict):
    """The answer to an update (``result``). ``id`` is the message id of the update, and ``name`` its name."""

    id: str
    name: str
    result: Any


class UpdateFailedAttributes(TypedDict):
    """The exception of the handler of an update. ``id`` is the message id of the update, and ``name`` its name."""

    id: str
    name: str
    type: str
    message: str
    details: NotRequired[Any]


class ClosingAttributes(TypedDict):
    """Attributes that all events share with which a run closes.

    - ``outside`` is True if the run was closed from outside by an event that code may write, too.
    - ``never_consumed`` has the names of signals that no code took, and ``failed_signals`` the names of failed
      messages.
    - ``edited`` has the inputs that people gave to dropped activities, by number of the command.
    - ``unread`` has results that came and were never read.
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
    """The failure of a run. ``reason`` is that of ``Err(reason)``.

    ``activity``, ``attempts``, ``cause``, ``cause_type`` and ``cause_traceback`` are there if the run failed with an
    activity. ``step`` and ``step_name`` name the step that failed; if its activity failed, ``activity`` and
    ``cause_traceback`` are there too.
    """

    type: str | None
    message: str | None
    reason: Any
    traceback: NotRequired[str | None]
    details: NotRequired[Any]
    activity: NotRequired[str]
    attempts: NotRequired[int]
    cause: NotRequired[str | None]
    cause_type: NotRequired[str | None]
    cause_traceback: NotRequired[str]
    step: NotRequired[str]
    step_name: NotRequired[str]


class WorkflowCancelledAttributes(ClosingAttributes):
    """The end of a cancelled run. ``reason`` is there if the run was closed from outside."""

    reason: NotRequired[str]


class WorkflowContinuedAsNewAttributes(ClosingAttributes):
    """The end of a run that continues as new. ``args`` is the input of the next run."""

    args: Any


class WorkflowTerminatedAttributes(ClosingAttributes):
    """The reason for which a run was terminated. ``run_id`` is the run that continues after a reset."""

    reason: str
    run_id: NotRequired[str]


class WorkflowTimedOutAttributes(ClosingAttributes):
    """The end of a run that timed out. ``timeout`` is ``execution_timeout`` or ``run_timeout``."""

    timeout: str
