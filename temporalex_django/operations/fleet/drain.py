"""Drain a worker, so that it takes no new work, from any process; and undrain it."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from django.utils import timezone

from temporalex_django.backends.protocol import AuditSubject
from temporalex_django.core.names import fit_note, quoted
from temporalex_django.errors import ActionNotPossible, WorkerNotFound
from temporalex_django.models import Worker
from temporalex_django.operations.base import CODE, Action, Actor


class DrainWorker(Action[Worker]):
    """Operation that drains a worker and returns its row.

    The worker finishes the work that it has. Then it idles until it is stopped or undrained. It notices the change at
    its next heartbeat, within a third of ``LEASE_SECONDS``.

    Raises ``WorkerNotFound``, and ``ActionNotPossible`` if the worker is drained already. Locks the row of the worker,
    in the caller's transaction. Audited.
    """

    name: ClassVar[str] = "drain_worker"
    permission: ClassVar[str] = "drain_worker"
    forced: ClassVar[bool] = True
    drains: ClassVar[bool] = True

    def __init__(self, worker: UUID | str, *, reason: str = "", by: Actor = CODE) -> None:
        super().__init__(by=by)
        self.worker = worker
        self.reason = fit_note(reason, label="the reason")

    def perform(self) -> Worker:
        alias = self.storage.alias
        with self.storage.transaction():
            row = _lock_live_worker(self.worker, alias=alias)
            if (row.drained_at is not None) == self.drains:
                raise ActionNotPossible(
                    f"the worker {row} {'is already drained' if self.drains else 'already accepts work'}"
                )
            row.drained_at = timezone.now() if self.drains else None
            row.save(using=alias, update_fields=["drained_at"])
            self.record(AuditSubject(run_id=None, workflow="", workflow_id=""), reason=self.reason, worker=str(row))
        return row


def _lock_live_worker(worker_ref: UUID | str, *, alias: str) -> Worker:
    """Lock and return the row of the worker with the id ``worker_ref``, if nobody has declared it dead.

    Raises ``WorkerNotFound`` for another id, and for text that is not an id.
    """
    try:
        pk = UUID(str(worker_ref))
    except ValueError:
        raise WorkerNotFound(f"there is no worker {quoted(str(worker_ref))}") from None
    row = Worker.objects.using(alias).select_for_update().filter(pk=pk, buried_at=None).first()
    if row is None:
        raise WorkerNotFound(f"there is no worker {quoted(str(worker_ref))}")
    return row


class UndrainWorker(DrainWorker):
    """Operation that lets a drained worker take work again, and returns its row.

    Raises ``WorkerNotFound``, and ``ActionNotPossible`` if the worker is not drained. Locks the row of the worker, in
    the caller's transaction. Audited.
    """

    name: ClassVar[str] = "undrain_worker"
    drains: ClassVar[bool] = False
