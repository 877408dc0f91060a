"""Terminate a run: close it from outside, at once."""

from __future__ import annotations

from typing import ClassVar

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django.backends.routing import backend_of
from temporalex_django.models import Status
from temporalex_django.operations.runs.operator_action import OperatorRunAction


class Terminate(OperatorRunAction[None]):
    """Operation that closes a run at once, without running any more of its code.

    Its activities do not start any more. A paused or blocked run can be terminated, too. Runs in the caller's
    transaction and locks the chain; see ``OperatorRunAction.lock_run``. Always audited.
    """

    name: ClassVar[str] = "terminate"
    permission: ClassVar[str] = "terminate_instance"
    forced: ClassVar[bool] = True
    label: ClassVar[Promise] = _("Terminate")
    summary: ClassVar[Promise] = _("Terminate a run.")
    effect: ClassVar[Promise] = _(
        "The run is closed at once. None of its code runs any more, so nothing is cleaned up."
    )
    done: ClassVar[Promise] = _("The run was terminated.")
    destructive: ClassVar[bool] = True
    done_status: ClassVar[str] = Status.TERMINATED

    def perform(self) -> None:
        backend_of(self.target).close(self, "terminated")
