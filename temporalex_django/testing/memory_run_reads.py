"""The host in memory: reads of runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from temporalex_django.authoring.authorization import (
    APP,
    Person,
    check_person,
    has_permission,
    is_authorized,
    matches_candidate,
    require_operation,
    sender_key,
)
from temporalex_django.authoring.backend import MOST_ACTIVITIES, Description, FailedMessage
from temporalex_django.authoring.human_tasks import (
    OpenHumanTask,
)
from temporalex_django.authoring.redaction import UNREDACTED, VIEW_PAYLOAD, Redactor
from temporalex_django.authoring.requests import RunAddress
from temporalex_django.authoring.run_columns import describe_columns
from temporalex_django.authoring.run_filters import is_wait_of, select_runs
from temporalex_django.authoring.workflow import (
    Workflow,
    decode_result,
)
from temporalex_django.core.history.events import CLOSED_STATUSES, HistoryEvent
from temporalex_django.core.names import check_wait
from temporalex_django.core.payloads.codec import deep_copy
from temporalex_django.engine.activity_policy import open_run_text, run_result
from temporalex_django.engine.contracts.records import HumanTaskWrite, Outcome, RunState, TaskResult, TaskState
from temporalex_django.engine.memory.storage import MemoryRunStorage
from temporalex_django.engine.memory.tables import RunRow
from temporalex_django.engine.refusals import nothing_published_error, start_wait
from temporalex_django.engine.turn_report import TurnReport
from temporalex_django.errors import NotConfigured, ResultTimeout
from temporalex_django.graph import instance as snapshot
from temporalex_django.present.view_models import LATE_PERIOD
from temporalex_django.testing.environment import Environment
from temporalex_django.testing.memory_actions import MemorySchedules

# --- memory run reads -------------------------------------------------------------------------------------------------
#
# The operations on one run in memory that only read it.


class MemoryRunReads:
    """The reads of one run in memory. Each method performs the read of its name of ``WorkflowHandle``."""

    def __init__(self, env: Any, address: RunAddress) -> None:
        assert address.chain_id is not None
        self.env = env
        self.chain_id = address.chain_id
        self._address = address

    @property
    def selected_run_id(self) -> UUID:
        """The id of the run that the address names, or else of the newest run of the chain."""
        return self._address.run_id or self.env.run_ids(self.chain_id)[-1]

    @property
    def newest_run(self) -> Any:
        """The newest run of the chain."""
        return self.env.row(self.env.run_ids(self.chain_id)[-1])

    @property
    def selected_run(self) -> Any:
        """The run of ``selected_run_id``."""
        return self.env.row(self.selected_run_id)

    @property
    def label(self) -> str:
        """The name of the class and the business id, as errors name the run."""
        facts = self.newest_run.facts
        return f"{facts.workflow} {facts.workflow_id}"

    def future_start(self, row: Any) -> datetime | None:
        """Return the time at which the run of a row begins, if that is later than now."""
        starts_at: datetime | None = row.facts.starts_at
        if row.status != "pending" or starts_at is None or starts_at <= self.env.clock:
            return None
        return starts_at

    def _code(self, record: Any) -> type[Workflow]:
        code: type[Workflow] = self.env.class_of(self.chain_id, record.workflow, record.version)
        return code

    @property
    def newest_class(self) -> type[Workflow]:
        """The class of the newest run of the chain, which takes its messages."""
        return self._code(self.newest_run.facts)

    def run_id(self, *, by: Person | None = None) -> str:
        del by
        return str(self.selected_run_id)

    def run_ids(self, *, by: Person | None = None) -> list[str]:
        del by
        return [str(run_id) for run_id in self.env.run_ids(self.chain_id)]

    def human_tasks(self, *, by: Person | None) -> list[OpenHumanTask]:
        return [task for task in self._human_tasks(check_person(by)) if not task.happened]

    def _human_tasks(self, by: Person | None) -> list[OpenHumanTask]:
        return list(self.env.human_tasks(self.selected_run_id, by=by))

    def instance(self, *, by: Person | None) -> Any:
        redactor, row = self._redactor(by).require_payloads(by), self.selected_run
        instance = self.env.projections.get(row.facts.run_id, self._code(row.facts)).instance
        return instance if redactor is UNREDACTED else snapshot.redact_instance(instance, redactor)

    def query(self, *, query: str, args: Any, fresh: bool, by: Person | None) -> Any:
        """Return the answer to a query, computed from the published state.

        ``fresh`` has no effect, because no message is ever unread here.
        """
        del fresh
        user = require_operation(by, "query", action="query")
        row = self.selected_run
        if (starts_at := self.future_start(row)) is not None:
            raise nothing_published_error(row.facts.workflow, row.facts.workflow_id, starts_at=starts_at)
        published = row.published
        runs = self.env.run_ids(self.chain_id)
        if self._address.run_id is None and published is None and row.status == "pending" and len(runs) > 1:
            previous_row = self.env.row(runs[-2])
            # In the gap after continue-as-new the new run has published nothing yet (see decision 26).
            if previous_row.status == "continued_as_new":
                published = previous_row.published
        code = self._code(row.facts)
        answer = code.answer(query, args, published)
        return answer if user is None else Redactor(redacted_paths=code.redacted).redact_answer(answer)

    def result(self, *, timeout: float | None, by: Person | None) -> Any:
        """Return the result of the run, as the user ``by`` may see it.

        There is no wait: the run has worked as far as it can.
        """
        redactor = self._redactor(by).require_payloads(by)
        check_wait(timeout)
        row = self.newest_run
        record = row.facts
        blocked = self.env.errors.get(self.selected_run_id)
        if row.status not in CLOSED_STATUSES and not blocked:
            description = self._describe(self.env.run_ids(self.chain_id)[-1], redactor)
            reason = open_run_text(description)
            # No worker and no wall clock: only the test lets time pass.
            waits_for_time = any(wait["kind"] == "timer" for wait in row.waits)
            retries = any(activity.next_try is not None for activity in description.activities)
            advice = "; env.advance(...) lets time pass" if waits_for_time or retries else ""
            raise ResultTimeout(f"{self.label} has no result yet: it is {reason}{advice}")
        closing = row.closing if redactor is UNREDACTED else redactor.redact_attributes(row.closing or {})
        value = run_result(
            row.status,
            closing,
            workflow=record.workflow,
            workflow_id=record.workflow_id,
            blocked=blocked,
        )
        return value if redactor is not UNREDACTED else decode_result(self._code(record), value)

    def history(self, *, by: Person | None) -> list[HistoryEvent]:
        redactor = self._redactor(by)
        return [
            redactor.redact_event(replace(event, attributes=deep_copy(event.attributes)))
            for event in self.selected_run.events
        ]

    def describe(self, *, by: Person | None) -> Description:
        return self._describe(self.selected_run_id, self._redactor(by))

    def _describe(self, run_id: UUID, redactor: Redactor) -> Description:
        env, row = self.env, self.env.row(run_id)
        open_activities = env._tasks.open_activities(run_id, limit=MOST_ACTIVITIES)  # noqa: SLF001 - of the same package
        waiting = [*row.waiting_for]
        if (starts_at := self.future_start(row)) is not None:
            waiting.append(start_wait(starts_at))
        return Description(
            **describe_columns(row.column, redactor),
            waiting_for=redactor.redact_waiting_for(waiting, row.waits),
            activities=[redactor.redact_activity(activity) for activity in open_activities],
            failed_messages=[
                redactor.redact_failed_message(failed)
                for failed in env._failed_messages(self.chain_id)  # noqa: SLF001 - of the same package
            ],
        )

    def _redactor(self, by: Person | None) -> Redactor:
        """Return the redactor for the user ``by``. Raises ``ActionNotPermitted`` if the user may not view runs."""
        user = require_operation(by, "view", action="view")
        if user is None:
            return UNREDACTED
        code = self._code(self.selected_run.facts)
        return Redactor(may_see_payloads=has_permission(user, VIEW_PAYLOAD), redacted_paths=code.redacted)


# --- memory reads -----------------------------------------------------------------------------------------------------
#
# The runs of an environment in memory, as tests and handles read them, whatever host runs their code.


_MANY_ATTEMPTS = 5


class MemoryListedRun:
    """A run in memory as filters and orders compare it; it has the columns of the run as attributes.

    ``position`` counts the runs in the order in which they were started.
    """

    def __init__(self, storage: MemoryRunStorage, chain: RunState, run: RunRow, *, position: int) -> None:
        self.storage, self.chain, self.run, self.position = storage, chain, run, position
        self.queue, self.due_at = chain.queue, chain.due_at

    def __getattr__(self, name: str) -> Any:
        return self.run.column(name)

    def is_waiting_for(self, kind: str) -> bool:
        """Return True if the run is open and waits for something of this kind, one of ``WAIT_KINDS``."""
        if self.status in CLOSED_STATUSES or (kind == "activity" and not self.has_open_activities()):
            return False
        return is_wait_of(kind, self.waiting_for)

    def is_stuck(self) -> bool:
        chain = self.chain
        is_late = (
            chain.due_at is not None
            and chain.due_at < self.storage.clock - LATE_PERIOD
            and not (chain.closed or chain.paused)
        )
        has_many_attempts = any(task.attempt > _MANY_ATTEMPTS for task in self.storage.tasks_of_run(chain.run_id))
        return (
            self.blocked is not None
            or is_late
            or has_many_attempts
            or bool(self.storage.failed_messages(chain.chain_id))
        )

    def causes(self) -> list[str | None]:
        tasks = self.storage.open_activities(self.chain.run_id, limit=sys.maxsize)
        failures = [(task.activity, task.last_failure) for task in tasks]
        causes = [failure.group.of_activity(name) for name, failure in failures if failure is not None]
        return [self.run.cause, self.run.fault, *(text for cause in causes for text in cause)]

    def has_open_activities(self) -> bool:
        return bool(self.storage.tasks_of_run(self.chain.run_id))

    def has_subject(self, subject: Any) -> bool:
        raise NotConfigured(f"runs in memory have no subject, so none has {subject!r}: use DjangoEnvironment")


def list_runs(storage: MemoryRunStorage, filters: Mapping[str, Any]) -> Iterator[tuple[str, UUID]]:
    """Yield ``(business id, chain id)`` of each current run that matches, in the order that ``filters`` names.

    ``filters`` maps names of ``authoring.run_filters.RUN_FILTERS`` to checked values.
    """
    chains = {chain.run_id: chain for chain in storage.chains.values()}
    current_runs = (
        MemoryListedRun(storage, chains[run_id], run, position=position)
        for position, (run_id, run) in enumerate(storage.runs.items())
        if run_id in chains
    )
    return ((run.workflow_id, run.chain.chain_id) for run in select_runs(current_runs, filters))


VIEW = f"{APP}.view_instance"


class MemoryReads(Environment):
    """The part of an environment in memory that reads its runs from ``storage``."""

    storage: MemoryRunStorage
    schedules: MemorySchedules

    def _held_until(self, task: TaskState) -> datetime | None:
        return self.storage.held_until(task)

    def _judge(self, key: str, permission: str, message: str) -> bool:
        """Return True if the user with this key has the permission.

        The user is one that a test passed as ``by``. ``message`` is the name of the message that needs the permission.
        """
        del message
        return is_authorized(self._people[key], permission, permits=has_permission)

    def _announce(self, report: TurnReport) -> None:
        """Do nothing: without Django there are no signals."""

    def _announce_attempt(self, task: TaskState, result: TaskResult | None = None) -> None:
        """Do nothing: without Django there are no signals."""

    def _failed_messages(self, chain_id: UUID) -> list[FailedMessage]:
        failed_messages = []
        for stored_message in self.storage.failed_messages(chain_id):
            assert stored_message.outcome is not None
            failure = stored_message.outcome.value
            failed_messages.append(
                FailedMessage(
                    id=str(stored_message.message.message_id),
                    name=stored_message.message.name,
                    type=failure["type"],
                    message=failure["message"],
                )
            )
        return failed_messages

    def list_runs(self, filters: Mapping[str, Any]) -> Iterator[tuple[str, UUID]]:
        """Return ``(business id, chain id)`` of each current run that matches.

        ``filters`` maps names of filters to checked values; its ``order`` sorts the runs.
        """
        return list_runs(self.storage, filters)

    def run_ids(self, chain_id: UUID) -> list[UUID]:
        return list(self.storage.run_ids.get(chain_id, ()))

    def row(self, run_id: UUID) -> RunRow:
        return self.storage.runs[run_id]

    def outcome(self, message_id: int) -> Outcome | None:
        stored_message = self.storage.messages.get(message_id)
        return stored_message.outcome if stored_message is not None else None

    def update_outcome(self, chain_id: UUID, update_id: str) -> Outcome | None:
        message_id = self.storage.message_number(chain_id, update_id)
        return None if message_id is None else self.outcome(message_id)

    def human_tasks(self, run_id: UUID, *, by: Person | None = None) -> list[OpenHumanTask]:
        # Who may view runs sees all tasks of the run; others see the tasks that ask them.
        may_view = by is None or has_permission(by, VIEW)
        rows = (row for row in self.storage.human_tasks.values() if row.run_id == run_id)
        tasks = [self._redact_task(row, by) for row in rows if may_view or _is_candidate(by, row)]
        return sorted(tasks, key=lambda task: (task.opened_at, task.key))

    def _redact_task(self, task_row: HumanTaskWrite, by: Person | None) -> OpenHumanTask:
        """Return a human task as the user ``by`` may see it; None stands for code.

        The title and what the task shows are for the people whom it asks, and for those who may see payloads.
        """
        task = OpenHumanTask.from_state(task_row.task, str(task_row.id))
        if by is None or _is_candidate(by, task_row):
            return task
        require_operation(by, "view", action="view")
        record = self.row(task_row.run_id).facts
        code = self.class_of(task_row.chain_id, record.workflow, record.version)
        redactor = Redactor(may_see_payloads=has_permission(by, VIEW_PAYLOAD), redacted_paths=code.redacted)
        return replace(
            task,
            title=redactor.redact_text(task.title),
            shows=None if task.shows is None else redactor.redact_payload(task.shows),
        )

    def inbox(self, user: Person) -> list[OpenHumanTask]:
        never, key = datetime.max.replace(tzinfo=UTC), sender_key(user)
        rows = [
            row
            for row in self.storage.human_tasks.values()
            if not row.task.ending and key not in row.task.barred and _is_candidate(user, row)
        ]
        rows.sort(key=lambda row: (row.task.due_at or never, row.task.opened_at, row.id))
        return [OpenHumanTask.from_state(row.task, str(row.id)) for row in rows]

    def _set_clock(self, now: datetime) -> None:
        self.storage.clock = now

    def _next_due(self) -> datetime | None:
        times = [run.due_at for run in self.storage.chains.values()]
        held_ids = {task.id for task in self._held_tasks}
        # The test ends a held task; its timeouts are those of ``_next_held_timeout``.
        for task in self.storage.open_tasks.values():
            if task.id not in held_ids:
                times += [self.storage.next_timeout(task), task.due_at if task.owner is None else None]
        times.append(self.schedules.next_due())
        return min((moment for moment in times if moment is not None), default=None)

    def _wake_blocked(self) -> None:
        for chain_id, run in list(self.storage.chains.items()):
            if run.failed_tries and not run.closed:
                self.storage.chains[chain_id] = replace(run, due_at=self.clock)

    def _queues(self) -> Sequence[str]:
        return sorted(self.storage.queues)

    def chain_ids(self) -> list[UUID]:
        return list(self.storage.chains)


def _is_candidate(user: Person | None, row: HumanTaskWrite) -> bool:
    return any(matches_candidate(user, candidate) for candidate in row.task.candidates)
