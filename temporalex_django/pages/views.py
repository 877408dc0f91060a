"""The views of the inbox, of a human task, and of a link in mail. All of them work without JavaScript."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from temporalex_django.authoring.authorization import Person
from temporalex_django.contrib.request_id import request_id
from temporalex_django.errors import HumanTaskNotFound
from temporalex_django.forms.task_page import TaskPage
from temporalex_django.models import HumanTask
from temporalex_django.operations import audit
from temporalex_django.operations.audit import client_address
from temporalex_django.operations.base import Actor
from temporalex_django.operations.human_tasks import operations
from temporalex_django.operations.human_tasks.inbox import find_task, inbox
from temporalex_django.operations.human_tasks.operations import Decide
from temporalex_django.pages.mail import read_token

#: URL names of the pages that decide a human task; the first one that the project includes is used.
_PAGE_NAMES = ("temporalex_pages:task", "temporalex_console:task", "admin:temporalex_console:task")


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxEntry:
    """A human task in a list: ``text`` is a sentence about it, and ``address`` the URL of its page.

    ``address`` is empty if the project has no page for human tasks.
    """

    task: HumanTask
    text: str
    address: str


def asked_of(user: Person, *, most: int, workflow: str = "", link: str = "") -> list[InboxEntry]:
    """Return the first ``most`` human tasks in the user's inbox, those that they may decide now. One query.

    The earliest due comes first. ``workflow`` restricts them to a workflow class. ``link`` is the URL name of your own
    page of a human task, which takes its id. By default the page of this package is used, or that of the console.
    """
    tasks = inbox(user)
    if workflow:
        tasks = tasks.filter(workflow=workflow)
    return [
        InboxEntry(task=task, text=operations.task_sentence(task), address=_task_address(task, link))
        for task in tasks[:most]
    ]


def _task_address(task: HumanTask, link: str) -> str:
    # A name that the caller gives must resolve: NoReverseMatch is an error of the template, so it is not caught.
    if link:
        return reverse(link, args=[task.pk])
    for name in _PAGE_NAMES:
        try:
            return reverse(name, args=[task.pk])
        except NoReverseMatch:
            continue
    return ""


_MAX_ROWS = 50


@require_safe
@never_cache
@login_required
def inbox_page(request: HttpRequest) -> HttpResponse:
    """Show the inbox of the signed-in user: the human tasks that they may decide now, the earliest due first."""
    entries = asked_of(_user(request), most=_MAX_ROWS + 1)
    context = {"tasks": entries[:_MAX_ROWS], "more": len(entries) > _MAX_ROWS, "limit": _MAX_ROWS}
    return render(request, "temporalex_django/pages/inbox.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@login_required
def task_page(request: HttpRequest, task: UUID) -> HttpResponse:
    """Show a human task to the signed-in user, with the form that decides it.

    A POST claims, releases, delegates or decides it.
    """
    user = _user(request)
    try:
        human_task = find_task(task, user)
    except HumanTaskNotFound as exc:
        raise Http404(exc.message) from exc
    page = TaskPage(
        actor=_actor(request, user),
        address=reverse("temporalex_pages:task", args=[human_task.pk]),
        inbox_address=reverse("temporalex_pages:inbox"),
    )
    return page.respond(request, human_task)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def link_page(request: HttpRequest, token: str) -> HttpResponse:
    """Show the human task that a link in mail names, without a login.

    A POST acts in the name of the user to whom the link was sent. A GET changes nothing, because mail programs and
    scanners open links by themselves.
    """
    try:
        user, key = read_token(token)
        human_task = find_task(key, None)
    except HumanTaskNotFound as exc:
        return render(request, "temporalex_django/pages/gone.html", {"why": exc.message}, status=404)
    actor = _actor(request, user)
    # The link is valid, but the user may have lost the right since: record the attempt in the audit log.
    try:
        find_task(key, user)
    except HumanTaskNotFound:
        _refuse(actor, human_task)
    page = TaskPage(actor=actor, address=reverse("temporalex_pages:link", args=[token]), delegates=False)
    return page.respond(request, human_task)


def _refuse(actor: Actor, task: HumanTask) -> NoReturn:
    """Raise ``PermissionDenied`` for the user of a link who may see the task no longer, and audit that."""
    reason = _("You may not decide this any more.")
    audit.record_denial(actor, Decide.name, reason, run=task.run, message=task.key)
    raise PermissionDenied(reason)


def _user(request: HttpRequest) -> Any:
    return request.user


def _actor(request: HttpRequest, user: Person) -> Actor:
    address, http_request_id = client_address(request.META), request_id(request.META)
    return Actor(user=user, source="pages", address=address, request_id=http_request_id)
