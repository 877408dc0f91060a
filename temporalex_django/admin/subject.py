"""Runs on the page of the object that they are about: a mixin for the host's own ``ModelAdmin``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString

from temporalex_django.access import redactor_for
from temporalex_django.admin.instance import InstanceAdmin
from temporalex_django.admin.messages import MessagePanel, panels
from temporalex_django.admin.requests import user_of
from temporalex_django.admin.run_pages import not_the_present
from temporalex_django.admin.shown import shortened, status_badge
from temporalex_django.admin.steering import Tool, tools
from temporalex_django.models import Instance

_MOST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectRun:
    """A run about an object, as its page shows it."""

    run: Instance
    address: str
    badge: SafeString
    waits_for: str
    tools: list[Tool]
    messages: list[MessagePanel]


class WorkflowAdminMixin(admin.ModelAdmin):  # type: ignore[type-arg] # generic in the stubs only
    """``class OrderAdmin(WorkflowAdminMixin, admin.ModelAdmin)``: the newest runs about an order stand below its form.

    Those that were started with ``subject=order``, as far as the user may see them, with links to their pages, to the
    messages that they take and to what can be done to them. One statement more. Nothing is shown under a site that has
    no page for runs.
    """

    change_form_template = "admin/temporalex_django/subject_change_form.html"

    @property
    def media(self) -> forms.Media:
        return super().media + forms.Media(css={"all": ["temporalex_django/admin.css"]})

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        # a template that is not rendered, because he may not see the object, asks for nothing
        runs = partial(self.workflow_runs, request, unquote(object_id))
        return super().change_view(request, object_id, form_url, {"workflow_runs": runs, **(extra_context or {})})

    def workflow_runs(self, request: HttpRequest, subject_id: str) -> list[SubjectRun]:
        """The newest runs about the object with that key that the user may see."""
        pages = self.admin_site._registry.get(Instance)  # noqa: SLF001 - 5.2 has no other way
        if not isinstance(pages, InstanceAdmin) or not pages.has_view_permission(request):
            return []
        subject = self.model(pk=self.model._meta.pk.to_python(subject_id))  # noqa: SLF001 - Django documents it
        about = Instance.objects.for_subject(subject).values("pk")
        there = pages.get_queryset(request).filter(pk__in=about).select_related("chain").order_by("-id")[:_MOST]
        return [self._shown(pages, request, run) for run in there if pages.has_view_permission(request, run)]

    def _shown(self, pages: InstanceAdmin, request: HttpRequest, run: Instance) -> SubjectRun:
        user, present = user_of(request), not_the_present(run) is None
        possible = tools(run, user, address=partial(pages.address_of, run, "do")) if present else []
        taken = panels(run, user, address=pages.address_of(run, "message")) if present else []
        return SubjectRun(
            run=run,
            address=pages.address_of(run),
            badge=status_badge(run.status, blocked=bool(run.blocked)),
            waits_for=shortened(
                ", ".join(redactor_for(user, run).redact_waiting_for(run.waiting_for or [], run.waits))
            ),
            tools=[tool for tool in possible if tool.why_not is None],
            messages=[panel for panel in taken if panel.why_not is None],
        )
