"""Points at which a process may die, by name: around each commit of a worker, around an effect, before a notification.

``reached`` does nothing. Tests and ``make soak`` replace it by a function that ends the process at a point. Call it as
``crash_points.reached``, so that the replacement takes effect. A test compares ``SITES`` with the transactions in the
code.
"""

from __future__ import annotations

#: Transactions of workers. Each name has two points, before and after the commit; the value describes its content.
SITES = {
    "turn": "many runs: ends of activities, activations, new activities",
    "limited": "activities that are under limits",
    "apart": "what a turn that failed had to take, without it",
    "alone": "one run of a turn that failed, or a suspect",
    "atomic": "one run with its atomic activities",
    "careful ends": "ends of activities, while somebody died of nobody knows what",
    "careful claim": "which runs are next, then",
    "heartbeat": "details of heartbeats",
    "register": "the row of a worker that begins",
    "leave": "what a worker that ends gives back",
    "code": "runs that waited for the code of a worker",
    "switched on": "runs of a class that is on again",
    "bury": "what a dead worker had in hand",
    "marker": "what a process without a row was running when it died",
    "orphans": "activities of an owner without a row",
    "block": "a run whose turn fails by itself",
    "retention": "a run that was kept long enough",
    "earlier": "a run of a chain that goes on",
    "bulk": "one thing done to one run",
    "bulk end": "the same behind a replay",
    "bulk let go": "the same, to be done again",
    "update": "an update in a request, with its turn",
    "update left": "an update that a worker is to take",
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
)
POINTS = (*(f"{site}: {when} commit" for site in SITES for when in ("before", "after")), *AROUND)


def reached(point: str) -> None:
    """Note that this process has reached a point. Does nothing unless a test replaces it."""
