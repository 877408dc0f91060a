"""Human tasks in pages of the host's own: ``path("tasks/", include("temporalex_django.pages.urls"))``.

The inbox of whoever is signed in, a page of each human task, and links by mail that need no password. Template tags
(``{% load temporalex %}``) put the inbox on any other page.
"""

from __future__ import annotations

from temporalex_django.pages.inbox import InboxEntry, asked_of

__all__ = ["InboxEntry", "asked_of"]
