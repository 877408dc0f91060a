"""Fail an activity by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django.core.payloads import codec
from temporalex_django.engine.operator_overrides import operator_failure
from temporalex_django.operations.runs.activity_action import ActivityAction
from temporalex_django.operations.runs.operator_action import Input


class FailActivity(ActivityAction):
    """Operation that fails an activity by hand, regardless of its remaining retries.

    The history gets an ordinary ``ActivityFailed`` with ``by``. If an attempt is under way, its result changes nothing.
    Runs in the caller's transaction and locks the chain; see ``OperatorRunAction.lock_run``.
    """

    name: ClassVar[str] = "fail_activity"
    permission: ClassVar[str] = "fail_activity"
    sees_payloads: ClassVar[bool] = True
    label: ClassVar[Promise] = _("Fail by hand")
    effect: ClassVar[Promise] = _(
        "The activity fails for good with this error, and the run receives it. The result of a "
        "running attempt is ignored."
    )
    done: ClassVar[Promise] = _("The activity has failed.")
    destructive: ClassVar[bool] = True
    selectors: ClassVar[tuple[Input, ...]] = tuple(
        replace(selector, required=selector.name == "activity") for selector in ActivityAction.selectors
    )
    inputs: ClassVar[tuple[Input, ...]] = (
        Input(name="message", kind=str, label=_("Message"), required=True),
        Input(name="type", kind=str, label=_("Type of the error"), help=_("FailedByHand if empty.")),
    )

    def perform(self) -> None:
        with self.storage.transaction():
            run = self.lock_run()
            error_type, message = self.input_values.get("type") or "FailedByHand", self.input_values["message"]
            result = operator_failure(self.load_task(run), type=error_type, message=message, sender=self.by.sender)
            self.finish_task(result, run, digest=codec.digest(message))
