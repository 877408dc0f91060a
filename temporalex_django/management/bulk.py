"""Do one thing to many runs: workers go through them, each is a transaction of its own.

`bulk ACTION` with filters or run ids starts a job; `bulk show`, `bulk stop` and `bulk resume` look after it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import QuerySet

from temporalex_django.access import Operation, require_access, runs_for
from temporalex_django.actions.base import Actor, storage
from temporalex_django.actions.bulk_items import redact_items
from temporalex_django.actions.bulk_jobs import count_text, jobs_for
from temporalex_django.actions.live_workers import live_workers
from temporalex_django.actions.registry import STEERING
from temporalex_django.actions.resume_bulk import ResumeBulk
from temporalex_django.actions.start_bulk import StartBulk
from temporalex_django.actions.steering import OperatorRunAction
from temporalex_django.actions.stop_bulk import StopBulk
from temporalex_django.authoring.authorization import APP
from temporalex_django.conf import get_settings
from temporalex_django.management import as_user as people
from temporalex_django.management import asking, exits, printing
from temporalex_django.management.given import json_of
from temporalex_django.management.narrowing import add_filters, filter_names, filters_of, narrowed
from temporalex_django.management.steering import add_inputs, add_selectors, inputs_of
from temporalex_django.models import BulkItem, BulkJob, Instance

_ACTIONS: dict[str, type[OperatorRunAction[Any]]] = {**STEERING}
_SHOWN = 50
_LOOK = 0.2
_VIEW = Operation(action="view", permission=f"{APP}.{StartBulk.permission}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNotDone:
    """A run of a job to which it could not be done; ``part`` is the number of the activity or timer of it."""

    run_id: str
    part: int | None
    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPrinted:
    """A bulk job as it stands; ``problems`` are the first of the runs that failed."""

    id: str
    action: str
    state: str
    total: int
    done: int
    failed: int
    left: int
    by: str
    reason: str
    created_at: datetime
    finished_at: datetime | None
    problems: Sequence[RunNotDone]


output = JobPrinted | Sequence[JobPrinted]


def add_arguments(parser: CommandParser) -> None:
    """Say which arguments the subcommand takes."""
    parsers = parser.add_subparsers(dest="what", required=True, title="what", metavar="ACTION")
    for name, action in _ACTIONS.items():
        _add_start(parsers.add_parser(name, description=str(action.effect), help=str(action.label)), action)
    signal = parsers.add_parser("signal", description="A signal is sent to each of them.", help="Send a signal")
    signal.add_argument("--signal", required=True, metavar="NAME", help="of the signal")
    signal.add_argument("--payload", metavar="JSON", help="what goes with it; - reads it from the standard input")
    _add_start(signal, None)
    for name, text, ref in (
        ("show", "A job with the runs that failed; without JOB the last ones.", "?"),
        ("stop", "What was done stays; nothing is done to the other runs until it is resumed.", None),
        ("resume", "Workers go on with the runs that are left.", None),
    ):
        one = parsers.add_parser(name, description=text, help=text)
        one.add_argument("job", metavar="JOB", nargs=ref, help="its id")
        if name != "show":
            one.add_argument("--reason", default="", metavar="TEXT", help="for the audit")
        people.add_argument(one)
        printing.add_json(one)


def _add_start(parser: CommandParser, action: type[OperatorRunAction[Any]] | None) -> None:
    parser.add_argument("runs", nargs="*", metavar="RUN_ID", help="these runs, by their run ids")
    parser.add_argument("--all", action="store_true", help="every run, which no filter narrows")
    parser.add_argument("--wait", action="store_true", help="until workers are through; 1 when runs failed")
    parser.add_argument("--token", metavar="TEXT", help="started again with it, it is the same job")
    add_filters(parser)
    if action is None:
        parser.add_argument("--reason", default="", metavar="TEXT", help="for the audit")
    else:
        add_inputs(parser, action)
        add_selectors(parser, action, beside=filter_names())
        if action.destructive:
            asking.add_yes(parser)
    people.add_argument(parser)
    printing.add_json(parser)


def handle(command: BaseCommand, *, what: str, as_user: str | None, json: bool, **options: Any) -> None:
    """A start notes the runs, at most ``BULK_LIMIT``, in one transaction."""
    by = people.actor(as_user)
    if what == "show" and options["job"] is None:
        _list(command, by, json=json)
        return
    if what == "show":
        job = _job(options["job"], by)
    elif what in ("stop", "resume"):
        job = (StopBulk if what == "stop" else ResumeBulk)(options["job"], reason=options["reason"], by=by).execute()
    else:
        job = _started(command, what, by, options)
        job = _awaited(command, job) if options["wait"] else job
    _print(command, job, by, json=json)
    if options.get("wait") and job.failed:
        then = f"See why: manage.py temporalex bulk show {job.pk}"
        raise CommandError(
            exits.sentence(f"{job.failed} of {count_text(job.action, job.total)} failed", then), returncode=exits.FOUND
        )


def _started(command: BaseCommand, what: str, by: Actor, options: dict[str, Any]) -> BulkJob:
    given = filters_of(options)
    if bool(given) + bool(options["runs"]) + options["all"] != 1:
        raise exits.misused("it is not said which runs", "Give filters, run ids, or --all: one of the three.")
    runs: Any = options["runs"]
    if not runs:
        alias = storage().alias
        there = runs_for(by.user, alias=alias)
        runs = narrowed(Instance.objects.using(alias) if there is None else there, given)
    if what == "signal":
        inputs = {"signal": options["signal"], "payload": json_of(options["payload"], option="--payload")}
    else:
        action = _ACTIONS[what]
        inputs = {**action.selection_from(given), **inputs_of(options, action)}
    if what in _ACTIONS and _ACTIONS[what].destructive:
        asking.ask(command, f"{_ACTIONS[what].effect} Go on, for {_how_many(runs)}?", yes=options["yes"])
    return StartBulk(what, runs=runs, reason=options["reason"], token=options["token"], by=by, **inputs).execute()


def _how_many(runs: Any) -> str:
    """Of run ids, or of a queryset as far as a job may have them."""
    most = get_settings().BULK_LIMIT
    count = len(runs) if isinstance(runs, list) else runs.order_by()[: most + 1].count()
    return "1 run" if count == 1 else f"{count:,} runs" if count <= most else f"more than {most:,} runs"


def _job(ref: str, by: Actor) -> BulkJob:
    try:
        found = _jobs(by).filter(pk=UUID(ref)).first()
    except ValueError:
        found = None
    if found is None:
        text = exits.sentence(f"there is no bulk job {printing.safe(ref)}", "See: manage.py temporalex bulk show")
        raise CommandError(text, returncode=exits.NOT_FOUND)
    return found


def _jobs(by: Actor) -> QuerySet[BulkJob]:
    alias = storage().alias
    require_access(by.user, _VIEW, alias=alias)
    return jobs_for(by.user, alias=alias)


def _awaited(command: BaseCommand, job: BulkJob) -> BulkJob:
    """When workers are through, or it was stopped. Raises ``CommandError`` when nobody is there to do it."""
    with printing.progress(command) as tell:
        while True:
            job = BulkJob.objects.using(storage().alias).get(pk=job.pk)
            tell(job.total - job.left, job.total, f", {job.failed:,} failed")
            if job.state != BulkJob.State.RUNNING:
                return job
            if not live_workers(alias=storage().alias).workflow_versions:
                what = f"no worker is alive to do it; the job {job.pk} waits"
                raise CommandError(exits.sentence(what, "manage.py temporalex worker"), returncode=exits.TRY_AGAIN)
            time.sleep(_LOOK)


def _list(command: BaseCommand, by: Actor, *, json: bool) -> None:
    jobs = [_printed(job, ()) for job in _jobs(by).order_by("-pk")[:_SHOWN]]
    if json:
        printing.document(command, jobs)
    elif not jobs:
        printing.write(command, "no bulk jobs")
    else:
        cells = [(one.id, one.action, one.state, f"{one.done:,}", f"{one.failed:,}", f"{one.left:,}") for one in jobs]
        printing.table(command, ("JOB", "ACTION", "STATE", "DONE", "FAILED", "LEFT"), cells)


def _printed(job: BulkJob, failed: Sequence[BulkItem]) -> JobPrinted:
    return JobPrinted(
        id=str(job.pk),
        action=job.action,
        state=job.state,
        total=job.total,
        done=job.done,
        failed=job.failed,
        left=job.left,
        by=job.actor_name,
        reason=job.reason,
        created_at=job.created_at,
        finished_at=job.finished_at,
        problems=[
            RunNotDone(run_id=str(one.run_id), part=one.part, code=one.code, message=one.message) for one in failed
        ],
    )


def _part(problem: RunNotDone) -> str:
    return problem.run_id if problem.part is None else f"{problem.run_id} #{problem.part}"


def _print(command: BaseCommand, job: BulkJob, by: Actor, *, json: bool) -> None:
    alias = storage().alias
    failed = BulkItem.objects.using(alias).filter(job=job.pk, outcome="failed").order_by("pk")[:_SHOWN]
    said = _printed(job, redact_items(failed, by.user, alias=alias))
    if json:
        printing.document(command, said)
        return
    counts = f"{said.done:,} done, {said.failed:,} failed, {said.left:,} left"
    printing.write(
        command, f"bulk job {said.id}: {said.action} of {count_text(said.action, said.total)}, {said.state}: {counts}"
    )
    if said.problems:
        printing.table(command, ("RUN", "WHY NOT"), [(_part(one), one.message or one.code) for one in said.problems])
