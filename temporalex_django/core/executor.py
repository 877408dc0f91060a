"""The executor: one run in memory. It takes activations and returns the commands that workflow code issues.

``activate`` delivers jobs in a fixed order: results, then a cancel request, then messages one at a time. After each
delivery, all units run until every one of them waits (see decision 9). ``replay`` takes the activations from a history
instead and compares the commands. The state of an executor is a pure function of that history. So you may drop an
executor at any activation boundary and build it again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextvars import Context
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from temporalex_django.core import current
from temporalex_django.core import human_tasks as four_eyes
from temporalex_django.core.determinism import guard
from temporalex_django.core.failures import (
    RunFailure,
    exception_message,
    exception_name,
    is_error,
    run_failure,
    unexpected_error,
)
from temporalex_django.core.history import events as kinds
from temporalex_django.core.history.activation import (
    Activation,
    Completion,
    Definition,
    RecordedActivation,
    RunInfo,
    split_activations,
)
from temporalex_django.core.history.events import (
    ANSWERS,
    CLOSING,
    ENGINE_VERSION,
    OUTPUT_OF,
    HistoryEvent,
    Job,
    ReplayDifference,
)
from temporalex_django.core.human_tasks import Approvals, HumanTaskChange, HumanTasks, HumanTaskState
from temporalex_django.core.messages import sender
from temporalex_django.core.messages.dispatcher import Dispatcher
from temporalex_django.core.messages.mailbox import Signal, Update, order_deliveries, untaken_message_error
from temporalex_django.core.messages.sender import Judge, headers_attributes
from temporalex_django.core.payloads import codec
from temporalex_django.core.payloads import search_attributes as attributes
from temporalex_django.core.payloads.codec import deep_copy, stored_fields
from temporalex_django.core.pending_commands import Journal, PendingCommands
from temporalex_django.core.process import RequestJudge
from temporalex_django.core.results import Async, ContinueAsNew, Err, Ok
from temporalex_django.core.run_context import Patches, RunContext
from temporalex_django.core.typed_dicts import AcceptedNames, CarriedMessages, WaitInfo
from temporalex_django.core.units import scheduler as eviction
from temporalex_django.core.units.conditions import Conditions
from temporalex_django.core.units.scheduler import Cancellation, Scheduler, Unit
from temporalex_django.errors import Cancelled, EngineChanged, NestingError, PayloadError
from temporalex_django.interceptors import WorkflowCode
from temporalex_django.interceptors.chain import around, chain

_MAX_WAITS_LISTED = 20
#: A fan-out of thousands of units that wait for the same must not make each activation slow.
_MAX_UNITS_LISTED = 50


class Executor:
    """One run in memory. For workflow code it is a ``WorkflowRuntime``.

    It is not thread-safe: the caller of ``activate`` must hold the lock of the run. Discard it after any exception.

    - ``payload_limit`` is the largest size of a payload, in bytes.
    - ``on_wait`` is called whenever a unit has come to a wait, or has ended.
    - ``journal`` records each activation. Pass one only to observe the commands; see ``TracingExecutor``.
    - ``unexpected_error`` ("fail" or "block") says what an unexpected error does, for classes that do not say it.
    - With ``strict``, a replay raises an error if an input differs from the history.
    - With ``skip_failed``, replays do not call handlers of signals that failed without leaving anything behind.
    - ``backend`` is that of ``RunContext``.
    """

    def __init__(
        self,
        definition: Definition,
        info: RunInfo,
        *,
        payload_limit: int = codec.MAX_BYTES,
        on_wait: Callable[[], None] | None = None,
        journal: Journal | None = None,
        unexpected_error: str = "fail",
        strict: bool = False,
        skip_failed: bool = False,
        backend: str | None = None,
    ) -> None:
        self.definition = definition
        self.differences: list[ReplayDifference] = []  # of inputs and durations, found by replays so far
        self._strict = strict
        blocks = (definition.unexpected_error or unexpected_error) == "block"
        self.run_context = run_context = RunContext(
            info, payload_limit=payload_limit, signals=definition.signals, blocks=blocks, backend=backend
        )
        self.journal = journal = Journal() if journal is None else journal
        self.scheduler = scheduler = Scheduler(log_failure=run_context.log_failure, on_wait=on_wait)
        self.pending_commands = PendingCommands(run_context, journal)
        self.dispatcher = Dispatcher(run_context, journal, scheduler, cancel_timer=self.pending_commands.cancel_timer)
        self.dispatcher.handler_runner.failures.skip_failed = skip_failed
        self.conditions = Conditions(run_context, journal, scheduler)
        self.cancellation = Cancellation(scheduler)
        self.patches = Patches()
        self.opened_human_tasks: HumanTasks | None = None
        self._approvals: Approvals | None = None
        self.is_suspect = False
        self.published: Any = None
        self.published_at: datetime | None = None
        self.publications = 0
        self.search_attributes: Mapping[str, Any] = {}  # stored form; replaced, never changed
        self.sets_attributes = False  # True once its code has set search attributes
        self._stored: dict[str, Any] = {}
        self._stored_of = 0  # the number of the publication that ``_stored`` belongs to
        self._seed = 0  # replaced by the recorded one
        self._rng: random.Random | None = None
        self._tracked_coroutines: dict[int, Coroutine[Any, Any, Any]] = {}  # passed as branches, until they have ended

    # -- activation ---------------------------------------------------------------------------------------------------

    def activate(
        self, activation: Activation, *, is_budget_spent: Callable[[], bool] | None = None, judge: Judge | None = None
    ) -> Completion:
        """Deliver an activation, run until every unit is blocked, and return the completion.

        For a host that executes the past again (``Activation.replaying``) the rules of ``replay`` hold, but commands
        are not compared. Neither ``is_budget_spent`` nor ``judge`` is asked then.

        ``is_budget_spent`` is called between two messages, when every unit is blocked. Once it returns True, the
        messages that follow are left unapplied for another activation. The same holds for messages that a phase or a
        wait finds in the mailbox. At least one message is always applied. A history says how many each activation took,
        so a replay does not call it.

        ``judge`` decides who may send which message. Without a judge, a named sender may do nothing that needs a
        permission.

        Raises the error that fails the activation (not the workflow): ``MemoryError``, ``RecursionError``, a deadlock,
        and in a replay the errors of ``replay``. The executor is then unusable.
        """
        return self._activate(activation, None, is_budget_spent, judge)

    def replay(self, events: Sequence[HistoryEvent]) -> None:
        """Replay ``events``, which follow the events that this executor has processed.

        Raises ``NondeterminismError`` if the code differs from the events. Raises ``HandlerFixed`` if a handler that
        failed then works now. In that case the caller must replay the history from the beginning, with an executor that
        has ``skip_failed``.
        """
        for _ in self.replay_in_steps(events):
            pass

    def replay_in_steps(self, events: Sequence[HistoryEvent]) -> Iterator[None]:
        """Replay as ``replay`` does, and yield after each activation, for a host that has other work in between.

        A host may pass a history in pages that end at activations. It must first pass the ids of all patch markers of
        the history to ``expect_markers``.
        """
        run_context = self.run_context
        self._check_engine(events)
        # All markers must be known before the first step, because the first answer for an id is final. See ``Patches``.
        self.expect_markers(kinds.PATCH_MARKED.read(e)["id"] for e in events if e.kind == "PatchMarked")
        for recorded in split_activations(events):
            if (copy_mark := recorded.activation.copied) is not None:
                self._seed, self._rng = recorded.activation.seed or 0, None
                self._apply_copy_mark(copy_mark)
                yield
                continue
            completion = self._activate(recorded.activation, recorded)
            differences = kinds.check_commands(
                recorded.outputs,
                completion.commands,
                run=run_context.run_label,
                place_of=self.place_of,
                readers=self.pending_commands.readers,
            )
            self.differences += differences
            if self._strict and (inputs := [difference for difference in differences if difference.kind == "input"]):
                raise kinds.input_error(run_context.run_label, inputs[0])
            yield

    def expect_markers(self, patches: Iterable[str]) -> None:
        """Add the ids of the patch markers in the history, including pages that are not replayed yet."""
        self.patches.recorded.update(patches)

    def _check_engine(self, events: Sequence[HistoryEvent]) -> None:
        """Raise ``EngineChanged`` for a history of another engine, which this engine would replay differently."""
        if events and events[0].kind == "WorkflowStarted":
            engine = kinds.WORKFLOW_STARTED.read(events[0]).get("engine", 1)
            if engine != ENGINE_VERSION:
                raise EngineChanged(
                    f"{self.run_context.run_label} (run {self.run_context.info.run_id}) was started by engine "
                    f"{engine}, but this is engine {ENGINE_VERSION}, which may behave differently: let it end under the "
                    "version of temporalex_django that started it, or terminate it and start it again"
                )

    def _activate(
        self,
        activation: Activation,
        recorded: RecordedActivation | None,
        is_budget_spent: Callable[[], bool] | None = None,
        judge: Judge | None = None,
    ) -> Completion:
        """Do the work of ``activate``; in a replay, ``recorded`` is the activation of the history."""
        run_context, pending_commands, dispatcher = self.run_context, self.pending_commands, self.dispatcher
        if self.opened_human_tasks is not None:
            self.opened_human_tasks.begin()
        completion = self.journal.begin(changed=activation.start is not None or dispatcher.unfinished)
        run_context.replaying = activation.replaying
        dispatcher.begin(
            is_budget_spent=None if activation.replaying else is_budget_spent,
            judge=judge,
            recorded=activation.delivery,
        )
        run_context.now = activation.now
        run_context.history_length = activation.history_length
        run_context.suggests_continue_as_new = activation.suggests_continue_as_new
        run_context.admits_updates = activation.admit_updates
        pending_commands.begin(activation.max_pending, activation.max_calls, activation.max_bytes)
        if activation.seed is not None:
            self._seed, self._rng = activation.seed, None
        carried = activation.start.get("carried", 0) if activation.start is not None else 0
        waiting, incoming = order_deliveries(
            activation, recorded, received=dispatcher.mailbox.received, carried=carried, run=run_context.info.id
        )
        try:
            # An empty context: what code outside of units sets must not outlive this activation. See decision 30.
            Context().run(self._deliver, activation, carried, waiting, incoming)
        finally:
            run_context.replaying = False
        unjudged, requests = dispatcher.end(self._position)
        if activation.replaying:
            completion.delivery = activation.delivery
            dispatcher.handler_runner.failures.check()
            if recorded is None:
                pending_commands.readers.clear()  # they are for the comparison with events
        else:
            completion.delivery = dispatcher.delivery_record()
        if unjudged and recorded is None:
            self._check_untaken(unjudged)
        completion.pending = [
            (update.message_id, self._position(update.after)) for update in unjudged if not update.accepted
        ]
        # Updates keep their position among the signals. Requests have none, so they come again behind all signals.
        completion.pending += [(request, self._position(dispatcher.mailbox.received)) for request in requests]
        if run_context.closed is None:
            pending_commands.release_deferred()
        completion.closed = run_context.closed
        completion.changed = self.journal.is_recording or bool(completion.delivery.failed)
        return completion

    def _check_untaken(self, unjudged: list[Update]) -> None:
        """Raise ``NondeterminismError`` for an accepted update, whose event a replay of events misses."""
        for update in unjudged:
            if update.accepted:
                raise untaken_message_error(self.run_context.run_label, f"the update {update.name!r}")

    def _deliver(
        self, activation: Activation, carried: int, waiting: list[Update], incoming: list[Job | Update]
    ) -> None:
        """Deliver with this executor as the active one of the thread. All code runs until it waits after each message.

        The first ``carried`` signals come from the previous run. No earlier activation could judge ``waiting``.
        """
        hooks = chain.workflow_code
        if not hooks:
            with current.use_runtime(self):
                self._deliver_jobs(activation, carried, waiting, incoming)
            return
        # Their code counts as workflow code, so the guard has to see their calls.
        self.mark_suspect()
        for hook in hooks:
            guard.watch(hook.__func__)  # type: ignore[attr-defined] # a method
        with current.use_runtime(self), around(hooks, self._workflow_code()):
            self._deliver_jobs(activation, carried, waiting, incoming)

    def _workflow_code(self) -> WorkflowCode:
        info = self.run_context.info
        return WorkflowCode(
            workflow=info.workflow,
            workflow_id=info.id,
            run_id=info.run_id,
            is_replaying=self.run_context.replaying,
            run_headers=info.headers or {},
        )

    def _deliver_jobs(
        self, activation: Activation, carried: int, waiting: list[Update], incoming: list[Job | Update]
    ) -> None:
        """Deliver as ``_deliver`` says, while the thread counts as running workflow code of this run."""
        dispatcher = self.dispatcher
        if waiting:
            dispatcher.receive_waiting(waiting)
        if activation.start is not None:
            self._start(activation.start)
        # The order of the jobs is the host's; a replay builds the same one. Messages follow in
        # ``dispatcher.deliver``.
        for job in activation.jobs:
            if job.kind in ANSWERS:
                self.pending_commands.deliver(job)
            elif job.kind == "CancelRequested" and not self.cancellation.requested:
                self.journal.record(job)
                self.cancellation.request(job.attributes)
            elif job.kind == "SignalReceived" and dispatcher.mailbox.received < carried:
                dispatcher.buffer_signal(job)
        dispatcher.deliver(incoming, consumes_all=activation.consumes_all)

    def _adopt_identity(self, attributes: Mapping[str, Any]) -> None:
        """Take the ids of ``attributes``. A copied history has those of its origin, so that ids made from them stay."""
        info = self.run_context.info
        named = {name: attributes[name] for name in ("id", "run_id", "parent")}
        self.run_context.info = replace(info, **named)

    def _apply_copy_mark(self, mark: Mapping[str, Any]) -> None:
        """Apply the mark behind a copied history: the ids of this run, and the users whom it excludes in addition."""
        self._adopt_identity(mark)
        self.run_context.snapshot = four_eyes.snapshot_after_mark(self.run_context.snapshot, mark)
        if self.opened_human_tasks is not None:
            self.opened_human_tasks.update_barred()

    def _start(self, start: Mapping[str, Any]) -> None:
        self._seed, self._rng = start["seed"], None
        if start.get("run_id", self.run_context.info.run_id) != self.run_context.info.run_id:
            self._adopt_identity(start)
        self.run_context.snapshot = start.get("snapshot")
        self.run_context.is_continued = "carried" in start
        self.dispatcher.handler_runner.failures.load_carried(start.get("failed", []))
        self.search_attributes = start.get("search_attributes") or {}
        main = Unit(self.scheduler, "run", "run", self._close_run, None)
        self.scheduler.spawn(main, self._main(start.get("args")))

    async def _main(self, args: Any) -> Any:
        label = f"the input of {self.run_context.info.workflow}"
        return await self.definition.entry(codec.convert(deep_copy(args), self.definition.args_type, label=label))

    def _position(self, after: int) -> int:
        """Return how many signals precede an update. After a continue-as-new, the next run has only those left over."""
        if self.run_context.closed is None:
            return after
        return sum(signal.number <= after for signal in self.dispatcher.mailbox.buffered_signals())

    def _close_run(self, value: Any, error: BaseException | None) -> None:
        blocks = self.run_context.blocks_on_error and not self.run_context.replaying
        encode_input = partial(self.run_context.encode_input, annotation=self.definition.args_type)
        try:
            kind, attributes = build_close_command(
                value, error, self.run_context.to_plain, encode_input, self._encode_result, blocks_run=blocks
            )
        except (MemoryError, RecursionError):
            raise
        except Exception as exc:
            self.run_context.set_blocking_error(exc)
            raise
        self.run_context.closed = kind
        if kind != "ContinueAsNew":
            self.dispatcher.refuse_waiting()
        if kind == "FailWorkflow":
            self.run_context.note_failure(attributes, error)
        leftovers, failures = self.dispatcher.mailbox.buffered_signals(), self.dispatcher.handler_runner.failures
        if kind == "ContinueAsNew":
            carried: CarriedMessages = {
                "signals": [_signal_attributes(signal) for signal in leftovers],
                "cancel": self.cancellation.unseen_request,
            }
            if failures.open_failures:
                carried["failed"] = failures.carried_failures()
            self.journal.completion.carried = carried
        else:
            if leftovers:
                attributes["never_consumed"] = [s.name for s in leftovers]
            if failures.open_failures:
                attributes["failed_signals"] = list(failures.open_failures.values())
        self.journal.emit(kind, None, attributes)

    def _encode_result(self, value: Any) -> Any:
        """Encode the value of ``Ok`` so that the annotation of ``run`` decodes the same value."""
        return self.run_context.encode_lossless(
            value,
            "the result of run",
            read=lambda plain: codec.convert(plain, self.definition.result_type),
            annotate="annotate run with -> Ok[...]",
        )

    def place_of(self, index: int | None) -> str | None:
        """Return the place (``path:line``) in user code where command ``index`` of the current activation was issued.

        Only the subclass ``TracingExecutor`` knows the place; this class returns None.
        """
        del index
        return None

    # -- WorkflowRuntime: what workflow code may use, beside the parts ------------------------------------------------

    @property
    def rng(self) -> random.Random:
        """The random generator of the run, which is seeded at first use.

        Seeding costs more than a small activation, so only runs that draw numbers pay for it.
        """
        self.run_context.record_effect()
        if self._rng is None:
            self._rng = random.Random(self._seed)  # noqa: S311 - reproducible on purpose
        return self._rng

    @property
    def human_tasks(self) -> HumanTasks:
        """The human tasks of the run. The object is created at first use, because most runs have none."""
        if self.opened_human_tasks is None:
            self.opened_human_tasks = HumanTasks(self.run_context, self.pending_commands)
        return self.opened_human_tasks

    @property
    def approvals(self) -> Approvals:
        """The part that judges decisions for ``api.approval``, created and attached to the run at first use."""
        if self._approvals is None:
            self._approvals = Approvals(self)
            self.attach(self._approvals)
        return self._approvals

    def attach(self, request_judge: RequestJudge) -> None:
        """Let ``request_judge`` judge requests from now on: events for declared steps, and decisions of people."""
        self.dispatcher.attach(request_judge)

    def publish(self, value: Any) -> None:
        """Make ``value`` (JSON data) the published state, from which queries are answered."""
        self.published, self.published_at = value, self.run_context.now
        self.publications += 1
        self.run_context.record_effect()

    def set_search_attributes(self, values: Any) -> None:
        """Change the search attributes that ``values`` (a mapping) names, and remove those whose value is None.

        Raises ``PayloadError`` for a name that the class does not declare or a value of another type.
        """
        declared, label = self.definition.search_attributes, f"set_search_attributes of {self.definition.name}"
        changes = attributes.encode_all(values, declared, label=label)
        self.search_attributes = attributes.merge(self.search_attributes, changes)
        self.sets_attributes = True
        self.run_context.record_effect()

    def track_coroutine(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Remember a coroutine that was passed as a branch; if it never starts, the eviction of the run discards it."""
        self._tracked_coroutines[id(coroutine)] = coroutine

    def untrack_coroutine(self, coroutine: object) -> None:
        """Forget a coroutine that has ended."""
        self._tracked_coroutines.pop(id(coroutine), None)

    def mark_suspect(self) -> None:
        """Let the determinism guard watch this run from now on (Python 3.11, where the guard is slow)."""
        self.is_suspect = True

    # -- for hosts ----------------------------------------------------------------------------------------------------

    @property
    def unfinished(self) -> bool:
        """True if the last activation left messages in the mailbox, because it had taken as many as its host allows.

        The run can then continue without a new job.
        """
        return self.dispatcher.unfinished

    @property
    def closed(self) -> str | None:
        """The kind of the command that closed the run; None while it is open."""
        return self.run_context.closed

    @property
    def is_busy(self) -> bool:
        """True if activities or children have no result yet."""
        return bool(self.pending_commands.activities or self.pending_commands.children)

    @property
    def had_children(self) -> bool:
        """True if the run has ever started a child."""
        return self.pending_commands.had_children

    def due_timers(self, until: datetime) -> list[tuple[datetime, int]]:
        """Return the timers that are due at ``until`` or before, in order of time.

        Each is a pair of its due time and the number of its command.
        """
        return self.pending_commands.due_timers(until)

    def next_timer(self) -> datetime | None:
        """Return the time at which the next timer is due, or None."""
        return self.pending_commands.next_timer()

    @property
    def accepts(self) -> AcceptedNames:
        """The names that the open phase handles: ``{"signals": [...], "updates": [...]}``.

        The open phase is the call of ``api.phase`` in which ``run`` waits now. Both lists are empty if there is none.
        """
        return self.dispatcher.accepts

    @property
    def waiting_for(self) -> list[str]:
        """The labels of everything that the run waits for, oldest coroutine of workflow code first; at most twenty."""
        units = islice(self.scheduler.units.values(), _MAX_UNITS_LISTED)
        waits = dict.fromkeys(label for unit in units if unit.waiting is not None for label in unit.waiting.labels)
        return list(islice(waits, _MAX_WAITS_LISTED))

    @property
    def wait_infos(self) -> list[WaitInfo]:
        """Descriptions, for programs, of everything that the coroutines of the run (its units) wait for.

        Activities are left out, because the rows of activities describe them.
        """
        units = islice(self.scheduler.units.values(), _MAX_UNITS_LISTED)
        wait_infos = (wait for unit in units if unit.waiting is not None for wait in unit.waiting.wait_infos)
        return list(islice(wait_infos, _MAX_WAITS_LISTED))

    def visible_state(self) -> VisibleState:
        """Return everything that a host shows of the run, after an activation."""
        closed, tasks = self.run_context.closed, self.opened_human_tasks
        if self._stored_of != self.publications:
            self._stored, self._stored_of = stored_fields(self.published, self.definition.stored), self.publications
        if closed is not None:
            status = CLOSING[OUTPUT_OF[closed]]
        else:
            status = "running" if self.is_busy else "waiting"
        return VisibleState(
            status=status,
            waiting_for=[] if closed is not None else self.waiting_for,
            waits=[] if closed is not None else self.wait_infos,
            accepts=self.dispatcher.accepts,
            published=self.published,
            published_at=self.published_at,
            publications=self.publications,
            stored=self._stored,
            search_attributes=self.search_attributes,
            human_tasks=() if tasks is None or closed is not None else tuple(tasks.open_tasks.values()),
            four_eyes=self.four_eyes_snapshot(child=False),
        )

    def human_task_changes(self, *, every: bool = False) -> list[HumanTaskChange]:
        """Return the human tasks that the last activation changed, in their new state.

        If the activation closed the run, these are all tasks that were open. With ``every``, open tasks that did not
        change are included, for a host that does not know which tasks it has stored.
        """
        if self.opened_human_tasks is None:
            return []
        return self.opened_human_tasks.latest_changes(closed=self.run_context.closed is not None, every=every)

    def four_eyes_snapshot(self, *, child: bool) -> dict[str, Any] | None:
        """Return the users who may not decide in a child of this run (``child``), or in the next run of its chain.

        The other run gets them in its snapshot, the data with which it starts. None means that nobody is excluded.
        """
        if self.run_context.snapshot is None and self.opened_human_tasks is None:
            return None
        deciders = () if self.opened_human_tasks is None else self.opened_human_tasks.deciders
        make_snapshot = four_eyes.child_snapshot if child else four_eyes.next_run_snapshot
        return make_snapshot(self.run_context.snapshot, deciders)

    def evict(self) -> None:
        """Drop the run from memory without running any more of its code."""
        coroutines = [*self._tracked_coroutines.values(), *self.scheduler.drop()]
        self._tracked_coroutines.clear()
        # Break the cycles between the parts: reference counts then free the memory at once, without the collector.
        self.dispatcher.release_references()
        self.conditions.clear()
        self.pending_commands.clear()
        self._approvals = self.opened_human_tasks = None
        # Last: where eviction is not ``SAFE`` this closes the coroutines, and their code must find no live part.
        eviction.discard(coroutines)

    def __del__(self) -> None:
        if self.scheduler.units:
            self.evict()


