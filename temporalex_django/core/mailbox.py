"""Signals and updates that reached the run and are not dispatched yet.

Order is the order of arrival. A signal's position is its number among the signals of the run; an update's position is
"after so many signals", which is what ``UpdateAccepted.attributes["after"]`` records: so a replay, which sees
only accepted updates, puts them back where they stood. Signals are kept by name, so that thousands of one name never
slow the search for another.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Collection
from operator import attrgetter
from typing import Any

from temporalex_django.core.ivar import IVar
from temporalex_django.core.scheduler import Unit
from temporalex_django.core.senders import Sender


class Signal:
    """A signal in the buffer.

    ``permission`` is the one that its sender was judged by when it came, ``message_id`` the one that its sender gave
    it.
    """

    __slots__ = ("message_id", "name", "number", "payload", "permission", "sender")

    def __init__(
        self,
        number: int,
        name: str,
        payload: Any,
        sender: Sender | None,
        permission: str | None,
        message_id: str | None = None,
    ) -> None:
        self.number = number
        self.message_id = message_id
        self.name = name
        self.payload = payload
        self.sender = sender
        self.permission = permission


class Update:
    """``accepted`` is True on replay: history has judged it, validators are not asked again.

    ``admitted``: it was answered when it came (``Activation.admit_updates``) and waits for a busy handler; ``args`` are
    decoded then. ``redelivered``: a reset or fork delivers it again, so it waits for the first phase that takes it.
    """

    __slots__ = ("accepted", "admitted", "after", "args", "message_id", "name", "redelivered", "sender")

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
    ) -> None:
        self.message_id = update_id
        self.name = name
        self.args = args
        self.after = after
        self.accepted = accepted
        self.sender = sender
        self.admitted = False
        self.redelivered = redelivered

    @property
    def can_wait(self) -> bool:
        """Whether a phase without a handler for it leaves it in the mailbox, instead of refusing it.

        On replay every update does: its history says that a phase took it.
        """
        return self.redelivered or self.accepted


class Mailbox:
    """``received`` counts the signals of the run so far."""

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
    ) -> Signal:
        self.received += 1
        signal = Signal(self.received, name, payload, sender, permission, message_id)
        self._signals.setdefault(name, deque()).append(signal)
        return signal

    def take_signal(self, name: str) -> Signal | None:
        """The oldest buffered signal of that name, removed."""
        queue = self._signals.get(name)
        if not queue:
            return None
        signal = queue.popleft()
        if not queue:
            del self._signals[name]
        return signal

    def return_signal(self, signal: Signal) -> None:
        """A signal whose taker never gave it to anybody: where it was before."""
        insort(self._signals.setdefault(signal.name, deque()), signal, key=_number)

    def has_signal(self, names: Collection[str]) -> bool:
        return any(name in self._signals for name in names)

    def next_message(self, signals: Collection[str], updates: Collection[str]) -> Signal | Update | None:
        """The next message for a phase that handles these signals and updates, by name; not removed.

        An update that it does not handle comes, to be refused, unless it may wait for another phase.
        """
        if not self._signals or not signals:
            signal = None
        else:
            heads = [queue[0] for name in signals if (queue := self._signals.get(name))]
            signal = min(heads, key=lambda s: s.number, default=None)
        update = next((update for update in self.updates if update.name in updates or not update.can_wait), None)
        if update is None or (signal is not None and signal.number <= update.after):
            return signal
        return update

    def take_update(self, update: Update) -> None:
        """Remove an update; most often it is the first one."""
        if self.updates[0] is update:
            self.updates.popleft()
        else:
            self.updates.remove(update)

    def remove_unjudged(self) -> list[Update]:
        """Take out the updates that nobody has judged.

        Those that replay brought and no phase took are dropped with them.
        """
        unjudged = [update for update in self.updates if not update.admitted]
        if unjudged:
            admitted = [update for update in self.updates if update.admitted]
            self.updates.clear()
            self.updates.extend(admitted)
        return unjudged

    def add_waiter(self, name: str, unit: Unit, ivar: IVar) -> None:
        queue = self._waiters.setdefault(name, deque())
        entry = (unit, ivar)
        queue.append(entry)
        ivar.abandon = lambda: queue.remove(entry)

    def waiters(self, name: str) -> deque[tuple[Unit, IVar]]:
        return self._waiters.get(name, _NO_WAITERS)

    def awaited_names(self) -> list[str]:
        """Names that somebody waits for and that are in the buffer."""
        return [name for name in self._signals if self._waiters.get(name)]

    def buffered_signals(self) -> list[Signal]:
        """All buffered signals in order of arrival."""
        return sorted((s for queue in self._signals.values() for s in queue), key=lambda s: s.number)


_number = attrgetter("number")
_NO_WAITERS: deque[tuple[Unit, IVar]] = deque()
