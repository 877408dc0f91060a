"""The table of the kinds of events, with their traits and the types of their attributes.

Every other collection of kinds is derived from it; see ``events``. Jobs and commands have no rows of their own: they
share the attributes of the events that they become, except for the few jobs that ``events.Job`` names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, Protocol, TypeVar, cast

from temporalex_django.core.history import attributes as a

A_co = TypeVar("A_co", covariant=True)
#: Things that begin with one event and end with another.
Thing = Literal["activity", "timer", "child", "external", "update"]


class _Entry(Protocol):
    """A job, command or event, as far as its attributes are read."""

    @property
    def attributes(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EventKind(Generic[A_co]):
    """One row of the table of kinds.

    - ``attributes`` is the type of its attributes, and ``meaning`` a text for readers of the documentation.
    - ``command`` is the kind of the command that produces it, and ``second_command`` another one. An event without one
      was delivered to the code, or recorded before the code ran, or is ``from_outside``: a person or a timeout closed
      the run.
    - ``resolves`` is True if it answers a command, whose number it has.
    - ``thing`` is what it is about. ``ends_as`` is the state of that thing after it; None if the thing begins with it.
    - ``closes_as`` is the status of the run after it; None if it leaves the run open.
    - ``name_attribute`` is the attribute that names the activity, message or run. A replay compares its value.
    - ``inputs`` are the attributes that are inputs, and ``duration`` one that is a time. A replay reports differences.
    """

    name: str
    attributes: type[A_co]
    meaning: str
    command: str | None = None
    second_command: str | None = None
    from_outside: bool = False
    resolves: bool = False
    thing: Thing | None = None
    ends_as: str | None = None
    closes_as: str | None = None
    name_attribute: str | None = None
    inputs: Sequence[str] = ()
    duration: str | None = None

    @property
    def has_input(self) -> bool:
        """True if events of this kind have an input or a duration, whose differences a replay reports."""
        return bool(self.inputs) or self.duration is not None

    def read(self, entry: _Entry) -> A_co:
        """Return the attributes of ``entry`` with their type.

        ``entry`` is an event of this kind, or its job or command.
        """
        return cast("A_co", entry.attributes)


WORKFLOW_STARTED: Final = EventKind(
    name="WorkflowStarted",
    attributes=a.WorkflowStartedAttributes,
    meaning="the run started: its input, class, version, seed, engine number",
)
ACTIVATION_STARTED: Final = EventKind(
    name="ActivationStarted",
    attributes=a.ActivationStartedAttributes,
    meaning="an activation began; everything up to the next one belongs to one moment and one transaction",
)
ACTIVITY_COMPLETED: Final = EventKind(
    name="ActivityCompleted",
    attributes=a.ActivityCompletedAttributes,
    meaning="an activity completed with a result",
    resolves=True,
    thing="activity",
    ends_as="done",
)
ACTIVITY_FAILED: Final = EventKind(
    name="ActivityFailed",
    attributes=a.ActivityFailedAttributes,
    meaning="an activity failed for good: type, message, attempts",
    resolves=True,
    thing="activity",
    ends_as="failed",
)
ACTIVITY_TIMED_OUT: Final = EventKind(
    name="ActivityTimedOut",
    attributes=a.ActivityFailedAttributes,
    meaning="a timeout of an activity passed, and there is no further attempt",
    resolves=True,
    thing="activity",
    ends_as="timed_out",
)
TIMER_FIRED: Final = EventKind(
    name="TimerFired",
    attributes=a.TimerFiredAttributes,
    meaning="a timer became due, or somebody skipped it",
    resolves=True,
    thing="timer",
    ends_as="fired",
)
CHILD_COMPLETED: Final = EventKind(
    name="ChildCompleted",
    attributes=a.ChildCompletedAttributes,
    meaning="a child completed with a result",
    resolves=True,
    thing="child",
    ends_as="done",
)
CHILD_FAILED: Final = EventKind(
    name="ChildFailed",
    attributes=a.ChildFailedAttributes,
    meaning="a child closed without a result, or could not be started",
    resolves=True,
    thing="child",
    ends_as="failed",
)
EXTERNAL_FAILED: Final = EventKind(
    name="ExternalFailed",
    attributes=a.ExternalFailedAttributes,
    meaning="a message to another run found no open run, or a run that does not declare the signal",
    resolves=True,
    thing="external",
    ends_as="failed",
)
CANCEL_REQUESTED: Final = EventKind(
    name="CancelRequested",
    attributes=a.CancelRequestedAttributes,
    meaning="somebody asked to cancel the run",
)
SIGNAL_RECEIVED: Final = EventKind(
    name="SignalReceived",
    attributes=a.SignalReceivedAttributes,
    meaning="a signal was delivered: name, payload, sender",
)
SIGNAL_FAILED: Final = EventKind(
    name="SignalFailed",
    attributes=a.SignalFailedAttributes,
    meaning="the handler of a signal failed, and the signal is a failed message: number, id, name, type, message",
)
ACTIVITY_SCHEDULED: Final = EventKind(
    name="ActivityScheduled",
    attributes=a.ActivityScheduledAttributes,
    meaning="code called an activity: its name, arguments, options",
    command="ScheduleActivity",
    thing="activity",
    name_attribute="activity",
    inputs=("args", "kwargs"),
)
ACTIVITY_CANCELLED: Final = EventKind(
    name="ActivityCancelled",
    attributes=a.ActivityEnd,
    meaning="the code no longer waits for the activity",
    command="CancelActivity",
    thing="activity",
    ends_as="cancelled",
)
TIMER_STARTED: Final = EventKind(
    name="TimerStarted",
    attributes=a.TimerStartedAttributes,
    meaning="code sleeps, or waits with a timeout",
    command="StartTimer",
    thing="timer",
    duration="duration",
)
TIMER_CANCELLED: Final = EventKind(
    name="TimerCancelled",
    attributes=a.SequenceAttributes,
    meaning="the code no longer waits for the timer",
    command="CancelTimer",
    thing="timer",
    ends_as="cancelled",
)
PATCH_MARKED: Final = EventKind(
    name="PatchMarked",
    attributes=a.PatchMarkedAttributes,
    meaning="code called `api.patched`, and took the new path",
    command="SetPatchMarker",
    name_attribute="id",
)
UPDATE_ACCEPTED: Final = EventKind(
    name="UpdateAccepted",
    attributes=a.UpdateAcceptedAttributes,
    meaning="the validator accepted an update; its handler runs",
    command="AcceptUpdate",
    thing="update",
    name_attribute="id",
)
UPDATE_COMPLETED: Final = EventKind(
    name="UpdateCompleted",
    attributes=a.UpdateCompletedAttributes,
    meaning="an update was answered",
    command="CompleteUpdate",
    thing="update",
    ends_as="done",
    name_attribute="id",
)
UPDATE_FAILED: Final = EventKind(
    name="UpdateFailed",
    attributes=a.UpdateFailedAttributes,
    meaning="the handler of an update raised",
    command="FailUpdate",
    thing="update",
    ends_as="failed",
    name_attribute="id",
)
CHILD_STARTED: Final = EventKind(
    name="ChildStarted",
    attributes=a.ChildStartedAttributes,
    meaning="code started a child",
    command="StartChild",
    thing="child",
    name_attribute="workflow",
    inputs=("args",),
)
EXTERNAL_SIGNAL_SENT: Final = EventKind(
    name="ExternalSignalSent",
    attributes=a.ExternalSignalSentAttributes,
    meaning="code sent a signal to another run",
    command="SignalExternal",
    thing="external",
    name_attribute="name",
)
EXTERNAL_CANCEL_SENT: Final = EventKind(
    name="ExternalCancelSent",
    attributes=a.ExternalCancelSentAttributes,
    meaning="code asked to cancel another run",
    command="CancelExternal",
    second_command="CancelChild",
    thing="external",
    name_attribute="id",
)
WORKFLOW_COMPLETED: Final = EventKind(
    name="WorkflowCompleted",
    attributes=a.WorkflowCompletedAttributes,
    meaning="`run` returned `Ok` or a value; closes the run",
    command="CompleteWorkflow",
    closes_as="completed",
)
WORKFLOW_FAILED: Final = EventKind(
    name="WorkflowFailed",
    attributes=a.WorkflowFailedAttributes,
    meaning="`run` raised or returned `Err`; closes the run",
    command="FailWorkflow",
    closes_as="failed",
)
WORKFLOW_CANCELLED: Final = EventKind(
    name="WorkflowCancelled",
    attributes=a.WorkflowCancelledAttributes,
    meaning="a cancel request ended the code; closes the run",
    command="CancelWorkflow",
    closes_as="cancelled",
)
WORKFLOW_CONTINUED_AS_NEW: Final = EventKind(
    name="WorkflowContinuedAsNew",
    attributes=a.WorkflowContinuedAsNewAttributes,
    meaning="`run` returned `ContinueAsNew`; closes the run, and the next run of its chain starts",
    command="ContinueAsNew",
    closes_as="continued_as_new",
)
WORKFLOW_TERMINATED: Final = EventKind(
    name="WorkflowTerminated",
    attributes=a.WorkflowTerminatedAttributes,
    meaning="somebody terminated the run",
    from_outside=True,
    closes_as="terminated",
)
WORKFLOW_TIMED_OUT: Final = EventKind(
    name="WorkflowTimedOut",
    attributes=a.WorkflowTimedOutAttributes,
    meaning="`execution_timeout` or `run_timeout` passed",
    from_outside=True,
    closes_as="timed_out",
)

#: All kinds of events in a history, by name.
KINDS: Final[Mapping[str, EventKind[Any]]] = {
    kind.name: kind
    for kind in (
        WORKFLOW_STARTED,
        ACTIVATION_STARTED,
        ACTIVITY_COMPLETED,
        ACTIVITY_FAILED,
        ACTIVITY_TIMED_OUT,
        TIMER_FIRED,
        CHILD_COMPLETED,
        CHILD_FAILED,
        EXTERNAL_FAILED,
        CANCEL_REQUESTED,
        SIGNAL_RECEIVED,
        SIGNAL_FAILED,
        ACTIVITY_SCHEDULED,
        ACTIVITY_CANCELLED,
        TIMER_STARTED,
        TIMER_CANCELLED,
        PATCH_MARKED,
        UPDATE_ACCEPTED,
        UPDATE_COMPLETED,
        UPDATE_FAILED,
        CHILD_STARTED,
        EXTERNAL_SIGNAL_SENT,
        EXTERNAL_CANCEL_SENT,
        WORKFLOW_COMPLETED,
        WORKFLOW_FAILED,
        WORKFLOW_CANCELLED,
        WORKFLOW_CONTINUED_AS_NEW,
        WORKFLOW_TERMINATED,
        WORKFLOW_TIMED_OUT,
    )
}
