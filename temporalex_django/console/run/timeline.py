"""The timeline of a run: a drawing, and a table of the same rows with a menu for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils import formats, timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from temporalex_django.authoring.backend import EndedAttempt
from temporalex_django.console.base import badge, format_duration
from temporalex_django.console.run.detail import RunDetail
from temporalex_django.console.run.operator_views import ActionLink, history_action_links
from temporalex_django.operations.base import storage
from temporalex_django.operations.read import timeline as reading
from temporalex_django.operations.read.describe import attempts_of
from temporalex_django.operations.read.timeline import TimelinePart
from temporalex_django.present.formatting import format_time
from temporalex_django.present.timeline import TimelineRow, build_rows
from temporalex_django.present.timeline_chart import Lane, Tick, TimelineChart, draw_timeline

#: Rows of a page. The page that opens first has at most so many of them for what the run waits for.
ROWS: Final = 20
_MAX_AWAITED: Final = 14
_LANE_HEIGHT, _AXIS_HEIGHT = 22, 26
_MAX_LABEL_LENGTH = 60
#: An axis of less than this has times with seconds.
_SHORT = timedelta(minutes=10)
_SHAPES = {
    "failed": "failed", "timed_out": "timed_out", "cancelled": "cancelled", "terminated": "terminated",
    "open": "running", "dropped": "terminated", "unread": "failed",
}  # fmt: skip


def timeline_context(detail: RunDetail) -> dict[str, Any]:
    """Return the context of the timeline of a run.

    The address may have ``before`` or ``after``, the number of an event. Without them, the page has what the run waits
    for, and what happened last. At most four reads, and three more for the run of a reset or fork.
    """
    parameters = detail.request.GET
    before, after = _number(parameters.get("before")), _number(parameters.get("after"))
    is_newest = before is None and after is None
    part = _read_part(detail, before=before, after=after)
    rows = [*part.rows]
    if is_newest:
        awaited = [*_awaited_rows(detail, rows)][:_MAX_AWAITED]
        rows = [*awaited, *rows[-(ROWS - len(awaited)) :]]
    attempts = attempts_of(detail.run, detail.redactor, storage=storage()) if _attempt_count(detail) else []
    # Copied events are older than their run.
    may_be_copied = part.has_earlier or any(row.began < detail.run.created_at for row in rows)
    return {
        **detail.origin(has_copies=may_be_copied),
        "rows": [*_row_contexts(detail, rows, is_cut=part.is_cut)],
        "chart": _chart_context(_draw(detail, rows, attempts, is_newest=is_newest), detail.now) if rows else None,
        "is_cut": part.is_cut,
        "max_ends": reading.MAX_ENDS,
        "why_not": detail.answers.why_no_events,
        "attempts": attempts,
        **_range_context(detail, part, [row.number for row in rows if row.number], is_newest=is_newest),
    }


def _draw(
    detail: RunDetail, rows: Sequence[TimelineRow], attempts: Sequence[EndedAttempt], *, is_newest: bool
) -> TimelineChart:
    blocked, is_open = detail.run.blocked or {}, detail.run.is_open and is_newest
    return draw_timeline(
        rows,
        now=detail.now,
        tasks={task.seq: task.as_open for task in detail.tasks},
        attempts=attempts,
        blocked_since=_parse_time(blocked.get("since")) if is_open else None,
        is_open=is_open,
    )


def _range_context(detail: RunDetail, part: TimelinePart, numbers: Sequence[int], *, is_newest: bool) -> dict[str, str]:
    """Return the URLs of other parts of the timeline; ``numbers`` are those of the first events of the rows."""
    return {
        "earlier": _range_address(detail, before=min(numbers)) if part.has_earlier and numbers else "",
        "later": _range_address(detail, after=max(numbers)) if part.has_later and numbers else "",
        "first": _range_address(detail, after=0) if part.has_earlier else "",
        "newest_rows": "" if is_newest else detail.mount.run_address(detail.run.pk),
    }


def _number(text: str | None) -> int | None:
    """Return the number of an event from an address; anything else counts as none."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else None


