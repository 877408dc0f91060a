"""What open runs hold, beside what this code has: classes, activities, steps, keys of payloads, histories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from uuid import UUID

from django.db.models import Count, Max

from temporalex_django.authoring import activity
from temporalex_django.authoring import workflow as workflows
from temporalex_django.conf import codec, get_settings
from temporalex_django.errors import ActivityNotFound, KeyMissing, TemporalexError, UnknownVersion, UnknownWorkflow
from temporalex_django.graph.steps import key_of
from temporalex_django.graph.workflow import GraphWorkflow
from temporalex_django.management.facts import Runs, open_runs
from temporalex_django.management.replay import replay_runs
from temporalex_django.models import ActivityTask, Instance
from temporalex_django.present.deploys import Lack, fits, other_inputs
from temporalex_django.present.diagnosis import Diagnosis

_TOGETHER = 20
_READ = ("args", "published")


def compared(runs: Runs, *, sample: int, each: Callable[[int, int], None], strict: bool = False) -> list[Diagnosis]:
    """What does not fit. Of each class and version the newest ``sample`` runs are read and replayed here.

    ``each`` is told how many of how many are done. Inputs that differ are listed; ``strict`` makes them errors. Reads
    only.
    """
    alias = get_settings().DATABASE
    there = open_runs(alias, runs)
    groups: Any = there.order_by("workflow", "version").values("workflow", "version")
    rows = [*groups.annotate(count=Count("pk"), example=Max("workflow_id"))]
    lacking: list[Lack] = []
    chosen: list[UUID] = []
    for row in rows:
        name, version = row["workflow"], row["version"]
        try:
            code = workflows.class_for_run(name, version)
        except (UnknownWorkflow, UnknownVersion):
            text = f"{name} (version {version})"
            lacking.append(Lack(kind="class", name=text, count=row["count"], example=row["example"]))
            continue
        some = [*there.filter(workflow=name, version=version).order_by("-id")[:sample]]
        lacking += _steps(some, code)
        for run in some:
            if (lack := _unreadable(run)) is not None:
                lacking.append(lack)
            elif run.started_at is not None:
                chosen.append(run.pk)
    lacking += _activities(alias, runs)
    done, others = 0, list[dict[str, Any]]()
    while done < len(chosen):
        checked = replay_runs(chosen[done : done + _TOGETHER])
        lacking += [
            Lack(kind="replay", name=one["workflow"], example=one["id"], count=1, why=one["message"])
            for one in checked.findings
        ]
        others += [one for one in checked.differences if one["kind"] == "input"]
        done = min(done + _TOGETHER, len(chosen))
        each(done, len(chosen))
    told = fits(lacking, runs=sum(row["count"] for row in rows), replayed=len(chosen))
    return [*told, *other_inputs([*_by_place(others)], strict=strict)]


def _by_place(others: Iterable[dict[str, Any]]) -> Iterator[Lack]:
    """One of those that differ at one place of one class."""
    by_place: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for one in others:
        command = one["command"].partition("seq")[2].partition(", ")[2]  # without the number, which differs by run
        by_place.setdefault((one["workflow"], command, one["path"], one["file"], one["line"]), []).append(one)
    for (name, command, path, file, line), found in by_place.items():
        where = f" ({file}:{line})" if file else ""
        count = len({one["run"] for one in found})
        yield Lack(kind="input", name=name, example=found[0]["id"], count=count, why=f"{command}, {path}{where}")


def _steps(some: list[Instance], code: Any) -> Iterator[Lack]:
    """Keys of steps that runs wait in, and that the graph no longer has."""
    if not issubclass(code, GraphWorkflow):
        return
    known = {key_of(step) for step in code.graph()}
    held: Counter[str] = Counter()
    example: dict[str, str] = {}
    for run in some:
        for wait in run.waits or ():
            key = str(wait.get("name"))
            if wait.get("kind") == "step" and key not in known:
                held[key] += 1
                example[key] = run.workflow_id
    for key, count in sorted(held.items()):
        yield Lack(
            kind="step", name=f"{key} of {code.name} (version {code.version})", count=count, example=example[key]
        )


def _unreadable(run: Instance) -> Lack | None:
    """Why its payloads cannot be read here."""
    try:
        for data in (getattr(run, name) for name in _READ):
            if data is not None:
                codec().decode(bytes(data))
    except TemporalexError as exc:
        kind: Any = "key" if isinstance(exc, KeyMissing) else "payload"
        return Lack(kind=kind, name=run.workflow, count=1, example=run.workflow_id, why=str(exc))
    return None


def _activities(alias: str, runs: Runs) -> Iterator[Lack]:
    tasks = ActivityTask.objects.using(alias)
    if runs is not None:
        tasks = tasks.filter(run__in=runs)
    rows: Any = tasks.order_by("activity").values("activity")
    for row in rows.annotate(count=Count("pk"), example=Max("workflow_id")):
        try:
            activity.find(row["activity"])
        except ActivityNotFound:
            yield Lack(kind="activity", name=row["activity"], count=row["count"], example=row["example"])
