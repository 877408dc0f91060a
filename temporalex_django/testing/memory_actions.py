"""The host in memory: operations on runs and schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import UUID

from temporalex_django.authoring import activity
from temporalex_django.authoring.authorization import Person, require_permission, sender_of
from temporalex_django.authoring.requests import StartRequest
from temporalex_django.authoring.schedules.functions import ARGUMENTS
from temporalex_django.authoring.schedules.schedule import Overlap, Schedule, plain_input
from temporalex_django.conf import get_settings
from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.core.names import fit_note
from temporalex_django.core.payloads.codec import check_text, to_plain
from temporalex_django.engine import operator_overrides
from temporalex_django.engine.activity_policy import is_due
from temporalex_django.engine.blocked import retry_immediately
from temporalex_django.engine.contracts.records import RunState, TaskResult, TaskState
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
from temporalex_django.errors import ActionNotPossible, ScheduleNotFound, TemporalexError, WorkflowClosed
from temporalex_django.testing.activities import EnvironmentSource
from temporalex_django.testing.schedules import EnvironmentSchedules

if TYPE_CHECKING:
    from temporalex_django.testing.memory_backend import MemoryBackend, WorkflowEnvironment


# --- memory actions ---------------------------------------------------------------------------------------------------
#
# Operations on runs in memory, such as pause and retry: the package ``operations`` without Django.


#: Permissions by operation, where it is not ``retry_activity``.
_PERMISSIONS = {
    **dict.fromkeys(("pause", "unpause", "try_again"), "pause_instance"),
    **dict.fromkeys(("redeliver", "discard"), "redeliver_message"),
    **{name: name for name in ("complete_activity", "fail_activity")},
    "delete": "delete_instance",
}
_PAYLOAD_ACTIONS = ("complete_activity", "fail_activity")
#: Operations that are possible on a closed run.
_CLOSED_RUN_ACTIONS = ("delete", "discard")


class MemoryOperator:
    """The operations on the runs of one chain, in the name of one user (or of code, if ``by`` is None).

    Each method performs the operation of that name, and raises its errors. Call ``execute`` with the name instead of
    the method: it checks the permissions and the state of the run first.
    """

    def __init__(self, env: WorkflowEnvironment, chain_id: UUID, by: Person | None) -> None:
        self.env, self.storage = env, env.storage
        self.chain_id = chain_id
        self.person = by
        self.sender = sender_of(by)

    def execute(self, name: str, *, reason: str = "", **options: Any) -> None:
        """Perform the operation ``name``, such as "pause", after a check of the user's permissions and the run's state.

        ``reason`` is a text for the history. ``options`` are the further inputs of the operation, such as ``seq``.
        """
        # These are the permissions that the actions of the database check, so a test finds one that is missing.
        permissions = [_PERMISSIONS.get(name, "retry_activity")]
        permissions += ["edit_activity_input"] if "input" in options else []
        permissions += ["view_payload"] if "input" in options or name in _PAYLOAD_ACTIONS else []
        for permission in permissions:
            require_permission(self.person, permission, action=f"call {name}")
        self.name = name
        self.reason = fit_note(reason, label="the reason")
        run = self.storage.lock_run(self.chain_id, wait=0)
        assert run is not None
        if run.closed and name not in _CLOSED_RUN_ACTIONS:
            raise WorkflowClosed(self._refusal_text("the run is already closed"))
        with self.storage.transaction():
            getattr(self, name)(run, **options)

    def pause(self, run: RunState) -> None:
        if run.paused:
            self._refuse("the run is already paused")
        self.storage.write(
            [operator_overrides.pause_run(run, reason=self.reason, sender=self.sender, now=self.env.clock)]
        )

    def unpause(self, run: RunState) -> None:
        if not run.paused:
            self._refuse("the run is not paused")
        blocked = self.storage.block_reason(run.run_id)
        self.storage.write([operator_overrides.unpause_run(run, blocked=blocked, now=self.env.clock)])

    def try_again(self, run: RunState) -> None:
        if self.storage.block_reason(run.run_id) is None:
            self._refuse("the run is not blocked")
        if run.paused:
            self._refuse("the run is paused: unpause it first")
        if is_due(run.due_at, self.env.clock):
            self._refuse("it is already due: the next worker that polls its queue retries it")
        self.storage.write([retry_immediately(run, now=self.env.clock)])

    def retry_activity(self, run: RunState, *, seq: int, **options: Any) -> None:
        task = self._find_task(run, seq, manual_only="input" in options)
        if task.owner is not None:
            self._refuse("an attempt is running now")
        # The second part of the fence is the number of attempts.
        if not task.fence[1]:
            self._refuse("it has not been attempted yet")
        if "input" in options:
            edited_input = to_plain(options["input"], label="the input 'input'")
            task = operator_overrides.with_edited_input(
                task, *activity.find(task.activity).parse_edited_input(edited_input, task.args), sender=self.sender
            )
            self.storage.edit_task(task)
        self._finish_task(operator_overrides.immediate_retry(task, now=self.env.clock))

    def complete_activity(self, run: RunState, *, seq: int, result: Any) -> None:
        task = self._find_task(run, seq)
        plain_result = to_plain(result, label="the input 'result'")
        value = activity.find(task.activity).encode_manual_result(
            plain_result, task.args, EnvironmentSource(self.env, task)
        )
        self._finish_task(operator_overrides.operator_completion(task, value, sender=self.sender))

    def fail_activity(self, run: RunState, *, seq: int, message: str, type: str) -> None:
        message, kind = check_text(message, label="the input 'message'"), check_text(type, label="the input 'type'")
        self._finish_task(
            operator_overrides.operator_failure(
                self._find_task(run, seq), type=kind, message=message, sender=self.sender
            )
        )

    def skip_timer(self, run: RunState, *, seq: int) -> None:
        timers = operator_overrides.pending_timers((e.kind, e.attributes) for e in self.storage.runs[run.run_id].events)
        if seq not in timers:
            self._refuse(operator_overrides.absent_timer_text(timers))
        if self.storage.has_message(self.chain_id, operator_overrides.skip_message_id(run.run_id, seq)):
            self._refuse("somebody has already fired it")
        self.storage.write([operator_overrides.skip_timer(run, seq, sender=self.sender)])

    def redeliver(self, run: RunState, *, message: str | None = None) -> None:
        for failed in self._failed_message_ids(message):
            self.storage.redeliver(run.chain_id, failed)

    def discard(self, run: RunState, *, message: str | None = None) -> None:
        for failed in self._failed_message_ids(message):
            self.storage.discard(run.chain_id, failed)

    def _failed_message_ids(self, message: str | None) -> list[str]:
        """Return the ids of the failed messages to act on: only ``message``, or all if it is None."""
        ids = [str(stored_message.message.message_id) for stored_message in self.storage.failed_messages(self.chain_id)]
        if not ids:
            self._refuse("the run has no failed message")
        if message is not None and message not in ids:
            self._refuse(f"the run has no failed message with the id {message}")
        return ids if message is None else [message]

    def delete(self, run: RunState) -> None:
        if not run.closed:
            self._refuse("the run is open: cancel or terminate it first")
        self.storage.delete_chain(self.chain_id)

    def _find_task(self, run: RunState, seq: int, *, manual_only: bool = True) -> TaskState:
        """Return the open activity with the command number ``seq``. Raises ``ActionNotPossible``.

        With ``manual_only``, its code must allow that people complete or change it by hand.
        """
        task = self.storage.find_task(run.run_id, seq)
        if task is None:
            self._refuse("no activity with that number is open: it has ended, or was cancelled")
        if manual_only and not operator_overrides.allows_overrides(task.options):
            self._refuse("the code of the activity does not allow operators to do this (by_hand=False)")
        return task

    def _finish_task(self, result: TaskResult) -> None:
        self.storage.finish_tasks([result])

    def _refuse(self, reason: str) -> NoReturn:
        """Raise ``ActionNotPossible`` with the reason."""
        raise ActionNotPossible(self._refusal_text(reason))

    def _refusal_text(self, reason: str) -> str:
        record = self.storage.current_run(self.chain_id).facts
        return f"{self.name} of {record.workflow} {record.workflow_id} refused: {reason}"


#: The operations that a ``MemoryOperator`` performs: its methods.
OPERATIONS = frozenset(name for name in vars(MemoryOperator) if not name.startswith("_")) - {"execute"}


# --- memory schedules -------------------------------------------------------------------------------------------------
#
# The schedules of an environment in memory, fired by the rules that workers use.


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
            workflow_id=schedule.workflow_id,
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
