"""The mailbox: signals and updates that reached the run and are not dispatched yet.

They are in order of arrival. The position of a signal is its number among the signals of the run. The position of an
update is the number of signals before it, which ``UpdateAccepted.attributes["after"]`` records. A replay sees only
accepted updates and puts them back at that position. Signals are kept by name, so that thousands of one name do not
slow the search for another.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Collection
from operator import attrgetter
from typing import Any

from temporalex_django.core.messages.headers import Headers
from temporalex_django.core.messages.sender import Sender
from temporalex_django.core.units.ivar import IVar
from temporalex_django.core.units.scheduler import Unit
from temporalex_django.errors import NondeterminismError, WorkflowClosed


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
    """

    __slots__ = ("accepted", "admitted", "after", "args", "headers", "message_id", "name", "redelivered", "sender")

    def __init__(
        self,
        update_id: str,
        name: str,
        args: Any,
        after: int,
        *,
        accepted: bool,
        redelivered: bool = False,
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

    @property
    def can_wait(self) -> bool:
        """True if a phase without a handler for this update leaves it in the mailbox instead of refusing it.

        This holds for every accepted update, because its history says that a phase took it.
        """
        return self.redelivered or self.accepted


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
