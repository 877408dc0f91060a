"""End an activity as failed, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django.actions.on_activity import OnActivity
from temporalex_django.actions.steering import Input
from temporalex_django.core import payloads
from temporalex_django.engine.operator_overrides import operator_failure


class FailActivity(OnActivity):
    """An ordinary ``ActivityFailed`` with ``by``, whatever its retries. What an attempt comes to changes nothing.

    In the caller's transaction; locks the chain: see ``Steering.held``.
    """

    name: ClassVar[str] = "fail_activity"
    permission: ClassVar[str] = "fail_activity"
    sees_payloads: ClassVar[bool] = True
    label: ClassVar[Promise] = _("Fail by hand")
    effect: ClassVar[Promise] = _(
        "The activity fails for good, and the run sees this error. An attempt that is under way comes too late."
    )
    done: ClassVar[Promise] = _("The activity has failed.")
    destructive: ClassVar[bool] = True
    selectors: ClassVar[tuple[Input, ...]] = tuple(
        replace(one, required=one.name == "activity") for one in OnActivity.selectors
    )
    inputs: ClassVar[tuple[Input, ...]] = (
        Input(name="message", kind=str, label=_("Message"), required=True),
        Input(name="type", kind=str, label=_("Type of the error"), help=_("FailedByHand, if nothing is said.")),
    )

    def perform(self) -> None:
        with self.storage.transaction():
            run = self.held()
            kind, message = self.given.get("type") or "FailedByHand", self.given["message"]
            result = operator_failure(self.of_run(run), type=kind, message=message, sender=self.by.sender)
            self.finish(result, run, digest=payloads.digest(message))
