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
from temporalex_django.admin.requests import actor_of, may_not_look, refuse, user_of
from temporalex_django.admin.run_pages import not_the_present
from temporalex_django.admin.shown import shortened
from temporalex_django.admin.steering import SteeringForm, input_name, not_yours
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.conf import get_settings
from temporalex_django.errors import ActionNotPermitted, TemporalexError
from temporalex_django.models import Instance

if TYPE_CHECKING:
    from temporalex_django.admin.instance import InstanceAdmin

#: Runs that are named one by one in the address of a page, which servers cut at 4,000 characters.
MOST_CHOSEN = 150
#: Runs of which the page says what the action would do to them.
_LOOKED_AT = 1000
_NAMED = 5
_KEY = 16
_FILTERS = "_changelist_filters"
_UNREAD = ("args", "carried_messages", "snapshot", "published", "closing", "metadata", "search_attributes")


def may_choose(user: Person) -> bool:
    """Whether he may do one thing to many runs; what it is, has a permission of its own."""
    wanted = Operation(action=StartBulk.name, permission=f"{APP}.{StartBulk.permission}")
    return policy().allows(user, wanted)


def may_not_choose() -> str:
    """What somebody is told who may not."""
    names = dict(Instance._meta.permissions)  # noqa: SLF001 - Django documents it
    wanted = names[StartBulk.permission]
    return _("You may not do that: it takes the permission “%(wanted)s”.") % {"wanted": wanted}


def _choice(action: type[OperatorRunAction[Any]]) -> Callable[..., HttpResponse | None]:
    """What the list offers for the chosen runs: it leads to the page of the action."""

    def choose(admin: InstanceAdmin, request: HttpRequest, runs: QuerySet[Instance]) -> HttpResponse | None:
        given: dict[str, str] = {_FILTERS: request.GET.urlencode()}
        if request.POST.get("select_across") == "1":
            given["all"] = "1"
        else:
            chosen = [str(pk) for pk in runs.order_by().values_list("pk", flat=True)[: MOST_CHOSEN + 1]]
            if not 0 < len(chosen) <= MOST_CHOSEN:
                most = _("Choose %(most)s at most, or all that match the filters.") % {"most": MOST_CHOSEN}
                messages.warning(request, most if chosen else _gone())
                return None
            given["chosen"] = _written(chosen)
        page = f"{admin.admin_site.name}:temporalex_django_instance_bulk"
        return HttpResponseRedirect(f"{reverse(page, args=[action.name])}?{urlencode(given)}")

    choose.__name__ = f"bulk_{action.name}"
    choose.short_description = format_lazy("{label}…", label=action.label)  # type: ignore[attr-defined]
    choose.allowed_permissions = ("bulk",)  # type: ignore[attr-defined]
    return choose


#: For ``InstanceAdmin.actions``.
CHOICES = [_choice(action) for action in STEERING.values()]


def _written(ids: Iterable[str]) -> str:
    """Run ids, as short as an address can have them."""
    return urlsafe_b64encode(b"".join(UUID(one).bytes for one in ids)).rstrip(b"=").decode()


