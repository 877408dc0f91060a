"""The page of releases: what the code of one has and lacks for the open runs, as its release step has recorded it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from temporalex_django.access import Operation
from temporalex_django.authoring.authorization import APP
from temporalex_django.console.base import badge, format_time
from temporalex_django.console.live import MARK, is_poll, is_unchanged, mark_of, unchanged
from temporalex_django.console.mount import ConsoleView
from temporalex_django.models import DeployCheck
from temporalex_django.operations.base import storage
from temporalex_django.operations.fleet.deploy import FRESH_PERIOD, mismatches_of, recorded_checks
from temporalex_django.present.project_view import CodeMismatch, recorded_mismatch_text

_BADGES = {"class": "failed", "input": "waiting", "timeout": "waiting"}
_OPEN = "pending,running,waiting"


class DeployView(ConsoleView):
    """The last releases whose code was compared with the open runs. This process imports none of their code."""

    template = "temporalex_django/console/deploy.html"
    section = "deploy"
    # The counts are those of all runs, as on the page of queues and workers.
    operation = Operation(action="view", permission=f"{APP}.view_worker")

    def respond(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        checks, now = recorded_checks(storage().alias), timezone.now()
        release = request.GET.get("release", "")
        if not checks and not release:
            return self._render_none(request)
        check = next((row for row in checks if release in ("", row.release)), None)
        if check is None:
            raise Http404
        stale_at = check.at + FRESH_PERIOD
        is_stale = stale_at <= now
        facts = [[row.pk for row in checks], check.pk, is_stale]
        if is_poll(request) and is_unchanged(request, facts, now):
            return unchanged()
        mismatches = mismatches_of(check)
        mark = mark_of(facts, None if is_stale else stale_at)
        context = {
            "title": _("Deploy"),
            "check": check,
            "at": format_time(check.at),
            "is_stale": is_stale,
            "releases": [
                {
                    "name": row.release,
                    "address": self.mount.address("deploy", query={"release": row.release}),
                    "is_current": row is check,
                }
                for row in checks
            ],
            "classes": self._class_rows(check, mismatches),
            "others": _other_texts(check, mismatches),
            "poll_address": self.mount.address("deploy", query={"release": release, MARK: mark}),
            "announcement": ngettext("%(count)d finding", "%(count)d findings", len(mismatches))
            % {"count": len(mismatches)},
        }
        return self.render(request, context)

    def _render_none(self, request: HttpRequest) -> HttpResponse:
        """Render the page of a project that has recorded no release."""
        if is_poll(request) and is_unchanged(request, [], timezone.now()):
            return unchanged()
        poll_address = self.mount.address("deploy", query={MARK: mark_of([], None)})
        return self.render(request, {"title": _("Deploy"), "poll_address": poll_address})

    def _class_rows(self, check: DeployCheck, mismatches: Sequence[CodeMismatch]) -> list[dict[str, Any]]:
        """Return a row for each class of open runs; those that the release does not match come first."""
        rows = []
        replayed = _replayed_by_class(check)
        for entry in check.classes:
            name, version = entry["workflow"], entry["version"]
            own = [mismatch for mismatch in mismatches if _belongs(mismatch, name, version)]
            texts = [
                recorded_mismatch_text(mismatch, release=check.release, replayed=replayed[name]) for mismatch in own
            ]
            worst = own[0].kind if own else ""
            label = {"": _("Fits"), "class": _("Missing"), "input": _("Other inputs"), "timeout": _("Not checked")}
            rows.append(
                {
                    "name": name,
                    "version": version,
                    "open": entry["open"],
                    "replayed": entry["replayed"],
                    "texts": texts,
                    "is_bad": bool(own),
                    "badge": badge(_BADGES.get(worst, "blocked") if own else "completed", label.get(worst, _("Stops"))),
                    "address": self.mount.address(
                        "runs", query={"workflow": name, "version": version, "status": _OPEN}
                    ),
                }
            )
        return sorted(rows, key=lambda row: not row["is_bad"])


def _replayed_by_class(check: DeployCheck) -> dict[str, int]:
    replayed: dict[str, int] = {}
    for entry in check.classes:
        replayed[entry["workflow"]] = replayed.get(entry["workflow"], 0) + entry["replayed"]
    return replayed


def _belongs(mismatch: CodeMismatch, name: str, version: int) -> bool:
    """Return True if the mismatch is about runs of this class and version; the others name an activity."""
    label = f"{name} (version {version})"
    # Names of classes and steps have the version, those of histories do not.
    return mismatch.name in (name, label) or (mismatch.kind == "step" and mismatch.name.endswith(f" of {label}"))


def _other_texts(check: DeployCheck, mismatches: Sequence[CodeMismatch]) -> list[str]:
    """Return the sentences about what belongs to no class, such as missing activities."""
    return [
        recorded_mismatch_text(mismatch, release=check.release, replayed=0)
        for mismatch in mismatches
        if not any(_belongs(mismatch, entry["workflow"], entry["version"]) for entry in check.classes)
    ]
