"""Base of the pages that do something to one run: looking shows what it would do, posting does it."""

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

from temporalex_django.actions.base import storage
from temporalex_django.actions.once import DuplicateRequest
from temporalex_django.actions.targets import RunTarget, find_run
from temporalex_django.admin.requests import asked, refuse, sent_before
from temporalex_django.admin.shown import status_badge
from temporalex_django.errors import ActionNotPermitted, TemporalexError, WorkflowNotFound
from temporalex_django.forms.payload_forms import TokenForm
from temporalex_django.models import Instance

if TYPE_CHECKING:
    from temporalex_django.admin.instance import InstanceAdmin


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """What a page says before somebody presses its button.

    ``why_not`` is why it cannot be done now, ``not_yours`` why this person may not: then there is no button. ``action``
    is what the audit calls it, ``message`` the name of what is sent. ``again`` are lines of what is done again.
    """

    heading: str
    effect: str
    button: str
    destructive: bool = False
    why_not: str | None = None
    not_yours: str | None = None
    action: str
    message: str = ""
    again: Sequence[str] = ()


class RunPage(ABC):
    """A view of an ``InstanceAdmin`` (or a subclass, under any site) about one run."""

    #: Posted twice, the second time nothing is done; else the operation itself knows its token.
    once: ClassVar[bool] = False
    template = "admin/temporalex_django/instance/confirm_action.html"

    def __init__(self, model_admin: InstanceAdmin) -> None:
        self.admin = model_admin

    @abstractmethod
    def confirmation(self, request: HttpRequest, run: Instance) -> Confirmation:
        """Raises ``Http404`` for an address that means nothing."""

    @abstractmethod
    def form(self, request: HttpRequest, run: Instance) -> TokenForm: ...

    @abstractmethod
    def act(self, request: HttpRequest, run: Instance, form: Any) -> Any:
        """Do it, and say what was done. Raises ``TemporalexError``."""

    def __call__(self, request: HttpRequest, run_id: str, **_named: str) -> HttpResponse:
        run = self.admin.run_for(request, run_id)
        if run is None:
            return self.admin.no_such_run(request, run_id)
        self.admin.require_view(request, run)
        if request.method not in ("GET", "HEAD", "POST"):
            return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
        said = self.confirmation(request, run)
        form = self.form(request, run)
        if request.method != "POST":
            return self.page(request, run, said, form)
        return self.posted(request, run, said, form)

    def posted(self, request: HttpRequest, run: Instance, said: Confirmation, form: Any) -> HttpResponse:
        """Act, and go to the page of the run; the form again where that was not possible."""
        if said.not_yours is not None:
            refuse(request, said.action, said.not_yours, run=run, message=said.message)
        if self.once and sent_before(request, str(form.data.get("token"))):
            return self._sent_before(request, run)
        if said.why_not is not None:  # it became so since he looked
            return self.page(request, run, said, form, status=409)
        if not form.is_valid():
            return self.page(request, run, said, form)
        try:
            done = self._once(request, run, form) if self.once else self.act(request, run, form)
        except DuplicateRequest:  # another process was quicker
            return self._sent_before(request, run)
        except ActionNotPermitted as exc:
            raise PermissionDenied(str(exc)) from exc
        except WorkflowNotFound:
            return self.admin.no_such_run(request, str(run.pk))
        except TemporalexError as exc:
            form.add_error(None, exc.message)
            form.renew()
            return self.page(request, run, said, form, status=409)
        messages.success(request, done)
        return HttpResponseRedirect(self.afterwards(request, run, form))

    def _once(self, request: HttpRequest, run: Instance, form: TokenForm) -> Any:
        """What is done commits with the token. Raises ``DuplicateRequest``."""
        with asked(request, form.cleaned_data["token"]).run_once() as answer:
            done = self.act(request, run, form)
            answer.made = run.pk
        return done

    def _sent_before(self, request: HttpRequest, run: Instance) -> HttpResponse:
        messages.info(request, _("This form was sent before: nothing more was done."))
        return HttpResponseRedirect(self.afterwards(request, run))

    def page(
        self,
        request: HttpRequest,
        run: Instance,
        said: Confirmation,
        form: TokenForm,
        *,
        status: int = 200,
        **more: Any,
    ) -> HttpResponse:
        site = self.admin.admin_site
        context = {
            **site.each_context(request),
            "title": said.heading,
            "subtitle": None,
            "original": run,
            "opts": self.admin.opts,
            "media": self.admin.media,
            "has_view_permission": True,
            "add": False,
            "change": True,
            "is_popup": False,
            "badge": status_badge(run.status, blocked=bool(run.blocked)),
            "said": said,
            "form": form,
            "back": self.admin.address_of(run),
            "newest": self.admin.newest_address(request, run),
            **more,
        }
        request.current_app = site.name
        return TemplateResponse(request, self.template, context, status=status)

    def target(self, request: HttpRequest, run: Instance) -> RunTarget:
        """Raises ``WorkflowNotFound`` when it was deleted since it was looked up."""
        return find_run(str(run.pk), storage=storage(), visible_runs=self.admin.get_queryset(request))

    def afterwards(self, request: HttpRequest, run: Instance, form: Any = None) -> str:
        """The page of the run; the list when the run is gone."""
        del form
        if self.admin.get_queryset(request).filter(pk=run.pk).exists():
            return self.admin.address_of(run)
        return reverse(f"{self.admin.admin_site.name}:temporalex_django_instance_changelist")


def not_the_present(run: Instance) -> str | None:
    """Why nothing is done to a run that the next one of its chain has followed."""
    if run.chain.run_id == run.pk:
        return None
    return _("This is an earlier run: the chain has gone on as new. Look at its newest run.")
