"""Views that start a run or act on one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import urlencode
from uuid import UUID

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from temporalex_django.access import VIEW, Operation, policy, redactor_for
from temporalex_django.admin.base import ReadOnlyAdmin
from temporalex_django.admin.run.origin import annotate_schedule
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.authoring.requests import StartRequest
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.console.actions import superseded_error
from temporalex_django.console.base import (
    actor_of,
    idempotent_request,
    is_duplicate_request,
    posted_data,
    refuse,
    status_badge,
    user_of,
    view_permission_error,
)
from temporalex_django.core.payloads.search_attributes import ATTRIBUTE_TYPES, encode, parse
from temporalex_django.errors import ActionNotPermitted, InvalidId, PayloadError, TemporalexError, WorkflowNotFound
from temporalex_django.forms.payload_forms import NOTHING, PayloadForm, TokenForm
from temporalex_django.models import Instance
from temporalex_django.operations import audit
from temporalex_django.operations.base import storage
from temporalex_django.operations.idempotency import DuplicateRequest
from temporalex_django.operations.registry import acts_at_once
from temporalex_django.operations.run_lookup import find_run
from temporalex_django.operations.runs.start import Start, refused_start_operation

# --- action views -----------------------------------------------------------------------------------------------------
#
# Base class of the admin pages that do something to one run: a GET shows the effect, a POST does it.


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


class RunPagesAdmin(ReadOnlyAdmin[Instance]):
    """Base class of the admin of runs: what the pages about one run need of it."""

    def address_of(self, run: Instance, page: str = "change", *path_args: str) -> str:
        """Return the URL of a page about the run on this admin site.

        ``page`` is the name of the page, by default the page of the run itself, and ``path_args`` are further parts of
        its URL.
        """
        return reverse(f"{self.admin_site.name}:temporalex_django_instance_{page}", args=[run.pk, *path_args])

    def newest_address(self, request: HttpRequest, run: Instance) -> str | None:
        """Return the URL of the admin page of the newest run of this run's chain.

        Returns None if ``run`` is the newest one, or if the user may not see the newest.
        """
        if superseded_error(run) is None:
            return None
        newest = self.get_queryset(request).filter(pk=run.chain.run_id).first()
        if newest is None:
            return None
        return self.address_of(newest)

    def run_not_found(self, request: HttpRequest, ref: str) -> HttpResponse:
        """Redirect to the index of the admin with a message that the run ``ref`` does not exist."""
        return self._get_obj_does_not_exist_redirect(request, self.opts, ref)  # type: ignore[attr-defined,no-any-return]

    def require_view_permission(self, request: HttpRequest, run: Instance) -> None:
        """Raise ``PermissionDenied`` unless the user may look at the run; the audit log records the refusal."""
        if not self.has_view_permission(request, run):
            refuse(request, VIEW.action, view_permission_error(), run=run)

    def find_run(self, request: HttpRequest, ref: str) -> Instance | None:
        """Return the run with the run id ``ref``, or None if it does not exist or the user may not see it.

        Its chain and the type of its subject are loaded with it.
        """
        try:
            run_id = UUID(ref)
        except ValueError:
            return None
        runs = self.get_queryset(request).select_related("chain", "subject_type")
        return annotate_schedule(runs, user_of(request), alias=storage().alias).filter(pk=run_id).first()


class RunActionView(ABC):
    """Base class of admin views that do something to one run: a GET shows the effect, a POST does it.

    ``model_admin`` is the ``InstanceAdmin`` that shows the run. The run is found through its queryset, so a project's
    subclass can restrict the runs.
    """

    #: True if the view ignores a second POST with one token; else the operation takes the token or changes nothing.
    is_idempotent: ClassVar[bool] = False
    template = "admin/temporalex_django/instance/confirm_action.html"

    def __init__(self, model_admin: RunPagesAdmin) -> None:
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


# --- start view -------------------------------------------------------------------------------------------------------
#
# Start a run from the admin: choose a class, and fill in a form for its input.


_MAX_ID_LENGTH = 200
_ATTRIBUTE_PREFIX = "attribute_"


class StartForm(PayloadForm):
    """The form that starts a run of a class, with fields for its input.

    ``identity`` is the business id or, for a class with ``unique``, the value from which the id is derived.
    """

    identity = forms.CharField(max_length=_MAX_ID_LENGTH, required=False, label=gettext_lazy("Id"))

    def __init__(self, *args: Any, workflow: type[Workflow], **kwargs: Any) -> None:
        super().__init__(*args, annotation=workflow.definition.args_type, **kwargs)
        self.declared_attributes = workflow.search_attributes
        for name in self.declared_attributes:
            self.fields[_ATTRIBUTE_PREFIX + name] = self._attribute_field(name)
        self.is_unique = workflow.unique is not None
        field = self.fields["identity"]
        field.required = self.is_unique
        field.widget.attrs["class"] = "vTextField"
        if workflow.unique is not None:
            field.label = workflow.unique.key
            field.help_text = _("The value that identifies the run. A value that is already in use is refused.")
        else:
            field.help_text = _("Leave it empty to generate an id.")

    def _attribute_field(self, name: str) -> forms.Field:
        kind = ATTRIBUTE_TYPES[self.declared_attributes[name]]
        field = forms.CharField(required=False, label=_("Search attribute %(name)s") % {"name": name})
        field.widget.attrs["class"] = "vTextField"
        field.help_text = _("%(kind)s. Leave it empty if you do not want to set it.") % {"kind": kind.name}
        return field

    def clean(self) -> dict[str, Any]:
        data = super().clean()
        self.search_attributes: dict[str, Any] = {}
        for name, kind in self.declared_attributes.items():
            text = data.get(_ATTRIBUTE_PREFIX + name) or ""
            if not text:
                continue
            try:
                parts = [part.strip() for part in text.split(",") if part.strip()]
                # The same checks as a start in code, but here an error belongs to one field.
                value = parts if kind == list[str] else parse(text, kind)
                encode(name, value, self.declared_attributes, label=str(_("This value")))
            except (ValueError, PayloadError) as exc:
                self.add_error(_ATTRIBUTE_PREFIX + name, str(exc))
            else:
                self.search_attributes[name] = value
        return data

    @property
    def id_and_value(self) -> tuple[str | None, str | None]:
        """``(id, value)``: the business id of the new run, and the value from which ``unique`` derives an id.

        At least one of the two is None.
        """
        identity = self.cleaned_data["identity"] or None
        if self.is_unique:
            return (None, identity)
        return (identity, None)


def startable_classes(user: Person) -> Iterator[type[Workflow]]:
    """Yield the workflow classes of this process that the user may start in the admin, sorted by name."""
    for name in sorted(workflows.registry):
        cls = workflows.find(name).choose(None, {})
        if can_start(user, cls):
            yield cls


def can_start(user: Person, cls: type[Workflow] | None = None) -> bool:
    """Return True if the user may start runs of the class ``cls`` in the admin.

    None as ``cls`` asks if they may start runs in general.
    """
    if cls is not None:
        return refused_start_operation(user, cls) is None
    return policy().allows(user, Operation(action="start", permission=f"{APP}.start_instance"))


class StartView:
    """The admin page that starts a run of the class ``?workflow=``; without it, the page lists the classes.

    ``?like=`` is the run id of a run whose input fills in the form.
    """

    template = "admin/temporalex_django/instance/start.html"

    def __init__(self, model_admin: RunPagesAdmin) -> None:
        self.admin = model_admin

    def __call__(self, request: HttpRequest) -> HttpResponse:
        user, name = user_of(request), request.GET.get("workflow")
        if request.method not in ("GET", "HEAD", "POST"):
            return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
        if not can_start(user):
            refuse(
                request,
                Start.name,
                _start_permission_error(),
                workflow=name if name and name in workflows.registry else "",
            )
        if not name:
            return self.render_page(request, classes=self._class_choices(user))
        startable = workflows.registry.get(name)
        if startable is None:
            raise Http404
        # The name may be that of a versioned workflow: the version that a new run takes defines the form.
        cls = startable.choose(None, {})
        if not can_start(user, cls):
            refuse(request, Start.name, _start_permission_error(cls), workflow=cls.name)
        posted, example = posted_data(request), NOTHING
        if posted is None:
            example = self._example_input(request, cls)
        form = StartForm(posted, workflow=cls, example=example)
        if posted is not None and form.is_valid():
            return self._handle_post(request, cls, form)
        return self.render_page(request, workflow=cls, form=form)

    def _handle_post(self, request: HttpRequest, cls: type[Workflow], form: StartForm) -> HttpResponse:
        token = form.cleaned_data["token"]
        if is_duplicate_request(request, token):
            return self._duplicate_response(request)
        try:
            # The start and the token commit together: if the response gets lost, the second POST starts nothing.
            run_id, value = form.id_and_value
            with idempotent_request(request, token).run_once() as answer:
                start_request = StartRequest(
                    workflow=cls,
                    args=form.payload,
                    id=run_id,
                    value=value,
                    search_attributes=form.search_attributes or None,
                )
                target = Start(start_request, by=actor_of(request)).execute()
                answer.made = target.run_id
        # Another process did the same POST between the check above and the insert of the token.
        except DuplicateRequest:
            return self._duplicate_response(request)
        except ActionNotPermitted as exc:
            raise PermissionDenied(str(exc)) from exc
        except TemporalexError as exc:
            form.add_error("identity" if isinstance(exc, InvalidId) else None, exc.message)
            form.renew()
            return self.render_page(request, workflow=cls, form=form, status=409)
        messages.success(request, _("Started %(id)s.") % {"id": target.workflow_id})
        return HttpResponseRedirect(self.admin.address_of(target.row))

    def _duplicate_response(self, request: HttpRequest) -> HttpResponse:
        messages.info(request, _("This form was already submitted, so nothing was started this time."))
        return HttpResponseRedirect(self._list_address())

    def render_page(self, request: HttpRequest, *, status: int = 200, **extra_context: Any) -> HttpResponse:
        site, workflow = self.admin.admin_site, extra_context.get("workflow")
        title, about = _("Start a run"), ""
        if workflow is not None:
            title, about = _("Start %(workflow)s") % {"workflow": workflow.name}, class_summary(workflow)
        context = {
            **site.each_context(request),
            "title": title,
            "opts": self.admin.opts,
            "media": self.admin.media,
            "list_address": self._list_address(),
            "about": about,
            **extra_context,
        }
        request.current_app = site.name
        return TemplateResponse(request, self.template, context, status=status)

    def _class_choices(self, user: Person) -> list[dict[str, str]]:
        return [
            {"name": cls.name, "address": f"?{urlencode({'workflow': cls.name})}", "about": class_summary(cls)}
            for cls in startable_classes(user)
        ]

    def _example_input(self, request: HttpRequest, cls: type[Workflow]) -> Any:
        """Return the input of the run in ``?like=`` without redacted parts, or ``NOTHING``. The read is audited."""
        like = request.GET.get("like")
        run = None
        if like:
            run = self.admin.find_run(request, like)
        if run is None or run.workflow != cls.name or not self.admin.has_view_permission(request, run):
            return NOTHING
        redactor = redactor_for(user_of(request), run)
        if not redactor.shows_payloads:
            return NOTHING
        # A part that redaction changes is left out: the form would post the placeholder as a value.
        run_input, redacted_input = run.input, redactor.redact_payload(run.input)
        if isinstance(run_input, dict) and isinstance(redacted_input, dict):
            example: Any = {
                name: part
                for name, part in run_input.items()
                if name in redacted_input and redacted_input[name] == part
            }
        elif run_input == redacted_input:
            example = run_input
        else:
            return NOTHING
        # The form shows payloads of the other run.
        audit.record_read(actor_of(request), run)
        return example

    def _list_address(self) -> str:
        return reverse(f"{self.admin.admin_site.name}:temporalex_django_instance_changelist")


def like_address(run: Instance, user: Person, *, address: str) -> str | None:
    """Return the URL of the form that starts a run with the same input as this run.

    Returns None if the user may not start runs of its class. ``address`` is the URL of the empty form.
    """
    startable = workflows.find_or_none(run.workflow)
    if startable is None or not can_start(user, startable.choose(None, {})):
        return None
    return f"{address}?{urlencode({'workflow': run.workflow, 'like': str(run.pk)})}"


def _start_permission_error(cls: type[Workflow] | None = None) -> str:
    if cls is None:
        return _("You may not start runs: this requires the permission %(wanted)s.") % {
            "wanted": f"{APP}.start_instance"
        }
    return _("You may not start runs of %(workflow)s from here.") % {"workflow": cls.name}


def class_summary(cls: type[Workflow]) -> str:
    """Return the first line of the docstring of a workflow class; empty without one."""
    # From __dict__: a class without a docstring would inherit that of Workflow.
    return (cls.__dict__.get("__doc__") or "").strip().split("\n", 1)[0]
