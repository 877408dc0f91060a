"""Mail to those whom a human task asks, with a link by which each of them decides without signing in.

    TaskMail(base_url="https://shop.example").attach()          # in AppConfig.ready

Sent by the process that committed what it tells, after the commit: name an ``EMAIL_BACKEND`` that does not make a
worker wait.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from django.contrib.auth import get_backends, get_user_model
from django.core.mail import send_mail
from django.db.models import Q
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.translation import gettext as _

from temporalex_django import signals
from temporalex_django.actions import deciding
from temporalex_django.actions.inbox import find_task, may_view
from temporalex_django.errors import HumanTaskNotFound
from temporalex_django.models import HumanTask
from temporalex_django.pages.links import make_token

logger = logging.getLogger("temporalex_django.pages")

#: What a mail is sent about.
EVENTS = ("human_task_opened", "human_task_reminded", "human_task_escalated")
#: How many people get one at most; the inbox shows it to all.
MAX_RECIPIENTS = 50


class TaskMail:
    """Subclass it for other recipients, or other words: ``recipients`` and ``send`` are made for it."""

    def __init__(self, *, base_url: str, sender: str | None = None, events: Iterable[str] = EVENTS) -> None:
        """``base_url``: scheme and host of the site. Raises ``ValueError`` for an event that there is not."""
        self.base_url = base_url.rstrip("/")
        self.sender = sender
        self.events = tuple(events)
        if unknown := sorted({*self.events} - {*EVENTS}):
            raise ValueError(f"no such event: {', '.join(unknown)} (there are: {', '.join(EVENTS)})")

    def attach(self) -> None:
        """From now on; once more changes nothing."""
        for name in self.events:
            signals.ALL[name].connect(self.receive, weak=False, dispatch_uid=("temporalex_mail", id(self)))

    def detach(self) -> None:
        """No more."""
        for name in self.events:
            signals.ALL[name].disconnect(self.receive, dispatch_uid=("temporalex_mail", id(self)))

    def receive(self, *, task: str, **_facts: Any) -> None:
        """One of the events."""
        try:
            human_task = find_task(task, None)
        except HumanTaskNotFound:  # its run is deleted already
            return
        if not human_task.is_open:
            return
        people = [user for user in self.recipients(human_task) if user.email and _can_decide(human_task, user)]
        if len(people) > MAX_RECIPIENTS:
            logger.warning(
                "human task %s asks for more than %d people: the first get a mail", human_task.pk, MAX_RECIPIENTS
            )
        for user in people[:MAX_RECIPIENTS]:
            self.send(human_task, user)

    def recipients(self, task: HumanTask) -> list[Any]:
        """Active users whom it asks: those named, of the groups, with the permissions, and whom it was handed on to.

        Superusers, who have all permissions, are not meant by one.
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
        """One mail."""
        link = f"{self.base_url}{reverse('temporalex_pages:link', args=[make_token(task, user)])}"
        text = deciding.task_sentence(task, subject=deciding.subject_text(task.run))
        body = render_to_string(
            "temporalex_django/pages/mail.txt", {"task": task, "text": text, "link": link, "user_name": str(user)}
        )
        subject = _("To decide: %(title)s") % {"title": task.title}
        send_mail(" ".join(subject.split()), body, self.sender, [user.email])


def _can_decide(task: HumanTask, user: Any) -> bool:
    """Whether there is that run for him, and he may decide."""
    return may_view(user, task) and deciding.why_not(task, user) is None


def _names_of_kind(kind: str, candidates: Iterable[str]) -> list[str]:
    return [candidate.removeprefix(kind) for candidate in candidates if candidate.startswith(kind)]


def _user_ids_with_permission(permission: str) -> list[Any]:
    """Keys of users whom a backend of the project knows to have it."""
    user_ids: list[Any] = []
    for backend in get_backends():
        with_perm = getattr(backend, "with_perm", None)
        if with_perm is not None:
            user_ids += with_perm(permission, include_superusers=False).values_list("pk", flat=True)[
                : MAX_RECIPIENTS + 1
            ]
    return user_ids
