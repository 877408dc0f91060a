"""Workers."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from temporalex_django.admin.base import ReadOnlyAdmin
from temporalex_django.admin.shown import badge
from temporalex_django.models import Worker


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin[Worker]):
    """Who is there, what it takes, and whether its lease is good."""

    list_display = ("name", "lease", "kind", "takes", "has", "runs", "activities", "turns", "skew", "beat_at")
    search_fields = ("host__startswith",)
    search_help_text = _("Host, from its beginning")
    ordering = ("-beat_at",)
    fields = (
        ("name", "lease", "kind"),
        ("host", "pid", "process_identity"),
        "queues",
        "workflows",
        "activity_names",
        ("runs", "activities", "turns"),
        ("started_at", "beat_at", "expires_at"),
        ("skew", "session_lock", "buried_at"),
        ("id", "epoch"),
    )

    def get_readonly_fields(self, request: HttpRequest, obj: Worker | None = None) -> Any:
        return [name for row in self.fields for name in (row if isinstance(row, tuple) else (row,))]

    @admin.display(description=_("worker"), ordering="host")
    def name(self, worker: Worker) -> str:
        return str(worker)

    @admin.display(description=_("lease"), ordering="expires_at")
    def lease(self, worker: Worker) -> SafeString:
        alive = worker.expires_at > timezone.now()
        return badge("alive", str(_("Alive"))) if alive else badge("gone", str(_("Late")))

    @admin.display(description=_("queues"))
    def takes(self, worker: Worker) -> str:
        return ", ".join(worker.queues)

    @admin.display(description=_("workflows"))
    def has(self, worker: Worker) -> str:
        names = sorted(worker.workflows)
        return ", ".join(names) if len(names) <= 6 else f"{', '.join(names[:6])}, … ({len(names)})"

    @admin.display(description=_("clock"), ordering="clock_skew")
    def skew(self, worker: Worker) -> str:
        return f"{worker.clock_skew:+.3f} s"
