"""The inbox of a person as a list for pages and template tags."""

from __future__ import annotations

from dataclasses import dataclass

from django.urls import NoReverseMatch, reverse

from temporalex_django.authoring.authorization import Person
from temporalex_django.models import HumanTask
from temporalex_django.operations.human_tasks import deciding
from temporalex_django.operations.human_tasks.inbox import inbox

#: URL names of the pages that decide a human task; the first one that the project includes is used.
_PAGE_NAMES = ("temporalex_pages:task", "admin:temporalex_django_humantask_change")


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxEntry:
    """A human task in a list, with a sentence about it and the address of its page (empty if there is no page)."""

    task: HumanTask
    text: str
    address: str


def asked_of(user: Person, *, most: int, workflow: str = "", link: str = "") -> list[InboxEntry]:
    """Return the first ``most`` human tasks that the user may decide now, the earliest due first. One query.

    ``workflow`` is the name of a class to which the list is restricted. ``link`` is the URL name of your own page of a
    human task, which takes its id.
    """
    tasks = inbox(user)
    if workflow:
        tasks = tasks.filter(workflow=workflow)
    return [
        InboxEntry(task=task, text=deciding.task_sentence(task), address=_task_address(task, link))
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
