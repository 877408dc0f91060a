"""The place where the console is mounted: its addresses, its users, and the runs that they see."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import messages
from django.contrib.admin.utils import quote
from django.contrib.auth.views import redirect_to_login
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_protect

from temporalex_django.access import VIEW, Operation, policy, runs_for, schedules_for
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.console.base import refuse, user_of, view_permission_error
from temporalex_django.console.live import freeze_session, is_poll, limit_renders
from temporalex_django.models import Instance, Schedule
from temporalex_django.operations.base import storage

NAMESPACE = "temporalex_console"
#: The permission to start runs at all; a class may require another one, too.
START = Operation(action="start", permission=f"{APP}.start_instance")
View = Callable[..., HttpResponse]
#: Pages of the console by the kind of a remedy, with the permission that they need, if any.
_PAGES: dict[str, tuple[str, str]] = {
    "workers": ("workers", f"{APP}.view_worker"),
    "switches": ("switches", f"{APP}.view_switchedoff"),
    "schedules": ("schedules", f"{APP}.view_schedule"),
    "tasks": ("desk", ""),
    "deploy": ("deploy", f"{APP}.view_worker"),
}
#: Lists outside of the console by the kind of a remedy: the model whose admin list it is, and the permission.
_LISTS: dict[str, tuple[str, str]] = {
    "outbox": ("outbox", f"{APP}.view_outbox"),
    "background_tasks": ("enqueuedtask", f"{APP}.view_enqueuedtask"),
}


class Mount:
    """The place of the console in the URLs of a project, without an admin site around it.

    Everybody who is signed in and may view runs can use it.
    """

    #: Namespace of the URLs of the console.
    namespace = NAMESPACE
    #: Namespace of the admin site that has the pages which are not in the console.
    site_name = "admin"

    def address(self, name: str, *args: Any, query: Any = None) -> str:
        """Return the URL of a page of the console; ``query`` are its parameters."""
        address = reverse(f"{self.namespace}:{name}", args=args)
        return f"{address}?{urlencode(query, doseq=True)}" if query else address

    def visible_runs(self, request: HttpRequest) -> QuerySet[Instance] | None:
        """Return the runs that the user of the request sees; None if they see all runs."""
        return runs_for(user_of(request), alias=storage().alias)

    def visible_schedules(self, request: HttpRequest) -> QuerySet[Schedule]:
        """Return the schedules that the user of the request sees."""
        return schedules_for(user_of(request), alias=storage().alias)

    def is_signed_in(self, request: HttpRequest) -> bool:
        """Return True if the user may open pages of this place at all."""
        return bool(request.user.is_authenticated and request.user.is_active)

    def sign_in(self, next_page: str) -> HttpResponse:
        """Return the response for a user who is not signed in. After that they open ``next_page``."""
        return redirect_to_login(next_page)

    def protect(self, view: View) -> View:
        """Return the view for signed-in users only. A poll without one gets status 401 and prolongs no session."""
        answer = csrf_protect(limit_renders(view))
        has_page = "GET" in getattr(view, "methods", ("GET",))

        @never_cache
        def protected(request: HttpRequest, **kwargs: Any) -> HttpResponse:
            is_signed_in = self.is_signed_in(request)
            if is_poll(request):
                freeze_session(request)
                if not is_signed_in:
                    return HttpResponse(status=401)
            elif not is_signed_in:
                if has_page:
                    return self.sign_in(request.get_full_path())
                messages.warning(request, _("You had been signed out, so nothing was done. Press the button again."))
                return self.sign_in(self.address("overview"))
            return answer(request, **kwargs)

        return protected

    def run_address(self, run_id: UUID | str) -> str:
        """Return the URL of the page of a run."""
        return self.address("run", run_id)

    def subject_address(self, request: HttpRequest, run: Instance) -> str:
        """Return the URL of the admin page of the object for which the run was started, or an empty text."""
        kind = run.subject_type
        if kind is None or kind.model_class() is None or not self.shows_admin(request):
            return ""
        if not policy().permits(user_of(request), f"{kind.app_label}.view_{kind.model}"):
            return ""
        return self._address_or_empty(f"{kind.app_label}_{kind.model}_change", quote(run.subject_id or ""))

    def audit_address(self, request: HttpRequest, action: int) -> str:
        """Return the URL of the page of a row of the audit log, or an empty text if there is none for this user."""
        return self._admin_address("operatoraction_change", action) if self.shows_admin(request) else ""

    def list_address(self, request: HttpRequest, kind: str, **query: str) -> str:
        """Return the URL of the list of a kind, such as "workers", here or in the admin; empty if there is none.

        ``query`` has parameters of a list of the console.
        """
        page, permission = (_PAGES | _LISTS)[kind]
        if permission and not policy().permits(user_of(request), permission):
            return ""
        if kind in _PAGES:
            return self.address(page, query=query)
        if not self.shows_admin(request):
            return ""
        return self._admin_address(f"{page}_changelist")

    def task_address(self, task: str) -> str:
        """Return the URL of the page of a human task: that of the pages of the project, or else that of the console."""
        try:
            return reverse("temporalex_pages:task", args=[task])
        except NoReverseMatch:
            return self.address("task", task)

    def schedule_form_address(self, request: HttpRequest, row: Schedule | None = None) -> str:
        """Return the URL of the form that changes a schedule, or adds one without ``row``; empty if there is none."""
        if not self.shows_admin(request):
            return ""
        return self._admin_address("schedule_add") if row is None else self._admin_address("schedule_edit", row.pk)

    def background_tasks_address(self, request: HttpRequest, run_id: UUID) -> str:
        """Return the URL of the list of the background tasks that a run enqueued; empty if there is none."""
        address = self.list_address(request, "background_tasks")
        return f"{address}?{urlencode({'run': run_id})}" if address else ""

    def background_task_address(self, request: HttpRequest, task: UUID | str) -> str:
        """Return the URL of the page of a background task, or an empty text if there is none for this user."""
        return self._admin_address("enqueuedtask_by_id", task) if self.shows_admin(request) else ""

    def task_bulk_address(self, request: HttpRequest, action: str, filters: Mapping[str, str]) -> str:
        """Return the URL of the preview of an operation on the background tasks that the filters select.

        It is empty if there is none for this user.
        """
        if not self.shows_admin(request) or not policy().permits(user_of(request), f"{APP}.operate_tasks"):
            return ""
        model = "endedtask" if filters.get("status") else "enqueuedtask"
        address = self._admin_address(f"{model}_bulk_{action}")
        return f"{address}?{urlencode(filters)}" if address else ""

    def start_address(self, request: HttpRequest) -> str:
        """Return the URL of the form that starts a run, or an empty text if there is none for this user."""
        return self.address("start") if policy().allows(user_of(request), START) else ""

    def shows_admin(self, request: HttpRequest) -> bool:
        """Return True if the user may open pages of the admin site."""
        return bool(getattr(request.user, "is_staff", False))

    def _admin_address(self, name: str, *args: Any) -> str:
        return self._address_or_empty(f"{APP}_{name}", *args)

    def _address_or_empty(self, name: str, *args: Any) -> str:
        try:
            return reverse(f"{self.site_name}:{name}", args=args)
        except NoReverseMatch:
            return ""

    def context(self, request: HttpRequest) -> dict[str, Any]:
        """Return the template context of all pages: the title, the user, and the address of the admin site."""
        return {"site_title": _("Workflows"), "user_name": str(request.user), "home_address": "", "theme_script": ""}


class ConsoleView(ABC):
    """Base class of the views of the console. The user is signed in, and may perform ``operation``, in ``respond``.

    ``operation`` is by default to view runs; None leaves the check to the operation that the view executes.
    """

    template: str
    methods: tuple[str, ...] = ("GET", "HEAD")
    #: The name of the page in the navigation.
    section = ""
    operation: Operation | None = VIEW

    def __init__(self, mount: Mount) -> None:
        self.mount = mount

    @abstractmethod
    def respond(self, request: HttpRequest, **kwargs: Any) -> HttpResponse: ...

    def __call__(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        if request.method not in self.methods:
            return HttpResponseNotAllowed(self.methods)
        if self.operation is not None and not policy().allows(user_of(request), self.operation):
            # A poll writes nothing: the page that polls was refused, or will be.
            if is_poll(request):
                return HttpResponse(status=403)
            reason = view_permission_error()
            if self.operation is not VIEW:
                reason = _("You may not see this: it requires the permission %(wanted)s.") % {
                    "wanted": self.operation.permission
                }
            refuse(request, self.operation.action, reason)
        return self.respond(request, **kwargs)

    def runs(self, request: HttpRequest) -> QuerySet[Instance]:
        """Return the runs that the user sees, as a queryset."""
        runs = self.mount.visible_runs(request)
        return Instance.objects.using(storage().alias) if runs is None else runs

    def render(
        self, request: HttpRequest, context: Mapping[str, Any], *, template: str = "", status: int = 200
    ) -> HttpResponse:
        """Render the page, or only its fragment for a poll."""
        name = template or self.template
        page = {**self.frame(request), **context}
        if is_poll(request):
            name = name.replace(".html", "_live.html")
        return TemplateResponse(request, name, page, status=status)

    def frame(self, request: HttpRequest) -> dict[str, Any]:
        """Return the template context of the frame of a page."""
        return {**self.mount.context(request), "section": self.section, "nav": self._nav(user_of(request))}

    def _nav(self, user: Person) -> list[dict[str, Any]]:
        """Return the pages that the user may open."""
        pages = (
            ("overview", _("Overview"), "view_instance"),
            ("runs", _("Runs"), "view_instance"),
            ("workers", _("Queues and workers"), "view_worker"),
            ("schedules", _("Schedules"), "view_schedule"),
            ("desk", _("Human tasks"), ""),
            ("switches", _("Switches"), "view_switchedoff"),
            ("jobs", _("Bulk jobs"), "bulk_actions"),
            ("deploy", _("Deploy"), "view_worker"),
        )
        allows = policy().allows
        return [
            {"label": label, "address": self.mount.address(name), "is_current": name == self.section}
            for name, label, permission in pages
            if not permission or allows(user, Operation(action="view", permission=f"{APP}.{permission}"))
        ]
