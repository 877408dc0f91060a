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
from temporalex_django.pages.links import token_for

logger = logging.getLogger("temporalex_django.pages")

#: What a mail is sent about.
EVENTS = ("human_task_opened", "human_task_reminded", "human_task_escalated")
#: How many people get one at most; the inbox shows it to all.
MOST = 50


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
            found = find_task(task, None)
        except HumanTaskNotFound:  # its run is deleted already
            return
        if not found.is_open:
            return
        people = [user for user in self.recipients(found) if user.email and _may(found, user)]
        if len(people) > MOST:
            logger.warning("human task %s asks for more than %d people: the first get a mail", found.pk, MOST)
        for user in people[:MOST]:
            self.send(found, user)

    def recipients(self, task: HumanTask) -> list[Any]:
        """Active users whom it asks: those named, of the groups, with the permissions, and whom it was handed on to.

        Superusers, who have all permissions, are not meant by one.
        """
        users = get_user_model()
        words = [*task.asked, *(f"user:{one['to']}" for one in task.delegated)]
        named = _those("user:", words)
        wanted = Q(**{f"{users.USERNAME_FIELD}__in": named}) | Q(groups__name__in=_those("group:", words))
        for permission in _those("perm:", words):
            wanted |= Q(pk__in=_with_permission(permission))
        rows = users._default_manager.filter(wanted, is_active=True)  # noqa: SLF001 - Django documents it
        return [*rows.order_by("pk").distinct()[: MOST + 1]]

    def send(self, task: HumanTask, user: Any) -> None:
        """One mail."""
        link = f"{self.base_url}{reverse('temporalex_pages:link', args=[token_for(task, user)])}"
        text = deciding.task_sentence(task, subject=deciding.subject_text(task.run))
        body = render_to_string(
            "temporalex_django/pages/mail.txt", {"task": task, "text": text, "link": link, "user_name": str(user)}
        )
        subject = _("To decide: %(title)s") % {"title": task.title}
        send_mail(" ".join(subject.split()), body, self.sender, [user.email])


def _may(task: HumanTask, user: Any) -> bool:
    """Whether there is that run for him, and he may decide."""
    return may_view(user, task) and deciding.why_not(task, user) is None


def _those(kind: str, words: Iterable[str]) -> list[str]:
    return [word.removeprefix(kind) for word in words if word.startswith(kind)]


def _with_permission(permission: str) -> list[Any]:
    """Keys of users whom a backend of the project knows to have it."""
    found: list[Any] = []
    for backend in get_backends():
        known = getattr(backend, "with_perm", None)
        if known is not None:
            found += known(permission, include_superusers=False).values_list("pk", flat=True)[: MOST + 1]
    return found
