"""List Django tasks that were enqueued, newest first: those that are open, and ends that are kept.

With --json a line of JSON each. Arguments and results are not shown: `get_result(id)` has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from heapq import merge
from itertools import islice

from django.core.management.base import BaseCommand, CommandParser

from temporalex_django.actions.base import storage
from temporalex_django.actions.lone_tasks import STATUSES
from temporalex_django.db.querying import iterate_pages
from temporalex_django.errors import ActionNotPermitted
from temporalex_django.management import as_user as people
from temporalex_django.management import exits, printing
from temporalex_django.models import EndedTask, EnqueuedTask

_SHOWN = 50
_PAGE = 500
_UNREAD = ("call", "options")
#: As for the lists in the admin.
_RIGHTS = ("temporalex_django.view_enqueuedtask", "temporalex_django.view_endedtask")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueuedPrinted:
    """A Django task as it stands; ``due_at`` while it is open, ``finished_at`` when it has ended."""

    id: str
    task: str
    status: str
    queue: str
    priority: int
    attempts: int
    enqueued_at: datetime
    due_at: datetime | None
    finished_at: datetime | None


output = EnqueuedPrinted


def add_arguments(parser: CommandParser) -> None:
    """Say which arguments the subcommand takes."""
    parser.add_argument("--status", choices=STATUSES, help="only these, in the words of django.tasks")
    parser.add_argument("--queue", metavar="NAME", help="only those of this queue")
    parser.add_argument("--task", metavar="PATH", help="only those of this function")
    parser.add_argument("--limit", type=int, metavar="N", help=f"at most so many (default: {_SHOWN}; with --json all)")
    people.add_argument(parser)
    printing.add_json(parser)


def handle(
    command: BaseCommand,
    *,
    status: str | None,
    queue: str | None,
    task: str | None,
    limit: int | None,
    as_user: str | None,
    json: bool,
    **_: object,
) -> None:
    """Reads pages of 500 by key from two tables."""
    by = people.actor(as_user)
    if by.user is not None and (lacks := [right for right in _RIGHTS if not by.user.has_perm(right)]):
        raise exits.told(ActionNotPermitted(f"listing Django tasks takes the permission {' and '.join(lacks)}"))
    if limit is not None and limit < 1:
        raise exits.misused(f"--limit {limit}", "Give a number from 1.")
    most = None if json and limit is None else limit or _SHOWN
    size = _PAGE if most is None else min(_PAGE, most + 1)
    both = (_open(status, queue, task, size), _ended(status, queue, task, size))
    rows = merge(*both, key=lambda one: one.id, reverse=True)
    if json:
        for one in islice(rows, most):
            printing.record(command, one)
        return
    found = list(islice(rows, (most or 0) + 1))
    cells = [
        (one.id, one.task, one.status, one.queue, one.attempts, printing.moment(one.finished_at or one.due_at))
        for one in found[:most]
    ]
    if not cells:
        printing.write(command, "no tasks")
        return
    printing.table(command, ("ID", "TASK", "STATUS", "QUEUE", "ATTEMPTS", "ENDED, OR DUE"), cells)
    if len(found) > len(cells):
        printing.write(command, f"there are more than {len(cells):,}: --limit N, or filters")


def _open(status: str | None, queue: str | None, task: str | None, size: int) -> Iterator[EnqueuedPrinted]:
    if status in ("FAILED", "SUCCESSFUL"):
        return
    rows = EnqueuedTask.objects.using(storage().alias).defer(*_UNREAD)
    if status is not None:
        rows = rows.filter(owner__isnull=status == "READY")
    if queue is not None:
        rows = rows.filter(queue=queue)
    if task is not None:
        rows = rows.filter(activity=f"task:{task}")
    for row in iterate_pages(rows, by="-run_id", size=size):
        yield EnqueuedPrinted(
            id=str(row.run_id),
            task=str(row),
            status="READY" if row.owner is None else "RUNNING",
            queue=row.queue,
            priority=row.priority,
            attempts=row.attempt,
            enqueued_at=row.scheduled_at,
            due_at=row.due_at,
            finished_at=None,
        )


def _ended(status: str | None, queue: str | None, task: str | None, size: int) -> Iterator[EnqueuedPrinted]:
    if status in ("READY", "RUNNING"):
        return
    rows = EndedTask.objects.using(storage().alias).defer(*_UNREAD, "outcome")
    wanted = {"status": status, "queue": queue, "task": task}
    rows = rows.filter(**{name: value for name, value in wanted.items() if value is not None})
    for row in iterate_pages(rows, by="-id", size=size):
        yield EnqueuedPrinted(
            id=str(row.pk),
            task=row.task,
            status=row.status,
            queue=row.queue,
            priority=row.priority,
            attempts=row.attempts,
            enqueued_at=row.enqueued_at,
            due_at=None,
            finished_at=row.finished_at,
        )
