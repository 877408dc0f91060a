"""Find the run that an operation is about, by its run id or by a business id: its ``RunTarget``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final, TypeVar
from uuid import UUID

from django.core.exceptions import EmptyResultSet
from django.db.models import QuerySet
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django import access
from temporalex_django.access import is_unfiltered
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.run_filters import NEWEST_FIRST
from temporalex_django.backends.protocol import RunBackend, RunTarget
from temporalex_django.backends.routing import backend_of
from temporalex_django.core.names import TABLES, all_names, current_name, quoted
from temporalex_django.db.claims.limited import read_switches
from temporalex_django.db.sql_columns import CHAINS, RUNS
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.ids import RunRef, parse_run_id, resolve_run
from temporalex_django.errors import UnknownVersion, WorkflowNotFound
from temporalex_django.models import Instance
from temporalex_django.operations.base import Action
from temporalex_django.operations.read import run_filters
from temporalex_django.operations.read.run_filters import iterate_runs

T = TypeVar("T")
#: The runs among which somebody searches; None means all runs.
Runs = QuerySet[Instance] | None
#: What an operation may promise for runs on a Temporal cluster; see ``RunAction``.
CLUSTER_PROMISES: Final = ("asks", "at once", "rows only")
IdQuery = tuple[str, list[Any]]

_CHAIN = CHAINS.pick_columns("id", "run_id", "queue", "closed", "paused", "backend")
_RUN = RUNS.pick_columns("workflow_id", "workflow", "version", "status")
_IS_OFF_SQL = "exists (select 1 from temporalex_switched_off s where s.kind = 'workflow' and s.name = i.workflow)"
_COLUMNS = f"{_CHAIN.with_alias('c')}, {_RUN.with_alias('i')}, {_IS_OFF_SQL}"
_TYPES = (*_CHAIN.types, *_RUN.types, "bool")
_WORKFLOW_COLUMN = 7
_PAGE = 500
_FROM = "from temporalex_instance i join temporalex_chain c on c.id = i.chain_id"
_SELECT = f"select {_COLUMNS} {_FROM}"
_OTHER_WORKFLOW_SQL = "o.workflow_id = i.workflow_id and o.workflow < i.workflow"
_LAST_RUN_SQL = "where i.workflow_id = %s{} order by i.workflow desc, i.id desc limit 1"


class RunAction(Action[T]):
    """Base class of the operations on an existing run; ``target`` is that run with its chain.

    ``cluster`` says what the operation does for a run on a Temporal cluster:

    - "asks": the cluster is asked, through the outbox or directly, and the rows follow.
    - "at once": the cluster does it whatever becomes of the caller's transaction, so it is refused in one.
    - "rows only": it changes or reads only rows of this project.
    - a text: it is refused, and the text says why and what to do instead. That is the default.
    """

    target: RunTarget
    cluster: ClassVar[str | Promise] = _("it has no meaning for a run on a Temporal cluster")

    @classmethod
    def cluster_refusal(cls) -> str | Promise | None:
        """Return the text that refuses the operation for runs on a Temporal cluster, or None."""
        return None if cls.cluster in CLUSTER_PROMISES else cls.cluster

    @property
    def remote(self) -> RunBackend | None:
        """The backend that stores the run outside of the tables; None on the tables, or if only rows change."""
        if self.target.backend == TABLES or self.cluster == "rows only":
            return None
        return backend_of(self.target)

    def flush(self) -> None:
        """Send to a Temporal cluster what the operation has stored for the run, if it lives there."""
        if (remote := self.remote) is not None:
            remote.flush(self.target.chain_id, storage=self.storage)

    @property
    def row(self) -> Instance:
        return self.target.row

    @property
    def workflow_name(self) -> str:
        return self.target.workflow

    def _run_ids(self) -> dict[str, str | None]:
        return {"workflow_id": self.target.workflow_id, "run_id": str(self.target.selected_run_id)}

    def check(self) -> None:
        """Check that the user may do this to the selected run and, if that is an earlier one, to the current run too.

        The current run counts because an operation on an earlier run of a chain affects it. Raises
        ``ActionNotPermitted``, or ``WorkflowNotFound`` for a run that is hidden from the user.
        """
        super().check()
        target, alias = self.target, self.storage.alias
        if self.by.user is not None and target.selected_run_id != target.run_id:
            current_run = Instance.objects.using(alias).get(pk=target.run_id)
            for operation in self.permission_requests:
                access.require_access(self.by.user, operation, alias=alias, run=current_run)


def find_run(
    ref: str,
    *,
    storage: DjangoStorage,
    workflow: str | None = None,
    version: int | None = None,
    visible_runs: Runs = None,
) -> RunTarget:
    """Return the ``RunTarget`` for ``ref``: a run id, or a business id, which means the newest of its runs.

    If runs of several workflows have the business id, the only open one among them is meant. ``workflow`` restricts the
    search to a class, ``version`` to chains whose current run has that version, and ``visible_runs`` to these runs.
    Raises ``WorkflowNotFound``, and ``AmbiguousId`` if it is not clear which run is meant. One read, and one more for
    text that looks like a run id.
    """
    workflow_text = ""
    if workflow:
        workflow_text = f" of {workflow}"
    if not isinstance(ref, str) or not ref.isprintable():
        raise WorkflowNotFound(f"no run{workflow_text} has the id {quoted(ref)}")
    id_query = _id_query(visible_runs, alias=storage.alias)
    conditions, parameters = _id_condition("i", id_query), [*id_query[1]]
    if workflow is not None:
        names = all_names(workflow)
        conditions += f" and i.workflow in ({', '.join(['%s'] * len(names))})"
        parameters += names
    if version is not None:
        conditions += " and i.version = %s"
        parameters.append(version)
    # The version of the current run counts: an older run of the chain may have had another one.
    if version is not None:
        conditions += " and c.run_id = i.id"
    if (run_id := parse_run_id(ref)) is not None:
        # An earlier run leads to the current one of its chain, so both must exist for the user.
        current_condition = ""
        if id_query[0]:
            current_condition = f" and c.run_id in ({id_query[0]})"
        rows = storage.sql.select(
            f"{_SELECT} where i.id = %s{conditions}{current_condition}", [run_id, *parameters, *id_query[1]], _TYPES
        )
        if rows:
            return _target_from_row(rows[0], storage=storage, pinned=run_id)
    if workflow is not None:
        rows = storage.sql.select(
            f"{_SELECT} where i.workflow_id = %s{conditions} order by i.id desc limit 1", [ref, *parameters], _TYPES
        )
        if rows:
            return _target_from_row(rows[0], storage=storage)
    elif (target := _find_in_any_workflow(ref, id_query, storage=storage)) is not None:
        return target
    raise WorkflowNotFound(f"no run{workflow_text} has the id {quoted(ref)}")


def _find_in_any_workflow(ref: str, id_query: IdQuery, *, storage: DjangoStorage) -> RunTarget | None:
    """Raise ``AmbiguousId`` for several targets. One read, and one more for each further workflow with that id."""
    condition, values = _id_condition("i", id_query), id_query[1]
    others = f"exists (select 1 from temporalex_instance o where {_OTHER_WORKFLOW_SQL}{_id_condition('o', id_query)})"  # noqa: S608
    rows = storage.sql.select(
        f"select {_COLUMNS}, {others} {_FROM} {_LAST_RUN_SQL.format(condition)}",
        [*values, ref, *values],
        (*_TYPES, "bool"),
    )
    if not rows:
        return None
    if not rows[0][-1]:
        return _target_from_row(rows[0][:-1], storage=storage)
    all_rows = storage.sql.select(
        f"{_SELECT} where i.workflow_id = %s and c.run_id = i.id and not c.closed{condition} order by i.id desc",
        [ref, *values],
        _TYPES,
    )
    rows = [rows[0][:-1]]
    # Collect the newest run of each workflow, open or not. Each step asks the index for the next smaller name.
    while rows:
        all_rows += rows
        rows = storage.sql.select(
            f"{_SELECT} {_LAST_RUN_SQL.format(f' and i.workflow < %s{condition}')}",
            [ref, rows[0][_WORKFLOW_COLUMN], *values],
            _TYPES,
        )
    targets = {target.chain_id: target for target in (_target_from_row(row, storage=storage) for row in all_rows)}
    sorted_targets = sorted(targets.values(), key=lambda target: target.run_id, reverse=True)
    match = resolve_run(ref, [RunRef(t.chain_id, t.run_id, t.workflow, t.status, t.closed) for t in sorted_targets])
    if match is None:
        return None
    return targets[match.chain_id]


def find_by_version(ref: str, *, storage: DjangoStorage, workflow: str, version: int | None) -> RunTarget:
    """Return the target for the business id ``ref`` among the runs of a class that have the version ``version``.

    None as ``version`` means the version of the open runs with that id, or any version if none is open. Raises
    ``UnknownVersion`` if the open runs have several versions, and ``WorkflowNotFound``.
    """
    if version is None:
        names = all_names(workflow)
        rows = storage.sql.select(
            "select distinct i.version from temporalex_instance i join temporalex_chain c on c.run_id = i.id"  # noqa: S608
            f" where i.workflow_id = %s and i.workflow in ({', '.join(['%s'] * len(names))}) and not c.closed",
            [ref, *names],
            ("int4",),
        )
        if len(rows) == 1:
            version = int(rows[0][0])
        elif rows:
            versions = ", ".join(str(number) for number in sorted(row[0] for row in rows))
            raise UnknownVersion(f"{workflow} {ref!r} is open in several versions ({versions}): name one with version=")
    return find_run(ref, storage=storage, workflow=workflow, version=version)


def list_runs(
    workflow: str, filters: dict[str, Any], *, storage: DjangoStorage, by: Person | None = None
) -> Iterator[tuple[str, UUID]]:
    """Yield ``(business id, chain id)`` of the current runs of a class that match ``filters``.

    ``filters`` has the values of the filters by name, and the order as ``order``; see
    ``authoring.run_filters``. Only runs that the user ``by`` may see are yielded; None means code, which
    sees all. They are read in pages of 500. Raises ``ActionNotPermitted`` at once if the user may not look at runs.
    """
    access.require_access(by, access.VIEW, alias=storage.alias)
    visible_runs = access.runs_for(by, alias=storage.alias)
    runs = access.runs_or_all(visible_runs, alias=storage.alias)
    filters = dict(filters)
    order = filters.pop("order", NEWEST_FIRST)
    runs = run_filters.apply_filters(runs.filter(workflow__in=all_names(workflow)), filters)
    # A run that waits is the current one of its chain. PostgreSQL would test that for each run of the class.
    if "waits" not in filters:
        runs = run_filters.current_runs(runs)
    rows = iterate_runs(runs.only("workflow_id", "chain_id", "closed_at"), order, size=_PAGE)
    return ((row.workflow_id, row.chain_id) for row in rows)


def _id_query(runs: Runs, *, alias: str) -> IdQuery:
    """Return the statement, empty for all runs and ``null`` for none, and its parameters."""
    if runs is None or is_unfiltered(runs):
        return "", []
    try:
        sql, values = runs.order_by().values("pk").query.get_compiler(using=alias).as_sql()
    # Django knows without a statement that nothing matches; ``in (null)`` is true for no row.
    except EmptyResultSet:
        return "null", []
    return sql, [*values]


def _id_condition(table: str, id_query: IdQuery) -> str:
    if id_query[0]:
        return f" and {table}.id in ({id_query[0]})"
    return ""


def find_chain(chain_id: UUID, *, storage: DjangoStorage, visible_runs: Runs = None) -> RunTarget:
    """Return the target of the chain with that id.

    Raises ``WorkflowNotFound`` if it does not exist, or if its current run is not among ``visible_runs``. One read.
    """
    id_query = _id_query(visible_runs, alias=storage.alias)
    rows = storage.sql.select(
        f"select {_COLUMNS} from temporalex_chain c join temporalex_instance i on i.id = c.run_id where c.id = %s{_id_condition('i', id_query)}",  # noqa: S608
        [chain_id, *id_query[1]],
        _TYPES,
    )
    if not rows:
        raise WorkflowNotFound("no such run: was the transaction that started it rolled back?")
    return _target_from_row(rows[0], storage=storage)


def _target_from_row(row: tuple[object, ...], *, storage: DjangoStorage, pinned: UUID | None = None) -> RunTarget:
    """Return the target. A renamed class takes one more statement: its switch may have the old or the new name."""
    chain_id, run_id, queue, closed, paused, backend, workflow_id, workflow, version, status, off = row
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
        backend=str(backend),
        pinned=pinned,
    )
