"""The schedules of an environment in memory, fired by the rules that workers use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from temporalex_django.authoring.requests import StartRequest
from temporalex_django.authoring.schedules.functions import ARGUMENTS
from temporalex_django.authoring.schedules.schedule import Overlap, Schedule, plain_input
from temporalex_django.conf import get_settings
from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.engine.schedules import (
    RunningSlot,
    ScheduleFirer,
    SchedulePause,
    ScheduleState,
    SlotFailure,
    SlotOutcome,
    SlotRecord,
    SlotStart,
)
from temporalex_django.errors import ActionNotPossible, ScheduleNotFound, TemporalexError
from temporalex_django.testing.schedules import EnvironmentSchedules

if TYPE_CHECKING:
    from temporalex_django.testing.memory_backend import MemoryBackend, WorkflowEnvironment


#: Values that a schedule keeps when it is added again.
_KEPT = ("fires", "failures", "waiting", "paused")


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
        function, args = schedule.arguments_function_name or "", None
        if not function:
            args = plain_input(schedule.workflow, schedule.args)
        assert isinstance(schedule.catch_up, timedelta)
        self.workflows[schedule.workflow.name] = schedule.workflow
        state = ScheduleState(
            id=len(self._stores),
            name=schedule.name,
            workflow=schedule.workflow.name,
            table=schedule.table,
            args=args,
            arguments_function=function,
            workflow_id_template=schedule.workflow_id,
            overlap=schedule.overlap,
            catch_up=schedule.catch_up,
            jitter=schedule.jitter,  # type: ignore[arg-type] # a timedelta after its checks
            max_fires=schedule.max_fires,
            pause_after=schedule.pause_after,
            position=self._env.clock,
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
        if store.state.paused is not None:
            raise ActionNotPossible(f"the schedule {name} is already paused")
        store.state = store.state.changed(paused=SchedulePause(since=self._env.clock, reason=reason))

    def unpause(self, name: str) -> None:
        store = self._find(name)
        if store.state.paused is None:
            raise ActionNotPossible(f"the schedule {name} is not paused")
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
        try:
            self._arguments[at] = ARGUMENTS.find(schedule.arguments_function)(schedule.local_time(at))
        except TemporalexError as exc:
            return SlotFailure(code=exc.code, message=str(exc))
        except Exception as exc:  # noqa: BLE001 - whatever the function raises becomes the outcome of the slot
            return SlotFailure(
                code="arguments", message=f"the arguments function {schedule.arguments_function}: {type(exc).__name__}"
            )
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
            return SlotFailure(code=exc.code, message=str(exc))
        return SlotStart(chain_id=chain_id, run_id=env.run_ids(chain_id)[-1], workflow_id=request.id or "")

    def stop_run(self, schedule: ScheduleState, slot: SlotRecord, *, terminate: bool) -> SlotFailure | None:
        handle = self._env.handle(str(slot.run_id))
        reason = f"the schedule {schedule.name} starts its next run"
        try:
            if terminate:
                handle.terminate(reason=reason)
            else:
                handle.cancel(reason=reason)
        except TemporalexError as exc:
            return SlotFailure(code=exc.code, message=str(exc))
        return None

    def save(self, schedule: ScheduleState) -> None:
        self.state = schedule
