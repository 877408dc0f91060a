"""One thing done to many runs: chosen in the list, confirmed on a page that says what it would do, noted as a job.

What there is to choose comes from ``actions.registry.STEERING``; a new action needs no code here.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from uuid import UUID

from django import forms
from django.contrib import messages
from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect, QueryDict
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.text import format_lazy
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from temporalex_django.access import VIEW, Operation, policy
from temporalex_django.actions.base import storage
from temporalex_django.actions.registry import STEERING
from temporalex_django.actions.start_bulk import StartBulk
from temporalex_django.actions.steering import OperatorRunAction
from temporalex_django.admin.formatting import shorten
from temporalex_django.admin.operator_views import OperatorActionForm, input_name, permission_error
from temporalex_django.admin.request_user import actor_of, refuse, user_of, view_permission_error
from temporalex_django.admin.run_action_views import superseded_error
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.conf import get_settings
from temporalex_django.errors import ActionNotPermitted, TemporalexError
from temporalex_django.models import Instance

if TYPE_CHECKING:
    from temporalex_django.admin.instance import InstanceAdmin

#: Runs that are named one by one in the address of a page, which servers cut at 4,000 characters.
MAX_CHOSEN = 150
#: Runs of which the page says what the action would do to them.
_MAX_CHECKED = 1000
_MAX_NAMES = 5
_KEY_BYTES = 16
_FILTERS = "_changelist_filters"
_DEFERRED_FIELDS = ("args", "carried_messages", "snapshot", "published", "closing", "metadata", "search_attributes")


def can_start_bulk(user: Person) -> bool:
    """Whether he may do one thing to many runs; what it is, has a permission of its own."""
    operation = Operation(action=StartBulk.name, permission=f"{APP}.{StartBulk.permission}")
    return policy().allows(user, operation)


def bulk_permission_error() -> str:
    """What somebody is told who may not."""
    names = dict(Instance._meta.permissions)  # noqa: SLF001 - Django documents it
    permission_name = names[StartBulk.permission]
    return _("You may not do that: it takes the permission “%(wanted)s”.") % {"wanted": permission_name}


def _bulk_action(action: type[OperatorRunAction[Any]]) -> Callable[..., HttpResponse | None]:
    """What the list offers for the chosen runs: it leads to the page of the action."""

    def choose(admin: InstanceAdmin, request: HttpRequest, runs: QuerySet[Instance]) -> HttpResponse | None:
        query_params: dict[str, str] = {_FILTERS: request.GET.urlencode()}
        if request.POST.get("select_across") == "1":
            query_params["all"] = "1"
        else:
            chosen = [str(pk) for pk in runs.order_by().values_list("pk", flat=True)[: MAX_CHOSEN + 1]]
            if not 0 < len(chosen) <= MAX_CHOSEN:
                limit_message = _("Choose %(most)s at most, or all that match the filters.") % {"most": MAX_CHOSEN}
                messages.warning(request, limit_message if chosen else _no_runs_text())
                return None
            query_params["chosen"] = _encode_ids(chosen)
        page = f"{admin.admin_site.name}:temporalex_django_instance_bulk"
        return HttpResponseRedirect(f"{reverse(page, args=[action.name])}?{urlencode(query_params)}")

    choose.__name__ = f"bulk_{action.name}"
    choose.short_description = format_lazy("{label}…", label=action.label)  # type: ignore[attr-defined]
    choose.allowed_permissions = ("bulk",)  # type: ignore[attr-defined]
    return choose


#: For ``InstanceAdmin.actions``.
BULK_ACTIONS = [_bulk_action(action) for action in STEERING.values()]


def _encode_ids(ids: Iterable[str]) -> str:
    """Run ids, as short as an address can have them."""
    return urlsafe_b64encode(b"".join(UUID(run_id).bytes for run_id in ids)).rstrip(b"=").decode()


def _decode_ids(text: str) -> list[UUID]:
    """Those ids. Raises ``Http404`` for what is none of ours."""
    try:
        id_bytes = urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4))
    except ValueError:
        raise Http404 from None
    if not id_bytes or len(id_bytes) % _KEY_BYTES or len(id_bytes) > MAX_CHOSEN * _KEY_BYTES:
        raise Http404
    return [UUID(bytes=id_bytes[offset : offset + _KEY_BYTES]) for offset in range(0, len(id_bytes), _KEY_BYTES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRuns:
    """Runs that the action cannot be done to now, for one reason. ``names`` are the ids of the first of them."""

    reason: str
    count: int
    names: Sequence[str]

    @property
    def hidden_count(self) -> int:
        return self.count - len(self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkEffect:
    """What an action would do to the runs that were chosen, as they stand now.

    ``why_not`` is why there is no button; ``newest`` the first of them; ``options`` what there is to choose from.
    """

    text: str
    skipped: Sequence[SkippedRuns]
    why_not: str | None
    newest: UUID | None
    options: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


class BulkActionForm(OperatorActionForm):
    """``newest``: no run that was started after somebody looked is among them."""

    newest = forms.UUIDField(required=False, widget=forms.HiddenInput)

    def __init__(
        self, *args: Any, action: type[OperatorRunAction[Any]], options: Mapping[str, Mapping[str, int]], **kwargs: Any
    ) -> None:
        """``options`` are those of the action, see ``OperatorRunAction.selector_options``."""
        super().__init__(*args, action=action, **kwargs)
        self.inputs = (*action.selectors, *action.inputs)
        for selector in action.selectors:
            values = [(value, f"{value} ({count:,})") for value, count in options.get(selector.name, {}).items()]
            self.fields[input_name(selector)] = forms.ChoiceField(
                choices=[("", _("choose…") if selector.required else _("any")), *values],
                label=str(selector.label),
                help_text=str(selector.help),
                required=selector.required,
            )

    def clean(self) -> dict[str, Any]:
        """Said above the fields: nobody sees that one."""
        if self.cleaned_data.get("newest") is None:
            raise forms.ValidationError(_("It is not said which runs were looked at: open this page again."))
        return self.cleaned_data


class BulkActionView:
    """A view of an ``InstanceAdmin`` about the runs that the address names: some, or all that match the filters."""

    template = "admin/temporalex_django/instance/bulk.html"

    def __init__(self, model_admin: InstanceAdmin) -> None:
        self.admin = model_admin

    def __call__(self, request: HttpRequest, action: str) -> HttpResponse:
        if request.method not in ("GET", "HEAD", "POST"):
            return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
        if not self.admin.has_view_permission(request):
            action_name = StartBulk.name if request.method == "POST" else VIEW.action
            refuse(request, action_name, view_permission_error())
        action_class = STEERING.get(action)
        if action_class is None:
            raise Http404
        runs, refusal = self._chosen_runs(request), _bulk_action_error(action_class, user_of(request))
        if request.method == "POST":
            return self._handle_post(request, action_class, runs, refusal)
        selection = action_class.selection_from(QueryDict(request.GET.get(_FILTERS, "")).dict())
        effect = bulk_effect(action_class, runs, user_of(request), selection)
        initial = {"newest": None if effect is None else effect.newest}
        initial |= {
            input_name(selector): selection[selector.name]
            for selector in action_class.selectors
            if selector.name in selection
        }
        form = BulkActionForm(action=action_class, options={} if effect is None else effect.options, initial=initial)
        return self.render_page(request, action_class, form, effect, refusal)

    def _handle_post(
        self, request: HttpRequest, action: type[OperatorRunAction[Any]], runs: QuerySet[Instance], refusal: str | None
    ) -> HttpResponse:
        """Note the job, and go to its page; the form again where that was not possible."""
        if refusal is not None:
            refuse(request, StartBulk.name, refusal)
        effect = bulk_effect(action, runs, user_of(request), {})
        form, status = (
            BulkActionForm(request.POST, action=action, options={} if effect is None else effect.options),
            200,
        )
        if form.is_valid():
            newest = form.cleaned_data["newest"]
            chosen = runs.filter(pk__lte=newest)
            reason, token = form.cleaned_data["reason"], form.cleaned_data["token"]
            start = StartBulk(
                action.name, runs=chosen, reason=reason, token=token, by=actor_of(request), **form.input_values
            )
            try:
                job = start.execute()
            except ActionNotPermitted as exc:
                raise PermissionDenied(str(exc)) from exc
            except TemporalexError as exc:
                form.add_error(None, exc.message)
                form.renew()
                status = 409
            else:
                address = reverse(f"{self.admin.admin_site.name}:temporalex_django_bulkjob_change", args=[job.pk])
                return HttpResponseRedirect(address)
                effect = bulk_effect(action, runs, user_of(request), {})
        return self.render_page(request, action, form, effect, None, status=status)

    def render_page(
        self,
        request: HttpRequest,
        action: type[OperatorRunAction[Any]],
        form: BulkActionForm,
        effect: BulkEffect | None,
        refusal: str | None,
        *,
        status: int = 200,
    ) -> HttpResponse:
        """To the list when none of the runs is there."""
        site, filters = self.admin.admin_site, request.GET.get(_FILTERS, "")
        back = reverse(f"{site.name}:temporalex_django_instance_changelist")
        back = f"{back}?{filters}" if filters else back
        if effect is None:
            messages.warning(request, _no_runs_text())
            return HttpResponseRedirect(back)
        context = {
            **site.each_context(request),
            "title": _("%(label)s: many runs") % {"label": action.label},
            "opts": self.admin.opts,
            "media": self.admin.media,
            "label": action.label,  # a class would be called by the template
            "about": action.effect,
            "destructive": action.destructive,
            "form": form,
            "effect": effect,
            "why_not": refusal or effect.why_not,
            "back": back,
        }
        request.current_app = site.name
        return TemplateResponse(request, self.template, context, status=status)

    def _chosen_runs(self, request: HttpRequest) -> QuerySet[Instance]:
        """The runs that the address names, as far as they are there for the user. Raises ``Http404``."""
        if "all" not in request.GET:
            return self.admin.get_queryset(request).filter(pk__in=_decode_ids(request.GET.get("chosen", "")))
        list_request = copy(request)
        list_request.GET = QueryDict(request.GET.get(_FILTERS, ""))
        try:
            queryset: QuerySet[Instance] = self.admin.get_changelist_instance(list_request).queryset
        except IncorrectLookupParameters:
            raise Http404 from None
        return queryset


def bulk_effect(
    action: type[OperatorRunAction[Any]], runs: QuerySet[Instance], user: Person, selection: Mapping[str, Any]
) -> BulkEffect | None:
    """None when there are none of them. One statement, however many they are; a few more for activities and timers."""
    limit = get_settings().BULK_LIMIT
    newest = runs.order_by("-id").select_related("chain").defer(*_DEFERRED_FIELDS)
    loaded_runs = [*newest[: min(limit, _MAX_CHECKED) + 1]]
    if not loaded_runs:
        return None
    if len(loaded_runs) > limit:
        limit_message = _("These are more than %(limit)s runs, which one job takes at most: narrow the filters.")
        return BulkEffect(text="", skipped=(), why_not=limit_message % {"limit": f"{limit:,}"}, newest=None)
    reasons: dict[str, list[str]] = defaultdict(list)
    ids, alias, parts = [run.pk for run in loaded_runs[:_MAX_CHECKED]], storage().alias, Counter[UUID]()
    if action.target_kind != "run":
        part_keys = action.parts(ids, selection, alias=alias, limit=limit + 1)
        if len(part_keys) > limit:
            limit_message = _("These are more than %(limit)s, which one job takes at most: narrow the filters.")
            return BulkEffect(
                text="", skipped=(), why_not=limit_message % {"limit": action.count_text(limit)}, newest=None
            )
        parts.update(run for run, _seq in part_keys)
    for run in loaded_runs[:_MAX_CHECKED]:
        refusal = permission_error(action, user, run) or superseded_error(run)
        if refusal is None and action.target_kind == "run":
            refusal = action.why_not(run)
        elif refusal is None and not parts[run.pk]:
            refusal = action.why_not_open(run) or _("nothing of it is chosen to which it can be done now")
        if refusal is not None:
            reasons[refusal].append(run.workflow_id)
            del parts[run.pk]
    skipped = [
        SkippedRuns(reason=reason, count=len(ids), names=[shorten(name) for name in ids[:_MAX_NAMES]])
        for reason, ids in sorted(reasons.items(), key=lambda entry: -len(entry[1]))
    ]
    checked_count = min(len(loaded_runs), _MAX_CHECKED)
    possible_count = checked_count - sum(group.count for group in skipped)
    return BulkEffect(
        text=_effect_text(
            possible_count, checked_count, has_more=len(loaded_runs) > _MAX_CHECKED, parts=_parts_text(action, parts)
        ),
        skipped=skipped,
        why_not=None if possible_count else _("It can be done to none of them now."),
        newest=loaded_runs[0].pk,
        options=action.selector_options(ids, alias=alias),
    )


def _parts_text(action: type[OperatorRunAction[Any]], parts: Counter[UUID]) -> str:
    return "" if action.target_kind == "run" else action.count_text(parts.total())


def _no_runs_text() -> str:
    return _("None of them is there any more: nothing was done.")


def _effect_text(possible: int, total: int, *, has_more: bool, parts: str = "") -> str:
    """``parts`` are the activities or timers, in words."""
    words: dict[str, Any] = {"possible": possible, "of": total, "parts": parts}
    if parts and has_more:
        return _("It can be done to %(parts)s of %(possible)d of the newest %(of)d runs now.") % words
    if parts:
        return (
            ngettext(
                "It can be done to %(parts)s of %(possible)d of %(of)d chosen run now.",
                "It can be done to %(parts)s of %(possible)d of %(of)d chosen runs now.",
                total,
            )
            % words
        )
    if has_more:
        return _("It can be done to %(possible)d of the newest %(of)d of them now.") % words
    return (
        ngettext(
            "It can be done to %(possible)d of %(of)d chosen run now.",
            "It can be done to %(possible)d of %(of)d chosen runs now.",
            total,
        )
        % words
    )


def _bulk_action_error(action: type[OperatorRunAction[Any]], user: Person) -> str | None:
    """Why this person may not do it to many runs."""
    return permission_error(action, user) if can_start_bulk(user) else bulk_permission_error()
