"""Rows of human tasks (decisions that people are asked for), as the transactions that advance runs write them.

Only runs that ask people have such rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from temporalex_django.conf import codec
from temporalex_django.core.human_tasks import FormSpec, HumanTaskSpec, HumanTaskState, question
from temporalex_django.core.names import MAX_LENGTH
from temporalex_django.engine.contracts.records import HumanTaskWrite, RunWrite
from temporalex_django.models import Candidate, Ending, HumanTask

#: Columns that a turn may change. The others belong to the people who work on the task.
_CHANGES = (
    *(
        "title",
        "outcomes",
        "asked",
        "declared",
        "form",
        "shows",
        "four_eyes",
        "due_at",
        "reminders",
        "reminded_at",
        "escalated_at",
    ),
    *("closed_at", "ending", "outcome", "decided_by_key", "decided_by_name", "decided_for", "comment"),
)


def write_human_tasks(writes: Sequence[RunWrite], *, alias: str) -> None:
    """Store the changes of turns to human tasks, in the open transaction. Locks their rows.

    The open tasks of runs that were closed from outside are closed, too; they are added to ``human_tasks`` of the
    writes.
    """
    for write in writes:
        if write.is_closed_externally:
            written_ids = {task_write.id for task_write in write.human_tasks}
            write.human_tasks += closed_with_run(
                write.run.run_id, at=write.events[-1].at, except_for=written_ids, alias=alias
            )
    task_writes = [task_write for write in writes for task_write in write.human_tasks]
    if not task_writes:
        return
    still_open = [task_write for task_write in task_writes if not task_write.task.ending]
    existing = [task_write for task_write in still_open if "opened" not in task_write.changes]
    _expire_claims(existing, alias=alias)
    HumanTask.objects.using(alias).bulk_create(
        [_task_row(task_write) for task_write in task_writes],
        update_conflicts=True,
        unique_fields=["id"],
        update_fields=_CHANGES,
    )
    if closed := [task_write.id for task_write in task_writes if task_write.task.ending]:
        Candidate.objects.using(alias).filter(task__in=closed).delete()
    _delete_stale_candidates(existing, alias=alias)
    _insert_candidates(still_open, alias=alias)


def _insert_candidates(task_writes: Sequence[HumanTaskWrite], *, alias: str) -> None:
    """Insert the rows that name who may decide these tasks and who may not; rows that exist stay."""
    new = [candidate for task_write in task_writes for candidate in _candidate_rows(task_write.id, task_write.task)]
    Candidate.objects.using(alias).bulk_create(new, ignore_conflicts=True)


def _expire_claims(task_writes: Sequence[HumanTaskWrite], *, alias: str) -> None:
    """End claims and delegations of open tasks whose question has changed: they were made for the old question.

    A claim reserves a task for one person. See decision 47.
    """
    questions = {task_write.id: task_write.task.spec.question for task_write in task_writes}
    if not questions:
        return
    rows = HumanTask.objects.using(alias).filter(pk__in=questions)
    changed = [row.pk for row in rows if question_of(row) != questions[row.pk]]
    if changed:
        rows.filter(pk__in=changed).update(claimed_by_key="", claimed_by_name="", claimed_until=None, delegated=[])


def question_of(row: HumanTask) -> dict[str, Any]:
    """Return the question of a stored human task as plain data, to compare it with ``HumanTaskSpec.question``.

    It has the title, the candidates, the outcomes, the form, and a digest of the data that people decide about. If both
    differ, the code asks another question by now.
    """
    form = None
    if row.form is not None:
        form = {"name": row.form["name"], "digest": row.form["digest"]}
    shows = None
    if row.shows is not None:
        shows = codec().decode(bytes(row.shows))
    return question(row.title, candidates=row.declared, outcomes=row.outcomes, form=form, shows=shows)


def _delete_stale_candidates(task_writes: Sequence[HumanTaskWrite], *, alias: str) -> None:
    """Delete the rows of people, groups and permissions whom the code no longer asks to decide these human tasks.

    People to whom a task was delegated stay candidates.
    """
    tasks = {entry.id: entry.task for entry in task_writes}
    if not tasks:
        return
    delegations = HumanTask.objects.using(alias).filter(pk__in=tasks).values_list("pk", "delegated")
    for pk, delegated in delegations:
        principals = {entry.who for entry in _candidate_rows(pk, tasks[pk])} | {
            f"user:{entry['to']}" for entry in delegated
        }
        Candidate.objects.using(alias).filter(task=pk).exclude(who__in=principals).delete()


def delete_human_tasks(run: UUID, *, alias: str) -> None:
    """Delete the human tasks of a run that is being deleted."""
    HumanTask.objects.using(alias).filter(run_id=run).delete()


def _task_row(task_write: HumanTaskWrite) -> HumanTask:
    task, asking = task_write.task, task_write.task.spec
    return HumanTask(
        id=task_write.id,
        run_id=task_write.run_id,
        chain_id=task_write.chain_id,
        workflow=task_write.workflow,
        workflow_id=task_write.workflow_id,
        key=task.key,
        title=asking.title,
        outcomes=[*asking.outcomes],
        asked=[*task.candidates],
        declared=[*asking.candidates],
        form=None if asking.form is None else asking.form.as_dict(),
        shows=None if asking.shows is None else codec().encode(asking.shows),
        four_eyes=asking.four_eyes,
        requested_by_key="" if task.requested_by is None else task.requested_by.key,
        requested_by_name="" if task.requested_by is None else task.requested_by.name,
        opened_at=task.opened_at,
        due_at=task.due_at,
        reminders=task.reminders,
        reminded_at=task.reminded_at,
        escalated_at=task.escalated_at,
        closed_at=task.closed_at,
        ending=task.ending,
        outcome=task.outcome,
        decided_by_key="" if task.decided_by is None else task.decided_by.key,
        decided_by_name="" if task.decided_by is None else _column_name(task.decided_by.name),
        decided_for=_column_name(task.decided_for),
        comment=task.comment,
    )


def _column_name(name: str) -> str:
    """Return the name as its column can store it: shortened, without NUL and invalid characters."""
    return name[:MAX_LENGTH].replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def _candidate_rows(task_id: UUID, task: HumanTaskState) -> list[Candidate]:
    """Return the rows that name who may decide a task (its candidates) and who may not (excluded users)."""
    may = [Candidate(task_id=task_id, who=word, barred=False) for word in task.candidates]
    return may + [Candidate(task_id=task_id, who=f"key:{key}", barred=True) for key in task.barred]


def closed_with_run(run: UUID, *, at: datetime, except_for: Collection[UUID], alias: str) -> list[HumanTaskWrite]:
    """Return the writes that close the open human tasks of a run that was closed from outside, such as terminated.

    ``at`` is the time of its end. Tasks whose ids are in ``except_for`` are left out.
    """
    rows = HumanTask.objects.using(alias).open().filter(run_id=run).exclude(pk__in=except_for)
    return [
        HumanTaskWrite(
            run_id=row.run_id,
            chain_id=row.chain_id,
            workflow=row.workflow,
            workflow_id=row.workflow_id,
            changes=("closed",),
            task=_task_state(row).as_closed(Ending.RUN_CLOSED.value, at),
        )
        for row in rows
    ]


def _task_state(row: HumanTask) -> HumanTaskState:
    """Return the state of a human task, as far as its row has it; the other fields have their defaults."""
    form = None
    if row.form is not None:
        form = FormSpec(**row.form)
    outcomes = tuple(row.outcomes)
    asking = HumanTaskSpec(title=row.title, label=row.title, outcomes=outcomes, four_eyes=row.four_eyes, form=form)
    return HumanTaskState(
        key=row.key,
        spec=asking,
        candidates=tuple(row.asked),
        opened_at=row.opened_at,
        due_at=row.due_at,
        reminders=row.reminders,
        reminded_at=row.reminded_at,
        escalated_at=row.escalated_at,
    )
