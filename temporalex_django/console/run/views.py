"""Base classes of the pages about one run: its look-up, and pages that do something to it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import UUID

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from temporalex_django.access import VIEW, policy
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.console.actions import superseded_error
from temporalex_django.console.base import (
    idempotent_request,
    is_duplicate_request,
    refuse,
    status_badge,
    user_of,
    view_permission_error,
)
from temporalex_django.console.live import is_poll
from temporalex_django.console.mount import ConsoleView
from temporalex_django.console.run.origin import annotate_schedule
from temporalex_django.errors import ActionNotPermitted, TemporalexError, WorkflowNotFound
from temporalex_django.forms.payload_forms import TokenForm
from temporalex_django.models import Instance
from temporalex_django.operations.base import storage
from temporalex_django.operations.idempotency import DuplicateRequest
from temporalex_django.operations.registry import acts_at_once
from temporalex_django.operations.run_lookup import find_run


class OneRunView(ConsoleView):
    """Base class of the pages about one run. A page says so if the run does not exist, or the user may not see it."""

    section = "runs"
    # The permission is asked for the run: a policy may allow one run and no others.
    operation = None

    @abstractmethod
    def respond_run(self, request: HttpRequest, run: Instance, **kwargs: Any) -> HttpResponse:
        """Return the response about a run that the user may see."""

    def respond(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        run = self.find_run(request, kwargs.pop("run_id"))
        if run is None:
            return self.run_not_found(request)
        if not policy().allows(user_of(request), VIEW.of(run)):
            # A poll writes nothing.
            if is_poll(request):
                return HttpResponse(status=403)
            refuse(request, VIEW.action, view_permission_error(), run=run)
        return self.respond_run(request, run, **kwargs)

    def find_run(self, request: HttpRequest, run_id: UUID) -> Instance | None:
        """Return the run, or None if it does not exist or the user may not see it.

        Its chain and the type of its subject are loaded with it.
        """
        runs = self.prepare(self.runs(request)).select_related("chain", "subject_type")
        return annotate_schedule(runs, user_of(request), alias=storage().alias).filter(pk=run_id).first()

    def prepare(self, runs: QuerySet[Instance]) -> QuerySet[Instance]:
        """Return the runs with what the page needs of its run."""
        return runs

    def run_not_found(self, request: HttpRequest) -> HttpResponse:
        """Return the page, with status 404, that says that there is no such run for the user."""
        if is_poll(request):
            return HttpResponse(status=404)
        context = {"title": _("No such run"), "back": self.mount.address("runs")}
        return self.render(request, context, template="temporalex_django/console/run/not_found.html", status=404)

    def newest_address(self, request: HttpRequest, run: Instance) -> str | None:
        """Return the URL of the newest run of this run's chain.

        Returns None if ``run`` is the newest one, or if the user may not see the newest.
        """
        if superseded_error(run) is None or not self.runs(request).filter(pk=run.chain.run_id).exists():
            return None
        return self.mount.run_address(run.chain.run_id)


# --- pages that act ---------------------------------------------------------------------------------------------------
#
# Base class of the pages that do something to one run: a GET shows the effect, a POST does it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """The texts of a page that asks for confirmation before it does something to a run.

    - ``why_not``: why it is impossible now, or None; if it is impossible, the page has no button.
    - ``permission_error``: why this user may not do it, or None; if they may not, the page has no button.
    - ``action``: the name of the operation in the audit log.
    - ``message``: the name of the message that will be sent, or empty.
    - ``repeated_work``: a line for each activity or child that a reset or fork repeats.
    """

    heading: str
    effect: str
    button: str
    destructive: bool = False
    why_not: str | None = None
    permission_error: str | None = None
    action: str
    message: str = ""
    repeated_work: Sequence[str] = ()


class RunActionView(OneRunView):
    """Base class of views that do something to one run: a GET shows the effect, a POST does it."""

    #: True if the view ignores a second POST with one token; else the operation takes the token or changes nothing.
    is_idempotent: ClassVar[bool] = False
    template = "temporalex_django/console/run/confirm_action.html"
    methods = ("GET", "HEAD", "POST")

    @abstractmethod
    def confirmation(self, request: HttpRequest, run: Instance) -> Confirmation:
        """Return the texts with which the page asks for confirmation.

        Raises ``Http404`` if the URL names nothing that can be done.
        """

    @abstractmethod
    def form(self, request: HttpRequest, run: Instance) -> TokenForm: ...

    @abstractmethod
    def act(self, request: HttpRequest, run: Instance, form: Any) -> Any:
        """Perform the operation of this page with the valid form, and return the message for the user.

        Raises ``TemporalexError`` if the operation is refused.
        """

    def respond_run(self, request: HttpRequest, run: Instance, **kwargs: Any) -> HttpResponse:
        # Nothing of a page with a form is polled.
        if is_poll(request):
            return HttpResponse(status=404)
        confirmation = self.confirmation(request, run)
        form = self.form(request, run)
        if request.method != "POST":
            return self.render_page(request, run, confirmation, form)
        return self.handle_post(request, run, confirmation, form)

    def handle_post(self, request: HttpRequest, run: Instance, confirmation: Confirmation, form: Any) -> HttpResponse:
        """Perform the operation of this page and redirect; if it is refused, show the form again with the error.

        If ``is_idempotent`` is set, a second POST with the same token does nothing and says so.
        """
        if confirmation.permission_error is not None:
            refuse(request, confirmation.action, confirmation.permission_error, run=run, message=confirmation.message)
        # Before why_not: the first POST may have made the action impossible (a run is terminated once), and the second
        # must not show that as an error.
        if self.is_idempotent and is_duplicate_request(request, str(form.data.get("token"))):
            return self._duplicate_response(request, run)
        # The state of the run has changed since the page was shown.
        if confirmation.why_not is not None:
            return self.render_page(request, run, confirmation, form, status=409)
        if not form.is_valid():
            return self.render_page(request, run, confirmation, form)
        try:
            success_message = (
                self._act_once(request, run, form, action=confirmation.action)
                if self.is_idempotent
                else self.act(request, run, form)
            )
        # Another process did the same POST between the check above and the insert of the token.
        except DuplicateRequest:
            return self._duplicate_response(request, run)
        except ActionNotPermitted as exc:
            raise PermissionDenied(str(exc)) from exc
        except WorkflowNotFound:
            return self.run_not_found(request)
        except TemporalexError as exc:
            # The token may be stored: by an operation that takes it, or because the outcome on a cluster is not known.
            # The form starts with a new one.
            form.add_error(None, exc.message)
            form.renew()
            return self.render_page(request, run, confirmation, form, status=409)
        messages.success(request, success_message)
        return HttpResponseRedirect(self.get_success_url(request, run, form))

    def _act_once(self, request: HttpRequest, run: Instance, form: TokenForm, *, action: str) -> Any:
        """Call ``act`` in the transaction that stores the token. Raises ``DuplicateRequest`` if it is stored already.

        An operation that another system does at once is done after the token is stored.
        """
        once = idempotent_request(request, form.cleaned_data["token"])
        with once.run_once_at_once() if acts_at_once(run, action) else once.run_once() as answer:
            success_message = self.act(request, run, form)
            answer.made = run.pk
        return success_message

    def _duplicate_response(self, request: HttpRequest, run: Instance) -> HttpResponse:
        messages.info(request, _("This form was already submitted, so nothing was done this time."))
        return HttpResponseRedirect(self.get_success_url(request, run))

    def render_page(
        self,
        request: HttpRequest,
        run: Instance,
        confirmation: Confirmation,
        form: TokenForm,
        *,
        status: int = 200,
        **extra_context: Any,
    ) -> HttpResponse:
        """Render the page with the texts of ``confirmation`` and the form.

        ``status`` is the status of the response, and ``extra_context`` adds values to the template context.
        """
        context: Mapping[str, Any] = {
            "title": confirmation.heading,
            "run": run,
            "badge": status_badge(run.status, blocked=bool(run.blocked)),
            "said": confirmation,
            "form": form,
            "back": self.mount.run_address(run.pk),
            "newest": self.newest_address(request, run),
            **extra_context,
        }
        return self.render(request, context, status=status)

    def find_target(self, request: HttpRequest, run: Instance) -> RunTarget:
        """Return the ``RunTarget`` of the run, on which operations work.

        Raises ``WorkflowNotFound`` if the run has been deleted.
        """
        return find_run(str(run.pk), storage=storage(), visible_runs=self.runs(request))

    def get_success_url(self, request: HttpRequest, run: Instance, form: Any = None) -> str:
        """Return the URL to redirect to: the page of the run, or the list of runs if the run no longer exists."""
        del form
        if self.runs(request).filter(pk=run.pk).exists():
            return self.mount.run_address(run.pk)
        return self.mount.address("runs")
