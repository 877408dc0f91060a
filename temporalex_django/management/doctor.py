"""Explain why nothing is happening: list the problems, likeliest cause first, each with its next step.

`doctor RUN` diagnoses one run. `doctor --deploy` compares what open runs need with the code of this process.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final
from uuid import UUID

from django.core import checks as django_checks
from django.core.management.base import BaseCommand, CommandError
from django.db import Error as DatabaseError
from django.db import connections
from django.db.models import Count, Max, QuerySet
from django.utils import timezone

from temporalex_django import checks, conf
from temporalex_django.authoring import activity
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.redaction import Redactor
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.conf import codec, get_settings
from temporalex_django.core.names import TABLES, TEMPORAL, counted
from temporalex_django.errors import (
    ActivityNotFound,
    DeadlockDetected,
    KeyMissing,
    TemporalexError,
    UnknownVersion,
    UnknownWorkflow,
    WorkflowNotFound,
)
from temporalex_django.graph.steps import key_of
from temporalex_django.graph.workflow import GraphWorkflow
from temporalex_django.management import arguments as command_arguments
from temporalex_django.management import outputs as printing
from temporalex_django.management.arguments import (
    ActorOption,
    Argument,
    JsonOption,
    Option,
    WorkflowOption,
    subcommand,
)
from temporalex_django.management.read_commands import DEFERRED_COLUMNS
from temporalex_django.management.replay import replay_runs
from temporalex_django.models import ActivityTask, Instance, Schedule
from temporalex_django.operations.base import Actor, storage
from temporalex_django.operations.fleet.deploy import ClassCheck, record_check
from temporalex_django.operations.read.describe import read_block
from temporalex_django.operations.read.failure_groups import unreadable_rows
from temporalex_django.operations.read.project_state import (
    MAX_COUNTED_RUNS,
    Runs,
    count_open_by_backend,
    load_cluster_state,
    load_project_state,
    newest_stuck_runs,
    open_runs,
)
from temporalex_django.operations.read.run_summary import summarize_run, summarize_runs
from temporalex_django.operations.schedules.describe import reportable_schedules
from temporalex_django.present import diagnosis
from temporalex_django.present.project_view import (
    CodeMismatch,
    FailedCheck,
    ProjectView,
    cluster_diagnoses,
    deploy_diagnoses,
    input_diagnoses,
)
from temporalex_django.present.sentences import Summary
from temporalex_django.present.timeline import UNREADABLE_ROW
from temporalex_django.present.view_models import Diagnosis

_BATCH_SIZE = 20
_PAYLOAD_COLUMNS = ("args", "published")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployReport:
    """The result of a comparison of this code with open runs: their classes, the mismatches, and their diagnoses."""

    classes: Sequence[ClassCheck]
    mismatches: Sequence[CodeMismatch]
    diagnoses: Sequence[Diagnosis]


def compare_with_runs(
    runs: Runs, *, sample: int, report: Callable[[int, int], None], strict: bool = False
) -> DeployReport:
    """Return a diagnosis for everything that open runs need and that the code of this process lacks.

    Only the open runs among ``runs`` are looked at; None means all. For each class and version, the newest ``sample``
    runs are read and replayed in this process. ``report`` is called with the number of replayed runs and their total.
    Inputs that differ are warnings, or errors with ``strict``. Nothing is written.
    """
    alias = get_settings().DATABASE
    candidate_runs = open_runs(alias, runs)
    groups: Any = candidate_runs.order_by("workflow", "version").values("workflow", "version")
    rows = [*groups.annotate(count=Count("pk"), example=Max("workflow_id"))]
    mismatches: list[CodeMismatch] = []
    misfits: list[dict[str, Any]] = []
    replayed_ids: list[UUID] = []
    classes: list[ClassCheck] = []
    for row in rows:
        name, version = row["workflow"], row["version"]
        try:
            code = workflows.class_for_run(name, version)
        # Without the class nothing else of its runs can be compared.
        except (UnknownWorkflow, UnknownVersion):
            text = f"{name} (version {version})"
            mismatches.append(CodeMismatch(kind="class", name=text, count=row["count"], example=row["example"]))
            classes.append(ClassCheck(workflow=name, version=version, open=row["count"]))
            continue
        replayed_before = len(replayed_ids)
        sample_runs = [*candidate_runs.filter(workflow=name, version=version).order_by("-id")[:sample]]
        mismatches += _missing_steps(sample_runs, code)
        for run in sample_runs:
            if (mismatch := _find_unreadable(run)) is not None:
                mismatches.append(mismatch)
            # A run without a first turn has no history to replay.
            elif run.started_at is not None:
                replayed_ids.append(run.pk)
        replayed = len(replayed_ids) - replayed_before
        classes.append(ClassCheck(workflow=name, version=version, open=row["count"], replayed=replayed))
    mismatches += _missing_activities(alias, runs)
    done, differences, left_out = 0, list[dict[str, Any]](), Counter[str]()
    # In batches, so that progress can be reported and only a few histories are in memory.
    while done < len(replayed_ids):
        checked = replay_runs(replayed_ids[done : done + _BATCH_SIZE])
        misfits += checked.findings
        differences += [finding for finding in checked.differences if finding["kind"] == "input"]
        left_out.update(checked.left_out)
        done = min(done + _BATCH_SIZE, len(replayed_ids))
        report(done, len(replayed_ids))
    mismatches += _misfits_by_cause(misfits)
    merged = [*_merge(mismatches)]
    diagnoses = deploy_diagnoses(
        merged,
        runs=sum(row["count"] for row in rows),
        replayed=len(replayed_ids) - left_out.total(),
    )
    inputs = [*_input_mismatches(differences)]
    diagnoses += [*cluster_diagnoses(left_out), *input_diagnoses(inputs, strict=strict)]
    return DeployReport(classes=classes, mismatches=[*merged, *inputs], diagnoses=diagnoses)


def _misfits_by_cause(misfits: Iterable[dict[str, Any]]) -> Iterator[CodeMismatch]:
    """Yield one mismatch for all histories of one class that do not fit at one place, for one reason."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for misfit in misfits:
        kind = "timeout" if misfit.get("error") == DeadlockDetected.code else "replay"
        # The message names the run and its event, which differ from run to run.
        reason = [misfit.get(name) for name in ("recorded", "produced", "file", "line")]
        key = (kind, misfit["workflow"], *(reason if any(reason) else [misfit["message"]]))
        groups.setdefault(key, []).append(misfit)
    for (kind, name, *_reason), group in groups.items():
        first = group[0]
        yield CodeMismatch(
            kind=kind, name=name, example=first["id"], count=len(group), reason=first["message"], place=_place(first)
        )


