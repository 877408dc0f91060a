"""What an operator does to a run: buttons on its page, and a page of each that says the effect and asks for a reason.

All of it comes from ``actions.registry.STEERING``; a new action needs no code here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import urlencode

from django import forms
from django.http import Http404, HttpRequest
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from temporalex_django.access import redactor_for
from temporalex_django.actions import timeline
from temporalex_django.actions.base import storage
from temporalex_django.actions.failed_message import FailedMessageAction
from temporalex_django.actions.registry import STEERING
from temporalex_django.actions.steering import Input, OperatorRunAction
from temporalex_django.actions.taking_up import ReplayFromAction
from temporalex_django.actions.targets import RunTarget
from temporalex_django.admin.requests import actor_of, user_of
from temporalex_django.admin.run_pages import Confirmation, RunPage, not_the_present
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.forms.fields import NOTHING, JSONBox
from temporalex_django.forms.payload_forms import TokenForm
from temporalex_django.models import Chain, Instance

_INPUT = "input_"
_LONGEST_REASON = 2000
_MOST_DIGITS = 9
_MOST_AGAIN = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A button. With ``why_not`` it is shown with that reason, and leads nowhere."""

    label: str
    address: str
    destructive: bool
    why_not: str | None


class SteeringForm(TokenForm):
    """The reason, and what else the action asks for."""

    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        help_text=gettext_lazy("For whoever reads the audit later."),
        max_length=_LONGEST_REASON,
        widget=forms.Textarea(attrs={"rows": 2, "class": "vLargeTextField"}),
    )

    def __init__(
        self, *args: Any, action: type[OperatorRunAction[Any]], inputs: Sequence[Input] | None = None, **kwargs: Any
    ) -> None:
        """``inputs`` are those of the action that it asks for, where these are not all."""
        super().__init__(*args, **kwargs)
        self.made: str | None = None  # the run that it has made
        self.fields["reason"].required = action.destructive
        self.inputs = action.inputs if inputs is None else inputs
        for one in self.inputs:
            self.fields[input_name(one)] = _field(one)

    @property
    def given(self) -> dict[str, Any]:
        """What was said of the inputs, by name; what was left empty is left out."""
        found = {one.name: self.cleaned_data[input_name(one)] for one in self.inputs}
        return {name: value for name, value in found.items() if value is not NOTHING and value not in (None, "")}


def input_name(one: Input) -> str:
    """The name of the form field of an input."""
    return _INPUT + one.name


def _field(one: Input) -> forms.Field:
    more: dict[str, Any] = {"label": one.label, "required": one.required}
    if one.help:
        more["help_text"] = one.help
    if one.choices:
        return forms.ChoiceField(
            choices=[*([] if one.required else [("", "–")]), *((c, c) for c in one.choices)], **more
        )
    if one.kind is bool:
        return forms.BooleanField(**{**more, "required": False})
    kinds: dict[type, type[forms.Field]] = {str: forms.CharField, int: forms.IntegerField, float: forms.FloatField}
    return kinds.get(one.kind, JSONBox)(**more)


def tools(run: Instance, user: Person, *, address: Callable[[str], str]) -> list[Tool]:
    """The buttons of a run's page; ``address`` gives that of the page of an action, by its name."""
    found = []
    for action in STEERING.values():
        if action.target_kind == "run":
            why = not_yours(action, user, run) or not_the_present(run) or action.why_not(run)
            found.append(tool(action, address=address, why_not=why))
    return found


def part_tools(
    run: Instance,
    of: Literal["activity", "timer"],
    seq: int,
    *,
    user: Person,
    address: Callable[[str], str],
    taken: bool = True,
) -> list[Tool]:
    """The buttons of an activity or a timer; whether one is of use just now, its own page says.

    ``taken``: a live worker has the code of the activity; else what needs one is not offered.
    """
    return [
        tool(action, address=address, why_not=None, seq=seq)
        for action in STEERING.values()
        if action.target_kind == of and (taken or not action.needs_worker)
        if not_the_present(run) is None and not_yours(action, user, run) is None
    ]


def message_tools(run: Instance, message: str, *, user: Person, address: Callable[[str], str]) -> list[Tool]:
    """The buttons of a failed message, by its id."""
    if not_the_present(run) is not None:
        return []
    found = [
        tool(action, address=address, why_not=None)
        for action in STEERING.values()
        if issubclass(action, FailedMessageAction) and not_yours(action, user, run) is None
    ]
    query = urlencode({"message": message})
    return [replace(one, address=f"{one.address}?{query}") for one in found]


