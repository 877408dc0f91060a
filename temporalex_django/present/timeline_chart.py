"""The drawing of a timeline: a lane for each row, on one axis of time in which idle time is folded.

This module computes positions only. The console makes SVG from them. Positions along the axis are percents of its
width, so that a drawing fits a page of any width; lanes are numbered from the top.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final, Literal

from temporalex_django.authoring.backend import EndedAttempt, OpenActivity
from temporalex_django.present.formatting import format_duration
from temporalex_django.present.timeline import TimelineRow

#: A gap in which nothing runs is folded if it is longer than this share of all that is not folded.
_FOLD_SHARE: Final = 0.15
#: Width of a folded gap, and the smallest width of a bar, in percents.
_FOLD_WIDTH: Final = 7.0
#: The shortest gap that is folded, in seconds.
_MIN_FOLD: Final = 5
_MIN_WIDTH: Final = 0.4
#: Most gaps that are folded; further ones would leave no width for what happened.
_MAX_FOLDS: Final = 6
#: Share of the axis after the last moment, so that a mark there is whole.
_END_MARGIN: Final = 1.5
_TICK_DISTANCE: Final = 16.0
#: Width of a letter in the text of a fold, in percents of the narrow axis of a phone.
_LETTER_WIDTH: Final = 2.4
#: Kinds of rows that a diamond marks.
_MESSAGES: Final = ("signal", "update", "decision", "cancel", "external")

BarKind = Literal["queue", "run", "failed", "backoff", "wait", "due", "child", "update"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A span of time in a lane.

    ``kind`` is "queue" (it waits for a worker), "run" (an attempt), "failed" (an attempt that failed), "backoff" (the
    pause before the next attempt), "wait" (a timer), "due" (from now to when a timer is due), "child" or "update".
    """

    kind: BarKind
    x: float
    width: float
    attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """The row of a timeline in the drawing: its bars, and the position of its mark or None.

    ``mark`` is "message", "moment" (a thing without a length) or "due".
    """

    row: TimelineRow
    bars: Sequence[Bar] = ()
    mark: Literal["message", "moment", "due"] | None = None
    mark_x: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Idle time that the axis folds: its place, and its length in words.

    ``anchor`` is the end of the fold at which the text is written, so that the text is whole; None if it has no room
    beside the one before.
    """

    x: float
    width: float
    text: str
    anchor: Literal["start", "end"] | None = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A time on the axis."""

    x: float
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineChart:
    """The drawing of a timeline. ``blocked`` is the time for which the run has been blocked, as ``(x, width)``.

    ``now_x`` is the place of the present on the axis; None for a run that is closed.
    """

    lanes: Sequence[Lane]
    folds: Sequence[Fold]
    ticks: Sequence[Tick]
    blocked: tuple[float, float] | None = None
    now_x: float | None = None


@dataclass(frozen=True, slots=True)
class _Span:
    kind: BarKind
    begin: datetime
    end: datetime
    attempt: int = 0


@dataclass(slots=True)
class _Axis:
    """The mapping of times to positions: between two moments it is linear."""

    moments: Sequence[datetime]
    positions: list[float] = field(default_factory=list)

    def x(self, at: datetime) -> float:
        if len(self.moments) < 2 or at <= self.moments[0]:
            return 0.0
        low, high = 0, len(self.moments) - 1
        if at >= self.moments[high]:
            return self.positions[high]
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.moments[middle] <= at else (low, middle)
        length = (self.moments[high] - self.moments[low]).total_seconds()
        share = (at - self.moments[low]).total_seconds() / length
        return self.positions[low] + share * (self.positions[high] - self.positions[low])


