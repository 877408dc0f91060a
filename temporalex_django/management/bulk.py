"""Perform one operation on many runs. Workers process the runs, each in a transaction of its own.

`bulk ACTION` with filters or run ids starts a job. `bulk show` lists jobs and their failures, `bulk stop` stops a job,
and `bulk resume` continues it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError
from django.db.models import QuerySet

from temporalex_django.access import Operation, require_access, runs_for, runs_or_all
from temporalex_django.authoring.authorization import APP
from temporalex_django.conf import get_settings
from temporalex_django.core.names import counted
from temporalex_django.management import arguments as command_arguments
from temporalex_django.management import outputs as printing
from temporalex_django.management.arguments import (
    ActorOption,
    Argument,
    FilterOptions,
    JsonOption,
    Option,
    PayloadOption,
    ReasonOption,
    YesOptionIfDestructive,
    apply_filters,
    subcommand,
)
from temporalex_django.management.run_commands import ActionInputs
from temporalex_django.models import BulkItem, BulkJob
from temporalex_django.operations.base import Actor, storage
from temporalex_django.operations.bulk import ResumeBulk, StartBulk, StopBulk, count_text, jobs_for, redact_items
from temporalex_django.operations.fleet.stats import live_workers
from temporalex_django.operations.registry import STEERING
from temporalex_django.operations.runs.operator_action import OperatorRunAction

_MAX_ROWS = 50
_POLL_SECONDS = 0.2
_VIEW_OPERATION = Operation(action="view", permission=f"{APP}.{StartBulk.permission}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNotDone:
    """A run of a job for which the operation failed.

    ``part`` is the command number of its activity or timer, if the operation is about one. ``already_done`` is True if
    nothing was left to do.
    """

    run_id: str
    part: int | None
    code: str
    message: str
    already_done: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPrinted:
    """A bulk job: one operation on many runs, with its progress.

    ``failed`` counts the runs for which it was refused; for ``already_done`` of them because nothing was left to do.
    ``problems`` are the first 50 of them.
    """

    id: str
    action: str
    state: str
    total: int
    done: int
    failed: int
    already_done: int
    left: int
    by: str
    reason: str
    created_at: datetime
    finished_at: datetime | None
    problems: Sequence[RunNotDone]


@subcommand("bulk", output=JobPrinted | Sequence[JobPrinted])
def bulk() -> None:
    """Perform one operation on many runs. Workers process the runs, each in a transaction of its own.

    `bulk ACTION` with filters or run ids starts a job. `bulk show` lists jobs and their failures, `bulk stop` stops
    a job, and `bulk resume` continues it.
    """


RunsArgument = Annotated[list[str], Argument("Run ids of the runs.", "RUN_ID")]
AllOption = Annotated[bool, Option("Select all runs, without a filter.")]
WaitOption = Annotated[bool, Option("Wait until workers have processed the job; exit with status 1 if a run failed.")]
TokenOption = Annotated[
    str | None, Option("Token of the job: if you start it again with the same token, you get the same job.", "TEXT")
]


def _start(
    command: BaseCommand,
    *,
    action: type[OperatorRunAction[Any]],
    runs: RunsArgument,
    all: AllOption,
    wait: WaitOption,
    token: TokenOption,
    filters: FilterOptions,
    reason: ReasonOption = "",
    inputs: Annotated[dict[str, Any], ActionInputs(with_selectors=True)],
    yes: YesOptionIfDestructive = False,
    actor: ActorOption,
    json: JsonOption,
) -> None:
    """Start a job that performs an operation, after a confirmation if it cannot be undone, and print the job.

    Its runs, at most ``BULK_LIMIT``, are stored in one transaction.
    """
    selected_runs = _select_runs(runs, filters, actor, select_all=all)
    if action.destructive:
        question = f"{action.description()} Continue for {_count_text(selected_runs)}?"
        command_arguments.confirm(command, question, yes=yes)
    # Filters such as ``--cause`` also select the activities, unless an input of the action says otherwise.
    inputs = {**action.selection_from(filters), **inputs}
    job = StartBulk(action.name, runs=selected_runs, reason=reason, token=token, by=actor, **inputs).execute()
    _finish(command, job, actor, wait=wait, json=json)


for _action in STEERING.values():
    bulk.word(_action.name, description=_action.description(), summary=str(_action.summary), action=_action)(_start)


@bulk.word("signal")
def send_signal(
    command: BaseCommand,
    *,
    signal: Annotated[str, Option("Name of the signal.", "NAME", required=True)],
    payload: PayloadOption,
    runs: RunsArgument,
    all: AllOption,
    wait: WaitOption,
    token: TokenOption,
    filters: FilterOptions,
    reason: ReasonOption = "",
    actor: ActorOption,
    json: JsonOption,
) -> None:
    """Send a signal to each run."""
    selected_runs = _select_runs(runs, filters, actor, select_all=all)
    job = StartBulk(
        "signal", runs=selected_runs, reason=reason, token=token, by=actor, signal=signal, payload=payload
    ).execute()
    _finish(command, job, actor, wait=wait, json=json)


@bulk.word("show")
def show(
    command: BaseCommand,
    *,
    job: Annotated[str | None, Argument("Id of the job.", "JOB")],
    actor: ActorOption,
    json: JsonOption,
) -> None:
    """Show a job and its failed runs; without JOB, list the latest jobs."""
    if job is None:
        _print_list(command, actor, json=json)
    else:
        _print_job(command, _find_job(job, actor), actor, json=json)


JobArgument = Annotated[str, Argument("Id of the job.", "JOB")]


@bulk.word("stop")
def stop(
    command: BaseCommand, *, job: JobArgument, reason: ReasonOption = "", actor: ActorOption, json: JsonOption
) -> None:
    """Stop a job. Processed runs stay as they are; the others wait until you resume the job."""
    _print_job(command, StopBulk(job, reason=reason, by=actor).execute(), actor, json=json)


@bulk.word("resume")
def resume(
    command: BaseCommand, *, job: JobArgument, reason: ReasonOption = "", actor: ActorOption, json: JsonOption
) -> None:
    """Resume a stopped job with its remaining runs."""
    _print_job(command, ResumeBulk(job, reason=reason, by=actor).execute(), actor, json=json)


def _select_runs(run_ids: list[str], filters: Mapping[str, str], actor: Actor, *, select_all: bool) -> Any:
    """Return run ids or a queryset. Raises ``CommandError`` unless there is exactly one selection."""
    # Exactly one of the three: a filter that was lost in a script must not select every run.
    if bool(filters) + bool(run_ids) + select_all != 1:
        raise printing.usage_error(
            "the command needs exactly one selection of runs", "Give filters, run ids, or --all."
        )
    if run_ids:
        return run_ids
    alias = storage().alias
    # The right to look at runs is checked by the action, for a selection by filters.
    return apply_filters(runs_or_all(runs_for(actor.user, alias=alias), alias=alias), filters)


def _finish(command: BaseCommand, job: BulkJob, actor: Actor, *, wait: bool, json: bool) -> None:
    """Print a job that was started, with ``wait`` when it is done.

    Raises ``CommandError`` (exit status 1) if the operation failed for a run that was waited for.
    """
    if wait:
        job = _wait_for_job(command, job)
    _print_job(command, job, actor, json=json)
    if wait and job.not_possible:
        next_step = f"To see why, run: manage.py temporalex bulk show {job.pk}"
        raise CommandError(
            printing.with_next_step(f"{job.not_possible} of {count_text(job.action, job.total)} failed", next_step),
            returncode=printing.FINDINGS,
        )


def _count_text(runs: Any) -> str:
    """Return the number in words, such as "5 runs"; a queryset is counted up to ``BULK_LIMIT``."""
    limit = get_settings().BULK_LIMIT
    count = len(runs) if isinstance(runs, list) else runs.order_by()[: limit + 1].count()
    return counted(count, "run", "runs") if count <= limit else f"more than {counted(limit, 'run', 'runs')}"


def _find_job(ref: str, actor: Actor) -> BulkJob:
    try:
        job = _visible_jobs(actor).filter(pk=UUID(ref)).first()
    except ValueError:
        job = None
    if job is None:
        text = printing.with_next_step(
            f"there is no bulk job {printing.escape(ref)}", "To list the jobs, run: manage.py temporalex bulk show"
        )
        raise CommandError(text, returncode=printing.NOT_FOUND)
    return job


def _visible_jobs(actor: Actor) -> QuerySet[BulkJob]:
    alias = storage().alias
    # Own jobs need the permission as well, as over REST.
    require_access(actor.user, _VIEW_OPERATION, alias=alias)
    return jobs_for(actor.user, alias=alias)


def _wait_for_job(command: BaseCommand, job: BulkJob) -> BulkJob:
    """Wait until the job is done or stopped. Raises ``CommandError`` if no worker is alive."""
    with printing.progress(command) as report:
        while True:
            job = BulkJob.objects.using(storage().alias).get(pk=job.pk)
            report(job.total - job.left, job.total, f", {job.not_possible:,} failed")
            if job.state != BulkJob.State.RUNNING:
                return job
            # Workers may all have stopped meanwhile, and then the job would never end.
            if not live_workers(alias=storage().alias).workflow_versions:
                text = f"no live worker can process the job {job.pk}, so it is waiting"
                raise CommandError(
                    printing.with_next_step(text, "Start one: manage.py temporalex worker"),
                    returncode=printing.TRY_AGAIN,
                )
            time.sleep(_POLL_SECONDS)


def _print_list(command: BaseCommand, actor: Actor, *, json: bool) -> None:
    jobs = [_job_output(job, ()) for job in _visible_jobs(actor).order_by("-pk")[:_MAX_ROWS]]
    if json:
        printing.print_json(command, jobs)
    elif not jobs:
        printing.write_line(command, "no bulk jobs")
    else:
        cells = [
            (
                job_output.id,
                job_output.action,
                job_output.state,
                f"{job_output.done:,}",
                f"{job_output.already_done:,}",
                f"{job_output.failed - job_output.already_done:,}",
                f"{job_output.left:,}",
            )
            for job_output in jobs
        ]
        printing.print_table(command, ("JOB", "ACTION", "STATE", "DONE", "ALREADY DONE", "FAILED", "LEFT"), cells)


def _job_output(job: BulkJob, failed_items: Sequence[BulkItem]) -> JobPrinted:
    return JobPrinted(
        id=str(job.pk),
        action=job.action,
        state=job.state,
        total=job.total,
        done=job.done,
        failed=job.failed,
        already_done=job.already_done,
        left=job.left,
        by=job.actor_name,
        reason=job.reason,
        created_at=job.created_at,
        finished_at=job.finished_at,
        problems=[
            RunNotDone(
                run_id=str(bulk_item.run_id),
                part=bulk_item.part,
                code=bulk_item.code,
                message=bulk_item.message,
                already_done=bulk_item.already_done,
            )
            for bulk_item in failed_items
        ],
    )


def _item_label(problem: RunNotDone) -> str:
    if problem.part is None:
        return problem.run_id
    return f"{problem.run_id} #{problem.part}"


def _print_job(command: BaseCommand, job: BulkJob, actor: Actor, *, json: bool) -> None:
    alias = storage().alias
    failed_items = (
        BulkItem.objects.using(alias).filter(job=job.pk, outcome="failed").order_by("already_done", "pk")[:_MAX_ROWS]
    )
    # Messages of failed runs may quote payloads.
    job_output = _job_output(job, redact_items(failed_items, actor.user, alias=alias))
    if json:
        printing.print_json(command, job_output)
        return
    counts = f"{job_output.done:,} done, {job.not_possible:,} failed, {job_output.left:,} left"
    if job_output.already_done:
        counts = f"{job_output.done:,} done, {job_output.already_done:,} already done, {job.not_possible:,} failed, {job_output.left:,} left"
    printing.write_line(
        command,
        f"bulk job {job_output.id}: {job_output.action} of {count_text(job_output.action, job_output.total)}, {job_output.state}: {counts}",
    )
    if job_output.problems:
        printing.print_table(
            command,
            ("RUN", "REASON"),
            [(_item_label(problem), problem.message or problem.code) for problem in job_output.problems],
        )
