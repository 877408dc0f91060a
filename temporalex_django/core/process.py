"""The process: its identity, and the points at which tests end it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from temporalex_django.core.human_tasks import Permits

# --- process ----------------------------------------------------------------------------------------------------------
#
# Processes: the drivers of runs whose steps are declared, where a plain workflow has code in ``run``.
#
# A process runs inside ``run`` and uses the same ``WorkflowRuntime`` as primitives do. People reach it by requests. The
# core asks its request judge about a request and records the accepted request as the signal ``RECORDED_AS``. Then it
# passes that signal to the judge, now and in each replay. For people a request is a resume, or the decision of a human
# task. In the core, only this module uses the word "resume", which stored names contain.


#: The kind of a request as a message in an inbox, as a job of an activation, and the name of its signal in a history.
REQUEST: Final = "resume"
REQUESTED: Final = "ResumeRequested"
RECORDED_AS: Final = "__resume__"


#: Attributes of that signal beside its payload: the question of a decision, and the digest of the page that people saw.
QUESTION: Final = ("question", "shown")


def recorded_request(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request that was accepted, in the form that its judge got, from the signal that records it.

    ``attributes`` are the attributes of the event ``SignalReceived``.
    """
    return {**attributes["payload"], **{name: attributes[name] for name in QUESTION if name in attributes}}


class RequestJudge(Protocol):
    """The part of a process that judges requests, attached with ``WorkflowRuntime.attach``.

    It must be deterministic, as workflow code is. It sends notices with ``Journal.add_note`` and publishes its state
    with ``WorkflowRuntime.publish``. After a move, ``RunContext.snapshot`` has the state from which it continues.
    """

    def judge(self, request: dict[str, Any], permits: Permits) -> None:
        """Raise a ``TemporalexError`` if the request (JSON data) is not possible, or its sender may not make it.

        The error is for the sender; nothing may have changed then. ``request["person"]`` is True if a person sent it.
        ``permits(word, sender)`` says whether a word for candidates includes that person. A request that the history
        has accepted is not judged.
        """

    def build_payload(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the payload that the history records for a request, which ``judge`` or the history has accepted.

        Raises a ``TemporalexError`` if nothing takes the request.
        """

    def apply(self, payload: dict[str, Any]) -> None:
        """Apply a payload from ``build_payload``, of this activation or from the history."""


# --- crash points -----------------------------------------------------------------------------------------------------
#
# Points at which a process may die, by name: around each commit of a worker, around an effect, before a notification.
#
# ``reached`` does nothing. Tests and ``make soak`` replace it by a function that ends the process at a point. Call it
# as ``crash_points.reached``, so that the replacement takes effect. A test compares ``SITES`` with the transactions in
# the code.


#: Transactions of workers. Each name has two points, before and after the commit; the value describes its content.
SITES = {
    "turn": "many runs: results of activities, activations, new activities",
    "limited": "activities that are under limits",
    "apart": "the activities that a failed turn should have claimed, without that turn",
    "alone": "one run of a failed turn, or a suspect",
    "atomic": "one run with its atomic activities",
    "careful ends": "results of activities, after a worker died of an unknown cause",
    "careful claim": "the claim of the next runs, in that case",
    "heartbeat": "details of heartbeats",
    "register": "the row of a worker that starts",
    "leave": "the claims that a stopping worker releases",
    "code": "runs that waited for the code of a worker",
    "switched on": "runs of a class that was switched on again",
    "bury": "the runs and activities of a dead worker",
    "marker": "what a process without a row was running when it died",
    "orphans": "activities of an owner without a row",
    "block": "a run whose turn fails on its own",
    "retention": "a run whose retention has expired",
    "earlier": "an earlier run of a chain that continues",
    "bulk": "one operation on one run",
    "bulk end": "the same after a replay",
    "bulk let go": "the same, released to be tried again",
    "schedule": "a slot of a schedule, with the start of its run and the next position",
    "update": "an update in a request, with its turn",
    "update left": "an update that is left to a worker",
    "once": "work that is done once, with its result",
    "mirror": "the rows of runs on a cluster, after an activation of each",
    "mirror end": "the row of a run that its cluster has closed without a worker",
    "outbox claim": "rows of the outbox that a dispatcher is about to send",
    "outbox sent": "a row of the outbox that was sent",
    "outbox refused": "a row of the outbox that was refused, or is given up",
}
#: Points around actions that are no transaction of a worker.
AROUND = (
    "beat: before",
    "beat: after",
    "effect: before",
    "effect: after",
    "atomic effect: before",
    "atomic effect: after",
    "notify: before",
    "send: before",
    "send: after",
)
POINTS = (*(f"{site}: {when} commit" for site in SITES for when in ("before", "after")), *AROUND)


def reached(point: str) -> None:
    """Tell a test that this process has reached ``point``, one of ``POINTS``.

    Does nothing unless a test replaces it.
    """
