"""The page that starts a run: a list of the classes, and for each a form for its input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from temporalex_django.access import VIEW, policy, redactor_for
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.requests import StartRequest
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.console.base import (
    actor_of,
    idempotent_request,
    is_duplicate_request,
    posted_data,
    refuse,
    user_of,
)
from temporalex_django.console.live import is_poll
from temporalex_django.console.mount import START, ConsoleView
from temporalex_django.core.payloads.search_attributes import ATTRIBUTE_TYPES, encode, parse
from temporalex_django.errors import ActionNotPermitted, InvalidId, PayloadError, TemporalexError
from temporalex_django.forms.payload_forms import NOTHING, PayloadForm
from temporalex_django.models import Instance
from temporalex_django.operations import audit
from temporalex_django.operations.idempotency import DuplicateRequest
from temporalex_django.operations.runs.start import Start, refused_start_operation

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
    """Yield the workflow classes of this process that the user may start in the console, sorted by name."""
    for name in sorted(workflows.registry):
        cls = workflows.find(name).choose(None, {})
        if can_start(user, cls):
            yield cls


def can_start(user: Person, cls: type[Workflow] | None = None) -> bool:
    """Return True if the user may start runs of the class ``cls`` in the console.

    None as ``cls`` asks if they may start runs in general.
    """
    if cls is not None:
        return refused_start_operation(user, cls) is None
    return policy().allows(user, START)


class StartView(ConsoleView):
    """The page that starts a run of the class ``?workflow=``; without it, the page lists the classes.

    ``?like=`` is the run id of a run whose input fills in the form.
    """

    template = "temporalex_django/console/run/start.html"
    section = "runs"
    methods = ("GET", "HEAD", "POST")
    # Starts have a permission of their own.
    operation = None

    def respond(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        user, name = user_of(request), request.GET.get("workflow")
        if is_poll(request):
            return HttpResponse(status=404)
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
        return HttpResponseRedirect(self._address_after(request, target.run_id))

    def _address_after(self, request: HttpRequest, run_id: UUID) -> str:
        """Return the URL of the page of the new run, or of the list if the user may not view runs."""
        if policy().allows(user_of(request), VIEW):
            return self.mount.run_address(run_id)
        return self.mount.address("start")

    def _duplicate_response(self, request: HttpRequest) -> HttpResponse:
        messages.info(request, _("This form was already submitted, so nothing was started this time."))
        return HttpResponseRedirect(self.mount.address("runs"))

    def render_page(self, request: HttpRequest, *, status: int = 200, **extra_context: Any) -> HttpResponse:
        workflow = extra_context.get("workflow")
        title, about = _("Start a run"), ""
        if workflow is not None:
            title, about = _("Start %(workflow)s") % {"workflow": workflow.name}, class_summary(workflow)
        context = {"title": title, "list_address": self.mount.address("runs"), "about": about, **extra_context}
        return self.render(request, context, status=status)

    def _class_choices(self, user: Person) -> list[dict[str, str]]:
        return [
            {"name": cls.name, "address": f"?{urlencode({'workflow': cls.name})}", "about": class_summary(cls)}
            for cls in startable_classes(user)
        ]

    def _example_input(self, request: HttpRequest, cls: type[Workflow]) -> Any:
        """Return the input of the run in ``?like=`` without redacted parts, or ``NOTHING``. The read is audited."""
        try:
            run = self.runs(request).filter(pk=UUID(request.GET.get("like", ""))).first()
        except ValueError:
            return NOTHING
        if run is None or run.workflow != cls.name or not policy().allows(user_of(request), VIEW.of(run)):
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
        return _("You may not start runs: this requires the permission %(wanted)s.") % {"wanted": START.permission}
    return _("You may not start runs of %(workflow)s from here.") % {"workflow": cls.name}


def class_summary(cls: type[Workflow]) -> str:
    """Return the first line of the docstring of a workflow class; empty without one."""
    # From __dict__: a class without a docstring would inherit that of Workflow.
    return (cls.__dict__.get("__doc__") or "").strip().split("\n", 1)[0]
