"""Commands for human tasks and background tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import merge
from itertools import islice
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser
from django.db.models import F

from temporalex_django.core.names import counted
from temporalex_django.db.run_reader import iterate_pages
from temporalex_django.errors import ActionNotPermitted
from temporalex_django.management import arguments as command_arguments
from temporalex_django.management import outputs as printing
from temporalex_django.management.arguments import parse_json
from temporalex_django.management.outputs import usage_error
from temporalex_django.models import EndedTask, EnqueuedTask, HumanTask, HumanTaskQuerySet
from temporalex_django.operations.background_tasks import STATUSES
from temporalex_django.operations.base import Actor, storage
from temporalex_django.operations.human_tasks import operations
from temporalex_django.operations.human_tasks.inbox import find_task, inbox, redact_tasks
from temporalex_django.operations.human_tasks.operations import Claim, Decide, Delegate, Release

_DEFAULT_LIMIT = 50
_TASK_COMMANDS: tuple[tuple[str, str], ...] = (
    ("show", "Show a task, open or closed."),
    ("claim", "Claim a task: nobody else can decide it for a while."),
    ("release", "Release a task: others can decide it again."),
    ("delegate", "Delegate a task: another person may decide it as well."),
    ("decide", "Decide a task: the run continues with the decision."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPrinted:
    """A human task (a decision that people are asked for); ``text`` describes it in a sentence or two.

    ``nobody_left`` is true if the four-eyes rule excludes everybody whom the task asks.
    """

    task: str
    title: str
    text: str
    workflow: str
    id: str
    run_id: str
    outcomes: Sequence[str]
    requested_by: str
    opened_at: datetime
    due_at: datetime | None
    claimed_by: str
    claimed_until: datetime | None
    closed_at: datetime | None
    ending: str
    outcome: str
    decided_by: str
    comment: str
    four_eyes: str
    nobody_left: bool


class TasksCommand:
    """List, show, claim, release, delegate and decide human tasks.

    `tasks list` orders the tasks by due date; with --as-user, it prints only those that this user may decide now.
    """

    output: ClassVar[Any] = TaskPrinted

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments of the command ``temporalex tasks`` to its parser."""
        parsers = parser.add_subparsers(
            dest="what", required=True, title="actions", metavar="ACTION", help="What to do."
        )
        list_parser = parsers.add_parser(
            "list", description="List open tasks, the earliest due first.", help="List open tasks."
        )
        list_parser.add_argument(
            "--all", action="store_true", help="With --as-user: list the tasks of all runs that this user may view."
        )
        list_parser.add_argument("--workflow", metavar="NAME", help="Only tasks of this class.")
        list_parser.add_argument(
            "--limit",
            type=int,
            metavar="N",
            help=f"Print at most N tasks (default: {_DEFAULT_LIMIT}; with --json, all).",
        )
        subparsers = [list_parser]
        for name, text in _TASK_COMMANDS:
            subparser = parsers.add_parser(name, description=text, help=text)
            subparser.add_argument("task", metavar="TASK", help="Id of the task.")
            if name == "decide":
                subparser.add_argument("outcome", metavar="OUTCOME", help="One of its outcomes, such as approved.")
                subparser.add_argument(
                    "--data", metavar="JSON", help="Data for its form, as JSON; use - to read it from standard input."
                )
                subparser.add_argument(
                    "--comment", default="", metavar="TEXT", help="Comment that the history records."
                )
            if name == "delegate":
                subparser.add_argument("to", metavar="NAME", help="Name that the other user logs in with.")
                subparser.add_argument(
                    "--reason", default="", metavar="TEXT", help="Reason, recorded in the audit log."
                )
            subparsers.append(subparser)
        for subparser in subparsers:
            command_arguments.add_user_argument(subparser)
            printing.add_json_argument(subparser)

    def handle(self, command: BaseCommand, *, what: str, as_user: str | None, json: bool, **options: Any) -> None:
        """List or show human tasks, or perform an operation on one and print it.

        Only people operate human tasks, so everything except ``list`` and ``show`` needs ``--as-user``.
        """
        actor = command_arguments.resolve_actor(as_user)
        if what == "list":
            _print_list(command, actor, json=json, **options)
            return
        task = find_task(options["task"], actor.user)
        if what in ("claim", "release"):
            (Claim if what == "claim" else Release)(task, by=actor).execute()
        elif what == "delegate":
            Delegate(task, to=operations.find_user(options["to"]), reason=options["reason"], by=actor).execute()
        elif what == "decide":
            decision_data = parse_json(options["data"], option="--data")
            Decide(task, outcome=options["outcome"], data=decision_data, comment=options["comment"], by=actor).execute()
        # Read again after an operation, which has changed the row.
        (task_output,) = _task_outputs([task if what == "show" else find_task(task.pk, actor.user)], actor)
        if json:
            printing.print_json(command, task_output)
        else:
            printing.write_line(
                command,
                f"{task_output.workflow} {printing.escape(task_output.id)}: {printing.escape(task_output.text)}",
            )


