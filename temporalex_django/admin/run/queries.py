"""Queries in the admin: a user asks a run, whose published state answers."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from temporalex_django.access import Operation, policy
from temporalex_django.admin.base import actor_of, posted_data, refuse, user_of
from temporalex_django.admin.formatting import format_payload
from temporalex_django.admin.run.action_views import Confirmation, RunActionView
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.errors import ActionNotPermitted, TemporalexError
from temporalex_django.forms.payload_forms import PayloadForm
from temporalex_django.models import Instance
from temporalex_django.operations.read.describe import available_queries
from temporalex_django.operations.runs.messages import Query

_PERMISSION = f"{APP}.query_instance"


def query_links(run: Instance, user: Person, *, address: str) -> list[dict[str, str]]:
    """Return the name and the URL of each query that the class of the run answers, as dicts for the template.

    The list is empty if the user may not query the run. ``address`` is the URL of the page that asks a query.
    """
    if _permission_error(user, run) is not None:
        return []
    return [{"name": name, "address": f"{address}?{urlencode({'name': name})}"} for name in available_queries(run)]


class QueryView(RunActionView):
    """The admin page that asks a run a query, which the URL names: a POST asks it and shows the answer."""

    def confirmation(self, request: HttpRequest, run: Instance) -> Confirmation:
        name = self._query_name(request, run)
        return Confirmation(
            heading=_("Query “%(name)s”") % {"name": name},
            effect=_("The query is answered from the published state of the run. Nothing is changed."),
            button=_("Run query"),
            permission_error=_permission_error(user_of(request), run),
            action=Query.name,
            message=name,
        )

    def form(self, request: HttpRequest, run: Instance) -> PayloadForm:
        posted = posted_data(request)
        return PayloadForm(posted, annotation=available_queries(run)[self._query_name(request, run)])

    def act(self, request: HttpRequest, run: Instance, form: PayloadForm) -> Any:
        query = Query(
            self.find_target(request, run),
            query=self._query_name(request, run),
            args=form.payload,
            by=actor_of(request),
        )
        return query.execute()

    def handle_post(self, request: HttpRequest, run: Instance, confirmation: Confirmation, form: Any) -> HttpResponse:
        """Ask the query and render the page with the answer, without a redirect: the answer is not stored."""
        # No redirect, because the answer is not stored, and the published state may change at any time.
        if confirmation.permission_error is not None:
            refuse(request, confirmation.action, confirmation.permission_error, run=run, message=confirmation.message)
        if not form.is_valid():
            return self.render_page(request, run, confirmation, form)
        try:
            answer = self.act(request, run, form)
        except ActionNotPermitted as exc:
            raise PermissionDenied(str(exc)) from exc
        except TemporalexError as exc:
            form.add_error(None, exc.message)
            return self.render_page(request, run, confirmation, form, status=409)
        return self.render_page(request, run, confirmation, form, answer=format_payload(answer))

    def _query_name(self, request: HttpRequest, run: Instance) -> str:
        name = request.GET.get("name", "")
        # Only declared queries: the name comes from the address, and a query is a method of the class.
        if name not in available_queries(run):
            raise Http404
        return name


def _permission_error(user: Person, run: Instance) -> str | None:
    if policy().allows(user, Operation(action="query", permission=_PERMISSION).of(run)):
        return None
    return _("You may not query this run: this requires the permission %(wanted)s.") % {"wanted": _PERMISSION}
