"""Retry a failed activity now."""

from __future__ import annotations

from typing import Any, ClassVar

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django.engine.operator_overrides import immediate_retry, input_digests, retry_atomic, with_edited_input
from temporalex_django.models import ActivityTask
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
    done: ClassVar[Promise] = _("The activity is due.")
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

    @classmethod
    def none_possible_text(cls) -> Any:
        return _("no activity is failing")

    def perform(self) -> None:
        with self.storage.transaction():
            run = self.lock_run()
            task, digests = self.load_task(run), {}
            if "input" in self.input_values:
                args, kwargs = self.find_activity(task).parse_edited_input(self.input_values["input"], task.args)
                digests["input"] = input_digests(task.args, task.kwargs, {"args": args, "kwargs": kwargs})
                task = with_edited_input(task, args, kwargs, sender=self.by.sender)
                self.storage.edit_task(task)
            now = self.storage.now()
            self.finish_task(immediate_retry(task, now=now), run, **digests)
            # No worker claims an atomic activity: turns of the run execute it, so the run itself must be due.
            if task.atomic:
                self.storage.write([retry_atomic(run, now=now)])
