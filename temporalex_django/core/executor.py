"""The executor: activations in, commands out.

One executor is one run in memory. ``activate`` applies what is delivered in the order of D-03 (resolutions, a cancel request, then
messages one at a time, all units run to blocked in between) and gives back every command that workflow code issued. ``replay``
feeds it a history instead, and compares. What it holds is a pure function of that history: an executor may be dropped at any
activation boundary and built again.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any, Protocol

from temporalex_django.core import dispatch, eviction, matching, payloads, places, senders
from temporalex_django.core.activation import Activation, Completion, Definition, Refusal, RunInfo
from temporalex_django.core.commands import Command
from temporalex_django.core.conditions import Conditions
from temporalex_django.core.events import DELIVERED, ENGINE_VERSION, RESOLUTIONS, HistoryEvent, Job
from temporalex_django.core.failures import RunFailure, activity_failure, failure_of_run, message_of, name_of
from temporalex_django.core.history import Recorded, activations
from temporalex_django.core.ivar import IVar
from temporalex_django.core.mailbox import Mailbox, Update
from temporalex_django.core.patches import Patches
from temporalex_django.core.phase import Phase
from temporalex_django.core.results import Async, ContinueAsNew, Err, Ok
from temporalex_django.core.scheduler import Scheduler, Unit
from temporalex_django.core.senders import Judge, Sender
from temporalex_django.core.values import copied
from temporalex_django.errors import (
    Cancelled,
    Control,
    EngineChanged,
    NestingError,
    PayloadError,
    ResumeRefused,
    TemporalexError,
)

#: A longer history slows every rebuild: the run should continue as new.
SUGGEST_CONTINUE_AS_NEW = 10_000
_WAITS_SHOWN = 20
#: A fan-out of thousands that all wait for the same must not make each activation slow.
_UNITS_ASKED = 50


class Resumes(Protocol):
    """A graph at work: who judges its resumes, and takes those that are in the history."""

    def judge(self, request: dict[str, Any]) -> dict[str, Any]: ...

    def resumed(self, payload: dict[str, Any]) -> None: ...


class Executor:
    """Not thread-safe: whoever activates it holds the run's lock. After any exception from it, discard it."""

    def __init__(self, definition: Definition, info: RunInfo, *, payload_limit: int = payloads.MAX_BYTES) -> None:
        self.definition = definition
        self.info = info
        self.payload_limit = payload_limit
        self.scheduler = Scheduler()
        self.scheduler.complain = partial(dispatch.complain, self)
        self.mailbox = Mailbox()
        self.patches = Patches()
        self.conditions = Conditions()
        self.phase: Phase | None = None
        self.place: str | None = None  # the pure place that user code is in
        self.validated: Sender | None = None  # who sent the update that a validator looks at
        self.replaying = False
        self.suspect = False  # for the guard on Python 3.11
        self.now = datetime.min.replace(tzinfo=UTC)
        self._seed = 0  # replaced by the recorded one
        self._rng: random.Random | None = None
        self.history_length = 0
        self.published: Any = None
        self.publications = 0
        self.resumes: Resumes | None = None  # of a graph
        self.judge: Judge | None = (
            None  # of the present activation; without one, who is named may do nothing that takes a permission
        )
        self.refused: tuple[int, ...] = ()  # of the activation that is replayed
        self.dispatched = 0  # messages that phases and waits took from the mailbox in the present activation
        self.unfinished = False  # the host had enough, and somebody takes signals that are in the mailbox
        self._enough: Callable[[], bool] | None = None
        self._most: int | None = None  # Activation.dispatched
        self.snapshot: dict[str, Any] | None = None  # where a graph that was moved from another version goes on
        self.goes_on = False  # from another run, and no phase was open yet
        self.cancel_requested = False
        self._cancel: dict[str, Any] = {}  # attributes of the request
        self.cancel_notice = IVar("a cancel request")
        self.closed: str | None = None
        self.handed_over: dict[
            int, Coroutine[Any, Any, Any]
        ] = {}  # coroutines given as branches, until they have ended
        self.open_updates: dict[str, str] = {}  # accepted and unfinished: id -> name
        self.activities: dict[int, str] = {}  # scheduled and unresolved: number -> name
        self.children: dict[int, str] = {}  # that are waited for: number -> id
        self.had_children = False
        self.admits = False  # Activation.admit_updates of the present activation
        self._max_pending: int | None = None
        self._kept_back: dict[int, Command] = {}  # calls beyond max_pending, in call order
        self._resolve: dict[int, Callable[[Job], None]] = {}
        self._timers: dict[int, datetime] = {}
        self._due: list[tuple[datetime, int]] = []
        self._last_number = 0
        self._completion = Completion()

    # -- activation ---------------------------------------------------------------------------------------------------

    def activate(self, activation: Activation, *, enough: Callable[[], bool] | None = None) -> Completion:
        """Deliver, run until every unit is blocked, and answer.

        ``enough`` is asked between two messages, when every unit is blocked: once it says so, those that follow are left unapplied,
        for another activation; the same with those that a phase or a wait finds in the mailbox. Something is always applied. A history says
        what each activation took: replay does not ask.

        Raises what makes the activation (not the workflow) fail: ``MemoryError``, ``RecursionError``, a deadlock. The executor
        is of no use then.
        """
        return self._activate(activation, None, enough)

    def replay(self, events: Sequence[HistoryEvent]) -> None:
        """Go on from where it stands through ``events``. Raises ``NondeterminismError`` where the code parts from them."""
        for _ in self.replay_in_steps(events):
            pass

    def replay_in_steps(self, events: Sequence[HistoryEvent]) -> Iterator[None]:
        """``replay`` that stops behind each activation, for a host that has other things to do in between.

        A host that feeds a history in pages, which end at activations, tells ``patches.recorded`` of all its markers first.
        """
        self._check_engine(events)
        self.patches.recorded.update(e.attributes["id"] for e in events if e.kind == "PatchMarked")
        for recorded in activations(events):
            self.replaying = True
            try:
                completion = self._activate(recorded.activation, recorded)
            finally:
                self.replaying = False
            run = f"{self.info.workflow} {self.info.id}"
            matching.check(recorded.outputs, completion.commands, run=run, place_of=self.place_of)
            yield

    def _check_engine(self, events: Sequence[HistoryEvent]) -> None:
        """A history of another engine means something else than this one would make of it."""
        if events and events[0].kind == "WorkflowStarted":
            engine = events[0].attributes.get("engine", 1)
            if engine != ENGINE_VERSION:
                raise EngineChanged(
                    f"{self.info.workflow} {self.info.id} (run {self.info.run_id}) was started by engine {engine}, this is engine "
                    f"{ENGINE_VERSION}, which would not do the same: let it end under the version of temporalex_django that started "
                    "it, or terminate it and start it again"
                )

    def _activate(
        self, activation: Activation, recorded: Recorded | None, enough: Callable[[], bool] | None = None
    ) -> Completion:
        completion = self._completion = Completion(changed=activation.start is not None or self.unfinished)
        self.dispatched, self.unfinished = 0, False
        self._enough, self._most = enough, activation.dispatched
        self.now = activation.now
        self.history_length = activation.history_length
        self.admits, self._max_pending = activation.admit_updates, activation.max_pending
        self.refused = activation.refused
        if activation.seed is not None:
            self._seed, self._rng = activation.seed, None
        carried = activation.start.get("carried", 0) if activation.start is not None else 0
        waiting, incoming = dispatch.messages(self, activation.jobs, recorded, carried)
        # what is of no unit is of this activation alone
        Context().run(self._deliver, activation, carried, waiting, incoming)
        # the host delivers those that wait again: cached and rebuilt executors agree
        left = self.mailbox.hand_back()
        completion.pending = [(update.id, self._place(update.after)) for update in left if not update.accepted]
        if self._kept_back and self.closed is None:
            self._let_go()
        self.unfinished = completion.dispatched is not None and self._goes_on_taking()
        completion.closed = self.closed
        completion.changed = self.recording
        return completion

    def _deliver(
        self,
        activation: Activation,
        carried: int,
        waiting: list[Update],
        incoming: list[Job | Update],
    ) -> None:
        completion = self._completion
        with places.active(self):
            self.mailbox.updates.extend(waiting)
            if activation.start is not None:
                self._start(activation.start)
            for job in activation.jobs:
                if job.kind in RESOLUTIONS or job.kind == DELIVERED:
                    self._apply(job)
                elif job.kind == "CancelRequested" and not self.cancel_requested:
                    completion.jobs.append(job)
                    self._request_cancel(job.attributes)
                elif job.kind == "SignalReceived" and self.mailbox.received < carried:
                    dispatch.keep(self, job)
            dispatch.run(self)
            for index, message in enumerate(incoming):
                full = self._enough is not None and (index > 0 or self.recording) and self._enough()
                if full or completion.dispatched is not None or self.closed is not None:
                    completion.unapplied = len(incoming) - index
                    break
                dispatch.arrive(self, message)
                dispatch.run(self)

    def _start(self, start: dict[str, Any]) -> None:
        self._seed, self._rng = start["seed"], None
        self.snapshot = start.get("snapshot")
        self.goes_on = "carried" in start
        main = Unit(self.scheduler, "run", "run", self._run_ended, None)
        self.scheduler.spawn(main, self._main(start.get("args")))

    async def _main(self, args: Any) -> Any:
        what = f"the input of {self.info.workflow}"
        return await self.definition.entry(payloads.fit(copied(args), self.definition.args_type, what=what))

    def _apply(self, job: Job) -> None:
        number = job.attributes["seq"]
        resolve = self._resolve.pop(number, None)
        if resolve is not None:
            self._completion.jobs.append(job)
            self.activities.pop(number, None)
            resolve(job)
        elif number > self._last_number:
            raise TemporalexError(f"{self.info.id}: {job.kind} for command {number}, which was never issued")
        # else: the wait was cancelled before this came in; nobody wants it any more (D-08)

    def _request_cancel(self, attributes: dict[str, Any]) -> None:
        self.cancel_requested = True
        self._cancel = attributes
        for unit in list(self.scheduler.units.values()):
            if unit.parent is None:
                self.scheduler.cancel(unit, requested=True, notice=self.cancel_notice)
        if self.cancel_notice.waiters:
            self.scheduler.request_seen = True
        self.cancel_notice.put()

    def has_enough(self, *, since: int) -> bool:
        """Whether the other messages in the mailbox are for the next activation: from then on, all of them.

        Not before one was taken beyond ``since``. To be asked only where a message would be taken: a replay answers by their count.
        """
        completion = self._completion
        if completion.dispatched is None:
            if self.replaying:
                full = self.dispatched == self._most
            else:
                full = self.dispatched > since and self._enough is not None and self._enough()
            if full:
                completion.dispatched = self.dispatched
        return completion.dispatched is not None

    def _goes_on_taking(self) -> bool:
        """Whether a phase or a wait has something in the mailbox to go on with, also when nothing is delivered."""
        phase = self.phase
        if self.scheduler.parked:
            return True
        return phase is not None and phase.leaving is None and self.mailbox.has_signal(phase.signals)

    @property
    def between_runs(self) -> bool:
        """Whether updates wait for the first phase of this run, or for the next run, instead of being refused.

        A host that answers in the activation that delivers an update has nowhere to let it wait.
        """
        return (self.goes_on or self.closed is not None) and self.closed in (None, "ContinueAsNew") and not self.admits

    def _place(self, after: int) -> int:
        """Behind how many signals an update stands; when the run has gone on, of those that go with it."""
        return after if self.closed is None else sum(signal.number <= after for signal in self.mailbox.leftovers())

    def _run_ended(self, value: Any, error: BaseException | None) -> None:
        kind, attributes = self._closing(value, error)
        self.closed = kind
        left = self.mailbox.leftovers()
        if kind == "ContinueAsNew":
            unseen = self.cancel_requested and not self.scheduler.request_seen
            self._completion.carried = {
                "signals": [{"name": s.name, "payload": s.payload, **senders.recorded(s.sender)} for s in left],
                "cancel": self._cancel if unseen else None,
            }
        elif left:
            attributes["never_consumed"] = [s.name for s in left]
        self.emit(kind, None, attributes)

    def _closing(self, value: Any, error: BaseException | None) -> tuple[str, dict[str, Any]]:
        if isinstance(error, Cancelled):
            return "CancelWorkflow", {}
        if isinstance(error, (Control, MemoryError, RecursionError)):
            raise error
        if isinstance(error, RunFailure):
            return "FailWorkflow", error.attributes
        try:
            if error is not None:
                return "FailWorkflow", failure_of_run(error)
            match value:
                case Ok(result):
                    return "CompleteWorkflow", {"result": self.plain(result, "the result of run")}
                case Err(reason):
                    reason = describe_reason(reason)
                    return "FailWorkflow", {
                        "reason": self.plain(reason, "the reason of run"),
                        "type": None,
                        "message": None,
                    }
                case ContinueAsNew(args):
                    return "ContinueAsNew", {"args": self.plain(args, "the arguments of ContinueAsNew")}
                case Async():
                    raise NestingError("run returned Async: run is no place for it, only a handler of a phase may")
                case _:
                    raise TypeError(
                        f"run returned {value!r}: it must return Ok(result), Err(reason) or ContinueAsNew(args)"
                    )
        except (PayloadError, NestingError, TypeError) as exc:
            return "FailWorkflow", failure_of_run(exc)

    # -- what primitives use ------------------------------------------------------------------------------------------

    def emit(self, kind: str, number: int | None, attributes: dict[str, Any]) -> None:
        self._add(Command(kind, number, attributes))

    def _add(self, command: Command) -> None:
        self._completion.commands.append(command)

    def place_of(self, index: int | None) -> str | None:
        """Where in the user's code command ``index`` of the present activation was issued: only a tracing executor knows."""
        del index
        return None

    def record(self, job: Job) -> None:
        """``job`` is effective: it belongs into the history."""
        self._completion.jobs.append(job)

    def resume(self, update_id: str, request: dict[str, Any]) -> dict[str, Any] | None:
        """Judge a resume: what it becomes in the history, or None when it is refused, which leaves no trace."""
        try:
            if self.resumes is None:
                raise ResumeRefused(f"{self.info.workflow} {self.info.id} is no graph: it has no steps to resume")
            payload = self.resumes.judge(request)
        except TemporalexError as exc:
            self.reject(update_id, exc)
            return None
        self._completion.resumed.append(update_id)
        return payload

    def note(self, name: str, facts: dict[str, Any]) -> None:
        """Tell whoever listens, when the activation is committed; not to be called while a history is replayed."""
        self._completion.notes.append((name, facts))

    def refuse(self, refusal: Refusal) -> None:
        """A signal goes nowhere: its sender may not send it."""
        self._completion.refused.append(refusal)

    def reject(self, update_id: str, error: TemporalexError) -> None:
        self._completion.rejected.append((update_id, error))

    def plain(self, value: Any, what: str) -> Any:
        return payloads.plain(value, what=what, limit=self.payload_limit)

    @property
    def recording(self) -> bool:
        """Whether the present activation has had an effect, so that it will be in the history."""
        completion = self._completion
        return completion.changed or bool(completion.jobs or completion.commands)

    def new_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def ask(
        self, kind: str, attributes: dict[str, Any], resolve: Callable[[Job], None], number: int | None = None
    ) -> int:
        """Emit a command of that kind under a number; ``resolve`` gets what comes back for it."""
        number = number or self.new_number()
        self._resolve[number] = resolve
        self._issue(Command(kind, number, attributes))
        return number

    def _issue(self, command: Command) -> None:
        """Emit a call, or keep it back while as many as the host allows are unresolved."""
        assert command.seq is not None
        if self._max_pending is not None and self._pending() > self._max_pending:
            self._kept_back[command.seq] = command
        else:
            self._add(command)

    def _pending(self) -> int:
        """Calls that are unresolved, timers apart."""
        return len(self._resolve) - len(self._timers)

    def _let_go(self) -> None:
        """Emit what was kept back, oldest first, as far as the host takes it now."""
        room = len(self._kept_back)
        if self._max_pending is not None:
            room = min(room, self._max_pending - (self._pending() - room))
        for number in list(islice(self._kept_back, max(room, 0))):
            self._add(self._kept_back.pop(number))

    def withdraw(self, number: int) -> bool:
        """Nobody waits for that call any more. Whether it had been emitted, so that the host should hear of it."""
        self.forget(number)
        return self._kept_back.pop(number, None) is None

    def schedule_activity(self, attributes: dict[str, Any], result_type: Any) -> IVar:
        """Emit ScheduleActivity; the IVar gives the decoded result or raises ``ActivityFailure``."""
        name = attributes["activity"]

        def abandon() -> None:
            if self.withdraw(number):
                self.emit("CancelActivity", number, {})

        ivar = IVar(f"activity {name}", abandon)

        def resolve(job: Job) -> None:
            if job.kind != "ActivityCompleted":
                ivar.fail(activity_failure(job.attributes, name))
                return
            try:
                result = job.attributes.get("result")
                ivar.put(payloads.fit(copied(result), result_type, what=f"the result of {name}"))
            except PayloadError as exc:
                ivar.fail(exc)

        number = self.call_activity(attributes, resolve)
        return ivar

    def call_activity(self, attributes: dict[str, Any], resolve: Callable[[Job], None]) -> int:
        """Emit ScheduleActivity; ``resolve`` gets its end. The number of the command."""
        number = self.new_number()
        self.activities[number] = attributes["activity"]
        self._resolve[number] = resolve
        self._issue(Command("ScheduleActivity", number, attributes))
        return number

    def start_timer(self, duration: float, fire: Callable[[], None], **more: str) -> int:
        """Emit StartTimer; ``fire`` is called when it fires. Durations are seconds; ``more`` says what the timer is for."""
        number = self.new_number()
        due = self.now + timedelta(seconds=duration)
        self._timers[number] = due
        heapq.heappush(self._due, (due, number))

        def resolve(_: Job) -> None:
            self._timers.pop(number, None)
            fire()

        self._resolve[number] = resolve
        self.emit("StartTimer", number, {"duration": duration, "due": due.isoformat(), **more})
        return number

    def cancel_timer(self, number: int) -> None:
        """Emit CancelTimer, once, if it is still running."""
        if number in self._resolve:
            self.forget(number)
            self.emit("CancelTimer", number, {})

    def forget(self, number: int) -> None:
        """Nobody waits for this number any more: what still comes in for it has no effect."""
        self._resolve.pop(number, None)
        self._timers.pop(number, None)
        self.activities.pop(number, None)
        self.children.pop(number, None)

    @property
    def rng(self) -> random.Random:
        """The generator of the run; seeding it costs more than a small activation, so only runs that draw pay for it."""
        if self._rng is None:
            self._rng = random.Random(self._seed)  # noqa: S311 - reproducible on purpose
        return self._rng

    @contextmanager
    def pure(self, place: str) -> Iterator[None]:
        """User code that runs inside may look and compute, nothing else."""
        outer, self.place = self.place, place
        try:
            yield
        finally:
            self.place = outer

    # -- what hosts read ----------------------------------------------------------------------------------------------

    def due_timers(self, until: datetime) -> list[tuple[datetime, int]]:
        """Timers due at ``until`` or before, in order of their time."""
        return sorted((due, number) for number, due in self._timers.items() if due <= until)

    def next_timer(self) -> datetime | None:
        while self._due and self._timers.get(self._due[0][1]) != self._due[0][0]:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    @property
    def accepts(self) -> dict[str, list[str]]:
        """Names that the open phase handles: ``{"signals": [...], "updates": [...]}``."""
        phase = self.phase
        if phase is None or phase.leaving is not None:
            return {"signals": [], "updates": []}
        return {"signals": list(phase.signals), "updates": list(phase.updates)}

    @property
    def waiting_for(self) -> list[str]:
        """What the units wait for, in order of their creation; the first twenty."""
        units = islice(self.scheduler.units.values(), _UNITS_ASKED)
        waits = dict.fromkeys(label for unit in units if unit.waiting is not None for label in unit.waiting.labels)
        return list(islice(waits, _WAITS_SHOWN))

    def evict(self) -> None:
        """Drop the run from memory without running any more of its code."""
        coroutines: list[Any] = [u.coroutine for u in self.scheduler.units.values() if u.coroutine]
        coroutines += [generator for unit in self.scheduler.units.values() for generator in unit.generators]
        coroutines += self.handed_over.values()
        self.handed_over.clear()
        self.scheduler.units.clear()
        self.scheduler.ready.clear()
        self.scheduler.when_blocked.clear()
        self.scheduler.parked.clear()
        self.scheduler.resumed = None
        eviction.discard(coroutines)

    def __del__(self) -> None:
        if self.scheduler.units:
            self.evict()


def describe_reason(reason: Any) -> Any:
    """An exception given to ``Err`` is described; anything else is a payload."""
    if issubclass(type(reason), BaseException):  # what it says of its class may raise
        return f"{name_of(type(reason))}: {message_of(reason)}"
    return reason
