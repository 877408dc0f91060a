"""Switches in the admin: the list of those that are off, a form to switch off, and buttons to switch on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Case, F, QuerySet, TextField, Value, When
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from temporalex_django.access import VIEW_PAYLOAD, Operation, policy
from temporalex_django.admin.base import ReadOnlyAdmin, actor_of, format_time, user_of
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.errors import ActionNotPermitted, TemporalexError
from temporalex_django.forms.payload_forms import NoteFormField
from temporalex_django.models import SwitchedOff
from temporalex_django.operations.base import storage
from temporalex_django.operations.fleet.switches import (
    SwitchOff,
    SwitchOn,
    active_switches,
    redact_holds,
    switchable_names,
)


class SwitchForm(forms.Form):
    """The form that switches off a queue, an activity or a workflow class in the admin.

    ``thing`` says which, as ``kind:name``. The choices are the names that this process or a live worker knows, and the
    name that the URL or the post contains.
    """

    thing = forms.ChoiceField(label=_("What"), label_suffix="")
    key = forms.CharField(required=False, max_length=200, widget=forms.HiddenInput)
    reason = NoteFormField(
        required=False, label=_("Reason"), label_suffix="",
        help_text=_("Shown to people whose runs are waiting, and in the audit log."),
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )  # fmt: skip

    def __init__(self, *args: Any, alias: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        groups: list[Any] = [
            (label, [(f"{kind}:{name}", name) for name in sorted(switchable_names(kind, alias=alias))])
            for kind, label in SwitchedOff.Switchable.choices
            if kind != SwitchedOff.Switchable.HOLD
        ]
        choice_keys = {value for _label, options in groups for value, _name in options}
        selected_key = str(self.data.get("thing") or self.initial.get("thing") or "")
        # Neither this process nor a live worker may know the name: what a link or a post names can be switched anyway.
        if selected_key.partition(":")[0] in SwitchedOff.Switchable.values and selected_key not in choice_keys:
            groups.append((selected_key, selected_key.partition(":")[2]))
        self.fields["thing"].choices = groups  # type: ignore[attr-defined] # a ChoiceField


def can_switch(user: Person) -> bool:
    """Return True if the user may switch queues, activities and workflow classes off and on."""
    return policy().allows(user, Operation(action=SwitchOff.name, permission=f"{APP}.{SwitchOff.permission}"))


def switch_address_for(site: admin.AdminSite, user: Person) -> Callable[[str, str], str | None]:
    """Return a function that returns the URL of the form which switches off a queue, an activity or a workflow class.

    The function takes the kind and the name, and returns None if the user may not use switches, or if the site has no
    page for them.
    """
    if not site.is_registered(SwitchedOff) or not can_switch(user):
        return lambda *_: None
    page = reverse(f"{site.name}:temporalex_django_switchedoff_changelist")
    return lambda kind, name: f"{page}?{urlencode({'thing': f'{kind}:{name}'})}"


@admin.register(SwitchedOff)
class SwitchedOffAdmin(ReadOnlyAdmin[SwitchedOff]):
    """The admin list of everything that is switched off, with a form and buttons to switch it off and on.

    Rows are added and deleted by ``off_view`` and ``on_view``, not by saving them.
    """

    list_display = ("name", "kind", "off_since", "by", "shown_reason")
    list_display_links = None
    ordering = ("kind", "name")
    change_list_template = "admin/temporalex_django/switchedoff/change_list.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[SwitchedOff]:
        """Return everything that is switched off, each with the reason that the user may see (``visible_reason``)."""
        reason: Any = F("reason")
        # The reason of a hold is the message of an error, which may quote payloads.
        if not policy().allows(user_of(request), VIEW_PAYLOAD):
            reason = Case(When(until=None, then=F("reason")), default=Value(""), output_field=TextField())
        active = active_switches(storage().alias).values("pk")
        return super().get_queryset(request).filter(pk__in=active).annotate(visible_reason=reason)

    @admin.display(description=_("reason"), ordering="visible_reason")
    def shown_reason(self, switch: SwitchedOff) -> str:
        return str(switch.visible_reason)  # type: ignore[attr-defined] # an annotation

    @admin.display(description=_("since"), ordering="since")
    def off_since(self, switch: SwitchedOff) -> SafeString:
        return format_time(switch.since)

    def get_urls(self) -> list[Any]:
        """Return the URLs of the views that switch off and on, followed by the URLs of Django's ``ModelAdmin``.

        The order matters: Django's last pattern matches every URL.
        """
        view = self.admin_site.admin_view
        return [
            path("off/", view(self.off_view), name="temporalex_django_switchedoff_off"),
            path("on/", view(self.on_view), name="temporalex_django_switchedoff_on"),
            *super().get_urls(),
        ]

    def off_view(self, request: HttpRequest) -> HttpResponse:
        """Switch a queue, an activity or a workflow class off on a POST: workers start no more work of it."""
        return self._operate(request, SwitchOff, _("Switched off. Workers will stop taking this work within a second."))

    def on_view(self, request: HttpRequest) -> HttpResponse:
        """Switch a queue, an activity or a workflow class on again on a POST: work that has waited continues."""
        return self._operate(request, SwitchOn, _("Switched on. Waiting work will continue within a second."))

    def _operate(self, request: HttpRequest, action: type[SwitchOff], success_message: Any) -> HttpResponse:
        """Execute ``action`` if the request is a POST with a valid form, and redirect to the list.

        The list shows ``success_message``, or the error if the operation is refused.
        """
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        form = SwitchForm(request.POST, alias=storage().alias)
        if not form.is_valid():
            messages.error(
                request, " ".join(str(error) for field_errors in form.errors.values() for error in field_errors)
            )
        else:
            cleaned_data = form.cleaned_data
            try:
                kind, _colon, name = cleaned_data["thing"].partition(":")
                options = {"reason": cleaned_data["reason"], "key": cleaned_data["key"]}
                switch = action(kind, name, **options, by=actor_of(request))
                switch.execute()
            except ActionNotPermitted as exc:
                raise PermissionDenied(str(exc)) from exc
            except TemporalexError as exc:
                messages.error(request, exc.message)
            else:
                messages.success(request, success_message)
                if switch.notice:
                    messages.warning(request, switch.notice)
        return HttpResponseRedirect(reverse(f"{self.admin_site.name}:temporalex_django_switchedoff_changelist"))

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show everything that is switched off; users who may use switches also get the form and the buttons.

        ``?thing=`` is the initial value of the form.
        """
        query: Any = request.GET.copy()
        thing = query.pop("thing", [""])[-1]
        # Django redirects with an error for a parameter that is no filter, so remove ours.
        request.GET = query
        is_allowed = can_switch(user_of(request))
        switches = []
        if is_allowed and self.has_view_permission(request):
            switches = redact_holds(active_switches(storage().alias), user_of(request))
        context: dict[str, Any] = {"switch_form": None, "off": switches}
        if is_allowed:
            context["switch_form"] = SwitchForm(alias=storage().alias, initial={"thing": thing})

        return super().changelist_view(request, {**context, **(extra_context or {})})
