"""Handles of the test environments: the methods of ``WorkflowHandle``, without waiting for anything.

A run works as far as it can before a method returns. So ``timeout`` and ``mode`` are checked and have no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID, uuid4

from temporalex_django.authoring.authorization import Person, check_person, sender_key, split_decider
from temporalex_django.authoring.backend import MOST_ACTIVITIES, Description
from temporalex_django.authoring.handle import ANSWER_TIMEOUT, RESULT_TIMEOUT, UNCHANGED, WorkflowHandle
from temporalex_django.authoring.human_tasks import (
    OpenHumanTask,
    base_key,
    clean_form_data,
    require_outcome,
    select_task,
)
from temporalex_django.authoring.redaction import UNREDACTED, Redactor
from temporalex_django.authoring.run_columns import describe_columns
from temporalex_django.authoring.type_hints import Result_co
from temporalex_django.authoring.workflow import decode_result
from temporalex_django.core.history.events import CLOSED_STATUSES, HistoryEvent
from temporalex_django.core.names import check_message_id, check_name, check_wait
from temporalex_django.core.payloads.codec import check_text
from temporalex_django.core.payloads.copying import deep_copy
from temporalex_django.engine.contracts.records import Outcome
from temporalex_django.engine.outcomes import run_result, update_result
from temporalex_django.errors import ActionNotPermitted, WorkflowClosed
from temporalex_django.graph import snapshot
from temporalex_django.graph.durable.run import decidable_steps, resume_request
from temporalex_django.graph.steps import StepRef

if TYPE_CHECKING:
    from temporalex_django.testing.environment import Environment
    from temporalex_django.testing.environment_base import RunRow


class EnvironmentUpdate:
    """An update whose result is not awaited; ``result()`` raises ``UpdateTimeout`` while there is none."""

    def __init__(self, env: Environment, chain_id: UUID, message_id: int, update_id: str, label: str) -> None:
        self._env = env
        self._chain_id = chain_id
        self._message_id = message_id
        self.id = update_id
        self._label = label

    @property
    def _outcome(self) -> Outcome | None:
        outcome = self._env.outcome(self._message_id)
        # After a reset the update is delivered again, as a new message with the same message id (see decision 43).
        return self._env.update_outcome(self._chain_id, self.id) if outcome is None else outcome

    @property
    def accepted(self) -> bool:
        outcome = self._outcome
        return outcome is not None and outcome.status != "rejected"

    @property
    def done(self) -> bool:
        outcome = self._outcome
        return outcome is not None and outcome.status != "accepted"

    def result(self) -> Any:
        return update_result(self._outcome, update_id=self.id, label=self._label)


class EnvironmentHandle(WorkflowHandle[Result_co]):
    """The handle of a chain of runs in an environment.

    ``pinned`` is the run that was asked for by its run id; the handle then shows that run instead of the newest one.
    """

    chain_id: UUID

    def __init__(self, env: Environment, workflow_id: str, chain_id: UUID, *, pinned: UUID | None = None) -> None:
        super().__init__(workflow_id, chain_id=chain_id)
        self.env = env
        self.pinned = pinned

    @property
    def _row(self) -> RunRow:
        return self.env.row(self.env.run_ids(self.chain_id)[-1])

    @property
    def selected_run(self) -> RunRow:
        """The row of the run that this handle shows: the pinned one, or the newest of its chain."""
        return self._row if self.pinned is None else self.env.row(self.pinned)

    @property
    def run_id(self) -> str:
        return self.run_ids[-1] if self.pinned is None else str(self.pinned)

    @property
    def run_ids(self) -> list[str]:
        """The run ids of the chain, oldest first."""
        return [str(run_id) for run_id in self.env.run_ids(self.chain_id)]

    @property
    def status(self) -> str:
        return self.selected_run.status

    @property
    def blocked(self) -> BaseException | None:
        """The error that keeps the run from continuing, or None."""
        return self.env.errors.get(UUID(self.run_id))

    def signal(self, name: str, payload: Any = None, *, id: str | None = None, by: Person | None = None) -> None:
        """Send a signal.

        Signals with the same ``id`` count once, however often they are sent. Raises ``WorkflowClosed``,
        ``PayloadError``, ``InvalidId``.
        """
        by = self._require_permitted(by, "signal", name)
        label = f"signal {check_name(name, label='signal')!r}"
        # A signal that was sent with this id before counts as sent, even if the run has closed since. So only a signal
        # without an id is refused before it is sent.
        if id is None:
            self._require_open(label)
        request_id = None if id is None else check_message_id(id, label="signal")
        outcome = self.env.outcome(self.env.send(self.chain_id, "signal", name, payload, request_id, by=by))
        # The run may have closed in the activation that the signal caused.
        if outcome is not None and outcome.status == "undelivered":
            self._require_open(label)

    def update(
        self,
        name: str,
        args: Any = None,
        *,
        id: str | None = None,
        timeout: float | None = ANSWER_TIMEOUT,
        mode: str = "auto",
        by: Person | None = None,
    ) -> Any:
        """Send an update and return its response.

        Raises ``UpdateRejected``, ``WorkflowClosed``, ``UpdateFailed``, ``UpdateTimeout``, ``ActionNotPermitted``.
        """
        check_wait(timeout, mode)
        return self.update_async(name, args, id=id, by=by).result()

    def update_async(
        self, name: str, args: Any = None, id: str | None = None, *, by: Person | None = None
    ) -> EnvironmentUpdate:
        """Send an update without asking for its response."""
        by = self._require_permitted(by, "update", name)
        check_name(name, label="update")
        update_id = str(uuid4()) if id is None else check_message_id(id, label="update")
        message_id = self.env.send(self.chain_id, "update", name, args, update_id, by=by)
        return EnvironmentUpdate(self.env, self.chain_id, message_id, update_id, f"update {name!r} of {self.id}")

    def resume(
        self,
        event: str,
        step: StepRef | str | None = None,
        data: Any = None,
        *,
        by: Person | str | None = None,
        timeout: float | None = ANSWER_TIMEOUT,
    ) -> None:
        """Give a graph the event that one of its steps waits for.

        ``by`` decides: a user, or a name, which has no role. Raises ``ResumeRefused`` when no step or several steps
        wait for the event. Raises ``ActionNotPermitted`` when ``by`` lacks the role of the step, ``WorkflowClosed``
        and ``PayloadError``. Nothing changes when it raises.
        """
        check_wait(timeout)
        user, name = split_decider(by)
        self._require_permitted(user, "resume", event)
        self._require_open(f"resume({event!r})")
        update_id = str(uuid4())
        record = self._row.facts
        decidable_keys = decidable_steps(self.env.class_of(self.chain_id, record.workflow, record.version), event, user)
        sender_name = str(user) if user is not None else name
        request = resume_request(event, step=step, data=data, by=sender_name, key=sender_key(user))
        # The event may decide a human task: it is refused here if somebody else has claimed that task.
        if user is not None and decidable_keys:
            self.env.require_unclaimed(user, self.chain_id, event, step=request["step"])
        message_id = self.env.send(self.chain_id, "resume", event, request, update_id, by=user)
        # In a batch nothing is delivered yet, so there is no outcome to raise.
        if not self.env.batching:
            update_result(self.env.outcome(message_id), update_id=update_id, label=f"resume({event!r}) of {self.id}")

    def human_tasks(self, *, by: Person | None = None) -> list[OpenHumanTask]:
        """Return the open human tasks of the run, oldest first. Raises ``ActionNotPermitted``."""
        return [task for task in self.env.human_tasks(UUID(self.run_id), by=check_person(by)) if not task.happened]

    def decide(
        self,
        outcome: str,
        *,
        task: str | None = None,
        data: Any = None,
        comment: str = "",
        by: Person | None = None,
        timeout: float | None = ANSWER_TIMEOUT,
    ) -> None:
        """Decide a human task of the run in the name of a user; see ``WorkflowHandle.decide``."""
        check_wait(timeout)
        user = check_person(by)
        human_task = select_task(
            self.env.human_tasks(UUID(self.run_id)), task, run=f"{self._row.facts.workflow} {self.id}"
        )
        require_outcome(human_task, outcome)
        if user is None:
            raise ActionNotPermitted(
                f"the human task {human_task.title!r} of {self.id} must be decided by a user: pass by=user"
            )
        request = {
            "event": outcome,
            "step": base_key(human_task.key),
            "task": human_task.key,
            "run": self.run_id,
            "comment": check_text(comment, label="the comment"),
            # As the person saw it: a decision keeps the question that it answers (see decision 47).
            "question": {"title": human_task.title, "outcomes": [*human_task.outcomes]},
            **self.env.admitted(human_task, user),
            **clean_form_data(human_task.form, data, title=human_task.title),
        }
        update_id = str(uuid4())
        message_id = self.env.send(self.chain_id, "resume", outcome, request, update_id, by=user)
        if not self.env.batching:
            label = f"the decision {outcome!r} of {self.id}"
            update_result(self.env.outcome(message_id), update_id=update_id, label=label)

    def instance(self, *, by: Person | None = None) -> Any:
        """Return a graph as an instance of the pure engine, computed from the history of the run.

        The instance has the context and the execution history of the graph.
        """
        redactor, instance = self._redactor(by).require_payloads(by), self.env.instance(self)
        return instance if redactor is UNREDACTED else snapshot.redact_instance(instance, redactor)

    def query(self, name: str, args: Any = None, *, fresh: bool = True, by: Person | None = None) -> Any:
        """Return the answer of a query from the published state.

        ``fresh`` has no effect here: an environment leaves no message unread. Raises ``UnknownQuery``, ``QueryFailed``,
        ``ActionNotPermitted``.
        """
        user = self._require_permitted(by, "query", name)
        del fresh  # no message is ever unread here, so there is nothing to deliver first
        row = self.selected_run
        published = row.published
        if self.pinned is None and row.published is None and row.status == "pending" and len(self.run_ids) > 1:
            previous_row = self.env.row(self.env.run_ids(self.chain_id)[-2])
            # In the gap after continue-as-new the new run has published nothing yet (see decision 26).
            if previous_row.status == "continued_as_new":
                published = previous_row.published
        record = row.facts
        answer = self.env.class_of(self.chain_id, record.workflow, record.version).answer(name, args, published)
        return (
            answer
            if user is None
            else Redactor(
                redacted_paths=self.env.class_of(self.chain_id, record.workflow, record.version).redacted
            ).redact_answer(answer)
        )

    def result(self, timeout: float | None = RESULT_TIMEOUT, *, by: Person | None = None) -> Result_co:
        """Return the result of the run.

        Raises ``WorkflowFailed`` and its subclasses, and ``WorkflowCancelled``. Raises ``ResultTimeout`` while the
        run is open and cannot continue by itself.
        """
        redactor = self._redactor(by).require_payloads(by)
        check_wait(timeout)
        row = self._row
        record = row.facts
        closing = row.closing if redactor is UNREDACTED else redactor.redact_attributes(row.closing or {})
        result_value = run_result(
            row.status, closing, workflow=record.workflow, workflow_id=record.workflow_id, blocked=self.blocked
        )
        if redactor is not UNREDACTED:
            return cast("Result_co", result_value)
        return cast(
            "Result_co", decode_result(self.env.class_of(self.chain_id, record.workflow, record.version), result_value)
        )

    def cancel(self, reason: str = "", *, by: Person | None = None) -> None:
        """Ask the run to cancel; a graph is cancelled at once. Raises ``WorkflowClosed``, ``ActionNotPermitted``."""
        self._require_permitted(by, "cancel")
        check_text(reason, label="the reason")
        self._require_open("cancel request")
        record = self._row.facts
        if self.env.class_of(self.chain_id, record.workflow, record.version).cancels_at_once:
            self.env.close(self.chain_id, "cancelled", reason)
            return
        self.env.send(self.chain_id, "cancel", "", {"reason": reason})

    def terminate(self, reason: str = "", *, by: Person | None = None) -> None:
        """Close the run at once. Raises ``WorkflowClosed``, ``ActionNotPermitted``."""
        self._require_permitted(by, "terminate")
        check_text(reason, label="the reason")
        self._require_open("terminate")
        self.env.close(self.chain_id, "terminated", reason)

    def reset(
        self,
        to: int | None = None,
        *,
        messages: str = "again",
        edited: Any = None,
        reason: str = "",
        by: Person | None = None,
    ) -> str:
        """Continue the chain with a new run that starts after activation ``to`` of this one. Return its run id.

        Without ``to``, the new run starts after the last activation that succeeded.
        """
        self._require_reset_permitted(by, "reset", edited)
        check_text(reason, label="the reason")
        return str(self.env.reset(self, by=by, to=to, messages=messages, edited=edited))

    def fork(
        self,
        to: int | None = None,
        *,
        id: str | None = None,
        messages: str = "again",
        edited: Any = None,
        reason: str = "",
        by: Person | None = None,
    ) -> EnvironmentHandle[Result_co]:
        """Start a run in a new chain, from the history of this one up to activation ``to``. Return its handle.

        Without ``to``, the fork starts after the last activation that succeeded.
        """
        self._require_reset_permitted(by, "fork", edited)
        check_text(reason, label="the reason")
        return self.env.fork(self, id, by=by, to=to, messages=messages, edited=edited)

    # -- operations ----------------------------------------------------------------------------------------------------

    def pause(self, reason: str = "", *, by: Person | None = None) -> None:
        self._operate("pause", by, reason=reason)

    def unpause(self, reason: str = "", *, by: Person | None = None) -> None:
        self._operate("unpause", by, reason=reason)

    def try_again(self, reason: str = "", *, by: Person | None = None) -> None:
        self._operate("try_again", by, reason=reason)

    def retry_activity(self, seq: int, *, input: Any = UNCHANGED, reason: str = "", by: Person | None = None) -> None:
        self._operate("retry_activity", by, seq=seq, reason=reason, **({} if input is UNCHANGED else {"input": input}))

    def complete_activity(self, seq: int, result: Any = None, *, reason: str = "", by: Person | None = None) -> None:
        self._operate("complete_activity", by, seq=seq, reason=reason, result=result)

    def fail_activity(
        self, seq: int, message: str, *, type: str = "FailedByHand", reason: str = "", by: Person | None = None
    ) -> None:
        self._operate("fail_activity", by, seq=seq, reason=reason, message=message, type=type)

    def redeliver(self, id: str | None = None, *, reason: str = "", by: Person | None = None) -> None:
        self._operate("redeliver", by, reason=reason, **({} if id is None else {"message": id}))

    def discard(self, id: str | None = None, *, reason: str = "", by: Person | None = None) -> None:
        self._operate("discard", by, reason=reason, **({} if id is None else {"message": id}))

    def skip_timer(self, seq: int, *, reason: str = "", by: Person | None = None) -> None:
        self._operate("skip_timer", by, seq=seq, reason=reason)

    def delete(self, reason: str = "", *, by: Person | None = None) -> None:
        self._operate("delete", by, reason=reason)

    def _operate(self, name: str, by: Person | None, **options: Any) -> None:
        """Apply an operation. Raises ``ActionNotPermitted``, and the errors of the action of that name."""
        self.env.steer(self, name, check_person(by), options)

    def history(self, *, by: Person | None = None) -> list[HistoryEvent]:
        """Return the events of the newest run, or of the pinned one."""
        redactor = self._redactor(by)
        return [
            redactor.redact_event(replace(event, attributes=deep_copy(event.attributes)))
            for event in self.selected_run.events
        ]

    def describe(self, *, by: Person | None = None) -> Description:
        redactor = self._redactor(by)
        row = self.selected_run
        open_activities = self.env.engine.tasks.open_activities(UUID(self.run_id), limit=MOST_ACTIVITIES)
        return Description(
            **describe_columns(row.column, redactor),
            waiting_for=redactor.redact_waiting_for(row.waiting_for, row.waits),
            activities=[redactor.redact_activity(activity) for activity in open_activities],
            failed_messages=[
                redactor.redact_failed_message(failed)
                for failed in self.env._failed_messages(self.chain_id)  # noqa: SLF001 - of the same package
            ],
        )

    # -- async ---------------------------------------------------------------------------------------------------------

    async def _from_async(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return await self.env.from_async(call, *args, **options)

    def __repr__(self) -> str:
        return f"<EnvironmentHandle {self.id!r}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EnvironmentHandle):
            return NotImplemented
        return (self.env, self.chain_id, self.pinned) == (other.env, other.chain_id, other.pinned)

    def __hash__(self) -> int:
        return hash(self.chain_id)

    def _redactor(self, by: Person | None) -> Redactor:
        """Return the redactor for a person. Raises ``ActionNotPermitted`` if they may not look at runs."""
        user = check_person(by)
        return UNREDACTED if user is None else self.env.redactor_for(user, self.chain_id, UUID(self.run_id))

    def _require_permitted(self, by: Person | None, operation: str, message: str | None = None) -> Person | None:
        """Return the person if they may do that with this run. Raises ``ActionNotPermitted``, ``WorkflowNotFound``."""
        user = check_person(by)
        if user is not None:
            self.env.require_permitted(
                user, operation, action_text=operation, run_id=UUID(self.run_id), message=message
            )
        return user

    def _require_reset_permitted(self, by: Person | None, operation: str, edited: Any) -> None:
        """Check the permission for a reset or a fork, and two more permissions where inputs are edited."""
        for name in (operation, *(("edit_activity_input", "view_payload") if edited is not None else ())):
            self._require_permitted(by, name)

    def _require_open(self, label: str) -> None:
        row = self._row
        if row.status in CLOSED_STATUSES:
            raise WorkflowClosed(f"{row.facts.workflow} {self.id} is closed ({row.status}): {label} refused")
