"""Reset a run: a new run continues its chain from a point of its history."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django.authoring.workflow import Workflow, start_options
from temporalex_django.backends.routing import backend_of
from temporalex_django.db.inserts import reopen_chain
from temporalex_django.engine.contracts.records import RunState
from temporalex_django.engine.reset import ResetPlan
from temporalex_django.engine.run_start import RunStart
from temporalex_django.models import Chain
from temporalex_django.operations.runs.history_action import ReplayFromAction, audit_details


class Reset(ReplayFromAction[str]):
    """Operation that replaces a run by a new one that continues from a point of its history; returns the new run id.

    The run is closed as terminated (reason ``reset``). The new run has its id, its chain and its history up to the
    point: the end of the activation ``to``, where 0 means the start. By default it is the last activation that the
    present code replays as recorded and that did not close the run.

    The new run gets a new seed. Activities that were open at the point are scheduled again under their idempotency
    keys, timers keep their due times, and children stay with the old run. Corrections by hand are kept: edited inputs,
    and results that the code has not received yet. A closed run can be reset, too, if no other open run has its id.
    On a cluster, an atomic activity whose call has the same number and arguments returns the result that it committed.

    Runs in the caller's transaction and locks the chain; see ``OperatorRunAction.lock_run``. Raises
    ``ActionNotPossible``, ``PayloadError`` and ``UpdateTimeout``. Always audited.
    """

    name: ClassVar[str] = "reset"
    label: ClassVar[Promise] = _("Reset")
    summary: ClassVar[Promise] = _("Reset a run.")
    effect: ClassVar[Promise] = _(
        "The run ends, and a new run with the same id continues from the activation that you choose, with the "
        "current code. Activities that ran after that point run again."
    )
    done: ClassVar[Promise] = _("The run is reset: a new run continues in its place.")

    def perform(self) -> str:
        return backend_of(self.target).reset(self)

    def record_plan(self, plan: ResetPlan, new_run_id: UUID) -> None:
        """Write the audit row of the reset to the run ``new_run_id``."""
        self.record(
            self.target.audit_subject,
            reason=self.reason,
            **audit_details(plan, run=str(plan.record.run_id), new_run=str(new_run_id)),
        )

    def reopen_chain(self, run: RunState, plan: ResetPlan, code: type[Workflow]) -> None:
        """Make the chain ready for the new run of the class ``code``: open it, if it was closed, and set its queue.

        ``run`` is the locked current run, and ``plan`` describes the reset. Raises ``ActionNotPossible`` if the
        execution timeout of the chain has passed, or if another open run has its id.
        """
        run_record, storage = plan.record, self.storage
        if run_record.expires_at is not None and run_record.expires_at <= storage.now():
            self.refuse(_("the time limit of its chain (execution_timeout) has passed: fork it instead"), closed=False)
        # The chain was moved to another version since the run that is reset, and its queue belongs to that version.
        if run.queue != code.task_queue and run_record.run_id != run.run_id:
            run.queue = code.task_queue
            Chain.objects.using(storage.alias).filter(pk=run.chain_id).update(queue=code.task_queue)
        start = RunStart(workflow_id=run_record.workflow_id, args=None, **start_options(code))
        if run.closed and not reopen_chain(run.chain_id, start, storage=storage):
            self.refuse(_("another open run now has its id"), closed=False)
