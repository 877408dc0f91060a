"""Terminate a run: close it from outside, at once."""

from __future__ import annotations

from typing import Any, ClassVar

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django.engine.contracts.records import RunState
from temporalex_django.engine.run_closing import CLOSERS
from temporalex_django.operations import inline_turn
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
    done: ClassVar[Promise] = _("The run is terminated.")
    destructive: ClassVar[bool] = True

    def perform(self) -> None:
        close_run(self, "terminated")


def close_run(action: OperatorRunAction[Any], status: str) -> None:
    """Lock the run of ``action``, close it with the status, "terminated" or "cancelled", and write the audit row.

    Runs in the caller's transaction. Raises what ``OperatorRunAction.lock_run`` raises.
    """
    with action.storage.transaction():
        close_locked_run(action, status, action.lock_run())


def close_locked_run(action: OperatorRunAction[Any], status: str, run: RunState) -> None:
    """Close the run of ``action`` with the status "terminated" or "cancelled", and write the audit row.

    ``run`` is its state, which the open transaction has locked. After the commit, workers are notified and Django
    signals are sent.
    """
    target, storage = action.target, action.storage
    run_record = storage.run_records([run.run_id])[run.run_id]
    write = CLOSERS[status](run, reason=action.reason, now=storage.now(), record=run_record)
    storage.write([write])
    action.record(target.audit_subject, reason=action.reason)
    inline_turn.notify_after_close(write, target, storage=storage)
