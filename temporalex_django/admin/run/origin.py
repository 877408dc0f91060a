"""The origin of a run that a reset or fork made: which run it continues, who asked for that, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.utils.translation import gettext as _

from temporalex_django.models import HistoryEvent, Instance, OperatorAction


def origin_of(run: Instance, visible_runs: QuerySet[Instance]) -> dict[str, Any] | None:
    """Return the template context of the run that ``run`` continues after a reset or fork, or None for any other run.

    The other run is named if it is in ``visible_runs``. The copied history ends with an event of the time at which the
    run started. One read, and two more for a copy.
    """
    alias = run._state.db  # noqa: SLF001 - Django documents it
    marks = HistoryEvent.objects.using(alias).filter(run=run.pk, kind="ActivationStarted", at=run.started_at)
    mark = None if run.started_at is None else marks.order_by("seq").first()
    copied = mark.data.get("copied") if mark is not None and isinstance(mark.data, Mapping) else None
    if not isinstance(copied, Mapping):
        return None
    source = visible_runs.filter(pk=UUID(str(copied["from"]))).only("pk", "workflow_id").first()
    actions = OperatorAction.objects.using(alias).filter(run_id=copied["from"], action=copied["how"], denied=False)
    action = next((row for row in actions.order_by("-id")[:50] if row.details.get("new_run") == str(run.pk)), None)
    words = {"who": "" if action is None else action.actor_name, "activation": copied["activation"]}
    if copied["how"] == "fork":
        text = _("Copied from this run up to its activation %(activation)d") % words
    else:
        text = _("Reset of this run to its activation %(activation)d") % words
    if words["who"]:
        text = _("%(text)s by %(who)s") % {"text": text, **words}
    return {"source": source, "text": text, "action": action, "reason": "" if action is None else action.reason}
