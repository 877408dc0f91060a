"""Ids of runs on the cluster, made of the business id and the scope in which it is unique, and names of task queues."""

from __future__ import annotations

from uuid import UUID

from temporalex_django.authoring.activity_options import SEPARATOR
from temporalex_django.authoring.workflow import Workflow, concrete_classes
from temporalex_django.conf import get_settings
from temporalex_django.engine.run_start import RunStart


def prefix() -> str:
    """Return the prefix of all ids of this project on the cluster."""
    text: str = get_settings().CLUSTER.get("PREFIX", "")
    return text


def task_queue(queue: str) -> str:
    """Return the task queue on the cluster for a queue of this project, which other projects do not share."""
    return f"{prefix()}{queue}"


def queue_of(name: str) -> str:
    """Return the queue of this project for a task queue on the cluster."""
    return name.removeprefix(prefix())


def identity_of(worker: object) -> str:
    """Return the identity under which the cluster lists the worker with this id."""
    return f"temporalex-worker-{worker}"


def quoted(text: str) -> str:
    """Return a string as a literal of the cluster's list filter."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def cluster_id(start: RunStart, chain_id: UUID) -> str:
    """Return the id on the cluster of a run that is started: the prefix and the key that is unique among open runs.

    With the scope ``none`` there is no such key, so the id ends with digits of the chain.
    """
    return f"{prefix()}{start.open_key or f'n:{start.workflow_id}:{chain_id.hex[-8:]}'}"


def cluster_id_of(workflow_id: str) -> str:
    """Return the id on the cluster of the run with this business id, as another run names it.

    The class is found by the key in the id. Without one the id is unique among all runs. With the scope ``none`` the
    run cannot be found by its id.
    """
    key, separator, _ = workflow_id.partition(SEPARATOR)
    cls = next((cls for cls in concrete_classes() if _has_key(cls, key)), None) if separator else None
    scope = "global" if cls is None or cls.unique is None else cls.unique.scope
    name, version = ("", 1) if cls is None else (cls.name, cls.version)
    start = RunStart(workflow_id=workflow_id, workflow=name, version=version, args=None, scope=scope)
    return f"{prefix()}{start.open_key or f'n:{workflow_id}'}"


def _has_key(cls: type[Workflow], key: str) -> bool:
    return cls.unique is not None and cls.unique.key == key
