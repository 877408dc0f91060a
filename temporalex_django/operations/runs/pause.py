"""Pause a run."""

from __future__ import annotations

from typing import ClassVar

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django.engine.pausing import pause_run
from temporalex_django.models import Instance
from temporalex_django.operations.runs.operator_action import OperatorRunAction


class Pause(OperatorRunAction[None]):
    """Operation that pauses a run: none of its code runs until it is unpaused.

    Signals, cancel requests, results, timers and the run's timeouts wait until then. Updates and resumes are refused
    (``RunPaused``), and queries are answered. Activities that the run has scheduled continue, with their retries. A
    paused run can be terminated. If its chain gets a next run, that is paused too.

    Runs in the caller's transaction and locks the chain; see ``OperatorRunAction.lock_run``.
    """

    name: ClassVar[str] = "pause"
    permission: ClassVar[str] = "pause_instance"
    label: ClassVar[Promise] = _("Pause")
    effect: ClassVar[Promise] = _(
        "The run stops where it is. Messages, timers and results wait until it is unpaused; updates "
        "are refused. Running activities continue."
    )
    done: ClassVar[Promise] = _("The run is paused.")

    @classmethod
    def why_not(cls, run: Instance, *, seq: int | None = None) -> str | None:
        if reason := super().why_not(run, seq=seq):
            return reason
        return None if run.paused is None else str(_("the run is already paused"))

    def perform(self) -> None:
        with self.storage.transaction():
            run = self.lock_run()
            now = self.storage.now()
            self.storage.write([pause_run(run, reason=self.reason, sender=self.by.sender, now=now)])
            self.record(self.target.audit_subject, reason=self.reason)
