"""The filters of ``list`` and ``bulk``: those of REST, with the same words and the same refusals."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandParser
from django.db.models import QuerySet

from temporalex_django.management.exits import misused
from temporalex_django.management.printing import safe
from temporalex_django.models import Instance, Status

if TYPE_CHECKING:
    from temporalex_django.rest.filters import RunFilter

_DEST = "filter_"


def add_filters(parser: CommandParser) -> None:
    """One option for each of them."""
    group = parser.add_argument_group("filters", "all of them must hold")
    for name, one in _filter().base_filters.items():
        said = one.extra.get("help_text") or ("an ISO time" if name.endswith(("_after", "_before")) else "")
        group.add_argument(_option(name), dest=f"{_DEST}{name}", metavar="VALUE", help=str(said).replace("%", "%%"))


def filter_names() -> Collection[str]:
    """The names of all of them."""
    return [*_filter().base_filters]


def filters_of(options: Mapping[str, Any]) -> dict[str, str]:
    """Those that were given, by name."""
    given = {name: options.get(f"{_DEST}{name}") for name in _filter().base_filters}
    return {name: value for name, value in given.items() if value is not None}


def narrowed(runs: QuerySet[Instance], given: Mapping[str, str]) -> QuerySet[Instance]:
    """Those of ``runs`` for which all of them hold. Raises ``CommandError`` that says which words there are."""
    for name, value in given.items():
        if not value.isprintable():
            raise misused(f"{_option(name)} {safe(value)} is no value", "Printable characters only.")
    form = _filter()(data=given, queryset=runs)
    if not form.is_valid():
        name, messages = next(iter(form.errors.items()))
        then = f"There are: {', '.join(Status.values)}." if name == "status" else f"Write: {_written(name)}."
        raise misused(f"{_option(name)} {safe(given[name])}: {safe(' '.join(map(str, messages)))}", then)
    found: QuerySet[Instance] = form.qs
    return found


def _filter() -> type[RunFilter]:
    """Imported where it is needed: with REST it takes as long as all the rest, and a worker has no use for it."""
    from temporalex_django.rest.filters import RunFilter  # noqa: PLC0415 - see above

    return RunFilter


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _written(name: str) -> str:
    """One that is right."""
    if name.endswith(("_after", "_before")):
        return f"{_option(name)} 2026-11-03T14:00:00Z"
    return {
        "version": f"{_option(name)} 2",
        "blocked": f"{_option(name)} true, or false",
        "subject": f"{_option(name)} app.model:key",
        "attributes": f"""--workflow NAME {_option(name)} '{{"total__gt": 1000, "customer": "x"}}'""",
    }.get(name, f"{_option(name)} VALUE")