def _signal_attributes(signal: Signal) -> dict[str, Any]:
    """Return the attributes of ``SignalReceived`` for a signal that is carried to the next run."""
    own_id = {} if signal.message_id is None else {"id": signal.message_id}
    origin = {**sender.sender_attributes(signal.sender), **headers_attributes(signal.headers)}
    return {"name": signal.name, "payload": signal.payload, **own_id, **origin}


# --- close command ----------------------------------------------------------------------------------------------------
#
# The command that closes a run, built from what ``run`` returned or raised.


def build_close_command(
    value: Any,
    error: BaseException | None,
    to_plain: Callable[[Any, str], Any],
    encode_input: Callable[[Any, str], Any],
    encode_result: Callable[[Any], Any],
    *,
    blocks_run: bool,
) -> tuple[str, dict[str, Any]]:
    """Return the kind and the attributes of the command that closes a run: ``("CompleteWorkflow", {"result": 1})``.

    ``value`` is what ``run`` returned, and ``error`` is the exception that it raised, or None. ``to_plain(value,
    label)`` converts a value to JSON data; error messages name the value by ``label``. ``encode_input(value, label)``
    does so for the input of the next run, and ``encode_result(value)`` for the value of ``Ok``.

    An unexpected error (see ``failures.unexpected_error``) fails the workflow. With ``blocks_run``, this function
    raises the error instead, which fails the activation and so blocks the run. ``MemoryError`` and ``RecursionError``
    are always raised.
    """
    if is_error(error, Cancelled):
        return "CancelWorkflow", {}
    # The process lacks memory or stack. Another worker may have them, so the workflow does not fail.
    if is_error(error, MemoryError, RecursionError):
        raise error
    if is_error(error, RunFailure):
        return "FailWorkflow", error.attributes
    if error is not None:
        if blocks_run and (unexpected := unexpected_error(error, "run")) is not None:
            raise unexpected
        return "FailWorkflow", run_failure(error)
    try:
        match value:
            case Ok(given):
                return "CompleteWorkflow", {"result": encode_result(given)}
            case Err(reason):
                reason = to_plain(_describe_reason(reason), "the reason of run")
                return "FailWorkflow", {"reason": reason, "type": None, "message": None}
            case ContinueAsNew(args):
                return "ContinueAsNew", {"args": encode_input(args, "the arguments of ContinueAsNew")}
            case Async():
                raise NestingError("run returned Async: only a handler of a phase may return it")
            case _:
                raise TypeError(
                    f"run returned {value!r}: it must return Ok(result), Err(reason) or ContinueAsNew(args)"
                )
    except (PayloadError, NestingError, TypeError) as exc:
        # The code returned a value that it may not return. A deploy can correct that, so blocking the run may help.
        if blocks_run:
            raise
        return "FailWorkflow", run_failure(exc)


