"""Human tasks on your own site: ``path("tasks/", include("temporalex_django.pages.urls"))``.

The URLs serve the inbox of the signed-in user, a page for each human task, and pages for links in mail, which need no
password. Template tags (``{% load temporalex %}``) show the inbox on any other page.
"""

from __future__ import annotations

from temporalex_django.pages.views import InboxEntry, asked_of

__all__ = ["InboxEntry", "asked_of"]
