"""The schedule that started a run, for the page of the run."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import OuterRef, QuerySet, Subquery
from django.urls import reverse

from temporalex_django.access import policy, schedules_for
from temporalex_django.authoring.authorization import Person
from temporalex_django.models import Instance, Schedule
from temporalex_django.operations.schedules.operations import VIEW_SCHEDULE

_KEY, _NAME = "schedule_key", "schedule_name"


def annotate_schedule(runs: QuerySet[Instance], user: Person, *, alias: str) -> QuerySet[Instance]:
    """Annotate runs with the key and the name of the schedule that started their chains, for ``schedule_context``.

    Both are None if no schedule did, or if the user may not see that schedule.
    """
    if not policy().allows(user, VIEW_SCHEDULE):
        return runs
    schedules = schedules_for(user, alias=alias).filter(slots__chain=OuterRef("chain")).order_by()
    return runs.annotate(**{_KEY: Subquery(schedules.values("pk")[:1]), _NAME: Subquery(schedules.values("name")[:1])})


def schedule_context(site: admin.AdminSite, run: Instance) -> dict[str, Any]:
    """Return the name and the URL of the schedule that started a run, for the template.

    The run must come from ``annotate_schedule``. Both are None without a schedule, and the URL also on an admin site
    that has no page for schedules.
    """
    key, address = getattr(run, _KEY, None), None
    if key is not None and site.is_registered(Schedule):
        address = reverse(f"{site.name}:temporalex_django_schedule_change", args=[key])
    return {"schedule": getattr(run, _NAME, None), "schedule_address": address}
