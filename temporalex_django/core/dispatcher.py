"""Messages meet whoever takes them: a phase with its handlers, or a unit that waits for a signal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from temporalex_django.core import senders
from temporalex_django.core.budget import Budget
from temporalex_django.core.copying import copied
from temporalex_django.core.handling import Handling
from temporalex_django.core.history.activation import Refusal
from temporalex_django.core.history.events import Job
from temporalex_django.core.ivar import IVar
from temporalex_django.core.journal import Journal
from temporalex_django.core.mailbox import Mailbox, Signal, Update
from temporalex_django.core.permissions import Permissions
from temporalex_django.core.phase import Phase
from temporalex_django.core.process import RECORDED_AS, REQUESTED, Process
from temporalex_django.core.scheduler import Scheduler, Unit
from temporalex_django.core.senders import Judge, Sender
from temporalex_django.core.shapes import Accepts
from temporalex_django.core.standing import Standing
from temporalex_django.errors import (
    JudgingFailed,
    NotAccepting,
    TemporalexError,
    UpdateRejected,
    WorkflowClosed,
    no_process,
)


class Dispatcher:
    """Owns the mailbox and the open phase of a run.

    ``unfinished``: the host had enough, and somebody takes signals that are in the mailbox.
    """

    __slots__ = (
        "_budget", "_cancel_timer", "_handling", "_journal", "_permissions", "_process", "_scheduler", "_standing",
        "mailbox", "phase", "unfinished",
    )  # fmt: skip

    def __init__(
        self, standing: Standing, journal: Journal, scheduler: Scheduler, *, cancel_timer: Callable[[int], None]
    ) -> None:
        self._standing = standing
        self._journal = journal
        self._scheduler = scheduler
        self._cancel_timer = cancel_timer
        self._permissions = Permissions()
        self._handling = Handling(standing, journal, scheduler, self._permissions, partial(self.leave, reason="stop"))
        self._budget = Budget(standing, journal)
        self._process: Process | None = None
        self.mailbox = Mailbox()
        self.phase: Phase | None = None
        self.unfinished = False

    def attach(self, process: Process) -> None:
        """Requests go to ``process`` from here on."""
        self._process = process

    @property
    def open_phase(self) -> Phase | None:
        """The phase, while it takes messages."""
        phase = self.phase
        return phase if phase is not None and phase.leaving is None else None

    @property
    def accepts(self) -> Accepts:
        """Names that the open phase handles: ``{"signals": [...], "updates": [...]}``."""
        phase = self.open_phase
        if phase is None:
            return {"signals": [], "updates": []}
        return {"signals": list(phase.signals), "updates": list(phase.updates)}

    # -- an activation ------------------------------------------------------------------------------------------------

    def begin(
        self,
        *,
        enough: Callable[[], bool] | None,
        most: int | None,
        judge: Judge | None,
        refused: tuple[int, ...],
    ) -> None:
        """A new activation: see ``Executor.activate``, and ``Activation`` for ``most`` (dispatched) and ``refused``."""
        self.unfinished = False
        self._budget.begin(enough=enough, most=most)
        self._permissions.begin(judge, refused)

    def deliver(self, incoming: Sequence[Job | Update]) -> None:
        """Run to blocked, then let in one message after the other, as far as the host and the run go."""
        completion = self._journal.completion
        self.run()
        for index, message in enumerate(incoming):
            full = self._budget.ends_before(index)
            if full or completion.dispatched is not None or self._standing.closed is not None:
                completion.unapplied = len(incoming) - index
                break
            self._arrive(message)
            self.run()

    def end(self) -> list[Update]:
        """The activation is over.

        The updates that nobody has judged: the host delivers them again, so that cached and rebuilt executors agree.
        """
        left = self.mailbox.hand_back()
        self.unfinished = self._journal.completion.dispatched is not None and self._goes_on_taking()
        return left

    def _goes_on_taking(self) -> bool:
        """Whether a phase or a wait has something in the mailbox to go on with, also when nothing is delivered."""
        phase = self.open_phase
        return bool(self._scheduler.parked) or (phase is not None and self.mailbox.has_signal(phase.signals))

    # -- messages arrive ----------------------------------------------------------------------------------------------

    def keep(self, signal: Job, *, permission: str | None = None) -> None:
        """Put a signal in the mailbox. ``permission``: the one that its sender was judged by."""
        self._journal.record(signal)
        name, payload = signal.attributes["name"], signal.attributes.get("payload")
        self.mailbox.add_signal(name, payload, sender=senders.of(signal.attributes), permission=permission)

    def _arrive(self, message: Job | Update) -> None:
        """Put one message in its place: to a unit that waits for it, or in the mailbox."""
        if isinstance(message, Update):
            if not message.accepted:
                message.after = self.mailbox.received  # signals of the same activation that were refused do not count
            self.mailbox.updates.append(message)
            return
        if message.kind == REQUESTED:
            sender = senders.of(message.attributes)
            payload = self._requested(message.attributes["id"], message.attributes["request"], sender)
            if payload is None:
                return
            noted = senders.recorded(sender)
            message = Job("SignalReceived", {"name": RECORDED_AS, "payload": payload, **noted})
        name = message.attributes["name"]
        sender = senders.of(message.attributes)
        phase = self.open_phase
        permission = phase.signals[name].permission if phase is not None and name in phase.signals else None
        if (
            permission is not None
            and not self._standing.replaying
            and not self._permissions.permitted(permission, sender, f"signal {name!r}")
        ):
            assert sender is not None
            self._journal.refuse(Refusal(name=name, sender=sender, permission=permission, job=message))
            return
        if name == RECORDED_AS and self._process is not None:
            self._journal.record(message)
            self.mailbox.received += 1
            self._process.apply(message.attributes["payload"])
            return
        self.keep(message, permission=permission)
        self._match_waiters(name)

    def _requested(self, update_id: str, request: dict[str, Any], sender: Sender | None) -> dict[str, Any] | None:
        """What a request becomes in the history, or None when it is refused, which leaves no trace."""
        permits = partial(self._permissions.answers, message=f"the request {request.get('event')!r}")
        try:
            if self._process is None:
                raise no_process(self._standing.run)
            payload = self._process.judge({**request, "person": sender is not None}, permits)
        except JudgingFailed:
            raise
        except TemporalexError as exc:
            self._journal.reject(update_id, exc)
            return None
        self._journal.grant(update_id)
        return payload

    # -- messages are taken -------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run units, and dispatch what the open phase takes, until nothing moves."""
        mailbox, scheduler, budget = self.mailbox, self._scheduler, self._budget
        before = budget.taken
        while True:
            scheduler.let_waiters_through()
            scheduler.run()
            if scheduler.parked:
                if not self._go_on(before):
                    return
                continue
            phase = self.open_phase
            if phase is None:
                if not self._standing.between_runs:
                    self._refuse_updates()
                return
            if phase.busy is not None:
                if self._standing.admits:
                    self._admit_waiting(phase)
                return
            message = mailbox.first(phase.signals)
            if message is None or budget.spent(since=before):
                return
            if isinstance(message, Update):
                mailbox.updates.popleft()
                if message.admitted or self._admit(phase, message):
                    budget.take()
                    self._handling.update(phase, message)
            else:
                mailbox.take_signal(message.name)
                budget.take()
                self._handling.signal(phase, message)

    def _go_on(self, before: int) -> bool:
        """Let the first of the parked units have its signal, or wait when others took it.

        False when the host has enough.
        """
        scheduler, mailbox = self._scheduler, self.mailbox
        name, unit, ivar = scheduler.parked[0]
        if mailbox.has_signal((name,)) and self._eligible(name, unit):
            if self._budget.spent(since=before):
                return False
            scheduler.unpark(first=True)
            self._give(name, unit, ivar)
        else:
            scheduler.unpark(first=False)
            ivar.hand = ()
            mailbox.wait(name, unit, ivar)
        return True

    def _eligible(self, name: str, unit: Unit) -> bool:
        """Whether ``unit`` may take a buffered signal: a handler comes first, except inside a busy handler."""
        phase = self.open_phase
        if phase is None or name not in phase.signals:
            return True
        return phase.busy is not None and unit.within(phase.busy)

    def _match_waiters(self, name: str) -> None:
        """Give buffered signals to the units that wait for them, oldest wait first."""
        for unit, ivar in list(self.mailbox.waiters(name)):
            if self._eligible(name, unit):
                signal = self.mailbox.take_signal(name)
                if signal is None:
                    return
                self.mailbox.waiters(name).remove((unit, ivar))
                _fill(unit, ivar, signal)

    def _give(self, name: str, unit: Unit, ivar: IVar) -> None:
        """Give the oldest buffered signal to a wait that came when it was there."""
        signal = self.mailbox.take_signal(name)
        assert signal is not None
        self._budget.take()
        _fill(unit, ivar, signal)

    # -- units wait ---------------------------------------------------------------------------------------------------

    def wait_for_signal(self, name: str) -> IVar:
        """Take the oldest buffered signal, if the unit at work may have it, or wait in line.

        One that is there comes later where the host has enough for this activation, and behind units that wait for that
        already.
        """
        scheduler, mailbox = self._scheduler, self.mailbox
        unit = scheduler.current
        assert unit is not None
        ivar = IVar(f"signal {name}")
        ivar.about = {"kind": "signal", "name": name, "since": self._standing.now.isoformat()}
        if not mailbox.has_signal((name,)) or not self._eligible(name, unit):
            mailbox.wait(name, unit, ivar)
        elif (scheduler.parked and unit is not scheduler.first) or self._budget.spent(since=0):
            scheduler.park(name, unit, ivar)
        else:
            if scheduler.on_wait is not None:
                scheduler.on_wait()
            ivar.hand = unit.hand
            self._give(name, unit, ivar)
            unit.hand = ivar.hand
        return ivar

    def put_back(self, hand: tuple[Signal, ...]) -> None:
        """Signals whose taker was not the one that returned.

        They stay in the mailbox, in their order, for whoever wants them.
        """
        for signal in hand:
            self.mailbox.put_back(signal)
        for name in {signal.name: None for signal in hand}:
            self._match_waiters(name)

    # -- phases -------------------------------------------------------------------------------------------------------

    def open(self, phase: Phase) -> None:
        """``phase`` takes messages from here on."""
        self.phase = phase
        self._standing.goes_on = False

    def leave(self, phase: Phase, reason: Literal["stop", "timeout", "cancel"]) -> None:
        """Begin to leave: nothing is dispatched any more, the timer goes, updates that wait are refused."""
        if phase.leaving is not None:
            return
        phase.leaving = reason
        if phase.timer is not None and reason != "timeout":
            self._cancel_timer(phase.timer)
        self._refuse_updates()
        for name in self.mailbox.waited_for():
            self._match_waiters(name)

    def close(self) -> None:
        """The phase is over, and all that was bound to it."""
        self.phase = None

    def _admit(self, phase: Phase, update: Update) -> bool:
        handler = phase.updates.get(update.name)
        if handler is not None:
            return self._handling.admit(phase, handler, update)
        if not update.accepted:  # else: the code no longer has it, which matching reports
            self._journal.reject(update.id, self._not_now(update.name))
        return False

    def _admit_waiting(self, phase: Phase) -> None:
        """Answer the updates behind a busy handler now, by the state of this moment.

        Those that are accepted stay in their place.
        """
        updates = self.mailbox.updates
        waiting = list(updates)
        updates.clear()
        updates.extend(update for update in waiting if update.admitted or self._admit(phase, update))

    def _refuse_updates(self) -> None:
        """Reject what waits in the mailbox, fail what was admitted.

        On replay accepted updates stay: their phase is still to open.
        """
        updates = self.mailbox.updates
        if not updates:
            return
        kept = [update for update in updates if update.accepted and not update.admitted]
        for update in updates:
            if update.admitted:
                late = UpdateRejected(f"the phase ended before the update {update.name!r} had its turn")
                self._handling.failed(f"update {update.name}", update.id, late)
            elif not update.accepted:
                self._journal.reject(update.id, self._not_now(update.name))
        updates.clear()
        updates.extend(kept)

    def _not_now(self, name: str) -> UpdateRejected:
        run = self._standing.run
        if self._standing.closed is not None:
            return WorkflowClosed(f"{run} is closed")
        accepts = self.accepts
        takes = ", ".join(accepts["updates"]) or "none"
        return NotAccepting(
            f"{run} is not accepting the update {name!r} at this time (accepted now: {takes})",
            accepts={"signals": accepts["signals"], "updates": accepts["updates"]},
        )

    # -- the run is dropped -------------------------------------------------------------------------------------------

    def dissolve(self) -> None:
        """Let go of what refers back here: the memory is free at once then, and not when the collector comes."""
        self._handling.dissolve()
        self.phase = self._process = None


def _fill(unit: Unit, ivar: IVar, signal: Signal) -> None:
    unit.sender = signal.sender
    ivar.hand = (*ivar.hand, signal)
    ivar.put(copied(signal.payload))
