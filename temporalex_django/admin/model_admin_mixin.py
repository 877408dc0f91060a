"""A mixin for your own ``ModelAdmin`` that shows the runs about an object on its page."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.safestring import SafeString

from temporalex_django.access import redactor_for
from temporalex_django.admin.base import AdminMount
from temporalex_django.admin.instance import InstanceAdmin
from temporalex_django.console.actions import superseded_error
from temporalex_django.console.base import shorten, status_badge, user_of
from temporalex_django.console.run.messages import MessagePanel, message_panels
from temporalex_django.console.run.operator_views import ActionLink, run_action_links
from temporalex_django.models import Instance
from temporalex_django.present.formatting import localize_times

_MAX_RUNS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectRun:
    """A run that was started for an object, as the admin page of that object shows it.

    ``waits_for`` is a text that names what the run is waiting for. ``tools`` are buttons of the operations that are
    possible, and ``messages`` the messages that the user may send. ``address`` is the URL of the page of the run.
    """

    run: Instance
    address: str
    badge: SafeString
    waits_for: str
    tools: list[ActionLink]
    messages: list[MessagePanel]


class WorkflowAdminMixin(admin.ModelAdmin):  # type: ignore[type-arg] # generic in the stubs only
    """Mixin for your ``ModelAdmin`` that shows, below the form of an object, the newest runs started for it.

    Write ``class OrderAdmin(WorkflowAdminMixin, admin.ModelAdmin)``. The runs are those that were started with
    ``subject=order`` and that the user may see. Each has links to its page, to the messages that it accepts and to the
    operations that are possible. This takes one more statement. On an admin site without a page for runs, nothing is
    shown.
    """

    change_form_template = "admin/temporalex_django/subject_change_form.html"

    @property
    def media(self) -> forms.Media:
        return super().media + forms.Media(css={"all": ["temporalex_django/admin.css"]})

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        # A partial, which the template calls: without permission for the object it is not rendered, and no query runs.
        runs = partial(self.workflow_runs, request, unquote(object_id))
        return super().change_view(request, object_id, form_url, {"workflow_runs": runs, **(extra_context or {})})

    def workflow_runs(self, request: HttpRequest, subject_id: str) -> list[SubjectRun]:
        """Return the newest runs that were started for the object with this primary key and that the user may see."""
        instance_admin = self.admin_site._registry.get(Instance)  # noqa: SLF001 - 5.2 has no other way
        # A project can register an admin of its own for runs, which lacks the pages that the links lead to.
        if not isinstance(instance_admin, InstanceAdmin) or not instance_admin.has_view_permission(request):
            return []
        # Only the type and the key count, so the object is not read.
        subject = self.model(pk=self.model._meta.pk.to_python(subject_id))  # noqa: SLF001 - Django documents it
        run_ids = Instance.objects.for_subject(subject).values("pk")
        visible_runs = (
            instance_admin.get_queryset(request)
            .filter(pk__in=run_ids)
            .select_related("chain")
            .order_by("-id")[:_MAX_RUNS]
        )
        return [
            self._subject_run(request, run) for run in visible_runs if instance_admin.has_view_permission(request, run)
        ]

    def _subject_run(self, request: HttpRequest, run: Instance) -> SubjectRun:
        # An earlier run of a chain cannot be operated; its page leads to the newest one.
        user, is_current, mount = user_of(request), superseded_error(run) is None, AdminMount(self.admin_site)
        links = []
        if is_current:
            links = run_action_links(run, user, address=partial(mount.address, "do", run.pk))
        panels = []
        if is_current:
            panels = message_panels(run, user, address=mount.address("message", run.pk))
        return SubjectRun(
            run=run,
            address=mount.address("run", run.pk),
            badge=status_badge(run.status, blocked=bool(run.blocked)),
            waits_for=shorten(
                localize_times(
                    ", ".join(redactor_for(user, run).redact_waiting_for(run.waiting_for or [], run.waits)),
                    timezone.now(),
                )
            ),
            tools=[link for link in links if link.why_not is None],
            messages=[panel for panel in panels if panel.why_not is None],
        )