def _place(misfit: dict[str, Any]) -> str:
    """Return the place of a misfit as ``folder/file:line``, or an empty text."""
    if not misfit.get("file"):
        return ""
    return f"{'/'.join(Path(misfit['file']).parts[-2:])}:{misfit['line']}"


def _merge(mismatches: Iterable[CodeMismatch]) -> Iterator[CodeMismatch]:
    """Yield one mismatch for all that differ only in their example."""
    groups: dict[tuple[str, str, str], list[CodeMismatch]] = {}
    for mismatch in mismatches:
        groups.setdefault((mismatch.kind, mismatch.name, mismatch.reason), []).append(mismatch)
    for group in groups.values():
        yield replace(group[0], count=sum(mismatch.count for mismatch in group))


def _input_mismatches(differences: Iterable[dict[str, Any]]) -> Iterator[CodeMismatch]:
    """Yield one mismatch for all differences at one place in the code of one class."""
    by_place: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for difference in differences:
        command = (
            difference["command"].partition("seq")[2].partition(", ")[2]
        )  # without the command number, which differs between runs
        by_place.setdefault(
            (difference["workflow"], command, difference["path"], difference["file"], difference["line"]), []
        ).append(difference)
    for (name, command, path, file, line), group in by_place.items():
        location = ""
        if file:
            location = f" ({file}:{line})"
        count = len({difference["run"] for difference in group})
        yield CodeMismatch(
            kind="input", name=name, example=group[0]["id"], count=count, reason=f"{command}, {path}{location}"
        )


def _missing_steps(sample_runs: list[Instance], code: Any) -> Iterator[CodeMismatch]:
    """Yield a mismatch for each step in which a run waits and which the graph class lacks."""
    if not issubclass(code, GraphWorkflow):
        return
    graph_keys = {key_of(step) for step in code.graph()}
    counts: Counter[str] = Counter()
    example: dict[str, str] = {}
    for run in sample_runs:
        for wait in run.waits or ():
            key = str(wait.get("name"))
            # A step that has ended may be gone; one that waits must still take its event.
            if wait.get("kind") == "step" and key not in graph_keys:
                counts[key] += 1
                example[key] = run.workflow_id
    for key, count in sorted(counts.items()):
        yield CodeMismatch(
            kind="step", name=f"{key} of {code.name} (version {code.version})", count=count, example=example[key]
        )


