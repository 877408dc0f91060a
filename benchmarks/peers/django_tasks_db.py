"""django-tasks-db, the backend of the authors of ``django.tasks``, with its ``db_worker``, in the same database."""

from __future__ import annotations

from typing import Any

from benchmarks.processes import process
from benchmarks.tasks import measured

#: It looks ten times a second when there is nothing to do; while there is, that is not asked.
_WORKER = ("-m", "django", "db_worker", "--backend", "peer", "--no-startup-delay", "--interval", "0.1", "-v", "0")


def run(count: int) -> dict[str, Any]:
    """Raises ``ImportError`` where it is not installed."""
    from django_tasks_db.models import DBTaskResult

    DBTaskResult.objects.all().delete()
    found = measured(count, "peer", process(*_WORKER), lambda: DBTaskResult.objects.successful().count())
    return found | {"way": "db_worker"}
