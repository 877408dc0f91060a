"""Replay stored histories against the code at hand: the gate before a deploy.

Reads only; exit status 1 when a run does not fit.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
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
from temporalex_django.management.django_in_child import set_up
from temporalex_django.management.printing import progress
from temporalex_django.models import Instance

Finding = dict[str, Any]

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
    parser.add_argument("--json", metavar="PATH", help="write the report there; - is the standard output")


def handle(
    command: BaseCommand,
    *,
    file: Sequence[str] | None,
    sample: int | None,
    processes: int | None,
    json: str | None,
    **chosen: Any,
) -> None:
    """Raises ``CommandError`` (exit status 1) when a history does not fit, or cannot be used."""
    if sample is not None and sample < 1:
        raise CommandError(f"--sample {sample}: give a number from 1")
    work: Callable[[Sequence[Any]], tuple[int, list[Finding]]] = replay_runs
    if file:
        runs: list[Any] = [str(path) for path in _paths(file)]
        work = partial(replay_files, only=chosen["workflow"])
    else:
        runs = _runs(**{name: chosen[name] for name in ("workflow", "open", "seed")}, sample=sample)
    chunks = [runs[i : i + _CHUNK] for i in range(0, len(runs), _CHUNK)]
    findings: list[Finding] = []
    done = 0
    for count, found in _spread(work, chunks, processes or os.cpu_count() or 1):
        done += count
        findings += found
        progress(command, done, len(runs), f", {len(findings):,} do not fit")
    report = {"checked": done, "clean": done - len(findings), "findings": findings}
    _tell(command, report, json)
    if findings:
        raise CommandError(f"{len(findings)} of {done} histories do not fit the code", returncode=1)


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
            raise CommandError(f"--file {path}: there is no such file")
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


def _tell(command: BaseCommand, report: dict[str, Any], path: str | None) -> None:
    text = json.dumps(report, indent=2, ensure_ascii=False)
    if path == "-":
        command.stdout.write(text)
        return
    if path is not None:
        Path(path).write_text(text + "\n")
    for found in report["findings"]:
        where = f" ({found['file']}:{found['line']})" if found.get("file") else ""
        command.stdout.write(f"{found['workflow']} {found['id']} run {found['run']}{where}: {found['message']}")
    command.stdout.write(f"{report['checked']:,} histories replayed, {len(report['findings']):,} do not fit the code")
