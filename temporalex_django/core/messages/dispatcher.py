"""The dispatcher: it gives messages to a phase with its handlers, or to a unit that waits for a signal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, cast

from temporalex_django.core.history.activation import NO_DELIVERY, DeliveryRecord, Refusal
from temporalex_django.core.history.attributes import SignalFailedAttributes
from temporalex_django.core.history.events import Job
from temporalex_django.core.human_tasks import unexpected_decision
from temporalex_django.core.messages import sender as senders
from temporalex_django.core.messages.mailbox import (
    Budget,
    Mailbox,
    Signal,
    Update,
    failed_text,
    undelivered_error,
    untaken_message_error,
)
from temporalex_django.core.messages.phase import HandlerRunner, Phase
from temporalex_django.core.messages.sender import Judge, Permissions, Sender, headers_attributes, headers_from
from temporalex_django.core.payloads.codec import deep_copy
from temporalex_django.core.pending_commands import Journal
from temporalex_django.core.process import QUESTION, RECORDED_AS, REQUEST, REQUESTED, RequestJudge, recorded_request
from temporalex_django.core.run_context import RunContext
from temporalex_django.core.typed_dicts import AcceptedNames
from temporalex_django.core.units.ivar import IVar
from temporalex_django.core.units.scheduler import Scheduler, Unit
from temporalex_django.errors import (
    ActionNotPermitted,
    JudgingFailed,
    NotAccepting,
    TemporalexError,
    UpdateRejected,
    WorkflowClosed,
    no_process,
)


class Dispatcher:
    """The part that owns the mailbox and the open phase of a run, and gives messages to code.

    ``had_phase`` is True once a phase was open. ``unfinished`` is True if the last activation spent its budget while
    code could take more signals from the mailbox.
    ``cancel_timer(number)`` cancels the timer of that command number.
    """

    __slots__ = (
        "_arrival_count",
        "_budget",
        "_cancel_timer",
        "_journal",
        "_permissions",
        "_request_judge",
        "_requests",
        "_run_context",
        "_scheduler",
        "had_phase",
        "handler_runner",
        "mailbox",
        "phase",
        "unfinished",
    )  # fmt: skip

    def __init__(
        self, run_context: RunContext, journal: Journal, scheduler: Scheduler, *, cancel_timer: Callable[[int], None]
    ) -> None:
        self._run_context = run_context
        self._journal = journal
        self._scheduler = scheduler
        self._cancel_timer = cancel_timer
        self._permissions = Permissions()
        self.handler_runner = HandlerRunner(
            run_context, journal, scheduler, self._permissions, partial(self.leave_phase, reason="stop")
        )
        self._budget = Budget(run_context, journal)
        self._request_judge: RequestJudge | None = None
        self._arrival_count = 0  # of signals in this activation
        self._requests: dict[str, Job] = {}  # redelivered requests that nothing has taken yet, by id
        self.mailbox = Mailbox()
        self.phase: Phase | None = None
        self.had_phase = False
        self.unfinished = False

    def attach(self, request_judge: RequestJudge) -> None:
        """Let ``request_judge`` judge requests from now on: events for declared steps, and decisions of people."""
        self._request_judge = request_judge

    @property
    def open_phase(self) -> Phase | None:
        """The phase (a call of ``api.phase``) that takes messages now.

        None before a phase is entered, and from the moment when it begins to leave.
        """
        phase = self.phase
        return phase if phase is not None and phase.leave_reason is None else None

    @property
    def accepts(self) -> AcceptedNames:
        """The names that the open phase handles: ``{"signals": [...], "updates": [...]}``."""
        phase = self.open_phase
        if phase is None:
            return {"signals": [], "updates": []}
        return {"signals": list(phase.signals), "updates": list(phase.updates)}

    # -- an activation ------------------------------------------------------------------------------------------------

    def begin(
        self,
        *,
        is_budget_spent: Callable[[], bool] | None,
        judge: Judge | None,
        recorded: DeliveryRecord,
    ) -> None:
        """Begin a new activation.

        For ``is_budget_spent`` and ``judge`` see ``Executor.activate``. ``recorded`` is the record of the activation
        that is replayed.
        """
        self.unfinished = False
        self._arrival_count = 0
        self._budget.begin(is_budget_spent=is_budget_spent, dispatch_limit=recorded.dispatched)
        self._permissions.begin(
            judge, recorded.refused, recorded.refused_arrivals, recorded.denied, self._run_context.replaying
        )
        self.handler_runner.failures.begin(recorded.failed)

    def deliver(self, incoming: Sequence[Job | Update], *, consumes_all: bool) -> None:
        """Deliver the messages one by one; before the first and after each, run all workflow code until it waits.

        Stops when the budget of the activation is spent or the run has closed. ``Completion.unapplied`` is then the
        number of messages that were not delivered. For ``consumes_all`` see ``Activation``.
        """
        completion = self._journal.completion
        self.run()
        if self._requests:
            self._retry_requests()
        for index, message in enumerate(incoming):
            full = self._budget.is_spent_before(index)
            if full or self._budget.spent_at is not None or self._run_context.closed is not None:
                completion.unapplied = len(incoming) - index
                if self._run_context.closed is not None:
                    self._settle_unapplied(incoming[index:], consumes_all=consumes_all)
                break
            self._deliver_message(message)
            self.run()
            if self._requests:
                self._retry_requests()

    def _settle_unapplied(self, messages: Sequence[Job | Update], *, consumes_all: bool) -> None:
        """Reject updates and requests. A continue-as-new passes on the signals, or all without ``consumes_all``."""
        completion = self._journal.completion
        if self._run_context.closed == "ContinueAsNew" and not consumes_all:
            return
        for message in messages:
            if completion.carried is not None and _waits(message):
                self._accept_carried(message)
            elif isinstance(message, Update):
                if message.accepted:
                    self.mailbox.updates.append(message)  # the executor reports it
                else:
                    error = undelivered_error("update", message.name, self._run_context.failure)
                    self.handler_runner.refuse_update(message, error)
            elif message.kind == REQUESTED:
                event = message.attributes["request"].get("event")
                error = undelivered_error(REQUEST, event, self._run_context.failure)
                self._journal.reject_update(message.attributes["id"], error)
                if _waits(message):
                    self._lose_request(message, error)
            elif completion.carried is not None:
                completion.carried["signals"].append(message.attributes)

    def _accept_carried(self, message: Job | Update) -> None:
        """Accept a message that waits and came behind a continue-as-new, which takes it to the next run."""
        commands = self._journal.completion.commands
        closing = commands.pop()  # the last command of a run
        if isinstance(message, Update):
            message.after = self.mailbox.received
            self.handler_runner.accept(message, waits=True)
            self.mailbox.updates.append(message)
        else:
            self._grant_waiting(message)
        commands.append(closing)

    def receive_waiting(self, updates: Sequence[Update]) -> None:
        """Put the updates that waited since an earlier activation, or run of the chain, into the mailbox."""
        for update in updates:
            if update.waits:
                self.handler_runner.accept(update, waits=True)
            self.mailbox.updates.append(update)

    def refuse_waiting(self) -> None:
        """Fail the updates, and list the requests, that waited after a reset and that nothing has taken.

        The run closes, and no other one continues it.
        """
        for update in [*self.mailbox.updates]:
            if update.waits:
                self.mailbox.updates.remove(update)
                self.handler_runner.refuse_update(update, self._closed_error(f"the update {update.name!r}"))
        for request_id, job in [*self._requests.items()]:
            if job.attributes.get("granted"):
                del self._requests[request_id]
                self._lose_request(job, self._closed_error(f"the request {job.attributes['request']['event']!r}"))

    def _take_waiting(self, position: Callable[[int], int]) -> list[tuple[str, dict[str, Any]]]:
        """Remove and return the messages that waited after a reset, for the next run of the chain.

        They are pairs of the kind and the attributes of a job. For ``position`` see ``end``.
        """
        waiting: list[tuple[str, dict[str, Any]]] = []
        for update in [*self.mailbox.updates]:
            if update.waits:
                self.mailbox.updates.remove(update)
                attributes = {"id": update.message_id, "name": update.name, "args": update.args, "waits": True}
                origin = {**senders.sender_attributes(update.sender), **headers_attributes(update.headers)}
                waiting.append(("UpdateRequested", {**attributes, "after": position(update.after), **origin}))
        for request_id, job in [*self._requests.items()]:
            if job.attributes.get("granted"):
                waiting.append((job.kind, self._requests.pop(request_id).attributes))
        return waiting

    def _take_redelivered(self) -> dict[str, Job]:
        # Those that are granted stay, because their host does not deliver them again.
        requests = {key: job for key, job in self._requests.items() if not job.attributes.get("granted")}
        for key in requests:
            del self._requests[key]
        return requests

    def end(self, position: Callable[[int], int]) -> tuple[list[Update], list[str]]:
        """End the activation. ``position(after)`` returns the number of signals of the next run before an update.

        Returns a pair: the updates that were not judged, and the ids of requests that a reset or fork delivers again
        and that nothing has taken. The host delivers both again, so that cached and rebuilt executors agree. Once the
        run is closed, there are no such requests, because they are rejected.
        """
        carried = self._journal.completion.carried
        if carried is not None and (waiting := self._take_waiting(position)):
            carried["waiting"] = waiting
        unjudged = self.mailbox.remove_unjudged()
        requests = self._take_redelivered() if self._requests else {}
        # A continue-as-new passes its requests to the next run of the chain. After any other close nothing takes them.
        if requests and self._run_context.closed not in (None, "ContinueAsNew"):
            for request_id, request in requests.items():
                self._journal.reject_update(
                    request_id, self._closed_error(f"the request {request.attributes['request']['event']!r}")
                )
            requests = {}
        self.unfinished = self._budget.spent_at is not None and self._has_buffered_work()
        return unjudged, list(requests)

    def delivery_record(self) -> DeliveryRecord:
        """Return the record of the activation, which has ended and was no replay."""
        completion, dispatched, denied = self._journal.completion, self._budget.spent_at, self._permissions.denied
        if not completion.refused and not denied and not completion.failed and dispatched is None:
            return NO_DELIVERY
        return DeliveryRecord(
            denied=denied,
            refused=tuple(refusal.number for refusal in completion.refused if refusal.number is not None),
            refused_arrivals=tuple(refusal.arrival for refusal in completion.refused if refusal.arrival is not None),
            failed={f.number: cast("SignalFailedAttributes", f.event_attributes()) for f in completion.failed},
            dispatched=dispatched,
        )

    def _has_buffered_work(self) -> bool:
        """Return True if a phase or a wait can take a signal from the mailbox, although no new message has come."""
        phase = self.open_phase
        return bool(self._scheduler.parked) or (phase is not None and self.mailbox.has_signal(phase.signals))

    # -- messages arrive ----------------------------------------------------------------------------------------------

    def buffer_signal(self, signal: Job, *, permission: str | None = None) -> None:
        """Put a signal into the mailbox, where it waits for code that takes it.

        ``permission`` is the one that was required when it came, and that its sender has. None means that none was
        required so far.
        """
        self._journal.record(signal)
        attributes = signal.attributes
        name, payload, message_id = attributes["name"], attributes.get("payload"), attributes.get("id")
        if message_id is not None:
            self.handler_runner.failures.mark_delivered(message_id)
        self.mailbox.add_signal(
            name,
            payload,
            sender=senders.sender_from(attributes),
            permission=permission,
            message_id=message_id,
            headers=headers_from(attributes),
        )

    def _deliver_message(self, message: Job | Update) -> None:
        """Give the message to a unit that waits for it, or put it into the mailbox."""
        if isinstance(message, Update):
            # The count is taken here: signals of this activation that were refused leave no event to count.
            message.after = self.mailbox.received
            if message.waits and message.name not in self.accepts["updates"]:
                self.handler_runner.accept(message, waits=True)
            self.mailbox.updates.append(message)
            return
        if message.kind == REQUESTED:
            recorded = self._judge_request(message)
            if recorded is None:
                return
            message = recorded
        else:
            self._arrival_count += 1
        name = message.attributes["name"]
        sender = senders.sender_from(message.attributes)
        phase = self.open_phase
        permission = phase.signals[name].permission if phase is not None and name in phase.signals else None
        if permission is not None and sender is not None and self._is_refused(message, sender, permission):
            return
        if name == RECORDED_AS and self._request_judge is not None:
            self._journal.record(message)
            self.mailbox.received += 1
            self._request_judge.apply(recorded_request(message.attributes))
            return
        # A recorded decision, but the code has no request judge now: it differs from its history.
        if "question" in message.attributes:
            raise unexpected_decision(self._run_context.run_label, message.attributes["payload"]["step"])
        self.buffer_signal(message, permission=permission)
        self._match_waiters(name)

    def _is_refused(self, signal: Job, sender: Sender, permission: str) -> bool:
        # The judge is the host's and may change its answer, so a replay does not ask it. A refused signal has no event.
        # Only a host that keeps the signals themselves delivers it again in a replay. See decision 37.
        if self._run_context.replaying:
            return self._arrival_count in self._permissions.refused_arrivals
        name = signal.attributes["name"]
        if self._permissions.is_permitted(permission, sender, f"signal {name!r}"):
            return False
        self._journal.refuse_signal(
            Refusal(name=name, sender=sender, permission=permission, job=signal, arrival=self._arrival_count)
        )
        return True

    def _judge_request(self, job: Job) -> Job | None:
        """Return the signal that a request becomes in the history, or None. A refused request leaves no trace.

        A redelivered request waits. One that ``waits`` is granted when it comes, and judged by the step or task that
        takes it. Raises ``NondeterminismError`` if nothing takes an accepted one.
        """
        update_id, request = job.attributes["id"], job.attributes["request"]
        sender, label = senders.sender_from(job.attributes), f"the request {request.get('event')!r}"
        is_accepted = (self._run_context.replaying or job.attributes.get("accepted", False)) and not _waits(job)
        try:
            if self._request_judge is None:
                raise no_process(self._run_context.run_label)
            request = {**request, "person": sender is not None}
            if not is_accepted:
                self._request_judge.judge(request, self._permits_of(job, label))
            payload = self._request_judge.build_payload(request)
        except JudgingFailed:
            raise
        except TemporalexError as exc:
            if _waits(job):
                self._keep_waiting(job, exc)
                return None
            if is_accepted:
                raise untaken_message_error(self._run_context.run_label, label) from exc
            if job.attributes.get("redelivered"):
                self._requests[update_id] = job
            else:
                self._journal.reject_update(update_id, exc)
            return None
        self._requests.pop(update_id, None)
        if not job.attributes.get("granted"):
            self._journal.grant_request(update_id)
        # The question goes beside the payload, where a replay compares it with the question of the code (decision 47).
        question: dict[str, Any] = {name: payload.pop(name) for name in QUESTION if name in payload}
        origin = {**senders.sender_attributes(sender), **headers_attributes(job.attributes.get("headers"))}
        return Job("SignalReceived", {"name": RECORDED_AS, "payload": payload, **question, **origin})

    def _permits_of(self, job: Job, label: str) -> Callable[[str, Sender], bool]:
        """Return the function that says whether a word includes the sender of a request, which ``label`` names.

        A replay judges requests that wait. The history says then whose sender lacked the permission.
        """
        if not self._run_context.replaying:
            return partial(self._permissions.has_permission, message=label)
        is_permitted = job.attributes["id"] not in self._permissions.denied
        return lambda _word, _sender: is_permitted

    def _keep_waiting(self, job: Job, error: TemporalexError) -> None:
        """Let a request wait that nothing takes now. One whose sender lacks the permission is lost."""
        if not job.attributes.get("granted"):
            self._grant_waiting(job)
        if isinstance(error, ActionNotPermitted):
            if not self._run_context.replaying:
                self._permissions.denied = (*self._permissions.denied, job.attributes["id"])
            self._lose_request(self._requests.pop(job.attributes["id"]), error)

    def _grant_waiting(self, job: Job) -> None:
        """Answer a request that waits, and keep it until something takes it."""
        self._journal.grant_request(job.attributes["id"])
        self._requests[job.attributes["id"]] = Job(job.kind, {**job.attributes, "granted": True})

    def _lose_request(self, job: Job, error: TemporalexError) -> None:
        event, sender = job.attributes["request"].get("event"), senders.sender_from(job.attributes)
        self._journal.lose(REQUEST, event, sender, error)

    def _retry_requests(self) -> None:
        """Offer the requests that a reset or fork delivers again, in order, until none is taken."""
        is_taken = True
        while is_taken and self._run_context.closed is None and self._budget.spent_at is None:
            # Each request that is taken may open a step for one before it, so the search starts again.
            is_taken = False
            for request_id, job in list(self._requests.items()):
                self._deliver_message(job)
                if is_taken := request_id not in self._requests:
                    self.run()
                    break

    # -- messages are taken -------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run workflow code and give messages of the mailbox to the open phase, until neither can continue."""
        mailbox, scheduler, budget = self.mailbox, self._scheduler, self._budget
        initial_count = budget.dispatch_count
        while True:
            # A condition may hold because of the message or timer that was delivered just now, before any unit has run.
            scheduler.step_waiters()
            scheduler.run()
            if scheduler.parked:
                # Parked units come before the phase: their signal was there when they began to wait.
                if not self._serve_parked(initial_count):
                    return
                continue
            phase = self.open_phase
            if phase is None:
                if not self._run_context.is_between_runs:
                    self._refuse_updates()
                return
            if phase.busy is not None:
                # The host answers in this activation, so updates cannot wait for the busy handler. See decision 12.
                if self._run_context.admits_updates:
                    self._admit_waiting(phase)
                return
            message = mailbox.next_message(phase.signals, phase.updates)
            if message is None or budget.is_spent(since=initial_count):
                return
            if isinstance(message, Update):
                mailbox.take_update(message)
                if (message.admitted and not message.waits) or self._admit(phase, message):
                    budget.count_dispatch()
                    self.handler_runner.run_update(phase, message)
            else:
                mailbox.take_signal(message.name)
                budget.count_dispatch()
                self.handler_runner.run_signal(phase, message)

    def _serve_parked(self, initial_count: int) -> bool:
        """Give the first parked unit its signal, or let it wait for the next one. Return False if the budget is spent.

        A unit is parked if its signal is in the mailbox, but the budget is spent or other units come first.
        """
        scheduler, mailbox = self._scheduler, self.mailbox
        name, unit, ivar = scheduler.parked[0]
        if mailbox.has_signal((name,)) and self._is_eligible(name, unit):
            if self._budget.is_spent(since=initial_count):
                return False
            scheduler.unpark(first=True)
            self._take_buffered(name, unit, ivar)
        else:
            scheduler.unpark(first=False)
            ivar.taken_signals = ()
            mailbox.add_waiter(name, unit, ivar)
        return True

    def _is_eligible(self, name: str, unit: Unit) -> bool:
        """Return True unless a handler of the open phase takes the signal. Units inside that handler may take it."""
        phase = self.open_phase
        if phase is None or name not in phase.signals:
            return True
        # The phase dispatches nothing while this handler is busy. Without this rule, a wait inside it would never end.
        return phase.busy is not None and unit.is_within(phase.busy)

    def _match_waiters(self, name: str) -> None:
        """Serve the oldest wait first."""
        for unit, ivar in list(self.mailbox.waiters(name)):
            if self._is_eligible(name, unit):
                signal = self.mailbox.take_signal(name)
                if signal is None:
                    return
                self.mailbox.waiters(name).remove((unit, ivar))
                self._resolve_wait(unit, ivar, signal)

    def _take_buffered(self, name: str, unit: Unit, ivar: IVar) -> None:
        signal = self.mailbox.take_signal(name)
        assert signal is not None
        self._budget.count_dispatch()
        self._resolve_wait(unit, ivar, signal)

    def _resolve_wait(self, unit: Unit, ivar: IVar, signal: Signal) -> None:
        """Fill ``ivar``, and store the sender in the unit, where ``api.sender()`` reads it."""
        self._run_context.record_effect()
        unit.sender = signal.sender
        ivar.taken_signals = (*ivar.taken_signals, signal)
        ivar.put(deep_copy(signal.payload))

    # -- units wait ---------------------------------------------------------------------------------------------------

    def wait_for_signal(self, name: str) -> IVar:
        """Return an IVar (a value to await) that gets the next signal with that name for the code that runs now.

        The IVar is set already if a signal is buffered and the active unit (the coroutine that runs now) may take it
        now. If the budget of the activation is spent, or other units wait for their turn, the unit is parked and gets
        the buffered signal later. Otherwise it waits for a signal to arrive.
        """
        scheduler, mailbox = self._scheduler, self.mailbox
        unit = scheduler.current
        assert unit is not None
        ivar = IVar(f"signal {name}")
        ivar.wait_info = {"kind": "signal", "name": name, "since": self._run_context.now.isoformat()}
        if not mailbox.has_signal((name,)) or not self._is_eligible(name, unit):
            mailbox.add_waiter(name, unit, ivar)
        elif (scheduler.parked and unit is not scheduler.unparked_unit) or self._budget.is_spent(since=0):
            scheduler.park(name, unit, ivar)
        else:
            # This wait does not suspend, so the deadline is restarted here: a loop over thousands of buffered signals
            # is no deadlock. See decision 19.
            if scheduler.on_wait is not None:
                scheduler.on_wait()
            ivar.taken_signals = unit.taken_signals
            self._take_buffered(name, unit, ivar)
            unit.taken_signals = ivar.taken_signals
        return ivar

    def return_signals(self, signals: tuple[Signal, ...]) -> None:
        """Return signals to the mailbox, because the result of the branch that took them is dropped.

        They keep their order, and other coroutines and handlers may take them.
        """
        for signal in signals:
            self.mailbox.return_signal(signal)
        # A dictionary and not a set: the order of the names must not depend on the hash seed.
        for name in {signal.name: None for signal in signals}:
            self._match_waiters(name)

    # -- phases -------------------------------------------------------------------------------------------------------

    def enter_phase(self, phase: Phase) -> None:
        """Open ``phase``, which ``run`` has just entered: its handlers take messages from now on."""
        self.phase, self.had_phase = phase, True
        self._run_context.is_continued = False

    def leave_phase(self, phase: Phase, reason: Literal["stop", "timeout", "cancel"]) -> None:
        """Begin to leave ``phase``: stop dispatching, cancel its timer and refuse the waiting updates.

        ``phase`` ends when its last handler has ended. ``reason`` says what made it leave. Does nothing if the phase is
        leaving already.
        """
        if phase.leave_reason is not None:
            return
        phase.leave_reason = reason
        if phase.timer is not None and reason != "timeout":
            self._cancel_timer(phase.timer)
        self._refuse_updates()
        # The handlers of the phase no longer come first, so waits outside of it may take these signals.
        for name in self.mailbox.awaited_names():
            self._match_waiters(name)

    def close_phase(self) -> None:
        """Forget the open phase. All coroutines that belong to it have ended, and ``run`` continues after it."""
        self.phase = None

    def _admit(self, phase: Phase, update: Update) -> bool:
        """Return True if the update is accepted; otherwise reject it."""
        handler = phase.updates.get(update.name)
        if handler is not None:
            return self.handler_runner.admit(phase, handler, update)
        self._journal.reject_update(update.message_id, self._not_accepting_error(update.name))
        return False

    def _admit_waiting(self, phase: Phase) -> None:
        """Judge waiting updates by the present phase state. Accepted ones keep their position in the mailbox."""
        updates = self.mailbox.updates
        waiting = list(updates)
        updates.clear()
        updates.extend(
            update
            for update in waiting
            if update.admitted or (update.can_wait and update.name not in phase.updates) or self._admit(phase, update)
        )

    def _refuse_updates(self) -> None:
        """Reject the updates that wait, and fail those that were admitted. Redelivered ones stay until the run closes.

        In a replay accepted updates stay, because their phase will still open.
        """
        updates = self.mailbox.updates
        if not updates:
            return
        closed = self._run_context.closed is not None
        remaining = [
            update
            for update in updates
            if update.waits or (update.can_wait and not update.admitted and (update.accepted or not closed))
        ]
        for update in updates:
            if update.waits:
                if not update.admitted:
                    self.handler_runner.accept(update, waits=True)
            elif update.admitted:
                rejection = UpdateRejected(f"the phase ended before it handled the update {update.name!r}")
                self.handler_runner.fail_update(f"update {update.name}", update.message_id, rejection)
            elif update.redelivered and closed:
                self._journal.reject_update(update.message_id, self._closed_error(f"the update {update.name!r}"))
            elif not update.can_wait:
                self._journal.reject_update(update.message_id, self._not_accepting_error(update.name))
        updates.clear()
        updates.extend(remaining)

    def _closed_error(self, message: str) -> WorkflowClosed:
        return WorkflowClosed(
            f"{self._run_context.run_label} is closed: nothing accepted {message}, which was delivered again"
        )

    def _not_accepting_error(self, name: str) -> UpdateRejected:
        run = self._run_context.run_label
        if self._run_context.closed is not None:
            failure = self._run_context.failure
            return WorkflowClosed(f"{run} is closed" if failure is None else f"{run} {failed_text(failure)}")
        accepts = self.accepts
        takes = ", ".join(accepts["updates"]) or "none"
        hint = f"; {name!r} is a signal: send it with signal()" if name in accepts["signals"] else ""
        return NotAccepting(
            f"{run} is not accepting the update {name!r} at this time (accepted now: {takes}){hint}",
            accepts={"signals": accepts["signals"], "updates": accepts["updates"]},
        )

    # -- eviction -----------------------------------------------------------------------------------------------------

    def release_references(self) -> None:
        """Drop the references that form cycles, because the run is evicted: reference counts then free the memory."""
        self.handler_runner.release_references()
        self.phase = self._request_judge = None


def _waits(message: Job | Update) -> bool:
    """Return True for an update or a request that is accepted when it comes, and waits (``Update.waits``)."""
    return message.waits if isinstance(message, Update) else message.attributes.get("waits", False)
