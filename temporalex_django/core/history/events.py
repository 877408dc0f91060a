"""History events, and the jobs that become them.

The history of a run is the list of its events in order of ``seq`` (1, 2, …). It falls into activations: each begins
with ``ActivationStarted`` (the first one has ``WorkflowStarted`` before that), then what was delivered (``INPUTS``),
then what the workflow answered with (``OUTPUTS``). A job is an input that has not been written yet, so the two share
names and attributes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

#: Bumped when the engine's own behaviour on replay changes; each run records the one it was started with, and goes on
#: with no other.
ENGINE_VERSION: Final = 2
#: Format of the stored events.
FORMAT: Final = 1

RESOLUTIONS: Final = frozenset(
    {
        "ActivityCompleted",
        "ActivityFailed",
        "ActivityTimedOut",
        "TimerFired",
        "ChildCompleted",
        "ChildFailed",
        "ExternalFailed",
    }
)
#: A message to another run was stored in its inbox. No kind of its own in the history: ``ActivationStarted`` lists the
#: numbers under ``delivered``, and a history is read back with these jobs first.
DELIVERED: Final = "ExternalDelivered"
#: The handler of a signal failed. Not compared on replay, which takes it as a fact: see ``core.signal_failures``.
SIGNAL_FAILED: Final = "SignalFailed"
INPUTS: Final = RESOLUTIONS | {
    "WorkflowStarted",
    "ActivationStarted",
    "CancelRequested",
    "SignalReceived",
    SIGNAL_FAILED,
}
#: Closing events that no command produces: somebody outside closed the run.
CLOSED_FROM_OUTSIDE: Final = frozenset({"WorkflowTerminated", "WorkflowTimedOut"})
OUTPUT_OF: Final = {
    "ScheduleActivity": "ActivityScheduled",
    "CancelActivity": "ActivityCancelled",
    "StartTimer": "TimerStarted",
    "CancelTimer": "TimerCancelled",
    "SetPatchMarker": "PatchMarked",
    "AcceptUpdate": "UpdateAccepted",
    "CompleteUpdate": "UpdateCompleted",
    "FailUpdate": "UpdateFailed",
    "StartChild": "ChildStarted",
    "SignalExternal": "ExternalSignalSent",
    "CancelExternal": "ExternalCancelSent",
    "CompleteWorkflow": "WorkflowCompleted",
    "FailWorkflow": "WorkflowFailed",
    "CancelWorkflow": "WorkflowCancelled",
    "ContinueAsNew": "WorkflowContinuedAsNew",
}
#: Status of a run after the closing event of that kind.
CLOSING: Final = {
    "WorkflowCompleted": "completed",
    "WorkflowFailed": "failed",
    "WorkflowCancelled": "cancelled",
    "WorkflowTerminated": "terminated",
    "WorkflowTimedOut": "timed_out",
    "WorkflowContinuedAsNew": "continued_as_new",
}
#: All kinds of a history.
KINDS: Final = INPUTS | CLOSED_FROM_OUTSIDE | frozenset(OUTPUT_OF.values())
CLOSED_STATUSES: Final = frozenset(CLOSING.values())


class Job(NamedTuple):
    """One thing delivered by an activation.

    ``kind`` is the history kind that it becomes, or ``UpdateRequested`` (becomes ``UpdateAccepted`` only when
    accepted). ``process.REQUESTED`` becomes ``SignalReceived`` when the process lets it through. Attributes by kind:
    ``SignalReceived`` name, payload, id (where its sender gave one) · ``UpdateRequested`` id, name, args, after (None
    when new) · ``process.REQUESTED`` id, request · the last two also redelivered, where a reset or fork delivers them
    again · each of these three also sender (``senders.sender_attributes``), where a person sent it ·
    ``ActivityCompleted`` seq, result · ``ActivityFailed``/``ActivityTimedOut`` seq, type, message, attempts, timeout ·
    ``ChildCompleted`` seq, result · ``ChildFailed`` seq, type, message, status · ``ExternalFailed`` seq, type, message
    (and candidates or known, as the type has them) · ``ExternalDelivered`` seq · ``TimerFired`` seq ·
    ``CancelRequested`` reason.
    """

    kind: str
    attributes: dict[str, Any]


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """One row of a history. ``attributes`` is plain JSON data; ``at`` the (aware) time of its activation.

    ``number`` counts from 1 without gaps; ``attributes["seq"]`` is the number of the command that the event is about.
    """

    number: int
    activation: int
    kind: str
    at: datetime
    attributes: dict[str, Any]
    size: int = field(default=0, compare=False, repr=False)  # bytes of the attributes where they are stored, if known
