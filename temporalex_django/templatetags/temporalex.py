"""Template tags that show the inbox of the user on your own pages (``{% load temporalex %}``)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import template
from django.utils import timezone

from temporalex_django.operations.human_tasks import operations
from temporalex_django.pages.views import asked_of
from temporalex_django.present.formatting import format_time_html

register = template.Library()

_MAX_COUNT = 100


@register.inclusion_tag("temporalex_django/inbox.html", takes_context=True)
def temporalex_inbox(context: Any, limit: int = 10, workflow: str = "", link: str = "") -> dict[str, Any]:
    """List the first human tasks in the inbox of ``request.user``, each with a link to the page that decides it.

    ``limit`` is the largest number of tasks. ``workflow`` restricts them to a workflow class. ``link`` is the URL name
    of your own page of a human task, which takes its id. One query; for a visitor who is not signed in, no query and an
    empty list.
    """
    user = _user(context)
    # One entry more than the list has shows that there are more, without a second query that counts them.
    entries = [] if user is None else asked_of(user, most=limit + 1, workflow=workflow, link=link)
    return {"tasks": entries[:limit], "more": len(entries) > limit}


@register.simple_tag(takes_context=True)
def temporalex_inbox_count(context: Any) -> int:
    """Return the number of human tasks that ``request.user`` may decide now, counted up to 100. One query.

    It is 0, without a query, for a visitor who is not signed in.
    """
    user = _user(context)
    return 0 if user is None else operations.count_inbox(user, limit=_MAX_COUNT)


@register.filter
def temporalex_time(at: datetime) -> str:
    """Format a time as sentences about runs do: *14:02*, *yesterday 14:02*, *3 Nov 14:02*; exactly on hover."""
    return format_time_html(at, timezone.now())


def _user(context: Any) -> Any:
    request = context.get("request") or getattr(context, "request", None)
    user = getattr(request, "user", None)
    # The request comes first: on a page about another user, "user" in the context may be that one.
    if user is None:
        user = context.get("user")
    return user if user is not None and user.is_authenticated else None
