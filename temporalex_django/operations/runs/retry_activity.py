"""Retry a failed activity now."""

from __future__ import annotations

from typing import Any, ClassVar

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django.backends.routing import backend_of
from temporalex_django.models import ActivityTask, Instance
from temporalex_django.operations.runs.operator_action import ActivityAction, Input


class RetryActivity(ActivityAction):
    """Operation that makes a failed activity due at once, although its retry policy would let it wait.

    With ``input``, the activity is tried with that input, under a new idempotency key; the history then says so with
    the result. Earlier attempts stay counted. Raises ``PayloadError`` for an input that does not fit the activity. Runs
    in the caller's transaction and locks the chain; see ``OperatorRunAction.lock_run``.
    """

    name: ClassVar[str] = "retry_activity"
    label: ClassVar[Promise] = _("Retry now")
    summary: ClassVar[Promise] = _("Retry an activity now.")
    effect: ClassVar[Promise] = _("The activity is retried at once, before its next attempt is due.")
    done: ClassVar[Promise] = _("The activity will be retried now.")
    needs_worker: ClassVar[bool] = True
    inputs: ClassVar[tuple[Input, ...]] = (
        Input(
            name="input",
            kind=object,
            label=_("New input"),
            help=_("A list of arguments, or an object of arguments by name. If empty, the activity keeps its input."),
            edits=True,
        ),
    )

    @classmethod
    def why_not_task(cls, task: ActivityTask) -> str | None:
        if task.owner is not None:
            return str(_("an attempt is running now"))
        if task.attempt:
            return None
        return str(_("it has not been attempted yet"))

    def is_done(self, run: Instance) -> bool:
        assert self.seq is not None
        tasks = ActivityTask.objects.using(self.storage.alias).filter(run_id=run.pk, seq=self.seq)
        return run.is_open and tasks.exclude(owner=None).exists()

    @classmethod
    def none_possible_text(cls) -> Any:
        return _("no activity is failing")

    def perform(self) -> None:
        backend_of(self.target).retry_activity(self)
