"""``WorkflowEnvironment``: runs in memory. No database, no Django."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from temporalex_django.authoring.authorization import (
    APP,
    Person,
    has_permission,
    is_authorized,
    matches_candidate,
    require_operation,
    require_permission,
    require_start,
    sender_key,
)
from temporalex_django.authoring.backend import FailedMessage
from temporalex_django.authoring.human_tasks import OpenHumanTask
from temporalex_django.authoring.redaction import VIEW_PAYLOAD, Redactor
from temporalex_django.authoring.start_api import Startable
from temporalex_django.authoring.workflow import Workflow, start_options
from temporalex_django.conf import get_settings
from temporalex_django.core.senders import Sender
from temporalex_django.engine import endings
from temporalex_django.engine.memory.storage import MemoryRunStorage
from temporalex_django.engine.memory.tables import MemoryRun
from temporalex_django.engine.report import TurnReport
from temporalex_django.engine.starts import RunStart
from temporalex_django.engine.storage import HumanTaskWrite, Outcome, TaskResult, TaskState
from temporalex_django.engine.turn import WorkflowEngine
from temporalex_django.errors import NotConfigured
from temporalex_django.testing.environment import Environment
from temporalex_django.testing.host import EPOCH, JUDGED
from temporalex_django.testing.listing import listed
from temporalex_django.testing.operator import OperatorInMemory

#: Permissions that are not called as what is done with them.
_PERMISSIONS = {"fork": "reset_instance", "edit_activity_input": "edit_activity_input", "view_payload": "view_payload"}
VIEW = f"{APP}.view_instance"


class WorkflowEnvironment(Environment):
    """Workflows in memory with a virtual clock, which starts at 2026-01-01T00:00Z and moves by ``advance`` alone.

    ``evict=True`` rebuilds each run from its history before every activation. ``deadlock_timeout`` (real seconds)
    blocks a run whose code does not come to a wait. ``admit_updates`` and ``max_pending`` let runs be driven as a
    Temporal cluster would: an update behind a busy handler is answered at once and queued, calls beyond so many
    unresolved ones are kept back.
    """

    def __init__(
        self,
        *,
        evict: bool = False,
        deadlock_timeout: float | None = None,
        admit_updates: bool = False,
        max_pending: int | None = None,
    ) -> None:
        super().__init__()
        limits = {"admit_updates": admit_updates, "max_pending": max_pending}
        self.storage = MemoryRunStorage(EPOCH)
        self.clock = EPOCH
        self.engine = WorkflowEngine(
            self.storage,
            self.storage,
            cache_size=0 if evict else 1_000_000,
            inline_atomic=False,
            resolve=self.class_of,
            strict_replay=get_settings().STRICT_REPLAY,
            deadlock_timeout=deadlock_timeout,
            limits={name: value for name, value in limits.items() if value},
            hurried=False,
            judges=lambda: self._judge,
        )

    def _judge(self, key: str, permission: str, message: str) -> bool:
        """What the user says who was given as ``by``."""
        del message
        return is_authorized(self._people[key], permission, permits=has_permission)

    def admit(
        self,
        by: Person,
        operation: str,
        *,
        what: str,
        run_id: UUID | None = None,
        message: str | None = None,
        activity: str | None = None,
    ) -> None:
        del run_id, message, activity  # there is no access policy without Django
        if operation not in JUDGED:
            require_permission(by, _PERMISSIONS.get(operation, f"{operation}_instance"), action=f"{what} runs")

    def _admit_start(self, by: Person | None, workflow: type[Startable]) -> None:
        require_start(by, workflow)

    def view(self, by: Person, chain_id: UUID, run_id: UUID) -> Redactor:
        require_operation(by, "view", action="look at")
        facts = self.row(run_id).facts
        code = self.class_of(chain_id, facts.workflow, facts.version)
        return Redactor(may_see_payloads=has_permission(by, VIEW_PAYLOAD), redacted_paths=code.redacted)

    def keep_claims(self, by: Person, chain_id: UUID, event: str, *, step: str | None) -> None:
        """Nobody claims anything: there is no face to do it with."""

    def _tell(self, report: TurnReport) -> None:
        """There are no signals without Django."""

    def _tell_of_attempt(self, task: TaskState, result: TaskResult | None = None) -> None:
        """There are no signals without Django."""

    def _failed_messages(self, chain_id: UUID) -> list[FailedMessage]:
        found = []
        for kept in self.storage.failed_messages(chain_id):
            assert kept.outcome is not None
            failure = kept.outcome.value
            found.append(
                FailedMessage(
                    id=str(kept.message.request_id),
                    name=kept.message.name,
                    type=failure["type"],
                    message=failure["message"],
                )
            )
        return found

    def _subject(self, workflow: type[Startable], subject: Any) -> Any:
        raise NotConfigured(
            f"runs in memory have no subject, so {workflow.name} cannot have one: use DjangoEnvironment"
        )

    def _copy_subject(self, chain_id: UUID, run_id: UUID) -> None:
        """Runs in memory have none."""

    def _insert(
        self,
        cls: type[Workflow],
        workflow_id: str,
        args: Any,
        seed: int,
        snapshot: dict[str, Any] | None = None,
        **labels: Any,
    ) -> UUID:
        options = {**start_options(cls), **labels}
        start = RunStart(workflow_id=workflow_id, args=args, seed=seed, snapshot=snapshot, **options)
        return self.storage.start(start)

    def _chain_of(self, ref: str, workflow: str | None = None) -> UUID | None:
        return self.storage.chain_of(ref, workflow=workflow)

    def _listed(self, workflow: str, filters: dict[str, Any], by: Person | None) -> Iterator[tuple[str, UUID]]:
        del by  # he may see all of them, or none
        return listed(self.storage, workflow, filters)

    def run_ids(self, chain_id: UUID) -> list[UUID]:
        return list(self.storage.run_ids[chain_id])

    def row(self, run_id: UUID) -> MemoryRun:
        return self.storage.runs[run_id]

    def _send(
        self, chain_id: UUID, kind: str, name: str, body: Any, request_id: str | None, sender: Sender | None
    ) -> int:
        return self.storage.send(chain_id, kind, name, body, request_id=request_id, sender=sender)

    def outcome(self, message_id: int) -> Outcome | None:
        kept = self.storage.messages.get(message_id)
        return kept.outcome if kept is not None else None

    def update_outcome(self, chain_id: UUID, update_id: str) -> Outcome | None:
        number = self.storage.number_of(chain_id, update_id)
        return None if number is None else self.outcome(number)

    def human_tasks(self, run_id: UUID, *, by: Person | None = None) -> list[OpenHumanTask]:
        sees = by is None or has_permission(by, VIEW)
        rows = (
            one
            for one in self.storage.human_tasks.values()
            if one.run_id == run_id and (sees or any(matches_candidate(by, word) for word in one.task.candidates))
        )
        found = [self._as_seen(one, by) for one in rows]
        return sorted(found, key=lambda task: (task.opened_at, task.key))

    def _as_seen(self, one: HumanTaskWrite, by: Person | None) -> OpenHumanTask:
        """The title and what it shows are for the people whom it asks, and for those who may see payloads."""
        task = OpenHumanTask.from_state(one.task, str(one.id))
        if by is None or any(matches_candidate(by, word) for word in one.task.candidates):
            return task
        view = self.view(by, one.chain_id, one.run_id)
        return replace(
            task,
            title=view.redact_text(task.title),
            shows=None if task.shows is None else view.redact_payload(task.shows),
        )

    def admitted(self, task: OpenHumanTask, user: Person) -> dict[str, Any]:
        any(matches_candidate(user, word) for word in task.asked)  # raises where that cannot be known
        return {"by": str(user), "by_key": sender_key(user)}

    def inbox(self, user: Person) -> list[OpenHumanTask]:
        rows = [one for one in self.storage.human_tasks.values() if not one.task.ending]
        mine = (one for one in rows if sender_key(user) not in one.task.barred)
        found = [one for one in mine if any(matches_candidate(user, word) for word in one.task.candidates)]
        found.sort(key=lambda one: (one.task.due_at or datetime.max.replace(tzinfo=UTC), one.task.opened_at, one.id))
        return [OpenHumanTask.from_state(one.task, str(one.id)) for one in found]

    def _reopen(self, chain_id: UUID, start: RunStart) -> bool:
        return self.storage.reopen(chain_id, start)

    def _close(self, chain_id: UUID, status: str, reason: str) -> None:
        with self.storage.transaction():
            run = self.storage.claim(limit=1, queues=(), chains=[chain_id])[0]
            self.engine.cache.take(run.run_id)
            facts = self.storage.facts([run.run_id])[run.run_id]
            self.storage.write([endings.ENDINGS[status](run, reason=reason, now=self.clock, facts=facts)])
        self.errors.pop(run.run_id, None)

    def _steer(self, chain_id: UUID, name: str, by: Person | None, given: dict[str, Any]) -> None:
        OperatorInMemory(self, chain_id, by).do(name, **given)

    def _set_clock(self, now: datetime) -> None:
        self.storage.clock = now

    def _next_due(self) -> datetime | None:
        times = [run.due_at for run in self.storage.chains.values()]
        held = {task.id for task in self._held}
        for task in self.storage.open_tasks.values():
            if task.id not in held:
                times += [self.storage.expiry(task), task.due_at if task.owner is None else None]
        return min((moment for moment in times if moment is not None), default=None)

    def _wake_blocked(self) -> None:
        for chain_id, run in list(self.storage.chains.items()):
            if run.failed_tries and not run.closed:
                self.storage.chains[chain_id] = replace(run, due_at=self.clock)

    def _queues(self) -> Sequence[str]:
        return sorted(self.storage.queues)

    def chain_ids(self) -> list[UUID]:
        return list(self.storage.chains)
