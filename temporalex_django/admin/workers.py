"""Workers and switches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.utils import flatten
from django.core.exceptions import PermissionDenied
from django.db import connections, transaction
from django.db.models import Case, Exists, F, QuerySet, TextField, Value, When
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import path, reverse
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from temporalex_django.access import VIEW, VIEW_PAYLOAD, Operation, policy
from temporalex_django.admin.base import ReadOnlyAdmin, visible_runs
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.console.actions import ReasonForm
from temporalex_django.console.base import actor_of, badge, format_duration, format_time, user_of
from temporalex_django.errors import ActionNotPermitted, TemporalexError, WorkerNotFound
from temporalex_django.forms.payload_forms import NoteFormField
from temporalex_django.models import ActivityTask, Instance, LostWorker, SwitchedOff, Worker
from temporalex_django.operations.base import storage
from temporalex_django.operations.fleet.stats import MAX_COUNT, all_queue_figures
from temporalex_django.operations.fleet.switches import (
    DrainWorker,
    SwitchOff,
    SwitchOn,
    UndrainWorker,
    active_switches,
    redact_holds,
    switchable_names,
)
from temporalex_django.operations.read.project_state import lost_workers
from temporalex_django.operations.runs.control import RunDue

# --- workers ----------------------------------------------------------------------------------------------------------
#
# The workers and the queues in the admin.


_MAX_ACTIVITIES = 50


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin[Worker]):
    """The admin pages of workers, with the queues and the code of each and the state of its lease."""

    list_display = (
        "name",
        "lease",
        "kind",
        "queue_names",
        "workflow_names",
        "runs",
        "activities",
        "turns",
        "skew",
        "beat_at",
    )
    search_fields = ("host__startswith",)
    search_help_text = _("The beginning of a host name")
    ordering = ("-beat_at",)
    change_list_template = "admin/temporalex_django/worker/change_list.html"
    change_form_template = "admin/temporalex_django/worker/change_form.html"
    fields = (
        ("name", "lease", "kind"),
        "running_activities",
        "lacks",
        ("host", "pid", "process_identity"),
        "queues",
        "workflows",
        "activity_names",
        ("runs", "activities", "turns"),
        ("started_at", "beat_at", "expires_at"),
        "drained_at",
        ("skew", "session_lock", "buried_at"),
        "id",
    )

    def get_readonly_fields(self, request: HttpRequest, obj: Worker | None = None) -> Any:
        return flatten(self.fields)

    # -- draining ------------------------------------------------------------------------------------------------------

    def get_urls(self) -> list[Any]:
        """Return the URLs of the operations on workers, followed by the URLs of Django's ``ModelAdmin``.

        The order matters: Django's last pattern matches every URL.
        """
        site = self.admin_site
        due = site.admin_view(self.run_due_view)
        # Turns commit by themselves, so ATOMIC_REQUESTS must not wrap this view. Exempt every database: ours comes from
        # settings that may be wrong, and reporting that is left to the system checks.
        for alias in connections:
            due = transaction.non_atomic_requests(using=alias)(due)
        return [
            path("run-due/", due, name="temporalex_django_worker_run_due"),
            path("<path:object_id>/drain/", site.admin_view(self.drain_view), name="temporalex_django_worker_drain"),
            path(
                "<path:object_id>/undrain/", site.admin_view(self.undrain_view), name="temporalex_django_worker_undrain"
            ),
            *super().get_urls(),
        ]  # fmt: skip

    def drain_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Drain the worker on a POST: it finishes the work that it has and takes no more. Redirects to its page."""
        done = _("The worker will stop taking new work within a few seconds. It will finish what it is running.")
        return self._operate(request, object_id, DrainWorker, done)

    def undrain_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Let a drained worker take work again, on a POST, and redirect to its page."""
        done = _("The worker will take new work again within a few seconds.")
        return self._operate(request, object_id, UndrainWorker, done)

    def _operate(
        self, request: HttpRequest, object_id: str, action: type[DrainWorker], success_message: Any
    ) -> HttpResponse:
        """Drain or undrain the worker on a POST. Its page shows a refusal."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        form = ReasonForm(request.POST)
        if not form.is_valid():
            messages.error(request, " ".join(map(str, form.errors["reason"])))
        else:
            try:
                action(object_id, reason=form.cleaned_data["reason"], by=actor_of(request)).execute()
            except ActionNotPermitted as exc:
                raise PermissionDenied(str(exc)) from exc
            except WorkerNotFound:
                return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined,no-any-return]
            except TemporalexError as exc:
                messages.error(request, exc.message)
            else:
                messages.success(request, success_message)
        # The permission to drain does not include the one to see workers; the list then denies access by itself.
        page, args = "changelist", []
        if self.has_view_permission(request):
            page, args = "change", [object_id]
        address = reverse(f"{self.admin_site.name}:temporalex_django_worker_{page}", args=args)
        return HttpResponseRedirect(address)

    def run_due_view(self, request: HttpRequest) -> HttpResponse:
        """Do all due work in the process of this request, on a POST, and redirect to the list of workers.

        A message says how many turns ran. This works only under ``DEBUG``, for development without a worker.
        """
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        form = ReasonForm(request.POST)
        if not form.is_valid():
            messages.error(request, " ".join(map(str, form.errors["reason"])))
        else:
            try:
                turns = RunDue(reason=form.cleaned_data["reason"], by=actor_of(request)).execute()
            except ActionNotPermitted as exc:
                raise PermissionDenied(str(exc)) from exc
            except TimeoutError as exc:
                messages.warning(request, _("%(why)s. Run the due work again.") % {"why": exc})
            except TemporalexError as exc:
                messages.error(request, exc.message)
            else:
                messages.success(
                    request,
                    ngettext("Ran %(n)d turn. Nothing is due now.", "Ran %(n)d turns. Nothing is due now.", turns)
                    % {"n": turns},
                )
        return HttpResponseRedirect(reverse(f"{self.admin_site.name}:temporalex_django_worker_changelist"))

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the page of a worker; users who may drain workers also get a form that does so."""
        operation = Operation(action=DrainWorker.name, permission=f"{APP}.{DrainWorker.permission}")
        form = None
        if policy().allows(user_of(request), operation):
            form = ReasonForm()
        return super().change_view(request, object_id, form_url, {"drain_form": form, **(extra_context or {})})

    @admin.display(description=_("worker"), ordering="host")
    def name(self, worker: Worker) -> str:
        return str(worker)

    @admin.display(description=_("state"), ordering="expires_at")
    def lease(self, worker: Worker) -> SafeString:
        if worker.buried_at is not None:
            return badge("gone", str(_("Dead")))
        if worker.drained_at is not None:
            return badge("terminated", str(_("Drained")))
        # Late, not dead: recovery declares a worker dead by observations of its own, not by this row (see decision 23).
        alive = worker.expires_at > timezone.now()
        if alive:
            return badge("alive", str(_("Alive")))
        return badge("gone", str(_("Late")))

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the list of workers, and above it the queues with their figures and the workers that were lost.

        Under ``DEBUG``, users who may use it get a button that does the due work in this process.
        """
        switch = switch_address_for(self.admin_site, user_of(request))
        queues = [
            {
                "switch": switch("queue", figures.queue),
                "figures": figures,
                # What nobody may take now waits for a person or for its turn, not for a worker.
                "lag": "" if figures.waiting_since is None else format_duration(timezone.now() - figures.waiting_since),
            }
            for figures in (all_queue_figures() if self.has_view_permission(request) else ())
        ]
        operation = Operation(action=RunDue.name, permission=f"{APP}.{RunDue.permission}")
        form = None
        if settings.DEBUG and policy().allows(user_of(request), operation):
            form = ReasonForm()
        context = {"queues": queues, "most": MAX_COUNT, "due_form": form}
        response = super().changelist_view(request, {**context, **(extra_context or {})})
        page_context = getattr(response, "context_data", None) or {}
        workers = [*page_context["cl"].result_list] if "cl" in page_context else None
        # The rows of the list say if a worker was lost; without any row, that has to be read.
        if workers is not None and (not workers or any(worker.is_any_lost for worker in workers)):
            may_view_runs = policy().allows(user_of(request), VIEW)
            runs = visible_runs(self.admin_site, request) if may_view_runs else Instance.objects.none()
            page_context["lost"] = lost_workers(storage().alias, now=timezone.now(), runs=runs)
        return response

    def get_queryset(self, request: HttpRequest) -> QuerySet[Worker]:
        return super().get_queryset(request).annotate(is_any_lost=Exists(LostWorker.objects.all()))

    @admin.display(description=_("running activities"))
    def running_activities(self, worker: Worker) -> str:
        """Return the names of the activities that the worker is running, oldest first, as text."""
        tasks = ActivityTask.objects.using(storage().alias).filter(owner=worker.epoch).order_by("started_at")
        now = timezone.now()
        descriptions = [
            f"{task.activity} ({format_duration(now - (task.started_at or now))})" for task in tasks[:_MAX_ACTIVITIES]
        ]
        return ", ".join(descriptions) or "–"

    @admin.display(description=_("missing classes"))
    def lacks(self, worker: Worker) -> str:
        """Return, as text, the workflow classes that other live workers of the same queues have and this worker lacks.

        A worker may have been deployed without one of the project's modules.
        """
        others = Worker.objects.using(storage().alias).filter(expires_at__gt=timezone.now(), buried_at=None)
        nearby_workers = [other for other in others.exclude(pk=worker.pk) if set(other.queues) & set(worker.queues)]
        return (
            ", ".join(sorted({name for other in nearby_workers for name in other.workflows} - set(worker.workflows)))
            or "–"
        )

    @admin.display(description=_("queues"))
    def queue_names(self, worker: Worker) -> str:
        return ", ".join(worker.queues)

    @admin.display(description=_("workflows"))
    def workflow_names(self, worker: Worker) -> str:
        names = sorted(worker.workflows)
        if len(names) <= 6:
            return ", ".join(names)
        return f"{', '.join(names[:6])}, … ({len(names)})"

    @admin.display(description=_("clock skew"), ordering="clock_skew")
    def skew(self, worker: Worker) -> str:
        return f"{worker.clock_skew:+.3f} s"


