"""Do the due work in the process of the web server, for development without a worker."""

from __future__ import annotations

from typing import ClassVar

from django.conf import settings

from temporalex_django.backends.protocol import AuditSubject
from temporalex_django.core.names import fit_note
from temporalex_django.db.background_hooks import run_due
from temporalex_django.errors import ActionNotPossible
from temporalex_django.operations.base import CODE, Action, Actor


class RunDue(Action[int]):
    """Operation that works until nothing is due, like ``temporalex worker --burst``, and returns the number of turns.

    It works in this process and thread, and only under ``DEBUG``. Call it outside of a transaction. The audit row
    commits before the work starts. Raises ``ActionNotPossible`` without ``DEBUG``, and ``TimeoutError`` if work is left
    after ``timeout`` seconds.
    """

    name: ClassVar[str] = "run_due"
    permission: ClassVar[str] = "run_due"
    forced: ClassVar[bool] = True

    def __init__(self, *, timeout: float = 20.0, reason: str = "", by: Actor = CODE) -> None:
        super().__init__(by=by)
        self.timeout = timeout
        self.reason = fit_note(reason, label="the reason")

    def perform(self) -> int:
        if not settings.DEBUG:
            raise ActionNotPossible(
                "web processes run due work only under DEBUG: run manage.py temporalex worker --burst"
            )
        with self.storage.transaction():
            self.record(AuditSubject(run_id=None, workflow="", workflow_id=""), reason=self.reason)
        return run_due(self.timeout)
