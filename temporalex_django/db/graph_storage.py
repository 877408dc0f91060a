"""Graphs in the tables of the database, as a ``graph.contracts.Storage``.

``get`` and ``query`` read instances out of histories. ``put`` stores an instance as the start of a run. Each call is
one transaction of its own, or a savepoint of the caller's. Function workflows are not visible here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from uuid import UUID

from django.db.models import F

from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.workflow import Workflow, start_options
from temporalex_django.conf import codec, get_settings
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.db.inserts import insert_start, notify_on_commit
from temporalex_django.db.run_reader import iterate_pages
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine import policy
from temporalex_django.engine.contracts.records import RunState, TaskState
from temporalex_django.engine.ids import token, uuid7
from temporalex_django.engine.run_closing import close_for_move, parent_messages
from temporalex_django.engine.run_start import RunStart
from temporalex_django.errors import AlreadyRunning, TemporalexError, UnknownWorkflow, WorkflowNotFound
from temporalex_django.graph import instance as snapshot
from temporalex_django.graph.context import thaw
from temporalex_django.graph.contracts import checked, identity
from temporalex_django.graph.instance import Instance as GraphInstance
from temporalex_django.graph.projection import Projections, project
from temporalex_django.graph.steps import key_of, name_of
from temporalex_django.graph.workflow import GraphWorkflow
from temporalex_django.models import Chain, HumanTask, Instance
from temporalex_django.models.runs import AWAITED_KINDS

#: Statuses of runs that were closed from outside. For an instance they are all cancelled.
_AS_CANCELLED = ("terminated", "timed_out")


class TableStorage:
    """The storage of graphs in the tables of one database alias (None: the setting ``DATABASE``).

    It implements ``graph.contracts.Storage``: it gets, finds, stores and deletes instances, the states of graphs. Any
    thread may use it, on a connection of its own.
    """

    def __init__(self, alias: str | None = None) -> None:
        self._alias = alias

    @property
    def _storage(self) -> DjangoStorage:
        # As a worker: a run that is suspected of killing its worker can be replaced like any other.
        return DjangoStorage(self._alias, worker=True)

    # -- reading -------------------------------------------------------------------------------------------------------

    def get(self, id: str, *, workflow: str | None = None, version: int | None = None) -> GraphInstance:
        """Return the instance of the newest graph chain with that id, without locking it.

        ``workflow`` (a name) and ``version`` restrict the search; None means any. Raises ``WorkflowNotFound`` if no
        graph has the id, and ``UnknownWorkflow`` if the class of the run is gone.
        """
        storage = self._storage
        conditions = {"id": id, "workflow": workflow, "version": version}
        for row in self._rows(checked(conditions), storage, of_any_class=True):
            is_graph = issubclass(workflows.class_for_run(row.workflow, row.version), GraphWorkflow)
            if is_graph and (instance := self._instance(row, storage)) is not None:
                return instance
        of = f" of {workflow}" if workflow else ""
        raise WorkflowNotFound(f"no graph{of} has the id {id!r}")

    def query(self, **filters: Any) -> list[GraphInstance]:
        """Return the instances (states) of graphs that match all filters, one for each id.

        Of several chains with one id, it is the instance of the newest. The filters are ``id``, ``status`` (one, or a
        list), ``version`` and ``workflow`` (a class or its name). It locks nothing, and sends one query for all, and
        one for each instance that it returns.
        """
        storage = self._storage
        conditions = checked(filters)
        statuses = conditions.pop("status", None)
        newest: dict[Any, Instance] = {}
        for row in self._rows(conditions, storage):
            newest.setdefault(_identity(row), row)
        # The row of an open run may be behind its history, so open runs are judged by their instance.
        if statuses is not None:
            newest = {key: row for key, row in newest.items() if row.is_open or _instance_status(row) in statuses}
        instances = [self._instance(row, storage) for row in newest.values()]
        return [i for i in instances if i is not None and (statuses is None or i.status in statuses)]

    def _rows(
        self, conditions: dict[str, Any], storage: DjangoStorage, *, of_any_class: bool = False
    ) -> Iterator[Instance]:
        """Yield current runs by id, workflow and version, newest chain first, without unknown graphs by default."""
        runs = Instance.objects.using(storage.alias).filter(chain__run_id=F("id"))
        if not of_any_class:
            runs = runs.filter(workflow__in=_graph_names())
        for column, name in (("workflow_id", "id"), ("workflow", "workflow"), ("version", "version")):
            if name in conditions:
                runs = runs.filter(**{column: conditions[name]})
        yield from iterate_pages(runs, by="-chain_id")

    def _instance(self, row: Instance, storage: DjangoStorage) -> GraphInstance | None:
        """Return the instance, or None if deleted. Raises ``UnknownWorkflow``; ``PayloadError`` if a step is gone."""
        cls = workflows.class_for_run(row.workflow, row.version)
        events = storage.histories({row.pk: 0})[row.pk]
        # The chain has continued with another run since the row was read.
        if events and events[-1].kind == "WorkflowContinuedAsNew":
            current = Instance.objects.using(storage.alias).filter(chain_id=row.chain_id, chain__run_id=F("id")).first()
            if current is None:
                return None
            return self._instance(current, storage)
        if events:
            return project(cls, events)
        facts = storage.run_records([row.pk]).get(row.pk)
        if facts is None:
            return None
        return snapshot.new_instance(
            cls, id=facts.workflow_id, version=facts.version, args=facts.args, data=facts.snapshot
        )

    # -- writing -------------------------------------------------------------------------------------------------------

    def put(self, instance: GraphInstance) -> None:
        """Store an instance as the start of a run, in a new chain or in the open chain of its id.

        An open run of that id is closed, and its chain continues with the new run. A closed instance is stored closed,
        without a history. Steps that were active start again, and timers of waiting steps start anew. Locks the open
        chain. Raises ``AlreadyRunning``, with ``pending``, if that chain is not free within 10 s.
        """
        storage = self._storage
        for attempt in range(1, policy.REPLACE_TRIES + 1):
            try:
                with storage.transaction():
                    chain = self._open_chain(instance, storage)
                    if chain is None:
                        run_id = self._insert_run(instance, storage)
                    else:
                        run_id = self._replace_run(chain, instance, storage)
                    self._store_instance(run_id, instance, storage)
                return
            # Inserted or closed since this looked: the next look sees that.
            except AlreadyRunning as exc:
                if exc.pending or attempt == policy.REPLACE_TRIES:
                    raise

    def _open_chain(self, instance: GraphInstance, storage: DjangoStorage) -> UUID | None:
        name, workflow, version = identity(instance)
        rows = self._rows(checked({"id": name, "workflow": workflow, "version": version}), storage)
        return next((row.chain_id for row in rows if row.is_open), None)

    def _insert_run(self, instance: GraphInstance, storage: DjangoStorage) -> UUID:
        cls: type[Workflow] = instance.workflow
        options = start_options(cls)
        options["version"] = instance.version
        if instance.closed:
            options["scope"] = "none"
        new = RunStart(workflow_id=instance.id, args=thaw(instance.initial), **options)
        return insert_start(new, storage=storage).run_id

    def _replace_run(self, chain: UUID, instance: GraphInstance, storage: DjangoStorage) -> UUID:
        """Close the run in favour of a new one. Raises ``AlreadyRunning`` if it is not free in time, or was closed."""
        run = self._lock_run(chain, storage)
        # A run that was closed meanwhile is looked for again.
        if run is None or run.closed:
            message = f"{instance.workflow.name} {instance.id!r} is being advanced by another process: try again"
            raise AlreadyRunning(message, pending=run is None)
        facts = storage.run_records([run.run_id])[run.run_id]
        write = close_for_move(run, run_id=uuid7(), seed=token() >> 2, now=storage.now(), record=facts)
        if instance.closed:
            write.messages += parent_messages(facts, instance.status, _closing_attributes(instance))
        storage.write([write])
        assert write.next_run is not None
        return write.next_run.run_id

    def _lock_run(self, chain: UUID, storage: DjangoStorage) -> RunState | None:
        """Lock the chain and return its run. None: it is not free in time, or its run may not be claimed."""
        if not storage.lock_chain(chain, wait=policy.REPLACE_LOCK_SECONDS):
            return None
        return next(iter(storage.claim(limit=1, queues=(), chains=[chain])), None)

    def _store_instance(self, run_id: UUID, instance: GraphInstance, storage: DjangoStorage) -> None:
        """Store the instance as the snapshot from which the run starts. A closed instance closes the run."""
        cls: type[Workflow] = instance.workflow
        changes: dict[str, Any] = {
            "version": instance.version,
            "status": instance.status,
            "snapshot": codec().encode(snapshot.dump(instance)),
            "queue": cls.task_queue,
            "tags": list(cls.tags) or None,
            "metadata": dict(cls.metadata) or None,
        }
        if instance.telemetry_start_time is not None:
            changes["started_at"] = instance.telemetry_start_time
        chain = Chain.objects.using(storage.alias).filter(run_id=run_id)
        if instance.closed:
            timestamps = [entry.timestamp for entry in instance.execution_history if entry.timestamp is not None]
            changes |= {
                "closed_at": timestamps[-1] if timestamps else storage.now(),
                "closing": codec().encode(_closing_attributes(instance)),
                "waiting_for": [],
            }
            not_awaited = dict.fromkeys((f"awaits_{kind}" for kind in AWAITED_KINDS), False)
            chain.update(closed=True, due_at=None, deadline=None, atomic_due=None, open_key=None, **not_awaited)
        else:
            chain.update(queue=cls.task_queue)
            notify_on_commit(alias=storage.alias, queues=[cls.task_queue])
        Instance.objects.using(storage.alias).filter(pk=run_id).update(**changes)

    def delete(self, id: str) -> None:
        """Delete all chains of that id with their runs, histories, activities and messages.

        Waits for a turn that has one of them locked.
        """
        storage = self._storage
        with storage.transaction():
            rows = Instance.objects.using(storage.alias).filter(workflow_id=id, workflow__in=_graph_names())
            chains = sorted(set(rows.values_list("chain_id", flat=True)))
            if not chains:
                return
            test, chosen = storage.sql.in_array(chains, "uuid")
            runs = f"(select id from temporalex_instance where chain_id {test})"
            storage.sql.execute(
                f"delete from temporalex_chain where id {test}", [chosen]
            )  # first, since a turn holds its lock
            storage.sql.execute(f"delete from temporalex_history_event where run_id in {runs}", [chosen])
            storage.sql.execute(f"delete from temporalex_search_attribute where run_id in {runs}", [chosen])
            storage.sql.execute(f"delete from temporalex_failed_attempt where run_id in {runs}", [chosen])
            HumanTask.objects.using(storage.alias).filter(chain_id__in=chains).delete()
            for table in ("activity_task", "message", "instance"):
                storage.sql.execute(f"delete from temporalex_{table} where chain_id {test}", [chosen])


def _graph_names() -> list[str]:
    return sorted({cls.name for cls in workflows.concrete_classes() if issubclass(cls, GraphWorkflow)})


def _identity(row: Instance) -> tuple[str, str, int | None]:
    """Return ``(business id, workflow, version)``, equal within one graph; no version unless ids are unique in it."""
    unique = workflows.class_for_run(row.workflow, row.version).unique
    own = unique is not None and unique.scope == "version"
    return row.workflow_id, row.workflow, row.version if own else None


def _instance_status(row: Instance) -> str:
    if row.status in _AS_CANCELLED:
        return "cancelled"
    return row.status


def _closing_attributes(instance: GraphInstance) -> dict[str, Any]:
    if instance.status == "completed":
        return {"result": {key: thaw(data) for key, data in instance.context.steps.items()}}
    if instance.status == "cancelled":
        return {"reason": "", "outside": True}
    step = instance.failed_step
    which = {}
    if step is not None:
        which = {"step": key_of(step), "step_name": name_of(step)}
    return {"reason": thaw(instance.reason), "type": None, "message": None, **which}


@lru_cache(maxsize=8)
def _projections(alias: str) -> Projections:
    """Return the instances kept for an alias. They save reading a history again: only new events are read."""
    storage = DjangoStorage(alias)

    def events(run_id: UUID, after: int) -> Sequence[HistoryEvent]:
        return storage.histories({run_id: after}).get(run_id, [])

    return Projections(events)


@dataclass(frozen=True, slots=True)
class TaskSource:
    """Gives an activity that is a step of a graph the class of its run, and the state of the graph (its instance).

    It implements ``activity.RunSource``. ``task`` is the activity.
    """

    task: TaskState

    def workflow(self, version: int) -> Any:
        return workflows.class_for_run(self.task.workflow, version)

    def instance(self, version: int) -> Any:
        projection = _projections(get_settings().DATABASE).get(self.task.run_id, self.workflow(version))
        instance = projection.activity_instances.get(self.task.seq)
        if instance is None:
            raise TemporalexError(
                f"{self.task.activity} of {self.task.workflow_id} has ended: nothing waits for it any more"
            )
        return instance


def instance_of(run_id: UUID, code: type[Workflow]) -> Any:
    """Return the state of a graph (its ``Instance``), computed from the history of its run.

    ``code`` is the class of the run in its version. Raises ``UnknownWorkflow`` if the class is not a graph.
    """
    if not issubclass(code, GraphWorkflow):
        raise UnknownWorkflow(f"{code.name} is not a graph workflow: it has no instance")
    return _projections(get_settings().DATABASE).get(run_id, code).instance
