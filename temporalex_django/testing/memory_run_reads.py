"""The operations on one run in memory that only read it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from temporalex_django.authoring.authorization import (
    Person,
    check_person,
    has_permission,
    require_permission,
)
from temporalex_django.authoring.backend import MOST_ACTIVITIES, Description
from temporalex_django.authoring.human_tasks import (
    OpenHumanTask,
)
from temporalex_django.authoring.redaction import UNREDACTED, VIEW_PAYLOAD, Redactor
from temporalex_django.authoring.requests import RunAddress
from temporalex_django.authoring.run_columns import describe_columns
from temporalex_django.authoring.workflow import (
    Workflow,
    decode_result,
)
from temporalex_django.core.history.events import CLOSED_STATUSES, HistoryEvent
from temporalex_django.core.names import check_wait
from temporalex_django.core.payloads.codec import deep_copy
from temporalex_django.engine.activity_policy import open_run_text, run_result
from temporalex_django.engine.refusals import nothing_published_error, start_wait
from temporalex_django.errors import ResultTimeout
from temporalex_django.graph import instance as snapshot

#: Permissions by operation, where the name is not ``<operation>_instance``.
_PERMISSIONS = {"fork": "reset_instance", "edit_activity_input": "edit_activity_input", "view_payload": "view_payload"}


class MemoryRunReads:
    """The reads of one run in memory. Each method performs the read of its name of ``WorkflowHandle``."""

    def __init__(self, env: Any, address: RunAddress) -> None:
        assert address.chain_id is not None
        self._env = env
        self._address = address
        self._chain_id = address.chain_id
        self._id = address.id

    # -- reading -------------------------------------------------------------------------------------------------------

    @property
    def _selected_run_id(self) -> UUID:
        return self._address.run_id or self._env.run_ids(self._chain_id)[-1]

    @property
    def _newest_run(self) -> Any:
        return self._env.row(self._env.run_ids(self._chain_id)[-1])

    @property
    def _selected_run(self) -> Any:
        return self._env.row(self._selected_run_id)

    def _future_start(self, row: Any) -> datetime | None:
        """Return the time at which the run of a row begins, if that is later than now."""
        starts_at: datetime | None = row.facts.starts_at
        if row.status != "pending" or starts_at is None or starts_at <= self._env.clock:
            return None
        return starts_at

    def _code(self, record: Any) -> type[Workflow]:
        code: type[Workflow] = self._env.class_of(self._chain_id, record.workflow, record.version)
        return code

    @property
    def newest_class(self) -> type[Workflow]:
        """The class of the newest run of the chain, which takes its messages."""
        return self._code(self._newest_run.facts)

    def run_id(self, *, by: Person | None = None) -> str:
        del by
        return str(self._selected_run_id)

    def run_ids(self, *, by: Person | None = None) -> list[str]:
        del by
        return [str(run_id) for run_id in self._env.run_ids(self._chain_id)]

    def human_tasks(self, *, by: Person | None) -> list[OpenHumanTask]:
        return [task for task in self._human_tasks(check_person(by)) if not task.happened]

    def _human_tasks(self, by: Person | None) -> list[OpenHumanTask]:
        return list(self._env.human_tasks(self._selected_run_id, by=by))

    def instance(self, *, by: Person | None) -> Any:
        redactor, row = self._redactor(by).require_payloads(by), self._selected_run
        instance = self._env.projections.get(row.facts.run_id, self._code(row.facts)).instance
        return instance if redactor is UNREDACTED else snapshot.redact_instance(instance, redactor)

    def query(self, *, query: str, args: Any, fresh: bool, by: Person | None) -> Any:
        """Return the answer to a query, computed from the published state.

        ``fresh`` has no effect, because no message is ever unread here.
        """
        del fresh
        user = self._require_permitted(by, "query")
        row = self._selected_run
        if (starts_at := self._future_start(row)) is not None:
            raise nothing_published_error(row.facts.workflow, row.facts.workflow_id, starts_at=starts_at)
        published = row.published
        runs = self._env.run_ids(self._chain_id)
        if self._address.run_id is None and published is None and row.status == "pending" and len(runs) > 1:
            previous_row = self._env.row(runs[-2])
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
        row = self._newest_run
        record = row.facts
        blocked = self._env.errors.get(self._selected_run_id)
        if row.status not in CLOSED_STATUSES and not blocked:
            description = self._describe(self._env.run_ids(self._chain_id)[-1], redactor)
            reason = open_run_text(description)
            # No worker and no wall clock: only the test lets time pass.
            waits_for_time = any(wait["kind"] == "timer" for wait in row.waits)
            retries = any(activity.next_try is not None for activity in description.activities)
            advice = "; env.advance(...) lets time pass" if waits_for_time or retries else ""
            raise ResultTimeout(f"{record.workflow} {record.workflow_id} has no result yet: it is {reason}{advice}")
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
            for event in self._selected_run.events
        ]

    def describe(self, *, by: Person | None) -> Description:
        return self._describe(self._selected_run_id, self._redactor(by))

    def _describe(self, run_id: UUID, redactor: Redactor) -> Description:
        env, row = self._env, self._env.row(run_id)
        open_activities = env._tasks.open_activities(run_id, limit=MOST_ACTIVITIES)  # noqa: SLF001 - of the same package
        waiting = [*row.waiting_for]
        if (starts_at := self._future_start(row)) is not None:
            waiting.append(start_wait(starts_at))
        return Description(
            **describe_columns(row.column, redactor),
            waiting_for=redactor.redact_waiting_for(waiting, row.waits),
            activities=[redactor.redact_activity(activity) for activity in open_activities],
            failed_messages=[
                redactor.redact_failed_message(failed)
                for failed in env._failed_messages(self._chain_id)  # noqa: SLF001 - of the same package
            ],
        )

    def _redactor(self, by: Person | None) -> Redactor:
        """Return the redactor for the user ``by``. Raises ``ActionNotPermitted`` if the user may not view runs."""
        user = check_person(by)
        if user is None:
            return UNREDACTED
        require_operation_permitted(user, "view")
        code = self._code(self._selected_run.facts)
        return Redactor(may_see_payloads=has_permission(user, VIEW_PAYLOAD), redacted_paths=code.redacted)

    def _require_permitted(self, by: Person | None, operation: str) -> Person | None:
        """Return the user ``by`` if they may perform the operation on runs; None for code.

        Raises ``ActionNotPermitted``.
        """
        user = check_person(by)
        if user is not None:
            require_operation_permitted(user, operation)
        return user


def require_operation_permitted(by: Person, operation: str) -> None:
    """Raise ``ActionNotPermitted`` unless the person has the permission for that operation on runs."""
    require_permission(by, _PERMISSIONS.get(operation, f"{operation}_instance"), action=f"{operation} runs")
