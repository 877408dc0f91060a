"""Try a blocked run again at once."""

from __future__ import annotations

from typing import ClassVar

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django.db.inserts import notify_on_commit
from temporalex_django.engine.activity_policy import is_due
from temporalex_django.engine.blocked import retry_immediately
from temporalex_django.models import Instance
from temporalex_django.operations.runs.operator_action import OperatorRunAction


class TryAgain(OperatorRunAction[None]):
    """Operation that makes a blocked run due at once, whatever the reason; if the try fails, the run is blocked again.

    If the run is blocked because processes died while they ran its code, the count of these deaths is kept. One worker
    then runs it alone, and the others leave it until that worker has succeeded or died. One more death blocks the run
    again.

    Runs in the caller's transaction and locks the chain of the run. Raises ``ActionNotPossible`` for a run that is not
    blocked, that is paused, or that is due already.
    """

    name: ClassVar[str] = "try_again"
    permission: ClassVar[str] = "pause_instance"
    label: ClassVar[Promise] = _("Try again now")
    summary: ClassVar[Promise] = _("Try a blocked run again now.")
    effect: ClassVar[Promise] = _(
        "The run is retried once, now. If that fails, it is blocked again. If it was blocked because "
        "its workers crashed, one worker runs it alone, and may crash as well."
    )
    done: ClassVar[Promise] = _("The run is retried now.")

    @classmethod
    def why_not(cls, run: Instance, *, seq: int | None = None) -> str | None:
        if reason := super().why_not(run, seq=seq):
            return reason
        if run.blocked is None:
            return str(_("the run is not blocked"))
        if run.paused is None:
            return None
        return str(_("the run is paused: unpause it first"))

    def perform(self) -> None:
        with self.storage.transaction():
            run, now = self.lock_run(), self.storage.now()
            if is_due(run.due_at, now):
                reason = _("it is already due: the next worker that polls its queue retries it")
                self.refuse(reason, closed=False, already_done=True)
            self.storage.write([retry_immediately(run, now=now)])
            self.record(self.target.audit_subject, reason=self.reason)
            notify_on_commit(alias=self.storage.alias, queues=[run.queue])