def draw_timeline(
    rows: Sequence[TimelineRow],
    *,
    now: datetime,
    tasks: Mapping[int, OpenActivity] | None = None,
    attempts: Iterable[EndedAttempt] = (),
    blocked_since: datetime | None = None,
    is_open: bool = True,
) -> TimelineChart:
    """Return the drawing of these rows of a timeline, as it is at ``now``.

    ``tasks`` are the open activities of the run by their numbers, and ``attempts`` those of its attempts that failed.
    ``blocked_since`` is the time since which the run is blocked, or None. The axis ends at ``now`` if the run is open,
    or at the time at which the last timer is due.
    """
    failed_attempts: dict[int, list[EndedAttempt]] = {}
    for attempt in attempts:
        failed_attempts.setdefault(attempt.seq, []).append(attempt)
    spans = [[*_spans_of(row, tasks or {}, failed_attempts, now)] for row in rows]
    if not rows:
        return TimelineChart(lanes=[], folds=[], ticks=[])
    moments = _moments_of(rows, spans)
    if is_open:
        moments.add(now)
    if blocked_since is not None:
        moments.add(max(blocked_since, min(moments)))
    axis, folds = _build_axis(sorted(moments), [span for lane in spans for span in lane if _is_work(span)])
    blocked = None
    if blocked_since is not None:
        x = axis.x(blocked_since)
        blocked = (x, max(_MIN_WIDTH, _rounded(axis.x(now) - x)))
    return TimelineChart(
        lanes=[_lane_of(row, lane, axis) for row, lane in zip(rows, spans, strict=True)],
        folds=folds,
        ticks=[*_ticks_of(axis, folds)],
        blocked=blocked,
        now_x=_rounded(axis.x(now)) if is_open else None,
    )


def _moments_of(rows: Sequence[TimelineRow], spans: Sequence[Sequence[_Span]]) -> set[datetime]:
    """Return all moments at which something begins or ends."""
    moments = {row.began for row in rows} | {row.ended for row in rows if row.ended is not None}
    return moments | {moment for lane in spans for span in lane for moment in (span.begin, span.end)}


def _is_work(span: _Span) -> bool:
    return span.kind in ("run", "failed")


# -- the spans of a row -----------------------------------------------------------------------------------------------


def _spans_of(
    row: TimelineRow,
    tasks: Mapping[int, OpenActivity],
    failed_attempts: Mapping[int, Sequence[EndedAttempt]],
    now: datetime,
) -> Iterator[_Span]:
    """Yield the spans of a row, in the order of time."""
    match row.kind:
        case "activity":
            task = tasks.get(row.seq) if row.seq is not None and row.state == "open" else None
            yield from _attempt_spans(row, task, failed_attempts.get(row.seq or 0, ()), now)
        case "timer":
            end = row.ended or now
            yield _Span("wait", row.began, end)
            if row.ended is None and row.due is not None and row.due > now:
                yield _Span("due", now, row.due)
        case "child":
            yield _Span("child", row.began, row.ended or now)
        case "update" if row.ended is not None and row.ended > row.began:
            yield _Span("update", row.began, row.ended)


def _attempt_spans(
    row: TimelineRow, task: OpenActivity | None, failed_attempts: Sequence[EndedAttempt], now: datetime
) -> Iterator[_Span]:
    """Yield a span for each attempt that is known, and for the time before it: in the queue, or until the next try."""
    at, before = row.began, "queue"
    for attempt in failed_attempts:
        begin = max(at, attempt.began_at or attempt.ended_at)
        yield from _nonempty(_waiting(before, at, begin))
        yield _Span("failed", begin, max(begin, attempt.ended_at), attempt.attempt)
        at, before = max(begin, attempt.ended_at), "backoff"
    if row.ended is not None:
        if row.attempt_began is not None:
            yield from _nonempty(_waiting(before, at, row.attempt_began))
            at = max(at, row.attempt_began)
        # Without the begin of its last attempt, what is left is drawn as the attempt, unless it ended with a failure.
        if row.state != "failed" or not failed_attempts or at < row.ended - timedelta(seconds=1):
            yield _Span(
                "failed" if row.state in ("failed", "timed_out") else "run", at, max(at, row.ended), row.attempts
            )
    elif task is not None and task.owner is not None:
        begin = max(at, task.started_at or now)
        yield from _nonempty(_waiting(before, at, begin))
        yield _Span("run", begin, max(begin, now), task.attempt)
    elif task is not None:
        due = max(at, task.due_at)
        if before == "backoff":
            yield from _nonempty(_waiting("backoff", at, due))
            at = due
        yield from _nonempty(_waiting("queue", at, max(at, now)))
    else:
        yield from _nonempty(_waiting("queue", at, max(at, now)))


def _waiting(before: str, begin: datetime, end: datetime) -> _Span:
    return _Span("backoff" if before == "backoff" else "queue", begin, max(begin, end))


def _nonempty(span: _Span) -> Iterator[_Span]:
    if span.end > span.begin:
        yield span


# -- the axis ---------------------------------------------------------------------------------------------------------


