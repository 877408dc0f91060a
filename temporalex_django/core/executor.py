"""The executor: activations in, commands out.

One executor is one run in memory. ``activate`` applies what is delivered in this order (resolutions, a cancel
request, then messages one at a time, all units run to blocked in between) and gives back every command that workflow
code issued. ``replay`` feeds it a history instead, and compares. What it holds is a pure function of that history: an
executor may be dropped at any activation boundary and built again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextvars import Context
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any

from temporalex_django.core import attributes, current, eviction, four_eyes, payloads, senders
from temporalex_django.core.approvals import Approvals
from temporalex_django.core.arrivals import arrivals
from temporalex_django.core.calls import Calls
from temporalex_django.core.cancellation import Cancellation
from temporalex_django.core.closing import closing
from temporalex_django.core.conditions import Conditions
from temporalex_django.core.copying import copied
from temporalex_django.core.dispatcher import Dispatcher
from temporalex_django.core.history import matching
from temporalex_django.core.history.activation import Activation, Completion, Definition, RunInfo
from temporalex_django.core.history.cutting import Recorded, activations
from temporalex_django.core.history.events import DELIVERED, ENGINE_VERSION, RESOLUTIONS, HistoryEvent, Job
from temporalex_django.core.history.inputs import ReplayDifference
from temporalex_django.core.human_tasks import HumanTasks
from temporalex_django.core.journal import Journal
from temporalex_django.core.mailbox import Signal, Update
from temporalex_django.core.patches import Patches
from temporalex_django.core.process import Process
from temporalex_django.core.scheduler import Scheduler, Unit
from temporalex_django.core.senders import Judge
from temporalex_django.core.shapes import Accepts, CarriedMessages, Waits
from temporalex_django.core.standing import Standing
from temporalex_django.errors import EngineChanged

#: A longer history slows every rebuild: the run should continue as new.
SUGGEST_CONTINUE_AS_NEW = 10_000
_WAITS_SHOWN = 20
#: A fan-out of thousands that all wait for the same must not make each activation slow.
_UNITS_ASKED = 50


class Executor:
    """Not thread-safe: whoever activates it holds the run's lock. After any exception from it, discard it.

    ``on_wait`` is called whenever a unit has come to a wait, or ended. ``strict``: an input that differs from the
    history parts code and history. ``unexpected_error`` is the host's answer where the class has none: "fail" or
    "block". ``skip_failed``: replays do not call handlers of signals that failed and left nothing behind. To workflow
    code it is a ``Port``.
    """

    def __init__(
        self,
        definition: Definition,
        info: RunInfo,
        *,
        payload_limit: int = payloads.MAX_BYTES,
        on_wait: Callable[[], None] | None = None,
        journal: Journal | None = None,
        unexpected_error: str = "fail",
        strict: bool = False,
        skip_failed: bool = False,
    ) -> None:
        self.definition = definition
        self.differences: list[ReplayDifference] = []  # inputs and durations, as far as it was replayed
        self._strict = strict
        blocks = (definition.unexpected_error or unexpected_error) == "block"
        self.standing = standing = Standing(
            info, payload_limit=payload_limit, signals=definition.signals, blocks=blocks
        )
        self.journal = journal = Journal() if journal is None else journal
        self.scheduler = scheduler = Scheduler(complain=standing.complain, on_wait=on_wait)
        self.calls = Calls(standing, journal)
        self.dispatcher = Dispatcher(standing, journal, scheduler, cancel_timer=self.calls.cancel_timer)
        self.dispatcher.handling.failures.skipped = skip_failed
        self.conditions = Conditions(standing, journal, scheduler)
        self.cancellation = Cancellation(scheduler)
        self.patches = Patches()
        self.asked_people: HumanTasks | None = None
        self._approvals: Approvals | None = None
        self.suspect = False
        self.published: Any = None
        self.publications = 0
        self.search_attributes: Mapping[str, Any] = {}  # as ``core.attributes`` keeps them; replaced, never changed
        self.sets_attributes = False  # whether its code ever did
        self._seed = 0  # replaced by the recorded one
        self._rng: random.Random | None = None
        self._taken_over: dict[int, Coroutine[Any, Any, Any]] = {}  # given as branches, until they have ended

    # -- activation ---------------------------------------------------------------------------------------------------

    def activate(
        self, activation: Activation, *, enough: Callable[[], bool] | None = None, judge: Judge | None = None
    ) -> Completion:
        """Deliver, run until every unit is blocked, and answer.

        ``enough`` is asked between two messages, when every unit is blocked: once it says so, those that follow are
        left unapplied, for another activation; the same with those that a phase or a wait finds in the mailbox.
        Something is always applied. A history says what each activation took: replay does not ask. ``judge`` says who
        may send what; without one, who is named may do nothing that takes a permission.

        Raises what makes the activation (not the workflow) fail: ``MemoryError``, ``RecursionError``, a deadlock. The
        executor is of no use then.
        """
        return self._activate(activation, None, enough, judge)

    def replay(self, events: Sequence[HistoryEvent]) -> None:
        """Go on from where it stands through ``events``.

        Raises ``NondeterminismError`` where the code parts from them, and ``HandlerPutRight``: then an executor with
        ``skip_failed`` is to replay them from the beginning.
        """
        for _ in self.replay_in_steps(events):
            pass

    def replay_in_steps(self, events: Sequence[HistoryEvent]) -> Iterator[None]:
        """``replay`` that stops behind each activation, for a host that has other things to do in between.

        A host that feeds a history in pages, which end at activations, tells of all its patch markers first: see
        ``expect_markers``.
        """
        standing = self.standing
        self._check_engine(events)
        self.expect_markers(e.attributes["id"] for e in events if e.kind == "PatchMarked")
        for recorded in activations(events):
            if (copied := recorded.activation.copied) is not None:
                self._seed, self._rng = recorded.activation.seed or 0, None
                self._take_up(copied)
                yield
                continue
            standing.replaying = True
            try:
                completion = self._activate(recorded.activation, recorded)
            finally:
                standing.replaying = False
            self.dispatcher.handling.failures.check()
            found = matching.check(
                recorded.outputs,
                completion.commands,
                run=standing.run,
                place_of=self.place_of,
                readers=self.calls.readers,
            )
            self.differences += found
            if self._strict and (other := next((one for one in found if one.kind == "input"), None)) is not None:
                raise matching.other_input(standing.run, other)
            yield

    def expect_markers(self, patches: Iterable[str]) -> None:
        """Ids of patch markers that are in the history."""
        self.patches.recorded.update(patches)

    def _check_engine(self, events: Sequence[HistoryEvent]) -> None:
        """A history of another engine means something else than this one would make of it."""
        if events and events[0].kind == "WorkflowStarted":
            engine = events[0].attributes.get("engine", 1)
            if engine != ENGINE_VERSION:
                raise EngineChanged(
                    f"{self.standing.run} (run {self.standing.info.run_id}) was started by engine {engine}, this is "
                    f"engine {ENGINE_VERSION}, which would not do the same: let it end under the version of "
                    "temporalex_django that started it, or terminate it and start it again"
                )

    def _activate(
        self,
        activation: Activation,
        recorded: Recorded | None,
        enough: Callable[[], bool] | None = None,
        judge: Judge | None = None,
    ) -> Completion:
        standing, calls, dispatcher = self.standing, self.calls, self.dispatcher
        if self.asked_people is not None:
            self.asked_people.begin()
        completion = self.journal.begin(changed=activation.start is not None or dispatcher.unfinished)
        dispatcher.begin(
            enough=enough,
            most=activation.dispatched,
            judge=judge,
            refused=activation.refused,
            failed=activation.failed,
        )
        standing.now = activation.now
        standing.history_length = activation.history_length
        standing.admits = activation.admit_updates
        calls.bound(activation.max_pending)
        if activation.seed is not None:
            self._seed, self._rng = activation.seed, None
        carried = activation.start.get("carried", 0) if activation.start is not None else 0
        waiting, incoming = arrivals(
            activation.jobs, recorded, received=dispatcher.mailbox.received, carried=carried, run=standing.info.id
        )
        # what is of no unit is of this activation alone
        Context().run(self._deliver, activation, carried, waiting, incoming)
        left, requests = dispatcher.end()
        completion.pending = [(update.id, self._position(update.after)) for update in left if not update.accepted]
        completion.pending += [(request, self._position(dispatcher.mailbox.received)) for request in requests]
        if standing.closed is None:
            calls.let_go()
        completion.closed = standing.closed
        completion.changed = self.journal.recording
        return completion

    def _deliver(
        self, activation: Activation, carried: int, waiting: list[Update], incoming: list[Job | Update]
    ) -> None:
        dispatcher = self.dispatcher
        with current.active(self):
            dispatcher.mailbox.updates.extend(waiting)
            if activation.start is not None:
                self._start(activation.start)
            for job in activation.jobs:
                if job.kind in RESOLUTIONS or job.kind == DELIVERED:
                    self.calls.apply(job)
                elif job.kind == "CancelRequested" and not self.cancellation.requested:
                    self.journal.record(job)
                    self.cancellation.request(job.attributes)
                elif job.kind == "SignalReceived" and dispatcher.mailbox.received < carried:
                    dispatcher.keep(job)
            dispatcher.deliver(incoming)

    def _known_as(self, attributes: Mapping[str, Any]) -> None:
        """What a run was called when its history was made: up to where it took up another one it goes by that one's."""
        info = self.standing.info
        named = {name: attributes[name] for name in ("id", "run_id", "parent")}
        self.standing.info = replace(info, **named)

    def _take_up(self, mark: Mapping[str, Any]) -> None:
        """Take the name of the run from its mark behind the run that it takes up, and the people who are shut out."""
        self._known_as(mark)
        self.standing.snapshot = four_eyes.behind_mark(self.standing.snapshot, mark)
        if self.asked_people is not None:
            self.asked_people.bar_again()

    def _start(self, start: dict[str, Any]) -> None:
        self._seed, self._rng = start["seed"], None
        if start.get("run_id", self.standing.info.run_id) != self.standing.info.run_id:
            self._known_as(start)
        self.standing.snapshot = start.get("snapshot")
        self.standing.goes_on = "carried" in start
        self.dispatcher.handling.failures.begin_with(start.get("failed", []))
        self.search_attributes = start.get("search_attributes") or {}
        main = Unit(self.scheduler, "run", "run", self._run_ended, None)
        self.scheduler.spawn(main, self._main(start.get("args")))

    async def _main(self, args: Any) -> Any:
        what = f"the input of {self.standing.info.workflow}"
        return await self.definition.entry(payloads.fit(copied(args), self.definition.args_type, what=what))

    def _position(self, after: int) -> int:
        """Behind how many signals an update stands; when the run has gone on, of those that go with it."""
        if self.standing.closed is None:
            return after
        return sum(signal.number <= after for signal in self.dispatcher.mailbox.leftovers())

    def _run_ended(self, value: Any, error: BaseException | None) -> None:
        blocks = self.standing.blocks and not self.standing.replaying
        try:
            kind, attributes = closing(value, error, plain=self.standing.plain, result=self._result, blocks=blocks)
        except (MemoryError, RecursionError):
            raise
        except Exception as exc:
            self.standing.block_for(exc)
            raise
        self.standing.closed = kind
        if kind == "FailWorkflow":
            self.standing.tell_failed(attributes, error)
        left, failures = self.dispatcher.mailbox.leftovers(), self.dispatcher.handling.failures
        if kind == "ContinueAsNew":
            carried: CarriedMessages = {
                "signals": [_as_received(signal) for signal in left],
                "cancel": self.cancellation.unseen,
            }
            if failures.open:
                carried["failed"] = failures.carried()
            self.journal.completion.carried = carried
        else:
            if left:
                attributes["never_consumed"] = [s.name for s in left]
            if failures.open:
                attributes["failed_signals"] = list(failures.open.values())
        self.journal.emit(kind, None, attributes)

    def _result(self, value: Any) -> Any:
        """What ``Ok`` holds, for whoever reads it by the annotation of ``run``."""
        return self.standing.handed(
            value,
            "the result of run",
            read=lambda plain: payloads.fit(plain, self.definition.result_type),
            annotate="annotate run, -> Ok[...]",
        )

    def place_of(self, index: int | None) -> str | None:
        """Where in the user's code command ``index`` of the present activation was issued.

        Only a tracing executor knows.
        """
        del index
        return None

    # -- what workflow code may use, beside the parts: see Port -------------------------------------------------------

    @property
    def rng(self) -> random.Random:
        """The generator of the run. Seeding costs more than a small activation, so only runs that draw pay for it."""
        self.standing.leave_trace()
        if self._rng is None:
            self._rng = random.Random(self._seed)  # noqa: S311 - reproducible on purpose
        return self._rng

    @property
    def human_tasks(self) -> HumanTasks:
        """What the run asks people; most runs never do."""
        if self.asked_people is None:
            self.asked_people = HumanTasks(self.standing, self.calls)
        return self.asked_people

    @property
    def approvals(self) -> Approvals:
        """The process of code that asks for approvals, from the first one on."""
        if self._approvals is None:
            self._approvals = Approvals(self)
            self.attach(self._approvals)
        return self._approvals

    def attach(self, process: Process) -> None:
        """From here on ``process`` judges requests."""
        self.dispatcher.attach(process)

    def publish(self, value: Any) -> None:
        """Show ``value`` (JSON data) to queries."""
        self.published = value
        self.publications += 1
        self.standing.leave_trace()

    def set_search_attributes(self, given: Any) -> None:
        """Change those that are named, and drop those that are None. Raises ``PayloadError``."""
        declared, what = self.definition.search_attributes, f"set_search_attributes of {self.definition.name}"
        changes = attributes.fitting(given, declared, what=what)
        self.search_attributes = attributes.merged(self.search_attributes, changes)
        self.sets_attributes = True
        self.standing.leave_trace()

    def take_over(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """A coroutine was given as a branch: it is closed with the run if it never starts."""
        self._taken_over[id(coroutine)] = coroutine

    def give_back(self, coroutine: object) -> None:
        """It has ended."""
        self._taken_over.pop(id(coroutine), None)

    def watch_closely(self) -> None:
        """The determinism guard watches this run from here on (Python 3.11)."""
        self.suspect = True

    # -- what hosts read ----------------------------------------------------------------------------------------------

    @property
    def unfinished(self) -> bool:
        """Whether there is something to go on with, also when nothing is delivered."""
        return self.dispatcher.unfinished

    @property
    def closed(self) -> str | None:
        """Kind of the command that closed the run; None while it is open."""
        return self.standing.closed

    @property
    def busy(self) -> bool:
        """Whether activities or children are under way."""
        return bool(self.calls.activities or self.calls.children)

    @property
    def had_children(self) -> bool:
        return self.calls.had_children

    def due_timers(self, until: datetime) -> list[tuple[datetime, int]]:
        """Timers due at ``until`` or before, in order of their time."""
        return self.calls.due_timers(until)

    def next_timer(self) -> datetime | None:
        return self.calls.next_timer()

    @property
    def accepts(self) -> Accepts:
        """Names that the open phase handles: ``{"signals": [...], "updates": [...]}``."""
        return self.dispatcher.accepts

    @property
    def waiting_for(self) -> list[str]:
        """What the units wait for, in order of their creation; the first twenty."""
        units = islice(self.scheduler.units.values(), _UNITS_ASKED)
        waits = dict.fromkeys(label for unit in units if unit.waiting is not None for label in unit.waiting.labels)
        return list(islice(waits, _WAITS_SHOWN))

    @property
    def waits(self) -> list[Waits]:
        """The same for programs: activities have rows of their own, and are not in it."""
        units = islice(self.scheduler.units.values(), _UNITS_ASKED)
        found = (wait for unit in units if unit.waiting is not None for wait in unit.waiting.waits)
        return list(islice(found, _WAITS_SHOWN))

    def people_for(self, *, child: bool) -> dict[str, Any] | None:
        """The part of a snapshot that is about people: for a child that the run starts now, or for its next run."""
        decided = () if self.asked_people is None else self.asked_people.decided
        carried = four_eyes.for_child if child else four_eyes.for_next_run
        return carried(self.standing.snapshot, decided)

    def evict(self) -> None:
        """Drop the run from memory without running any more of its code."""
        coroutines = [*self._taken_over.values(), *self.scheduler.drop()]
        self._taken_over.clear()
        # what refers back to parts of it: without it the memory is free at once, and not when the collector comes
        self.dispatcher.dissolve()
        self.conditions.clear()
        self.calls.clear()
        self._approvals = self.asked_people = None
        eviction.discard(coroutines)

    def __del__(self) -> None:
        if self.scheduler.units:
            self.evict()


def _as_received(signal: Signal) -> dict[str, Any]:
    """The attributes of ``SignalReceived`` of a signal that goes along to the next run."""
    own_id = {} if signal.id is None else {"id": signal.id}
    return {"name": signal.name, "payload": signal.payload, **own_id, **senders.recorded(signal.sender)}