def _find_unreadable(run: Instance) -> CodeMismatch | None:
    """Return a mismatch if this process cannot read the payloads of the run."""
    try:
        for payload in (getattr(run, name) for name in _PAYLOAD_COLUMNS):
            if payload is not None:
                codec().decode(bytes(payload))
    except TemporalexError as exc:
        # The kind is part of the code of the diagnosis, so that programs can tell a lost key from other causes.
        kind: Any = "key" if isinstance(exc, KeyMissing) else "payload"
        return CodeMismatch(kind=kind, name=run.workflow, count=1, example=run.workflow_id, reason=str(exc))
    return None


def _missing_activities(alias: str, runs: Runs) -> Iterator[CodeMismatch]:
    tasks = ActivityTask.objects.using(alias)
    if runs is not None:
        tasks = tasks.filter(run__in=runs)
    # Ordered by the grouped column alone: the default order would be added to GROUP BY.
    rows: Any = tasks.order_by("activity").values("activity")
    for row in rows.annotate(count=Count("pk"), example=Max("workflow_id")):
        try:
            activity.find(row["activity"])
        except ActivityNotFound:
            yield CodeMismatch(kind="activity", name=row["activity"], count=row["count"], example=row["example"])


_MAX_RUNS, _DEFAULT_SAMPLE = 50, 20
_MAX_RELEASE_LENGTH = 100
#: Lines that a report has at most without ``--all``, so that all of it is on one screen.
_MAX_LINES = 12
#: People copy what doctor prints into tickets, and monitoring keeps it, so it quotes no payloads to anybody.
_WITHOUT_PAYLOADS = Redactor(may_see_payloads=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDiagnosed:
    """A run that a person should look at, and its diagnosis with the next step (``found``)."""

    id: str
    run_id: str
    workflow: str
    found: Diagnosis


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorSaid:
    """The result of ``doctor``.

    ``findings`` are about the project, likeliest first. ``runs`` are at most 50 runs that a person should look at.
    ``open_runs`` are the numbers of open runs by backend, for a report about the project.
    """

    well: bool
    findings: Sequence[Diagnosis]
    runs: Sequence[RunDiagnosed]
    open_runs: Mapping[str, int] = field(default_factory=dict)


@subcommand("doctor", output=DoctorSaid)
def diagnose(
    command: BaseCommand,
    *,
    run: Annotated[str | None, Argument("Diagnose only this run: business id or run id.", "RUN")],
    workflow: WorkflowOption,
    deploy: Annotated[
        bool,
        Option(
            "Compare what open runs need with the code of this process; exit with status 1 if the code lacks something."
        ),
    ],
    sample: Annotated[
        int | None,
        Option(f"With --deploy: replay at most N runs of each version (default: {_DEFAULT_SAMPLE}).", "N"),
    ],
    all: Annotated[
        bool,
        Option(f"Print everything, with each run. Without it, a long report has at most {_MAX_LINES} lines."),
    ],
    strict: Annotated[
        bool,
        Option(
            "With --deploy: also exit with status 1 if an input of an activity or a child "
            "differs from the recorded one."
        ),
    ],
    record: Annotated[
        str | None,
        Option(
            "With --deploy: store the result under the name of this release, for the page Deploy of the console. "
            "Without it, nothing is written.",
            "RELEASE",
        ),
    ],
    actor: ActorOption,
    json: JsonOption,
) -> None:
    """Explain why nothing is happening: list the problems, likeliest cause first, each with its next step.

    `doctor RUN` diagnoses one run. `doctor --deploy` compares what open runs need with the code of this process.
    """
    # The exit status is 1 if a diagnosis is an error, or 6 if that is only that replays took too long.
    if workflow is not None and run is None:
        raise printing.usage_error("--workflow requires RUN", "Pass the run as well: doctor RUN --workflow NAME.")
    if (deploy and run is not None) or (sample is not None and (not deploy or sample < 1)) or (strict and not deploy):
        next_step = "Use doctor, doctor RUN, or doctor --deploy [--sample N] [--strict], with N at least 1."
        raise printing.usage_error("these arguments are not valid together", next_step)
    if record is not None:
        _check_release(record, deploy=deploy, actor=actor)
    if deploy:
        report = _diagnose_deploy(command, actor, sample or _DEFAULT_SAMPLE, strict=strict, record=record)
    elif run is not None:
        report = _diagnose_run(command_arguments.find_visible_target(run, workflow, actor=actor).selected_run_id)
    else:
        report = _diagnose_project(actor)
    if json:
        printing.print_json(command, report)
    else:
        _print_report(command, report, in_full=all)
    # After the report, so that a pipeline stops but its log says why.
    _fail_for_errors(report)


def _fail_for_errors(report: DoctorSaid) -> None:
    if not report.well:
        errors = {finding.code for finding in report.findings if finding.severity == "error"}
        status = printing.TRY_AGAIN if errors == {"deploy_timeout"} else printing.FINDINGS
        raise CommandError("doctor found errors: see above", returncode=status)


def _diagnose_project(actor: Actor) -> DoctorSaid:
    """Diagnose the project and its newest runs. For code, no permission is looked up: tables may be missing."""
    runs = schedules = None
    if actor.user is not None:
        runs, schedules = command_arguments.visible_runs(actor), reportable_schedules(actor.user)
    project = load_project(runs, schedules)
    findings = diagnosis.diagnose(project, now=timezone.now())
    run_outputs: list[RunDiagnosed] = []
    counts: dict[str, int] = {}
    # Without settings, database and tables no run can be read.
    if not (project.wrong_settings or project.unreachable or project.unapplied):
        stuck_runs = newest_stuck_runs(project.database, runs, limit=_MAX_RUNS)
        run_summaries = summarize_runs(stuck_runs, redactor_of=lambda _run: _WITHOUT_PAYLOADS)
        run_outputs = [_run_output(run, run_summaries[run.pk]) for run in stuck_runs if run_summaries[run.pk].trouble]
        counts = count_open_by_backend(project.database, runs)
    return DoctorSaid(
        well=all(finding.severity != "error" for finding in findings),
        findings=findings,
        runs=run_outputs,
        open_runs=counts,
    )


def _check_release(release: str, *, deploy: bool, actor: Actor) -> None:
    """Raise a usage error for a name that cannot be stored, or for a check of some runs only."""
    if not deploy or actor.user is not None:
        raise printing.usage_error(
            "--record stores a check of all open runs", "Use doctor --deploy --record RELEASE, without --as-user."
        )
    if not release.strip() or not release.isprintable() or len(release) > _MAX_RELEASE_LENGTH:
        raise printing.usage_error(
            "the name of the release is empty, too long or not printable", "Pass a name such as 2027.3."
        )


def _diagnose_deploy(
    command: BaseCommand, actor: Actor, sample: int, *, strict: bool, record: str | None
) -> DoctorSaid:
    """Replay the newest ``sample`` visible runs of each version. With ``strict``, input differences are errors.

    Store the result for the release ``record``, if there is one.
    """
    runs = command_arguments.visible_runs(actor)
    with printing.progress(command) as report:
        compared = compare_with_runs(runs, sample=sample, report=report, strict=strict)
    findings = compared.diagnoses
    if record is not None:
        record_check(record, classes=compared.classes, mismatches=compared.mismatches, alias=get_settings().DATABASE)
    return DoctorSaid(well=all(finding.severity != "error" for finding in findings), findings=findings, runs=())


def _diagnose_run(pk: Any) -> DoctorSaid:
    row = Instance.objects.using(storage().alias).defer(*DEFERRED_COLUMNS).select_related("chain").filter(pk=pk).first()
    if row is None:
        raise WorkflowNotFound("the run no longer exists")
    read_block(row, RunTarget.of(row), storage=storage())
    run_output = _run_output(row, summarize_run(row, redactor=_WITHOUT_PAYLOADS))
    return DoctorSaid(well=run_output.found.severity != "error", findings=(), runs=[run_output])


def _run_output(run: Instance, summary: Summary) -> RunDiagnosed:
    block = run.blocked or {}
    diagnosis_of_run = diagnosis.diagnose_run(
        summary.state,
        summary.text,
        run=shlex.quote(run.workflow_id),
        trouble=summary.trouble,
        closed=not run.is_open,
        code=str(block.get("code", "")) if summary.state == "blocked" else "",
        lacks=block.get("waits_for"),
    )
    return RunDiagnosed(id=run.workflow_id, run_id=str(run.pk), workflow=run.workflow, found=diagnosis_of_run)


#: The places of runs, by backend.
_PLACES: Final = {TABLES: "tables", TEMPORAL: "Temporal cluster"}


def _print_report(command: BaseCommand, report: DoctorSaid, *, in_full: bool) -> None:
    """Print the report, cut to twelve lines unless ``in_full``.

    Errors come first then, without runs. Unreadable rows are all printed, since each has a repair of its own.
    """
    damages = [finding for finding in report.findings if finding.code == UNREADABLE_ROW]
    findings = [finding for finding in report.findings if finding.code != UNREADABLE_ROW]
    lines = [line for finding in findings for line in _finding_lines(finding, finding.text)]
    for run in report.runs:
        lines += _finding_lines(run.found, f"{run.workflow} {run.id}: {run.found.text}")
    if not in_full and len(lines) > _MAX_LINES and findings:
        lines = _short_lines(report, findings)
    lines += _open_run_lines(report.open_runs)
    for damage in damages:
        lines += _finding_lines(damage, damage.text)
    for line in lines:
        printing.write_line(command, line)


def _open_run_lines(counts: Mapping[str, int]) -> Iterator[str]:
    """Yield the numbers of open runs by backend, in a project that has some on a cluster."""
    if TEMPORAL in counts:
        texts = [
            f"{count:,}{' or more' if count == MAX_COUNTED_RUNS else ''} on the {_PLACES[backend]}"
            for backend, count in counts.items()
        ]
        yield f"open runs: {' and '.join(texts)}"


def _short_lines(report: DoctorSaid, findings: Sequence[Diagnosis]) -> list[str]:
    severities = ("error", "warning", "note")
    findings = sorted(findings, key=lambda finding: severities.index(finding.severity))
    lines = [
        f"{finding.severity}: {printing.escape(finding.text)} Next: {printing.escape(finding.next_step)}"
        for finding in findings[: _MAX_LINES - 1]
    ]
    left_out = [counted(len(report.findings), "finding", "findings")]
    if report.runs:
        left_out.append(counted(len(report.runs), "run", "runs"))
    return [*lines, f"{' and '.join(left_out)} in all, each with its evidence: add --all"]


def _finding_lines(finding: Diagnosis, text: str) -> Iterator[str]:
    yield f"{finding.severity}: {printing.escape(text)}"
    if finding.evidence:
        yield f"    seen: {printing.escape('; '.join(finding.evidence))}"
    yield f"    next: {printing.escape(finding.next_step)}"


# -- the state of the project ------------------------------------------------------------------------------------------

_SETTING_CHECKS = ("temporalex_django.E001", "temporalex_django.E002")


def load_project(runs: Runs = None, schedules: QuerySet[Schedule] | None = None) -> ProjectView:
    """Read the state of the project; ``runs`` and ``schedules`` restrict those in it, and None means all.

    About twenty reads, and no lock. Of closed runs, only the newest failed ones are read. What cannot be read is left
    empty.
    """
    alias = conf.read()[0].DATABASE
    failed_checks = [*_failed_checks()]
    common: dict[str, Any] = {
        "database": alias,
        "wrong_settings": [entry.text for entry in failed_checks if entry.id in _SETTING_CHECKS],
        "checks": [entry for entry in failed_checks if entry.id not in _SETTING_CHECKS],
        "classes": sum(1 for _ in workflows.concrete_classes()),
    }
    # Every later step needs what the earlier ones look at, so the first failure ends the search.
    if common["wrong_settings"]:
        return ProjectView(**common, unapplied=())
    try:
        connections[alias].ensure_connection()
    # The first line of a driver's error names the cause.
    except DatabaseError as exc:
        return ProjectView(**common, unreachable=(str(exc).splitlines() or [type(exc).__name__])[0].rstrip("."))
    if unapplied_migrations := checks.unapplied_migrations(alias):
        return ProjectView(**common, unapplied=unapplied_migrations)
    project = load_project_state(alias, runs, schedules, **common)
    # A row belongs to nobody in particular, so only the operator of the system reads of it.
    rows = [*unreadable_rows(alias)] if runs is None else []
    return replace(project, cluster=load_cluster_state(alias), unreadable_rows=rows)


def _failed_checks() -> Iterator[FailedCheck]:
    for message in django_checks.run_checks(tags=[checks.TAG]):
        is_error = message.level >= django_checks.ERROR
        yield FailedCheck(id=str(message.id), is_error=is_error, text=str(message.msg), hint=str(message.hint or ""))
