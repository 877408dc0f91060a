"""The host in memory: operations on runs and schedules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import UUID

from temporalex_django.authoring import activity
from temporalex_django.authoring.authorization import Person, require_permission, require_start, sender_of
from temporalex_django.authoring.requests import StartRequest
from temporalex_django.authoring.schedules.schedule import Overlap, Schedule, plain_input
from temporalex_django.authoring.workflow import Workflow, start_options
from temporalex_django.conf import get_settings
from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.core.names import fit_note
from temporalex_django.engine import operator_overrides as overrides
from temporalex_django.engine import reset as apply
from temporalex_django.engine.activity_policy import is_due
from temporalex_django.engine.blocked import retry_immediately
from temporalex_django.engine.operator_overrides import (
    OPERATOR_RULES,
    Condition,
    OperatorRule,
    check_input,
)
from temporalex_django.engine.reset import ResetPlan, plan_of_run, start_of_fork
from temporalex_django.engine.run_start import RunStart
from temporalex_django.engine.schedules import (
    RunningSlot,
    ScheduleFirer,
    SchedulePause,
    ScheduleState,
    SlotFailure,
    SlotOutcome,
    SlotRecord,
    SlotStart,
    call_arguments,
    require_pause,
)
from temporalex_django.errors import (
    ScheduleInvalid,
    ScheduleNotFound,
    TemporalexError,
    WorkflowClosed,
    WorkflowNotFound,
)
from temporalex_django.graph.workflow import GraphWorkflow
from temporalex_django.testing.activities import EnvironmentSource
from temporalex_django.testing.environment_base import EnvironmentHandle
from temporalex_django.testing.schedules import EnvironmentSchedules

if TYPE_CHECKING:
    from temporalex_django.testing.memory_backend import MemoryBackend, WorkflowEnvironment
    from temporalex_django.testing.memory_run_reads import MemoryRunReads


# --- memory actions ---------------------------------------------------------------------------------------------------
#
# Operations of people on runs in memory, such as pause and retry: the package ``operations`` without Django.


class MemoryOperator:
    """The operations of people on a run in memory, in the name of one user (or of code, if ``by`` is None).

    Each method performs the operation of that name, and raises its errors. Call ``execute`` with the name instead of
    the method: it checks the inputs, the permissions and the state of the run first, in this order.
    """

    def __init__(self, run: MemoryRunReads, by: Person | None) -> None:
        self.run, self.env, self.storage = run, run.env, run.env.storage
        self.person, self.sender = by, sender_of(by)

    def execute(self, name: str, *, reason: str = "", seq: int | None = None, **inputs: Any) -> Any:
        """Perform the operation ``name``, such as "pause", and return its result.

        ``reason`` is a text for the history. ``seq`` is the number of the activity or timer, and ``inputs`` are the
        further inputs of the operation.
        """
        rule = OPERATOR_RULES[name]
        self.name, self.reason, self.seq = name, fit_note(reason, label="the reason"), seq
        values = {key: check_input(key, value, kind=rule.inputs[key]) for key, value in inputs.items()}
        require_permission(self.person, rule.permission, action=f"{name} runs")
        for permission in rule.further_permissions(values):
            require_permission(self.person, permission, action=f"{permission} runs")
        if name == "fork":
            require_start(self.person, self.run.newest_class)
        with self.storage.transaction():
            state = self.storage.lock_run(self.run.chain_id, wait=0)
            assert state is not None
            self.state = state
            if seq is not None and state.run_id != self.run.selected_run_id:
                self._refuse(overrides.EARLIER_RUN)
            self._require(rule.run, self.run.newest_run)
            if rule.task is not None:
                self._require_task(rule, values)
            result = getattr(self, name)(**values)
        if name == "reset":
            self.env.evict_run(self.state.run_id)
        else:
            self.env.work()
        return result

    def _require(self, conditions: Sequence[Condition] | None, subject: object) -> None:
        """Raise the error of the first condition that the run or the activity does not meet."""
        if (reason := overrides.why_not(conditions, subject)) is not None:
            status = self.run.newest_run.status
            text = reason.format(status=status.replace("_", " ").capitalize())
            self._refuse(text, closed=status in CLOSED_STATUSES)

    def _require_task(self, rule: OperatorRule, values: Mapping[str, Any]) -> None:
        """Find the activity, and raise ``ActionNotPossible`` unless the operation is possible for it."""
        assert self.seq is not None
        task = self.storage.find_task(self.state.run_id, self.seq)
        if task is None:
            self._refuse(overrides.NO_SUCH_ACTIVITY)
        # The second part of the fence is the number of attempts.
        self._require(rule.task, replace(task, attempt=task.fence[1]))
        if not overrides.allows_overrides(task.options) and rule.further_permissions(values):
            self._refuse(overrides.NOT_BY_HAND)
        self._task = task

    def _refuse(self, reason: str, *, closed: bool = False) -> NoReturn:
        raise overrides.refusal_error(self.name, self.run.label, reason, closed=closed)

    # -- the run -------------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        if self.run.newest_class.cancels_at_once or self.run.future_start(self.run.newest_run) is not None:
            self.env._close_run(self.state, "cancelled", self.reason)  # noqa: SLF001 - of the same package
        else:
            self.storage.send(self.state.chain_id, "cancel", "", {"reason": self.reason})

    def terminate(self) -> None:
        self.env._close_run(self.state, "terminated", self.reason)  # noqa: SLF001 - of the same package

    def delete(self) -> None:
        self.storage.delete_chain(self.state.chain_id)

    def pause(self) -> None:
        self.storage.write(
            [overrides.pause_run(self.state, reason=self.reason, sender=self.sender, now=self.env.clock)]
        )

    def unpause(self) -> None:
        blocked = self.storage.block_reason(self.state.run_id)
        self.storage.write([overrides.unpause_run(self.state, blocked=blocked, now=self.env.clock)])

    def try_again(self) -> None:
        if is_due(self.state.due_at, self.env.clock):
            self._refuse(overrides.ALREADY_DUE)
        self.storage.write([retry_immediately(self.state, now=self.env.clock)])

    def skip_timer(self) -> None:
        assert self.seq is not None
        events = self.storage.runs[self.state.run_id].events
        timers = overrides.pending_timers((event.kind, event.attributes) for event in events)
        if self.seq not in timers:
            self._refuse(overrides.absent_timer_text(timers))
        if self.storage.has_message(self.state.chain_id, overrides.skip_message_id(self.state.run_id, self.seq)):
            self._refuse(overrides.ALREADY_FIRED)
        self.storage.write([overrides.skip_timer(self.state, self.seq, sender=self.sender)])

    # -- activities ----------------------------------------------------------------------------------------------------

    def retry_activity(self, **values: Any) -> None:
        task = self._task
        if "input" in values:
            call = activity.find(task.activity).parse_edited_input(values["input"], task.args)
            task = overrides.with_edited_input(task, *call, sender=self.sender)
            self.storage.edit_task(task)
        self.storage.finish_tasks([overrides.immediate_retry(task, now=self.env.clock)])

    def complete_activity(self, result: Any) -> None:
        task = self._task
        source = EnvironmentSource(self.env, task)
        value = activity.find(task.activity).encode_manual_result(result, task.args, source)
        self.storage.finish_tasks([overrides.operator_completion(task, value, sender=self.sender)])

    def fail_activity(self, message: str, type: str) -> None:
        failure = overrides.operator_failure(self._task, type=type, message=message, sender=self.sender)
        self.storage.finish_tasks([failure])

    # -- failed messages -----------------------------------------------------------------------------------------------

    def redeliver(self, message: str | None = None) -> None:
        self._handle_failed(message, self.storage.redeliver)

    def discard(self, message: str | None = None) -> None:
        self._handle_failed(message, self.storage.discard)

    def _handle_failed(self, message: str | None, handle: Callable[[UUID, str], bool]) -> None:
        """Call ``handle`` for the failed message with the id ``message``, or for all failed messages if it is None."""
        chain_id = self.run.chain_id
        ids = [str(failed.message.message_id) for failed in self.storage.failed_messages(chain_id)]
        if not ids:
            self._refuse(overrides.NO_FAILED_MESSAGE, closed=self.run.newest_run.status in CLOSED_STATUSES)
        for message_id in [message] if message else ids:
            if not handle(chain_id, message_id):
                self._refuse(overrides.NO_SUCH_FAILED_MESSAGE.format(id=message_id))

    # -- the history ---------------------------------------------------------------------------------------------------

    def reset(self, **values: Any) -> str:
        storage = self.storage
        plan, code = self._plan(forks=False, **values)
        if plan.record.expires_at is not None and plan.record.expires_at <= self.env.clock:
            self._refuse(overrides.CHAIN_EXPIRED)
        start = RunStart(workflow_id=plan.record.workflow_id, args=None, **start_options(code))
        if self.state.closed and not storage.reopen(self.state.chain_id, start):
            self._refuse(overrides.ID_TAKEN)
        new_run_id = storage.new_run_id()
        apply.reset(storage, self.state, plan, run_id=new_run_id)
        return str(new_run_id)

    def fork(self, id: str | None = None, **values: Any) -> EnvironmentHandle[Any]:
        env, storage = self.env, self.storage
        plan, code = self._plan(forks=True, **values)
        tags = env.row(plan.record.run_id).column("tags")
        start = start_of_fork(plan, code, id, sender=self.sender, tags=tags, suffix=env.random_suffix)
        chain_id = storage.start(start)
        # The row is written again below, with the history that the fork starts from: claim it as a turn would.
        new_state = storage.claim(limit=1, queues=(), chains=[chain_id])[0]
        source, workflow_id = self.state.chain_id, start.workflow_id
        apply.fork(storage, new_state, plan, source_chain=source, id=workflow_id, snapshot=start.snapshot)
        env.remember_class(chain_id, code)
        return EnvironmentHandle(env, workflow_id, chain_id)

    def _plan(
        self, *, forks: bool, edited: Any = None, to: int | None = None, **values: Any
    ) -> tuple[ResetPlan, type[Workflow]]:
        """Return the plan of a reset or a fork of the selected run, and the class of the new run."""
        env, storage = self.env, self.storage
        record, runs = self.run.selected_run.facts, env.run_ids(self.state.chain_id)
        code = env.class_of(self.state.chain_id, record.workflow, record.version)
        plan = plan_of_run(
            storage,
            storage.tasks_of_run(record.run_id),
            self.state,
            record,
            code,
            later_runs=lambda: [(run, env.row(run).status) for run in runs[runs.index(record.run_id) :]],
            forks=forks,
            to=to,
            edited_inputs=edited,
            editable=not issubclass(code, GraphWorkflow),
            seed=env.new_seed(),
            limit=None,
            atomic=False,
            **values,
        )
        return plan, code


# --- memory schedules -------------------------------------------------------------------------------------------------
#
# The schedules of an environment in memory, fired by the rules that workers use.


#: Values that a schedule keeps when it is added again.
_KEPT = ("fires", "failures", "waiting", "paused")
#: Values that it takes from its declaration.
_DECLARED = ("name", "table", "workflow_id", "overlap", "catch_up", "jitter", "max_fires", "pause_after")


class MemorySchedules(EnvironmentSchedules):
    """The schedules of an environment in memory. They fire when the virtual clock reaches their slots."""

    def __init__(self, env: WorkflowEnvironment, backend: MemoryBackend) -> None:
        super().__init__()
        self._env = env
        self._backend = backend
        self._stores: dict[str, _MemoryScheduleStore] = {}
        self._is_firing = False

    def add(self, schedule: Schedule) -> None:
        schedule.check(self._env.clock)
        if schedule.workflow is None:
            raise ScheduleInvalid(
                f"schedule {schedule.name!r}: an environment in memory enqueues no tasks: use DjangoEnvironment"
            )
        function = schedule.arguments_function_name or ""
        self.workflows[schedule.workflow.name] = schedule.workflow
        declared: dict[str, Any] = {name: getattr(schedule, name) for name in _DECLARED}
        state = ScheduleState(
            id=len(self._stores),
            workflow=schedule.workflow.name,
            args=None if function else plain_input(schedule.workflow, schedule.args),
            arguments_function=function,
            position=self._env.clock,
            **declared,
        )
        previous, slots = self._stores.get(schedule.name), dict[datetime, SlotRecord]()
        if previous is not None:
            slots, kept_names = previous.slots, [*_KEPT]
            # As in the database, a new time table begins anew.
            if previous.state.table == state.table:
                kept_names += ["position", "last_walls"]
            state = state.changed(**{name: getattr(previous.state, name) for name in kept_names})
        self._stores[schedule.name] = _MemoryScheduleStore(self._env, self._backend, state, schedule.workflow, slots)

    def slots(self, name: str) -> list[SlotRecord]:
        return self._find(name).sorted_slots()

    def trigger(self, name: str) -> SlotRecord:
        store = self._find(name)
        self._is_firing = True
        try:
            _, slot = _firer(store).trigger(store.state, self._env.clock)
        finally:
            self._is_firing = False
        self._env.work()
        return slot

    def pause(self, name: str, *, reason: str = "") -> None:
        store = self._find(name)
        require_pause(name, is_paused=store.state.paused is not None, expected=False)
        store.state = store.state.changed(paused=SchedulePause(since=self._env.clock, reason=reason))

    def unpause(self, name: str) -> None:
        store = self._find(name)
        require_pause(name, is_paused=store.state.paused is not None, expected=True)
        store.state = store.state.changed(paused=None, failures=0)
        self._env.work()

    def next_due(self) -> datetime | None:
        times = [store.state.next_due() for store in self._stores.values()]
        return min((moment for moment in times if moment is not None), default=None)

    def fire(self) -> bool:
        # A step that stops a run lets the environment work, which must not begin another step.
        if self._is_firing:
            return False
        self._is_firing = True
        try:
            due_stores = [store for store in self._stores.values() if store.is_due()]
            for store in due_stores:
                _firer(store).fire(store.state, self._env.clock)
        finally:
            self._is_firing = False
        return bool(due_stores)

    def _find(self, name: str) -> _MemoryScheduleStore:
        try:
            return self._stores[name]
        except KeyError:
            raise ScheduleNotFound(
                f"there is no schedule {name!r} in this environment: add it with env.schedule(…)"
            ) from None


def _firer(store: _MemoryScheduleStore) -> ScheduleFirer:
    return ScheduleFirer(store, buffer_limit=get_settings().SCHEDULE_BUFFER)


class _MemoryScheduleStore:
    """The storage of one schedule of an environment in memory, with its slots and its runs (a ``ScheduleStore``).

    ``state`` is the schedule, and ``slots`` maps the times of its slots to their records.
    """

    def __init__(
        self,
        env: WorkflowEnvironment,
        backend: MemoryBackend,
        state: ScheduleState,
        workflow: Any,
        slots: dict[datetime, SlotRecord],
    ) -> None:
        self._env = env
        self._backend = backend
        self._workflow = workflow
        self.state = state
        self.slots = slots
        self._arguments: dict[datetime, Any] = {}

    def is_due(self) -> bool:
        due_at = self.state.next_due()
        if due_at is not None and due_at <= self._env.clock:
            return True
        if not self.state.waiting or self.state.paused is not None:
            return False
        is_free = all(slot.closed_as is not None for slot in self.running_slots())
        return is_free or self.state.overlap is Overlap.ALLOW_ALL

    def sorted_slots(self) -> list[SlotRecord]:
        return [slot for _, slot in sorted(self.slots.items())]

    def find_slot(self, at: datetime) -> SlotRecord | None:
        return self.slots.get(at)

    def add_slots(self, slots: Sequence[SlotRecord]) -> None:
        self.slots.update((slot.at, slot) for slot in slots)

    def replace_slot(self, slot: SlotRecord) -> None:
        self.slots[slot.at] = slot

    def running_slots(self) -> list[RunningSlot]:
        return [RunningSlot(slot=slot, closed_as=self._closed_as(slot)) for slot in self.sorted_slots() if slot.running]

    def _closed_as(self, slot: SlotRecord) -> str | None:
        assert slot.chain_id is not None
        run_ids = self._env.run_ids(slot.chain_id)
        if not run_ids:
            return "deleted"
        status = self._env.row(run_ids[-1]).status
        return status if status in CLOSED_STATUSES else None

    def waiting_slots(self, limit: int) -> list[SlotRecord]:
        return [slot for slot in self.sorted_slots() if slot.outcome is SlotOutcome.WAITING][:limit]

    def mark_closed(self, slots: Sequence[SlotRecord]) -> None:
        self.slots.update((slot.at, replace(slot, running=False)) for slot in slots)

    def check_start(self, schedule: ScheduleState, at: datetime) -> SlotFailure | None:
        if not schedule.arguments_function or at in self._arguments:
            return None
        arguments = call_arguments(schedule.arguments_function, schedule.local_time(at))
        if isinstance(arguments, SlotFailure):
            return arguments
        self._arguments[at] = arguments
        return None

    def start(self, schedule: ScheduleState, slot: SlotRecord) -> SlotStart | SlotFailure:
        env, at = self._env, slot.at
        if (failure := self.check_start(schedule, at)) is not None:
            return failure
        args = self._arguments.pop(at, schedule.args)
        try:
            request = StartRequest(
                workflow=self._workflow.choose(None, {}),
                args=args,
                id=schedule.workflow_id_of(at, cause=slot.cause),
                scheduled_for=at,
            )
            chain_id = self._backend.insert_run(request).chain_id
        except TemporalexError as exc:
            return SlotFailure.of_error(exc)
        return SlotStart(chain_id=chain_id, run_id=env.run_ids(chain_id)[-1], workflow_id=request.id or "")

    def stop_run(self, schedule: ScheduleState, slot: SlotRecord, *, terminate: bool) -> SlotFailure | None:
        handle = self._env.handle(str(slot.run_id))
        reason = f"the schedule {schedule.name} starts its next run"
        try:
            (handle.terminate if terminate else handle.cancel)(reason=reason)
        except (WorkflowClosed, WorkflowNotFound):
            return None  # it has ended meanwhile, which is all that was wanted
        except TemporalexError as exc:
            return SlotFailure.of_error(exc)
        return None

    def save(self, schedule: ScheduleState) -> None:
        self.state = schedule
