"""Commands for human tasks and background tasks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser
from django.db.models import F

from temporalex_django.core.names import counted
from temporalex_django.management import arguments as command_arguments
from temporalex_django.management import outputs as printing
from temporalex_django.management.arguments import parse_json, parse_time
from temporalex_django.management.outputs import usage_error
from temporalex_django.models import HumanTask, HumanTaskQuerySet
from temporalex_django.operations.background_tasks import STATUSES, TASK_ACTIONS, Requeue, TaskAction
from temporalex_django.operations.base import Actor, storage
from temporalex_django.operations.bulk import StartTaskBulk, count_text
from temporalex_django.operations.human_tasks import operations
from temporalex_django.operations.human_tasks.inbox import find_task, inbox, redact_tasks
from temporalex_django.operations.human_tasks.operations import Claim, Decide, Delegate, Release
from temporalex_django.operations.read.background_tasks import (
    TaskFilter,
    TaskRow,
    find_described_task,
    iterate_tasks,
    list_tasks,
)

_DEFAULT_LIMIT = 50
#: Pause between two looks at a task that ``enqueued --follow`` prints.
_FOLLOW_SECONDS = 0.5
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


class EnqueuedCommand:
    """List background tasks (enqueued Django tasks), newest first: open ones, and ended ones whose results are kept.

    With --json, one line of JSON for each. With --follow, one task is printed until it has ended, with its progress.
    Arguments and results are not printed; `get_result(id)` returns them.
    """

    output: ClassVar[Any] = TaskRow

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments of the command ``temporalex enqueued`` to its parser."""
        add_filter_arguments(parser)
        parser.add_argument(
            "--limit",
            type=int,
            metavar="N",
            help=f"Print at most N tasks (default: {_DEFAULT_LIMIT}; with --json, all).",
        )
        parser.add_argument(
            "--follow", metavar="TASK", help="Id of a task: print its state and its progress until it has ended."
        )
        command_arguments.add_user_argument(parser)
        printing.add_json_argument(parser)

    def handle(
        self,
        command: BaseCommand,
        *,
        limit: int | None,
        follow: str | None,
        as_user: str | None,
        json: bool,
        **options: Any,
    ) -> None:
        """Print the background tasks, newest first, in pages of rows that are read from two tables.

        Raises ``CommandError`` for a user who may not see them.
        """
        actor = command_arguments.resolve_actor(as_user)
        if follow is not None:
            _follow(command, follow, actor, json=json)
            return
        if limit is not None and limit < 1:
            raise printing.usage_error(f"--limit {limit} is too small", "Give a number of at least 1.")
        filters = read_filter(options)
        if json and limit is None:
            for task_row in iterate_tasks(filters, actor.user):
                printing.print_json_line(command, task_row)
            return
        rows, has_more = list_tasks(filters, actor.user, limit=limit or _DEFAULT_LIMIT)
        if json:
            for task_row in rows:
                printing.print_json_line(command, task_row)
            return
        _print_enqueued(command, rows, has_more=has_more)


def add_filter_arguments(parser: CommandParser) -> None:
    """Add the options that select background tasks to a parser; ``read_filter`` reads them."""
    parser.add_argument("--status", choices=STATUSES, help="Only tasks with this status.")
    parser.add_argument("--queue", metavar="NAME", help="Only tasks in this queue.")
    parser.add_argument("--task", metavar="PATH", help="Only tasks of this function.")
    parser.add_argument("--cause", metavar="TEXT", help="Only tasks that failed with this cause, or with one like it.")
    parser.add_argument("--run", metavar="ID", help="Only tasks that activities of this run enqueued.")
    parser.add_argument("--since", metavar="TIME", help="Only tasks that were enqueued at this time or later.")
    parser.add_argument("--until", metavar="TIME", help="Only tasks that were enqueued before this time.")


def read_filter(options: Mapping[str, Any]) -> TaskFilter:
    """Return the filter of the options of ``add_filter_arguments``. Raises ``CommandError`` for a wrong time."""
    return TaskFilter(
        **{name: options.get(name) for name in ("status", "queue", "task", "cause", "run")},
        since=parse_time(options.get("since"), option="--since"),
        until=parse_time(options.get("until"), option="--until"),
    )


def _print_enqueued(command: BaseCommand, rows: Sequence[TaskRow], *, has_more: bool) -> None:
    if not rows:
        printing.write_line(command, "no tasks")
        return
    cells = [
        (
            row.id,
            row.task,
            row.status,
            row.queue,
            row.attempts,
            printing.format_local_time(row.finished_at or row.due_at),
            row.cause or "",
        )
        for row in rows
    ]
    printing.print_table(command, ("ID", "TASK", "STATUS", "QUEUE", "ATTEMPTS", "ENDED OR DUE", "CAUSE"), cells)
    if has_more:
        printing.write_line(
            command,
            f"More than {counted(len(cells), 'task matches', 'tasks match')}. Use --limit N or a filter to see others.",
        )


