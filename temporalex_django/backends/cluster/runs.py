"""The rows of chains on a cluster: what they say about where their runs are, and the columns that mark them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from django.db.models import F

from temporalex_django.backends.protocol import RunTarget
from temporalex_django.core.names import TEMPORAL
from temporalex_django.db.sql_columns import RUNS
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.errors import WorkflowNotFound
from temporalex_django.models import Chain, Instance

_RUN: Final = RUNS.pick_columns("cluster_id", "workflow", "workflow_id", "cluster_run_id")
#: A prepared statement: callers ask it with each message, and planning it takes longer than executing it.
_ADDRESS: Final = (
    f"select {_RUN.with_alias('i')}, c.cluster_first_run_id, i.blocked is not null, {{behind}}"  # noqa: S608 - columns
    " from temporalex_chain c join temporalex_instance i on i.id = {run} and i.chain_id = c.id where c.id = %s"
)
_ADDRESS_TYPES: Final = (*_RUN.types, "uuid", "bool", "bool")
_BEHIND: Final = (
    "exists (select 1 from temporalex_outbox o where o.chain_id = c.id and o.destination = %s and o.failed is null"
    " and o.id < %s)"
)

#: An id behind those of all rows of the outbox.
LAST: Final = UUID(int=2**128 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRun:
    """The address of a run on the cluster.

    ``first_run_id`` is the id there of the first run of its chain, and ``run_id`` that of the run itself. Both are
    None until the start has been sent. ``is_blocked`` is True if its row says that its task fails. ``is_behind`` is
    True if rows of the outbox wait that come before the one to be sent.
    """

    cluster_id: str
    chain_id: UUID
    workflow: str
    workflow_id: str
    first_run_id: str | None = None
    run_id: str | None = None
    is_blocked: bool = False
    is_behind: bool = False

    @property
    def label(self) -> str:
        return f"{self.workflow} {self.workflow_id}"


def find_on_cluster(
    chain_id: UUID, *, run_id: UUID | None = None, before: UUID | None = None, storage: DjangoStorage
) -> ClusterRun:
    """Return the address on the cluster of the run ``run_id`` of a chain (None: its newest run). One read.

    ``before`` is a row of the outbox, or ``LAST`` for one to come, for ``ClusterRun.is_behind``. Raises
    ``WorkflowNotFound`` if the chain has no such run on the cluster.
    """
    sql = _ADDRESS.format(run="c.run_id" if run_id is None else "%s", behind="false" if before is None else _BEHIND)
    earlier = () if before is None else (TEMPORAL, before)
    chosen = () if run_id is None else (run_id,)
    row = next(iter(storage.sql.select(sql, [*earlier, *chosen, chain_id], _ADDRESS_TYPES)), None)
    if row is None or row[0] is None:
        raise WorkflowNotFound(f"the chain {chain_id} has no run on the Temporal cluster")
    cluster_id, workflow, workflow_id, *ids, is_blocked, is_behind = row
    on_cluster, first_run_id = (None if value is None else str(value) for value in ids)
    return ClusterRun(
        cluster_id=cluster_id,
        chain_id=chain_id,
        workflow=workflow,
        workflow_id=workflow_id,
        first_run_id=first_run_id,
        run_id=on_cluster,
        is_blocked=bool(is_blocked),
        is_behind=bool(is_behind),
    )


def run_of(target: RunTarget, *, before: UUID | None = None, storage: DjangoStorage) -> ClusterRun:
    """Return the address on the cluster of the selected run of a target, as ``find_on_cluster`` does."""
    return find_on_cluster(target.chain_id, run_id=target.selected_run_id, before=before, storage=storage)


def adopt(chains: Sequence[tuple[UUID, str]], *, storage: DjangoStorage) -> None:
    """Mark chains that the open transaction has inserted as chains on the cluster, which no turn takes.

    ``chains`` are pairs of a chain and its id on the cluster.
    """
    ids = [chain for chain, _ in chains]
    Chain.objects.using(storage.alias).filter(pk__in=ids).update(backend=TEMPORAL, due_at=None, deadline=None)
    for chain, cluster_id in chains:
        Instance.objects.using(storage.alias).filter(chain=chain).update(
            cluster_id=cluster_id, mirrored_at=F("created_at")
        )
