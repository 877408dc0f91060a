"""Decide a human task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar
from uuid import UUID

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django import access
from temporalex_django.actions.base import Actor, Subject, storage
from temporalex_django.actions.human_task import admitted, held, require_unclaimed, what
from temporalex_django.actions.inbox import find_task
from temporalex_django.actions.targets import find_chain
from temporalex_django.actions.update import JudgedMessage, UpdateStatus, standing
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.handle import ANSWER_TIMEOUT
from temporalex_django.authoring.human_tasks import base_key, clean_form_data
from temporalex_django.core.payloads import check_text
from temporalex_django.core.process import REQUEST
from temporalex_django.db.human_tasks import question_of
from temporalex_django.db.inserts import InsertedMessage, find_message
from temporalex_django.errors import ActionNotPermitted, FormChanged, HumanTaskClosed, PayloadError, WorkflowClosed
from temporalex_django.models import HumanTask


class Decide(JudgedMessage):
    """``outcome`` is one of the task's, ``data`` what its form wants.

    Judged in a turn of the run, where an update would be (see ``JudgedMessage``): of two who decide at once one wins,
    the other is told by ``HumanTaskClosed`` who did. ``form``: the digest of the form that was filled in, where it is
    known. Raises ``PayloadError`` for data that do not fit, ``FormChanged``, ``HumanTaskClaimed``,
    ``ActionNotPermitted``, ``FourEyes``, ``RunPaused``, ``UpdateTimeout``.
    """

    name: ClassVar[str] = "decide"
    permission: ClassVar[str] = "view_humantask"
    kind: ClassVar[str] = REQUEST
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
        id: str | None = None,
        timeout: float | None = ANSWER_TIMEOUT,
        by: Actor,
    ) -> None:
        self.task = task if isinstance(task, HumanTask) else find_task(task, by.user)
        self.comment = check_text(comment, label="the comment")
        self.form = form
        self._again = False
        if not isinstance(outcome, str) or outcome not in self.task.outcomes:
            raise PayloadError(f"{what(self.task)} takes {', '.join(self.task.outcomes)}, not {outcome!r}")
        target = find_chain(self.task.chain_id, storage=storage())
        body = {
            "event": outcome,
            "step": base_key(self.task.key),
            "task": self.task.key,
            "run": str(self.task.run_id),
            "data": data,
            "comment": self.comment,
            "question": question_of(self.task),  # as it was shown: the turn compares it with what the code asks
        }
        super().__init__(target, message=outcome, body=body, id=id, timeout=timeout, mode="auto", by=by, exact=True)
        if id is not None and (before := self._counted()) is not None:
            self._again = True
            if isinstance(before, dict) and self._is(before):
                self.body = before  # with who decided, as it was found then

    def _counted(self) -> Any:
        """The body of what he has sent before under this id, unless it was refused: that is judged anew."""
        chain, mine = self.target.chain_id, self.by.sender
        before = find_message(chain, self.id, storage=self.storage)
        if before is None or mine is None or before[1].sender is None or before[1].sender.key != mine.key:
            return None
        found = standing(chain, self.id, storage=self.storage)
        refused = found is None or (found.outcome is not None and found.outcome.status in ("rejected", "undelivered"))
        return None if refused else before[1].payload

    def _is(self, sent: dict[str, Any]) -> bool:
        """Whether that was said before by a decision of the same id."""
        data = self.body["data"]
        if "judged" in sent:
            data = clean_form_data(self.task.form, data, title=self.task.title)["data"]
        mine = {name: value for name, value in self.body.items() if name != "question"} | {"data": data}
        return all(sent.get(name) == value for name, value in mine.items())

    @property
    def asked(self) -> access.Operation:
        """The policy may still refuse it; whoever is asked needs no permission."""
        return replace(super().asked, permission=None)

    @property
    def user(self) -> Person:
        if self.by.user is None:
            raise ActionNotPermitted(f"{what(self.task)} is decided by a user (by=user)")
        return self.by.user

    def check(self) -> None:
        """Also whether he may decide, and whether there is still something to decide."""
        super().check()
        if self._again:
            return  # it counted once: he is told what became of it
        task = self.task
        self.body |= admitted(self.user, task, storage=self.storage)
        if self.form is not None and self.form != (task.form or {}).get("digest"):
            raise FormChanged(f"the form of {what(task)} has changed since you opened it")
        self.body |= clean_form_data(task.form, self.body["data"], title=task.title)

    def _insert(self) -> InsertedMessage:
        """Under the lock of its run, or where a worker is to judge it: what stood in its way then stands there now."""
        if not self._again:
            require_unclaimed(self.user, held(self.task, storage=self.storage), storage=self.storage)
        return super()._insert()

    def _of_closed(self) -> UpdateStatus:
        try:
            return super()._of_closed()
        except WorkflowClosed as exc:
            with self.storage.transaction():
                held(self.task, storage=self.storage)
            raise HumanTaskClosed(f"{what(self.task)} is not open any more: the run ended") from exc

    def tell(self, subject: Subject, *, reason: str = "", **details: Any) -> None:
        """With the task, and the person in whose place it was decided. The comment is a payload: the history has it."""
        stood_in = {"for": self.body["for"]["name"]} if "for" in self.body else {}
        super().tell(subject, reason=reason, task=str(self.task.pk), **stood_in, **details)

    @property
    def _what(self) -> str:
        return f"the decision {self.message!r} of {what(self.task)}"