def _range_address(detail: RunDetail, **bound: int) -> str:
    return detail.mount.address("run", detail.run.pk, query=bound)


def _read_part(detail: RunDetail, *, before: int | None, after: int | None) -> TimelinePart:
    if detail.answers.on_cluster:
        rows = build_rows(map(detail.redactor.redact_event, detail.answers.events))
        return reading.part_of_rows(rows, before=before, after=after, limit=ROWS)
    return reading.timeline_part(
        detail.run, before=before, after=after, limit=ROWS, redactor=detail.redactor, alias=detail.alias
    )


def _attempt_count(detail: RunDetail) -> int:
    return getattr(detail.run, "attempt_count", 0)


def _awaited_rows(detail: RunDetail, rows: Sequence[TimelineRow]) -> Iterator[TimelineRow]:
    """Yield rows for open activities, timers and children that began before ``rows``, from what is stored of them."""
    shown_seqs = {row.seq for row in rows if row.seq is not None}
    for task in detail.tasks:
        if task.seq not in shown_seqs:
            yield _earlier_row("activity", task.activity, task.seq, task.scheduled_at, attempts=task.attempt)
    for wait in detail.run.waits or () if detail.run.is_open else ():
        seq, since = wait.get("seq"), _parse_time(wait.get("since"))
        if wait.get("kind") not in ("timer", "child") or seq is None or seq in shown_seqs:
            continue
        until = _parse_time(wait.get("until"))
        name = str((wait.get("then") if wait["kind"] == "timer" else wait.get("name")) or "")
        row = _earlier_row(wait["kind"], name, seq, since or detail.run.created_at)
        yield replace(row, due=until, key=str(wait.get("id") or ""))


def _earlier_row(kind: str, name: str, seq: int, since: datetime, *, attempts: int = 0) -> TimelineRow:
    """Return a row whose first event is not read, so that it has no number."""
    return TimelineRow(
        kind=kind, name=name, state="open", number=0, last=0, activation=0, began=since, seq=seq, attempts=attempts
    )


def _parse_time(text: object) -> datetime | None:
    try:
        at = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return at if at.tzinfo else timezone.make_aware(at)


# -- the table --------------------------------------------------------------------------------------------------------


def _row_contexts(detail: RunDetail, rows: Sequence[TimelineRow], *, is_cut: bool) -> Iterator[dict[str, Any]]:
    """Yield the context of each row of the table."""
    activities = {row["task"].seq: row for row in detail.activities}
    history_links = history_action_links(detail.run, user=detail.user, address=detail.action_address)
    for row in rows:
        activity = activities.get(row.seq) if row.kind == "activity" and row.state == "open" else None
        yield {
            "row": row,
            "key": row.number or f"s{row.seq}",
            "text": row.text(now=detail.now, titles=reading.titles_of(row)),
            "badge": _state_badge(row, is_cut=is_cut and activity is None),
            "activity": activity,
            "duration": _duration(row, detail.now),
            "menu": [*_menu_of(detail, row, activity, history_links)],
            "address": _child_address(detail, row),
        }


def _menu_of(
    detail: RunDetail,
    row: TimelineRow,
    activity: dict[str, Any] | None,
    history_links: Callable[[int], Sequence[ActionLink]],
) -> Iterator[ActionLink]:
    """Yield what can be done with a row: its own operations, then a reset or fork from there."""
    if activity is not None:
        yield from activity["tools"]
        if activity["switch"]:
            label = _("Switch on") if activity["is_off"] else _("Switch off")
            yield ActionLink(name="switch", label=label, address=activity["switch"])
    if row.kind == "timer" and row.state == "open" and row.seq is not None and detail.run.is_open:
        yield from detail.part_links("timer", row.seq)
    # The end of a run is no point to reset to or to fork from.
    if row.activation and row.kind != "end":
        yield from history_links(row.activation)


