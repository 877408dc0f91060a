"""Take a run back to one of its activations."""

from __future__ import annotations

from typing import ClassVar

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django.actions import inline
from temporalex_django.actions.taking_up import ReplayFromAction, audit_details
from temporalex_django.authoring.workflow import Workflow, start_options
from temporalex_django.db.inserts import reopen_chain
from temporalex_django.engine import anew
from temporalex_django.engine.ids import uuid7
from temporalex_django.engine.points import ResetPlan
from temporalex_django.engine.run_start import RunStart
from temporalex_django.engine.storage import RunState
from temporalex_django.models import Chain


class Reset(ReplayFromAction[str]):
    """The run is closed as terminated (reason ``reset``); a new one of its id and chain has its history up to a point.

    That point is behind the activation ``to`` (0: at the start), or behind the last one that the code which is here
    goes through as it is recorded, and that did not close the run. From there the new run goes on with a new seed:
    activities that were open are scheduled anew under the idempotency key that they had, timers keep their time,
    children stay with the old run. What somebody did by hand stays: other inputs, and ends that nobody has read. A
    closed run is reset as well, if its id is free. Gives the id of the new run.

    In the caller's transaction, under the lock of the chain: see ``OperatorRunAction.lock_run``. Raises
    ``ActionNotPossible``, ``PayloadError``, ``UpdateTimeout``. Always audited.
    """

    name: ClassVar[str] = "reset"
    label: ClassVar[Promise] = _("Reset")
    effect: ClassVar[Promise] = _(
        "The run is ended, and a new one of the same id goes on from the activation that you choose, with the code that "
        "is there now. What its activities have done since is done again."
    )
    done: ClassVar[Promise] = _("The run is reset: a new one goes on in its place.")

    def perform(self) -> str:
        target, storage = self.target, self.storage
        self.check_replay()
        with storage.transaction():
            run = self.lock_run()
            plan, code = self.plan(run)
            self._reopen_chain(run, plan, code)
            new_run_id = uuid7()
            writes = anew.reset(storage, run, plan, run_id=new_run_id)
            self.record(
                target.audit_subject,
                reason=self.reason,
                **audit_details(plan, run=str(plan.record.run_id), new_run=str(new_run_id)),
            )
            inline.notify_after_reset(writes, target, storage=storage)
        return str(new_run_id)

    def _reopen_chain(self, run: RunState, plan: ResetPlan, code: type[Workflow]) -> None:
        run_record, storage = plan.record, self.storage
        if run_record.expires_at is not None and run_record.expires_at <= storage.now():
            self.refuse(_("the time of all its runs together (execution_timeout) is over: fork it"), closed=False)
        if run.queue != code.task_queue and run_record.run_id != run.run_id:  # it was moved since
            run.queue = code.task_queue
            Chain.objects.using(storage.alias).filter(pk=run.chain_id).update(queue=code.task_queue)
        start = RunStart(workflow_id=run_record.workflow_id, args=None, **start_options(code))
        if run.closed and not reopen_chain(run.chain_id, start, storage=storage):
            self.refuse(_("another open run has its id by now"), closed=False)
