"""Commands for human tasks and background tasks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from inspect import Parameter
from itertools import islice
from typing import Annotated, Any

from django.core.management.base import BaseCommand, CommandParser
from django.db.models import F

from temporalex_django.core.names import counted
from temporalex_django.management import arguments as command_arguments
from temporalex_django.management import outputs as printing
from temporalex_django.management.arguments import (
    DEFAULT_LIMIT,
    ActorOption,
    Argument,
    JsonOption,
    Option,
    ParsedValue,
    ReasonOption,
    YesOption,
    limit_option,
    parse_time,
    subcommand,
)
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

#: Pause between two looks at a task that ``enqueued --follow`` prints.
_FOLLOW_SECONDS = 0.5


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


@subcommand("tasks", output=TaskPrinted)
def tasks() -> None:
    """List, show, claim, release, delegate and decide human tasks.

    `tasks list` orders the tasks by due date; with --as-user, it prints only those that this user may decide now.
    """


@tasks.word("list", summary="List open tasks.")
def list_human_tasks(
    command: BaseCommand,
    *,
    all: Annotated[bool, Option("With --as-user: list the tasks of all runs that this user may view.")],
    workflow: Annotated[str | None, Option("Only tasks of this class.", "NAME")],
    limit: Annotated[int | None, limit_option("tasks")],
    actor: ActorOption,
    json: JsonOption,
) -> None:
    """List open tasks, the earliest due first."""
    open_tasks = _open_tasks(actor, all_runs=all)
    if workflow is not None:
        open_tasks = open_tasks.filter(workflow=workflow)
    maximum = None if json and limit is None else limit or DEFAULT_LIMIT
    # One more than is printed, to know if there are more.
    rows = open_tasks if maximum is None else open_tasks[: maximum + 1]
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


TaskArgument = Annotated[str, Argument("Id of the task.", "TASK")]


@tasks.word("show")
def show(command: BaseCommand, *, task: TaskArgument, actor: ActorOption, json: JsonOption) -> None:
    """Show a task, open or closed."""
    _print_task(command, task, actor, json=json)


@tasks.word("claim")
def claim(command: BaseCommand, *, task: TaskArgument, actor: ActorOption, json: JsonOption) -> None:
    """Claim a task: nobody else can decide it for a while."""
    Claim(find_task(task, actor.user), by=actor).execute()
    _print_task(command, task, actor, json=json)


@tasks.word("release")
def release(command: BaseCommand, *, task: TaskArgument, actor: ActorOption, json: JsonOption) -> None:
    """Release a task: others can decide it again."""
    Release(find_task(task, actor.user), by=actor).execute()
    _print_task(command, task, actor, json=json)


@tasks.word("delegate")
def delegate(
    command: BaseCommand,
    *,
    task: TaskArgument,
    to: Annotated[str, Argument("Name that the other user logs in with.", "NAME")],
    reason: ReasonOption = "",
    actor: ActorOption,
    json: JsonOption,
) -> None:
    """Delegate a task: another person may decide it as well."""
    row = find_task(task, actor.user)
    Delegate(row, to=operations.find_user(to), reason=reason, by=actor).execute()
    _print_task(command, task, actor, json=json)


@tasks.word("decide")
def decide(
    command: BaseCommand,
    *,
    task: TaskArgument,
    outcome: Annotated[str, Argument("One of its outcomes, such as approved.", "OUTCOME")],
    data: Annotated[Any, Option("Data for its form, as JSON; use - to read it from standard input.", "JSON")],
    comment: Annotated[str, Option("Comment that the history records.", "TEXT")] = "",
    actor: ActorOption,
    json: JsonOption,
) -> None:
    """Decide a task: the run continues with the decision."""
    Decide(find_task(task, actor.user), outcome=outcome, data=data, comment=comment, by=actor).execute()
    _print_task(command, task, actor, json=json)


def _print_task(command: BaseCommand, task: str, actor: Actor, *, json: bool) -> None:
    """Print a task as it is now: an operation has changed its row."""
    (task_output,) = _task_outputs([find_task(task, actor.user)], actor)
    text = f"{task_output.workflow} {printing.escape(task_output.id)}: {printing.escape(task_output.text)}"
    printing.print_result(command, task_output, text, as_json=json)


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


class TaskFilters(ParsedValue):
    """The options that select background tasks. Their value is a ``TaskFilter``."""

    def add(self, parser: CommandParser, parameter: Parameter, action: Any) -> None:
        """Add the options to a parser."""
        parser.add_argument("--status", choices=STATUSES, help="Only tasks with this status.")
        parser.add_argument("--queue", metavar="NAME", help="Only tasks in this queue.")
        parser.add_argument("--task", metavar="PATH", help="Only tasks of this function.")
        parser.add_argument(
            "--cause", metavar="TEXT", help="Only tasks that failed with this cause, or with one like it."
        )
        parser.add_argument("--run", metavar="ID", help="Only tasks that activities of this run enqueued.")
        parser.add_argument("--since", metavar="TIME", help="Only tasks that were enqueued at this time or later.")
        parser.add_argument("--until", metavar="TIME", help="Only tasks that were enqueued before this time.")

    def read(self, options: Mapping[str, Any], parameter: Parameter, action: Any) -> TaskFilter:
        """Return the filter. Raises ``CommandError`` for a wrong time."""
        return TaskFilter(
            **{name: options.get(name) for name in ("status", "queue", "task", "cause", "run")},
            since=parse_time(options.get("since"), option="--since"),
            until=parse_time(options.get("until"), option="--until"),
        )


TaskFilterOptions = Annotated[TaskFilter, TaskFilters()]


@subcommand("enqueued", output=TaskRow)
def list_enqueued(
    command: BaseCommand,
    *,
    filters: TaskFilterOptions,
    limit: Annotated[int | None, limit_option("tasks")],
    follow: Annotated[str | None, Option("Id of a task: print its state and its progress until it has ended.", "TASK")],
    actor: ActorOption,
    json: JsonOption,
) -> None:
    """List background tasks (enqueued Django tasks), newest first: open ones, and ended ones whose results are kept.

    With --json, one line of JSON for each. With --follow, one task is printed until it has ended, with its progress.
    Arguments and results are not printed; `get_result(id)` returns them.
    """
    # The rows are read in pages from two tables.
    if follow is not None:
        _follow(command, follow, actor, json=json)
        return
    if json and limit is None:
        for task_row in iterate_tasks(filters, actor.user):
            printing.print_json_line(command, task_row)
        return
    rows, has_more = list_tasks(filters, actor.user, limit=limit or DEFAULT_LIMIT)
    if json:
        for task_row in rows:
            printing.print_json_line(command, task_row)
        return
    _print_enqueued(command, rows, has_more=has_more)


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


def _is_requeue(action: type[TaskAction]) -> bool:
    return action is Requeue


def _operate(
    command: BaseCommand,
    *,
    action: type[TaskAction],
    id: Annotated[str | None, Argument("Id of the task, as shown by enqueued. Without it, use filters.", "TASK")],
    filters: TaskFilterOptions,
    to: Annotated[str | None, Option("Queue in which the task is to wait.", "NAME", when=_is_requeue)] = None,
    priority: Annotated[int | None, Option("Its new priority, from -100 to 100.", "N", when=_is_requeue)] = None,
    reason: ReasonOption = "",
    actor: ActorOption,
    yes: YesOption,
    json: JsonOption,
) -> None:
    """Execute an operation on a background task and print the task, or start a bulk job on those of the filters.

    An operation that ends a task, and one on many tasks, asks for confirmation.
    """
    inputs: dict[str, Any] = {
        name: value for name, value in (("queue", to), ("priority", priority)) if value is not None
    }
    if (id is None) is (filters == TaskFilter()):
        raise usage_error("it is not clear which tasks are meant", "Give the id of a task, or at least one filter.")
    if id is None:
        start = StartTaskBulk(action.name, tasks=filters, reason=reason, by=actor, **inputs)
        command_arguments.confirm(command, f"{action.effect} Continue for all tasks of the filter?", yes=yes)
        job = start.execute()
        job_output = TaskJobStarted(job=str(job.pk), action=job.action, tasks=job.total)
        text = f"bulk job {job.pk}: {job.action} of {count_text(job.action, job.total)}; follow it with bulk show"
        printing.print_result(command, job_output, text, as_json=json)
        return
    operation = action(id, reason=reason, by=actor, **inputs)
    if action.destructive:
        command_arguments.confirm(command, f"{action.effect} Continue for {id}?", yes=yes)
    changed_task = operation.execute()
    if json:
        printing.print_json(command, find_described_task(changed_task.id, actor.user, is_own_result=True))
        return
    printing.write_line(command, f"{changed_task.path} {changed_task.id}: {action.done}")


#: The operations on background tasks by the names of their commands, such as ``retry-task``.
TASK_COMMANDS = {name.replace("_", "-"): action for name, action in TASK_ACTIONS.items()}
for _name, _action in TASK_COMMANDS.items():
    subcommand(
        _name, output=(TaskRow, TaskJobStarted), description=f"{_action.summary}\n\n{_action.effect}", action=_action
    )(_operate)
