"""The runs related to a run: its chain and its children, and the run that a reset or fork continues."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db.models import Count, OuterRef, Q, QuerySet, Subquery
from django.utils.translation import gettext as _

from temporalex_django.access import policy, schedules_for
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.run_columns import UNREAD_COLUMNS
from temporalex_django.models import HistoryEvent, Instance, OperatorAction
from temporalex_django.operations.schedules.operations import VIEW_SCHEDULE

#: Other runs that are blocked for the same reason are counted up to this number.
_MAX_OTHERS = 1000


def origin_of(
    run: Instance, visible_runs: QuerySet[Instance], family: Sequence[Instance], *, has_copies: bool
) -> dict[str, Any] | None:
    """Return the template context of the run that ``run`` continues after a reset or fork, or None for any other run.

    The other run is named if it is in ``visible_runs``. ``has_copies`` is True if the history may have events of
    another run. Then the copied history ends with an event of the time at which the run started. A reset to the start
    copies nothing: the audit of the run before it in its chain tells it. ``family`` has the runs of the chain, newest
    first. Three reads at most.
    """
    alias = run._state.db  # noqa: SLF001 - Django documents it
    mark = _mark_of(run, alias=alias) if has_copies else None
    copied = _start_reset_of(run, family) if mark is None else mark
    if copied is None:
        return None
    actions = OperatorAction.objects.using(alias).filter(run_id=copied["from"], action=copied["how"], denied=False)
    action = next((row for row in actions.order_by("-id")[:50] if row.details.get("new_run") == str(run.pk)), None)
    if mark is None and action is None:
        return None  # it continued as new
    source = visible_runs.filter(pk=UUID(str(copied["from"]))).only("pk", "workflow_id").first()
    words = {"who": "" if action is None else action.actor_name, "activation": copied["activation"]}
    if copied["how"] == "fork":
        text = _("Copied from this run up to its activation %(activation)d") % words
    else:
        text = _("Reset of this run to its activation %(activation)d") % words
    if words["who"]:
        text = _("%(text)s by %(who)s") % {"text": text, **words}
    return {"source": source, "text": text, "action": action, "reason": "" if action is None else action.reason}


def related_runs(run: Instance, visible_runs: QuerySet[Instance], *, limit: int) -> QuerySet[Instance]:
    """Return the runs that the page of a run lists, newest first: those of its chain, and its child runs.

    If the run is blocked, the rows have the annotation ``others``: the number of other runs of the class that are
    blocked for the same reason.
    """
    runs = (
        visible_runs.filter(Q(chain_id=run.chain_id) | Q(parent_run_id=run.pk))
        .defer(*UNREAD_COLUMNS)
        .select_related("chain")
    )
    # The count is a subquery, so that the page needs no further statement. It stops at _MAX_OTHERS rows and includes
    # runs that the user may not see.
    if run.blocked and run.is_open:
        blocked_runs = Instance.objects.using(runs.db).filter(workflow=run.workflow, blocked__isnull=False)
        blocked_ids = (
            blocked_runs.filter(blocked__code=run.blocked.get("code"))
            .exclude(pk=run.pk)
            .order_by()
            .values("pk")[:_MAX_OTHERS]
        )
        blocked_others = Instance.objects.using(runs.db).filter(pk__in=blocked_ids).order_by().values("workflow")
        runs = runs.annotate(others=Subquery(blocked_others.annotate(count=Count("pk")).values("count")))
    return runs.order_by("-id")[:limit]


def _mark_of(run: Instance, *, alias: str | None) -> Mapping[str, Any] | None:
    """Return what the history says about the run from which a reset or fork copied its first events."""
    marks = HistoryEvent.objects.using(alias).filter(run=run.pk, kind="ActivationStarted", at=run.started_at)
    mark = None if run.started_at is None else marks.order_by("seq").first()
    copied = mark.data.get("copied") if mark is not None and isinstance(mark.data, Mapping) else None
    return copied if isinstance(copied, Mapping) else None


def _start_reset_of(run: Instance, family: Sequence[Instance]) -> Mapping[str, Any] | None:
    """Return the mark that a reset to the start would have; None for the first run of its chain."""
    before = (other.pk for other in family if other.chain_id == run.chain_id and other.pk < run.pk)
    predecessor = next(before, None)
    return None if predecessor is None else {"from": predecessor, "how": "reset", "activation": 0}


# --- schedule ---------------------------------------------------------------------------------------------------------
#
# The schedule that started a run, for the page of the run.


_KEY, _NAME = "schedule_key", "schedule_name"


def annotate_schedule(runs: QuerySet[Instance], user: Person, *, alias: str) -> QuerySet[Instance]:
    """Annotate runs with the key and the name of the schedule that started their chains, for ``schedule_context``.

    Both are None if no schedule did, or if the user may not see that schedule.
    """
    if not policy().allows(user, VIEW_SCHEDULE):
        return runs
    schedules = schedules_for(user, alias=alias).filter(slots__chain=OuterRef("chain")).order_by()
    return runs.annotate(**{_KEY: Subquery(schedules.values("pk")[:1]), _NAME: Subquery(schedules.values("name")[:1])})


def schedule_context(run: Instance, address_of: Callable[[UUID], str]) -> dict[str, Any]:
    """Return the name and the URL of the schedule that started a run, for the template.

    The run must come from ``annotate_schedule``. Both are None without a schedule. ``address_of`` takes the key of a
    schedule and returns the URL of its page, or an empty text.
    """
    key = getattr(run, _KEY, None)
    return {"schedule": getattr(run, _NAME, None), "schedule_address": None if key is None else address_of(key)}
