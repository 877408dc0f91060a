"""What is switched off, for workers to hear."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from temporalex_django.core import aliases
from temporalex_django.db.dialects.base import Dialect


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """Names of what is off, and those that it had once. ``lines``: some activities wait in lines of their own."""

    queues: frozenset[str] = frozenset()
    activities: frozenset[str] = frozenset()
    workflows: frozenset[str] = frozenset()
    lines: bool = False


def read_switches(sql: Dialect) -> Switches:
    """As they are now: one plain read."""
    rows = sql.select(
        "select kind, name from temporalex_switched_off union all select 'line', '' where exists (select 1 from"
        " temporalex_activity_task where line is not null and owner is null and not atomic)",
        [],
        ("text", "text"),
    )

    def of(kind: str, once: Mapping[str, str] = MappingProxyType({})) -> frozenset[str]:
        found = {name for its_kind, name in rows if its_kind == kind}
        return frozenset(found | {old for old, new in once.items() if new in found})

    return Switches(
        queues=of("queue"),
        activities=of("activity", aliases.ACTIVITIES),
        workflows=of("workflow", aliases.WORKFLOWS),
        lines=bool(of("line")),
    )
