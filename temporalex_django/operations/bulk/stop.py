"""Stop a bulk job."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from temporalex_django.core.payloads.codec import check_text
from temporalex_django.errors import ActionNotPossible, WorkflowNotFound
from temporalex_django.models import BulkJob
from temporalex_django.operations.base import CODE, Action, Actor, AuditSubject
from temporalex_django.operations.bulk.worker import jobs_for


class StopBulk(Action[BulkJob]):
    """Operation that stops a bulk job and returns it.

    Runs that were processed stay as they are. The other runs are left alone until the job is resumed.

    ``jobs_for`` says to whom a job belongs. Raises ``WorkflowNotFound`` for everybody else and for an unknown job, and
    ``ActionNotPossible`` if the job is not running. Locks the job, in the caller's transaction. Audited.
    """

    name: ClassVar[str] = "stop_bulk"
    permission: ClassVar[str] = "bulk_actions"
    forced: ClassVar[bool] = True
    from_state: ClassVar[str] = BulkJob.State.RUNNING
    to_state: ClassVar[str] = BulkJob.State.STOPPED

    def __init__(self, job: UUID | str, *, reason: str = "", by: Actor = CODE) -> None:
        super().__init__(by=by)
        self.job = job
        self.reason = check_text(reason, label="the reason")

    def perform(self) -> BulkJob:
        alias = self.storage.alias
        try:
            pk = UUID(str(self.job))
        except ValueError:
            raise WorkflowNotFound("there is no such bulk job") from None
        with self.storage.transaction():
            job = jobs_for(self.by.user, alias=alias).select_for_update().filter(pk=pk).first()
            if job is None:
                raise WorkflowNotFound("there is no such bulk job")
            if job.state != self.from_state:
                raise ActionNotPossible(f"the bulk job is {job.get_state_display()}, not {self.from_state}")
            job.state = self.to_state
            job.save(using=alias, update_fields=["state"])
            self.record(AuditSubject(run_id=None, workflow="", workflow_id=""), reason=self.reason, job=str(job.pk))
        return job
