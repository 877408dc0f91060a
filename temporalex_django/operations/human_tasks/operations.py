"""Operations on human tasks: claim, release, delegate, decide."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, ClassVar, TypeVar, cast
from uuid import UUID

from django.contrib.auth import get_user_model
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django import access, signals
from temporalex_django.authoring import authorization, human_tasks
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.authoring.handle import ANSWER_TIMEOUT
from temporalex_django.authoring.human_tasks import base_key, clean_form_data
from temporalex_django.backends.protocol import AuditSubject
from temporalex_django.backends.tables.requests import update_status
from temporalex_django.conf import get_settings
from temporalex_django.core.messages.sender import Sender
from temporalex_django.core.names import fit_note, quoted
from temporalex_django.core.process import REQUEST
from temporalex_django.db.human_tasks import absent_deciders, question_of, undecidable_tasks
from temporalex_django.db.inserts import find_message
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.errors import (
    ActionNotPermitted,
    ActionNotPossible,
    FormChanged,
    FourEyes,
    HumanTaskClaimed,
    HumanTaskClosed,
    HumanTaskNotFound,
    TemporalexError,
    WorkflowClosed,
)
from temporalex_django.models import Candidate, HumanTask, HumanTaskQuerySet, Instance
from temporalex_django.operations.base import Action, Actor, storage
from temporalex_django.operations.human_tasks.inbox import (
    find_task,
    inbox,
    is_excluded,
    matching_candidate,
    outcome_text,
    tasks_of,
)
from temporalex_django.operations.run_lookup import find_chain
from temporalex_django.operations.runs.update import RequestAction
from temporalex_django.present.human_tasks import TaskView, describe_task

# --- base -------------------------------------------------------------------------------------------------------------
#
# Base of the operations on a human task, and the checks that they share.


T = TypeVar("T")


class HumanTaskAction(Action[T]):
    """Base class of the operations on a human task.

    People who may decide the task may perform them, and need no further permission. ``label`` is the text of the
    button. ``effect`` says in a sentence what will happen, and ``done`` what has happened.

    An operation runs in the caller's transaction and locks the row of the task. It raises ``HumanTaskNotFound``,
    ``HumanTaskClosed``, ``HumanTaskClaimed``, ``ActionNotPermitted`` and ``UpdateTimeout`` (code ``busy``); nothing is
    done then.
    """

    permission: ClassVar[str] = "view_humantask"
    label: ClassVar[Promise]
    effect: ClassVar[Promise]
    done: ClassVar[Promise]

    def __init__(self, task: HumanTask | UUID | str, *, reason: str = "", by: Actor) -> None:
        super().__init__(by=by)
        self.task = task if isinstance(task, HumanTask) else find_task(task, by.user)
        self.reason = fit_note(reason, label="the reason")

    @property
    def permission_request(self) -> access.Operation:
        """The operation about which the access policy is asked, without a permission: candidates of the task need none.

        The access policy may still refuse it.
        """
        return replace(super().permission_request, permission=None)

    @property
    def row(self) -> Instance:
        run: Instance = self.task.run
        return run

    @property
    def message_name(self) -> str:
        return self.task.key

    @property
    def audit_subject(self) -> AuditSubject:
        task = self.task
        return AuditSubject(run_id=str(task.run_id), workflow=task.workflow, workflow_id=task.workflow_id)

    @property
    def user(self) -> Person:
        """The user who acts.

        Raises ``ActionNotPermitted`` for code, because the operation requires a person.
        """
        if self.by.user is None:
            raise ActionNotPermitted(f"{self.name} of {task_label(self.task)} requires a user: pass by=user")
        return self.by.user

    def execute(self) -> T:
        with self.translate_busy(task_label(self.task)):
            return super().execute()

    def lock_task(self) -> HumanTask:
        """Lock the row of the task in the open transaction, and set ``task`` to what it contains now.

        Raises ``HumanTaskNotFound`` if it was deleted, and ``HumanTaskClosed``.
        """
        self.task = lock_task(self.task, storage=self.storage)
        return self.task

    def require_candidate(self, task: HumanTask) -> tuple[str, Person]:
        """Return ``(candidate, person)``: the candidate of the task that matches the acting user, and whom it matches.

        The candidate is text such as ``group:managers``. The person is the user, or somebody on whose behalf they
        decide. Raises ``ActionNotPermitted`` if no candidate matches, and ``FourEyes`` if a different person must
        decide.
        """
        return require_candidate(self.user, task)

    def require_unclaimed(self, task: HumanTask) -> None:
        """Raise ``HumanTaskClaimed`` if somebody other than the acting user has claimed the task now."""
        require_unclaimed(self.user, task, storage=self.storage)


def lock_task(task: HumanTask, *, storage: DjangoStorage) -> HumanTask:
    """Lock the task in the open transaction and return its current row.

    Raises ``HumanTaskNotFound`` if the row was deleted, and ``HumanTaskClosed``.
    """
    # Lock the row of the task alone, and none that the query may join.
    locked_task = HumanTask.objects.using(storage.alias).select_for_update(of=("self",)).filter(pk=task.pk).first()
    if locked_task is None:
        raise HumanTaskNotFound(f"{task_label(task)} no longer exists: somebody has deleted its run")
    require_open(locked_task)
    return locked_task


def require_unclaimed(user: Person, task: HumanTask, *, storage: DjangoStorage) -> None:
    """Raise ``HumanTaskClaimed`` if somebody other than ``user`` has claimed the task now.

    A claim ends by the clock of the database.
    """
    until = task.claimed_until
    if until is None or task.claimed_by_key == authorization.sender_key(user) or until <= storage.now():
        return
    raise HumanTaskClaimed(f"{task_label(task)} is claimed by {task.claimed_by_name} until {until.isoformat()}")


def require_claims_respected(
    user: Person, chain: UUID, event: str, *, step: str | None, storage: DjangoStorage
) -> None:
    """Raise ``HumanTaskClaimed`` if the event would decide a human task of the chain that somebody else has claimed.

    ``step`` is the key of the step or task that the event is for, or None if the sender named none. One read.
    """
    for task in HumanTask.objects.using(storage.alias).open().filter(chain=chain).exclude(claimed_until=None):
        if event in task.outcomes and step in (None, task.key, base_key(task.key)):
            require_unclaimed(user, task, storage=storage)


def admit_decider(user: Person, task: HumanTask, *, storage: DjangoStorage) -> dict[str, Any]:
    """Check that the user may decide the task now, and return the fields of the decision that say who decides.

    - ``by`` and ``by_key``: the name and the key of the user.
    - ``word``: the candidate, if the task was delegated to the user.
    - ``for``: the key and the name of the person on whose behalf the user decides, if that is another one.

    Raises ``ActionNotPermitted``, ``FourEyes``, ``HumanTaskClosed`` and ``HumanTaskClaimed``.
    """
    require_open(task)
    candidate, person = require_candidate(user, task)
    require_unclaimed(user, task, storage=storage)
    decider: dict[str, Any] = {"by": str(user), "by_key": authorization.sender_key(user)}
    # The task was delegated to this person: the code does not know that candidate, so the decision names it.
    if candidate not in task.asked:
        decider["word"] = candidate
    if person is not user:
        decider["for"] = {"key": authorization.sender_key(person), "name": str(authorization.sender_of(person))}
    return decider


def require_candidate(user: Person, task: HumanTask) -> tuple[str, Person]:
    """Return ``(candidate, person)``: the candidate of the task that matches the user, and whom it matches.

    The candidate is text such as ``group:managers``. The person is the user, or somebody on whose behalf they decide.
    Raises ``ActionNotPermitted`` if no candidate matches. Raises ``FourEyes`` if the user or that person is excluded,
    for example because they started the run or decided an earlier approval.
    """
    return human_tasks.require_candidacy(
        user,
        matching_candidate(user, task),
        candidates=task.asked,
        label=task_label(task),
        is_excluded=partial(is_excluded, task=task),
    )


def require_open(task: HumanTask) -> None:
    """Raise ``HumanTaskClosed`` if the human task is closed; the message says how it ended."""
    if task.closed_at is not None:
        raise HumanTaskClosed(f"{task_label(task)} is no longer open: {outcome_text(task)}")
    if task.deciding is not None:
        raise HumanTaskClosed(
            f"{task_label(task)} is being decided: {task.deciding['by']} chose {task.deciding['outcome']}, and the run "
            "has not taken the decision yet"
        )


def task_label(task: HumanTask) -> str:
    """Return the words by which error messages name a task: its key, its workflow and the business id.

    The title is left out, because people who may not see it read these messages.
    """
    return human_tasks.task_label(task.key, f"{task.workflow} {task.workflow_id}")


def why_not(task: HumanTask, user: Person) -> str | None:
    """Return the sentence that says why this user may not decide the task now, or None if they may.

    Locks nothing, so somebody else may decide before them.
    """
    try:
        admit_decider(user, task, storage=storage())
    except TemporalexError as exc:
        return f"{exc.message[:1].upper()}{exc.message[1:]}."
    return None


def is_claimed(task: HumanTask) -> bool:
    """Return True if a claim of the task is valid now, by the clock of the database."""
    return task.claimed_until is not None and task.claimed_until > storage().now()


def tasks_of_visible_runs(user: Person) -> HumanTaskQuerySet:
    """Return the human tasks, open and closed, of all runs that the user may look at.

    It does not matter who may decide them. Raises ``ActionNotPermitted`` for a user who may look at no runs.
    """
    alias = storage().alias
    access.require_access(user, access.VIEW, alias=alias)
    return tasks_of(access.runs_for(user, alias=alias))


def subject_text(run: Instance) -> str:
    """Return the text of the run's subject, the object that it was started for; empty if it has none.

    For an object that was deleted, the text is its kind and key. One query, unless Django has loaded the object before.
    """
    if run.subject_type is None:
        return ""
    return str(run.subject or f"{run.subject_type.name} {run.subject_id}")


def mark_nobody_left(*tasks: HumanTask, with_permissions: bool = True) -> Sequence[HumanTask]:
    """Set ``nobody_left`` and ``absent`` on each task, and return the tasks.

    ``nobody_left`` is True if four eyes exclude everybody who could decide the task. ``absent`` are those whom it asks,
    if none of them is there. Users and groups are read once for all tasks; see ``db.human_tasks``. Each permission
    costs a further read, unless ``with_permissions`` is False.
    """
    undecidable_ids = undecidable_tasks(tasks, alias=storage().alias)
    absent = absent_deciders(tasks, alias=storage().alias, with_permissions=with_permissions)
    for task in tasks:
        task.absent = absent.get(task.pk, ())
        task.nobody_left = task.pk in undecidable_ids
    return tasks


def task_sentence(task: HumanTask, *, subject: str = "") -> str:
    """Return a sentence or two about a task: its question, who asked, since when, and its claim or its end.

    ``subject`` is the text of the object that it is about; see ``subject_text``. No query.
    """
    task_view = TaskView(
        title=task.title,
        about=subject,
        requested_by=task.requested_by_name,
        opened_at=task.opened_at,
        due_at=task.due_at,
        escalated_at=task.escalated_at,
        claimed_by=task.claimed_by_name,
        claimed_until=task.claimed_until,
        closed_at=task.closed_at,
        ending=task.ending,
        outcome=task.outcome,
        decided_by=task.decided_by_name,
        nobody_left=task.nobody_left,
        absent=task.absent,
    )
    return describe_task(task_view, now=timezone.now())


def value_as_json(task: HumanTask) -> str:
    """Return the value that a human task shows, and about which people decide, as indented JSON.

    The text is empty if there is none.
    """
    value = task.shown_value
    if value is None:
        return ""
    return json.dumps(value, indent=2, ensure_ascii=False, default=repr)


def count_inbox(user: Person, *, limit: int) -> int:
    """Return the number of human tasks in the user's inbox, counted up to ``limit``. One query."""
    # A slice and no order let the database stop at ``limit`` instead of sorting and counting all tasks.
    return int(inbox(user).order_by()[:limit].count())


