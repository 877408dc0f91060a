"""Decide a human task."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django.actions.base import Actor
from temporalex_django.actions.human_task import ActionOnTask
from temporalex_django.authoring.handle import ANSWER_TIMEOUT
from temporalex_django.models import HumanTask


class Decide(ActionOnTask[None]):
    """``outcome`` is one of the task's, ``data`` what its form wants.

    Judged in a turn of the run, where an update would be (see ``JudgedMessage``): of two who decide at once one wins,
    the other is told by ``HumanTaskClosed`` who did. ``form``: the digest of the form that he filled in, where it is
    known. Raises ``PayloadError`` for data that do not fit, ``RunPaused``, ``UpdateTimeout``.
    """

    name: ClassVar[str] = "decide"
    label: ClassVar[Promise] = _("Decide")
    effect: ClassVar[Promise] = _("The run goes on with your decision.")
    done: ClassVar[Promise] = _("Your decision is in the history.")

    def __init__(
        self,
        task: HumanTask | UUID | str,
        *,
        outcome: str,
        data: Any = None,
        comment: str = "",
        form: str | None = None,
        timeout: float | None = ANSWER_TIMEOUT,
        by: Actor,
    ) -> None:
        super().__init__(task, by=by)
        self.outcome, self.data, self.comment, self.form, self.timeout = outcome, data, comment, form, timeout

    def perform(self) -> None:
        raise NotImplementedError("decide: lands next")
