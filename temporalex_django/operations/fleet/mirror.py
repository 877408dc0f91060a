"""The comparison of the rows of runs on a Temporal cluster with the cluster, which a person asks for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from temporalex_django.backends.protocol import AuditSubject, RunTarget
from temporalex_django.backends.routing import cluster_module
from temporalex_django.core.names import TABLES
from temporalex_django.errors import ActionNotPossible, NotConfigured
from temporalex_django.models import Instance
from temporalex_django.operations.base import CODE, Action, Actor


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSynced:
    """The result of a comparison: how many runs the cluster listed, how many were written, and how many were closed."""

    compared: int
    written: int
    closed: int


class SyncMirror(Action[MirrorSynced]):
    """Operation that rebuilds the rows of runs that are on the cluster from their histories there.

    ``target`` is one run, of whose chain all runs are written; None means all runs of the project. Rows that were
    deleted come back, and open rows whose run the cluster no longer has are closed. Each run is one transaction. Raises
    ``NotConfigured`` without the SDK of Temporal, ``ActionNotPossible`` for a run on the tables or while the cluster
    does not answer. Audited.
    """

    name: ClassVar[str] = "sync"
    permission: ClassVar[str] = "operate_outbox"
    forced: ClassVar[bool] = True

    def __init__(self, target: RunTarget | None = None, *, by: Actor = CODE) -> None:
        super().__init__(by=by)
        self.target = target

    def perform(self) -> MirrorSynced:
        try:
            module = cluster_module("reconcile")
        except ImportError as exc:
            raise NotConfigured(
                f"the rows cannot be compared with a Temporal cluster: {exc}. "
                "Run: pip install 'temporalex-django[temporal]'"
            ) from exc
        repairs = module.sync(self._cluster_ids(), storage=self.storage)
        subject = AuditSubject(run_id=None, workflow="", workflow_id="")
        with self.storage.transaction():
            self.record(
                subject if self.target is None else self.target.audit_subject,
                written=repairs.written,
                closed=repairs.closed,
            )
        return MirrorSynced(compared=repairs.compared, written=repairs.written, closed=repairs.closed)

    def _cluster_ids(self) -> Collection[str] | None:
        if self.target is None:
            return None
        if self.target.backend == TABLES:
            raise ActionNotPossible(
                f"sync of {self.target.workflow} {self.target.workflow_id}: the run is on the tables, so there is "
                "nothing to rebuild"
            )
        rows: Any = Instance.objects.using(self.storage.alias).filter(chain=self.target.chain_id)
        return {cluster_id for cluster_id in rows.values_list("cluster_id", flat=True) if cluster_id is not None}
