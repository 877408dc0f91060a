"""Say why nothing happens: what is wrong with the project and its runs, likeliest first, with the next step.

`doctor RUN` is about one run. `doctor --deploy` compares what open runs need with the code that is here.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from temporalex_django.access import redactor_for
from temporalex_django.actions.base import Actor, storage
from temporalex_django.actions.summary import summarize_run, summarize_runs
from temporalex_django.errors import WorkflowNotFound
from temporalex_django.management import as_user as people
from temporalex_django.management import deploys, exits, given, printing
from temporalex_django.management.facts import project_now, stuck
from temporalex_django.management.listing import UNREAD
from temporalex_django.models import Instance
from temporalex_django.present import diagnosis
from temporalex_django.present.diagnosis import Diagnosis
from temporalex_django.present.sentences import Summary

_SHOWN, _SAMPLE = 50, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDiagnosed:
    """A run, and what is to be done about it."""

    id: str
    run_id: str
    workflow: str
    found: Diagnosis


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorSaid:
    """``findings`` about the project, likeliest first; ``runs`` that somebody may have to look at, at most 50."""

    well: bool
    findings: Sequence[Diagnosis]
    runs: Sequence[RunDiagnosed]


output = DoctorSaid


def add_arguments(parser: CommandParser) -> None:
    """Say which arguments the subcommand takes."""
    parser.add_argument("run", nargs="?", metavar="RUN", help="this run alone: its id, or its run id")
    parser.add_argument("--workflow", metavar="NAME", help="of this class, where several have the id")
    parser.add_argument(
        "--deploy",
        action="store_true",
        help="compare what open runs hold with the code that is here; 1 when it lacks some",
    )
    parser.add_argument(
        "--sample",
        type=int,
        metavar="N",
        help=f"with --deploy: replay so many runs of each version (default: {_SAMPLE})",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="with --deploy: 1 as well where an input of an activity or a child differs from a history",
    )
    people.add_argument(parser)
    printing.add_json(parser)


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
    """Reads only. Ends with 1 when an error was found."""
    if workflow is not None and run is None:
        raise exits.misused("--workflow without RUN", "Name the run, too: doctor RUN --workflow NAME.")
    if (deploy and run is not None) or (sample is not None and (not deploy or sample < 1)) or (strict and not deploy):
        then = "Write: doctor, doctor RUN, or doctor --deploy [--sample N] [--strict]."
        raise exits.misused("that does not go together", then)
    if deploy:
        said = _of_deploy(command, as_user, sample or _SAMPLE, strict=strict)
    elif run is not None:
        by = people.actor(as_user)
        said = _of_one(given.looked_at(run, workflow, by=by).selected_run_id, by)
    else:
        said = _of_all(as_user)
    if json:
        printing.document(command, said)
    else:
        _print(command, said)
    if not said.well:
        raise CommandError("something is wrong: see above", returncode=exits.FOUND)


def _of_all(as_user: str | None) -> DoctorSaid:
    """Who may ask is looked up only where somebody is named: the tables may not be there."""
    by = None if as_user is None else people.actor(as_user)
    runs = None if by is None else people.runs_of(by)
    project = project_now(runs)
    findings = diagnosis.diagnose(project, now=timezone.now())
    there: list[RunDiagnosed] = []
    if not (project.wrong_settings or project.unreachable or project.unapplied):
        found = stuck(project.database, runs, most=_SHOWN)
        user = None if by is None else by.user
        said = summarize_runs(found, redactor_of=lambda run: redactor_for(user, run))
        there = [_diagnosed(run, said[run.pk]) for run in found if said[run.pk].trouble]
    return DoctorSaid(well=all(one.severity != "error" for one in findings), findings=findings, runs=there)


def _of_deploy(command: BaseCommand, as_user: str | None, sample: int, *, strict: bool) -> DoctorSaid:
    runs = people.runs_of(people.actor(as_user))
    with printing.progress(command) as tell:
        findings = deploys.compared(runs, sample=sample, each=tell, strict=strict)
    return DoctorSaid(well=all(one.severity != "error" for one in findings), findings=findings, runs=())


def _of_one(pk: Any, by: Actor) -> DoctorSaid:
    row = Instance.objects.using(storage().alias).defer(*UNREAD).select_related("chain").filter(pk=pk).first()
    if row is None:
        raise WorkflowNotFound("the run is gone")
    one = _diagnosed(row, summarize_run(row, redactor=redactor_for(by.user, row)))
    return DoctorSaid(well=one.found.severity != "error", findings=(), runs=[one])


def _diagnosed(run: Instance, said: Summary) -> RunDiagnosed:
    code = "key_missing" if (run.blocked or {}).get("waits_for") else str((run.blocked or {}).get("code", ""))
    found = diagnosis.of_run(
        said.state,
        said.text,
        run=shlex.quote(run.workflow_id),
        trouble=said.trouble,
        closed=not run.is_open,
        code=code if said.state == "blocked" else "",
    )
    return RunDiagnosed(id=run.workflow_id, run_id=str(run.pk), workflow=run.workflow, found=found)


def _print(command: BaseCommand, said: DoctorSaid) -> None:
    for one in said.findings:
        _print_one(command, one, one.text)
    for run in said.runs:
        _print_one(command, run.found, f"{run.workflow} {run.id}: {run.found.text}")


def _print_one(command: BaseCommand, one: Diagnosis, text: str) -> None:
    printing.write(command, f"{one.severity}: {printing.safe(text)}")
    if one.evidence:
        printing.write(command, f"    seen: {printing.safe('; '.join(one.evidence))}")
    printing.write(command, f"    next: {printing.safe(one.next_step)}")
