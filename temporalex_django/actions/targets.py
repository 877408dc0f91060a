"""Which run an operation is about: found by business id, by run id, or known from its start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import F

from temporalex_django.actions.base import Subject
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.core.names import shown
from temporalex_django.errors import UnknownVersion, UnknownWorkflow, WorkflowClosed, WorkflowNotFound
from temporalex_django.models import Instance
from temporalex_django.runtime.django import DjangoStorage
from temporalex_django.runtime.lookup import Found, as_run_id, the_one
from temporalex_django.runtime.pages import in_pages

_COLUMNS = "c.id, c.run_id, c.queue, c.closed, i.workflow_id, i.workflow, i.version, i.status"
_TYPES = ("uuid", "uuid", "text", "bool", "text", "text", "int4", "text")
_WORKFLOW = 5
_FROM = "from temporalex_instance i join temporalex_chain c on c.id = i.chain_id"
_SELECT = f"select {_COLUMNS} {_FROM}"
_OTHERS = "exists (select 1 from temporalex_instance o where o.workflow_id = i.workflow_id and o.workflow < i.workflow)"
_LAST = "where i.workflow_id = %s{} order by i.workflow desc, i.id desc limit 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A chain and its current run, as they were when they were read.

    ``pinned`` is the run that was asked for by its run id: that one is shown. Messages go to the chain all the same.
    """

    chain_id: UUID
    run_id: UUID
    queue: str
    closed: bool
    workflow_id: str
    workflow: str
    version: int
    status: str
    pinned: UUID | None = None

    @property
    def shown(self) -> UUID:
        """The run whose row, history and result are meant."""
        return self.pinned or self.run_id

    @property
    def subject(self) -> Subject:
        return Subject(run_id=str(self.run_id), workflow=self.workflow, workflow_id=self.workflow_id)

    @property
    def code(self) -> type[Workflow] | None:
        """Its class, when this process has it in the version of the run; without it nothing may be activated here."""
        try:
            cls = workflows.code_of(self.workflow, self.version)
        except UnknownWorkflow:
            return None
        return cls if cls.version == self.version else None

    def require_open(self, what: str) -> None:
        """Raises ``WorkflowClosed``."""
        if self.closed:
            raise WorkflowClosed(f"{self.workflow} {self.workflow_id} is closed ({self.status}): {what} refused")


def find(ref: str, *, storage: DjangoStorage, workflow: str | None = None, version: int | None = None) -> Target:
    """The run of that run id, else the newest chain of that business id. One read, one more for what looks like a run id.

    A business id that several workflows used means the one run of it that is open. ``workflow`` narrows it to one class, ``version``
    to one of its versions. Raises ``WorkflowNotFound`` and ``AmbiguousId``.
    """
    of = f" of {workflow}" if workflow else ""
    if not isinstance(ref, str) or not ref.isprintable():
        raise WorkflowNotFound(f"no run{of} has the id {shown(ref)}")
    own = ""
    narrowed: list[object] = []
    for column, wanted in (("workflow", workflow), ("version", version)):
        if wanted is not None:
            own += f" and i.{column} = %s"
            narrowed.append(wanted)
    if version is not None:  # that of the present run: an older one of the chain may have been of that version
        own += " and c.run_id = i.id"
    if (run_id := as_run_id(ref)) is not None:
        rows = storage.sql.select(f"{_SELECT} where i.id = %s{own}", [run_id, *narrowed], _TYPES)
        if rows:
            return _target(rows[0], pinned=run_id)
    if workflow is not None:
        rows = storage.sql.select(
            f"{_SELECT} where i.workflow_id = %s{own} order by i.id desc limit 1", [ref, *narrowed], _TYPES
        )
        if rows:
            return _target(rows[0])
    elif (target := _of_any_workflow(ref, storage=storage)) is not None:
        return target
    raise WorkflowNotFound(f"no run{of} has the id {shown(ref)}")


def _of_any_workflow(ref: str, *, storage: DjangoStorage) -> Target | None:
    """One read where one workflow used the id: the newest run of the last one by name, and whether there is a run of another."""
    newest = f"select {_COLUMNS}, {_OTHERS} {_FROM} {_LAST.format('')}"
    rows = storage.sql.select(newest, [ref], (*_TYPES, "bool"))
    if not rows:
        return None
    if not rows[0][-1]:
        return _target(rows[0][:-1])
    found = storage.sql.select(
        f"{_SELECT} where i.workflow_id = %s and c.run_id = i.id and not c.closed order by i.id desc", [ref], _TYPES
    )
    rows = [rows[0][:-1]]
    while rows:  # the newest of each workflow, open or not
        found += rows
        rows = storage.sql.select(
            f"{_SELECT} {_LAST.format(' and i.workflow < %s')}", [ref, rows[0][_WORKFLOW]], _TYPES
        )
    targets = {target.chain_id: target for target in map(_target, found)}
    one = the_one(ref, [Found(t.chain_id, t.run_id, t.workflow, t.status, t.closed) for t in targets.values()])
    return None if one is None else targets[one.chain_id]


def find_one(ref: str, *, storage: DjangoStorage, workflow: str, version: int | None) -> Target:
    """``find`` by the id of a business value. Raises ``UnknownVersion`` when several versions are open and none is named."""
    if version is None:
        rows = storage.sql.select(
            "select distinct i.version from temporalex_instance i join temporalex_chain c on c.run_id = i.id"
            " where i.workflow_id = %s and i.workflow = %s and not c.closed",
            [ref, workflow],
            ("int4",),
        )
        if len(rows) == 1:
            version = int(rows[0][0])
        elif rows:
            several = ", ".join(str(number) for number in sorted(row[0] for row in rows))
            raise UnknownVersion(f"{workflow} {ref!r} is open in several versions ({several}): name one with version=")
    return find(ref, storage=storage, workflow=workflow, version=version)


def found_by(workflow: str, filters: dict[str, Any], *, storage: DjangoStorage) -> Iterator[tuple[str, UUID]]:
    """Id and chain of the runs of a class, newest first; filters: ``id``, ``version``, ``status`` (a list)."""
    runs = Instance.objects.using(storage.alias).filter(workflow=workflow, chain__run_id=F("id"))
    for column, name in (("workflow_id", "id"), ("version", "version"), ("status__in", "status")):
        if name in filters:
            runs = runs.filter(**{column: filters[name]})
    for row in in_pages(runs.only("workflow_id", "chain_id"), by="-id"):
        yield row.workflow_id, row.chain_id


def find_chain(chain_id: UUID, *, storage: DjangoStorage) -> Target:
    """The same by chain. Raises ``WorkflowNotFound``."""
    rows = storage.sql.select(
        f"select {_COLUMNS} from temporalex_chain c join temporalex_instance i on i.id = c.run_id where c.id = %s",  # noqa: S608
        [chain_id],
        _TYPES,
    )
    if not rows:
        raise WorkflowNotFound("no such run: was the transaction that started it rolled back?")
    return _target(rows[0])


def _target(row: tuple[object, ...], *, pinned: UUID | None = None) -> Target:
    chain_id, run_id, queue, closed, workflow_id, workflow, version, status = row
    return Target(
        chain_id=chain_id,  # type: ignore[arg-type] # the types are those of _TYPES
        run_id=run_id,  # type: ignore[arg-type]
        queue=str(queue),
        closed=bool(closed),
        workflow_id=str(workflow_id),
        workflow=str(workflow),
        version=int(version),  # type: ignore[call-overload]
        status=str(status),
        pinned=pinned,
    )
