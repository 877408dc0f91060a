"""Switches: what is off for all workers, a form that switches something off, and a button that switches it on."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from temporalex_django.access import Operation, policy
from temporalex_django.actions.base import storage
from temporalex_django.actions.switch_off import SwitchOff
from temporalex_django.actions.switch_on import SwitchOn
from temporalex_django.admin.base import ReadOnlyAdmin
from temporalex_django.admin.requests import actor_of, user_of
from temporalex_django.admin.shown import moment
from temporalex_django.authoring.people import APP
from temporalex_django.errors import ActionNotPermitted, TemporalexError
from temporalex_django.models import SwitchedOff

_LONGEST_REASON = 2000


class SwitchForm(forms.Form):
    """Which switch, and why."""

    kind = forms.ChoiceField(choices=SwitchedOff.Switchable.choices, label=_("What"), label_suffix="")
    name = forms.CharField(
        max_length=300, label=_("Name"), label_suffix="", widget=forms.TextInput(attrs={"class": "vTextField"})
    )
    reason = forms.CharField(
        required=False, max_length=_LONGEST_REASON, label=_("Reason"), label_suffix="",
        help_text=_("For whoever waits, and for the audit."), widget=forms.TextInput(attrs={"class": "vTextField"}),
    )  # fmt: skip


@admin.register(SwitchedOff)
class SwitchedOffAdmin(ReadOnlyAdmin[SwitchedOff]):
    """What is off; nothing is changed by saving a row."""

    list_display = ("name", "kind", "off_since", "by", "reason")
    list_display_links = None
    ordering = ("kind", "name")
    change_list_template = "admin/temporalex_django/switchedoff/change_list.html"

    @admin.display(description=_("since"), ordering="since")
    def off_since(self, switch: SwitchedOff) -> SafeString:
        return moment(switch.since)

    def get_urls(self) -> list[Any]:
        """Ours before Django's, whose last one takes everything."""
        view = self.admin_site.admin_view
        return [
            path("off/", view(self.off_view), name="temporalex_django_switchedoff_off"),
            path("on/", view(self.on_view), name="temporalex_django_switchedoff_on"),
            *super().get_urls(),
        ]

    def off_view(self, request: HttpRequest) -> HttpResponse:
        """Workers take nothing of it."""
        return self._turned(request, SwitchOff, _("It is switched off: workers hear of it within a second."))

    def on_view(self, request: HttpRequest) -> HttpResponse:
        """What waited goes on."""
        return self._turned(request, SwitchOn, _("It is switched on: what waited goes on within a second."))

    def _turned(self, request: HttpRequest, action: type[SwitchOff], done: Any) -> HttpResponse:
        """Only of a POST. What cannot be done now is said on the list."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        form = SwitchForm(request.POST)
        if not form.is_valid():
            messages.error(request, " ".join(str(one) for found in form.errors.values() for one in found))
        else:
            said = form.cleaned_data
            try:
                action(said["kind"], said["name"], reason=said["reason"], by=actor_of(request)).execute()
            except ActionNotPermitted as exc:
                raise PermissionDenied(str(exc)) from exc
            except TemporalexError as exc:
                messages.error(request, exc.message)
            else:
                messages.success(request, done)
        return HttpResponseRedirect(reverse(f"{self.admin_site.name}:temporalex_django_switchedoff_changelist"))

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """With the form and the buttons, for who may."""
        wanted = Operation(action=SwitchOff.name, permission=f"{APP}.{SwitchOff.permission}")
        may = policy().allows(user_of(request), wanted)
        off = [*SwitchedOff.objects.using(storage().alias)] if may and self.has_view_permission(request) else []
        context = {"switch_form": SwitchForm() if may else None, "off": off}
        return super().changelist_view(request, {**context, **(extra_context or {})})
