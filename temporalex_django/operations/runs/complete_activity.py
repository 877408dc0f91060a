"""End an activity by hand: with a result, or with a failure."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django.conf import get_settings
from temporalex_django.core.payloads import codec
from temporalex_django.db.graphs.graph_storage import TaskSource
from temporalex_django.engine.operator_overrides import operator_completion, operator_failure
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
    done: ClassVar[Promise] = _("The activity is completed.")
    destructive: ClassVar[bool] = True
    selectors: ClassVar[tuple[Input, ...]] = tuple(
        replace(selector, required=selector.name == "activity") for selector in ActivityAction.selectors
    )
    inputs: ClassVar[tuple[Input, ...]] = (Input(name="result", kind=object, label=_("Result")),)

    def perform(self) -> None:
        with self.storage.transaction():
            run = self.lock_run()
            task = self.load_task(run)
            # Check the value here, where the operator can correct it; later it would block or fail the run.
            result = self.find_activity(task).encode_manual_result(
                self.input_values.get("result"), task.args, TaskSource(task)
            )
            limit = get_settings().MAX_PAYLOAD_BYTES
            self.finish_task(
                operator_completion(task, result, sender=self.by.sender, limit=limit),
                run,
                digest=codec.digest(result),
            )


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
    done: ClassVar[Promise] = _("The activity has failed.")
    destructive: ClassVar[bool] = True
    selectors: ClassVar[tuple[Input, ...]] = tuple(
        replace(selector, required=selector.name == "activity") for selector in ActivityAction.selectors
    )
    inputs: ClassVar[tuple[Input, ...]] = (
        Input(name="message", kind=str, label=_("Message"), required=True),
        Input(name="type", kind=str, label=_("Type of the error"), help=_("The default is FailedByHand.")),
    )

    def perform(self) -> None:
        with self.storage.transaction():
            run = self.lock_run()
            error_type, message = self.input_values.get("type") or "FailedByHand", self.input_values["message"]
            result = operator_failure(self.load_task(run), type=error_type, message=message, sender=self.by.sender)
            self.finish_task(result, run, digest=codec.digest(message))
