"""What an activation delivers to phases and waits, in order: from jobs, or from what is recorded of it."""

from __future__ import annotations

from collections.abc import Sequence

from temporalex_django.core import senders
from temporalex_django.core.history.cutting import Recorded
from temporalex_django.core.history.events import DELIVERED, RESOLUTIONS, Job
from temporalex_django.core.mailbox import Update
from temporalex_django.core.process import REQUESTED
from temporalex_django.errors import TemporalexError

_NO_MESSAGES = RESOLUTIONS | {DELIVERED, "CancelRequested"}


def arrivals(
    jobs: Sequence[Job], recorded: Recorded | None, *, received: int, carried: int, run: str
) -> tuple[list[Update], list[Job | Update]]:
    """Updates that waited since an earlier activation, and what arrives now, both in order of arrival.

    ``received`` signals came before. The first ``carried`` ones are in the mailbox before everything else: they are not
    among what arrives. Raises ``TemporalexError`` for a job that is nothing to deliver.
    """
    if recorded is not None:
        return _as_recorded(jobs, recorded, received=received, carried=carried)
    incoming: list[Job | Update] = []
    waiting: list[Update] = []
    for job in jobs:
        if job.kind == "SignalReceived":
            if carried:
                carried -= 1
            else:
                incoming.append(job)
        elif job.kind == "UpdateRequested":
            attributes = job.attributes
            after = attributes.get("after")
            update = Update(
                attributes["id"],
                attributes["name"],
                attributes["args"],
                0 if after is None else after,  # of a new one it is known when it arrives
                accepted=False,
                redelivered=attributes.get("redelivered", False),
                sender=senders.of(attributes),
            )
            if after is None:
                incoming.append(update)
            else:
                waiting.append(update)
        elif job.kind == REQUESTED:
            incoming.append(job)
        elif job.kind not in _NO_MESSAGES:
            raise TemporalexError(f"{run}: {job.kind!r} is nothing that can be delivered to a run")
    waiting.sort(key=lambda update: update.after)  # as a replay does: ids of an inbox need not be in order of arrival
    return waiting, incoming


def _as_recorded(
    jobs: Sequence[Job], recorded: Recorded, *, received: int, carried: int
) -> tuple[list[Update], list[Job | Update]]:
    base = received + carried
    accepted = [event.attributes for event in recorded.outputs if event.kind == "UpdateAccepted"]
    updates = [Update(a["id"], a["name"], a["args"], a["after"], accepted=True, sender=senders.of(a)) for a in accepted]
    updates.sort(key=lambda update: update.after)
    waiting = [update for update in updates if update.after < base]
    rest = updates[len(waiting) :]
    signals = [job for job in jobs if job.kind == "SignalReceived"][carried:]
    incoming: list[Job | Update] = []
    for count in range(len(signals) + 1):
        incoming.extend(update for update in rest if update.after == base + count)
        incoming.extend(signals[count : count + 1])
    return waiting, incoming
