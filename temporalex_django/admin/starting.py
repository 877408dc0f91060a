"""Starting a run from the admin: which class, then a form of what its ``run`` takes, empty or like another run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from temporalex_django.access import Operation, policy, redactor_for
from temporalex_django.actions import audit
from temporalex_django.actions.once import DuplicateRequest
from temporalex_django.actions.start import Start, refused_start_operation
from temporalex_django.admin.requests import actor_of, asked, refuse, sent_before, user_of
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.core.attributes import ATTRIBUTE_TYPES, encode, parse
from temporalex_django.errors import ActionNotPermitted, InvalidId, PayloadError, TemporalexError
from temporalex_django.forms.fields import NOTHING
from temporalex_django.forms.payload_forms import PayloadForm
from temporalex_django.models import Instance

if TYPE_CHECKING:
    from temporalex_django.admin.instance import InstanceAdmin

_LONGEST = 200
_ATTRIBUTE = "attribute_"


class StartForm(PayloadForm):
    """What a run is started with. ``identity`` is its id, or the business value of a class whose runs are unique."""

    identity = forms.CharField(max_length=_LONGEST, required=False, label=gettext_lazy("Id"))

    def __init__(self, *args: Any, workflow: type[Workflow], **kwargs: Any) -> None:
        super().__init__(*args, annotation=workflow.definition.args_type, **kwargs)
        self.declared = workflow.search_attributes
        for name in self.declared:
            self.fields[_ATTRIBUTE + name] = self._attribute(name)
        self.unique = workflow.unique is not None
        field = self.fields["identity"]
        field.required = self.unique
        field.widget.attrs["class"] = "vTextField"
        if workflow.unique is not None:
            field.label = workflow.unique.key
            field.help_text = _("What its runs are found by. One that is taken is refused.")
        else:
            field.help_text = _("Left empty, it gets one of its own.")

    def _attribute(self, name: str) -> forms.Field:
        kind = ATTRIBUTE_TYPES[self.declared[name]]
        field = forms.CharField(required=False, label=_("Search attribute %(name)s") % {"name": name})
        field.widget.attrs["class"] = "vTextField"
        field.help_text = _("%(kind)s; left empty, it has none.") % {"kind": kind.name}
        return field

    def clean(self) -> dict[str, Any]:
        data = super().clean()
        self.search_attributes: dict[str, Any] = {}
        for name, kind in self.declared.items():
            text = data.get(_ATTRIBUTE + name) or ""
            if not text:
                continue
            try:
                several = [part.strip() for part in text.split(",") if part.strip()]
                value = several if kind == list[str] else parse(text, kind)
                encode(name, value, self.declared, label=str(_("What is written here")))
            except (ValueError, PayloadError) as exc:
                self.add_error(_ATTRIBUTE + name, str(exc))
            else:
                self.search_attributes[name] = value
        return data

    @property
    def named(self) -> tuple[str | None, str | None]:
        """Id and value of the run, as far as they were given."""
        given = self.cleaned_data["identity"] or None
        return (None, given) if self.unique else (given, None)


def startable(user: Person) -> Iterator[type[Workflow]]:
    """The classes that this person may start from here, by name."""
    for name in sorted(workflows.registry):
        cls = workflows.find(name).choose(None, {})
        if may_start(user, cls):
            yield cls


def may_start(user: Person, cls: type[Workflow] | None = None) -> bool:
    """Whether he may start runs of that class from here; without one, of any."""
    if cls is not None:
        return refused_start_operation(user, cls) is None
    return policy().allows(user, Operation(action="start", permission=f"{APP}.start_instance"))


class StartPage:
    """Without ``?workflow=`` the classes to choose from; ``like`` is a run to begin with."""

    template = "admin/temporalex_django/instance/start.html"

    def __init__(self, model_admin: InstanceAdmin) -> None:
        self.admin = model_admin

    def __call__(self, request: HttpRequest) -> HttpResponse:
        user, name = user_of(request), request.GET.get("workflow")
        if request.method not in ("GET", "HEAD", "POST"):
            return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
        if not may_start(user):
            refuse(request, Start.name, _may_not_start(), workflow=name if name and name in workflows.registry else "")
        if not name:
            return self.page(request, classes=self._choices(user))
        found = workflows.registry.get(name)
        if found is None:
            raise Http404
        cls = found.choose(None, {})
        if not may_start(user, cls):
            refuse(request, Start.name, _may_not_start(cls), workflow=cls.name)
        posted = request.POST if request.method == "POST" else None
        example = NOTHING if posted is not None else self._example(request, cls)
        form = StartForm(posted, workflow=cls, example=example)
        if posted is not None and form.is_valid():
            return self._posted(request, cls, form)
        return self.page(request, workflow=cls, form=form)

    def _posted(self, request: HttpRequest, cls: type[Workflow], form: StartForm) -> HttpResponse:
        token = form.cleaned_data["token"]
        if sent_before(request, token):
            return self._sent_before(request)
        try:
            run_id, value = form.named
            with asked(request, token).run_once() as answer:
                target = Start(
                    cls,
                    args=form.payload,
                    id=run_id,
                    value=value,
                    search_attributes=form.search_attributes or None,
                    by=actor_of(request),
                ).execute()
                answer.made = target.run_id
        except DuplicateRequest:  # another process was quicker
            return self._sent_before(request)
        except ActionNotPermitted as exc:
            raise PermissionDenied(str(exc)) from exc
        except TemporalexError as exc:
            form.add_error("identity" if isinstance(exc, InvalidId) else None, exc.message)
            form.renew()
            return self.page(request, workflow=cls, form=form, status=409)
        messages.success(request, _("Started %(id)s.") % {"id": target.workflow_id})
        return HttpResponseRedirect(self.admin.address_of(target.row))

    def _sent_before(self, request: HttpRequest) -> HttpResponse:
        messages.info(request, _("This form was sent before: nothing more was started."))
        return HttpResponseRedirect(self._list())

    def page(self, request: HttpRequest, *, status: int = 200, **more: Any) -> HttpResponse:
        site, workflow = self.admin.admin_site, more.get("workflow")
        title = _("Start a run") if workflow is None else _("Start %(workflow)s") % {"workflow": workflow.name}
        context = {
            **site.each_context(request),
            "title": title,
            "opts": self.admin.opts,
            "media": self.admin.media,
            "list_address": self._list(),
            "about": "" if workflow is None else _first_line(workflow),
            **more,
        }
        request.current_app = site.name
        return TemplateResponse(request, self.template, context, status=status)

    def _choices(self, user: Person) -> list[dict[str, str]]:
        return [
            {"name": cls.name, "address": f"?{urlencode({'workflow': cls.name})}", "about": _first_line(cls)}
            for cls in startable(user)
        ]

    def _example(self, request: HttpRequest, cls: type[Workflow]) -> Any:
        """The input of the run that ``like`` names, as far as he sees all of it."""
        like = request.GET.get("like")
        run = self.admin.run_for(request, like) if like else None
        if run is None or run.workflow != cls.name or not self.admin.has_view_permission(request, run):
            return NOTHING
        view = redactor_for(user_of(request), run)
        if not view.shows_payloads:
            return NOTHING
        whole, shown = run.input, view.redact_payload(run.input)
        if isinstance(whole, dict) and isinstance(shown, dict):
            example: Any = {name: part for name, part in whole.items() if name in shown and shown[name] == part}
        elif whole == shown:
            example = whole
        else:
            return NOTHING
        audit.record_read(actor_of(request), run)
        return example

    def _list(self) -> str:
        return reverse(f"{self.admin.admin_site.name}:temporalex_django_instance_changelist")


def like_address(run: Instance, user: Person, *, address: str) -> str | None:
    """Of the form for another run like this one; None where he may not start it. ``address`` is that of the page."""
    found = workflows.find_or_none(run.workflow)
    if found is None or not may_start(user, found.choose(None, {})):
        return None
    return f"{address}?{urlencode({'workflow': run.workflow, 'like': str(run.pk)})}"


def _may_not_start(cls: type[Workflow] | None = None) -> str:
    if cls is None:
        return _("You may not start runs: that takes the permission %(wanted)s.") % {"wanted": f"{APP}.start_instance"}
    return _("You may not start runs of %(workflow)s from here.") % {"workflow": cls.name}


def _first_line(cls: type[Workflow]) -> str:
    return (cls.__dict__.get("__doc__") or "").strip().split("\n", 1)[0]
