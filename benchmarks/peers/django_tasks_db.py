"""The peer django-tasks-db, by the authors of ``django.tasks``, with its ``db_worker``, in the same database."""

from __future__ import annotations

from typing import Any

from benchmarks.processes import process
from benchmarks.tasks import measured

#: It polls ten times a second when there is nothing to do; while there is work, it does not pause.
_WORKER = ("-m", "django", "db_worker", "--backend", "peer", "--no-startup-delay", "--interval", "0.1", "-v", "0")


def run(count: int) -> dict[str, Any]:
    """Measure so many tasks. Raises ``ImportError`` if the package is not installed."""
    from django_tasks_db.models import DBTaskResult

    DBTaskResult.objects.all().delete()
    found = measured(count, "peer", process(*_WORKER), lambda: DBTaskResult.objects.successful().count())
    return found | {"way": "db_worker"}
