"""Reads of a run on a cluster that only the cluster can answer: for pages, which must not wait for it for long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from django.utils.translation import gettext as _

from temporalex_django.backends.protocol import RunTarget
from temporalex_django.backends.routing import backend_of, cluster_module
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.core.names import TABLES
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.errors import HistoryGone, NotConfigured, QueryFailed, TemporalexError
from temporalex_django.models import ActivityTask, Instance

T = TypeVar("T")

#: Seconds in which a worker has to tell the history of a run to a page.
HISTORY_SECONDS: Final = 2.0
#: Most open activities that a page counts.
MAX_TASKS: Final = 1000


def open_tasks_or_error(
    target: RunTarget, *, limit: int = MAX_TASKS, storage: DjangoStorage
) -> tuple[Sequence[ActivityTask], str | None]:
    """Return ``(open activities of a run, None)``, or no activities and a sentence that says why they are not known."""
    return _or_error(lambda: backend_of(target).open_tasks(target, limit=limit, storage=storage))


def read_block(run: Instance, target: RunTarget, *, storage: DjangoStorage) -> None:
    """Set ``run.blocked`` to what the cluster says about an open run whose task fails and whose row does not say so.

    A worker marks the row when it fails a task. It does not if it was stopped, or if the server failed the task. The
    row is not written. A cluster that does not answer changes nothing.
    """
    if target.backend == TABLES or run.blocked or not run.is_open or run.paused:
        return
    with suppress(TemporalexError, ImportError):
        run.blocked = cluster_module("reads").block(target, storage=storage)


def history_or_error(target: RunTarget, *, storage: DjangoStorage) -> tuple[Sequence[HistoryEvent], str | None]:
    """Return ``(events of a run, None)``, or no events and a sentence that says why they are not known."""
    if target.paused:
        return (), _("The run is paused. A Temporal cluster does not pass queries on to a paused run.")
    return _or_error(lambda: backend_of(target).history(target, storage=storage, timeout=HISTORY_SECONDS))


def _or_error(read: Callable[[], Sequence[T]]) -> tuple[Sequence[T], str | None]:
    try:
        return read(), None
    except NotConfigured as exc:
        return (), exc.message
    except HistoryGone:
        return (), _("The Temporal cluster has deleted this run, and its history with it. The rows here are kept.")
    except QueryFailed:
        return (), _("No worker has answered in time. Only a worker with the code of the run can answer.")
    except TemporalexError:
        # The text of the error is for operators: it names the server.
        return (), _("The Temporal cluster has not answered in time.")


def history_of(target: RunTarget, *, storage: DjangoStorage) -> Sequence[HistoryEvent] | None:
    """Return the events of a run on a cluster, or None for a run whose events are rows. Raises ``QueryFailed``."""
    if target.backend == TABLES:
        return None
    return backend_of(target).history(target, storage=storage)
