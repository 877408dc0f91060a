"""Explain why nothing happens: list what is wrong, the likeliest cause first, each with the next step.

`doctor RUN` diagnoses one run. `doctor --deploy` compares what open runs need with the code of this process.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from temporalex_django.access import redactor_for
from temporalex_django.errors import WorkflowNotFound
from temporalex_django.management.cli import as_user as people
from temporalex_django.management.cli import command_arguments, exit_codes, printing
from temporalex_django.management.fleet import deploys
from temporalex_django.management.fleet.diagnostics import load_project, newest_stuck_runs
from temporalex_django.management.runs.list_runs import DEFERRED_COLUMNS
from temporalex_django.models import Instance
from temporalex_django.operations.base import Actor, storage
from temporalex_django.operations.read.run_summary import summarize_run, summarize_runs
from temporalex_django.present import diagnosis
from temporalex_django.present.diagnosis import Diagnosis
from temporalex_django.present.sentences import Summary

_MAX_RUNS, _DEFAULT_SAMPLE = 50, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDiagnosed:
    """A run, and what to do about it."""

    id: str
    run_id: str
    workflow: str
    found: Diagnosis


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorSaid:
    """The result of ``doctor``.

    ``findings`` are about the project, likeliest first. ``runs`` are at most 50 runs that a person should look at.
    """

    well: bool
    findings: Sequence[Diagnosis]
    runs: Sequence[RunDiagnosed]


output = DoctorSaid


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument("run", nargs="?", metavar="RUN", help="Diagnose only this run: business id or run id.")
    parser.add_argument("--workflow", metavar="NAME", help="Workflow class, if several classes have used the id.")
    parser.add_argument(
        "--deploy",
        action="store_true",
        help="Compare what open runs need with the code of this process; "
        "exit with status 1 if the code lacks something.",
    )
    parser.add_argument(
        "--sample",
        type=int,
        metavar="N",
        help=f"With --deploy: replay at most N runs of each version (default: {_DEFAULT_SAMPLE}).",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="With --deploy: also exit with status 1 if an input of an activity or a child differs from a history.",
    )
    people.add_user_argument(parser)
    printing.add_json_argument(parser)


def handle(
    command: BaseCommand,
    *,
    run: str | None,
    workflow: str | None,
    deploy: bool,
    sample: int | None,
    strict: bool,
    as_user: str | None,
    json: bool,
    **_: Any,
) -> None:
    """Print the diagnoses. Reads only. Exit status 1 if an error was found."""
    if workflow is not None and run is None:
        raise exit_codes.usage_error("--workflow requires RUN", "Name the run as well: doctor RUN --workflow NAME.")
    if (deploy and run is not None) or (sample is not None and (not deploy or sample < 1)) or (strict and not deploy):
        next_step = "Write doctor, doctor RUN, or doctor --deploy [--sample N] [--strict], with N at least 1."
        raise exit_codes.usage_error("these arguments are not valid together", next_step)
    if deploy:
        report = _diagnose_deploy(command, as_user, sample or _DEFAULT_SAMPLE, strict=strict)
    elif run is not None:
        actor = people.resolve_actor(as_user)
        report = _diagnose_run(command_arguments.find_visible_target(run, workflow, actor=actor).selected_run_id, actor)
    else:
        report = _diagnose_project(as_user)
    if json:
        printing.print_json(command, report)
    else:
        _print_report(command, report)
    # After the report, so that a pipeline stops but its log says why.
    if not report.well:
        raise CommandError("doctor found errors: see above", returncode=exit_codes.FINDINGS)


def _diagnose_project(as_user: str | None) -> DoctorSaid:
    """Diagnose the project and its stuck runs.

    Users are looked up only for ``--as-user``, because the tables may not exist yet.
    """
    actor = None if as_user is None else people.resolve_actor(as_user)
    runs = None if actor is None else people.visible_runs(actor)
    project = load_project(runs)
    findings = diagnosis.diagnose(project, now=timezone.now())
    run_outputs: list[RunDiagnosed] = []
    # Without settings, database and tables no run can be read.
    if not (project.wrong_settings or project.unreachable or project.unapplied):
        stuck_runs = newest_stuck_runs(project.database, runs, limit=_MAX_RUNS)
        user = None if actor is None else actor.user
        run_summaries = summarize_runs(stuck_runs, redactor_of=lambda run: redactor_for(user, run))
        run_outputs = [_run_output(run, run_summaries[run.pk]) for run in stuck_runs if run_summaries[run.pk].trouble]
    return DoctorSaid(
        well=all(finding.severity != "error" for finding in findings), findings=findings, runs=run_outputs
    )


def _diagnose_deploy(command: BaseCommand, as_user: str | None, sample: int, *, strict: bool) -> DoctorSaid:
    runs = people.visible_runs(people.resolve_actor(as_user))
    with printing.progress(command) as report:
        findings = deploys.compare_with_runs(runs, sample=sample, report=report, strict=strict)
    return DoctorSaid(well=all(finding.severity != "error" for finding in findings), findings=findings, runs=())


def _diagnose_run(pk: Any, actor: Actor) -> DoctorSaid:
    row = Instance.objects.using(storage().alias).defer(*DEFERRED_COLUMNS).select_related("chain").filter(pk=pk).first()
    if row is None:
        raise WorkflowNotFound("the run no longer exists")
    run_output = _run_output(row, summarize_run(row, redactor=redactor_for(actor.user, row)))
    return DoctorSaid(well=run_output.found.severity != "error", findings=(), runs=[run_output])


def _run_output(run: Instance, summary: Summary) -> RunDiagnosed:
    # A missing key needs another next step than the error that it caused.
    code = "key_missing" if (run.blocked or {}).get("waits_for") else str((run.blocked or {}).get("code", ""))
    diagnosis_of_run = diagnosis.diagnose_run(
        summary.state,
        summary.text,
        run=shlex.quote(run.workflow_id),
        trouble=summary.trouble,
        closed=not run.is_open,
        code=code if summary.state == "blocked" else "",
    )
    return RunDiagnosed(id=run.workflow_id, run_id=str(run.pk), workflow=run.workflow, found=diagnosis_of_run)


def _print_report(command: BaseCommand, report: DoctorSaid) -> None:
    for finding in report.findings:
        _print_finding(command, finding, finding.text)
    for run in report.runs:
        _print_finding(command, run.found, f"{run.workflow} {run.id}: {run.found.text}")


def _print_finding(command: BaseCommand, finding: Diagnosis, text: str) -> None:
    printing.write_line(command, f"{finding.severity}: {printing.escape(text)}")
    if finding.evidence:
        printing.write_line(command, f"    seen: {printing.escape('; '.join(finding.evidence))}")
    printing.write_line(command, f"    next: {printing.escape(finding.next_step)}")
