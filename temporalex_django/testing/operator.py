"""What operators do to runs in memory: ``actions`` without Django."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn
from uuid import UUID

from temporalex_django.authoring import activity
from temporalex_django.authoring.authorization import Person, require_permission, sender_of
from temporalex_django.core.payloads import check_text, to_plain
from temporalex_django.engine import by_hand, pausing
from temporalex_django.engine.blocked import due_now
from temporalex_django.engine.fates import due
from temporalex_django.engine.storage import RunState, TaskResult, TaskState
from temporalex_django.errors import ActionNotPossible, WorkflowClosed
from temporalex_django.testing.activities import EnvironmentSource

if TYPE_CHECKING:
    from temporalex_django.testing.memory import WorkflowEnvironment

#: Permissions that are not called ``retry_activity``.
_PERMISSIONS = {
    **dict.fromkeys(("pause", "unpause", "try_again"), "pause_instance"),
    **dict.fromkeys(("redeliver", "discard"), "redeliver_message"),
    **{name: name for name in ("complete_activity", "fail_activity")},
    "delete": "delete_instance",
}
_SEE_PAYLOADS = ("complete_activity", "fail_activity")
#: Actions that are possible on a closed run.
_OF_CLOSED = ("delete", "discard")


class OperatorInMemory:
    """One chain, and somebody who does something to it. ``do`` raises what the action of that name raises."""

    def __init__(self, env: WorkflowEnvironment, chain_id: UUID, by: Person | None) -> None:
        self.env, self.storage = env, env.storage
        self.chain_id = chain_id
        self.person = by
        self.by = sender_of(by)

    def do(self, name: str, *, reason: str = "", **given: Any) -> None:
        """One of the methods below, which are called as the actions are."""
        wanted = [_PERMISSIONS.get(name, "retry_activity")]
        wanted += ["edit_activity_input"] if "input" in given else []
        wanted += ["view_payload"] if "input" in given or name in _SEE_PAYLOADS else []
        for permission in wanted:
            require_permission(self.person, permission, action=f"do {name}")
        self.name = name
        self.reason = check_text(reason, label="the reason")
        run = self.storage.hold(self.chain_id, wait=0)
        assert run is not None
        if run.closed and name not in _OF_CLOSED:
            raise WorkflowClosed(self._refused("the run is closed already"))
        with self.storage.transaction():
            getattr(self, name)(run, **given)

    def pause(self, run: RunState) -> None:
        if run.paused:
            self._refuse("the run is paused already")
        self.storage.write([pausing.paused(run, reason=self.reason, by=self.by, now=self.env.clock)])

    def unpause(self, run: RunState) -> None:
        if not run.paused:
            self._refuse("the run is not paused")
        blocked = self.storage.blocked_by(run.run_id)
        self.storage.write([pausing.unpaused(run, blocked=blocked, now=self.env.clock)])

    def try_again(self, run: RunState) -> None:
        if self.storage.blocked_by(run.run_id) is None:
            self._refuse("the run is not blocked")
        if run.paused:
            self._refuse("the run is paused: unpause it first")
        if due(run.due_at, self.env.clock):
            self._refuse("it is due already: the next worker that takes its queue tries it")
        self.storage.write([due_now(run, now=self.env.clock)])

    def retry_activity(self, run: RunState, *, seq: int, **given: Any) -> None:
        task = self._task(run, seq, by_hand_only="input" in given)
        if task.owner is not None:
            self._refuse("it is being tried just now")
        if not task.fence[1]:
            self._refuse("it has not been tried yet")
        if "input" in given:
            input_ = to_plain(given["input"], label="the input 'input'")
            task = by_hand.edited(task, *activity.find(task.activity).parse_edited_input(input_, task.args), by=self.by)
            self.storage.edit_task(task)
        self._finish(by_hand.retried(task, now=self.env.clock))

    def complete_activity(self, run: RunState, *, seq: int, result: Any) -> None:
        task = self._task(run, seq)
        given = to_plain(result, label="the input 'result'")
        value = activity.find(task.activity).encode_manual_result(given, task.args, EnvironmentSource(self.env, task))
        self._finish(by_hand.completed(task, value, by=self.by))

    def fail_activity(self, run: RunState, *, seq: int, message: str, type: str) -> None:
        message, kind = check_text(message, label="the input 'message'"), check_text(type, label="the input 'type'")
        self._finish(by_hand.failed(self._task(run, seq), type=kind, message=message, by=self.by))

    def skip_timer(self, run: RunState, *, seq: int) -> None:
        timers = by_hand.pending_timers((e.kind, e.attributes) for e in self.storage.runs[run.run_id].events)
        if seq not in timers:
            self._refuse("no timer of that number is running: it has fired, or was cancelled")
        if self.storage.has_message(self.chain_id, by_hand.skip_id(run.run_id, seq)):
            self._refuse("somebody has let it fire already")
        self.storage.write([by_hand.skipped(run, seq, by=self.by)])

    def redeliver(self, run: RunState, *, message: str | None = None) -> None:
        for failed in self._failed(message):
            self.storage.redeliver(run.chain_id, failed)

    def discard(self, run: RunState, *, message: str | None = None) -> None:
        for failed in self._failed(message):
            self.storage.discard(run.chain_id, failed)

    def _failed(self, message: str | None) -> list[str]:
        """The ids of the failed messages that are meant: one, or all."""
        ids = [str(kept.message.request_id) for kept in self.storage.failed_messages(self.chain_id)]
        if not ids:
            self._refuse("the run has no failed message")
        if message is not None and message not in ids:
            self._refuse(f"it has no failed message with the id {message}")
        return ids if message is None else [message]

    def delete(self, run: RunState) -> None:
        if not run.closed:
            self._refuse("the run is open: cancel or terminate it first")
        self.storage.forget(self.chain_id)

    def _task(self, run: RunState, seq: int, *, by_hand_only: bool = True) -> TaskState:
        task = self.storage.task_of(run.run_id, seq)
        if task is None:
            self._refuse("no activity of that number is under way: it has ended, or was cancelled")
        if by_hand_only and not by_hand.takes_hands(task.options):
            self._refuse("its code lets nobody do that by hand (by_hand=False)")
        return task

    def _finish(self, result: TaskResult) -> None:
        self.storage.finish_tasks([result])

    def _refuse(self, why: str) -> NoReturn:
        raise ActionNotPossible(self._refused(why))

    def _refused(self, why: str) -> str:
        facts = self.storage.current(self.chain_id).facts
        return f"{self.name} of {facts.workflow} {facts.workflow_id} refused: {why}"
