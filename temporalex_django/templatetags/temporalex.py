"""``{% load temporalex %}``: what whoever looks at a page may decide now, on pages of the host's own."""

from __future__ import annotations

from typing import Any

from django import template

from temporalex_django.actions import deciding
from temporalex_django.pages.inbox import asked_of

register = template.Library()

_MAX_COUNT = 100


@register.inclusion_tag("temporalex_django/inbox.html", takes_context=True)
def temporalex_inbox(context: Any, limit: int = 10, workflow: str = "", link: str = "") -> dict[str, Any]:
    """A list of the first human tasks in the inbox of ``request.user``, each with a link to where it is decided.

    ``workflow``: of that class alone. ``link``: the name of a page of your own that takes the id of a human task. One
    query; nobody signed in: an empty list.
    """
    user = _user(context)
    entries = [] if user is None else asked_of(user, most=limit + 1, workflow=workflow, link=link)
    return {"tasks": entries[:limit], "more": len(entries) > limit}


@register.simple_tag(takes_context=True)
def temporalex_inbox_count(context: Any) -> int:
    """How many there are, counted up to 100. One query."""
    user = _user(context)
    return 0 if user is None else deciding.count_inbox(user, limit=_MAX_COUNT)


def _user(context: Any) -> Any:
    request = context.get("request") or getattr(context, "request", None)
    user = getattr(request, "user", None)
    if user is None:  # a page that shows somebody may call him so
        user = context.get("user")
    return user if user is not None and user.is_authenticated else None
