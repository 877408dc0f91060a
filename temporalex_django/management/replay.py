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
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError, CommandParser

from temporalex_django.authoring import workflow
from temporalex_django.conf import get_settings
from temporalex_django.core.history import json_file, replay
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.watchdog import watchdog
from temporalex_django.errors import NondeterminismError, PayloadError, TemporalexError
from temporalex_django.management import exits, printing
from temporalex_django.management.django_in_child import set_up
from temporalex_django.models import Instance

Finding = dict[str, Any]


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
class HistoriesReplayed:
    """How many histories were replayed, and what does not fit."""

    checked: int
    clean: int
    findings: Sequence[HistoryMisfit]


output = HistoriesReplayed

#: Runs that one process takes at a time.
_CHUNK = 20
_REPLAYED_PER_SECOND = 10_000


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
    printing.add_json(parser)


def handle(
    command: BaseCommand,
    *,
    file: Sequence[str] | None,
    sample: int | None,
    processes: int | None,
    json: bool,
    **chosen: Any,
) -> None:
    """Raises ``CommandError`` (exit status 1) when a history does not fit, or cannot be used."""
    if sample is not None and sample < 1:
        raise exits.misused(f"--sample {sample}", "Give a number from 1.")
    work: Callable[[Sequence[Any]], tuple[int, list[Finding]]] = replay_runs
    if file:
        runs: list[Any] = [str(path) for path in _paths(file)]
        work = partial(replay_files, only=chosen["workflow"])
    else:
        runs = _runs(**{name: chosen[name] for name in ("workflow", "open", "seed")}, sample=sample)
    chunks = [runs[i : i + _CHUNK] for i in range(0, len(runs), _CHUNK)]
    findings: list[Finding] = []
    done = 0
    with printing.progress(command) as tell:
        for count, found in _spread(work, chunks, processes or os.cpu_count() or 1):
            done += count
            findings += found
            tell(done, len(runs), f", {len(findings):,} do not fit")
    report = HistoriesReplayed(checked=done, clean=done - len(findings), findings=[*map(_misfit, findings)])
    if json:
        printing.document(command, report)
    else:
        _print(command, report)
    if findings:
        text = f"{len(findings)} of {done} histories do not fit the code"
        then = "Put the code right, or make a new version of it."
        raise CommandError(exits.sentence(text, then), returncode=exits.FOUND)


def replay_runs(runs: Sequence[UUID]) -> tuple[int, list[Finding]]:
    """Replay these runs of the database; how many, and what was found."""
    storage = DjangoStorage()
    facts = storage.facts(runs)
    findings = []
    for run in runs:
        about = {"run": str(run), "id": facts[run].workflow_id, "workflow": facts[run].workflow}
        try:
            events = storage.histories({run: 0})[run]
        except TemporalexError as exc:
            findings.append({**about, **_described(exc)})
            continue
        findings += _check(about, events)
    return len(runs), findings


def replay_files(paths: Sequence[str], *, only: Sequence[str] | None = None) -> tuple[int, list[Finding]]:
    """Replay these files; how many, and what was found."""
    findings = []
    for path in paths:
        try:
            stored = json_file.load(Path(path).read_bytes(), source=path)
            if only and stored.workflow not in only:
                raise PayloadError(f"{path}: event 1 is of the workflow {stored.workflow}, not of {', '.join(only)}")
        except (TemporalexError, OSError) as exc:
            findings.append({"run": None, "id": None, "workflow": None, "source": path, **_described(exc)})
            continue
        about = {"run": stored.run_id, "id": stored.id, "workflow": stored.workflow, "source": path}
        findings += _check(about, stored.events)
    return len(paths), findings


def _check(about: Finding, events: Sequence[HistoryEvent]) -> list[Finding]:
    limit = get_settings().DEADLOCK_TIMEOUT
    if limit is not None:
        limit += len(events) / _REPLAYED_PER_SECOND
    try:
        definition = workflow.code_of(
            about["workflow"], events[0].attributes.get("version", 1) if events else 1
        ).definition
        bounded = partial(watchdog.run, limit=limit, what=f"run {about['run']}")
        replay.replay(definition, events, run=bounded)
    except Exception as exc:  # noqa: BLE001 - the code of the run: whatever it raises is the finding
        return [{**about, **_described(exc)}]
    return []


def _described(error: BaseException) -> Finding:
    code = error.code if isinstance(error, TemporalexError) else type(error).__name__
    found: Finding = {"error": code, "message": str(error) or type(error).__name__}
    if isinstance(error, NondeterminismError):
        found |= {"seq": error.seq, "recorded": error.recorded, "produced": error.produced}
        path, _, line = (error.place or "").rpartition(":")
        found |= {"file": path or None, "line": int(line) if line else None}
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


def _spread(work: Any, chunks: Sequence[Any], processes: int) -> Iterator[tuple[int, list[Finding]]]:
    """Results of ``work`` in order: here when there is little to do, else in fresh processes that set Django up."""
    processes = min(processes, len(chunks))
    with ExitStack() as stack:
        results: Iterable[tuple[int, list[Finding]]]
        if processes > 1:
            pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), set_up, (sys.path,))
            results = stack.enter_context(pool).map(work, chunks)
        else:
            results = map(work, chunks)
        yield from results


def _misfit(found: Finding) -> HistoryMisfit:
    texts = ("run", "id", "workflow", "error", "message", "source", "recorded", "produced", "file")
    said: dict[str, Any] = {name: None if found.get(name) is None else str(found[name]) for name in texts}
    return HistoryMisfit(**said, seq=found.get("seq"), line=found.get("line"))


def _print(command: BaseCommand, report: HistoriesReplayed) -> None:
    for one in report.findings:
        where = f" ({one.file}:{one.line})" if one.file else ""
        printing.write(command, printing.safe(f"{one.workflow} {one.id} run {one.run}{where}: {one.message}"))
    text = f"{report.checked:,} histories replayed, {len(report.findings):,} do not fit the code"
    printing.write(command, text)