def _read(written: str) -> list[UUID]:
    """Those ids. Raises ``Http404`` for what is none of ours."""
    try:
        found = urlsafe_b64decode(written.encode() + b"=" * (-len(written) % 4))
    except ValueError:
        raise Http404 from None
    if not found or len(found) % _KEY or len(found) > MOST_CHOSEN * _KEY:
        raise Http404
    return [UUID(bytes=found[at : at + _KEY]) for at in range(0, len(found), _KEY)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftAlone:
    """Runs that the action cannot be done to now, for one reason. ``names`` are the ids of the first of them."""

    reason: str
    count: int
    names: Sequence[str]

    @property
    def more(self) -> int:
        return self.count - len(self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What an action would do to the runs that were chosen, as they stand now.

    ``why_not`` is why there is no button; ``newest`` the first of them; ``options`` what there is to choose from.
    """

    said: str
    left: Sequence[LeftAlone]
    why_not: str | None
    newest: UUID | None
    options: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


class BulkForm(SteeringForm):
    """``newest``: no run that was started after somebody looked is among them."""

    newest = forms.UUIDField(required=False, widget=forms.HiddenInput)

    def __init__(
        self, *args: Any, action: type[OperatorRunAction[Any]], options: Mapping[str, Mapping[str, int]], **kwargs: Any
    ) -> None:
        """``options`` are those of the action, see ``OperatorRunAction.selector_options``."""
        super().__init__(*args, action=action, **kwargs)
        self.inputs = (*action.selectors, *action.inputs)
        for one in action.selectors:
            values = [(value, f"{value} ({count:,})") for value, count in options.get(one.name, {}).items()]
            self.fields[input_name(one)] = forms.ChoiceField(
                choices=[("", _("choose…") if one.required else _("any")), *values],
                label=str(one.label),
                help_text=str(one.help),
                required=one.required,
            )

    def clean(self) -> dict[str, Any]:
        """Said above the fields: nobody sees that one."""
        if self.cleaned_data.get("newest") is None:
            raise forms.ValidationError(_("It is not said which runs were looked at: open this page again."))
        return self.cleaned_data


class BulkPage:
    """A view of an ``InstanceAdmin`` about the runs that the address names: some, or all that match the filters."""

    template = "admin/temporalex_django/instance/bulk.html"

    def __init__(self, model_admin: InstanceAdmin) -> None:
        self.admin = model_admin

    def __call__(self, request: HttpRequest, action: str) -> HttpResponse:
        if request.method not in ("GET", "HEAD", "POST"):
            return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
        if not self.admin.has_view_permission(request):
            to = StartBulk.name if request.method == "POST" else VIEW.action
            refuse(request, to, may_not_look())
        done = STEERING.get(action)
        if done is None:
            raise Http404
        runs, refused = self._runs(request), _not_yours(done, user_of(request))
        if request.method == "POST":
            return self._posted(request, done, runs, refused)
        selection = done.selection_from(QueryDict(request.GET.get(_FILTERS, "")).dict())
        effect = effect_on(done, runs, user_of(request), selection)
        initial = {"newest": None if effect is None else effect.newest}
        initial |= {input_name(one): selection[one.name] for one in done.selectors if one.name in selection}
        form = BulkForm(action=done, options={} if effect is None else effect.options, initial=initial)
        return self.page(request, done, form, effect, refused)

    def _posted(
        self, request: HttpRequest, action: type[OperatorRunAction[Any]], runs: QuerySet[Instance], refused: str | None
    ) -> HttpResponse:
        """Note the job, and go to its page; the form again where that was not possible."""
        if refused is not None:
            refuse(request, StartBulk.name, refused)
        effect = effect_on(action, runs, user_of(request), {})
        form, status = BulkForm(request.POST, action=action, options={} if effect is None else effect.options), 200
        if form.is_valid():
            newest = form.cleaned_data["newest"]
            chosen = runs.filter(pk__lte=newest)
            reason, token = form.cleaned_data["reason"], form.cleaned_data["token"]
            start = StartBulk(action.name, runs=chosen, reason=reason, token=token, by=actor_of(request), **form.given)
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
                effect = effect_on(action, runs, user_of(request), {})
        return self.page(request, action, form, effect, None, status=status)

    def page(
        self,
        request: HttpRequest,
        action: type[OperatorRunAction[Any]],
        form: BulkForm,
        effect: Effect | None,
        refused: str | None,
        *,
        status: int = 200,
    ) -> HttpResponse:
        """To the list when none of the runs is there."""
        site, filters = self.admin.admin_site, request.GET.get(_FILTERS, "")
        back = reverse(f"{site.name}:temporalex_django_instance_changelist")
        back = f"{back}?{filters}" if filters else back
        if effect is None:
            messages.warning(request, _gone())
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
            "why_not": refused or effect.why_not,
            "back": back,
        }
        request.current_app = site.name
        return TemplateResponse(request, self.template, context, status=status)

    def _runs(self, request: HttpRequest) -> QuerySet[Instance]:
        """The runs that the address names, as far as they are there for the user. Raises ``Http404``."""
        if "all" not in request.GET:
            return self.admin.get_queryset(request).filter(pk__in=_read(request.GET.get("chosen", "")))
        like = copy(request)
        like.GET = QueryDict(request.GET.get(_FILTERS, ""))
        try:
            found: QuerySet[Instance] = self.admin.get_changelist_instance(like).queryset
        except IncorrectLookupParameters:
            raise Http404 from None
        return found


def effect_on(
    action: type[OperatorRunAction[Any]], runs: QuerySet[Instance], user: Person, selection: Mapping[str, Any]
) -> Effect | None:
    """None when there are none of them. One statement, however many they are; a few more for activities and timers."""
    limit = get_settings().BULK_LIMIT
    newest = runs.order_by("-id").select_related("chain").defer(*_UNREAD)
    found = [*newest[: min(limit, _LOOKED_AT) + 1]]
    if not found:
        return None
    if len(found) > limit:
        many = _("These are more than %(limit)s runs, which one job takes at most: narrow the filters.")
        return Effect(said="", left=(), why_not=many % {"limit": f"{limit:,}"}, newest=None)
    reasons: dict[str, list[str]] = defaultdict(list)
    ids, alias, parts = [run.pk for run in found[:_LOOKED_AT]], storage().alias, Counter[UUID]()
    if action.target_kind != "run":
        those = action.parts(ids, selection, alias=alias, limit=limit + 1)
        if len(those) > limit:
            many = _("These are more than %(limit)s, which one job takes at most: narrow the filters.")
            return Effect(said="", left=(), why_not=many % {"limit": action.count_text(limit)}, newest=None)
        parts.update(run for run, _seq in those)
    for run in found[:_LOOKED_AT]:
        why = not_yours(action, user, run) or not_the_present(run)
        if why is None and action.target_kind == "run":
            why = action.why_not(run)
        elif why is None and not parts[run.pk]:
            why = action.why_not_open(run) or _("nothing of it is chosen to which it can be done now")
        if why is not None:
            reasons[why].append(run.workflow_id)
            del parts[run.pk]
    left = [
        LeftAlone(reason=reason, count=len(ids), names=[shortened(name) for name in ids[:_NAMED]])
        for reason, ids in sorted(reasons.items(), key=lambda one: -len(one[1]))
    ]
    looked_at = min(len(found), _LOOKED_AT)
    possible = looked_at - sum(one.count for one in left)
    return Effect(
        said=_said(possible, looked_at, more=len(found) > _LOOKED_AT, parts=_parts_said(action, parts)),
        left=left,
        why_not=None if possible else _("It can be done to none of them now."),
        newest=found[0].pk,
        options=action.selector_options(ids, alias=alias),
    )


def _parts_said(action: type[OperatorRunAction[Any]], parts: Counter[UUID]) -> str:
    return "" if action.target_kind == "run" else action.count_text(parts.total())


def _gone() -> str:
    return _("None of them is there any more: nothing was done.")


def _said(possible: int, of: int, *, more: bool, parts: str = "") -> str:
    """``parts`` are the activities or timers, in words."""
    words: dict[str, Any] = {"possible": possible, "of": of, "parts": parts}
    if parts and more:
        return _("It can be done to %(parts)s of %(possible)d of the newest %(of)d runs now.") % words
    if parts:
        return (
            ngettext(
                "It can be done to %(parts)s of %(possible)d of %(of)d chosen run now.",
                "It can be done to %(parts)s of %(possible)d of %(of)d chosen runs now.",
                of,
            )
            % words
        )
    if more:
        return _("It can be done to %(possible)d of the newest %(of)d of them now.") % words
    return (
        ngettext(
            "It can be done to %(possible)d of %(of)d chosen run now.",
            "It can be done to %(possible)d of %(of)d chosen runs now.",
            of,
        )
        % words
    )


def _not_yours(action: type[OperatorRunAction[Any]], user: Person) -> str | None:
    """Why this person may not do it to many runs."""
    return not_yours(action, user) if may_choose(user) else may_not_choose()
