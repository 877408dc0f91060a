"""Mail to the people who may decide a human task, each with a link to decide it without signing in.

    TaskMail(base_url="https://shop.example").attach()          # in AppConfig.ready

The process that committed the event sends the mail, after the commit. This may be a worker, so choose an
``EMAIL_BACKEND`` that returns quickly. A server that does not answer is given up after ten seconds, or after
``EMAIL_TIMEOUT``; no mail of an event is begun after thirty seconds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any, cast
from uuid import UUID

from django.contrib.auth import get_backends, get_user_model
from django.core import signing
from django.db.models import Q
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.translation import gettext as _

from temporalex_django import signals
from temporalex_django.authoring.authorization import Person
from temporalex_django.core.failures import error_line
from temporalex_django.errors import HumanTaskNotFound
from temporalex_django.models import HumanTask
from temporalex_django.operations.alerts import mail_deadline, send_mail
from temporalex_django.operations.human_tasks import operations
from temporalex_django.operations.human_tasks.inbox import find_task, may_view

logger = logging.getLogger("temporalex_django.pages")

#: Signals about which an email can be sent.
EVENTS = ("human_task_opened", "human_task_reminded", "human_task_escalated")
#: Largest number of recipients of one event; everybody else finds the task in their inbox.
MAX_RECIPIENTS = 50


class TaskMail:
    """Sends mail to the people who may decide a human task, from ``attach`` to ``detach``.

    Override ``recipients`` to change who gets mail, or ``send`` to change the mail.
    """

    def __init__(self, *, base_url: str, sender: str | None = None, events: Iterable[str] = EVENTS) -> None:
        """Choose the ``events`` about which mail is sent; nothing is sent before ``attach``.

        ``base_url`` is the scheme and the host of the site, for the links. ``sender`` is the From address, by default
        Django's own. Raises ``ValueError`` for an event that is not in ``EVENTS``.
        """
        self.base_url = base_url.rstrip("/")
        self.sender = sender
        self.events = tuple(events)
        if unknown := sorted({*self.events} - {*EVENTS}):
            raise ValueError(f"unknown event: {', '.join(unknown)} (the events are {', '.join(EVENTS)})")

    def attach(self) -> None:
        """Start to send mail, by connecting to the Django signals about human tasks. A second call changes nothing."""
        for name in self.events:
            # A strong reference: nothing else keeps an object that was attached in AppConfig.ready.
            signals.ALL[name].connect(self.receive, weak=False, dispatch_uid=("temporalex_mail", id(self)))

    def detach(self) -> None:
        """Stop sending mail, by disconnecting from the Django signals."""
        for name in self.events:
            signals.ALL[name].disconnect(self.receive, dispatch_uid=("temporalex_mail", id(self)))

    def receive(self, *, task: str, **_facts: Any) -> None:
        """Send mail about the human task with the id ``task`` to each recipient who may decide it, if it is still open.

        This is the receiver of the Django signals. A mail that could not be sent is tried once more after the others,
        and then logged: one address keeps no mail from another one.
        """
        try:
            human_task = find_task(task, None)
        # Signals come after the commit: by then the run may be deleted, or the task decided.
        except HumanTaskNotFound:
            return
        if not human_task.is_open:
            return
        people = [user for user in self.recipients(human_task) if user.email]
        if len(people) > MAX_RECIPIENTS:
            logger.warning(
                "human task %s asks more than %d people: only the first ones get an email",
                human_task.pk,
                MAX_RECIPIENTS,
            )
        deadline = mail_deadline()
        failed_users = [user for user in people[:MAX_RECIPIENTS] if not self._try(human_task, user, deadline)]
        lost_users = [user for user in failed_users if not self._try(human_task, user, deadline)]
        if lost_users:
            logger.error(
                "human task %s: the mail to %d of %d people could not be sent. They find the task in their inbox",
                human_task.pk,
                len(lost_users),
                len(people),
            )

    def _try(self, task: HumanTask, user: Any, deadline: float) -> bool:
        """Mail a user who may decide the task, and return False if that fails or the time is over."""
        if time.monotonic() > deadline:
            return False
        try:
            # They may see no such run, or may be excluded as one who took part: a link would lead them nowhere.
            if _can_decide(task, user):
                self.send(task, user)
        except Exception as exc:  # noqa: BLE001 - a mail server, a template, or code of the project
            logger.warning("human task %s: mail to user %s failed: %s", task.pk, user.pk, error_line(exc))
            return False
        return True

    def recipients(self, task: HumanTask) -> list[Any]:
        """Return the active users who are candidates of a human task, at most ``MAX_RECIPIENTS`` + 1 of them.

        These are the users that the task names, the members of its groups, the users who have its permissions, and
        those to whom it was delegated. A superuser is not included for a permission alone.
        """
        users = get_user_model()
        candidates = [*task.asked, *(f"user:{delegation['to']}" for delegation in task.delegated)]
        usernames = _names_of_kind("user:", candidates)
        condition = Q(**{f"{users.USERNAME_FIELD}__in": usernames}) | Q(
            groups__name__in=_names_of_kind("group:", candidates)
        )
        for permission in _names_of_kind("perm:", candidates):
            condition |= Q(pk__in=_user_ids_with_permission(permission))
        rows = users._default_manager.filter(condition, is_active=True)  # noqa: SLF001 - Django documents it
        return [*rows.order_by("pk").distinct()[: MAX_RECIPIENTS + 1]]

    def send(self, task: HumanTask, user: Any) -> None:
        """Send one mail about the human task to the user, with a link that is valid for this user alone."""
        link = f"{self.base_url}{reverse('temporalex_pages:link', args=[make_token(task, user)])}"
        text = operations.task_sentence(task, subject=operations.subject_text(task.run))
        body = render_to_string(
            "temporalex_django/pages/mail.txt", {"task": task, "text": text, "link": link, "user_name": str(user)}
        )
        subject = _("Decision needed: %(title)s") % {"title": task.title}
        # The title comes from workflow code: a newline in it would be a header injection, which Django refuses.
        send_mail(" ".join(subject.split()), body, self.sender, [user.email])


def _can_decide(task: HumanTask, user: Any) -> bool:
    """Return True if the user may see the human task and may decide it now."""
    return may_view(user, task) and operations.why_not(task, user) is None


def _names_of_kind(kind: str, candidates: Iterable[str]) -> list[str]:
    return [candidate.removeprefix(kind) for candidate in candidates if candidate.startswith(kind)]


def _user_ids_with_permission(permission: str) -> list[Any]:
    """Return keys of users, without superusers. Backends that cannot list users are left out."""
    user_ids: list[Any] = []
    for backend in get_backends():
        with_perm = getattr(backend, "with_perm", None)
        # Django's ModelBackend has with_perm; other backends need not, and cannot list their users then.
        if with_perm is not None:
            user_ids += with_perm(permission, include_superusers=False).values_list("pk", flat=True)[
                : MAX_RECIPIENTS + 1
            ]
    return user_ids


# --- links ------------------------------------------------------------------------------------------------------------
#
# Links in mail with which one person can decide one human task without a password, for a limited time.
#
# Everybody who has the link acts as that person: treat it like a password.


#: Default lifetime of a link.
LINK_LIFETIME = timedelta(days=3)
_SALT = "temporalex_django.pages.mail"


def make_token(task: HumanTask, user: Any) -> str:
    """Return the signed token of a link in mail, with which this user can decide this human task without a password.

    The token becomes invalid when the password of the user changes, or when the user is no longer active.
    """
    fingerprint = next(_session_fingerprints(user))
    return signing.dumps({"task": str(task.pk), "user": str(user.pk), "as": fingerprint}, salt=_SALT)


def read_token(token: str, *, lifetime: timedelta = LINK_LIFETIME) -> tuple[Person, UUID]:
    """Return ``(user, id of the human task)`` for the token of a link.

    Raises ``HumanTaskNotFound`` for a token that is malformed, older than ``lifetime`` or no longer valid.
    """
    try:
        token_fields = signing.loads(token, salt=_SALT, max_age=lifetime)
        task, key = UUID(token_fields["task"]), token_fields["user"]
    except (signing.BadSignature, ValueError, KeyError, TypeError):
        raise HumanTaskNotFound("this link is invalid or has expired: sign in instead") from None
    # The row is read at each use: a link must end with the account, not only with its lifetime.
    user = get_user_model()._default_manager.filter(pk=key).first()  # noqa: SLF001 - Django documents it
    if user is None or not user.is_active or token_fields.get("as") not in _session_fingerprints(user):
        raise HumanTaskNotFound("this link is no longer valid: sign in instead")
    return cast("Person", user), task


def _session_fingerprints(user: Any) -> Iterator[str]:
    """Yield texts that change with the password, by each key of the project.

    Links contain the first one, so a new password ends them. Older links have those of ``SECRET_KEY_FALLBACKS``.
    """
    # Django's own session hash: what ends the sessions of a user ends their links too. A user model may lack it.
    get_hash = getattr(user, "get_session_auth_hash", None)
    yield str(get_hash())[:16] if callable(get_hash) else ""
    get_fallback_hashes = getattr(user, "get_session_auth_fallback_hash", None)
    if callable(get_fallback_hashes):
        yield from (str(fallback)[:16] for fallback in get_fallback_hashes())
