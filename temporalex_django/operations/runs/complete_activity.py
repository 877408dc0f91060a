"""End an activity by hand: with a result, or with a failure."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django.backends.routing import backend_of
from temporalex_django.operations.runs.operator_action import ActivityAction, Input


class CompleteActivity(ActivityAction):
    """Operation that ends an activity with a result that an operator gives.

    The history gets an ordinary ``ActivityCompleted``, which names the operator in ``by``. The result of an attempt
    that is under way is dropped.

    ``result`` is the input. Raises ``PayloadError`` if it does not fit the annotation of the activity. For a step of a
    graph it is ``{"event": name, "data": …}``. Runs in the caller's transaction and locks the chain of the run.
    """

    name: ClassVar[str] = "complete_activity"
    permission: ClassVar[str] = "complete_activity"
    sees_payloads: ClassVar[bool] = True
    label: ClassVar[Promise] = _("Complete by hand")
    summary: ClassVar[Promise] = _("Complete an activity by hand.")
    effect: ClassVar[Promise] = _(
        "The run continues as if the activity had returned this result. The result of a running attempt is ignored."
    )
    done: ClassVar[Promise] = _("The activity was completed.")
    destructive: ClassVar[bool] = True
    selectors: ClassVar[tuple[Input, ...]] = tuple(
        replace(selector, required=selector.name == "activity") for selector in ActivityAction.selectors
    )
    inputs: ClassVar[tuple[Input, ...]] = (Input(name="result", kind=object, label=_("Result")),)

    def perform(self) -> None:
        backend_of(self.target).complete_activity(self)


class FailActivity(ActivityAction):
    """Operation that ends an activity with a failure that an operator gives, although it could be retried.

    ``message`` and ``type`` describe the error. The history gets an ordinary ``ActivityFailed``, which names the
    operator in ``by``. The result of an attempt that is under way is dropped. Runs in the caller's transaction and
    locks the chain of the run.
    """

    name: ClassVar[str] = "fail_activity"
    permission: ClassVar[str] = "fail_activity"
    sees_payloads: ClassVar[bool] = True
    label: ClassVar[Promise] = _("Fail by hand")
    summary: ClassVar[Promise] = _("Fail an activity by hand.")
    effect: ClassVar[Promise] = _(
        "The activity fails for good with this error, and the run receives it. The result of a "
        "running attempt is ignored."
    )
    done: ClassVar[Promise] = _("The activity was marked as failed.")
    destructive: ClassVar[bool] = True
    selectors: ClassVar[tuple[Input, ...]] = tuple(
        replace(selector, required=selector.name == "activity") for selector in ActivityAction.selectors
    )
    inputs: ClassVar[tuple[Input, ...]] = (
        Input(name="message", kind=str, label=_("Message"), required=True),
        Input(name="type", kind=str, label=_("Type of the error"), help=_("The default is FailedByHand.")),
    )

    def perform(self) -> None:
        backend_of(self.target).fail_activity(self)
