"""Which run an operation is about: found by business id, by run id, or known from its start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from django.core.exceptions import EmptyResultSet
from django.db.models import QuerySet

from temporalex_django import access
from temporalex_django.access import is_every
from temporalex_django.actions import narrowing
from temporalex_django.actions.base import Action, Subject, storage
from temporalex_django.actions.ordering import in_order
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.listing import NEWEST_FIRST
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.conf import get_settings
from temporalex_django.core.aliases import all_names, current_name
from temporalex_django.core.names import quoted
from temporalex_django.db.sql_columns import CHAINS, RUNS
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.db.switches import read_switches
from temporalex_django.engine.lookup import RunRef, parse_run_id, resolve_run
from temporalex_django.errors import UnknownVersion, WorkflowClosed, WorkflowNotFound
from temporalex_django.models import Instance

T = TypeVar("T")
#: Among which runs somebody looks; None: among all.
Runs = QuerySet[Instance] | None
Ids = tuple[str, list[Any]]

_CHAIN = CHAINS.pick_columns("id", "run_id", "queue", "closed", "paused")
_RUN = RUNS.pick_columns("workflow_id", "workflow", "version", "status")
_OFF = "exists (select 1 from temporalex_switched_off s where s.kind = 'workflow' and s.name = i.workflow)"
_COLUMNS = f"{_CHAIN.with_alias('c')}, {_RUN.with_alias('i')}, {_OFF}"
_TYPES = (*_CHAIN.types, *_RUN.types, "bool")
_WORKFLOW = 6
_PAGE = 500
_FROM = "from temporalex_instance i join temporalex_chain c on c.id = i.chain_id"
_SELECT = f"select {_COLUMNS} {_FROM}"
_OTHERS = "o.workflow_id = i.workflow_id and o.workflow < i.workflow"
_LAST = "where i.workflow_id = %s{} order by i.workflow desc, i.id desc limit 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTarget:
    """A chain and its current run, as they were when they were read. ``off``: its class is switched off.

    ``pinned`` is the run that was asked for by its run id: that one is shown. Messages go to the chain all the same.
    """

    chain_id: UUID
    run_id: UUID
    queue: str
    closed: bool
    paused: bool
    workflow_id: str
    workflow: str
    version: int
    status: str
    off: bool = False
    pinned: UUID | None = None

    @property
    def shown(self) -> UUID:
        """The run whose row, history and result are meant."""
        return self.pinned or self.run_id

    @property
    def subject(self) -> Subject:
        return Subject(run_id=str(self.run_id), workflow=self.workflow, workflow_id=self.workflow_id)

    @property
    def row(self) -> Instance:
        """The run that is shown, as the model; what it is not known by is read when somebody asks for it."""
        known = {
            "id": self.shown,
            "chain_id": self.chain_id,
            "workflow_id": self.workflow_id,
            "workflow": self.workflow,
            "version": self.version,
            "status": self.status,
        }
        return Instance.from_db(storage().alias, [*known], [*known.values()])

    @property
    def code(self) -> type[Workflow] | None:
        """Its class, when this process has it in the version of the run; without it nothing may be activated here."""
        return workflows.find_version(self.workflow, self.version)

    def require_open(self, what: str) -> None:
        """Raises ``WorkflowClosed``."""
        if self.closed:
            raise WorkflowClosed(f"{self.workflow} {self.workflow_id} is closed ({self.status}): {what} refused")


class ActionOnRun(Action[T]):
    """Base of the operations on a run that there is."""

    target: RunTarget

    @property
    def row(self) -> Instance:
        return self.target.row

    @property
    def of_workflow(self) -> str:
        return self.target.workflow

    def check(self) -> None:
        """Of an earlier run both are asked about: it is named, and the present one of its chain is meant."""
        super().check()
        target, alias = self.target, self.storage.alias
        if self.by.user is not None and target.shown != target.run_id:
            present = Instance.objects.using(alias).get(pk=target.run_id)
            for asked in self.all_asked:
                access.admit(self.by.user, asked, alias=alias, run=present)


def in_workers_alone(code: type[Workflow] | None) -> bool:
    """Return whether the class, or else the setting, leaves updates (and replays of people) to workers."""
    return ((None if code is None else code.updates_in) or get_settings().UPDATES_IN) == "workers"


def find(
    ref: str,
    *,
    storage: DjangoStorage,
    workflow: str | None = None,
    version: int | None = None,
    among: Runs = None,
) -> RunTarget:
    """The run of that run id, else the newest chain of that business id.

    One read, one more for what looks like a run id.

    A business id that several workflows used means the one run of it that is open. ``workflow`` narrows it to one
    class, ``version`` to one of its versions, and ``among`` to these runs: there are no others then. Raises
    ``WorkflowNotFound`` and ``AmbiguousId``.
    """
    of = f" of {workflow}" if workflow else ""
    if not isinstance(ref, str) or not ref.isprintable():
        raise WorkflowNotFound(f"no run{of} has the id {quoted(ref)}")
    there = _ids(among, alias=storage.alias)
    own, narrowed = _in("i", there), [*there[1]]
    if workflow is not None:
        known = all_names(workflow)
        own += f" and i.workflow in ({', '.join(['%s'] * len(known))})"
        narrowed += known
    if version is not None:
        own += " and i.version = %s"
        narrowed.append(version)
    if version is not None:  # that of the present run: an older one of the chain may have been of that version
        own += " and c.run_id = i.id"
    if (run_id := parse_run_id(ref)) is not None:
        # a run that was followed by another leads to that one: it is his, too
        present = f" and c.run_id in ({there[0]})" if there[0] else ""
        rows = storage.sql.select(f"{_SELECT} where i.id = %s{own}{present}", [run_id, *narrowed, *there[1]], _TYPES)
        if rows:
            return _target(rows[0], storage=storage, pinned=run_id)
    if workflow is not None:
        rows = storage.sql.select(
            f"{_SELECT} where i.workflow_id = %s{own} order by i.id desc limit 1", [ref, *narrowed], _TYPES
        )
        if rows:
            return _target(rows[0], storage=storage)
    elif (target := _of_any_workflow(ref, there, storage=storage)) is not None:
        return target
    raise WorkflowNotFound(f"no run{of} has the id {quoted(ref)}")


def _of_any_workflow(ref: str, there: Ids, *, storage: DjangoStorage) -> RunTarget | None:
    """One read where one workflow used the id.

    The newest run of the last one by name, and whether there is a run of another.
    """
    own, values = _in("i", there), there[1]
    others = f"exists (select 1 from temporalex_instance o where {_OTHERS}{_in('o', there)})"  # noqa: S608
    rows = storage.sql.select(
        f"select {_COLUMNS}, {others} {_FROM} {_LAST.format(own)}", [*values, ref, *values], (*_TYPES, "bool")
    )
    if not rows:
        return None
    if not rows[0][-1]:
        return _target(rows[0][:-1], storage=storage)
    found = storage.sql.select(
        f"{_SELECT} where i.workflow_id = %s and c.run_id = i.id and not c.closed{own} order by i.id desc",
        [ref, *values],
        _TYPES,
    )
    rows = [rows[0][:-1]]
    while rows:  # the newest of each workflow, open or not
        found += rows
        rows = storage.sql.select(
            f"{_SELECT} {_LAST.format(f' and i.workflow < %s{own}')}", [ref, rows[0][_WORKFLOW], *values], _TYPES
        )
    targets = {target.chain_id: target for target in (_target(row, storage=storage) for row in found)}
    newest = sorted(targets.values(), key=lambda target: target.run_id, reverse=True)
    one = resolve_run(ref, [RunRef(t.chain_id, t.run_id, t.workflow, t.status, t.closed) for t in newest])
    return None if one is None else targets[one.chain_id]


def find_one(ref: str, *, storage: DjangoStorage, workflow: str, version: int | None) -> RunTarget:
    """``find`` by the id of a business value.

    Raises ``UnknownVersion`` when several versions are open and none is named.
    """
    if version is None:
        known = all_names(workflow)
        rows = storage.sql.select(
            "select distinct i.version from temporalex_instance i join temporalex_chain c on c.run_id = i.id"  # noqa: S608
            f" where i.workflow_id = %s and i.workflow in ({', '.join(['%s'] * len(known))}) and not c.closed",
            [ref, *known],
            ("int4",),
        )
        if len(rows) == 1:
            version = int(rows[0][0])
        elif rows:
            several = ", ".join(str(number) for number in sorted(row[0] for row in rows))
            raise UnknownVersion(f"{workflow} {ref!r} is open in several versions ({several}): name one with version=")
    return find(ref, storage=storage, workflow=workflow, version=version)


def found_by(
    workflow: str, filters: dict[str, Any], *, storage: DjangoStorage, by: Person | None = None
) -> Iterator[tuple[str, UUID]]:
    """Id and chain of the present runs of a class that ``filters`` (of ``authoring.listing``) leave, in that order.

    Among those that there are for ``by``. Raises ``ActionNotPermitted``.
    """
    access.admit(by, access.VIEW, alias=storage.alias)
    there = access.runs_for(by, alias=storage.alias)
    runs = Instance.objects.using(storage.alias) if there is None else there
    filters = dict(filters)
    order = filters.pop("order", NEWEST_FIRST)
    runs = narrowing.narrowed(narrowing.present(runs.filter(workflow__in=all_names(workflow))), filters)
    rows = in_order(runs.only("workflow_id", "chain_id", "closed_at"), order, size=_PAGE)
    return ((row.workflow_id, row.chain_id) for row in rows)


def _ids(runs: Runs, *, alias: str) -> Ids:
    """A statement that gives the ids of these runs, with its parameters; none for all of them."""
    if runs is None or is_every(runs):
        return "", []
    try:
        sql, values = runs.order_by().values("pk").query.get_compiler(using=alias).as_sql()
    except EmptyResultSet:
        return "null", []
    return sql, [*values]


def _in(table: str, ids: Ids) -> str:
    """A condition that only these rows of a table of runs meet."""
    return f" and {table}.id in ({ids[0]})" if ids[0] else ""


def find_chain(chain_id: UUID, *, storage: DjangoStorage, among: Runs = None) -> RunTarget:
    """The same by chain. Raises ``WorkflowNotFound``."""
    there = _ids(among, alias=storage.alias)
    rows = storage.sql.select(
        f"select {_COLUMNS} from temporalex_chain c join temporalex_instance i on i.id = c.run_id where c.id = %s{_in('i', there)}",  # noqa: S608
        [chain_id, *there[1]],
        _TYPES,
    )
    if not rows:
        raise WorkflowNotFound("no such run: was the transaction that started it rolled back?")
    return _target(rows[0], storage=storage)


def _target(row: tuple[object, ...], *, storage: DjangoStorage, pinned: UUID | None = None) -> RunTarget:
    """Of a class that was renamed one statement more: the switch has its present name."""
    chain_id, run_id, queue, closed, paused, workflow_id, workflow, version, status, off = row
    if current_name(str(workflow)) != workflow:
        off = off or workflow in read_switches(storage.sql).workflows
    return RunTarget(
        chain_id=chain_id,  # type: ignore[arg-type] # the types are those of _TYPES
        run_id=run_id,  # type: ignore[arg-type]
        queue=str(queue),
        closed=bool(closed),
        paused=bool(paused),
        workflow_id=str(workflow_id),
        workflow=str(workflow),
        version=int(version),  # type: ignore[call-overload]
        status=str(status),
        off=bool(off),
        pinned=pinned,
    )
