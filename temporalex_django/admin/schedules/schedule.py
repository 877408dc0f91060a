"""Schedules in the admin: the list, and the page of a schedule with its slots and operations."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import uuid4

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from temporalex_django.admin.background_tasks import task_addresses
from temporalex_django.admin.base import visible_runs
from temporalex_django.admin.filters import ChoicesFilter, WorkflowFilter
from temporalex_django.admin.schedules.detail import schedule_detail_context
from temporalex_django.admin.schedules.formatting import (
    STATE_LABELS,
    ScheduleAdminBase,
    can_manage,
    outcome_shapes,
    state_badge,
    triggered_message,
)
from temporalex_django.admin.schedules.views import BackfillView, DeleteScheduleView, EditScheduleView
from temporalex_django.console.actions import ReasonForm
from temporalex_django.console.base import (
    CappedPaginator,
    actor_of,
    format_time,
    idempotent_request,
    is_duplicate_request,
    refuse,
    shorten,
    user_of,
)
from temporalex_django.errors import ActionNotPermitted, ScheduleNotFound, TemporalexError
from temporalex_django.forms.payload_forms import TokenForm
from temporalex_django.models import Instance, Schedule, ScheduleSlot
from temporalex_django.operations.base import storage
from temporalex_django.operations.idempotency import DuplicateRequest
from temporalex_django.operations.schedules.describe import (
    STATES,
    describe_table,
    is_stalled,
    last_slots,
    next_fires,
    state_name,
)
from temporalex_django.operations.schedules.operations import (
    BackfillSchedule,
    DeleteSchedule,
    PauseSchedule,
    ScheduleAction,
    StopBackfill,
    TriggerSchedule,
    UnpauseSchedule,
)
from temporalex_django.operations.schedules.save import SaveSchedule

#: Attribute of a schedule in the list that holds its last slots.
_SLOTS_ATTRIBUTE = "listed_slots"


class ScheduleStateFilter(admin.SimpleListFilter):
    """List filter of schedules by their state, such as paused."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [*STATE_LABELS.items()]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        condition = STATES.get(self.value() or "")
        if condition is None:
            return queryset
        return queryset.filter(condition)


class OwnerFilter(ChoicesFilter):
    """List filter of schedules by their owner: code that declares them, or people who created them."""

    title = _("owner")
    parameter_name = "owner"
    column = "owner"

    def choices_from_code(self) -> list[tuple[str, Any]]:
        return [*Schedule.Owner.choices]


