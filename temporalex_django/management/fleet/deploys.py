"""The comparison of what open runs need with the code of this process.

It covers classes, activities, steps, keys of payloads and histories.
"""

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
from temporalex_django.management.fleet.diagnostics import Runs, open_runs
from temporalex_django.management.runs.replay import replay_runs
from temporalex_django.models import ActivityTask, Instance
from temporalex_django.present.deploys import CodeMismatch, deploy_diagnoses, input_diagnoses
from temporalex_django.present.diagnosis import Diagnosis

_BATCH_SIZE = 20
_PAYLOAD_COLUMNS = ("args", "published")


def compare_with_runs(
    runs: Runs, *, sample: int, report: Callable[[int, int], None], strict: bool = False
) -> list[Diagnosis]:
    """Return a diagnosis for everything that does not fit. Reads only.

    Of each class and version the newest ``sample`` runs are read and replayed in this process. ``report`` is called
    with the number of replayed runs and their total. Inputs that differ are listed; ``strict`` makes them errors.
    """
    alias = get_settings().DATABASE
    candidate_runs = open_runs(alias, runs)
    groups: Any = candidate_runs.order_by("workflow", "version").values("workflow", "version")
    rows = [*groups.annotate(count=Count("pk"), example=Max("workflow_id"))]
    mismatches: list[CodeMismatch] = []
    replayed_ids: list[UUID] = []
    for row in rows:
        name, version = row["workflow"], row["version"]
        try:
            code = workflows.class_for_run(name, version)
        # Without the class nothing else of its runs can be compared.
        except (UnknownWorkflow, UnknownVersion):
            text = f"{name} (version {version})"
            mismatches.append(CodeMismatch(kind="class", name=text, count=row["count"], example=row["example"]))
            continue
        sample_runs = [*candidate_runs.filter(workflow=name, version=version).order_by("-id")[:sample]]
        mismatches += _missing_steps(sample_runs, code)
        for run in sample_runs:
            if (mismatch := _find_unreadable(run)) is not None:
                mismatches.append(mismatch)
            # A run without a first turn has no history to replay.
            elif run.started_at is not None:
                replayed_ids.append(run.pk)
    mismatches += _missing_activities(alias, runs)
    done, differences = 0, list[dict[str, Any]]()
    # In batches, so that progress can be reported and only a few histories are in memory.
    while done < len(replayed_ids):
        checked = replay_runs(replayed_ids[done : done + _BATCH_SIZE])
        mismatches += [
            CodeMismatch(
                kind="replay", name=finding["workflow"], example=finding["id"], count=1, reason=finding["message"]
            )
            for finding in checked.findings
        ]
        differences += [finding for finding in checked.differences if finding["kind"] == "input"]
        done = min(done + _BATCH_SIZE, len(replayed_ids))
        report(done, len(replayed_ids))
    diagnoses = deploy_diagnoses(mismatches, runs=sum(row["count"] for row in rows), replayed=len(replayed_ids))
    return [*diagnoses, *input_diagnoses([*_input_mismatches(differences)], strict=strict)]


def _input_mismatches(differences: Iterable[dict[str, Any]]) -> Iterator[CodeMismatch]:
    """Yield one mismatch for all differences at one place of one class."""
    by_place: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for difference in differences:
        command = (
            difference["command"].partition("seq")[2].partition(", ")[2]
        )  # without the command number, which differs between runs
        by_place.setdefault(
            (difference["workflow"], command, difference["path"], difference["file"], difference["line"]), []
        ).append(difference)
    for (name, command, path, file, line), group in by_place.items():
        location = f" ({file}:{line})" if file else ""
        count = len({difference["run"] for difference in group})
        yield CodeMismatch(
            kind="input", name=name, example=group[0]["id"], count=count, reason=f"{command}, {path}{location}"
        )


def _missing_steps(sample_runs: list[Instance], code: Any) -> Iterator[CodeMismatch]:
    """Yield the steps in which runs wait and which the graph does not have."""
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
    """Return the mismatch if the payloads of the run cannot be read here."""
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