def find_user(name: str) -> Person | str:
    """Return the user with that login name, or the name itself if no user has it.

    Pass the result to the operation ``Delegate``: it refuses an unknown name in the same words as a user who may not
    decide, so that nobody can find out which names exist.
    """
    users: Any = get_user_model()
    user = users._default_manager.filter(**{users.USERNAME_FIELD: name}).first()  # noqa: SLF001 - Django documents it
    if user is None:
        return name
    return cast("Person", user)


# --- claim ------------------------------------------------------------------------------------------------------------
#
# Claim a human task, so that nobody else decides it meanwhile.


class Claim(HumanTaskAction[datetime]):
    """Operation that claims a human task for the user, and returns the time at which the claim ends.

    A claim lasts ``CLAIM_SECONDS`` by the clock of the database. A user who claims a task again extends their claim.
    Runs in the caller's transaction and locks the row of the task. Raises ``HumanTaskClosed``, ``HumanTaskClaimed`` if
    somebody else has claimed it, ``ActionNotPermitted``, ``UpdateTimeout`` (code ``busy``), and ``FourEyes`` for a user
    whom four eyes exclude.
    """

    name: ClassVar[str] = "claim"
    label: ClassVar[Promise] = _("Claim")
    effect: ClassVar[Promise] = _("Nobody else can decide it for a while.")
    done: ClassVar[Promise] = _("You have claimed it.")

    def perform(self) -> datetime:
        with self.storage.transaction():
            task = self.lock_task()
            self.require_candidate(task)
            self.require_unclaimed(task)
            sender = authorization.sender_of(self.user) or Sender("", "")
            task.claimed_by_key, task.claimed_by_name = sender.key, str(sender)
            until = task.claimed_until = self.storage.now() + timedelta(seconds=get_settings().CLAIM_SECONDS)
            task.save(using=self.storage.alias, update_fields=["claimed_by_key", "claimed_by_name", "claimed_until"])
            self.record(self.audit_subject, reason=self.reason, task=str(task.pk), until=until.isoformat())
            self.storage.on_commit(lambda: _send_claimed_signal(task, self.user))
        return until


