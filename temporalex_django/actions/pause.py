"""Stop a run where it stands, until somebody lets it go on."""

from __future__ import annotations

from typing import ClassVar

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django.actions.steering import OperatorRunAction
from temporalex_django.engine.pausing import pause_run
from temporalex_django.models import Instance


class Pause(OperatorRunAction[None]):
    """None of its code runs until it is unpaused, in the caller's transaction.

    Signals, cancel requests, results and timers wait for that, and so do its timeouts; updates and resumes are refused
    (``RunPaused``), queries are answered. Activities that it has scheduled go on, with their retries. Terminating it
    works. The next run of its chain is paused too. Locks the chain: see ``OperatorRunAction.lock_run``.
    """

    name: ClassVar[str] = "pause"
    permission: ClassVar[str] = "pause_instance"
    label: ClassVar[Promise] = _("Pause")
    effect: ClassVar[Promise] = _(
        "The run stops where it stands. Messages, timers and results wait until it is unpaused; updates are refused. "
        "Activities that are under way go on."
    )
    done: ClassVar[Promise] = _("The run is paused.")

    @classmethod
    def why_not(cls, run: Instance, *, seq: int | None = None) -> str | None:
        if reason := super().why_not(run, seq=seq):
            return reason
        return None if run.paused is None else str(_("the run is paused already"))

    def perform(self) -> None:
        with self.storage.transaction():
            run = self.lock_run()
            now = self.storage.now()
            self.storage.write([pause_run(run, reason=self.reason, sender=self.by.sender, now=now)])
            self.record(self.target.audit_subject, reason=self.reason)
