"""Rows that are only read: background tasks, the audit log, outgoing messages."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, cast
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.utils import flatten
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import path
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from temporalex_django.access import VIEW, VIEW_PAYLOAD, Operation, policy
from temporalex_django.admin.base import AdminMount, M, ReadOnlyAdmin, visible_runs
from temporalex_django.admin.filters import (
    ActionFilter,
    AutomaticFilter,
)
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.console.actions import can_start_bulk
from temporalex_django.console.base import (
    CappedPaginator,
    actor_of,
    format_time,
    refuse,
    shorten,
    user_of,
)
from temporalex_django.errors import ActionNotPermitted, TemporalexError
from temporalex_django.models import (
    BulkJob,
    HumanTask,
    Instance,
    OperatorAction,
    Outbox,
    SwitchedOff,
    Worker,
)
from temporalex_django.operations.base import storage
from temporalex_django.operations.fleet.outgoing import DropOutgoing, SendAgain, describe_outgoing, outgoing_messages

# --- audit ------------------------------------------------------------------------------------------------------------
#
# The audit log in the admin: operator actions, read-only.


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
        address = AdminMount(self.admin_site).address("run", action.run_id)
        link = format_html('<a href="{}">{}</a>', address, shorten(action.workflow_id))
        return format_html('{}<span class="tx-under">{}</span>', link, action.workflow)


# --- outbox -----------------------------------------------------------------------------------------------------------
#
# Outgoing messages in the admin: a list, whose actions send dead letters again and drop messages.


class DeadLetterFilter(admin.SimpleListFilter):
    """The list filter that separates dead letters from messages that wait to be sent."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("waiting", _("Waiting")), ("dead", _("Dead letters"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Outbox]) -> QuerySet[Outbox]:
        if self.value() is None:
            return queryset
        return queryset.filter(failed__isnull=self.value() == "waiting")


class _OutboxList(ChangeList):
    """The list of outgoing messages, each with its problem as this user may see it."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = rows = [*self.result_list]
        for row, message in zip(rows, describe_outgoing(rows, user_of(request)), strict=True):
            row.problem_text = ": ".join(filter(None, (message.code, message.error)))


@admin.register(Outbox)
class OutboxAdmin(ReadOnlyAdmin[Outbox]):
    """The admin list of outgoing messages. Their bodies are payloads, and are not shown."""

    list_display = ("kind", "destination", "run_name", "sender", "waiting_since", "tries", "problem")
    list_display_links = None
    list_filter = (DeadLetterFilter, "destination", "kind")
    ordering = ("id",)
    actions = ("send_again", "drop")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Outbox]:
        """Return the messages about runs that the user may see."""
        return outgoing_messages(storage().alias, user_of(request))

    @admin.display(description=_("run"))
    def run_name(self, message: Any) -> str:
        return f"{message.workflow or ''} {message.workflow_id or ''}".strip()

    @admin.display(description=_("since"), ordering="created_at")
    def waiting_since(self, message: Outbox) -> SafeString:
        return format_time(message.created_at)

    @admin.display(description=_("problem"))
    def problem(self, message: Any) -> str:
        """Return why the message is a dead letter, or what its last try has met."""
        return str(message.problem_text)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return _OutboxList

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Return True if the user may send messages again and drop them."""
        operation = Operation(action=SendAgain.name, permission=f"{APP}.{SendAgain.permission}")
        return policy().allows(user_of(request), operation)

    @admin.action(description=_("Send again"), permissions=["operate"])
    def send_again(self, request: HttpRequest, queryset: QuerySet[Outbox]) -> None:
        """Send the selected dead letters again."""
        self._execute(request, queryset, SendAgain)

    @admin.action(description=_("Drop"), permissions=["operate"])
    def drop(self, request: HttpRequest, queryset: QuerySet[Outbox]) -> None:
        """Drop the selected messages."""
        self._execute(request, queryset, DropOutgoing)

    def _execute(self, request: HttpRequest, queryset: QuerySet[Outbox], action: type[SendAgain]) -> None:
        done = 0
        for pk in queryset.values_list("pk", flat=True):
            try:
                action(pk, by=actor_of(request)).execute()
            except ActionNotPermitted as exc:
                raise PermissionDenied(str(exc)) from exc
            except TemporalexError as exc:
                messages.error(request, exc.message)
            else:
                done += 1
        if done:
            texts = ngettext("%(count)d message was processed.", "%(count)d messages were processed.", done)
            messages.success(request, texts % {"count": done})


# --- entries of the console -------------------------------------------------------------------------------------------
#
# Entries in the admin of rows whose pages are in the console.


class ConsoleEntryAdmin(ReadOnlyAdmin[M]):
    """Base class of the entries in the admin of rows whose pages are in the console; ``page`` names that page."""

    page: str

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view
        return [
            path("", view(self.changelist_view), name=f"temporalex_django_{self.opts.model_name}_changelist"),
            # Addresses of bookmarks.
            path("<path:rest>", view(self.old_view)),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Redirect to the page of the console."""
        if not self.has_view_permission(request):
            refuse(request, VIEW.action, str(_("You may not see this.")))
        # Without runs, the site has no console.
        if not self.admin_site.is_registered(Instance):
            raise Http404
        return HttpResponseRedirect(AdminMount(self.admin_site).address(self.page))

    def old_view(self, request: HttpRequest, rest: str) -> HttpResponse:
        """Redirect from an older address of a page, such as ``<id>/change/``."""
        del rest
        return self.changelist_view(request)


@admin.register(BulkJob)
class BulkJobAdmin(ConsoleEntryAdmin[BulkJob]):
    """The entry of bulk jobs in the admin, which leads to the console."""

    page = "jobs"

    def has_view_permission(self, request: HttpRequest, obj: BulkJob | None = None) -> bool:
        return can_start_bulk(user_of(request))

    def old_view(self, request: HttpRequest, rest: str) -> HttpResponse:
        with suppress(ValueError):
            return HttpResponseRedirect(AdminMount(self.admin_site).address("job", UUID(rest.partition("/")[0])))
        return super().old_view(request, rest)


@admin.register(Worker)
class WorkerAdmin(ConsoleEntryAdmin[Worker]):
    """The entry of workers in the admin, which leads to the console."""

    page = "workers"


@admin.register(SwitchedOff)
class SwitchedOffAdmin(ConsoleEntryAdmin[SwitchedOff]):
    """The entry of switches in the admin, which leads to the console."""

    page = "switches"


@admin.register(HumanTask)
class HumanTaskAdmin(ConsoleEntryAdmin[HumanTask]):
    """The entry of human tasks in the admin, which leads to the console and to the page of a task."""

    page = "desk"

    def get_urls(self) -> list[Any]:
        change = self.admin_site.admin_view(self.change_view)
        return [
            path("<path:object_id>/change/", change, name="temporalex_django_humantask_change"),
            *super().get_urls(),
        ]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Redirect to the page of the task."""
        return self.old_view(request, object_id)

    def has_view_permission(self, request: HttpRequest, obj: HumanTask | None = None) -> bool:
        return request.user.is_authenticated

    def has_module_permission(self, request: HttpRequest) -> bool:
        return request.user.is_authenticated

    def old_view(self, request: HttpRequest, rest: str) -> HttpResponse:
        with suppress(ValueError):
            task = UUID(rest.partition("/")[0])
            return HttpResponseRedirect(AdminMount(self.admin_site).task_address(str(task)))
        return super().old_view(request, rest)