def _send_claimed_signal(task: HumanTask, actor: object) -> None:
    signals.send(
        "human_task_claimed",
        workflows.signal_sender(task.workflow),
        workflow=task.workflow,
        workflow_id=task.workflow_id,
        run_id=str(task.run_id),
        task=str(task.pk),
        title=task.title,
        key=task.key,
        actor=actor,
        until=task.claimed_until,
    )


class Release(HumanTaskAction[None]):
    """Operation that ends the claim of a human task, so that others may decide it again.

    To end the claim of another person, the user needs the permission ``release_humantask``. Raises
    ``ActionNotPossible`` if nobody has claimed the task, ``HumanTaskClaimed`` and ``ActionNotPermitted``. The audit log
    records whose claim it was.
    """

    name: ClassVar[str] = "release"
    label: ClassVar[Promise] = _("Release")
    effect: ClassVar[Promise] = _("Others can claim and decide it again.")
    done: ClassVar[Promise] = _("The claim was released.")

    def perform(self) -> None:
        with self.storage.transaction():
            task = self.lock_task()
            is_own_claim = task.claimed_until is not None and task.claimed_by_key == authorization.sender_key(self.user)
            if not is_own_claim and not (task.claimed_until is not None and self._may_release(task)):
                # These raise the error that fits best; without a claim, only the one below is left.
                self.require_candidate(task)
                self.require_unclaimed(task)
                raise ActionNotPossible(f"{self.user} has not claimed {task_label(task)}: there is nothing to release")
            claimed_by = task.claimed_by_name
            task.claimed_by_key = task.claimed_by_name = ""
            task.claimed_until = None
            task.save(using=self.storage.alias, update_fields=["claimed_by_key", "claimed_by_name", "claimed_until"])
            self.record(
                self.audit_subject,
                reason=self.reason,
                task=str(task.pk),
                **({} if is_own_claim else {"claimed_by": claimed_by}),
            )

    def _may_release(self, task: HumanTask) -> bool:
        """Return True if the user may end claims of other people on this task."""
        operation = access.Operation(action=self.name, permission=f"{APP}.release_humantask")
        return access.policy().allows(self.user, operation.of(task.run))


