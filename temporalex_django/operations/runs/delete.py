"""Delete a closed run."""

from __future__ import annotations

from typing import ClassVar

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django.backends.routing import backend_of
from temporalex_django.models import Instance
from temporalex_django.operations.runs.operator_action import OperatorRunAction


class Delete(OperatorRunAction[None]):
    """Operation that deletes all runs of a closed chain, with their histories, activity tasks and messages.

    The audit log is kept. Raises ``ActionNotPossible`` if the run is open. Always audited. Runs in the caller's
    transaction and locks the chain; see ``OperatorRunAction.lock_run``.
    """

    name: ClassVar[str] = "delete"
    permission: ClassVar[str] = "delete_instance"
    forced: ClassVar[bool] = True
    label: ClassVar[Promise] = _("Delete")
    summary: ClassVar[Promise] = _("Delete a run.")
    effect: ClassVar[Promise] = _(
        "The run is deleted for good, with all earlier and later runs of its chain, their histories and messages. "
        "The audit log is kept."
    )
    done: ClassVar[Promise] = _("The run was deleted.")
    destructive: ClassVar[bool] = True

    @classmethod
    def why_not(cls, run: Instance, *, seq: int | None = None) -> str | None:
        del seq
        if run.is_open or not run.chain.closed:
            return str(_("the run is open: cancel or terminate it first"))
        return None

    def perform(self) -> None:
        backend_of(self.target).delete(self)