def _build_axis(moments: Sequence[datetime], work: Sequence[_Span]) -> tuple[_Axis, list[Fold]]:
    """Return the axis through these moments, and the idle gaps that it folds."""
    axis = _Axis(moments)
    gaps = [(later - earlier).total_seconds() for earlier, later in pairwise(moments)]
    folded = _folded_gaps(gaps, [*_idle_gaps(moments, work)])
    left = 100.0 - _END_MARGIN - _FOLD_WIDTH * len(folded)
    total = sum(gap for number, gap in enumerate(gaps) if number not in folded)
    position = 0.0
    axis.positions.append(position)
    folds = []
    written_to = 0.0
    for number, gap in enumerate(gaps):
        width = _FOLD_WIDTH if number in folded else left * gap / total
        if number in folded:
            text = format_duration(gap)
            anchor, written_to = _place_text(position, len(text) * _LETTER_WIDTH, written_to)
            folds.append(Fold(x=_rounded(position), width=_FOLD_WIDTH, text=text, anchor=anchor))
        position += width
        axis.positions.append(position)
    return axis, folds


def _place_text(position: float, width: float, written_to: float) -> tuple[Literal["start", "end"] | None, float]:
    """Return where the text of a fold is anchored, and up to where the axis has texts then."""
    end = position + _FOLD_WIDTH
    if end - width >= written_to:
        return "end", end
    # At the left edge of the axis, the text would be cut.
    if position >= written_to and position + width <= 100:
        return "start", position + width
    return None, written_to


def _idle_gaps(moments: Sequence[datetime], work: Sequence[_Span]) -> Iterator[int]:
    """Yield the indexes of the gaps between two moments in which no attempt runs."""
    busy_until = None
    spans = sorted(work, key=lambda span: span.begin)
    index = 0
    for number, moment in enumerate(moments[:-1]):
        while index < len(spans) and spans[index].begin <= moment:
            end = spans[index].end
            busy_until = end if busy_until is None else max(busy_until, end)
            index += 1
        if busy_until is None or busy_until <= moment:
            yield number


def _folded_gaps(gaps: Sequence[float], idle: Sequence[int]) -> set[int]:
    """Return the idle gaps to fold, longest first: each is much of what is not folded by then."""
    folded: set[int] = set()
    total = sum(gaps)
    for number in sorted(idle, key=lambda index: -gaps[index])[:_MAX_FOLDS]:
        # One gap stays, so that the axis has a scale.
        if gaps[number] < _MIN_FOLD or gaps[number] <= _FOLD_SHARE * total or total - gaps[number] <= 0:
            break
        folded.add(number)
        total -= gaps[number]
    return folded


def _ticks_of(axis: _Axis, folds: Sequence[Fold]) -> Iterator[Tick]:
    """Yield the times that the axis writes: moments that have room, the first of them and those after a fold first."""
    candidates = [*zip(axis.positions, axis.moments, strict=False)]
    ends = {_rounded(fold.x + fold.width) for fold in folds}
    places: list[float] = []
    for x, at in sorted(candidates, key=lambda pair: (_rounded(pair[0]) not in ends | {0.0}, pair[0])):
        if x <= 100 - _TICK_DISTANCE / 2 and all(abs(x - other) >= _TICK_DISTANCE for other in places):
            places.append(x)
            yield Tick(x=_rounded(x), at=at)


def _lane_of(row: TimelineRow, spans: Sequence[_Span], axis: _Axis) -> Lane:
    bars = [_bar_of(span, axis) for span in spans]
    if row.kind in _MESSAGES:
        return Lane(row=row, bars=bars, mark="message", mark_x=_rounded(axis.x(row.began)))
    if row.kind == "timer" and row.due is not None:
        due_x = axis.x(min(row.due, axis.moments[-1])) if row.ended is None else axis.x(row.ended)
        return Lane(row=row, bars=bars, mark="due", mark_x=_rounded(due_x))
    if not bars:
        return Lane(row=row, mark="moment", mark_x=_rounded(axis.x(row.began)))
    return Lane(row=row, bars=bars)


def _bar_of(span: _Span, axis: _Axis) -> Bar:
    x = axis.x(span.begin)
    width = max(_MIN_WIDTH, axis.x(span.end) - x)
    return Bar(kind=span.kind, x=_rounded(x), width=_rounded(width), attempt=span.attempt)


def _rounded(number: float) -> float:
    return round(number, 2)
