"""Queues, workers and switches: what waits and for whom, what runs where, and what somebody has switched off."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import connections, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from temporalex_django.access import VIEW, Operation, policy
from temporalex_django.authoring.authorization import APP
from temporalex_django.console.actions import ReasonForm
from temporalex_django.console.base import actor_of, badge, format_time, user_of
from temporalex_django.console.live import MARK, is_poll, is_unchanged, keep, mark_of, unchanged
from temporalex_django.console.mount import ConsoleView, Mount, View
from temporalex_django.errors import ActionNotPermitted, TemporalexError, WorkerNotFound
from temporalex_django.forms.payload_forms import NoteFormField
from temporalex_django.models import ActivityTask, Instance, LostWorker, SwitchedOff, Worker
from temporalex_django.operations.base import storage
from temporalex_django.operations.fleet.stats import MAX_COUNT, QueueRow, all_queue_figures
from temporalex_django.operations.fleet.switches import (
    DrainWorker,
    SwitchOff,
    active_switches,
    redact_holds,
    switchable_names,
)
from temporalex_django.operations.read.project_state import lost_workers
from temporalex_django.operations.runs.control import RunDue
from temporalex_django.present.formatting import format_duration, join_with_and

_VIEW_WORKERS = Operation(action="view", permission=f"{APP}.view_worker")
_VIEW_SWITCHES = Operation(action="view", permission=f"{APP}.view_switchedoff")
#: Activities that are shown of one worker, and read of all.
_MAX_ACTIVITIES, _MAX_TASKS = 5, 500
_MAX_NAMES = 4
#: A clock that is off by more moves timers.
_MAX_SKEW_SECONDS = 0.5
#: Pages to which an action may lead back.
_PAGES = ("workers", "switches", "overview")


class FleetView(ConsoleView):
    """The queues with what waits in them, the workers with what they run, and the workers that were lost."""

    template = "temporalex_django/console/fleet.html"
    section = "workers"
    operation = _VIEW_WORKERS

    def respond(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        user, runs = user_of(request), self.mount.visible_runs(request)
        if not policy().allows(user, VIEW):
            runs = Instance.objects.none()
        scope = None if runs is None else getattr(user, "pk", None)
        lists = keep(
            ("fleet", self.mount.namespace, storage().alias, scope),
            lambda: _read_fleet(runs),
            fresh=not is_poll(request),
        )
        now = timezone.now()
        queues = [_queue_row(figures, now) for figures in lists["queues"]]
        workers = [*_worker_rows(lists["workers"], lists["tasks"], now)]
        facts = [queues, workers, [worker.pk for worker in lists["lost"]]]
        if is_poll(request) and is_unchanged(request, facts, now):
            return unchanged()
        context = {
            "title": _("Queues and workers"),
            "queues": queues,
            "workers": workers,
            "lost": [_lost_row(worker) for worker in lists["lost"]],
            "most": f"{MAX_COUNT:,}",
            "may_switch": may(request, SwitchOff),
            "may_drain": may(request, DrainWorker),
            "form": ReasonForm(auto_id="tx_%s"),
            "due_form": ReasonForm(auto_id="tx_due_%s") if settings.DEBUG and may(request, RunDue) else None,
            "off_address": self.mount.address("switch_off"),
            "on_address": self.mount.address("switch_on"),
            "due_address": self.mount.address("run_due"),
            "poll_address": self.mount.address("workers", query={MARK: mark_of(facts, None)}),
            "announcement": _announcement(workers),
        }
        for row in workers:
            action = "undrain" if row["is_drained"] else "drain"
            row["address"] = self.mount.address(action, row["id"])
        return self.render(request, context)


def may(request: HttpRequest, action: type[Any]) -> bool:
    """Return True if the user may perform an operation on workers or switches."""
    return policy().allows(user_of(request), Operation(action=action.name, permission=f"{APP}.{action.permission}"))


def _read_fleet(runs: Any) -> dict[str, Any]:
    """Read what the page shows. Ten reads, and a few more for limits and a cluster."""
    alias, now = storage().alias, timezone.now()
    workers = [*Worker.objects.using(alias).order_by("host", "pid")]
    tasks = ActivityTask.objects.using(alias).filter(owner__in=[worker.epoch for worker in workers])
    return {
        "queues": all_queue_figures(),
        "workers": workers,
        "tasks": [*tasks.order_by("started_at").values_list("owner", "activity", "started_at")[:_MAX_TASKS]],
        "lost": lost_workers(alias, now=now, runs=runs),
    }


def _queue_row(figures: QueueRow, now: datetime) -> dict[str, Any]:
    limits = [] if figures.concurrency is None else [_("%(count)d at a time") % {"count": figures.concurrency}]
    limits += [] if figures.rate is None else [figures.rate]
    # What nobody may take now waits for a person or for its turn, not for a worker.
    wait = "" if figures.waiting_since is None else format_duration(now - figures.waiting_since)
    return {
        "figures": figures,
        "wait": wait,
        "limits": ", ".join(limits),
        "held_until": None if figures.held_until is None else format_time(figures.held_until),
        "is_bad": bool(wait) and not figures.workers,
        "workers": [*figures.workers[:_MAX_NAMES]],
        "more_workers": max(0, len(figures.workers) - _MAX_NAMES),
    }


def _worker_rows(
    workers: Sequence[Worker], tasks: Sequence[tuple[int, str, datetime | None]], now: datetime
) -> list[dict[str, Any]]:
    running: Mapping[int, list[str]] = defaultdict(list)
    for owner, activity, started_at in tasks:
        running[owner].append(f"{activity} ({format_duration(now - (started_at or now))})")
    live_workers = [worker for worker in workers if worker.expires_at > now and worker.buried_at is None]
    return [
        {
            "id": worker.pk,
            "name": str(worker),
            "kind": worker.kind,
            "badge": _lease_badge(worker, now),
            "is_dead": worker.buried_at is not None,
            "is_drained": worker.drained_at is not None,
            "queues": ", ".join(worker.queues),
            "running": running[worker.epoch][:_MAX_ACTIVITIES],
            "more_running": max(0, len(running[worker.epoch]) - _MAX_ACTIVITIES),
            "runs": worker.runs,
            "lacks": _lacking(worker, live_workers),
            "classes": sorted(worker.workflows),
            "started": format_time(worker.started_at),
            # Of one that lives, the heartbeat says nothing, and would change the page every few seconds.
            "seen": "" if worker in live_workers else format_time(worker.beat_at),
            "skew": f"{worker.clock_skew:+.1f} s" if abs(worker.clock_skew) >= _MAX_SKEW_SECONDS else "",
        }
        for worker in workers
    ]


def _lease_badge(worker: Worker, now: datetime) -> Any:
    if worker.buried_at is not None:
        return badge("gone", _("Dead"))
    if worker.drained_at is not None:
        return badge("terminated", _("Drained"))
    # Late, not dead: recovery declares a worker dead by observations of its own, not by this row (see decision 23).
    return badge("alive", _("Alive")) if worker.expires_at > now else badge("gone", _("Late"))


def _lacking(worker: Worker, live_workers: Sequence[Worker]) -> str:
    """Return the classes that other live workers of the same queues have and this one lacks, as text."""
    nearby = [other for other in live_workers if other.pk != worker.pk and set(other.queues) & set(worker.queues)]
    return ", ".join(sorted({name for other in nearby for name in other.workflows} - set(worker.workflows)))


def _lost_row(worker: LostWorker) -> dict[str, Any]:
    activities = [
        f"{entry['activity']} ({entry['workflow_id']})" if entry["workflow_id"] else entry["activity"]
        for entry in worker.held_activities
    ]
    return {
        "worker": worker,
        "seen": format_time(worker.beat_at),
        "lost": format_time(worker.lost_at),
        "queues": ", ".join(worker.queues),
        "held": ", ".join(activities),
    }


def _announcement(workers: Sequence[Mapping[str, Any]]) -> str:
    lacking = [row["name"] for row in workers if row["lacks"]]
    if lacking:
        return _("Workers without some of the code: %(names)s.") % {"names": join_with_and(lacking[:_MAX_NAMES])}
    return ngettext("%(count)d worker", "%(count)d workers", len(workers)) % {"count": len(workers)}


# --- switches ---------------------------------------------------------------------------------------------------------
#
# Everything that is switched off, and a form to switch off.


class SwitchForm(forms.Form):
    """The form that switches off a queue, an activity or a workflow class.

    ``thing`` says which, as ``kind:name``. The choices are the names that this process or a live worker knows, and the
    name that the URL or the post contains.
    """

    thing = forms.ChoiceField(label=gettext_lazy("What"), label_suffix="")
    key = forms.CharField(required=False, max_length=200, widget=forms.HiddenInput)
    reason = NoteFormField(
        required=False, label=gettext_lazy("Reason"), label_suffix="",
        help_text=gettext_lazy("Shown to people whose runs are waiting, and in the audit log."),
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


class SwitchListView(ConsoleView):
    """Everything that is switched off, and for those who may use switches the form and the buttons.

    ``?thing=`` is the initial value of the form.
    """

    template = "temporalex_django/console/switches.html"
    section = "switches"
    operation = _VIEW_SWITCHES

    def respond(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        switches = redact_holds(active_switches(storage().alias).order_by("kind", "name"), user_of(request))
        facts = [(row.pk, row.until, row.reason) for row in switches]
        if is_poll(request) and is_unchanged(request, facts, timezone.now()):
            return unchanged()
        form = None
        if may(request, SwitchOff) and not is_poll(request):
            form = SwitchForm(alias=storage().alias, initial={"thing": request.GET.get("thing", "")})
        rows = [
            {
                "switch": row,
                "since": format_time(row.since),
                "until": None if row.until is None else format_time(row.until),
            }
            for row in switches
        ]
        context = {
            "title": _("Switches that are off"),
            "rows": rows,
            "form": form,
            "may_switch": may(request, SwitchOff),
            "off_address": self.mount.address("switch_off"),
            "on_address": self.mount.address("switch_on"),
            "poll_address": self.mount.address("switches", query={MARK: mark_of(facts, None)}),
            "announcement": ngettext("%(count)d switch is off", "%(count)d switches are off", len(rows))
            % {"count": len(rows)},
        }
        return self.render(request, context)


# --- actions ----------------------------------------------------------------------------------------------------------
#
# What the buttons of these pages do. Each operation checks the permission itself.


class FleetActionView(ConsoleView):
    """Base class of the views behind the buttons: a POST executes an operation, and leads back to its page."""

    template = ""
    methods = ("POST",)
    operation = None

    def __init__(self, mount: Mount, action: type[Any], success_message: Any = "") -> None:
        """Perform ``action``, and show the message afterwards."""
        super().__init__(mount)
        self.action, self.success_message = action, success_message

    def execute(self, request: HttpRequest, **kwargs: Any) -> str:
        """Execute the operation on a worker, and return a further notice, or an empty text.

        Raises ``TemporalexError`` if it is refused.
        """
        form = ReasonForm(request.POST)
        if not form.is_valid():
            raise _InvalidForm(form)
        self.action(kwargs["worker"], reason=form.cleaned_data["reason"], by=actor_of(request)).execute()
        return ""

    def respond(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        try:
            notice = self.execute(request, **kwargs)
        except _InvalidForm as exc:
            messages.error(request, str(exc))
        except ActionNotPermitted as exc:
            raise PermissionDenied(str(exc)) from exc
        except WorkerNotFound:
            raise Http404 from None
        except TimeoutError as exc:
            messages.warning(request, _("%(why)s. Run the due work again.") % {"why": exc})
        except TemporalexError as exc:
            messages.error(request, exc.message)
        else:
            messages.success(request, str(self.success_message) or notice)
            if notice and self.success_message:
                messages.warning(request, notice)
        page = request.POST.get("back", "")
        return HttpResponseRedirect(self.mount.address(page if page in _PAGES else "workers"))


class _InvalidForm(Exception):
    """A form whose values cannot be used; the text says why."""

    def __init__(self, form: forms.Form) -> None:
        super().__init__(" ".join(str(error) for errors in form.errors.values() for error in errors))


class SwitchActionView(FleetActionView):
    """Switches a queue, an activity or a workflow class off or on."""

    def execute(self, request: HttpRequest, **kwargs: Any) -> str:
        # The button of a hold has its key in the address: a button can send one value.
        posted = {**request.POST.dict(), "key": request.GET.get("key") or request.POST.get("key", "")}
        form = SwitchForm(posted, alias=storage().alias)
        if not form.is_valid():
            raise _InvalidForm(form)
        kind, _colon, name = form.cleaned_data["thing"].partition(":")
        options = {"reason": form.cleaned_data["reason"], "key": form.cleaned_data["key"]}
        switch = self.action(kind, name, **options, by=actor_of(request))
        switch.execute()
        return str(switch.notice or "")


class RunDueView(FleetActionView):
    """Does all due work in the process of the request. This works only under ``DEBUG``, for development."""

    def execute(self, request: HttpRequest, **kwargs: Any) -> str:
        form = ReasonForm(request.POST)
        if not form.is_valid():
            raise _InvalidForm(form)
        turns = RunDue(reason=form.cleaned_data["reason"], by=actor_of(request)).execute()
        text = ngettext("Ran %(n)d turn. Nothing is due now.", "Ran %(n)d turns. Nothing is due now.", turns)
        return text % {"n": turns}


def run_due_view(view: View) -> View:
    """Return the view outside of ``ATOMIC_REQUESTS``: its turns commit by themselves."""
    # Exempt every database: ours comes from settings that may be wrong, and reporting that is left to the checks.
    for alias in connections:
        view = transaction.non_atomic_requests(using=alias)(view)
    return view


def switch_address_for(mount: Mount, request: HttpRequest) -> Any:
    """Return a function that returns the URL of the form which switches off a queue, an activity or a workflow class.

    The function takes the kind and the name, and returns None if the user may not use switches.
    """
    if not may(request, SwitchOff) or not policy().allows(user_of(request), _VIEW_SWITCHES):
        return lambda *_: None
    return lambda kind, name: mount.address("switches", query={"thing": f"{kind}:{name}"})
