"""Switches that are off, as sentences about runs need them, and which of them keeps an activity back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from temporalex_django.authoring.redaction import Redactor
from temporalex_django.core import names as aliases
from temporalex_django.core.limits import QueuePartition
from temporalex_django.models import ActivityTask, Instance, SwitchedOff
from temporalex_django.present.view_models import SwitchView

#: Switches by kind, name and key. The key is empty for all but some holds.
SwitchViews = Mapping[tuple[str, str, str], SwitchView]


def switch_view(row: SwitchedOff) -> SwitchView:
    """Convert a row of ``SwitchedOff`` to a ``SwitchView``, from which sentences about runs are built."""
    return SwitchView(
        kind=row.kind,
        name=row.name,
        since=row.since,
        actor=row.by,
        reason=row.reason,
        key=row.key,
        until=row.until,
    )


def load_switches(alias: str, *, now: datetime) -> SwitchViews:
    """Read everything that is switched off, by ``(kind, name, concurrency key)``. One read.

    The key is empty, except for a hold that keeps back only the activities with one key. Holds that are over at the
    time ``now`` are left out.
    """
    return {
        (row.kind, row.name, row.key): switch_view(row)
        for row in SwitchedOff.objects.using(alias)
        if row.until is None or row.until > now
    }


def switch_of_run(switches: SwitchViews, run: Instance) -> SwitchView | None:
    """Return the switch that stops a run, by its workflow class or its queue, or None.

    A hold, which keeps back activities of a queue for a while, stops no runs. ``switches`` is the mapping that
    ``load_switches`` returns.
    """
    names = (run.workflow, aliases.current_name(run.workflow))
    class_switches = (switches.get(("workflow", name, "")) for name in names)
    return next(filter(None, class_switches), None) or switches.get(("queue", run.queue, ""))


def switch_of_task(switches: SwitchViews, task: ActivityTask, redactor: Redactor) -> SwitchView | None:
    """Return the switch that keeps an activity from starting, or None.

    ``switches`` is the mapping that ``load_switches`` returns. A hold keeps activities back until a time; its reason is
    the text of an error, so ``redactor`` decides if the user sees it.
    """
    if not switches:
        return None
    names = (task.activity, aliases.ACTIVITIES.get(task.activity, task.activity))
    activity_switches = (switches.get(("activity", name, "")) for name in names)
    switch = next(filter(None, activity_switches), None) or switches.get(("queue", task.queue, ""))
    if switch is not None or task.atomic:
        return switch
    key = QueuePartition.from_name(task.line).key if task.line else None
    holds = [switches.get(("hold", task.queue, its_key)) for its_key in {"", key or ""}]
    # An activity that is due only when the hold has ended, such as the one that asked for it, is not kept back by it.
    ends = [(hold.until, hold) for hold in holds if hold is not None and hold.until and hold.until > task.due_at]
    if not ends:
        return None
    _, last = max(ends, key=lambda end: end[0])
    return last if redactor.shows_error_text else replace(last, reason="")
