"""Releases whose code was compared with the open runs, as ``temporalex doctor --deploy --record`` stores them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from temporalex_django.models import DeployCheck
from temporalex_django.present.project_view import CodeMismatch
from temporalex_django.present.view_models import Diagnosis, Remedy

#: Releases that are kept.
MAX_RELEASES: Final = 5
#: After this time, other runs are open, and a check says little.
FRESH_PERIOD: Final = timedelta(hours=24)
#: Mismatches that need nothing before a deploy: the change of an input may be intended.
_HARMLESS = ("input",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassCheck:
    """A class with open runs: the number of these, and of those that were replayed, the newest ones."""

    workflow: str
    version: int
    open: int
    replayed: int = 0


def record_check(
    release: str, *, classes: Sequence[ClassCheck], mismatches: Sequence[CodeMismatch], alias: str
) -> DeployCheck:
    """Store what the code of a release has and lacks for the open runs. It replaces an earlier check of the release.

    Messages of errors are left out, because they may quote payloads. Only the last five releases are kept.
    """
    with transaction.atomic(using=alias):
        checks = DeployCheck.objects.using(alias)
        checks.filter(release=release).delete()
        check = checks.create(
            release=release,
            at=timezone.now(),
            fits=all(mismatch.kind in _HARMLESS for mismatch in mismatches),
            classes=[
                {"workflow": row.workflow, "version": row.version, "open": row.open, "replayed": row.replayed}
                for row in classes
            ],
            mismatches=[
                {
                    "kind": mismatch.kind,
                    "name": mismatch.name,
                    "count": mismatch.count,
                    "place": mismatch.place,
                    # The reason of a different input names a command and a path, and no value.
                    "reason": mismatch.reason if mismatch.kind == "input" else "",
                }
                for mismatch in mismatches
            ],
        )
        newest = [*checks.order_by("-at", "-pk").values_list("pk", flat=True)[:MAX_RELEASES]]
        checks.exclude(pk__in=newest).delete()
    return check


def recorded_checks(alias: str) -> list[DeployCheck]:
    """Return the checks of the last releases, the newest first. One read."""
    return [*DeployCheck.objects.using(alias).order_by("-at", "-pk")[:MAX_RELEASES]]


def mismatches_of(check: DeployCheck) -> list[CodeMismatch]:
    """Return what the code of the release lacks or changes."""
    return [CodeMismatch(**record) for record in check.mismatches]


def unfit_release(alias: str, now: datetime) -> QuerySet[DeployCheck]:
    """Return the newest check if it is fresh and its release does not match the open runs; else no row."""
    checks = DeployCheck.objects.using(alias).order_by()
    newest = DeployCheck.objects.using(alias).order_by("-at", "-pk").values("pk")[:1]
    return checks.filter(pk__in=newest, fits=False, at__gte=now - FRESH_PERIOD)


def deploy_diagnosis(release: str, *, since: datetime | None) -> Diagnosis:
    """Return the warning that a release does not match the open runs. ``since`` is the time of its check."""
    return Diagnosis(
        severity="warning",
        code="deploy",
        text=_("The release %(release)s does not match the open runs.") % {"release": release},
        next_step=_("See what would stop, and correct it before this code runs: the page Deploy of the console."),
        about=release,
        since=since,
        remedy=Remedy(kind="deploy", name=release, label=_("See what would stop")),
    )
