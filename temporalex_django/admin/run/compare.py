"""The admin page that replays a run with the present code and shows the inputs that differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from temporalex_django.access import Operation, policy
from temporalex_django.admin.base import actor_of, posted_data, refuse, user_of
from temporalex_django.admin.formatting import FormattedPayload, format_payload
from temporalex_django.admin.run.action_views import Confirmation, RunActionView
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.errors import ActionNotPermitted, TemporalexError
from temporalex_django.forms.payload_forms import TokenForm
from temporalex_django.models import Instance
from temporalex_django.operations import audit
from temporalex_django.operations.runs.history_action import CompareInputs, InputComparison

_PERMISSION = f"{APP}.{CompareInputs.permission}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """A row of the table that shows where the inputs in a history differ from those that the code produces.

    ``event`` is the number of the event in the history, ``command`` describes the command of the code, and ``path`` is
    the place of the value in the input. ``place`` is the file and line of the code, or empty. ``recorded`` is the value
    in the history, and ``produced`` the value that the code produces now.
    """

    event: int
    command: str
    path: str
    place: str
    recorded: FormattedPayload
    produced: FormattedPayload


def can_compare(run: Instance, user: Person) -> bool:
    """Return True if the user may compare the inputs of this run with the code.

    The run must have started, this process must be able to replay it, and the user must be allowed to see its payloads.
    """
    return _permission_error(user, run) is None and run.started_at is not None and CompareInputs.why_not(run) is None


class CompareView(RunActionView):
    """The page that compares the inputs of a run with its code: a POST replays the run and shows the differences."""

    template = "admin/temporalex_django/instance/compare.html"

    def confirmation(self, request: HttpRequest, run: Instance) -> Confirmation:
        return Confirmation(
            heading=_("Compare inputs with the code"),
            effect=_(
                "This replays the history with the code of this process, and lists the inputs of activities and "
                "children and the durations of timers that differ from the history. Nothing is changed."
            ),
            button=_("Compare"),
            why_not=CompareInputs.why_not(run),
            permission_error=_permission_error(user_of(request), run),
            action=CompareInputs.name,
        )

    def form(self, request: HttpRequest, run: Instance) -> TokenForm:
        return TokenForm(posted_data(request))

    def act(self, request: HttpRequest, run: Instance, form: TokenForm) -> Any:
        return CompareInputs(self.find_target(request, run), by=actor_of(request)).execute()

    def handle_post(self, request: HttpRequest, run: Instance, confirmation: Confirmation, form: Any) -> HttpResponse:
        """Replay the run and render the page with the differences, without a redirect: they are not stored."""
        # No redirect: the differences are not stored, and the process that serves the next request may have other code.
        if confirmation.permission_error is not None:
            refuse(request, confirmation.action, confirmation.permission_error, run=run)
        if confirmation.why_not is not None:
            return self.render_page(request, run, confirmation, form, status=409)
        if not form.is_valid():
            return self.render_page(request, run, confirmation, form)
        try:
            differences = self.act(request, run, form)
        except ActionNotPermitted as exc:
            raise PermissionDenied(str(exc)) from exc
        except TemporalexError as exc:
            form.add_error(None, exc.message)
            return self.render_page(request, run, confirmation, form, status=409)
        # The differences show payloads.
        audit.record_read(actor_of(request), run)
        return self.render_page(
            request, run, confirmation, form, compared=True, differences=[_comparison_row(row) for row in differences]
        )


def _comparison_row(comparison: InputComparison) -> ComparisonRow:
    difference = comparison.difference
    return ComparisonRow(
        event=difference.event,
        command=difference.command,
        path=difference.path,
        place=difference.place or "",
        recorded=format_payload(comparison.recorded),
        produced=format_payload(comparison.produced),
    )


def _permission_error(user: Person, run: Instance) -> str | None:
    if policy().allows(user, Operation(action=CompareInputs.name, permission=_PERMISSION).of(run)):
        return None
    return _("You may not compare inputs: this requires the permission %(permission)s.") % {"permission": _PERMISSION}
