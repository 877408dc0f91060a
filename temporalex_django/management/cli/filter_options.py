"""The filters of ``list`` and ``bulk``, with the names and the errors of REST."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from django.core.management.base import CommandParser
from django.db.models import QuerySet

from temporalex_django.authoring.run_filters import INTERFACE_FILTERS, FilterType
from temporalex_django.management.cli.exit_codes import usage_error
from temporalex_django.management.cli.printing import escape
from temporalex_django.models import Instance, Status

_DEST_PREFIX = "filter_"


def add_filters(parser: CommandParser) -> None:
    """Add an option for each filter of runs to the parser."""
    group = parser.add_argument_group("filters", "A run must match all of them.")
    for name, row in INTERFACE_FILTERS.items():
        # A prefix keeps filters apart from other options of a command, such as an input of the same name.
        group.add_argument(
            _option_name(name), dest=f"{_DEST_PREFIX}{name}", metavar="VALUE", help=row.help.replace("%", "%%")
        )


def filter_names() -> Collection[str]:
    """Return the names of all filters of runs, such as ``id_prefix``."""
    return INTERFACE_FILTERS.keys()


def filters_of(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of the filters that were given on the command line, by the name of the filter.

    ``options`` are the parsed options of the command.
    """
    option_values = {name: options.get(f"{_DEST_PREFIX}{name}") for name in INTERFACE_FILTERS}
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
    # With REST, the import takes as long as all other imports together, and a worker does not need it.
    from temporalex_django.rest.filters import RunFilter  # noqa: PLC0415 - see above

    form = RunFilter(data=filters, queryset=runs)
    if not form.is_valid():
        # One error is enough: the person corrects the command line one option at a time.
        name, messages = next(iter(form.errors.items()))
        next_step = _next_step(name)
        raise usage_error(
            f"{_option_name(name)} {escape(filters[name])}: {escape(' '.join(map(str, messages)))}", next_step
        )
    filtered_runs: QuerySet[Instance] = form.qs
    return filtered_runs


def _option_name(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _next_step(name: str) -> str:
    """Return the sentence that follows an error about the filter ``name``: its valid values, or an example."""
    row = INTERFACE_FILTERS[name]
    if row.type is FilterType.STATUSES:
        return f"Use one of: {', '.join(Status.values)}."
    # Attributes belong to a class, so they need the option for the class beside them.
    needed_option = "--workflow NAME " if row.type is FilterType.ATTRIBUTES else ""
    return f"Write: {needed_option}{_option_name(name)} {row.example}."