def _follow(command: BaseCommand, task: str, actor: Actor, *, json: bool) -> None:
    """Print a task each time that it changes, until it has ended. One to three reads a second."""
    previous = None
    with printing.progress(command, lines=json) as report:
        while True:
            row = find_described_task(task, actor.user)
            if json and row != previous:
                printing.print_json_line(command, row)
            if row.progress_done is not None and row.progress_total is not None:
                report(row.progress_done, row.progress_total, f" {row.progress_text or ''}".rstrip())
            if row.finished_at is not None:
                break
            previous = row
            time.sleep(_FOLLOW_SECONDS)
    if not json:
        printing.write_line(command, f"{row.task} {row.id}: {printing.escape(row.text)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskJobStarted:
    """The bulk job that performs an operation on the background tasks of a filter; ``bulk show JOB`` follows it."""

    job: str
    action: str
    tasks: int


class TaskCommand:
    """The command of one operation on background tasks.

    ``temporalex retry-task TASK`` is about one task. With the filters of ``enqueued`` instead, a bulk job performs it
    on all tasks that they select.
    """

    output: ClassVar[Any] = (TaskRow, TaskJobStarted)

    def __init__(self, action: type[TaskAction]) -> None:
        self.action = action
        # The docstring of a subcommand is its help text.
        self.__doc__ = f"{action.summary}\n\n{action.effect}"

    def add_arguments(self, parser: CommandParser) -> None:
        """Add TASK, the filters, ``--reason`` and an option for each input of the operation to the parser."""
        parser.add_argument(
            "id", nargs="?", metavar="TASK", help="Id of the task, as shown by enqueued. Without it, use filters."
        )
        add_filter_arguments(parser)
        if self.action is Requeue:
            parser.add_argument("--to", metavar="NAME", help="Queue in which the task is to wait.")
            parser.add_argument("--priority", type=int, metavar="N", help="Its new priority, from -100 to 100.")
        parser.add_argument("--reason", default="", metavar="TEXT", help="Reason, recorded in the audit log.")
        command_arguments.add_user_argument(parser)
        command_arguments.add_yes_argument(parser)
        printing.add_json_argument(parser)

    def handle(
        self,
        command: BaseCommand,
        *,
        id: str | None,
        reason: str,
        as_user: str | None,
        json: bool,
        yes: bool,
        to: str | None = None,
        priority: int | None = None,
        **filters: Any,
    ) -> None:
        """Execute the operation and print the task as it is then, or start a bulk job and print it.

        An operation that ends a task, and one on many tasks, asks for confirmation.
        """
        actor = command_arguments.resolve_actor(as_user)
        inputs: dict[str, Any] = {}
        if self.action is Requeue:
            inputs = {name: value for name, value in (("queue", to), ("priority", priority)) if value is not None}
        task_filter = read_filter(filters)
        if (id is None) is (task_filter == TaskFilter()):
            raise usage_error("it is not clear which tasks are meant", "Give the id of a task, or at least one filter.")
        if id is None:
            self._start_job(command, task_filter, inputs, reason=reason, actor=actor, json=json, yes=yes)
            return
        action = self.action(id, reason=reason, by=actor, **inputs)
        if self.action.destructive:
            command_arguments.confirm(command, f"{self.action.effect} Continue for {id}?", yes=yes)
        changed = action.execute()
        if json:
            printing.print_json(command, find_described_task(changed.id, actor.user, is_own_result=True))
            return
        printing.write_line(command, f"{changed.path} {changed.id}: {self.action.done}")

    def _start_job(
        self,
        command: BaseCommand,
        task_filter: TaskFilter,
        inputs: Mapping[str, Any],
        *,
        reason: str,
        actor: Actor,
        json: bool,
        yes: bool,
    ) -> None:
        start = StartTaskBulk(self.action.name, tasks=task_filter, reason=reason, by=actor, **inputs)
        command_arguments.confirm(command, f"{self.action.effect} Continue for all tasks of the filter?", yes=yes)
        job = start.execute()
        if json:
            printing.print_json(command, TaskJobStarted(job=str(job.pk), action=job.action, tasks=job.total))
            return
        printing.write_line(
            command, f"bulk job {job.pk}: {job.action} of {count_text(job.action, job.total)}; follow it with bulk show"
        )


TASK_COMMANDS = {name.replace("_", "-"): TaskCommand(action) for name, action in TASK_ACTIONS.items()}
