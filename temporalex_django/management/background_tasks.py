"""List background tasks (enqueued Django tasks), newest first: open ones, and ended ones whose results are kept.

With --json, one line of JSON for each. Arguments and results are not printed; `get_result(id)` returns them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import merge
from itertools import islice
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser

from temporalex_django.core.names import counted
from temporalex_django.db.run_reader import iterate_pages
from temporalex_django.errors import ActionNotPermitted
from temporalex_django.management import arguments as people
from temporalex_django.management import outputs as exit_codes
from temporalex_django.management import outputs as printing
from temporalex_django.models import EndedTask, EnqueuedTask
from temporalex_django.operations.background_tasks import STATUSES
from temporalex_django.operations.base import Actor, storage

_DEFAULT_LIMIT = 50
_PAGE_SIZE = 500
_DEFERRED_COLUMNS = ("call", "options")
#: The same permissions as for the lists in the admin.
_PERMISSIONS = ("temporalex_django.view_enqueuedtask", "temporalex_django.view_endedtask")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueuedPrinted:
    """A background task (an enqueued Django task), as ``temporalex enqueued`` prints it.

    ``due_at`` is set while it is open, ``finished_at`` when it has ended.
    """

    id: str
    task: str
    status: str
    queue: str
    priority: int
    attempts: int
    enqueued_at: datetime
    due_at: datetime | None
    finished_at: datetime | None


class EnqueuedCommand:
    """List background tasks (enqueued Django tasks), newest first: open ones, and ended ones whose results are kept.

    With --json, one line of JSON for each. Arguments and results are not printed; `get_result(id)` returns them.
    """

    output: ClassVar[Any] = EnqueuedPrinted

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments of the command ``temporalex enqueued`` to its parser."""
        parser.add_argument("--status", choices=STATUSES, help="Only tasks with this status of django.tasks.")
        parser.add_argument("--queue", metavar="NAME", help="Only tasks in this queue.")
        parser.add_argument("--task", metavar="PATH", help="Only tasks of this function.")
        parser.add_argument(
            "--limit",
            type=int,
            metavar="N",
            help=f"Print at most N tasks (default: {_DEFAULT_LIMIT}; with --json, all).",
        )
        people.add_user_argument(parser)
        printing.add_json_argument(parser)

    def handle(
        self,
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
        """Print the background tasks, newest first, in pages of 500 rows that are read from two tables.

        Raises ``CommandError`` for a user who may not see them.
        """
        _require_permissions(people.resolve_actor(as_user))
        if limit is not None and limit < 1:
            raise exit_codes.usage_error(f"--limit {limit} is too small", "Give a number of at least 1.")
        maximum = None if json and limit is None else limit or _DEFAULT_LIMIT
        size = _PAGE_SIZE if maximum is None else min(_PAGE_SIZE, maximum + 1)
        sources = (_open_tasks(status, queue, task, size), _finished_tasks(status, queue, task, size))
        # Both tables are read in descending order of their ids, which sort by time, so merging keeps memory constant.
        rows = merge(*sources, key=lambda task_output: task_output.id, reverse=True)
        if json:
            for task_output in islice(rows, maximum):
                printing.print_json_line(command, task_output)
            return
        _print_table(command, [*islice(rows, (maximum or 0) + 1)], maximum)


def _require_permissions(actor: Actor) -> None:
    """Raise ``CommandError`` if the actor is a user who may not see background tasks."""
    if actor.user is None:
        return
    missing_permissions = [permission for permission in _PERMISSIONS if not actor.user.has_perm(permission)]
    if missing_permissions:
        plural = "s" if len(missing_permissions) > 1 else ""
        raise exit_codes.as_command_error(
            ActionNotPermitted(
                f"listing background tasks requires the permission{plural} {' and '.join(missing_permissions)}"
            )
        )


def _print_table(command: BaseCommand, outputs: Sequence[EnqueuedPrinted], maximum: int | None) -> None:
    """Print the first ``maximum`` tasks (None means all) as a table, and a note if there are more."""
    cells = [
        (
            task_output.id,
            task_output.task,
            task_output.status,
            task_output.queue,
            task_output.attempts,
            printing.format_local_time(task_output.finished_at or task_output.due_at),
        )
        for task_output in outputs[:maximum]
    ]
    if not cells:
        printing.write_line(command, "no tasks")
        return
    printing.print_table(command, ("ID", "TASK", "STATUS", "QUEUE", "ATTEMPTS", "ENDED OR DUE"), cells)
    if len(outputs) > len(cells):
        printing.write_line(
            command,
            f"More than {counted(len(cells), 'task matches', 'tasks match')}. Use --limit N or a filter to see others.",
        )


def _open_tasks(status: str | None, queue: str | None, task: str | None, size: int) -> Iterator[EnqueuedPrinted]:
    """Yield the tasks that have not ended, newest first, reading ``size`` rows at a time.

    ``task`` is the dotted path of a function. A filter that is None does not count.
    """
    # An open task never has these statuses, so its table need not be read.
    if status in ("FAILED", "SUCCESSFUL"):
        return
    rows = EnqueuedTask.objects.using(storage().alias).defer(*_DEFERRED_COLUMNS)
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


def _finished_tasks(status: str | None, queue: str | None, task: str | None, size: int) -> Iterator[EnqueuedPrinted]:
    """Yield the tasks that have ended, newest first, reading ``size`` rows at a time.

    ``task`` is the dotted path of a function. A filter that is None does not count.
    """
    # As above, for ended tasks.
    if status in ("READY", "RUNNING"):
        return
    rows = EndedTask.objects.using(storage().alias).defer(*_DEFERRED_COLUMNS, "outcome")
    filters = {"status": status, "queue": queue, "task": task}
    rows = rows.filter(**{name: expected for name, expected in filters.items() if expected is not None})
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
