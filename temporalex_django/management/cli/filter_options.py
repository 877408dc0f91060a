"""The filters of ``list`` and ``bulk``: those of REST, with the same names and the same errors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandParser
from django.db.models import QuerySet

from temporalex_django.management.cli.exit_codes import usage_error
from temporalex_django.management.cli.printing import escape
from temporalex_django.models import Instance, Status

if TYPE_CHECKING:
    from temporalex_django.rest.filters import RunFilter

_DEST_PREFIX = "filter_"


def add_filters(parser: CommandParser) -> None:
    """Add an option for each filter."""
    group = parser.add_argument_group("filters", "A run must match all of them.")
    for name, run_filter in _filter_class().base_filters.items():
        help_text = run_filter.extra.get("help_text") or (
            "An ISO 8601 time." if name.endswith(("_after", "_before")) else ""
        )
        # A prefix keeps filters apart from other options of a command, such as an input of the same name.
        group.add_argument(
            _option_name(name), dest=f"{_DEST_PREFIX}{name}", metavar="VALUE", help=str(help_text).replace("%", "%%")
        )


def filter_names() -> Collection[str]:
    """Return the names of all filters."""
    return [*_filter_class().base_filters]


def filters_of(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the filters that are given, by name."""
    option_values = {name: options.get(f"{_DEST_PREFIX}{name}") for name in _filter_class().base_filters}
    return {name: value for name, value in option_values.items() if value is not None}


def apply_filters(runs: QuerySet[Instance], filters: Mapping[str, str]) -> QuerySet[Instance]:
    """Return the runs for which all filters hold.

    Raises ``CommandError`` for a value that a filter does not take; it says which values there are.
    """
    for name, value in filters.items():
        # Databases refuse some control characters in parameters.
        if not value.isprintable():
            raise usage_error(
                f"{_option_name(name)} {escape(value)} contains unprintable characters",
                "Use printable characters only.",
            )
    form = _filter_class()(data=filters, queryset=runs)
    if not form.is_valid():
        # One error is enough: the person corrects the command line one option at a time.
        name, messages = next(iter(form.errors.items()))
        next_step = f"Use one of: {', '.join(Status.values)}." if name == "status" else f"Write: {_example(name)}."
        raise usage_error(
            f"{_option_name(name)} {escape(filters[name])}: {escape(' '.join(map(str, messages)))}", next_step
        )
    filtered_runs: QuerySet[Instance] = form.qs
    return filtered_runs


def _filter_class() -> type[RunFilter]:
    """Import and return the class of the filters.

    It is imported only when needed: with REST this takes as long as all other imports, and a worker does not use it.
    """
    from temporalex_django.rest.filters import RunFilter  # noqa: PLC0415 - see above

    return RunFilter


def _option_name(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _example(name: str) -> str:
    """Return an example of the option with a valid value."""
    if name.endswith(("_after", "_before")):
        return f"{_option_name(name)} 2026-11-03T14:00:00Z"
    return {
        "version": f"{_option_name(name)} 2",
        "blocked": f"{_option_name(name)} true, or false",
        "subject": f"{_option_name(name)} app.model:key",
        "attributes": f"""--workflow NAME {_option_name(name)} '{{"total__gt": 1000, "customer": "x"}}'""",
    }.get(name, f"{_option_name(name)} VALUE")
