"""Perform one operation on many runs. Workers process the runs, each in a transaction of its own.

`bulk ACTION` with filters or run ids starts a job. `bulk show` lists jobs and their failures, `bulk stop` stops a job,
and `bulk resume` continues it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import QuerySet

from temporalex_django.access import Operation, require_access, runs_for, runs_or_all
from temporalex_django.authoring.authorization import APP
from temporalex_django.conf import get_settings
from temporalex_django.core.names import counted
from temporalex_django.management import arguments as command_arguments
from temporalex_django.management import outputs as printing
from temporalex_django.management.arguments import add_filters, apply_filters, filter_names, filters_of, parse_json
from temporalex_django.management.run_commands import (
    add_input_arguments,
    add_selector_arguments,
    input_values,
)
from temporalex_django.models import BulkItem, BulkJob
from temporalex_django.operations.base import Actor, storage
from temporalex_django.operations.bulk import ResumeBulk, StartBulk, StopBulk, count_text, jobs_for, redact_items
from temporalex_django.operations.fleet.stats import live_workers
from temporalex_django.operations.registry import STEERING
from temporalex_django.operations.runs.operator_action import OperatorRunAction

_ACTIONS: dict[str, type[OperatorRunAction[Any]]] = {**STEERING}
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


def _add_start_arguments(parser: CommandParser, action: type[OperatorRunAction[Any]] | None) -> None:
    """Add the arguments that select the runs, and the inputs of ``action``; None stands for a signal."""
    parser.add_argument("runs", nargs="*", metavar="RUN_ID", help="Run ids of the runs.")
    parser.add_argument("--all", action="store_true", help="Select all runs, without a filter.")
    parser.add_argument(
        "--wait",
        action="store_true",
        help="Wait until workers have processed the job; exit with status 1 if a run failed.",
    )
    parser.add_argument(
        "--token",
        metavar="TEXT",
        help="Token of the job: if you start it again with the same token, you get the same job.",
    )
    add_filters(parser)
    if action is None:
        parser.add_argument("--reason", default="", metavar="TEXT", help="Reason, recorded in the audit log.")
    else:
        add_input_arguments(parser, action)
        add_selector_arguments(parser, action, excluded=filter_names())
        if action.destructive:
            command_arguments.add_yes_argument(parser)
    command_arguments.add_user_argument(parser)
    printing.add_json_argument(parser)


class BulkCommand:
    """Perform one operation on many runs. Workers process the runs, each in a transaction of its own.

    `bulk ACTION` with filters or run ids starts a job. `bulk show` lists jobs and their failures, `bulk stop` stops
    a job, and `bulk resume` continues it.
    """

    output: ClassVar[Any] = JobPrinted | Sequence[JobPrinted]

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments of the command ``temporalex bulk`` to its parser."""
        parsers = parser.add_subparsers(
            dest="what", required=True, title="actions", metavar="ACTION", help="What to do."
        )
        for name, action in _ACTIONS.items():
            subparser = parsers.add_parser(name, description=action.description(), help=str(action.summary))
            _add_start_arguments(subparser, action)
        signal = parsers.add_parser(
            "signal", description="Send a signal to each run.", help="Send a signal to each run."
        )
        signal.add_argument("--signal", required=True, metavar="NAME", help="Name of the signal.")
        signal.add_argument(
            "--payload", metavar="JSON", help="Payload of the signal, as JSON; use - to read it from standard input."
        )
        _add_start_arguments(signal, None)
        for name, text, nargs in (
            ("show", "Show a job and its failed runs; without JOB, list the latest jobs.", "?"),
            ("stop", "Stop a job. Processed runs stay as they are; the others wait until you resume the job.", None),
            ("resume", "Resume a stopped job with its remaining runs.", None),
        ):
            subparser = parsers.add_parser(name, description=text, help=text)
            subparser.add_argument("job", metavar="JOB", nargs=nargs, help="Id of the job.")
            if name != "show":
                subparser.add_argument(
                    "--reason", default="", metavar="TEXT", help="Reason, recorded in the audit log."
                )
            command_arguments.add_user_argument(subparser)
            printing.add_json_argument(subparser)

    def handle(self, command: BaseCommand, *, what: str, as_user: str | None, json: bool, **options: Any) -> None:
        """Start a bulk job, or show, stop or resume one, and print it.

        Starting a job stores its runs, at most ``BULK_LIMIT``, in one transaction. With ``--wait``, raises
        ``CommandError`` (exit status 1) if the operation failed for a run.
        """
        actor = command_arguments.resolve_actor(as_user)
        if what == "show" and options["job"] is None:
            _print_list(command, actor, json=json)
            return
        if what == "show":
            job = _find_job(options["job"], actor)
        elif what in ("stop", "resume"):
            job = (StopBulk if what == "stop" else ResumeBulk)(
                options["job"], reason=options["reason"], by=actor
            ).execute()
        else:
            job = _start_job(command, what, actor, options)
            if options["wait"]:
                job = _wait_for_job(command, job)
        _print_job(command, job, actor, json=json)
        if options.get("wait") and job.not_possible:
            next_step = f"To see why, run: manage.py temporalex bulk show {job.pk}"
            raise CommandError(
                printing.with_next_step(f"{job.not_possible} of {count_text(job.action, job.total)} failed", next_step),
                returncode=printing.FINDINGS,
            )


def _start_job(command: BaseCommand, action_name: str, actor: Actor, options: dict[str, Any]) -> BulkJob:
    """Start the job, after a confirmation if it cannot be undone. Raises ``CommandError`` without one selection."""
    filters = filters_of(options)
    # Exactly one of the three: a filter that was lost in a script must not select every run.
    if bool(filters) + bool(options["runs"]) + options["all"] != 1:
        raise printing.usage_error(
            "the command needs exactly one selection of runs", "Give filters, run ids, or --all."
        )
    runs: Any = options["runs"]
    if not runs:
        alias = storage().alias
        # The right to look at runs is checked by the action, for a selection by filters.
        runs = apply_filters(runs_or_all(runs_for(actor.user, alias=alias), alias=alias), filters)
    if action_name == "signal":
        inputs = {"signal": options["signal"], "payload": parse_json(options["payload"], option="--payload")}
    else:
        action = _ACTIONS[action_name]
        # Filters such as ``--cause`` also select the activities, unless an input of the action says otherwise.
        inputs = {**action.selection_from(filters), **input_values(options, action)}
    if action_name in _ACTIONS and _ACTIONS[action_name].destructive:
        command_arguments.confirm(
            command, f"{_ACTIONS[action_name].description()} Continue for {_count_text(runs)}?", yes=options["yes"]
        )
    return StartBulk(
        action_name, runs=runs, reason=options["reason"], token=options["token"], by=actor, **inputs
    ).execute()


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
