"""Base class of the admin pages of schedules: which schedules a user sees, and their addresses."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext as _

from temporalex_django.access import Operation, policy, schedules_for
from temporalex_django.admin.base import ReadOnlyAdmin, refuse, user_of
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.models import Schedule
from temporalex_django.operations.base import storage
from temporalex_django.operations.schedules.operations import VIEW_SCHEDULE, ScheduleAction

_MANAGE = f"{APP}.{ScheduleAction.permission}"
_MAX_DIGITS = 18


def can_manage(user: Person, action_name: str) -> bool:
    """Return True if the user may perform the operation with that name on schedules."""
    return policy().allows(user, Operation(action=action_name, permission=_MANAGE))


class ScheduleAdminBase(ReadOnlyAdmin[Schedule]):
    """Base class of ``ScheduleAdmin``: it finds the schedules that a user may see, and renders pages about them.

    The views of this package need only this part.
    """

    def get_queryset(self, request: HttpRequest) -> QuerySet[Schedule]:
        """Return the schedules that the user may see. Every admin page about a schedule uses it."""
        return schedules_for(user_of(request), alias=storage().alias)

    def has_view_permission(self, request: HttpRequest, obj: Schedule | None = None) -> bool:
        return policy().allows(user_of(request), VIEW_SCHEDULE)

    def find_schedule(self, request: HttpRequest, ref: str) -> Schedule | None:
        """Return the schedule with the primary key ``ref``, or None if it does not exist or is hidden from the user.

        A user who may not look at schedules at all gets ``PermissionDenied``, which the audit log records.
        """
        if not self.has_view_permission(request):
            error = _("You may not view schedules: this requires the permission %(wanted)s.")
            refuse(request, VIEW_SCHEDULE.action, error % {"wanted": VIEW_SCHEDULE.permission})
        # More digits would overflow the column, and int() accepts digits that are not ASCII.
        if not (ref.isascii() and ref.isdigit() and len(ref) <= _MAX_DIGITS):
            return None
        return self.get_queryset(request).filter(pk=int(ref)).first()

    def schedule_not_found(self, request: HttpRequest, ref: str) -> HttpResponse:
        """Redirect to the index of the admin with a message that the schedule does not exist."""
        return self._get_obj_does_not_exist_redirect(request, self.opts, ref)  # type: ignore[attr-defined,no-any-return]

    def require_manage_permission(self, request: HttpRequest, action_name: str) -> None:
        """Raise ``PermissionDenied`` if the user may not perform this operation on schedules; the audit log records it.

        ``action_name`` is the name of the operation.
        """
        if not can_manage(user_of(request), action_name):
            error = _("You may not manage schedules: this requires the permission %(wanted)s.")
            refuse(request, action_name, error % {"wanted": _MANAGE})

    def address_of(self, row: Schedule, page: str = "change") -> str:
        """Return the URL of a page about the schedule; by default its own page, else the one named ``page``."""
        return reverse(f"{self.admin_site.name}:temporalex_django_schedule_{page}", args=[row.pk])

    @property
    def list_address(self) -> str:
        return reverse(f"{self.admin_site.name}:temporalex_django_schedule_changelist")

    def render_page(
        self,
        request: HttpRequest,
        template: str,
        *,
        title: str,
        row: Schedule | None,
        status: int = 200,
        **context: Any,
    ) -> HttpResponse:
        """Render an admin page about the schedule ``row``, or about a new one if ``row`` is None.

        ``template`` is the name of the template in the folder of schedules, ``status`` the status of the response, and
        ``context`` adds values to the template context.
        """
        page_context = {
            **self.admin_site.each_context(request),
            "title": title,
            "subtitle": None,
            "original": row,
            "opts": self.opts,
            "media": self.media,
            "has_view_permission": True,
            "add": row is None,
            "change": row is not None,
            "is_popup": False,
            "list_address": self.list_address,
            **context,
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, f"admin/temporalex_django/schedule/{template}", page_context, status=status)
