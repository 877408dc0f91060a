"""The family of a run: the run from which all of it began, and the runs that each has started."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from django.db.models import QuerySet

from temporalex_django.authoring.run_columns import UNREAD_COLUMNS
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.models import Instance

#: Levels above and below a run, and runs, that a tree has at most.
MAX_LEVELS: Final = 40
MAX_RUNS: Final = 200

_UP: Final = (
    "with recursive up(id, parent, level) as (select i.id, i.parent_run_id, 0 from temporalex_instance i where i.id = %s"
    " union all select i.id, i.parent_run_id, up.level + 1 from temporalex_instance i join up on i.id = up.parent"
    " where up.level < %s) select id from up order by level"
)
_DOWN: Final = (
    "with recursive down(id, level) as (select i.id, 0 from temporalex_instance i where i.id = %s"
    " union all select i.id, down.level + 1 from temporalex_instance i join down on i.parent_run_id = down.id"
    " where down.level < %s) select id from down limit %s"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyMember:
    """A run in the tree of a family. ``level`` is 0 for the root; ``blocked_below`` counts blocked runs below it."""

    run: Instance
    level: int
    blocked_below: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyTree:
    """The tree of a family, each run followed by those that it started.

    ``is_cut`` is True if there are more runs than the tree has, or more levels.
    """

    members: Sequence[FamilyMember]
    is_cut: bool


def family_tree(run: Instance, visible_runs: QuerySet[Instance], *, storage: DjangoStorage) -> FamilyTree:
    """Return the tree of the family of a run, as far as its runs are in ``visible_runs``.

    The run itself and the runs above it are always in the tree. Two reads, and two more for a run that another one
    started.
    """
    path = _visible_path(run, visible_runs, storage=storage) if run.parent_run_id is not None else [run]
    root = path[-1]
    ids = [row[0] for row in storage.sql.select(_DOWN, [root.pk, MAX_LEVELS, MAX_RUNS + 1], ("uuid",))]
    rows = visible_runs.filter(pk__in=ids[:MAX_RUNS]).defer(*UNREAD_COLUMNS)
    runs_by_id = {relative.pk: relative for relative in rows} | {member.pk: member for member in path}
    children: dict[UUID | None, list[Instance]] = defaultdict(list)
    for member in sorted(runs_by_id.values(), key=lambda each: each.pk):
        if member.pk != root.pk:
            children[member.parent_run_id].append(member)
    members = [*_walk(root, children)]
    # The deepest level may have children that are not read.
    is_cut = len(ids) > MAX_RUNS or any(member.level == MAX_LEVELS for member in members) or len(path) > MAX_LEVELS
    return FamilyTree(members=members, is_cut=is_cut)


def _visible_path(run: Instance, visible_runs: QuerySet[Instance], *, storage: DjangoStorage) -> list[Instance]:
    """Return the run and those above it, as far as each is visible."""
    ids = [row[0] for row in storage.sql.select(_UP, [run.pk, MAX_LEVELS], ("uuid",))]
    above = {each.pk: each for each in visible_runs.filter(pk__in=ids[1:]).defer(*UNREAD_COLUMNS)}
    path = [run]
    for key in ids[1:]:
        if key not in above:
            break
        path.append(above[key])
    return path


def _walk(root: Instance, children: Mapping[UUID | None, Sequence[Instance]]) -> Iterator[FamilyMember]:
    """Yield the runs of a tree in the order in which it is read. The depth is bounded by ``MAX_LEVELS``."""
    order: list[tuple[Instance, int]] = []
    pending = [(root, 0)]
    while pending:
        run, level = pending.pop()
        order.append((run, level))
        pending += [(child, level + 1) for child in reversed(children.get(run.pk, ()))]
    blocked: dict[UUID, int] = defaultdict(int)
    # Children come after their parents, so backwards each count is complete before it is added.
    for run, _level in reversed(order):
        if run.parent_run_id is not None:
            blocked[run.parent_run_id] += blocked[run.pk] + int(bool(run.blocked) and run.is_open)
    for run, level in order:
        yield FamilyMember(run=run, level=level, blocked_below=blocked[run.pk])
