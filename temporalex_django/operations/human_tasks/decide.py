"""Decide a human task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar
from uuid import UUID

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django import access
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.handle import ANSWER_TIMEOUT
from temporalex_django.authoring.human_tasks import base_key, clean_form_data
from temporalex_django.backends.protocol import AuditSubject
from temporalex_django.backends.tables.requests import update_status
from temporalex_django.core.names import fit_note
from temporalex_django.core.process import REQUEST
from temporalex_django.db.human_tasks import question_of
from temporalex_django.db.inserts import find_message
from temporalex_django.errors import ActionNotPermitted, FormChanged, HumanTaskClosed, PayloadError, WorkflowClosed
from temporalex_django.models import HumanTask
from temporalex_django.operations.base import Actor, storage
from temporalex_django.operations.human_tasks.base import admit_decider, lock_task, require_unclaimed, task_label
from temporalex_django.operations.human_tasks.inbox import find_task
from temporalex_django.operations.run_lookup import find_chain
from temporalex_django.operations.runs.update import RequestAction


class Decide(RequestAction):
    """Operation with which a person decides a human task.

    ``outcome`` is one of the outcomes of the task, and ``data`` are the values of the fields of its form. ``form`` is
    the digest of the form that the person filled in; None skips the check that the form is still the same. ``id`` is a
    message id: a decision that is sent again with it counts once. ``timeout`` is the number of seconds to wait until
    the run has accepted or refused the decision; None waits for ever.

    A turn of the run judges the decision, in this process or in a worker. If two people decide at once, one decision
    counts. The other person gets ``HumanTaskClosed``, which says who decided.

    Raises ``PayloadError`` for data that do not fit, ``FormChanged``, ``HumanTaskClaimed``, ``ActionNotPermitted``,
    ``FourEyes``, ``RunPaused`` and ``UpdateTimeout``.
    """

    name: ClassVar[str] = "decide"
    permission: ClassVar[str] = "view_humantask"
    kind: ClassVar[str] = REQUEST
    label: ClassVar[Promise] = _("Decide")
    effect: ClassVar[Promise] = _("The run continues with your decision.")
    done: ClassVar[Promise] = _("Your decision was recorded in the history.")

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
        self.comment = fit_note(comment, label="the comment")
        self.form = form
        self._is_resend = False
        if not isinstance(outcome, str) or outcome not in self.task.outcomes:
            raise PayloadError(f"{task_label(self.task)} accepts {', '.join(self.task.outcomes)}, not {outcome!r}")
        target = find_chain(self.task.chain_id, storage=storage())
        payload = {
            # Pages show the beginning of a payload, so what the person wrote comes first.
            "event": outcome,
            "comment": self.comment,
            "data": data,
            "step": base_key(self.task.key),
            "task": self.task.key,
            "run": str(self.task.run_id),
            # The question as the person saw it: the turn compares it with the one that the code asks (see decision 47).
            "question": question_of(self.task),
        }
        super().__init__(
            target, message=outcome, payload=payload, id=id, timeout=timeout, mode="auto", by=by, exact=True
        )
        if id is not None and (earlier_payload := self._earlier_payload()) is not None:
            self._is_resend = True
            if isinstance(earlier_payload, dict) and self._is_same_decision(earlier_payload):
                # Send the stored payload again: it contains the decider as determined then, who may not qualify any
                # more.
                self.payload = earlier_payload

    def _earlier_payload(self) -> Any:
        """Return the payload of a decision that this sender has already sent under this message id, or None.

        An earlier decision that was refused is ignored, so that this one is judged.
        """
        chain, sender = self.target.chain_id, self.by.sender
        earlier_message = find_message(chain, self.message_id, storage=self.storage)
        if (
            earlier_message is None
            or sender is None
            or earlier_message[1].sender is None
            or earlier_message[1].sender.key != sender.key
        ):
            return None
        status = update_status(chain, self.message_id, storage=self.storage)
        is_refused = status is None or (
            status.outcome is not None and status.outcome.status in ("rejected", "undelivered")
        )
        if is_refused:
            return None
        return earlier_message[1].payload

    def _is_same_decision(self, earlier_payload: dict[str, Any]) -> bool:
        """Return True if ``earlier_payload`` has the outcome, the data and the comment of this decision."""
        data = self.payload["data"]
        # The stored data went through the form, which normalizes them. Compare data that went through it, too.
        if "judged" in earlier_payload:
            data = clean_form_data(self.task.form, data, title=self.task.title)["data"]
        own_payload = {name: value for name, value in self.payload.items() if name != "question"} | {"data": data}
        return all(earlier_payload.get(name) == value for name, value in own_payload.items())

    @property
    def permission_request(self) -> access.Operation:
        """The operation about which the access policy is asked, without a permission: candidates of the task need none.

        The access policy may still refuse it.
        """
        return replace(super().permission_request, permission=None)

    @property
    def user(self) -> Person:
        if self.by.user is None:
            raise ActionNotPermitted(f"{task_label(self.task)} must be decided by a user: pass by=user")
        return self.by.user

    def check(self) -> None:
        """Check that the user may decide the task, and that it is still open and has the form that they filled in.

        Raises ``FormChanged`` besides the errors of the other checks. Normalizes the data in the payload by the form.
        """
        super().check()
        if self._is_resend:
            # The decision counted once already. Checks that may fail by now must not keep its outcome from the sender.
            return
        task = self.task
        self.payload |= admit_decider(self.user, task, storage=self.storage)
        if self.form is not None and self.form != (task.form or {}).get("digest"):
            raise FormChanged(f"the form of {task_label(task)} has changed since you opened it: open it again")
        self.payload |= clean_form_data(task.form, self.payload["data"], title=task.title)

    def before_insert(self) -> None:
        """Lock the task, and raise ``HumanTaskClaimed`` if somebody else has claimed it.

        A claim that was made since ``check`` counts. A decision that is sent again is inserted without the check.
        """
        if not self._is_resend:
            require_unclaimed(self.user, lock_task(self.task, storage=self.storage), storage=self.storage)

    def closed_error(self, error: WorkflowClosed) -> Exception:
        """Return the error for a decision that comes after the end of the run."""
        # The row says what happened: this raises ``HumanTaskClosed`` with the outcome, if there is one.
        with self.storage.transaction():
            lock_task(self.task, storage=self.storage)
        return HumanTaskClosed(f"{task_label(self.task)} is no longer open: the run ended")

    def record(self, subject: AuditSubject, *, reason: str = "", **details: Any) -> None:
        """Write the audit row, with the task and, if the user decided for somebody else, that person.

        The comment is a payload, so only the history has it.
        """
        substitute = {"for": self.payload["for"]["name"]} if "for" in self.payload else {}
        super().record(subject, reason=reason, task=str(self.task.pk), **substitute, **details)

    @property
    def request_label(self) -> str:
        return f"the decision {self.message!r} of {task_label(self.task)}"
