"""The order in which an activation delivers its messages, from jobs or from a recorded activation."""

from __future__ import annotations

from collections.abc import Sequence

from temporalex_django.core.history import events
from temporalex_django.core.history.activation import Activation, RecordedActivation
from temporalex_django.core.history.events import ANSWERS, Job
from temporalex_django.core.messages import sender
from temporalex_django.core.messages.headers import headers_from
from temporalex_django.core.messages.mailbox import Update
from temporalex_django.core.process import REQUESTED
from temporalex_django.errors import TemporalexError

_NON_MESSAGE_KINDS = ANSWERS | {"CancelRequested"}


def order_deliveries(
    activation: Activation, recorded: RecordedActivation | None, *, received: int, carried: int, run: str
) -> tuple[list[Update], list[Job | Update]]:
    """Return the updates that waited since an earlier activation, and the messages that arrive now.

    Both lists are in order of arrival. ``recorded`` is ``activation`` with its outputs in a replay of events, else
    None. ``received`` is the number of signals before this activation. The first ``carried`` signals are in the mailbox
    before everything else, so they are not among the messages that arrive. ``run`` names the run in errors. Raises
    ``TemporalexError`` for a job that cannot be delivered.
    """
    if recorded is not None:
        return _order_recorded(activation.jobs, recorded, received=received, carried=carried)
    incoming: list[Job | Update] = []
    waiting: list[Update] = []
    for job in activation.jobs:
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
                0 if after is None else after,  # the dispatcher sets it when a new update arrives
                # A rejected update leaves no trace, so no replay delivers it.
                accepted=activation.replaying or attributes.get("accepted", False),
                redelivered=attributes.get("redelivered", False),
                sender=sender.sender_from(attributes),
                headers=headers_from(attributes),
            )
            if after is None:
                incoming.append(update)
            else:
                waiting.append(update)
        elif job.kind == REQUESTED:
            incoming.append(job)
        elif job.kind not in _NON_MESSAGE_KINDS:
            raise TemporalexError(f"{run}: {job.kind!r} is not a job that can be delivered to a run")
    # A replay sorts by the same value. Ids of inbox rows need not be in order of arrival.
    waiting.sort(key=lambda update: update.after)
    return waiting, incoming


def _order_recorded(
    jobs: Sequence[Job], recorded: RecordedActivation, *, received: int, carried: int
) -> tuple[list[Update], list[Job | Update]]:
    """Return the updates that waited and the messages that arrive, for an activation that is replayed.

    The arguments and the result are those of ``order_deliveries``; ``recorded`` is the activation of the history.
    """
    # The history has only the accepted updates, each with the number of signals before it. Updates with a number below
    # the offset waited since an earlier activation; the others go back between the signals of this activation.
    signal_offset = received + carried
    accepted_attributes = [
        events.UPDATE_ACCEPTED.read(event) for event in recorded.outputs if event.kind == "UpdateAccepted"
    ]
    updates = [
        Update(
            *(a["id"], a["name"], a["args"], a["after"]),
            accepted=True,
            sender=sender.sender_from(a),
            headers=headers_from(a),
        )
        for a in accepted_attributes
    ]
    updates.sort(key=lambda update: update.after)
    waiting = [update for update in updates if update.after < signal_offset]
    later_updates = updates[len(waiting) :]
    signals = [job for job in jobs if job.kind == "SignalReceived"][carried:]
    incoming: list[Job | Update] = []
    for count in range(len(signals) + 1):
        incoming.extend(update for update in later_updates if update.after == signal_offset + count)
        incoming.extend(signals[count : count + 1])
    return waiting, incoming
