"""The mailbox of a run: messages that have arrived, and how many an activation takes."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from typing import Any

from temporalex_django.core.history import events
from temporalex_django.core.history.activation import Activation, RecordedActivation
from temporalex_django.core.history.events import ANSWERS, Job
from temporalex_django.core.messages import sender
from temporalex_django.core.messages.sender import Headers, Sender, headers_from
from temporalex_django.core.pending_commands import Journal
from temporalex_django.core.process import REQUESTED
from temporalex_django.core.run_context import RunContext
from temporalex_django.core.units.ivar import IVar
from temporalex_django.core.units.scheduler import Unit
from temporalex_django.errors import NondeterminismError, TemporalexError, WorkflowClosed

# --- mailbox ----------------------------------------------------------------------------------------------------------
#
# The mailbox: signals and updates that reached the run and are not dispatched yet.
#
# They are in order of arrival. The position of a signal is its number among the signals of the run. The position of an
# update is the number of signals before it, which ``UpdateAccepted.attributes["after"]`` records. A replay sees only
# accepted updates and puts them back at that position. Signals are kept by name, so that thousands of one name do not
# slow the search for another.


class Signal:
    """A buffered signal.

    ``number`` is its position among the signals of the run, from 1. ``permission`` is the permission that its sender
    was found to have when it came, or None. ``message_id`` is the id from its sender, or None. ``headers`` is None
    without any.
    """

    __slots__ = ("headers", "message_id", "name", "number", "payload", "permission", "sender")

    def __init__(
        self,
        number: int,
        name: str,
        payload: Any,
        sender: Sender | None,
        permission: str | None,
        message_id: str | None = None,
        headers: Headers | None = None,
    ) -> None:
        self.number = number
        self.headers = headers
        self.message_id = message_id
        self.name = name
        self.payload = payload
        self.sender = sender
        self.permission = permission


class Update:
    """An update in the mailbox.

    - ``after`` is the number of signals that came before it.
    - ``accepted`` is True if the history already contains its acceptance, as on a replay. Then no validator runs again.
    - ``admitted`` is True if its sender was told that it is accepted when it came (``Activation.admit_updates``), and
      it now waits for its handler, which is busy. Its ``args`` are already decoded in that case.
    - ``redelivered`` is True if a reset or fork delivers it again. It then waits for the first phase that takes it.
    - ``waits`` is True if it waits like that on a host that must answer at once: it is accepted when it comes, and the
      phase that takes it judges it then. False once it is judged.
    """

    __slots__ = (
        "accepted", "admitted", "after", "args", "headers", "message_id", "name", "redelivered", "sender", "waits"
    )  # fmt: skip

    def __init__(
        self,
        update_id: str,
        name: str,
        args: Any,
        after: int,
        *,
        accepted: bool,
        redelivered: bool = False,
        waits: bool = False,
        sender: Sender | None = None,
        headers: Headers | None = None,
    ) -> None:
        self.message_id = update_id
        self.name = name
        self.args = args
        self.after = after
        self.accepted = accepted
        self.sender = sender
        self.headers = headers
        self.admitted = False
        self.redelivered = redelivered
        self.waits = waits

    @property
    def can_wait(self) -> bool:
        """True if a phase without a handler for this update leaves it in the mailbox instead of refusing it.

        This holds for every accepted update, because its history says that a phase took it.
        """
        return self.redelivered or self.accepted or self.waits


class Mailbox:
    """The buffered messages of a run. ``received`` is the number of signals that have come so far."""

    def __init__(self) -> None:
        self.received = 0
        self.updates: deque[Update] = deque()
        self._signals: dict[str, deque[Signal]] = {}
        self._waiters: dict[str, deque[tuple[Unit, IVar]]] = {}

    def add_signal(
        self,
        name: str,
        payload: Any,
        *,
        sender: Sender | None = None,
        permission: str | None = None,
        message_id: str | None = None,
        headers: Headers | None = None,
    ) -> Signal:
        """Buffer a signal as the last one, and return it. For the arguments see ``Signal``."""
        self.received += 1
        signal = Signal(self.received, name, payload, sender, permission, message_id, headers)
        self._signals.setdefault(name, deque()).append(signal)
        return signal

    def take_signal(self, name: str) -> Signal | None:
        """Remove and return the oldest buffered signal with this name; None if there is none."""
        queue = self._signals.get(name)
        if not queue:
            return None
        signal = queue.popleft()
        if not queue:
            del self._signals[name]
        return signal

    def return_signal(self, signal: Signal) -> None:
        """Put back a signal at its former position, because the code that took it makes no use of it."""
        insort(self._signals.setdefault(signal.name, deque()), signal, key=_number)

    def has_signal(self, names: Collection[str]) -> bool:
        return any(name in self._signals for name in names)

    def next_message(self, signals: Collection[str], updates: Collection[str]) -> Signal | Update | None:
        """Return the next message for a phase that handles these signals and updates, or None. It is not removed.

        An update without a handler is returned as well, so that it is refused, unless it may wait for another phase.
        """
        if not self._signals or not signals:
            signal = None
        else:
            heads = [queue[0] for name in signals if (queue := self._signals.get(name))]
            signal = min(heads, key=lambda s: s.number, default=None)
        update = next((update for update in self.updates if update.name in updates or not update.can_wait), None)
        # The update came after ``after`` signals, so a signal with that number or a lower one came before it.
        if update is None or (signal is not None and signal.number <= update.after):
            return signal
        return update

    def take_update(self, update: Update) -> None:
        """Remove an update, which most often is the first one."""
        if self.updates[0] is update:
            self.updates.popleft()
        else:
            self.updates.remove(update)

    def remove_unjudged(self) -> list[Update]:
        """Remove and return the updates that were not judged.

        In a replay they include updates that the history has accepted and that no phase of the present code took; the
        caller drops those.
        """
        unjudged = [update for update in self.updates if not update.admitted]
        if unjudged:
            admitted = [update for update in self.updates if update.admitted]
            self.updates.clear()
            self.updates.extend(admitted)
        return unjudged

    def add_waiter(self, name: str, unit: Unit, ivar: IVar) -> None:
        """Let the coroutine ``unit`` wait with ``ivar`` for the next signal with this name, behind earlier waits."""
        queue = self._waiters.setdefault(name, deque())
        entry = (unit, ivar)
        queue.append(entry)
        ivar.abandon = lambda: queue.remove(entry)

    def waiters(self, name: str) -> deque[tuple[Unit, IVar]]:
        """Return the waits for a signal with this name, oldest first, as ``(coroutine, IVar that it awaits)``."""
        return self._waiters.get(name, _NO_WAITERS)

    def awaited_names(self) -> list[str]:
        """Return the names of signals in the mailbox for which a coroutine of workflow code waits."""
        return [name for name in self._signals if self._waiters.get(name)]

    def buffered_signals(self) -> list[Signal]:
        """Return all buffered signals in order of arrival."""
        return sorted((s for queue in self._signals.values() for s in queue), key=lambda s: s.number)


def undelivered_error(kind: str, name: str | None, failure: str | None = None) -> WorkflowClosed:
    """Return the error for the sender of a message that came too late, because its run has closed.

    ``kind`` and ``name`` are those of the message in ``InboxMessage``. ``failure`` is that of the ``RunContext``.
    """
    text = f"the run was closed before the {kind} {name!r} was delivered"
    return WorkflowClosed(text if failure is None else f"{text}, because it {failed_text(failure)}")


def failed_text(failure: str) -> str:
    """Return the end of a sentence about a run that failed, with the next step; ``failure`` is its summary."""
    return f"failed with {failure} (result() raises the whole error)"


def untaken_message_error(run: str, message: str) -> NondeterminismError:
    """Return the error for an update or a request that the history has accepted and that the code does not take.

    ``run`` names the run in the text, and ``message`` the update or request.
    """
    return NondeterminismError(
        f"{run}: the history has accepted {message}, but the code does not take it at this point. Restore the "
        "old code, or keep the old path for old runs with api.patched()",
        recorded=f"{message}, accepted",
        produced="nothing",
    )


_number = attrgetter("number")
_NO_WAITERS: deque[tuple[Unit, IVar]] = deque()


# --- arrivals ---------------------------------------------------------------------------------------------------------
#
# The order in which an activation delivers its messages, from jobs or from a recorded activation.


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
                waits=attributes.get("waits", False),
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
    """Return what ``order_deliveries`` returns, for an activation that is replayed."""
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
            waits=a.get("waits", False),
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


# --- budget -----------------------------------------------------------------------------------------------------------
#
# The budget of an activation: how many messages it takes before the rest waits for the next activation.
#
# The host decides during the first execution. A replay takes as many messages as the history says. See decision 20.


class Budget:
    """The budget of the current activation.

    ``dispatch_count`` is the number of messages taken from the mailbox. ``spent_at`` is that number when the budget was
    spent while more messages were in the mailbox; None until then.
    """

    __slots__ = ("_dispatch_limit", "_is_budget_spent", "_journal", "_run_context", "dispatch_count", "spent_at")

    def __init__(self, run_context: RunContext, journal: Journal) -> None:
        self._run_context = run_context
        self._journal = journal
        self._is_budget_spent: Callable[[], bool] | None = None
        self._dispatch_limit: int | None = None
        self.dispatch_count = 0
        self.spent_at: int | None = None

    def begin(self, *, is_budget_spent: Callable[[], bool] | None, dispatch_limit: int | None) -> None:
        """Begin a new activation.

        ``is_budget_spent()`` returns True once the host has had enough; see ``Executor.activate``. ``dispatch_limit``
        is the number of messages after which a replay stops (``DeliveryRecord.dispatched``).
        """
        self._is_budget_spent, self._dispatch_limit = is_budget_spent, dispatch_limit
        self.dispatch_count, self.spent_at = 0, None

    def count_dispatch(self) -> None:
        """Count a message that is taken from the mailbox."""
        self.dispatch_count += 1

    def is_spent_before(self, index: int) -> bool:
        """Return True if the activation must end before it takes the arriving message with this ``index``, from 0.

        That message and the later ones then wait for the next activation. The first message is always taken, unless the
        activation has already had another effect. So each activation makes progress.
        """
        return (
            self._is_budget_spent is not None and (index > 0 or self._journal.is_recording) and self._is_budget_spent()
        )

    def is_spent(self, *, since: int) -> bool:
        """Return True if the messages that are still in the mailbox must wait for the next activation.

        The budget is not spent before more than ``since`` messages of the activation were taken: a caller that passes
        the number so far takes at least one more. Once it is spent, it stays so until the activation ends. Call this
        only where a message would be taken next, because a replay decides by the number of messages taken.
        """
        # The clock of the host differs between executions, so the count at which it stopped is part of the history.
        if self.spent_at is None:
            if self._run_context.replaying:
                full = self.dispatch_count == self._dispatch_limit
            else:
                full = self.dispatch_count > since and self._is_budget_spent is not None and self._is_budget_spent()
            if full:
                self.spent_at = self.dispatch_count
        return self.spent_at is not None