def row_tools(run: Instance, *, user: Person, address: Callable[[str], str]) -> Callable[[int], list[Tool]]:
    """The buttons of a row of the history, by its activation: what takes the run up there. Asked once for all rows."""
    labels = {"reset": _("Reset to here"), "fork": _("Fork from here")}
    found = [
        replace(tool(action, address=address, why_not=None), label=labels.get(name, str(action.label)))
        for name, action in STEERING.items()
        if issubclass(action, ReplayFromAction) and not_the_present(run) is None
        if action.why_not(run) is None and not_yours(action, user, run) is None
    ]
    closing = run.chain.activations if run.chain.run_id == run.pk and not run.is_open else None

    def at(activation: int) -> list[Tool]:
        if activation == closing:  # the run cannot go on behind its end
            return []
        return [replace(one, address=f"{one.address}?to={activation}") for one in found]

    return at


def tool(
    action: type[OperatorRunAction[Any]], *, address: Callable[[str], str], why_not: str | None, seq: int | None = None
) -> Tool:
    """A button of that action; ``seq`` is that of an activity or timer."""
    more = "" if seq is None else f"?seq={seq}"
    return Tool(
        label=str(action.label),
        address=f"{address(action.name)}{more}",
        destructive=action.destructive,
        why_not=why_not,
    )


def not_yours(action: type[OperatorRunAction[Any]], user: Person, run: Instance | None = None) -> str | None:
    """Why this person may not do it, to that run or to any; None: he may."""
    refused = action.refused_operation(user, run)
    if refused is None:
        return None
    if refused.permission is None:
        return _("Runs of this class are not made from here: it is internal, or an old version.")
    names = {f"{APP}.{code}": name for code, name in Instance._meta.permissions}  # noqa: SLF001 - Django documents it
    wanted = names.get(refused.permission, refused.permission)
    return _("You may not do that: it takes the permission “%(wanted)s”.") % {"wanted": wanted}


class SteeringPage(RunPage):
    """Says what the action that the address names would do, and does it."""

    once = True

    def confirmation(self, request: HttpRequest, run: Instance) -> Confirmation:
        action, seq = self._action(request), self._seq(request)
        label, more = str(action.label), {} if seq is None else {"seq": seq}
        return Confirmation(
            heading=label if seq is None else _("%(label)s: number %(seq)s") % {"label": label, "seq": seq},
            effect=action.effect_text(run),
            again=self._again(request, run),
            button=label,
            destructive=action.destructive,
            why_not=not_the_present(run) or action.why_not(run, **more),
            not_yours=not_yours(action, user_of(request), run),
            action=action.name,
        )

    def form(self, request: HttpRequest, run: Instance) -> SteeringForm:
        action = self._action(request)
        chosen = {input_name(one): request.GET[one.name] for one in action.inputs if one.name in request.GET}
        posted = request.POST if request.method == "POST" else None
        inputs = action.inputs if posted is not None else action.inputs_for(user_of(request), run)
        return SteeringForm(posted, action=action, inputs=inputs, initial=chosen)

    def act(self, request: HttpRequest, run: Instance, form: SteeringForm) -> str:
        action, seq = self._action(request), self._seq(request)
        more = form.given if seq is None else {"seq": seq, **form.given}
        done = action(self.target(request, run), reason=form.cleaned_data["reason"], by=actor_of(request), **more)
        made = done.execute()
        form.made = (
            str(made.selected_run_id) if isinstance(made, RunTarget) else made if isinstance(made, str) else None
        )
        return str(done.done_message)

    def afterwards(self, request: HttpRequest, run: Instance, form: Any = None) -> str:
        """The page of the run that was made, or that has followed since; where the user may not see it, as always."""
        chains = Chain.objects.using(storage().alias).filter(pk=run.chain_id)
        new: Any = getattr(form, "made", None) or chains.values_list("run_id", flat=True).first()
        made = self.admin.get_queryset(request).filter(pk=new).first()
        return super().afterwards(request, run) if made is None else self.admin.address_of(made)

    def _again(self, request: HttpRequest, run: Instance) -> list[str]:
        """List the work that is done again when the run is taken up at the activation that the address names."""
        to = request.GET.get("to", "")
        if not issubclass(self._action(request), ReplayFromAction) or not to.isascii() or not to.isdigit():
            return []
        if len(to) > _MOST_DIGITS:
            return []
        view, alias, now = redactor_for(user_of(request), run), storage().alias, timezone.now()
        rows = timeline.repeated_rows(run.pk, int(to), redactor=view, alias=alias)
        shown = [row.text(now=now, titles=timeline.titles_of(row)) for row in rows[:_MOST_AGAIN]]
        more = len(rows) - len(shown)
        told = ngettext("and %(count)d more", "and %(count)d more", more) % {"count": more}
        return [*shown, *([told] if more else [])]

    def _action(self, request: HttpRequest) -> type[OperatorRunAction[Any]]:
        match = request.resolver_match
        action = STEERING.get(match.kwargs["action"]) if match is not None else None
        if action is None:
            raise Http404
        return action

    def _seq(self, request: HttpRequest) -> int | None:
        if self._action(request).target_kind == "run":
            return None
        given = request.GET.get("seq", "")
        if not given.isascii() or not given.isdigit() or len(given) > _MOST_DIGITS:
            raise Http404
        return int(given)