def _child_address(detail: RunDetail, row: TimelineRow) -> str:
    """Return the URL of the page of a child, or an empty text for another row."""
    if row.kind != "child":
        return ""
    child = next(
        (run for run in detail.family if run.parent_run_id == detail.run.pk and run.parent_seq == row.seq), None
    )
    return "" if child is None else detail.mount.run_address(child.pk)


def _duration(row: TimelineRow, now: datetime) -> str:
    # The start of a run is over at once, though its row ends with the run.
    if row.kind == "run":
        return ""
    if row.ended is not None:
        return format_duration(row.ended - row.began)
    if row.state == "open":
        return format_duration(now - row.began)
    return ""


def _state_badge(row: TimelineRow, *, is_cut: bool) -> SafeString:
    """Return the badge of the state of a row. That a run has started is over at once, however long it is open."""
    if row.kind == "run" and row.state == "open":
        return badge("completed", _("done"))
    if row.state == "open" and is_cut:
        return badge("pending", _("end not read"))
    return badge(_SHAPES.get(row.state, "completed"), str(_state_labels().get(row.state, row.state)))


def _state_labels() -> dict[str, str]:
    return {
        "open": _("in progress"),
        "done": _("done"),
        "failed": _("failed"),
        "timed_out": _("timed out"),
        "timedout": _("timed out"),
        "cancelled": _("cancelled"),
        "terminated": _("terminated"),
        "completed": _("completed"),
        "continuedasnew": _("continued as new"),
        "fired": _("fired"),
        "taken": _("consumed"),
        "sent": _("sent"),
        "dropped": _("dropped"),
        "unread": _("never consumed"),
    }


# -- the drawing ------------------------------------------------------------------------------------------------------


def _chart_context(chart: TimelineChart, now: datetime) -> dict[str, Any]:
    """Return the drawing as the template shows it: with the place of each lane, and its name."""
    moments = [tick.at for tick in chart.ticks]
    is_short = max(moments, default=now) - min(moments, default=now) < _SHORT
    return {
        "chart": chart,
        "height": _AXIS_HEIGHT + _LANE_HEIGHT * len(chart.lanes),
        "axis": _AXIS_HEIGHT,
        "lanes": [
            {"lane": lane, "y": _AXIS_HEIGHT + _LANE_HEIGHT * number, "label": _lane_label(lane)}
            for number, lane in enumerate(chart.lanes)
        ],
        "ticks": [*_tick_contexts(chart.ticks, now, has_seconds=is_short)],
    }


def _tick_contexts(ticks: Sequence[Tick], now: datetime, *, has_seconds: bool) -> Iterator[dict[str, Any]]:
    """Yield the context of each tick, in the order of time. Ticks that read like the one before are left out."""
    last_text = ""
    for tick in sorted(ticks, key=lambda tick: tick.x):
        text = _tick_text(tick.at, now, has_seconds=has_seconds)
        if text != last_text:
            yield {"x": tick.x, "text": text}
        last_text = text


def _tick_text(at: datetime, now: datetime, *, has_seconds: bool) -> str:
    return formats.time_format(timezone.localtime(at), "H:i:s") if has_seconds else format_time(at, now)


def _lane_label(lane: Lane) -> str:
    """Return the name of a lane: short, without the times that the axis shows."""
    row = lane.row
    name = reading.titles_of(row).get(row.name) or row.name
    texts = {
        "run": _("Run started"),
        "end": _("Run closed"),
        "timer": _("Timer"),
        "cancel": _("Cancel requested"),
        "patch": _("Patch %(name)s") % {"name": row.name},
        "child": f"{name} {row.key}",
    }
    return texts.get(row.kind, name)[:_MAX_LABEL_LENGTH].strip() or row.kind