def _describe_reason(reason: Any) -> Any:
    """Return the reason in ``Err`` as a payload. An exception becomes its name and message."""
    if issubclass(type(reason), BaseException):  # ``isinstance`` would call its ``__class__``, which may raise
        return f"{exception_name(type(reason))}: {exception_message(reason)}"
    return reason


# --- visible state ----------------------------------------------------------------------------------------------------
#
# Everything that a host shows of a run in memory.


class VisibleState(NamedTuple):
    """The state of a run after an activation, as far as a host shows it to people and programs.

    - ``status``: "running" if activities or children have no result yet, else "waiting"; once the run has closed, the
      status of its end.
    - ``waiting_for``, ``waits``, ``accepts``: the waits of its units as texts and for programs, and the names that the
      open phase handles. They are empty once the run has closed, as is ``human_tasks``.
    - ``published``: the published state, and ``published_at`` the time at which it was published. ``publications``
      counts how often that happened, so that equal numbers of one run mean an equal state. ``stored`` has the declared
      fields of the state, in the form of SQL.
    - ``search_attributes``: in stored form.
    - ``human_tasks``: those that are open.
    - ``four_eyes``: the part of the snapshot of its next run that is about people, or None; see
      ``core.human_tasks``.
    """

    status: str
    waiting_for: list[str]
    waits: list[WaitInfo]
    accepts: AcceptedNames
    published: Any
    publications: int
    stored: dict[str, Any]
    search_attributes: Mapping[str, Any]
    human_tasks: tuple[HumanTaskState, ...]
    four_eyes: dict[str, Any] | None
    published_at: datetime | None = None
