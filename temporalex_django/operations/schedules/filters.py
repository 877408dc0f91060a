"""Filters of lists of schedules, which REST, the commands and the admin share."""

from __future__ import annotations

from django.db.models import Q, QuerySet

from temporalex_django.models import Schedule

#: The condition of each state of ``describe.state_name``.
STATES: dict[str, Q] = {
    "active": Q(gone_since=None, paused_at=None, next_at__isnull=False),
    "paused": Q(gone_since=None, paused_at__isnull=False),
    "gone": Q(gone_since__isnull=False),
    "ended": Q(gone_since=None, paused_at=None, next_at=None),
}


def filter_schedules(
    schedules: QuerySet[Schedule], *, owner: str = "", state: str = "", workflow: str = "", search: str = ""
) -> QuerySet[Schedule]:
    """Return the schedules for which all filters hold; an empty filter restricts nothing.

    ``owner`` is ``code`` or ``people``, and ``state`` one of ``STATES``. ``workflow`` is the name of the class, and
    ``search`` a part of the name of the schedule, in any case.
    """
    if owner:
        schedules = schedules.filter(owner=owner)
    if state:
        schedules = schedules.filter(STATES[state])
    if workflow:
        schedules = schedules.filter(workflow=workflow)
    if search:
        schedules = schedules.filter(name__icontains=search)
    return schedules
