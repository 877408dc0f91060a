"""The inbox as pages show it."""

from __future__ import annotations

from dataclasses import dataclass

from django.urls import NoReverseMatch, reverse

from temporalex_django.actions import deciding
from temporalex_django.actions.inbox import inbox
from temporalex_django.authoring.authorization import Person
from temporalex_django.models import HumanTask

#: Where a human task is decided, in the order in which these are looked for.
_PAGE_NAMES = ("temporalex_pages:task", "admin:temporalex_django_humantask_change")


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxEntry:
    """A human task in a list, what it says in a sentence, and the address of its page (empty: there is none)."""

    task: HumanTask
    text: str
    address: str


def asked_of(user: Person, *, most: int, workflow: str = "", link: str = "") -> list[InboxEntry]:
    """The first ``most`` human tasks that he may decide now, what is due first at first. One query.

    ``workflow``: of this class alone. ``link``: the name of the host's own page of a human task, which takes its id.
    """
    tasks = inbox(user)
    if workflow:
        tasks = tasks.filter(workflow=workflow)
    return [
        InboxEntry(task=task, text=deciding.task_sentence(task), address=_task_address(task, link))
        for task in tasks[:most]
    ]


def _task_address(task: HumanTask, link: str) -> str:
    if link:
        return reverse(link, args=[task.pk])
    for name in _PAGE_NAMES:
        try:
            return reverse(name, args=[task.pk])
        except NoReverseMatch:
            continue
    return ""
