"""Bulk operations: choose runs in the list, confirm the effect on a page, and start a bulk job.

The operations come from ``operations.registry.STEERING``; a new one needs no code here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.run_columns import UNREAD_COLUMNS
from temporalex_django.conf import get_settings
from temporalex_django.console.actions import (
    OperatorActionForm,
    bulk_action_error,
    input_name,
    permission_error,
    superseded_error,
)
from temporalex_django.console.base import actor_of, refuse, shorten, user_of
from temporalex_django.console.mount import ConsoleView
from temporalex_django.console.runs import BadParameter, RunListView, RunQuery
from temporalex_django.errors import ActionNotPermitted, TemporalexError
from temporalex_django.models import Instance
from temporalex_django.operations.base import storage
from temporalex_django.operations.bulk import StartBulk
from temporalex_django.operations.registry import STEERING
from temporalex_django.operations.runs.operator_action import OperatorRunAction

#: Largest number of runs that an address names one by one: servers limit it to about 4,000 characters.
MAX_CHOSEN = 150
#: Largest number of runs for which the page checks if the action is possible.
_MAX_CHECKED = 1000
_MAX_NAMES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRuns:
    """A group of the chosen runs for which a bulk operation is impossible now, all for the same reason.

    ``count`` is their number, and ``names`` has the first few business ids.
    """

    reason: str
    count: int
    names: Sequence[str]

    @property
    def hidden_count(self) -> int:
        return self.count - len(self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkEffect:
    """The effect that a bulk operation would have on the chosen runs as they are now.

    - ``text``: a sentence with the number of runs for which it is possible.
    - ``skipped``: the other runs, grouped by the reason.
    - ``why_not``: the reason why no job can be started, or None.
    - ``newest``: the id of the newest chosen run.
    - ``options``: for each selector of the operation, its possible values with their numbers.
    """

    text: str
    skipped: Sequence[SkippedRuns]
    why_not: str | None
    newest: UUID | None
    options: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


class BulkActionForm(OperatorActionForm):
    """The form of a bulk operation on the chosen runs.

    The hidden field ``newest`` has the id of the newest run that the page showed. Runs that were started later are left
    out of the job.
    """

    newest = forms.UUIDField(required=False, widget=forms.HiddenInput)

    def __init__(
        self, *args: Any, action: type[OperatorRunAction[Any]], options: Mapping[str, Mapping[str, int]], **kwargs: Any
    ) -> None:
        """Build the form, with a field for each selector and input of ``action``.

        ``options`` are the values of the selectors, as ``OperatorRunAction.selector_options`` returns them.
        """
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
        """Require the hidden field ``newest``; its error is shown for the whole form."""
        if self.cleaned_data.get("newest") is None:
            raise forms.ValidationError(_("The form does not contain the runs that were shown. Open this page again."))
        return self.cleaned_data


class BulkActionView(ConsoleView):
    """The page of a bulk operation: a GET shows its effect and a form, a POST starts the bulk job.

    The URL names the operation as ``action``. The runs are those with the ids ``run`` or, with ``scope=all``, all that
    match the filters of the list in the URL.
    """

    template = "temporalex_django/console/bulk.html"
    methods = ("GET", "HEAD", "POST")
    section = "runs"

    def respond(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        action_class = STEERING.get(request.GET.get("action", ""))
        if action_class is None:
            raise Http404
        try:
            query = RunQuery.parse(request.GET)
            runs = self._chosen_runs(request, query)
        except BadParameter as exc:
            return RunListView(self.mount).bad_parameter(request, exc)
        # A GET shows the refusal on the page; only a POST is denied and recorded in the audit log.
        refusal = bulk_action_error(action_class, user_of(request))
        if request.method == "POST":
            return self._handle_post(request, action_class, runs, refusal)
        selection = action_class.selection_from({**query.filters})
        effect = bulk_effect(action_class, runs, user_of(request), selection)
        initial: dict[str, Any] = {
            input_name(selector): selection[selector.name]
            for selector in action_class.selectors
            if selector.name in selection
        }
        options: Mapping[str, Any] = {}
        if effect is not None:
            initial["newest"], options = effect.newest, effect.options
        form = BulkActionForm(action=action_class, options=options, initial=initial)
        return self.render_effect(request, action_class, form, effect, refusal)

    def _handle_post(
        self, request: HttpRequest, action: type[OperatorRunAction[Any]], runs: QuerySet[Instance], refusal: str | None
    ) -> HttpResponse:
        """Start the job and redirect to its page, or show the form with the error."""
        if refusal is not None:
            refuse(request, StartBulk.name, refusal)
        effect = bulk_effect(action, runs, user_of(request), {})
        options, status = {} if effect is None else effect.options, 200
        form = BulkActionForm(request.POST, action=action, options=options)
        if form.is_valid():
            newest = form.cleaned_data["newest"]
            # Run ids are UUIDs in the order of creation: this drops runs that were started after the page was shown.
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
                effect, status = bulk_effect(action, runs, user_of(request), {}), 409
            else:
                return HttpResponseRedirect(self.mount.address("job", job.pk))
        return self.render_effect(request, action, form, effect, None, status=status)

    def render_effect(
        self,
        request: HttpRequest,
        action: type[OperatorRunAction[Any]],
        form: BulkActionForm,
        effect: BulkEffect | None,
        refusal: str | None,
        *,
        status: int = 200,
    ) -> HttpResponse:
        """Render the page of a bulk operation, or redirect to the list of runs if none of the runs exists.

        ``effect`` is None in the second case. ``refusal`` says why the user may not perform ``action`` on many runs, or
        is None.
        """
        back = self.mount.address("runs", query=RunQuery.parse(request.GET).parameters())
        if effect is None:
            is_empty = request.GET.get("scope") != "all" and not request.GET.get("run")
            messages.warning(request, _("Select the runs first.") if is_empty else _no_runs_text())
            return HttpResponseRedirect(back)
        context = {
            "title": _("%(label)s: multiple runs") % {"label": action.label},
            # Single attributes, because a template would call the class.
            "label": action.label,
            "about": action.description(),
            "destructive": action.destructive,
            "form": form,
            "effect": effect,
            "why_not": refusal or effect.why_not,
            "back": back,
        }
        return self.render(request, context, status=status)

    def _chosen_runs(self, request: HttpRequest, query: RunQuery) -> QuerySet[Instance]:
        """Return the chosen runs that the user may see. Raises ``Http404`` for a malformed URL."""
        if request.GET.get("scope") == "all":
            return query.select(self.runs(request))
        try:
            ids = [UUID(run_id) for run_id in request.GET.getlist("run")]
        except ValueError:
            raise Http404 from None
        if len(ids) > MAX_CHOSEN:
            raise BadParameter("run", _("Select at most %(most)s runs.") % {"most": MAX_CHOSEN})
        return self.runs(request).filter(pk__in=ids)


def bulk_effect(
    action: type[OperatorRunAction[Any]], runs: QuerySet[Instance], user: Person, selection: Mapping[str, Any]
) -> BulkEffect | None:
    """Return the effect that a bulk operation would have on ``runs``, or None if none of them exists.

    ``selection`` has the values of the operation's selectors, by name. One statement for any number of runs, and a few
    more for operations on activities and timers.
    """
    limit = get_settings().BULK_LIMIT
    newest = runs.order_by("-id").select_related("chain").defer(*UNREAD_COLUMNS)
    # One row more than the smaller limit shows that the limit is exceeded, without a count.
    loaded_runs = [*newest[: min(limit, _MAX_CHECKED) + 1]]
    if not loaded_runs:
        return None
    if len(loaded_runs) > limit:
        limit_message = _("You selected more than %(limit)s runs, which is the limit for one job. Narrow the filters.")
        return _refused_effect(limit_message % {"limit": f"{limit:,}"})
    checked_runs, alias = loaded_runs[:_MAX_CHECKED], storage().alias
    ids, parts = [run.pk for run in checked_runs], Counter[UUID]()
    if action.target_kind != "run":
        part_keys = action.parts(ids, selection, alias=alias, limit=limit + 1)
        if len(part_keys) > limit:
            limit_message = _("You selected more than %(limit)s, which is the limit for one job. Narrow the filters.")
            return _refused_effect(limit_message % {"limit": action.count_text(limit)})
        parts.update(run for run, _seq in part_keys)
    reasons: dict[str, list[str]] = defaultdict(list)
    for run in checked_runs:
        refusal = _refusal(action, user, run, part_count=parts[run.pk])
        if refusal is not None:
            reasons[refusal].append(run.workflow_id)
            del parts[run.pk]  # a Counter ignores a missing key
    # The largest group first: that is the reason to read.
    skipped = [
        SkippedRuns(reason=reason, count=len(names), names=[shorten(name) for name in names[:_MAX_NAMES]])
        for reason, names in sorted(reasons.items(), key=lambda entry: -len(entry[1]))
    ]
    possible_count = len(checked_runs) - sum(group.count for group in skipped)
    return BulkEffect(
        text=_effect_text(
            possible_count,
            len(checked_runs),
            has_more=len(loaded_runs) > _MAX_CHECKED,
            parts=_parts_text(action, parts),
        ),
        skipped=skipped,
        why_not=None if possible_count else _("You cannot apply this action to any of these runs now."),
        newest=loaded_runs[0].pk,
        options=action.selector_options(ids, alias=alias),
    )


def _refused_effect(why_not: str) -> BulkEffect:
    return BulkEffect(text="", skipped=(), why_not=why_not, newest=None)


def _refusal(action: type[OperatorRunAction[Any]], user: Person, run: Instance, *, part_count: int) -> str | None:
    """Return why the operation would skip the run, or None. ``part_count`` counts its activities or timers."""
    refusal = permission_error(action, user, run) or superseded_error(run)
    if refusal is not None:
        return refusal
    if action.target_kind == "run":
        return action.refusal(run)
    if part_count:
        return None
    return action.why_not_run(run) or _(
        "none of the selected activities or timers of this run currently allows this action"
    )


def _parts_text(action: type[OperatorRunAction[Any]], parts: Counter[UUID]) -> str:
    if action.target_kind == "run":
        return ""
    return action.count_text(parts.total())


def _no_runs_text() -> str:
    return _("None of these runs exists any more. Nothing was done.")


def _effect_text(possible: int, total: int, *, has_more: bool, parts: str = "") -> str:
    """Return a sentence that says for how many runs it is possible. With ``has_more``, some were not checked."""
    words: dict[str, Any] = {"possible": possible, "of": total, "parts": parts}
    if parts and has_more:
        return _("The action can currently be applied to %(parts)s in %(possible)d of the newest %(of)d runs.") % words
    if parts:
        return (
            ngettext(
                "The action can currently be applied to %(parts)s in %(possible)d of %(of)d selected run.",
                "The action can currently be applied to %(parts)s in %(possible)d of %(of)d selected runs.",
                total,
            )
            % words
        )
    if has_more:
        return _("The action can currently be applied to %(possible)d of the newest %(of)d runs.") % words
    return (
        ngettext(
            "The action can currently be applied to %(possible)d of %(of)d selected run.",
            "The action can currently be applied to %(possible)d of %(of)d selected runs.",
            total,
        )
        % words
    )
