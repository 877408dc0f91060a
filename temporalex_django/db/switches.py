"""Switches: the queues, activities and workflow classes that are off, as workers read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from temporalex_django.core import aliases
from temporalex_django.db.dialects.base import Dialect


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """The names that are off, including former names of renamed classes and activities.

    ``has_partitions`` is True if activities wait in partitions of their queues.
    """

    queues: frozenset[str] = frozenset()
    activities: frozenset[str] = frozenset()
    workflows: frozenset[str] = frozenset()
    has_partitions: bool = False


def read_switches(sql: Dialect) -> Switches:
    """Read the switches as they are now: one plain read."""
    rows = sql.select(
        "select kind, name from temporalex_switched_off union all select 'line', '' where exists (select 1 from"
        " temporalex_activity_task where line is not null and owner is null and not atomic)",
        [],
        ("text", "text"),
    )

    def names_of(kind: str, aliases: Mapping[str, str] = MappingProxyType({})) -> frozenset[str]:
        names = {name for its_kind, name in rows if its_kind == kind}
        # Rows of old code carry the former name, so a switch by the present name has to stop them, too.
        return frozenset(names | {old for old, new in aliases.items() if new in names})

    return Switches(
        queues=names_of("queue"),
        activities=names_of("activity", aliases.ACTIVITIES),
        workflows=names_of("workflow", aliases.WORKFLOWS),
        has_partitions=bool(names_of("line")),
    )
