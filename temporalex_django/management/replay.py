"""Replay stored histories against the code at hand: the gate before a deploy.

Reads only; exit status 1 when a run does not fit.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from temporalex_django.actions.compare import replay_limit
from temporalex_django.authoring import workflow
from temporalex_django.conf import get_settings
from temporalex_django.core.history import json_file, replay
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.core.history.inputs import ReplayDifference
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.watchdog import watchdog
from temporalex_django.errors import NondeterminismError, PayloadError, TemporalexError
from temporalex_django.management import exits, printing
from temporalex_django.management.django_in_child import set_up
from temporalex_django.models import Instance
from temporalex_django.workers import hash_seed

Finding = dict[str, Any]


class Checked(NamedTuple):
    """The result of some histories: their number, those that do not fit, and the differences in those that do."""

    histories: int
    findings: list[Finding]
    differences: list[Finding]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryMisfit:
    """A history that does not fit, or cannot be used; ``source`` is its file.

    ``recorded`` and ``produced`` are the commands that differ, ``seq`` is their number; ``file`` and ``line`` are where
    the code stood.
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
    """An input of an activity or a child, or a duration, that the code gives now and the history does not have.

    ``event`` is the number of the history event, ``command`` the command that it is of, ``path`` where in the input
    they differ, in names that the code declares. ``file`` and ``line`` are where the code stood.
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
    """How many histories were replayed, what does not fit, and what may have been changed on purpose."""

    checked: int
    clean: int
    findings: Sequence[HistoryMisfit]
    differences: Sequence[HistoryDifference]


output = HistoriesReplayed

#: Runs that one process takes at a time.
_CHUNK = 20


def add_arguments(parser: CommandParser) -> None:
    """Say which arguments the subcommand takes."""
    parser.add_argument(
        "--workflow", action="append", metavar="NAME", help="only runs of this workflow (may be repeated)"
    )
    parser.add_argument("--open", action="store_true", help="only runs that are open")
    parser.add_argument("--sample", type=int, metavar="N", help="only so many runs, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: 0)")
    parser.add_argument(
        "--file",
        action="append",
        metavar="PATH",
        help="a history file, or a folder of them, instead of the database (may be repeated)",
    )
    parser.add_argument("--processes", type=int, help="at most so many (default: one a processor)")
    parser.add_argument(
        "--strict",
        action="store_true",
        help="fail where an input of an activity or a child differs, too; without it they are listed",
    )
    printing.add_json(parser)


def handle(
    command: BaseCommand,
    *,
    file: Sequence[str] | None,
    sample: int | None,
    processes: int | None,
    strict: bool,
    json: bool,
    **chosen: Any,
) -> None:
    """Raises ``CommandError`` (exit status 1) when a history does not fit, or cannot be used.

    From the command line the histories are replayed in processes with another hash seed than this one.
    """
    if sample is not None and sample < 1:
        raise exits.misused(f"--sample {sample}", "Give a number from 1.")
    work: Callable[[Sequence[Any]], Checked] = replay_runs
    if file:
        runs: list[Any] = [str(path) for path in _paths(file)]
        work = partial(replay_files, only=chosen["workflow"])
    else:
        runs = _runs(**{name: chosen[name] for name in ("workflow", "open", "seed")}, sample=sample)
    chunks = [runs[i : i + _CHUNK] for i in range(0, len(runs), _CHUNK)]
    findings: list[Finding] = []
    differences: list[Finding] = []
    done = 0
    # a transaction shows the histories to nobody else
    shared = not connections[get_settings().DATABASE].in_atomic_block
    apart = shared and bool(getattr(command, "_called_from_command_line", False))
    with printing.progress(command) as tell:
        for some in _spread(work, chunks, processes or os.cpu_count() or 1, apart=apart):
            done += some.histories
            findings += some.findings
            differences += some.differences
            tell(done, len(runs), f", {len(findings):,} do not fit")
    report = HistoriesReplayed(
        checked=done,
        clean=done - len(findings),
        findings=[*map(_misfit, findings)],
        differences=[HistoryDifference(**one) for one in differences],
    )
    if json:
        printing.document(command, report)
    else:
        _print(command, report)
    if findings:
        text = f"{len(findings)} of {done} histories do not fit the code"
        then = "Put the code right, or make a new version of it."
        raise CommandError(exits.sentence(text, then), returncode=exits.FOUND)
    if strict and (others := [one for one in report.differences if one.kind == "input"]):
        text = f"the code gives another input than {len({(one.run, one.source) for one in others})} of {done} histories have"
        then = "Give new fields and parameters defaults, sort what comes from a set, or replay without --strict."
        raise CommandError(exits.sentence(text, then), returncode=exits.FOUND)


def replay_runs(runs: Sequence[UUID]) -> Checked:
    """Replay these runs of the database."""
    storage = DjangoStorage()
    facts = storage.run_records(runs)
    findings: list[Finding] = []
    differences: list[Finding] = []
    for run in runs:
        about = {"run": str(run), "id": facts[run].workflow_id, "workflow": facts[run].workflow}
        try:
            events = storage.histories({run: 0})[run]
        except TemporalexError as exc:
            findings.append({**about, **_described(exc)})
            continue
        _check(about, events, findings, differences)
    return Checked(len(runs), findings, differences)


def replay_files(paths: Sequence[str], *, only: Sequence[str] | None = None) -> Checked:
    """Replay these files."""
    findings: list[Finding] = []
    differences: list[Finding] = []
    for path in paths:
        try:
            stored = json_file.load(Path(path).read_bytes(), source=path)
            if only and stored.workflow not in only:
                raise PayloadError(f"{path}: event 1 is of the workflow {stored.workflow}, not of {', '.join(only)}")
        except (TemporalexError, OSError) as exc:
            findings.append({"run": None, "id": None, "workflow": None, "source": path, **_described(exc)})
            continue
        about = {"run": stored.run_id, "id": stored.id, "workflow": stored.workflow, "source": path}
        _check(about, stored.events, findings, differences)
    return Checked(len(paths), findings, differences)


def _check(about: Finding, events: Sequence[HistoryEvent], findings: list[Finding], differences: list[Finding]) -> None:
    """Replay one history, and add what there is to say of it."""
    try:
        definition = workflow.class_for_run(
            about["workflow"], events[0].attributes.get("version", 1) if events else 1
        ).definition
        bounded = partial(watchdog.run, limit=replay_limit(len(events)), label=f"run {about['run']}")
        found = replay.replay(definition, events, run=bounded)
    except Exception as exc:  # noqa: BLE001 - the code of the run: whatever it raises is the finding
        findings.append({**about, **_described(exc)})
    else:
        differences += [{**about, **_differs(one)} for one in found]


def _differs(found: ReplayDifference) -> Finding:
    """Without the values, which are payloads."""
    said = {"kind": found.kind, "event": found.event, "command": found.command, "path": found.path}
    return {**said, **_place(found.place)}


def _place(place: str | None) -> Finding:
    path, _, line = (place or "").rpartition(":")
    return {"file": path or None, "line": int(line) if line else None}


def _described(error: BaseException) -> Finding:
    code = error.code if isinstance(error, TemporalexError) else type(error).__name__
    found: Finding = {"error": code, "message": str(error) or type(error).__name__}
    if isinstance(error, NondeterminismError):
        found |= {"seq": error.seq, "recorded": error.recorded, "produced": error.produced}
        found |= _place(error.place)
    elif not isinstance(error, (TemporalexError, OSError)):
        last = traceback.extract_tb(error.__traceback__)[-1]
        found |= {"file": last.filename, "line": last.lineno}
    return found


def _runs(*, workflow: Sequence[str] | None, open: bool, sample: int | None, seed: int) -> list[UUID]:
    runs = Instance.objects.using(get_settings().DATABASE).filter(started_at__isnull=False).order_by("id")
    if workflow:
        runs = runs.filter(workflow__in=workflow)
    if open:
        runs = runs.open()
    found = list(runs.values_list("pk", flat=True))
    if sample is not None and sample < len(found):
        found = sorted(random.Random(seed).sample(found, sample))  # noqa: S311 - a draw that can be repeated
    return found


def _paths(given: Sequence[str]) -> list[Path]:
    found: list[Path] = []
    for path in map(Path, given):
        if not path.exists():
            raise exits.misused(f"--file {printing.safe(path)}: there is no such file", "Name a file or a folder.")
        found += sorted(path.rglob("*.json")) if path.is_dir() else [path]
    return found


def _spread(work: Any, chunks: Sequence[Any], processes: int, *, apart: bool) -> Iterator[Checked]:
    """Results of ``work`` in order, from fresh processes that set Django up; here when there is little to do.

    ``apart``: in fresh processes in any case. They have another hash seed than this one.
    """
    processes = min(processes, len(chunks))
    with ExitStack() as stack:
        results: Iterable[Checked]
        if processes > 1 or (apart and chunks):
            stack.enter_context(_another_seed())
            pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), set_up, (sys.path,))
            results = stack.enter_context(pool).map(work, chunks)
        else:
            results = map(work, chunks)
        yield from results


@contextmanager
def _another_seed() -> Iterator[None]:
    """Processes that are started meanwhile order their sets in another way."""
    before = os.environ.get(hash_seed.VARIABLE)
    os.environ[hash_seed.VARIABLE] = str(hash_seed.different_seed())
    try:
        yield
    finally:
        if before is None:
            del os.environ[hash_seed.VARIABLE]
        else:
            os.environ[hash_seed.VARIABLE] = before


def _misfit(found: Finding) -> HistoryMisfit:
    texts = ("run", "id", "workflow", "error", "message", "source", "recorded", "produced", "file")
    said: dict[str, Any] = {name: None if found.get(name) is None else str(found[name]) for name in texts}
    return HistoryMisfit(**said, seq=found.get("seq"), line=found.get("line"))


def _print(command: BaseCommand, report: HistoriesReplayed) -> None:
    for one in report.findings:
        where = f" ({one.file}:{one.line})" if one.file else ""
        printing.write(command, printing.safe(f"{one.workflow} {one.id} run {one.run}{where}: {one.message}"))
    for differs in report.differences:
        where = f" ({differs.file}:{differs.line})" if differs.file else ""
        what = f"another {differs.kind} at history event {differs.event}: {differs.command}, {differs.path}"
        printing.write(command, printing.safe(f"{differs.workflow} {differs.id} run {differs.run}{where}: {what}"))
    text = f"{report.checked:,} histories replayed, {len(report.findings):,} do not fit the code"
    others = f", {len(report.differences):,} inputs and durations differ" if report.differences else ""
    printing.write(command, f"{text}{others}")
