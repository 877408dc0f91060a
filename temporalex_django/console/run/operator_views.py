"""Operations on a run: buttons on its page, and a page that shows the effect and asks for a reason.

The operations come from ``operations.registry.STEERING``; a new one needs no code here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import urlencode

from django.http import Http404, HttpRequest
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from temporalex_django.access import redactor_for
from temporalex_django.authoring.authorization import Person
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.console.actions import OperatorActionForm, input_name, permission_error, superseded_error
from temporalex_django.console.base import actor_of, posted_data, user_of
from temporalex_django.console.run.views import Confirmation, RunActionView
from temporalex_django.errors import TemporalexError
from temporalex_django.models import Chain, Instance
from temporalex_django.operations.base import storage
from temporalex_django.operations.read import timeline
from temporalex_django.operations.registry import STEERING
from temporalex_django.operations.runs.failures import FailedMessageAction
from temporalex_django.operations.runs.history_action import ReplayFromAction
from temporalex_django.operations.runs.operator_action import OperatorRunAction

_MAX_DIGITS = 9
_MAX_REPEATED = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionLink:
    """A button on a page that leads to the page of an operation.

    ``name`` is that of the operation. ``why_not`` is None, or the reason why the operation is impossible: the button is
    then disabled and shows it. ``lacks_permission`` is True if that reason is a permission that the user lacks.
    ``destructive`` is True if the operation cannot be undone.
    """

    name: str
    label: str
    address: str
    destructive: bool = False
    why_not: str | None = None
    lacks_permission: bool = False


def run_action_links(run: Instance, user: Person, *, address: Callable[[str], str]) -> list[ActionLink]:
    """Return a button for each operation on the run, disabled if it is impossible or the user may not perform it.

    ``address`` takes the name of an operation and returns the URL of its page.
    """
    links = []
    for action in STEERING.values():
        if action.target_kind == "run":
            refused = permission_error(action, user, run)
            reason = refused or superseded_error(run) or action.refusal(run)
            link = build_action_link(action, address=address, why_not=reason)
            links.append(replace(link, lacks_permission=refused is not None))
    return links


def part_action_links(
    run: Instance,
    of: Literal["activity", "timer"],
    seq: int,
    *,
    user: Person,
    address: Callable[[str], str],
    has_worker: bool = True,
) -> list[ActionLink]:
    """Return the buttons for one activity or timer of a run, the one with the command number ``seq``.

    Operations that the user may not perform are left out. The page behind a button checks if the operation is possible.
    ``has_worker`` is True if a live worker has the code of the activity: operations that need one are left out
    otherwise. ``address`` takes the name of an operation and returns the URL of its page.
    """
    return [
        build_action_link(action, address=address, why_not=None, seq=seq)
        for action in STEERING.values()
        if action.target_kind == of and (has_worker or not action.needs_worker)
        if superseded_error(run) is None and permission_error(action, user, run) is None
    ]


def message_action_links(
    run: Instance, message_id: str, *, user: Person, address: Callable[[str], str]
) -> list[ActionLink]:
    """Return the buttons for the failed message with that id, without operations that the user may not perform.

    ``address`` takes the name of an operation and returns the URL of its page.
    """
    if superseded_error(run) is not None:
        return []
    links = [
        build_action_link(action, address=address, why_not=None)
        for action in STEERING.values()
        if issubclass(action, FailedMessageAction) and permission_error(action, user, run) is None
    ]
    query = urlencode({"message": message_id})
    return [replace(link, address=f"{link.address}?{query}") for link in links]


def history_action_links(
    run: Instance, *, user: Person, address: Callable[[str], str]
) -> Callable[[int], list[ActionLink]]:
    """Return a function that takes the number of an activation and returns the buttons to reset or fork the run there.

    The permissions are checked only once. ``address`` takes the name of an operation and returns the URL of its page.
    """
    labels = {"reset": _("Reset to here"), "fork": _("Fork from here")}
    links = [
        replace(build_action_link(action, address=address, why_not=None), label=labels.get(name, str(action.label)))
        for name, action in STEERING.items()
        if issubclass(action, ReplayFromAction) and superseded_error(run) is None
        if action.refusal(run) is None and permission_error(action, user, run) is None
    ]
    closing = run.chain.activations if run.chain.run_id == run.pk and not run.is_open else None

    def links_at(activation: int) -> list[ActionLink]:
        # After the last activation of a closed run there is nothing to continue.
        if activation == closing:
            return []
        return [replace(link, address=f"{link.address}?to={activation}") for link in links]

    return links_at


def build_action_link(
    action: type[OperatorRunAction[Any]], *, address: Callable[[str], str], why_not: str | None, seq: int | None = None
) -> ActionLink:
    """Return the button of an operation; ``seq`` is the command number of the activity or timer that it is about.

    ``address`` takes the name of an operation and returns the URL of its page. ``why_not`` is the reason why the button
    is disabled, or None.
    """
    query_string = ""
    if seq is not None:
        query_string = f"?seq={seq}"
    return ActionLink(
        name=action.name,
        label=str(action.label),
        address=f"{address(action.name)}{query_string}",
        destructive=action.destructive,
        why_not=why_not,
    )


class OperatorActionView(RunActionView):
    """The page of an operation on a run: a GET shows its effect and a form, a POST performs it.

    The URL names the operation.
    """

    is_idempotent = True

    def confirmation(self, request: HttpRequest, run: Instance) -> Confirmation:
        action, seq = self._action_class(request), self._target_seq(request)
        label = heading = str(action.label)
        options = {}
        if seq is not None:
            heading, options = _("%(label)s (number %(seq)s)") % {"label": label, "seq": seq}, {"seq": seq}
        return Confirmation(
            heading=heading,
            effect=action.effect_text(run),
            repeated_work=self._repeated_work(request, run),
            button=label,
            destructive=action.destructive,
            why_not=superseded_error(run) or action.refusal(run, **options),
            permission_error=permission_error(action, user_of(request), run),
            action=action.name,
        )

    def form(self, request: HttpRequest, run: Instance) -> OperatorActionForm:
        action = self._action_class(request)
        initial = {
            input_name(action_input): request.GET[action_input.name]
            for action_input in action.inputs
            if action_input.name in request.GET
        }
        # A page shows only the inputs that the user may set. A POST takes all, so that the action itself refuses the
        # others and the audit log records the denial.
        posted = posted_data(request)
        inputs = action.inputs if posted is not None else action.inputs_for(user_of(request), run)
        return OperatorActionForm(posted, action=action, inputs=inputs, initial=initial)

    def act(self, request: HttpRequest, run: Instance, form: OperatorActionForm) -> str:
        action, seq = self._action_class(request), self._target_seq(request)
        inputs = form.input_values if seq is None else {"seq": seq, **form.input_values}
        operation = action(
            self.find_target(request, run), reason=form.cleaned_data["reason"], by=actor_of(request), **inputs
        )
        result = operation.execute()
        # A fork returns the target of its new run, a reset the id of the next one; other actions return neither.
        match result:
            case RunTarget():
                form.new_run_id = str(result.selected_run_id)
            case str():
                form.new_run_id = result
            case _:
                form.new_run_id = None
        return str(operation.done_message)

    def get_success_url(self, request: HttpRequest, run: Instance, form: Any = None) -> str:
        """Return the URL of the page to show after the operation.

        This is the page of the run that the operation has created, or else that of the newest run of the chain. If the
        user may not see that run, it is the page of the run that was operated.
        """
        chains = Chain.objects.using(storage().alias).filter(pk=run.chain_id)
        new_run_id: Any = getattr(form, "new_run_id", None) or chains.values_list("run_id", flat=True).first()
        new_run = self.runs(request).filter(pk=new_run_id).first()
        if new_run is None:
            return super().get_success_url(request, run)
        return self.mount.run_address(new_run.pk)

    def _repeated_work(self, request: HttpRequest, run: Instance) -> list[str]:
        """Return the activities and child runs that a reset or fork to ``?to=`` would repeat; else an empty list."""
        activation_text = request.GET.get("to", "")
        if (
            not issubclass(self._action_class(request), ReplayFromAction)
            or not activation_text.isascii()
            or not activation_text.isdigit()
        ):
            return []
        if len(activation_text) > _MAX_DIGITS:
            return []
        redactor, now = redactor_for(user_of(request), run), timezone.now()
        try:
            rows = timeline.repeated_rows(RunTarget.of(run), int(activation_text), redactor=redactor, storage=storage())
        except TemporalexError:  # a run on a cluster has not told its history
            return [
                _("The activities that would be repeated are not known, because no worker has returned the history.")
            ]
        texts = [row.text(now=now, titles=timeline.titles_of(row)) for row in rows[:_MAX_REPEATED]]
        hidden_count = len(rows) - len(texts)
        hidden_text = ngettext("and %(count)d more", "and %(count)d more", hidden_count) % {"count": hidden_count}
        return [*texts, *([hidden_text] if hidden_count else [])]

    def _action_class(self, request: HttpRequest) -> type[OperatorRunAction[Any]]:
        match = request.resolver_match
        action = None
        if match is not None:
            action = STEERING.get(match.kwargs["action"])
        if action is None:
            raise Http404
        return action

    def _target_seq(self, request: HttpRequest) -> int | None:
        # Anybody can write the address: check the digits before int(), which accepts other digits and long numbers.
        if self._action_class(request).target_kind == "run":
            return None
        seq_text = request.GET.get("seq", "")
        if not seq_text.isascii() or not seq_text.isdigit() or len(seq_text) > _MAX_DIGITS:
            raise Http404
        return int(seq_text)
