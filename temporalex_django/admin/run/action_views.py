"""Base class of the admin pages that do something to one run: a GET shows the effect, a POST does it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext as _

from temporalex_django.admin.base import idempotent_request, is_duplicate_request, refuse
from temporalex_django.admin.formatting import status_badge
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.errors import ActionNotPermitted, TemporalexError, WorkflowNotFound
from temporalex_django.forms.payload_forms import TokenForm
from temporalex_django.models import Instance
from temporalex_django.operations.base import storage
from temporalex_django.operations.idempotency import DuplicateRequest, is_done_at_once
from temporalex_django.operations.run_lookup import find_run

if TYPE_CHECKING:
    from temporalex_django.admin.run.instance import InstanceAdmin


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """The texts of an admin page that asks for confirmation before it does something to a run.

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


class RunActionView(ABC):
    """Base class of admin views that do something to one run: a GET shows the effect, a POST does it.

    ``model_admin`` is the ``InstanceAdmin`` that shows the run. The run is found through its queryset, so a project's
    subclass can restrict the runs.
    """

    #: True if the view ignores a second POST with one token; else the operation takes the token or changes nothing.
    is_idempotent: ClassVar[bool] = False
    template = "admin/temporalex_django/instance/confirm_action.html"

    def __init__(self, model_admin: InstanceAdmin) -> None:
        self.admin = model_admin

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

    def __call__(self, request: HttpRequest, run_id: str, **_url_kwargs: str) -> HttpResponse:
        run = self.admin.find_run(request, run_id)
        if run is None:
            return self.admin.run_not_found(request, run_id)
        self.admin.require_view_permission(request, run)
        if request.method not in ("GET", "HEAD", "POST"):
            return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
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
            return self.admin.run_not_found(request, str(run.pk))
        except TemporalexError as exc:
            # The token may be stored: by an operation that takes it, or because the outcome on a cluster is not known.
            # The form starts with a new one.
            form.add_error(None, exc.message)
            form.renew()
            return self.render_page(request, run, confirmation, form, status=409)
        messages.success(request, success_message)
        return HttpResponseRedirect(self.get_success_url(request, run, form))

    def _act_once(self, request: HttpRequest, run: Instance, form: TokenForm, *, action: str) -> Any:
        """Call ``act`` in one transaction that also stores the token of the form, and return the message of ``act``.

        An operation that another system does at once is done after the token is stored.

        Raises ``DuplicateRequest`` if the token is stored already.
        """
        once = idempotent_request(request, form.cleaned_data["token"])
        with once.run_once_at_once() if is_done_at_once(run, action) else once.run_once() as answer:
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
        site = self.admin.admin_site
        context = {
            **site.each_context(request),
            "title": confirmation.heading,
            "subtitle": None,
            "original": run,
            "opts": self.admin.opts,
            "media": self.admin.media,
            "has_view_permission": True,
            "add": False,
            "change": True,
            "is_popup": False,
            "badge": status_badge(run.status, blocked=bool(run.blocked)),
            "said": confirmation,
            "form": form,
            "back": self.admin.address_of(run),
            "newest": self.admin.newest_address(request, run),
            **extra_context,
        }
        request.current_app = site.name
        return TemplateResponse(request, self.template, context, status=status)

    def find_target(self, request: HttpRequest, run: Instance) -> RunTarget:
        """Return the ``RunTarget`` of the run, on which operations work.

        Raises ``WorkflowNotFound`` if the run has been deleted.
        """
        return find_run(str(run.pk), storage=storage(), visible_runs=self.admin.get_queryset(request))

    def get_success_url(self, request: HttpRequest, run: Instance, form: Any = None) -> str:
        """Return the URL to redirect to: the page of the run, or the list of runs if the run no longer exists."""
        del form
        if self.admin.get_queryset(request).filter(pk=run.pk).exists():
            return self.admin.address_of(run)
        return reverse(f"{self.admin.admin_site.name}:temporalex_django_instance_changelist")


def superseded_error(run: Instance) -> str | None:
    """Return the sentence that says that this run cannot be operated, because a later run of its chain followed it.

    Returns None for the newest run of a chain.
    """
    if run.chain.run_id == run.pk:
        return None
    return _("This is an earlier run of its chain. Go to the newest run.")
