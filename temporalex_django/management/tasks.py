"""What people are asked to decide: list, show, claim, release, delegate and decide human tasks.

`tasks list` has what is due first at first; with --as-user what that user may decide now.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db.models import F

from temporalex_django.actions import deciding
from temporalex_django.actions.base import Actor, storage
from temporalex_django.actions.claim import Claim
from temporalex_django.actions.decide import Decide
from temporalex_django.actions.delegate import Delegate
from temporalex_django.actions.inbox import find_task, inbox
from temporalex_django.actions.release import Release
from temporalex_django.actions.seeing import redact_tasks
from temporalex_django.management import as_user as people
from temporalex_django.management import printing
from temporalex_django.management.exits import misused
from temporalex_django.management.given import json_of
from temporalex_django.models import HumanTask, HumanTaskQuerySet

_SHOWN = 50
_ONE: tuple[tuple[str, str], ...] = (
    ("show", "One of them, open or closed."),
    ("claim", "Nobody else decides it for a while."),
    ("release", "Others may decide it again."),
    ("delegate", "Somebody else may decide it, too."),
    ("decide", "The run goes on with the decision."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPrinted:
    """A human task as it stands; ``text`` says it in a sentence."""

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


output = TaskPrinted


def add_arguments(parser: CommandParser) -> None:
    """Say which arguments the subcommand takes."""
    parsers = parser.add_subparsers(dest="what", required=True, title="what", metavar="ACTION")
    listed = parsers.add_parser(
        "list", description="Those that are open, what is due first at first.", help="the open ones"
    )
    listed.add_argument("--all", action="store_true", help="with --as-user: of all runs that he may look at")
    listed.add_argument("--workflow", metavar="NAME", help="of this class")
    listed.add_argument("--limit", type=int, metavar="N", help=f"at most so many (default: {_SHOWN}; with --json all)")
    found = [listed]
    for name, text in _ONE:
        one = parsers.add_parser(name, description=text, help=text)
        one.add_argument("task", metavar="TASK", help="its id")
        if name == "decide":
            one.add_argument("outcome", metavar="OUTCOME", help="one of its outcomes: approved, say")
            one.add_argument("--data", metavar="JSON", help="what its form wants; - reads it from the standard input")
            one.add_argument("--comment", default="", metavar="TEXT", help="stands in the history")
        if name == "delegate":
            one.add_argument("to", metavar="NAME", help="with which that person signs in")
            one.add_argument("--reason", default="", metavar="TEXT", help="for the audit")
        found.append(one)
    for one in found:
        people.add_argument(one)
        printing.add_json(one)


def handle(command: BaseCommand, *, what: str, as_user: str | None, json: bool, **options: Any) -> None:
    """Only people decide: all but `list` and `show` take --as-user."""
    by = people.actor(as_user)
    if what == "list":
        _list(command, by, json=json, **options)
        return
    task = find_task(options["task"], by.user)
    if what in ("claim", "release"):
        (Claim if what == "claim" else Release)(task, by=by).execute()
    elif what == "delegate":
        Delegate(task, to=deciding.find_user(options["to"]), reason=options["reason"], by=by).execute()
    elif what == "decide":
        data = json_of(options["data"], option="--data")
        Decide(task, outcome=options["outcome"], data=data, comment=options["comment"], by=by).execute()
    (now,) = _seen([task if what == "show" else find_task(task.pk, by.user)], by)
    if json:
        printing.document(command, now)
    else:
        printing.write(command, f"{now.workflow} {printing.safe(now.id)}: {printing.safe(now.text)}")


def _list(
    command: BaseCommand, by: Actor, *, all: bool, workflow: str | None, limit: int | None, json: bool, **_: Any
) -> None:
    if limit is not None and limit < 1:
        raise misused(f"--limit {limit}", "Give a number from 1.")
    tasks = _open(by, every=all)
    if workflow is not None:
        tasks = tasks.filter(workflow=workflow)
    most = None if json and limit is None else limit or _SHOWN
    rows = tasks if most is None else tasks[: most + 1]
    shown = _seen(islice(rows, most), by)
    if json:
        for one in shown:
            printing.record(command, one)
        return
    if not shown:
        printing.write(command, "nothing to decide")
        return
    cells = [(one.task, one.id, one.title, printing.moment(one.due_at) or "-", one.claimed_by or "-") for one in shown]
    printing.table(command, ("TASK", "ID", "WHAT IS ASKED", "DUE", "CLAIMED BY"), cells)
    if lonely := [one.task for one in shown if one.nobody_left]:
        printing.write(command, f"nobody is left to decide (four eyes shut out all who are asked): {', '.join(lonely)}")
    if len(rows) > len(shown):
        printing.write(command, f"there are more than {len(shown):,}: --limit N, or --workflow")


def _open(by: Actor, *, every: bool) -> HumanTaskQuerySet:
    """Those of the user, or of all runs. Raises ``ActionNotPermitted``."""
    if by.user is not None and not every:
        return inbox(by.user)
    tasks = HumanTask.objects.using(storage().alias) if by.user is None else deciding.tasks_of_visible_runs(by.user)
    return tasks.open().order_by(F("due_at").asc(nulls_last=True), "opened_at", "pk")


def _seen(tasks: Iterable[HumanTask], by: Actor) -> list[TaskPrinted]:
    """The tasks as this person sees them."""
    return [*map(_printed, deciding.mark_nobody_left(*redact_tasks(tasks, by.user)))]


def _printed(task: HumanTask) -> TaskPrinted:
    return TaskPrinted(
        task=str(task.pk),
        title=task.title,
        text=deciding.task_sentence(task),
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
