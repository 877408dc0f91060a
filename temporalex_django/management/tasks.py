"""List, show, claim, release, delegate and decide human tasks.

`tasks list` orders the tasks by due date; with --as-user, it prints only those that this user may decide now.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser
from django.db.models import F

from temporalex_django.core.names import counted
from temporalex_django.management import arguments as people
from temporalex_django.management import outputs as printing
from temporalex_django.management.arguments import parse_json
from temporalex_django.management.outputs import usage_error
from temporalex_django.models import HumanTask, HumanTaskQuerySet
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
            people.add_user_argument(subparser)
            printing.add_json_argument(subparser)

    def handle(self, command: BaseCommand, *, what: str, as_user: str | None, json: bool, **options: Any) -> None:
        """List or show human tasks, or perform an operation on one and print it.

        Only people operate human tasks, so everything except ``list`` and ``show`` needs ``--as-user``.
        """
        actor = people.resolve_actor(as_user)
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
    """Return the human tasks that the user may decide now, or the open ones of all runs that the actor may look at.

    All of them are returned for code and with ``all_runs``. Raises ``ActionNotPermitted`` if the actor may look at no
    runs.
    """
    if actor.user is not None and not all_runs:
        return inbox(actor.user)
    tasks = (
        HumanTask.objects.using(storage().alias) if actor.user is None else operations.tasks_of_visible_runs(actor.user)
    )
    return tasks.open().order_by(F("due_at").asc(nulls_last=True), "opened_at", "pk")


def _task_outputs(tasks: Iterable[HumanTask], actor: Actor) -> list[TaskPrinted]:
    """Return the JSON outputs for human tasks, redacted for the actor."""
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
