"""Schedules: what became of the last slots of each, when it fires next, and its operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import uuid4

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Page
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from temporalex_django.access import Operation, policy, runs_for
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.authoring.schedules.slots import instants_of, load_zone
from temporalex_django.console.actions import ReasonForm
from temporalex_django.console.base import (
    CappedPaginator,
    actor_of,
    format_payload,
    format_time,
    idempotent_request,
    is_duplicate_request,
    posted_data,
    refuse,
    user_of,
)
from temporalex_django.console.live import MARK, is_poll, is_unchanged, keep, mark_of, unchanged
from temporalex_django.console.mount import ConsoleView, Mount
from temporalex_django.console.schedule_rows import (
    STATE_LABELS,
    fire_times,
    schedule_facts,
    slot_row,
    slot_strip,
    state_badge,
    summary_text,
    time_text,
    triggered_message,
)
from temporalex_django.errors import ActionNotPermitted, ScheduleNotFound, TemporalexError
from temporalex_django.forms.payload_forms import TokenForm
from temporalex_django.forms.schedule_fields import WallTimeField
from temporalex_django.models import Schedule, ScheduleSlot
from temporalex_django.operations.base import storage
from temporalex_django.operations.idempotency import DuplicateRequest
from temporalex_django.operations.schedules.describe import (
    STATES,
    SlotDescription,
    describe_slots,
    describe_table,
    filter_schedules,
    is_stalled,
    last_slots,
    load_stalls,
    may_view_args,
    next_fires,
    read_args,
    slots_of,
    state_name,
    troubled_schedules,
)
from temporalex_django.operations.schedules.operations import (
    VIEW_SCHEDULE,
    BackfillPreview,
    BackfillSchedule,
    DeleteSchedule,
    PauseSchedule,
    ScheduleAction,
    TriggerSchedule,
    preview_backfill,
)
from temporalex_django.operations.schedules.save import SaveSchedule
from temporalex_django.operations.schedules.store import backfill_of
from temporalex_django.present.schedule_diagnosis import schedule_diagnoses

_MANAGE = f"{APP}.{ScheduleAction.permission}"
#: Slots of a strip, times that a page names, and rows of the tables.
_STRIP_LENGTH, _FIRES_SHOWN, _SLOTS_SHOWN, _PAGE_SIZE = 30, 5, 50, 20
#: The view of the schedules that do not run as planned, which the overview counts.
_TROUBLE = "trouble"


def can_manage(user: Person, action_name: str) -> bool:
    """Return True if the user may perform the operation with that name on schedules."""
    return policy().allows(user, Operation(action=action_name, permission=_MANAGE))


def require_manage_permission(request: HttpRequest, action_name: str) -> None:
    """Raise ``PermissionDenied`` if the user may not perform this operation on schedules; the audit log records it.

    ``action_name`` is the name of the operation.
    """
    if not can_manage(user_of(request), action_name):
        error = _("You may not manage schedules: this requires the permission %(wanted)s.")
        refuse(request, action_name, error % {"wanted": _MANAGE})


class _ScheduleView(ConsoleView):
    """Base class of the pages of schedules: they need the permission to view schedules."""

    section = "schedules"
    operation = VIEW_SCHEDULE

    def find_schedule(self, request: HttpRequest, pk: int) -> Schedule:
        """Return the schedule with that key. Raises ``Http404`` if there is none or the user may not see it."""
        row = self.mount.visible_schedules(request).filter(pk=pk).first()
        if row is None:
            raise Http404
        return row

    def addresses(self, request: HttpRequest, slots: Sequence[SlotDescription]) -> dict[str, str]:
        """Return the URLs of the runs and tasks of slots by their ids, without those that the user may not open."""
        run_ids = {slot.run_id for slot in slots if slot.run_id is not None}
        runs = self.mount.visible_runs(request)
        if runs is not None and run_ids:
            run_ids = {str(key) for key in runs.filter(pk__in=run_ids).values_list("pk", flat=True)}
        addresses = {run_id: self.mount.run_address(run_id) for run_id in run_ids}
        for slot in slots:
            if slot.task_id is not None:
                addresses[slot.task_id] = self.mount.background_task_address(request, slot.task_id)
        return addresses


class ScheduleListView(_ScheduleView):
    """The list of schedules, each with a strip of its last slots."""

    template = "temporalex_django/console/schedules.html"

    def respond(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        user = user_of(request)
        query = {name: request.GET.get(name, "").strip() for name in ("state", "owner", "workflow", "q")}
        number = request.GET.get("p") or "1"
        key = ("schedules", storage().alias, self.mount.namespace, getattr(user, "pk", None), number, *query.values())
        page, slots = keep(key, lambda: self._read(request, query, number), fresh=not is_poll(request))
        addresses = self.addresses(request, [slot for described in slots.values() for slot in described])
        rows = [self._row(row, slots[row.pk], addresses) for row in page.object_list]
        facts = [(row["row"].pk, *row["facts"]) for row in rows]
        if is_poll(request) and is_unchanged(request, facts, timezone.now()):
            return unchanged()
        chosen = {name: value for name, value in query.items() if value}
        labels = {"": _("All"), _TROUBLE: _("In trouble"), **STATE_LABELS}
        context = {
            "title": _("Schedules"),
            "page": page,
            "rows": rows,
            "query": query,
            "views": [
                {
                    "label": labels[state],
                    "address": self.mount.address("schedules", query={**chosen, "state": state}),
                    "is_current": state == query["state"],
                }
                for state in ("", _TROUBLE, *STATES)
            ],
            "owners": Schedule.Owner.choices,
            "may_backfill": can_manage(user, BackfillSchedule.name),
            "add_address": self.mount.schedule_form_address(request) if can_manage(user, SaveSchedule.name) else "",
            "page_address": self.mount.address("schedules", query={**chosen, "p": ""}),
            "poll_address": self.mount.address(
                "schedules", query={**chosen, "p": page.number, MARK: mark_of(facts, None)}
            ),
            "announcement": ngettext("%(count)d schedule", "%(count)d schedules", page.paginator.count)
            % {"count": page.paginator.count},
        }
        return self.render(request, context)

    def _read(
        self, request: HttpRequest, query: Mapping[str, str], number: str
    ) -> tuple[Page[Schedule], dict[int, list[SlotDescription]]]:
        """Return a page of the schedules, and their last slots by their keys. Eight reads at most."""
        alias = storage().alias
        page: Page[Schedule] = CappedPaginator(
            _select(self.mount.visible_schedules(request), query), _PAGE_SIZE
        ).get_page(number)
        rows = page.object_list = [*page.object_list]
        slots = last_slots(rows, alias=alias, limit=_STRIP_LENGTH)
        described = iter(
            describe_slots([slot for row in rows for slot in slots[row.pk]], user_of(request), alias=alias)
        )
        return page, {row.pk: [next(described) for _slot in slots[row.pk]] for row in rows}

    def _row(self, row: Schedule, slots: Sequence[SlotDescription], addresses: Mapping[str, str]) -> dict[str, Any]:
        state, reason = state_name(row), ""
        if state == "paused":
            reason = _("Paused automatically after failures.") if row.paused_by_failures else row.pause_reason
        instants = next_fires(row, 1) if state == "active" else []
        cells = {
            "badge": state_badge("stalled" if state == "active" and is_stalled(slots) else state),
            "reason": reason,
            "words": describe_table(row),
            "error": row.error,
            "next": format_time(instants[0]) if instants else "–",
            "strip": slot_strip(slots, addresses, row.tz),
        }
        return {
            **cells,
            "row": row,
            "facts": [*cells.values()],
            "address": self.mount.address("schedule", row.pk),
            "backfill_address": self.mount.address("backfill_schedule", row.pk),
        }


def _select(schedules: QuerySet[Schedule], query: Mapping[str, str]) -> QuerySet[Schedule]:
    """Return the schedules for which the parameters of the address hold. Unknown states and owners restrict nothing."""
    # Databases refuse some characters in parameters.
    if not all(value.isprintable() for value in query.values()):
        return schedules.none()
    if query["state"] == _TROUBLE:
        schedules = troubled_schedules(schedules, timezone.now(), alias=storage().alias)
    schedules = filter_schedules(
        schedules,
        state=query["state"] if query["state"] in STATES else "",
        owner=query["owner"] if query["owner"] in Schedule.Owner.values else "",
        workflow=query["workflow"],
    )
    if search := query["q"]:
        schedules = schedules.filter(
            Q(name__icontains=search) | Q(workflow__icontains=search) | Q(task__icontains=search)
        )
    return schedules.order_by("name")


class TriggerForm(TokenForm, ReasonForm):
    """The form that triggers a schedule: a reason, and a hidden token.

    The token prevents that a form which is posted twice starts two runs.
    """


class ScheduleView(_ScheduleView):
    """The page of a schedule: its last slots, its next ones, and its operations."""

    template = "temporalex_django/console/schedule.html"

    def respond(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        user, number = user_of(request), request.GET.get("p") or "1"
        key = ("schedule", storage().alias, self.mount.namespace, getattr(user, "pk", None), number, kwargs["schedule"])
        row, page, slots, stall = keep(
            key, lambda: self._read(request, kwargs["schedule"], number), fresh=not is_poll(request)
        )
        live = self._live_context(request, row, page, slots, stall)
        names = ("badge", "said", "strip", "fires", "backfill", "slots")
        facts = [row.error, *(str(live[name]) for name in names)]
        if is_poll(request) and is_unchanged(request, facts, timezone.now()):
            return unchanged()
        live["poll_address"] = self.mount.address(
            "schedule", row.pk, query={"p": page.number, MARK: mark_of(facts, None)}
        )
        if is_poll(request):
            return self.render(request, live)
        return self.render(request, {**live, **self._page_context(request, row)})

    def _read(
        self, request: HttpRequest, pk: int, number: str
    ) -> tuple[Schedule, Page[ScheduleSlot], list[SlotDescription], str]:
        """Return the schedule, a page of its slots, their descriptions, and why it leaves out its slots or nothing."""
        user, alias = user_of(request), storage().alias
        row = self.find_schedule(request, pk)
        page: Page[ScheduleSlot] = CappedPaginator(slots_of(row, alias=alias), _SLOTS_SHOWN).get_page(number)
        rows = page.object_list = [*page.object_list]
        stalls = []
        if is_stalled(rows):
            stalls = load_stalls(alias, Schedule.objects.filter(pk=row.pk), runs_for(user, alias=alias))
        stall = next(schedule_diagnoses(stalls, timezone.now()), None)
        return row, page, describe_slots(rows, user, alias=alias), "" if stall is None else stall.text

    def _live_context(
        self,
        request: HttpRequest,
        row: Schedule,
        page: Page[ScheduleSlot],
        slots: Sequence[SlotDescription],
        stall: str,
    ) -> dict[str, Any]:
        """Return what the fragment shows. It has no payloads."""
        state, instants = state_name(row), next_fires(row, _FIRES_SHOWN)
        addresses = self.addresses(request, slots)
        summary = summary_text(row, state, instants[0] if instants else None, stall)
        return {
            "title": row.name,
            "row": row,
            "badge": state_badge("stalled" if stall else state),
            "state": state,
            "said": summary,
            "fires": fire_times(instants, row.tz),
            "zone": row.tz,
            "viewer_zone": timezone.get_current_timezone_name(),
            "backfill": backfill_of(row.backfill),
            # The strip is about the newest slots.
            "strip": slot_strip(slots[:_STRIP_LENGTH], addresses, row.tz) if page.number == 1 else "",
            "page": page,
            "slots": [slot_row(slot, addresses, row.tz) for slot in slots],
            "announcement": summary,
        }

    def _page_context(self, request: HttpRequest, row: Schedule) -> dict[str, Any]:
        """Return what the page shows besides its fragment: the definition with the input, and the operations."""
        user = user_of(request)
        is_own = row.owner == Schedule.Owner.PEOPLE
        actions = ("pause", "unpause", "trigger", "backfill", "stop_backfill", "delete")
        form_address = self.mount.schedule_form_address(request, row)
        return {
            "words": describe_table(row),
            "facts": schedule_facts(row),
            "args": self._input(request, row),
            "has_class": bool(row.task) or row.workflow in workflows.registry,
            "list_address": self.mount.address("schedules"),
            "can_manage": can_manage(user, PauseSchedule.name),
            "can_backfill": can_manage(user, BackfillSchedule.name),
            "can_delete": (is_own or row.gone_since is not None) and can_manage(user, DeleteSchedule.name),
            "edit_address": form_address if is_own and can_manage(user, SaveSchedule.name) else "",
            "addresses": {name: self.mount.address(f"{name}_schedule", row.pk) for name in actions},
            "pause_form": ReasonForm(auto_id="pause_%s"),
            "trigger_form": TriggerForm(auto_id="trigger_%s"),
            "changed": format_time(row.changed_at),
            "paused": None if row.paused_at is None else format_time(row.paused_at),
            "gone": None if row.gone_since is None else format_time(row.gone_since),
        }

    def _input(self, request: HttpRequest, row: Schedule) -> dict[str, Any]:
        """Name the function that makes the input; ``hidden`` is True if the user may not see it."""
        payload = None
        is_visible = may_view_args(row, user_of(request))
        if is_visible and row.args is not None:
            payload = format_payload(read_args(row, actor_of(request)))
        return {"function": row.arguments_function, "payload": payload, "hidden": not is_visible}


# --- actions ----------------------------------------------------------------------------------------------------------
#
# What the buttons of a schedule do. Each operation checks the permission itself.


class ScheduleActionView(_ScheduleView):
    """A view behind a button: a POST executes an operation on a schedule, and leads back to its page."""

    template = ""
    methods = ("POST",)

    def __init__(self, mount: Mount, action: type[ScheduleAction[Any]], success_message: Any = "") -> None:
        """Perform ``action``, and show the message afterwards."""
        super().__init__(mount)
        self.action, self.success_message = action, success_message

    def respond(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        row = self.find_schedule(request, kwargs["schedule"])
        form = ReasonForm(request.POST)
        if not form.is_valid():
            messages.error(request, " ".join(map(str, form.errors["reason"])))
        else:
            self.execute(request, row, form.cleaned_data["reason"])
        return HttpResponseRedirect(self.mount.address("schedule", row.pk))

    def execute(self, request: HttpRequest, row: Schedule, reason: str) -> None:
        """Execute the operation, and add a message about its outcome."""
        if self.perform(request, row, reason) is not None:
            messages.success(request, str(self.success_message))

    def perform(self, request: HttpRequest, row: Schedule, reason: str) -> tuple[Any] | None:
        """Return the result of the operation in a tuple. If it was refused, add a message and return None."""
        try:
            return (self.action(row.name, reason=reason, by=actor_of(request)).execute(),)
        except ActionNotPermitted as exc:
            raise PermissionDenied(str(exc)) from exc
        except ScheduleNotFound:
            raise Http404 from None
        except TemporalexError as exc:
            messages.error(request, exc.message)
            return None


class TriggerView(ScheduleActionView):
    """Fires a schedule now. A form that is posted twice starts one run."""

    def execute(self, request: HttpRequest, row: Schedule, reason: str) -> None:
        require_manage_permission(request, TriggerSchedule.name)
        form = TriggerForm(request.POST)
        if not form.is_valid() or not _is_first_post(request, form.cleaned_data["token"]):
            messages.info(request, _("This form was already submitted, so nothing was started this time."))
        elif (result := self.perform(request, row, reason)) is not None:
            is_done, text = triggered_message(result[0])
            (messages.success if is_done else messages.warning)(request, text)


def _is_first_post(request: HttpRequest, token: str) -> bool:
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


#: Name of the button that starts the backfill; the other button of the page shows the preview.
_CONFIRM = "_confirm"
_MAX_RATE = 6_000


class BackfillForm(ReasonForm):
    """The form that starts a backfill: a range of past times, and the number of starts per minute.

    The times are wall-clock times in the zone of the schedule.
    """

    start = WallTimeField(label=gettext_lazy("From"), label_suffix="")
    end = WallTimeField(
        label=gettext_lazy("To"), label_suffix="", help_text=gettext_lazy("Both ends of the range are included.")
    )
    per_minute = forms.IntegerField(
        min_value=1,
        max_value=_MAX_RATE,
        initial=60,
        label=gettext_lazy("Starts per minute"),
        label_suffix="",
        help_text=gettext_lazy("The maximum number of runs started per minute."),
    )
    field_order = ("start", "end", "per_minute", "reason")

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = super().clean() or self.cleaned_data
        if data.get("start") and data.get("end") and data["start"] > data["end"]:
            self.add_error("end", _("It must not be earlier than the start of the range."))
        return data

    def instants(self, zone_name: str) -> tuple[datetime, datetime]:
        """Return ``(start, end)`` of the range of a valid form, as aware times.

        ``zone_name`` is the zone of the schedule. An hour that a clock change repeats belongs to the range as a whole.
        Raises ``ScheduleInvalid`` for an unknown zone.
        """
        zone = load_zone(zone_name)
        first = instants_of(self.cleaned_data["start"], zone, gap="shift", fold="first")
        last = instants_of(self.cleaned_data["end"], zone, gap="shift", fold="second")
        return first[0], last[0]


class BackfillView(_ScheduleView):
    """The page that backfills a schedule in two steps.

    The first POST shows how many slots (times to fire) of the past range would be started, the second starts them.
    """

    template = "temporalex_django/console/backfill.html"
    methods = ("GET", "HEAD", "POST")

    def respond(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        row = self.find_schedule(request, kwargs["schedule"])
        require_manage_permission(request, BackfillSchedule.name)
        form = BackfillForm(posted_data(request))
        if not form.is_bound or not form.is_valid():
            return self._respond(request, row, form)
        try:
            start, end = form.instants(row.tz)
            if _CONFIRM in request.POST:
                return self._backfill(request, row, form, start, end)
            preview = preview_backfill(row, start, end, alias=storage().alias)
        except ActionNotPermitted as exc:
            raise PermissionDenied(str(exc)) from exc
        except TemporalexError as exc:
            form.add_error(None, exc.message)
            return self._respond(request, row, form, status=409)
        return self._respond(request, row, form, preview=preview)

    def _backfill(
        self, request: HttpRequest, row: Schedule, form: BackfillForm, start: datetime, end: datetime
    ) -> HttpResponse:
        data = form.cleaned_data
        preview = BackfillSchedule(
            row.name,
            start=start,
            end=end,
            per_minute=data["per_minute"],
            reason=data["reason"],
            by=actor_of(request),
        ).execute()
        text = ngettext(
            "The backfill of %(n)d slot has begun.", "The backfill of %(n)d slots has begun.", preview.to_start
        )
        messages.success(request, text % {"n": preview.to_start})
        return HttpResponseRedirect(self.mount.address("schedule", row.pk))

    def _respond(
        self,
        request: HttpRequest,
        row: Schedule,
        form: BackfillForm,
        *,
        preview: BackfillPreview | None = None,
        status: int = 200,
    ) -> HttpResponse:
        context = {
            "title": _("Backfill %(name)s") % {"name": row.name},
            "row": row,
            "form": form,
            "back": self.mount.address("schedule", row.pk),
            **_preview_texts(row, preview),
        }
        return self.render(request, context, status=status)


def _preview_texts(row: Schedule, preview: BackfillPreview | None) -> dict[str, Any]:
    if preview is None:
        return {"preview": None}
    zone = load_zone(row.tz)
    first_and_last = [time_text(at, zone) for at in (preview.first, preview.last) if at is not None]
    is_parallel = row.overlap == Schedule.OverlapPolicy.ALLOW_ALL
    return {"preview": preview, "ends": first_and_last, "is_parallel": is_parallel}


class DeleteScheduleView(_ScheduleView):
    """The page that deletes a schedule after a confirmation."""

    template = "temporalex_django/console/delete_schedule.html"
    methods = ("GET", "HEAD", "POST")

    def respond(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        row = self.find_schedule(request, kwargs["schedule"])
        require_manage_permission(request, DeleteSchedule.name)
        form, status = ReasonForm(posted_data(request)), 200
        if form.is_bound and form.is_valid():
            try:
                DeleteSchedule(row.name, reason=form.cleaned_data["reason"], by=actor_of(request)).execute()
            except ActionNotPermitted as exc:
                raise PermissionDenied(str(exc)) from exc
            except TemporalexError as exc:
                form.add_error(None, exc.message)
                status = 409
            else:
                messages.success(request, _("Deleted %(name)s.") % {"name": row.name})
                return HttpResponseRedirect(self.mount.address("schedules"))
        context = {
            "title": _("Delete %(name)s") % {"name": row.name},
            "row": row,
            "form": form,
            "back": self.mount.address("schedule", row.pk),
        }
        return self.render(request, context, status=status)
