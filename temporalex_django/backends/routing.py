"""The backend of a run, by the name that its chain has, and of a class that is started."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from temporalex_django.authoring.workflow import Workflow
from temporalex_django.backends.host import host
from temporalex_django.backends.protocol import RunBackend, RunTarget
from temporalex_django.conf import get_settings, uses_cluster
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.core.names import TABLES
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.errors import NotConfigured


def backend_of(target: RunTarget) -> RunBackend | None:
    """Return the backend that stores a run, or None if that is the tables of this package.

    Raises ``NotConfigured`` if this process cannot reach it.
    """
    return None if target.backend == TABLES else _cluster()


def backend_of_class(workflow: type[Workflow]) -> RunBackend | None:
    """Return the backend that stores new runs of a class, or None if that is the tables of this package.

    Raises ``NotConfigured`` as ``backend_of`` does, and for a class on a cluster that the settings do not name: no
    worker would poll it.
    """
    name = host().backend or workflow.backend or get_settings().BACKEND
    if name == TABLES:
        return None
    if host().backend is None and not uses_cluster():
        raise NotConfigured(f"{workflow.name} has backend = {name!r}, and TEMPORALEX['CLUSTER'] is empty: set it")
    return _cluster()


def read_history(target: RunTarget, *, storage: DjangoStorage, timeout: float | None = None) -> list[HistoryEvent]:
    """Return the events of the selected run, oldest first.

    Those on a cluster are read by a worker, within ``timeout`` seconds. Raises ``QueryFailed`` for them.
    """
    if (backend := backend_of(target)) is not None:
        return backend.history(target, storage=storage, timeout=timeout)
    return storage.histories({target.selected_run_id: 0})[target.selected_run_id]


def _cluster() -> RunBackend:
    """Import the modules of the cluster at the first call."""
    try:
        backend: RunBackend = _load_cluster()
    except ImportError as exc:
        raise NotConfigured(
            "this run lives on a Temporal cluster, and this process lacks the client for it "
            f"({exc}): pip install 'temporalex-django[temporal]'"
        ) from exc
    return backend


@cache
def _load_cluster() -> Any:
    return cluster_module("backend").ClusterBackend()


def cluster_module(name: str) -> Any:
    """Return a module of ``backends.cluster``. Raises ``ImportError`` without the SDK of Temporal."""
    # The import is by name: the SDK is an extra.
    return import_module(f"temporalex_django.backends.cluster.{name}")