class ScheduleChangeList(ChangeList):
    """The list of schedules in the admin; it reads the last slots of all schedules of a page in two more statements."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        rows = [*self.result_list]
        slots = last_slots(rows, alias=storage().alias)
        for row in rows:
            setattr(row, _SLOTS_ATTRIBUTE, slots[row.pk])
        self.result_list = rows


class TriggerForm(TokenForm, ReasonForm):
    """The form that triggers a schedule: a reason, and a hidden token.

    The token prevents that a form which is posted twice starts two runs.
    """


@admin.register(Schedule)
class ScheduleAdmin(ScheduleAdminBase):
    """The admin pages of schedules: a list, and for each a page with its next times, its slots and its operations."""

    list_display = ("schedule", "times", "state", "next_fire", "outcomes")
    list_display_links = ("schedule",)
    list_filter = (ScheduleStateFilter, OwnerFilter, WorkflowFilter)
    search_fields = ("name__icontains", "workflow__icontains", "task__icontains")
    search_help_text = _("Part of a schedule's name, of a workflow's name or of a task's path")
    ordering = ("name",)
    paginator = CappedPaginator

    # -- list ----------------------------------------------------------------------------------------------------------

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return ScheduleChangeList

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        return can_manage(user_of(request), SaveSchedule.name)

    @admin.display(description=_("schedule"), ordering="name")
    def schedule(self, row: Schedule) -> SafeString:
        under = f"{row.workflow or row.task} · {row.get_owner_display()}"
        return format_html('{}<span class="tx-under">{}</span>', shorten(row.name), under)

    @admin.display(description=_("when"))
    def times(self, row: Schedule) -> SafeString | str:
        words = shorten(describe_table(row))
        if row.error:
            return format_html('{}<span class="tx-under tx-problem">{}</span>', words, shorten(row.error))
        return words

    @admin.display(description=_("state"))
    def state(self, row: Schedule) -> SafeString:
        name = state_name(row)
        reason = row.pause_reason
        if name == "paused" and row.paused_by_failures:
            reason = str(_("Paused automatically after failures."))
        if name != "paused" or not reason:
            return state_badge("stalled" if name == "active" and is_stalled(getattr(row, _SLOTS_ATTRIBUTE)) else name)
        return format_html('{}<span class="tx-under">{}</span>', state_badge(name), shorten(reason))

    @admin.display(description=_("next fire"), ordering="next_at")
    def next_fire(self, row: Schedule) -> SafeString | str:
        instants: list[datetime] = []
        if state_name(row) == "active":
            instants = next_fires(row, 1)
        return format_time(instants[0]) if instants else "–"

    @admin.display(description=_("last ten"))
    def outcomes(self, row: Schedule) -> SafeString | str:
        slots: list[ScheduleSlot] = getattr(row, _SLOTS_ATTRIBUTE)
        return outcome_shapes(slots, row.tz)

    # -- one schedule --------------------------------------------------------------------------------------------------

    def get_urls(self) -> list[Any]:
        """Return the URLs of the views of schedules, followed by the URLs of Django's ``ModelAdmin``.

        The order matters: Django's last pattern matches every URL.
        """
        view = self.admin_site.admin_view
        pages: list[tuple[str, Callable[..., HttpResponse]]] = [
            ("edit", EditScheduleView(self)),
            ("pause", self.pause_view),
            ("unpause", self.unpause_view),
            ("trigger", self.trigger_view),
            ("backfill", BackfillView(self)),
            ("stop-backfill", self.stop_backfill_view),
            ("delete", DeleteScheduleView(self)),
        ]
        return [
            path("add/", view(EditScheduleView(self)), name="temporalex_django_schedule_add"),
            *(
                path(f"<path:object_id>/{name}/", view(page), name=f"temporalex_django_schedule_{name}")
                for name, page in pages
            ),
            *super().get_urls(),
        ]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the page of a schedule.

        A POST is refused, because the form on the page of ``EditScheduleView`` saves changes.
        """
        row = self.find_schedule(request, unquote(object_id))
        if row is None:
            return self.schedule_not_found(request, object_id)
        if request.method not in ("GET", "HEAD"):
            refuse(request, SaveSchedule.name, str(_("You cannot change a schedule here. Use its actions instead.")))
        context = schedule_detail_context(
            row,
            page=request.GET.get("p", ""),
            alias=storage().alias,
            by=actor_of(request),
            run_address=lambda ids: self._run_addresses(request, ids),
            task_address=lambda ids: task_addresses(self.admin_site, ids),
        )
        can_change = row.owner == Schedule.Owner.PEOPLE and can_manage(user_of(request), SaveSchedule.name)
        can_delete = row.owner == Schedule.Owner.PEOPLE or row.gone_since is not None
        return self.render_page(
            request,
            "change_form.html",
            title=row.name,
            row=row,
            can_manage=can_manage(user_of(request), PauseSchedule.name),
            can_change=can_change,
            can_delete=can_delete and can_manage(user_of(request), DeleteSchedule.name),
            can_backfill=can_manage(user_of(request), BackfillSchedule.name),
            pause_form=ReasonForm(auto_id="pause_%s"),
            trigger_form=TriggerForm(auto_id="trigger_%s"),
            **{**context, **(extra_context or {})},
        )

    def _run_addresses(self, request: HttpRequest, run_ids: list[str]) -> dict[str, str]:
        """Return the URLs by run id, without runs that the user may not see."""
        if not self.admin_site.is_registered(Instance):
            return {}
        restricted_runs = visible_runs(self.admin_site, request)
        if restricted_runs is not None:
            run_ids = [str(key) for key in restricted_runs.filter(pk__in=run_ids).values_list("pk", flat=True)]
        page = f"{self.admin_site.name}:temporalex_django_instance_change"
        return {run_id: reverse(page, args=[run_id]) for run_id in run_ids}

    def pause_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Pause the schedule on a POST, and redirect to its page; until the pause ends, its slots start no runs."""
        return self._operate(
            request, object_id, PauseSchedule, str(_("Paused. The schedule will skip its slots until you unpause it."))
        )

    def unpause_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """End the pause of the schedule on a POST, and redirect to its page."""
        return self._operate(request, object_id, UnpauseSchedule, str(_("Unpaused. The schedule will fire again.")))

    def stop_backfill_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Stop the backfill of the schedule on a POST, and redirect to its page."""
        done = str(_("The backfill has been stopped. Slots that are already waiting will still be started."))
        return self._operate(request, object_id, StopBackfill, done)

    def _operate(
        self, request: HttpRequest, object_id: str, action: type[ScheduleAction[Any]], success_message: str
    ) -> HttpResponse:
        """Perform the operation on a POST. The page of the schedule shows a refusal."""
        row = self.find_schedule(request, object_id)
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if row is None:
            return self.schedule_not_found(request, object_id)
        form = ReasonForm(request.POST)
        if not form.is_valid():
            messages.error(request, " ".join(map(str, form.errors["reason"])))
            return HttpResponseRedirect(self.address_of(row))
        try:
            action(row.name, reason=form.cleaned_data["reason"], by=actor_of(request)).execute()
        except ActionNotPermitted as exc:
            raise PermissionDenied(str(exc)) from exc
        except ScheduleNotFound:
            return self.schedule_not_found(request, object_id)
        except TemporalexError as exc:
            messages.error(request, exc.message)
        else:
            messages.success(request, success_message)
        return HttpResponseRedirect(self.address_of(row))

    def trigger_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Fire the schedule now on a POST, and redirect to its page with the outcome as a message."""
        row = self.find_schedule(request, object_id)
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if row is None:
            return self.schedule_not_found(request, object_id)
        self.require_manage_permission(request, TriggerSchedule.name)
        form = TriggerForm(request.POST)
        if form.is_valid() and self._is_first_post(request, form.cleaned_data["token"]):
            self._trigger(request, row, reason=form.cleaned_data["reason"])
        else:
            messages.info(request, _("This form was already submitted, so nothing was started this time."))
        return HttpResponseRedirect(self.address_of(row))

    def _is_first_post(self, request: HttpRequest, token: str) -> bool:
        """Store the token. False means that the form was posted twice, so that the second post must do nothing."""
        if is_duplicate_request(request, token):
            return False
        # Committed before the trigger, and not with it: functions of the project must run outside of a transaction.
        try:
            with idempotent_request(request, token).run_once() as answer:
                answer.made = uuid4()
        except DuplicateRequest:
            return False
        return True

    def _trigger(self, request: HttpRequest, row: Schedule, *, reason: str) -> None:
        try:
            slot = TriggerSchedule(row.name, reason=reason, by=actor_of(request)).execute()
        except ActionNotPermitted as exc:
            raise PermissionDenied(str(exc)) from exc
        except ScheduleNotFound:
            messages.error(request, _("This schedule does not exist any more."))
        except TemporalexError as exc:
            messages.error(request, exc.message)
        else:
            is_done, text = triggered_message(slot)
            (messages.success if is_done else messages.warning)(request, text)