def _print_list(
    command: BaseCommand, actor: Actor, *, all: bool, workflow: str | None, limit: int | None, json: bool, **_: Any
) -> None:
    if limit is not None and limit < 1:
        raise usage_error(f"--limit {limit} is too small", "Give a number of at least 1.")
    tasks = _open_tasks(actor, all_runs=all)
    if workflow is not None:
        tasks = tasks.filter(workflow=workflow)
    maximum = None if json and limit is None else limit or _DEFAULT_LIMIT
    # One more than is printed, to know if there are more.
    rows = tasks if maximum is None else tasks[: maximum + 1]
    outputs = _task_outputs(islice(rows, maximum), actor)
    if json:
        for task_output in outputs:
            printing.print_json_line(command, task_output)
        return
    _print_table(command, outputs)
    if len(rows) > len(outputs):
        printing.write_line(
            command,
            f"More than {counted(len(outputs), 'task is', 'tasks are')} open. Use --limit N or --workflow to see others.",
        )


def _print_table(command: BaseCommand, outputs: Sequence[TaskPrinted]) -> None:
    if not outputs:
        printing.write_line(command, "nothing to decide")
        return
    cells = [
        (
            task_output.task,
            task_output.id,
            task_output.title,
            printing.format_local_time(task_output.due_at) or "-",
            task_output.claimed_by or "-",
        )
        for task_output in outputs
    ]
    printing.print_table(command, ("TASK", "ID", "QUESTION", "DUE", "CLAIMED BY"), cells)
    if undecidable_ids := [task_output.task for task_output in outputs if task_output.nobody_left]:
        printing.write_line(
            command,
            f"nobody can decide these tasks (the four-eyes rule excludes all candidates): {', '.join(undecidable_ids)}",
        )


def _open_tasks(actor: Actor, *, all_runs: bool) -> HumanTaskQuerySet:
    """Return tasks that the user may decide now, or all open ones of visible runs. Raises ``ActionNotPermitted``."""
    if actor.user is not None and not all_runs:
        return inbox(actor.user)
    tasks = (
        HumanTask.objects.using(storage().alias) if actor.user is None else operations.tasks_of_visible_runs(actor.user)
    )
    return tasks.open().order_by(F("due_at").asc(nulls_last=True), "opened_at", "pk")


def _task_outputs(tasks: Iterable[HumanTask], actor: Actor) -> list[TaskPrinted]:
    return [*map(_task_output, operations.mark_nobody_left(*redact_tasks(tasks, actor.user)))]


def _task_output(task: HumanTask) -> TaskPrinted:
    return TaskPrinted(
        task=str(task.pk),
        title=task.title,
        text=operations.task_sentence(task),
        workflow=task.workflow,
        id=task.workflow_id,
        run_id=str(task.run_id),
        outcomes=task.outcomes,
        requested_by=task.requested_by_name,
        opened_at=task.opened_at,
        due_at=task.due_at,
        claimed_by=task.claimed_by_name,
        claimed_until=task.claimed_until,
        closed_at=task.closed_at,
        ending=task.ending,
        outcome=task.outcome,
        decided_by=task.decided_by_name,
        comment=task.comment,
        four_eyes=task.four_eyes,
        nobody_left=task.nobody_left,
    )


# --- background tasks -------------------------------------------------------------------------------------------------


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
        command_arguments.add_user_argument(parser)
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
        _require_permissions(command_arguments.resolve_actor(as_user))
        if limit is not None and limit < 1:
            raise printing.usage_error(f"--limit {limit} is too small", "Give a number of at least 1.")
        maximum = None if json and limit is None else limit or _DEFAULT_LIMIT
        size = _PAGE_SIZE if maximum is None else min(_PAGE_SIZE, maximum + 1)
        sources = (_open_enqueued(status, queue, task, size), _finished_tasks(status, queue, task, size))
        # Both tables are read in descending order of their ids, which sort by time, so merging keeps memory constant.
        rows = merge(*sources, key=lambda task_output: task_output.id, reverse=True)
        if json:
            for task_output in islice(rows, maximum):
                printing.print_json_line(command, task_output)
            return
        _print_enqueued(command, [*islice(rows, (maximum or 0) + 1)], maximum)


def _require_permissions(actor: Actor) -> None:
    """Raise ``CommandError`` if the actor is a user who may not see background tasks."""
    if actor.user is None:
        return
    missing_permissions = [permission for permission in _PERMISSIONS if not actor.user.has_perm(permission)]
    if missing_permissions:
        plural = "s" if len(missing_permissions) > 1 else ""
        raise printing.as_command_error(
            ActionNotPermitted(
                f"listing background tasks requires the permission{plural} {' and '.join(missing_permissions)}"
            )
        )


def _print_enqueued(command: BaseCommand, outputs: Sequence[EnqueuedPrinted], maximum: int | None) -> None:
    """Print the first ``maximum`` tasks (None means all), and a note if there are more."""
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


def _open_enqueued(status: str | None, queue: str | None, task: str | None, size: int) -> Iterator[EnqueuedPrinted]:
    """Yield tasks that have not ended, newest first, reading ``size`` rows at a time."""
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
    """Yield tasks that have ended, newest first, reading ``size`` rows at a time."""
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
