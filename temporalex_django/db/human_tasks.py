"""Rows of human tasks, as turns write them: for runs that ask people alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from temporalex_django.conf import codec
from temporalex_django.core.human_tasks import FormSpec, HumanTaskSpec, HumanTaskState, question
from temporalex_django.core.names import MAX_LENGTH
from temporalex_django.engine.storage import HumanTaskWrite, RunWrite
from temporalex_django.models import Candidate, Ending, HumanTask

#: What a turn may change; what people do with a task before they decide is theirs.
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
    """Store what turns did to human tasks, in the open transaction. Locks their rows.

    Those of runs that somebody closed from outside are closed, and added to what was written.
    """
    for write in writes:
        if write.is_closed_externally:
            write.human_tasks += _open_of(write, alias=alias)
    found = [one for write in writes for one in write.human_tasks]
    if not found:
        return
    _let_claims_lapse([one for one in found if not one.task.ending and "opened" not in one.changes], alias=alias)
    HumanTask.objects.using(alias).bulk_create(
        [_row(one) for one in found], update_conflicts=True, unique_fields=["id"], update_fields=_CHANGES
    )
    candidates = Candidate.objects.using(alias)
    if closed := [one.id for one in found if one.task.ending]:
        candidates.filter(task__in=closed).delete()
    _forget_others([one for one in found if not one.task.ending and "opened" not in one.changes], alias=alias)
    new = [candidate for one in found if not one.task.ending for candidate in _candidates(one.id, one.task)]
    candidates.bulk_create(new, ignore_conflicts=True)


def _let_claims_lapse(found: Sequence[HumanTaskWrite], *, alias: str) -> None:
    """End claims and delegations of open tasks whose question has changed: they were made for the old one."""
    questions = {one.id: one.task.spec.question for one in found}
    if not questions:
        return
    rows = HumanTask.objects.using(alias).filter(pk__in=questions)
    changed = [row.pk for row in rows if question_of(row) != questions[row.pk]]
    if changed:
        rows.filter(pk__in=changed).update(claimed_by_key="", claimed_by_name="", claimed_until=None, delegated=[])


def question_of(row: HumanTask) -> dict[str, Any]:
    """The question of a stored task, as ``Asking.question`` has it."""
    form = None if row.form is None else {"name": row.form["name"], "digest": row.form["digest"]}
    shows = None if row.shows is None else codec().decode(bytes(row.shows))
    return question(row.title, candidates=row.declared, outcomes=row.outcomes, form=form, shows=shows)


def _forget_others(found: Sequence[HumanTaskWrite], *, alias: str) -> None:
    """Of open tasks that were there before: whom the code asked then and does not ask now. Handed on, they stay."""
    tasks = {one.id: one.task for one in found}
    if not tasks:
        return
    handed_on = HumanTask.objects.using(alias).filter(pk__in=tasks).values_list("pk", "delegated")
    for pk, delegated in handed_on:
        kept = {one.who for one in _candidates(pk, tasks[pk])} | {f"user:{one['to']}" for one in delegated}
        Candidate.objects.using(alias).filter(task=pk).exclude(who__in=kept).delete()


def delete_human_tasks(run: UUID, *, alias: str) -> None:
    """With the run that they are of."""
    HumanTask.objects.using(alias).filter(run_id=run).delete()


def _row(one: HumanTaskWrite) -> HumanTask:
    task, asking = one.task, one.task.spec
    return HumanTask(
        id=one.id,
        run_id=one.run_id,
        chain_id=one.chain_id,
        workflow=one.workflow,
        workflow_id=one.workflow_id,
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
        decided_by_name="" if task.decided_by is None else _line(task.decided_by.name),
        decided_for=_line(task.decided_for),
        comment=task.comment,
    )


def _line(name: str) -> str:
    """A name as the column has it; code may call people what it likes."""
    return name[:MAX_LENGTH].replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def _candidates(task_id: UUID, task: HumanTaskState) -> list[Candidate]:
    may = [Candidate(task_id=task_id, who=word, barred=False) for word in task.candidates]
    return may + [Candidate(task_id=task_id, who=f"key:{key}", barred=True) for key in task.barred]


def _open_of(write: RunWrite, *, alias: str) -> list[HumanTaskWrite]:
    """The open human tasks of a run that is closed now, as closed."""
    known: Collection[UUID] = {one.id for one in write.human_tasks}
    rows = HumanTask.objects.using(alias).open().filter(run_id=write.run.run_id).exclude(pk__in=known)
    at = write.events[-1].at
    return [
        HumanTaskWrite(
            run_id=row.run_id,
            chain_id=row.chain_id,
            workflow=row.workflow,
            workflow_id=row.workflow_id,
            changes=("closed",),
            task=_state(row).as_closed(Ending.RUN_CLOSED.value, at),
        )
        for row in rows
    ]


def _state(row: HumanTask) -> HumanTaskState:
    """As far as it is stored."""
    form = None if row.form is None else FormSpec(**row.form)
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
