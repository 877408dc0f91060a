"""Replay recorded histories with the current code, as a check before a deploy.

Nothing is written. The exit status is 1 if a history does not match the code or could not be read from the Temporal
cluster, and 6 if all others were replayed but some took too long.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import random
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError
from django.db import connections
from django.db.models import Q, QuerySet

from temporalex_django.authoring import workflow
from temporalex_django.authoring.workflow import concrete_classes
from temporalex_django.backends.routing import cluster_module
from temporalex_django.conf import get_settings
from temporalex_django.core.history import replay
from temporalex_django.core.history.events import HistoryEvent, ReplayDifference
from temporalex_django.core.names import TABLES, TEMPORAL, counted
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.watchdog import watchdog
from temporalex_django.errors import DeadlockDetected, NondeterminismError, PayloadError, TemporalexError
from temporalex_django.management import outputs as printing
from temporalex_django.management.arguments import JsonOption, Option, subcommand
from temporalex_django.management.subprocess_setup import set_up_django
from temporalex_django.models import Instance
from temporalex_django.operations.runs.history_action import replay_limit
from temporalex_django.workers import app_modules

Finding = dict[str, Any]


class ReplayBatch(NamedTuple):
    """The result of replaying some histories with the present code.

    ``histories`` is their number. ``findings`` has a dict for each history that does not match the code or cannot be
    used, or whose replay took too long, with the fields of ``HistoryMisfit``. ``differences`` has the inputs and
    durations that differ in the others. ``left_out`` counts the runs on a Temporal cluster whose histories could not be
    read there, by the reason.
    """

    histories: int
    findings: list[Finding]
    differences: list[Finding]
    left_out: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryMisfit:
    """A history that does not fit the code, or cannot be used, or whose replay took too long (``error`` "deadlock").

    ``source`` is its file. ``recorded`` and ``produced`` are the commands that differ, and ``seq`` is their number.
    ``file`` and ``line`` are the place of the code that issued the command.
    """

    run: str | None
    id: str | None
    workflow: str | None
    error: str
    message: str
    source: str | None = None
    seq: int | None = None
    recorded: str | None = None
    produced: str | None = None
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryDifference:
    """An input of an activity or a child, or a duration, that differs between the code and a history.

    ``event`` is the number of the history event, and ``command`` the command that it belongs to. ``path`` is the place
    in the input, in names that the code declares. ``file`` and ``line`` are the place of the code that issued the
    command.
    """

    run: str | None
    id: str | None
    workflow: str | None
    kind: Literal["input", "duration"]
    event: int
    command: str
    path: str
    source: str | None = None
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoriesReplayed:
    """The result of ``temporalex replay``.

    ``checked`` and ``clean`` are numbers of histories. ``on_cluster`` is the number of runs on a Temporal cluster that
    were to be replayed. ``left_out`` counts those whose histories could not be read there, by the reason. ``findings``
    are the histories that do not fit the code, and those whose replay took too long. ``differences`` may have been made
    on purpose.
    """

    checked: int
    clean: int
    on_cluster: int
    left_out: Mapping[str, int]
    findings: Sequence[HistoryMisfit]
    differences: Sequence[HistoryDifference]


#: Number of runs that a process replays at a time.
_CHUNK_SIZE = 20
#: Filters for runs whose histories are on a Temporal cluster.
_ON_CLUSTER: Final = {"mirrored_at__isnull": False}


@subcommand("replay", output=HistoriesReplayed)
def replay_histories(
    command: BaseCommand,
    *,
    workflow: Annotated[list[str] | None, Option("Only runs of this workflow (can be repeated).", "NAME")],
    open: Annotated[bool, Option("Only open runs.")],
    make_current: Annotated[
        bool,
        Option("If all histories match the code, let the build of this process get the runs of the Temporal cluster."),
    ],
    backend: Annotated[
        str | None,
        Option(
            "Only runs of this backend. Without it, the open runs on a Temporal cluster are replayed, too.",
            choices=(TABLES, TEMPORAL),
        ),
    ],
    sample: Annotated[
        int | None,
        Option(
            "Replay only N runs, chosen at random among runs of different versions, lengths and waits.",
            "N",
            is_positive=True,
        ),
    ],
    seed: Annotated[int, Option("Seed of the random choice (default: 0).")] = 0,
    file: Annotated[
        list[str] | None,
        Option("A history file, or a folder of them, to replay instead of the database (can be repeated).", "PATH"),
    ],
    processes: Annotated[int | None, Option("Use at most this many processes (default: one per processor).")],
    timeout: Annotated[
        float | None,
        Option(
            "Processor time that the code may take between two waits of a history "
            "(default: DEADLOCK_TIMEOUT, and a second more for every 10,000 events).",
            "SECONDS",
        ),
    ],
    strict: Annotated[
        bool,
        Option(
            "Also fail if an input of an activity or a child differs; without this option, differences are only listed."
        ),
    ],
    json: JsonOption,
) -> None:
    """Replay recorded histories with the current code, as a check before a deploy.

    Nothing is written. The exit status is 1 if a history does not match the code or could not be read from the Temporal
    cluster, and 6 if all others were replayed but some took too long.
    """
    # On the command line, other processes replay the histories, with another hash seed than this process has.
    if timeout is not None and not 0 < timeout < math.inf:
        raise printing.usage_error(f"--timeout {timeout:g} is not a number of seconds", "Give a number above 0.")
    replay_chunk: Callable[[Sequence[Any]], ReplayBatch] = partial(replay_runs, timeout=timeout)
    on_cluster_count = 0
    if file:
        runs: list[Any] = [str(path) for path in _history_files(file)]
        replay_chunk = partial(replay_files, only=workflow, timeout=timeout)
    else:
        candidates = _select_runs(workflow, open=open, backend=backend)
        runs = _choose(candidates, sample=sample, seed=seed)
        on_cluster_count = len({*runs} & {*candidates.filter(**_ON_CLUSTER).values_list("pk", flat=True)})
    chunks = [runs[i : i + _CHUNK_SIZE] for i in range(0, len(runs), _CHUNK_SIZE)]
    findings: list[Finding] = []
    differences: list[Finding] = []
    left_out: Counter[str] = Counter()
    checked_count = 0
    # Other processes cannot see what an open transaction has written.
    shared = not connections[get_settings().DATABASE].in_atomic_block
    # A set has one order within a process, so code that depends on it fails only under another hash seed (see
    # decision 16).
    always_spawn = shared and bool(getattr(command, "_called_from_command_line", False))
    with printing.progress(command) as report_progress:
        for batch in _run_chunks(replay_chunk, chunks, processes or os.cpu_count() or 1, always_spawn=always_spawn):
            checked_count += batch.histories
            findings += batch.findings
            differences += batch.differences
            left_out.update(batch.left_out)
            mismatch_count = sum(finding["error"] != DeadlockDetected.code for finding in findings)
            report_progress(checked_count, len(runs), f", {counted(mismatch_count, 'does', 'do')} not match")
    report = HistoriesReplayed(
        checked=checked_count,
        clean=checked_count - len(findings),
        on_cluster=on_cluster_count,
        left_out=left_out,
        findings=[*map(_misfit_output, findings)],
        differences=[HistoryDifference(**difference) for difference in differences],
    )
    if json:
        printing.print_json(command, report)
    else:
        _print_report(command, report)
    _fail_for_findings(report, strict=strict)
    _make_build_current(command, is_wanted=make_current, is_quiet=json)


def _make_build_current(command: BaseCommand, *, is_wanted: bool, is_quiet: bool) -> None:
    """Let the build of this process get the runs of the cluster, if that is wanted."""
    if not is_wanted:
        return
    build = cluster_module("deployments").make_current()
    if not is_quiet:
        printing.write_line(command, f"The build {build.build} of the deployment {build.deployment} is current.")


def _histories(count: int) -> str:
    return counted(count, "history", "histories")


def _fail_for_findings(report: HistoriesReplayed, *, strict: bool) -> None:
    """Raise ``CommandError`` if a history does not match, took too long, or (``strict``) has other inputs."""
    timeout_count = _count_timeouts(report)
    if mismatch_count := len(report.findings) - timeout_count:
        verb = "does" if mismatch_count == 1 else "do"
        text = f"{mismatch_count:,} of {_histories(report.checked)} {verb} not match the code"
        next_step = "Fix the code, or create a new version of it."
        raise CommandError(printing.with_next_step(text, next_step), returncode=printing.FINDINGS)
    if report.left_out:
        text = f"{counted(sum(report.left_out.values()), 'open run', 'open runs')} on the Temporal cluster could not be replayed"
        next_step = "Replay again when the cluster answers. To leave out its runs on purpose, pass --backend tables."
        raise CommandError(printing.with_next_step(text, next_step), returncode=printing.FINDINGS)
    differing = {(difference.run, difference.source) for difference in report.differences if difference.kind == "input"}
    if strict and differing:
        text = f"the code produces different inputs from those in {len(differing):,} of {_histories(report.checked)}"
        next_step = (
            "Give new fields and parameters defaults, sort values that come from a set, or replay without --strict."
        )
        raise CommandError(printing.with_next_step(text, next_step), returncode=printing.FINDINGS)
    if timeout_count:
        text = f"the replay of {timeout_count:,} of {_histories(report.checked)} took too long"
        next_step = "Replay them again with a larger --timeout. If that does not help, their code loops."
        raise CommandError(printing.with_next_step(text, next_step), returncode=printing.TRY_AGAIN)


def _count_timeouts(report: HistoriesReplayed) -> int:
    """Return the number of histories whose fit is unknown, because their replay took too long."""
    return sum(misfit.error == DeadlockDetected.code for misfit in report.findings)


def replay_runs(runs: Sequence[UUID], *, timeout: float | None = None) -> ReplayBatch:
    """Replay the histories of these runs, which are read from the database one by one.

    ``timeout`` is the processor time in seconds that the code may take between two waits, by default as much as the
    setting ``DEADLOCK_TIMEOUT`` and the length of a history allow.
    """
    storage = DjangoStorage()
    records = storage.run_records(runs)
    rows = Instance.objects.using(storage.alias).filter(pk__in=runs)
    executions = {row.pk: row for row in rows.filter(**_ON_CLUSTER).only("cluster_id", "cluster_run_id")}
    batch = ReplayBatch(len(runs), [], [])
    labels_by_run = {
        run: {"run": str(run), "id": records[run].workflow_id, "workflow": records[run].workflow} for run in runs
    }
    for run, labels in labels_by_run.items():
        if run in executions:
            continue
        try:
            events = storage.histories({run: 0})[run]
        except TemporalexError as exc:
            batch.findings.append({**labels, **_error_finding(exc)})
            continue
        _replay_history(labels, events, batch, timeout)
    if not executions:
        return batch
    return _replay_on_cluster({run: labels_by_run[run] for run in executions}, executions, batch, timeout)


def _replay_on_cluster(
    labels_by_run: Mapping[UUID, Finding], rows: Mapping[UUID, Instance], batch: ReplayBatch, timeout: float | None
) -> ReplayBatch:
    """Replay runs from their histories on the Temporal cluster, and return ``batch`` with the results."""
    limit = timeout if timeout is not None else replay_limit(0)
    run_code = partial(watchdog.run, limit=limit, label="a run on the Temporal cluster", by_processor_time=True)
    ids = {run: str(row.cluster_run_id) for run, row in rows.items()}
    try:
        executions = [(row.cluster_id, ids[run]) for run, row in rows.items()]
        outcomes = cluster_module("rebuild").replay_runs(executions, run_code=run_code)
    except (TemporalexError, ImportError) as exc:
        return batch._replace(histories=batch.histories - len(rows), left_out={str(exc): len(rows)})
    missing_count = 0
    for run, labels in labels_by_run.items():
        outcome = outcomes.get(ids[run])
        if outcome is None:
            missing_count += 1
        elif outcome.error is not None:
            batch.findings.append({**labels, **_error_finding(outcome.error)})
    left_out = {"the Temporal cluster does not have the run any more": missing_count} if missing_count else {}
    return batch._replace(histories=batch.histories - missing_count, left_out=left_out)


def replay_files(
    paths: Sequence[str], *, only: Sequence[str] | None = None, timeout: float | None = None
) -> ReplayBatch:
    """Replay the histories in these files, with the ``timeout`` of ``replay_runs``.

    A file that cannot be read is a finding, and so is one of a workflow that is not in ``only``.
    """
    batch = ReplayBatch(len(paths), [], [])
    for path in paths:
        try:
            history_file = replay.load(Path(path).read_bytes(), source=path)
            if only and history_file.workflow not in only:
                raise PayloadError(
                    f"{path}: event 1 belongs to the workflow {history_file.workflow}, not to {', '.join(only)}"
                )
        # One unusable file is a finding, and the others are still replayed.
        except (TemporalexError, OSError) as exc:
            labels = {"run": None, "id": None, "workflow": None, "source": path}
            batch.findings.append({**labels, **_error_finding(exc)})
            continue
        labels = {"run": history_file.run_id, "id": history_file.id, "workflow": history_file.workflow, "source": path}
        _replay_history(labels, history_file.events, batch, timeout)
    return batch


def _replay_history(labels: Finding, events: Sequence[HistoryEvent], batch: ReplayBatch, timeout: float | None) -> None:
    """Replay one history, and append the result to the lists of ``batch``. ``labels`` name the history."""
    try:
        definition = workflow.class_for_run(
            labels["workflow"], events[0].attributes.get("version", 1) if events else 1
        ).definition
        # Code may loop for ever over a history: the limit grows with the number of events. Processor time counts, since
        # a slow machine is no fault of the code.
        limit = timeout if timeout is not None else replay_limit(len(events))
        bounded_run = partial(watchdog.run, limit=limit, label=f"run {labels['run']}", by_processor_time=True)
        differences_found = replay.replay(definition, events, run=bounded_run)
    except Exception as exc:  # noqa: BLE001 - code of users: any error is a finding
        batch.findings.append({**labels, **_error_finding(exc)})
    else:
        batch.differences.extend({**labels, **_difference_finding(difference)} for difference in differences_found)


def _difference_finding(difference: ReplayDifference) -> Finding:
    """Return the fields of a difference without its values, which are payloads."""
    fields = {
        "kind": difference.kind,
        "event": difference.event,
        "command": difference.command,
        "path": difference.path,
    }
    return {**fields, **_parse_place(difference.place)}


def _parse_place(place: str | None) -> Finding:
    path, _, line = (place or "").rpartition(":")
    return {"file": path or None, "line": int(line) if line else None}


def _error_finding(error: BaseException) -> Finding:
    code = error.code if isinstance(error, TemporalexError) else type(error).__name__
    finding: Finding = {"error": code, "message": str(error) or type(error).__name__}
    if isinstance(error, NondeterminismError):
        finding |= {"seq": error.seq, "recorded": error.recorded, "produced": error.produced}
        finding |= _parse_place(error.place)
    elif not isinstance(error, (TemporalexError, OSError)):
        # An error of user code belongs to no command, so its innermost frame is the place.
        last_frame = traceback.extract_tb(error.__traceback__)[-1]
        finding |= {"file": last_frame.filename, "line": last_frame.lineno}
    return finding


def _select_runs(workflow: Sequence[str] | None, *, open: bool, backend: str | None) -> QuerySet[Instance]:
    """Return the runs that have started, oldest first, on a cluster only open ones, as with ``open``.

    Runs of a deployment that are pinned to the code with which they started are left out.
    """
    runs = Instance.objects.using(get_settings().DATABASE).filter(started_at__isnull=False).order_by("id")
    if backend != TEMPORAL:
        runs = runs.filter(Q(mirrored_at=None) | Q(closed_at=None))
    if backend is not None:
        runs = runs.filter(closed_at=None, **_ON_CLUSTER) if backend == TEMPORAL else runs.filter(mirrored_at=None)
    if "DEPLOYMENT" in get_settings().CLUSTER:
        pinned = [cls.name for cls in concrete_classes() if cls.versioning == "pinned"]
        runs = runs.exclude(workflow__in=pinned, **_ON_CLUSTER)
    if workflow:
        runs = runs.filter(workflow__in=workflow)
    return runs.open() if open else runs


def _choose(runs: QuerySet[Instance], *, sample: int | None, seed: int) -> list[UUID]:
    """Return ids of ``sample`` runs (None: of all); one ``seed`` makes one choice.

    They are chosen at random, in turn from the runs of each class, version, length (by powers of two) and wait.
    """
    if sample is None:
        return list(runs.values_list("pk", flat=True))
    groups: dict[tuple[Any, ...], list[UUID]] = {}
    for pk, name, version, length, waits in runs.values_list("pk", "workflow", "version", "chain__length", "waits"):
        groups.setdefault((name, version, length.bit_length(), str((waits or [None])[0])), []).append(pk)
    choose = random.Random(seed)  # noqa: S311 - a repeatable sample
    shuffled = [choose.sample(groups[key], len(groups[key])) for key in sorted(groups)]
    in_turn = (pk for turn in zip_longest(*shuffled) for pk in turn if pk is not None)
    # Sorted again, so that a sample runs in the same order each time.
    return sorted(islice(in_turn, sample))


def _history_files(names: Sequence[str]) -> list[Path]:
    files: list[Path] = []
    for path in map(Path, names):
        if not path.exists():
            raise printing.usage_error(f"--file {printing.escape(path)} does not exist", "Pass a file or a folder.")
        files += sorted(path.rglob("*.json")) if path.is_dir() else [path]
    return files


def _run_chunks(
    replay_chunk: Any, chunks: Sequence[Any], processes: int, *, always_spawn: bool
) -> Iterator[ReplayBatch]:
    """Yield results in order from processes with another hash seed; one needs no new one unless ``always_spawn``."""
    processes = min(processes, len(chunks))
    with ExitStack() as stack:
        results: Iterable[ReplayBatch]
        if processes > 1 or (always_spawn and chunks):
            stack.enter_context(_different_hash_seed())
            # Spawn, not fork: only a new interpreter takes the hash seed, and forked connections would be shared.
            pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), set_up_django, (sys.path,))
            results = stack.enter_context(pool).map(replay_chunk, chunks)
        else:
            results = map(replay_chunk, chunks)
        yield from results


@contextmanager
def _different_hash_seed() -> Iterator[None]:
    """Give new processes another hash seed: the order of sets differs, which finds code that depends on it."""
    previous_seed = os.environ.get(app_modules.VARIABLE)
    os.environ[app_modules.VARIABLE] = str(app_modules.different_seed())
    try:
        yield
    finally:
        if previous_seed is None:
            del os.environ[app_modules.VARIABLE]
        else:
            os.environ[app_modules.VARIABLE] = previous_seed


def _misfit_output(finding: Finding) -> HistoryMisfit:
    text_keys = ("run", "id", "workflow", "error", "message", "source", "recorded", "produced", "file")
    text_fields: dict[str, Any] = {
        name: None if finding.get(name) is None else str(finding[name]) for name in text_keys
    }
    return HistoryMisfit(**text_fields, seq=finding.get("seq"), line=finding.get("line"))


def _print_report(command: BaseCommand, report: HistoriesReplayed) -> None:
    for misfit in report.findings:
        location = ""
        if misfit.file:
            location = f" ({misfit.file}:{misfit.line})"
        printing.write_line(
            command, printing.escape(f"{misfit.workflow} {misfit.id} run {misfit.run}{location}: {misfit.message}")
        )
    for difference in report.differences:
        location = ""
        if difference.file:
            location = f" ({difference.file}:{difference.line})"
        problem = (
            f"different {difference.kind} at history event {difference.event}: {difference.command}, {difference.path}"
        )
        printing.write_line(
            command, printing.escape(f"{difference.workflow} {difference.id} run {difference.run}{location}: {problem}")
        )
    timeout_count = _count_timeouts(report)
    mismatches = counted(len(report.findings) - timeout_count, "does", "do")
    text = f"{_histories(report.checked)} replayed, {mismatches} not match the code"
    timeouts_text = ""
    if timeout_count:
        timeouts_text = f", {timeout_count:,} took too long"
    differences_text = ""
    if report.differences:
        differences_text = (
            f", {counted(len(report.differences), 'input or duration differs', 'inputs and durations differ')}"
        )
    printing.write_line(command, f"{text}{timeouts_text}{differences_text}")
    for reason, count in report.left_out.items():
        runs_text = counted(count, "run", "runs")
        printing.write_line(command, printing.escape(f"{runs_text} on the Temporal cluster not replayed: {reason}"))
