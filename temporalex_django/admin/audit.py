"""The audit log in the admin: operator actions, read-only."""

from __future__ import annotations

from typing import Any, cast

from django.contrib import admin
from django.contrib.admin.utils import flatten
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from temporalex_django.access import VIEW_PAYLOAD, policy
from temporalex_django.admin.base import CappedPaginator, ReadOnlyAdmin, visible_runs
from temporalex_django.admin.filters import ActionFilter, AutomaticFilter
from temporalex_django.admin.formatting import format_time, shorten
from temporalex_django.authoring.authorization import Person
from temporalex_django.models import OperatorAction


@admin.register(OperatorAction)
class OperatorActionAdmin(ReadOnlyAdmin[OperatorAction]):
    """The admin list of the audit log: who did what to which run, why, and from where."""

    list_display = ("when", "action", "actor_label", "of_run", "reason_label", "source", "how")
    list_display_links = ("when", "action")
    list_filter = (AutomaticFilter, ActionFilter, "denied", "forced")
    list_select_related = False
    search_fields = ("workflow_id__startswith", "actor_name__startswith")
    search_help_text = _("The beginning of a run's id or of a person's name")
    ordering = ("-id",)
    paginator = CappedPaginator
    fields = (
        ("at", "action", "how"),
        ("actor_label", "source", "address", "request_id"),
        ("of_run", "workflow"),
        "reason",
        "details",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[OperatorAction]:
        """Return the operator actions on runs that the user may see; all of them for a user who may see all runs.

        Actions on deleted runs, and on no run, are left out for other users.
        """
        actions = super().get_queryset(request)
        runs = visible_runs(self.admin_site, request)
        # A deleted run matches no subquery of runs, so its rows drop out for everybody whose runs are restricted.
        if runs is None:
            return actions
        return actions.filter(run__in=runs.values("pk"))

    def get_fields(self, request: HttpRequest, obj: OperatorAction | None = None) -> Any:
        """Return the names of the fields of the page of an operator action.

        The network address is left out for users who may not see payloads.
        """
        user = cast("Person", request.user)
        operation = VIEW_PAYLOAD
        if obj is not None and obj.run is not None:
            operation = VIEW_PAYLOAD.of(obj.run)
        if policy().allows(user, operation):
            return self.fields
        return [tuple(n for n in row if n != "address") if isinstance(row, tuple) else row for row in self.fields]

    def get_readonly_fields(self, request: HttpRequest, obj: OperatorAction | None = None) -> Any:
        return flatten(self.fields)

    @admin.display(description=_("when"), ordering="id")
    def when(self, action: OperatorAction) -> SafeString:
        return format_time(action.at)

    @admin.display(description=_("why"))
    def reason_label(self, action: OperatorAction) -> str:
        return shorten(action.reason) or "–"

    @admin.display(description=_("who"), ordering="actor_name")
    def actor_label(self, action: OperatorAction) -> str:
        return action.actor_name or str(_("code"))

    @admin.display(description=_("how"), ordering="forced")
    def how(self, action: OperatorAction) -> str:
        if action.denied:
            return str(_("denied"))
        if action.forced:
            return str(_("forced"))
        return "–"

    @staticmethod
    def _of_schedule(action: OperatorAction) -> SafeString | str:
        name = action.details.get("schedule") if isinstance(action.details, dict) else None
        if not name:
            return "–"
        return format_html('{}<span class="tx-under">{}</span>', shorten(str(name)), _("schedule"))

    @admin.display(description=_("run"))
    def of_run(self, action: OperatorAction) -> SafeString | str:
        # An operation on a schedule is about no run.
        if action.run_id is None:
            return action.workflow_id or self._of_schedule(action)
        address = reverse(f"{self.admin_site.name}:temporalex_django_instance_change", args=[action.run_id])
        link = format_html('<a href="{}">{}</a>', address, shorten(action.workflow_id))
        return format_html('{}<span class="tx-under">{}</span>', link, action.workflow)
