"""Messages meet whoever takes them: a phase with its handlers, or a unit that waits for a signal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from temporalex_django.core import senders
from temporalex_django.core.budget import Budget
from temporalex_django.core.copying import copied
from temporalex_django.core.handling import Handling
from temporalex_django.core.history.activation import Refusal
from temporalex_django.core.history.events import Job
from temporalex_django.core.human_tasks import nobody_asked
from temporalex_django.core.ivar import IVar
from temporalex_django.core.journal import Journal
from temporalex_django.core.mailbox import Mailbox, Signal, Update
from temporalex_django.core.permissions import Permissions
from temporalex_django.core.phase import Phase
from temporalex_django.core.process import QUESTION, RECORDED_AS, REQUESTED, Process, recorded_request
from temporalex_django.core.scheduler import Scheduler, Unit
from temporalex_django.core.senders import Judge
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
        "_budget", "_cancel_timer", "_journal", "_permissions", "_process", "_requests", "_scheduler", "_standing",
        "handling", "mailbox", "phase", "unfinished",
    )  # fmt: skip

    def __init__(
        self, standing: Standing, journal: Journal, scheduler: Scheduler, *, cancel_timer: Callable[[int], None]
    ) -> None:
        self._standing = standing
        self._journal = journal
        self._scheduler = scheduler
        self._cancel_timer = cancel_timer
        self._permissions = Permissions()
        self.handling = Handling(standing, journal, scheduler, self._permissions, partial(self.leave, reason="stop"))
        self._budget = Budget(standing, journal)
        self._process: Process | None = None
        self._requests: dict[str, Job] = {}  # redelivered ones that nothing has taken yet, by id
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
        failed: Mapping[int, bool],
    ) -> None:
        """Begin a new activation: see ``Executor.activate``, and ``Activation`` for the facts of a replay.

        ``most`` is its ``dispatched``.
        """
        self.unfinished = False
        self._budget.begin(enough=enough, most=most)
        self._permissions.begin(judge, refused)
        self.handling.failures.begin(failed)

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
            if self._requests:
                self._take_requests()

    def end(self) -> tuple[list[Update], list[str]]:
        """The activation is over.

        Gives the updates that nobody has judged, and the ids of the redelivered requests that nothing has taken: the
        host delivers both again, so that cached and rebuilt executors agree. Once the run is closed there are none.
        """
        left = self.mailbox.hand_back()
        requests, self._requests = self._requests, {}
        if requests and self._standing.closed not in (None, "ContinueAsNew"):
            for request_id, request in requests.items():
                self._journal.reject(
                    request_id, self._not_taken(f"the request {request.attributes['request']['event']!r}")
                )
            requests = {}
        self.unfinished = self._journal.completion.dispatched is not None and self._goes_on_taking()
        return left, list(requests)

    def _goes_on_taking(self) -> bool:
        """Whether a phase or a wait has something in the mailbox to go on with, also when nothing is delivered."""
        phase = self.open_phase
        return bool(self._scheduler.parked) or (phase is not None and self.mailbox.has_signal(phase.signals))

    # -- messages arrive ----------------------------------------------------------------------------------------------

    def keep(self, signal: Job, *, permission: str | None = None) -> None:
        """Put a signal in the mailbox. ``permission``: the one that its sender was judged by."""
        self._journal.record(signal)
        attributes = signal.attributes
        name, payload, message_id = attributes["name"], attributes.get("payload"), attributes.get("id")
        if message_id is not None:
            self.handling.failures.delivered(message_id)
        self.mailbox.add_signal(
            name, payload, sender=senders.of(attributes), permission=permission, message_id=message_id
        )

    def _arrive(self, message: Job | Update) -> None:
        """Put one message in its place: to a unit that waits for it, or in the mailbox."""
        if isinstance(message, Update):
            if not message.accepted:
                message.after = self.mailbox.received  # signals of the same activation that were refused do not count
            self.mailbox.updates.append(message)
            return
        if message.kind == REQUESTED:
            recorded = self._requested(message)
            if recorded is None:
                return
            message = recorded
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
            self._process.apply(recorded_request(message.attributes))
            return
        if "question" in message.attributes:
            raise nobody_asked(self._standing.run, message.attributes["payload"]["step"])
        self.keep(message, permission=permission)
        self._match_waiters(name)

    def _requested(self, job: Job) -> Job | None:
        """Judge a request: the signal that it becomes in the history, or None.

        One that is refused leaves no trace; one that is redelivered waits for what takes it instead.
        """
        update_id, request = job.attributes["id"], job.attributes["request"]
        sender = senders.of(job.attributes)
        permits = partial(self._permissions.answers, message=f"the request {request.get('event')!r}")
        try:
            if self._process is None:
                raise no_process(self._standing.run)
            payload = self._process.judge({**request, "person": sender is not None}, permits)
        except JudgingFailed:
            raise
        except TemporalexError as exc:
            if job.attributes.get("redelivered"):
                self._requests[update_id] = job
            else:
                self._journal.reject(update_id, exc)
            return None
        self._requests.pop(update_id, None)
        self._journal.grant(update_id)
        asked: dict[str, Any] = {name: payload.pop(name) for name in QUESTION if name in payload}
        return Job("SignalReceived", {"name": RECORDED_AS, "payload": payload, **asked, **senders.recorded(sender)})

    def _take_requests(self) -> None:
        """Offer the requests that wait to the steps and questions that are open now, in order, until none is taken."""
        taken = True
        while taken and self._standing.closed is None and self._journal.completion.dispatched is None:
            taken = False
            for request_id, job in list(self._requests.items()):
                self._arrive(job)
                if taken := request_id not in self._requests:
                    self.run()
                    break

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
            message = mailbox.first(phase.signals, phase.updates)
            if message is None or budget.spent(since=before):
                return
            if isinstance(message, Update):
                mailbox.take_update(message)
                if message.admitted or self._admit(phase, message):
                    budget.take()
                    self.handling.update(phase, message)
            else:
                mailbox.take_signal(message.name)
                budget.take()
                self.handling.signal(phase, message)

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
                self._fill(unit, ivar, signal)

    def _give(self, name: str, unit: Unit, ivar: IVar) -> None:
        """Give the oldest buffered signal to a wait that came when it was there."""
        signal = self.mailbox.take_signal(name)
        assert signal is not None
        self._budget.take()
        self._fill(unit, ivar, signal)

    def _fill(self, unit: Unit, ivar: IVar, signal: Signal) -> None:
        self._standing.leave_trace()
        unit.sender = signal.sender
        ivar.hand = (*ivar.hand, signal)
        ivar.put(copied(signal.payload))

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
            return self.handling.admit(phase, handler, update)
        self._journal.reject(update.id, self._not_now(update.name))
        return False

    def _admit_waiting(self, phase: Phase) -> None:
        """Answer the updates behind a busy handler now, by the state of this moment.

        Those that are accepted stay in their place.
        """
        updates = self.mailbox.updates
        waiting = list(updates)
        updates.clear()
        updates.extend(
            update
            for update in waiting
            if update.admitted or (update.waits and update.name not in phase.updates) or self._admit(phase, update)
        )

    def _refuse_updates(self) -> None:
        """Reject what waits in the mailbox, fail what was admitted.

        On replay accepted updates stay: their phase is still to open. Redelivered ones stay until the run closes.
        """
        updates = self.mailbox.updates
        if not updates:
            return
        closed = self._standing.closed is not None
        kept = [
            update for update in updates if update.waits and not update.admitted and (update.accepted or not closed)
        ]
        for update in updates:
            if update.admitted:
                late = UpdateRejected(f"the phase ended before the update {update.name!r} had its turn")
                self.handling.failed(f"update {update.name}", update.id, late)
            elif update.redelivered and closed:
                self._journal.reject(update.id, self._not_taken(f"the update {update.name!r}"))
            elif not update.waits:
                self._journal.reject(update.id, self._not_now(update.name))
        updates.clear()
        updates.extend(kept)

    def _not_taken(self, message: str) -> WorkflowClosed:
        """The refusal of a redelivered message when the run closes."""
        return WorkflowClosed(f"{self._standing.run} is closed: nothing took {message}, which was delivered again")

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
        self.handling.dissolve()
        self.phase = self._process = None
