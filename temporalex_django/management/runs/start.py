"""Start a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, get_args

from django.apps import apps
from django.core.management.base import BaseCommand, CommandParser
from django.db.models import Model

from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.requests import OnClosed, OnConflict, StartRequest
from temporalex_django.conf import get_settings
from temporalex_django.core.payloads.search_attributes import parse_all
from temporalex_django.management import arguments as people
from temporalex_django.management import outputs
from temporalex_django.management.arguments import parse_json, parse_time
from temporalex_django.management.outputs import RunNamed, run_fields, usage_error
from temporalex_django.operations.runs.start import Start


class StartCommand:
    """Start a run."""

    output: ClassVar[Any] = RunNamed

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments of the command ``temporalex start`` to its parser."""
        parser.add_argument("flow", metavar="FLOW", help="Name of the workflow.")
        parser.add_argument(
            "--args",
            dest="arguments",
            metavar="JSON",
            help="Arguments of run(), as JSON; use - to read them from standard input.",
        )
        parser.add_argument("--id", metavar="ID", help="Business id of the run (default: generated).")
        parser.add_argument(
            "--value",
            metavar="VALUE",
            help="For a class that declares `unique`: the value that identifies the run. The business id is made from it.",
        )
        parser.add_argument("--version", metavar="N", dest="number", type=int, help="Version of the workflow.")
        parser.add_argument("--subject", metavar="APP.MODEL:KEY", help="Object that the run is about.")
        parser.add_argument(
            "--attribute",
            dest="attributes",
            metavar="NAME=VALUE",
            action="append",
            help="A search attribute that the class declares (can be repeated).",
        )
        parser.add_argument(
            "--tag",
            dest="tags",
            metavar="TAG",
            action="append",
            help="A tag in addition to those of the class (can be repeated).",
        )
        parser.add_argument(
            "--start-at", metavar="TIME", help="Time at which the run begins, such as 2026-11-27T09:00:00+01:00."
        )
        parser.add_argument(
            "--start-delay",
            metavar="SECONDS",
            type=float,
            help="Number of seconds after which the run begins; an alternative to --start-at.",
        )
        parser.add_argument("--start-before", metavar="TIME", help="The run times out if it has not begun by then.")
        parser.add_argument(
            "--on-conflict",
            choices=get_args(OnConflict),
            default="fail",
            help="What happens if an open run of the workflow has the id (default: fail).",
        )
        parser.add_argument(
            "--on-closed",
            choices=get_args(OnClosed),
            default="allow",
            help="Whether the run may start if an earlier run with this id has ended (default: allow).",
        )
        parser.add_argument(
            "--debounce",
            metavar="SECONDS",
            type=float,
            help="The run begins after this many seconds. Until then, another start with the same id replaces its input.",
        )
        parser.add_argument(
            "--throttle",
            metavar=("COUNT", "SECONDS"),
            nargs=2,
            help="At most COUNT runs of the workflow begin within SECONDS; others begin later.",
        )
        people.add_user_argument(parser)
        outputs.add_json_argument(parser)

    def handle(
        self,
        command: BaseCommand,
        *,
        flow: str,
        arguments: str | None,
        id: str | None,
        value: str | None,
        number: int | None,
        subject: str | None,
        attributes: list[str] | None,
        tags: list[str] | None,
        start_at: str | None,
        start_delay: float | None,
        start_before: str | None,
        on_conflict: OnConflict,
        on_closed: OnClosed,
        debounce: float | None,
        throttle: list[str] | None,
        as_user: str | None,
        json: bool,
        **_: Any,
    ) -> None:
        """Start the run and print its ids. One transaction inserts two rows; a worker then runs the first turn."""
        # Everything is parsed before the start, so a wrong option has no effect.
        cls = workflows.find(flow).choose(number, {})
        subject_object = None
        if subject is not None:
            subject_object = _find_subject(subject)
        start_args = parse_json(arguments, option="--args")
        search_attributes = None
        if attributes is not None:
            search_attributes = _parse_attributes(attributes, cls.search_attributes)
        actor = people.resolve_actor(as_user)
        request = StartRequest(
            workflow=cls,
            args=start_args,
            id=id,
            value=value,
            subject=subject_object,
            search_attributes=search_attributes,
            tags=tags,
            start_at=parse_time(start_at, option="--start-at"),
            start_delay=start_delay,
            start_before=parse_time(start_before, option="--start-before"),
            on_conflict=on_conflict,
            on_closed=on_closed,
            debounce=debounce,
            throttle=_parse_throttle(throttle),
        )
        start = Start(request, by=actor)
        target = start.execute()
        if json:
            outputs.print_json(command, RunNamed(**run_fields(target)))
        else:
            verb = {
                "existing": "already open:",
                "replaced": "terminated the open run, and started",
                "debounced": "replaced the input of",
            }.get(start.outcome, "started")
            outputs.write_line(command, f"{verb} {target.workflow} {target.workflow_id}, run {target.run_id}")


def _parse_throttle(texts: list[str] | None) -> tuple[Any, ...] | None:
    """Return ``(count, seconds)`` from the texts of the option ``--throttle``; None without it.

    Raises ``CommandError`` for texts that are not numbers.
    """
    if texts is None:
        return None
    try:
        return int(texts[0]), float(texts[1])
    except ValueError:
        text = outputs.escape(" ".join(texts))
        raise usage_error(
            f"--throttle must be a count and a number of seconds, not {text}", "Write --throttle 5 60."
        ) from None


def _parse_attributes(texts: list[str], declared: Mapping[str, Any]) -> dict[str, Any]:
    """Return the search attributes by name, from texts like ``NAME=VALUE``.

    ``declared`` has the types that the class declares. An attribute that is a list of texts is given once for each
    text. Raises ``CommandError`` for a text that is not a pair.
    """
    parsed: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise usage_error(f"--attribute {outputs.escape(text)} is not a NAME=VALUE pair", "Write NAME=VALUE.")
        parsed[name] = [*parsed.get(name, ()), value] if declared.get(name) == list[str] else value
    encoded: dict[str, Any] = parse_all(parsed, declared, label="--attribute")
    return encoded


def _find_subject(text: str) -> Model:
    label, _colon, key = text.partition(":")
    try:
        model = apps.get_model(label)
        subject: Model = model._default_manager.using(get_settings().DATABASE).get(pk=key)  # noqa: SLF001 - Django documents it
        return subject
    # The model, the key and its type may each be wrong, and each raises errors of its own.
    except Exception as exc:
        raise usage_error(
            f"--subject {outputs.escape(text)} does not exist", "Write app.model:key, such as shop.order:42."
        ) from exc