# --- switches ---------------------------------------------------------------------------------------------------------
#
# Switches in the admin: the list of those that are off, a form to switch off, and buttons to switch on.


class SwitchForm(forms.Form):
    """The form that switches off a queue, an activity or a workflow class in the admin.

    ``thing`` says which, as ``kind:name``. The choices are the names that this process or a live worker knows, and the
    name that the URL or the post contains.
    """

    thing = forms.ChoiceField(label=_("What"), label_suffix="")
    key = forms.CharField(required=False, max_length=200, widget=forms.HiddenInput)
    reason = NoteFormField(
        required=False, label=_("Reason"), label_suffix="",
        help_text=_("Shown to people whose runs are waiting, and in the audit log."),
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )  # fmt: skip

    def __init__(self, *args: Any, alias: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        groups: list[Any] = [
            (label, [(f"{kind}:{name}", name) for name in sorted(switchable_names(kind, alias=alias))])
            for kind, label in SwitchedOff.Switchable.choices
            if kind != SwitchedOff.Switchable.HOLD
        ]
        choice_keys = {value for _label, options in groups for value, _name in options}
        selected_key = str(self.data.get("thing") or self.initial.get("thing") or "")
        # Neither this process nor a live worker may know the name: what a link or a post names can be switched anyway.
        if selected_key.partition(":")[0] in SwitchedOff.Switchable.values and selected_key not in choice_keys:
            groups.append((selected_key, selected_key.partition(":")[2]))
        self.fields["thing"].choices = groups  # type: ignore[attr-defined] # a ChoiceField


def can_switch(user: Person) -> bool:
    """Return True if the user may switch queues, activities and workflow classes off and on."""
    return policy().allows(user, Operation(action=SwitchOff.name, permission=f"{APP}.{SwitchOff.permission}"))


def switch_address_for(site: admin.AdminSite, user: Person) -> Callable[[str, str], str | None]:
    """Return a function that returns the URL of the form which switches off a queue, an activity or a workflow class.

    The function takes the kind and the name, and returns None if the user may not use switches, or if the site has no
    page for them.
    """
    if not site.is_registered(SwitchedOff) or not can_switch(user):
        return lambda *_: None
    page = reverse(f"{site.name}:temporalex_django_switchedoff_changelist")
    return lambda kind, name: f"{page}?{urlencode({'thing': f'{kind}:{name}'})}"


@admin.register(SwitchedOff)
class SwitchedOffAdmin(ReadOnlyAdmin[SwitchedOff]):
    """The admin list of everything that is switched off, with a form and buttons to switch it off and on.

    Rows are added and deleted by ``off_view`` and ``on_view``, not by saving them.
    """

    list_display = ("name", "kind", "off_since", "by", "shown_reason")
    list_display_links = None
    ordering = ("kind", "name")
    change_list_template = "admin/temporalex_django/switchedoff/change_list.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[SwitchedOff]:
        """Return everything that is switched off, each with the reason that the user may see (``visible_reason``)."""
        reason: Any = F("reason")
        # The reason of a hold is the message of an error, which may quote payloads.
        if not policy().allows(user_of(request), VIEW_PAYLOAD):
            reason = Case(When(until=None, then=F("reason")), default=Value(""), output_field=TextField())
        active = active_switches(storage().alias).values("pk")
        return super().get_queryset(request).filter(pk__in=active).annotate(visible_reason=reason)

    @admin.display(description=_("reason"), ordering="visible_reason")
    def shown_reason(self, switch: SwitchedOff) -> str:
        return str(switch.visible_reason)  # type: ignore[attr-defined] # an annotation

    @admin.display(description=_("since"), ordering="since")
    def off_since(self, switch: SwitchedOff) -> SafeString:
        return format_time(switch.since)

    def get_urls(self) -> list[Any]:
        """Return the URLs of the views that switch off and on, followed by the URLs of Django's ``ModelAdmin``.

        The order matters: Django's last pattern matches every URL.
        """
        view = self.admin_site.admin_view
        return [
            path("off/", view(self.off_view), name="temporalex_django_switchedoff_off"),
            path("on/", view(self.on_view), name="temporalex_django_switchedoff_on"),
            *super().get_urls(),
        ]

    def off_view(self, request: HttpRequest) -> HttpResponse:
        """Switch a queue, an activity or a workflow class off on a POST: workers start no more work of it."""
        return self._operate(request, SwitchOff, _("Switched off. Workers will stop taking this work within a second."))

    def on_view(self, request: HttpRequest) -> HttpResponse:
        """Switch a queue, an activity or a workflow class on again on a POST: work that has waited continues."""
        return self._operate(request, SwitchOn, _("Switched on. Waiting work will continue within a second."))

    def _operate(self, request: HttpRequest, action: type[SwitchOff], success_message: Any) -> HttpResponse:
        """Execute the action on a POST. The list shows a refusal."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        form = SwitchForm(request.POST, alias=storage().alias)
        if not form.is_valid():
            messages.error(
                request, " ".join(str(error) for field_errors in form.errors.values() for error in field_errors)
            )
        else:
            cleaned_data = form.cleaned_data
            try:
                kind, _colon, name = cleaned_data["thing"].partition(":")
                options = {"reason": cleaned_data["reason"], "key": cleaned_data["key"]}
                switch = action(kind, name, **options, by=actor_of(request))
                switch.execute()
            except ActionNotPermitted as exc:
                raise PermissionDenied(str(exc)) from exc
            except TemporalexError as exc:
                messages.error(request, exc.message)
            else:
                messages.success(request, success_message)
                if switch.notice:
                    messages.warning(request, switch.notice)
        return HttpResponseRedirect(reverse(f"{self.admin_site.name}:temporalex_django_switchedoff_changelist"))

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show everything that is switched off; users who may use switches also get the form and the buttons.

        ``?thing=`` is the initial value of the form.
        """
        query: Any = request.GET.copy()
        thing = query.pop("thing", [""])[-1]
        # Django redirects with an error for a parameter that is no filter, so remove ours.
        request.GET = query
        is_allowed = can_switch(user_of(request))
        switches = []
        if is_allowed and self.has_view_permission(request):
            switches = redact_holds(active_switches(storage().alias), user_of(request))
        context: dict[str, Any] = {"switch_form": None, "off": switches}
        if is_allowed:
            context["switch_form"] = SwitchForm(alias=storage().alias, initial={"thing": thing})

        return super().changelist_view(request, {**context, **(extra_context or {})})