# --- delegate ---------------------------------------------------------------------------------------------------------
#
# Delegate a human task to somebody else.


#: Most delegations of one task; each of them is stored in its row.
_MAX_DELEGATIONS = 20


class Delegate(HumanTaskAction[None]):
    """Operation that delegates a human task: the user ``to`` may decide it as well from then on.

    A claim of the task ends. The user who delegates must be able to decide the task themselves. ``to`` is a stored
    user, or a name that no user has, as ``find_user`` returns it.

    Raises ``ActionNotPermitted`` if the access policy does not allow it, if ``to`` is not active or may not see the
    run, or is an unknown name. The message is always the same, so that nobody can find out which users exist. Raises
    ``FourEyes`` if ``to`` is an excluded user, and ``ActionNotPossible`` after too many delegations.
    """

    name: ClassVar[str] = "delegate"
    label: ClassVar[Promise] = _("Delegate")
    effect: ClassVar[Promise] = _("Another person may decide it as well. Your claim ends.")
    done: ClassVar[Promise] = _("The task was delegated.")

    def __init__(self, task: HumanTask | UUID | str, *, to: Person | str, reason: str = "", by: Actor) -> None:
        super().__init__(task, reason=reason, by=by)
        self.to = to if isinstance(to, str) else authorization.check_person(to)

    def perform(self) -> None:
        with self.storage.transaction():
            task = self.lock_task()
            self.require_candidate(task)
            self.require_unclaimed(task)
            if len(task.delegated) >= _MAX_DELEGATIONS:
                raise ActionNotPossible(
                    f"{task_label(task)} was already delegated {_MAX_DELEGATIONS} times, which is the limit: "
                    "decide it, or cancel it"
                )
            recipient = self._permitted_recipient(task)
            entry: dict[str, Any] = {
                "to": recipient.name,
                "by": str(authorization.sender_of(self.user)),
                "at": self.storage.now().isoformat(),
                "reason": self.reason,
            }
            task.delegated = [*task.delegated, entry]
            task.claimed_by_key = task.claimed_by_name = ""
            task.claimed_until = None
            claim = ["claimed_by_key", "claimed_by_name", "claimed_until"]
            task.save(using=self.storage.alias, update_fields=["delegated", *claim])
            rows = Candidate.objects.using(self.storage.alias)
            # The row makes the task appear in the recipient's inbox, which looks for candidates by an index.
            rows.get_or_create(task=task, who=f"user:{recipient.name}", defaults={"barred": False})
            self.record(self.audit_subject, reason=self.reason, task=str(task.pk), to=recipient.name)

    def _permitted_recipient(self, task: HumanTask) -> Sender:
        """Return ``(key, name)``. Raises ``ActionNotPermitted``, and ``FourEyes`` for an excluded user."""
        to = self.to
        recipient = None
        if to is not None and not isinstance(to, str):
            recipient = authorization.sender_of(to)
        # All of these raise one message: different ones would say which names exist and who may see the run.
        if (
            to is None
            or isinstance(to, str)
            or recipient is None
            or not recipient.name
            or not self._can_receive(task, to)
        ):
            recipient_name = to if isinstance(to, str) else getattr(to, "get_username", lambda: to)()
            raise ActionNotPermitted(
                f"{self.user} may not delegate {task_label(task)} to {quoted(recipient_name)}: the recipient "
                "must be an active user of that name who may see the run, and the access policy must allow "
                "the delegation"
            )
        if is_excluded(to, task):
            raise FourEyes(
                f"{to} may not decide {task_label(task)}: they started, forked or scheduled the run, or decided an "
                "earlier approval"
            )
        return recipient

    def _can_receive(self, task: HumanTask, to: Person) -> bool:
        if not getattr(to, "is_active", True) or not access.policy().may_delegate(self.user, task, to):
            return False
        runs = access.runs_for(to, alias=self.storage.alias)
        return runs is None or runs.filter(pk=task.run_id).exists()


# --- decide -----------------------------------------------------------------------------------------------------------
#
# Decide a human task.


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
        human_tasks.require_outcome(self.task.outcomes, outcome, label=task_label(self.task))
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
        """Return what this sender sent under this message id. A refused decision is ignored: this one is judged."""
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
        return human_tasks.require_user(self.by.user, label=task_label(self.task))

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
