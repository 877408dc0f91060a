"""Cancel a run: ask a function workflow to end, or close a graph."""

from __future__ import annotations

from typing import ClassVar

from django.utils.functional import Promise
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from temporalex_django.backends.protocol import find_run_class
from temporalex_django.backends.routing import backend_of
from temporalex_django.conf import get_settings
from temporalex_django.engine.activity_policy import begins_later
from temporalex_django.models import Instance, Status
from temporalex_django.operations.fleet.stats import live_workers
from temporalex_django.operations.runs.operator_action import OperatorRunAction, Text


class Cancel(OperatorRunAction[None]):
    """Operation that asks a function workflow to end, or closes a graph as cancelled at once.

    The request is one INSERT into the inbox, which locks nothing. The code decides how it reacts, and a second request
    is dropped. A paused run receives the request when it is unpaused.

    A graph, and a run that has not begun, is closed in the caller's transaction, with its chain locked. If this process
    lacks the class of the graph, it gets a request, too.
    """

    name: ClassVar[str] = "cancel"
    permission: ClassVar[str] = "cancel_instance"
    label: ClassVar[Promise] = _("Cancel")
    summary: ClassVar[Promise] = _("Ask a run to end.")
    effect: ClassVar[Promise] = _("The code of a function workflow may clean up first. A graph ends at once.")
    done: ClassVar[Promise] = _("The run was asked to end.")
    destructive: ClassVar[bool] = True
    done_status: ClassVar[str] = Status.CANCELLED
    _was_unbegun = False

    # None of the code of a run has run before it begins, so there is nothing to clean up.
    def _close_before_begin(self) -> bool:
        """Close the run as cancelled if it has not begun and begins later; return True if this was done.

        None of its code has run, so there is nothing to clean up.
        """
        target, storage = self.target, self.storage
        if target.status != Status.PENDING or target.closed or target.row.starts_at is None:
            return False
        if target.row.starts_at <= storage.now():
            return False
        with storage.transaction():
            run = self.lock_run()
            starts_at = storage.run_records([run.run_id])[run.run_id].starts_at
            if not begins_later(run, starts_at, storage.now()):
                return False
            backend_of(target).close_locked(self, "cancelled", run)
        self._was_unbegun = True
        return True

    @property
    def done_message(self) -> Text:
        if self._was_unbegun:
            return _("The run was cancelled before it began.")
        if self.is_held_by_pause:
            return _("The run was asked to end. It is paused, so it receives the request when you unpause it.")
        return f"{self.done} {self.notice}".strip()

    @classmethod
    def notice_of(cls, run: Instance) -> Text:
        """Return the sentence that says why a cancel request to the run has to wait, or an empty text.

        It has to wait if the run is blocked, or if no live worker can claim it.
        """
        code = find_run_class(run.chain_id, run.workflow, run.version)
        if not run.is_open or (code is not None and code.cancels_at_once):
            return ""
        if run.blocked:
            return _("The run is blocked, so the request waits until its code can run. To end it now, terminate it.")
        alias = run._state.db or get_settings().DATABASE  # noqa: SLF001 - Django documents it
        missing_worker = live_workers(alias=alias).missing_worker(
            workflow=run.workflow, version=run.version, queue=run.queue
        )
        if missing_worker is None:
            return ""
        message = _("The request is waiting for {missing}. To end the run now, terminate it.")
        return format_lazy(message, missing=missing_worker)

    @property
    def is_held_by_pause(self) -> bool:
        """True if the run is paused and gets the cancel request only when it is unpaused."""
        return self.target.paused and not self.closes_at_once

    @property
    def closes_at_once(self) -> bool:
        return self.target.workflow_class is not None and self.target.workflow_class.cancels_at_once

    def perform(self) -> None:
        target = self.target
        # A function is asked to cancel, but a graph is closed at once (see decision 27). This locks the chain.
        if self.closes_at_once:
            backend_of(self.target).close(self, "cancelled")
            return
        if self._close_before_begin():
            return
        if target.closed:
            self.refuse(_("the run is already closed"), closed=True)
        # An INSERT locks no row of the run, so a request never waits for a worker that has it (see decision 6).
        with self.audit_transaction():
            backend_of(target).send(target, kind="cancel", name="", body={"reason": self.reason}, storage=self.storage)
            self.record(target.audit_subject, reason=self.reason)
