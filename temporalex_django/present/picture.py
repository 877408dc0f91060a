"""A graph as a drawing: steps in layers, arrows between them. Numbers only; whoever shows it makes marks of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

#: Steps that are drawn; the rest is left out, and said to be.
MOST = 300
WIDTH, HEIGHT = 176, 46
_BETWEEN, _BELOW = 28, 74
_BEND = 20  # the room that an arrow takes where it passes a layer
_MARGIN = 12
#: Where on the first bow of an arrow its label stands: behind the middle, where arrows of a step have parted.
_LABEL_X, _LABEL_Y = 0.72, 0.62
_SWEEPS = 4
_LONGEST = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """From a step to another one, by their numbers. ``dynamic``: code chooses among several."""

    source: int
    target: int
    label: str
    dynamic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A step: where it stands, and how far it is (empty: it has not come to it). ``x`` and ``y`` are its corner."""

    number: int
    title: str
    state: str
    x: float
    y: float

    @property
    def short(self) -> str:
        """What fits into it."""
        return self.title if len(self.title) <= _LONGEST else self.title[: _LONGEST - 1] + "…"

    @property
    def middle(self) -> float:
        return self.x + WIDTH / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """An arrow as it is drawn: a path in SVG's words, and where its label stands."""

    path: str
    label: str
    x: float
    y: float
    dynamic: bool
    taken: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """All of it. ``left_out`` steps are not drawn."""

    width: float
    height: float
    boxes: Sequence[Box]
    lines: Sequence[Line]
    left_out: int = 0


@dataclass(slots=True)
class _Place:
    """A step, or where a long arrow passes a layer."""

    layer: int
    step: int | None
    above: list[int] = field(default_factory=list)
    below: list[int] = field(default_factory=list)
    x: float = 0.0

    @property
    def width(self) -> float:
        return WIDTH if self.step is not None else _BEND


def picture(titles: Sequence[str], arrows: Iterable[Arrow], states: Mapping[int, str]) -> Picture:
    """Of steps that are numbered in topological order, with the states of those that have one."""
    shown = min(len(titles), MOST)
    drawn = [arrow for arrow in arrows if arrow.source < shown and arrow.target < shown]
    layers = _layers(shown, drawn)
    places = [_Place(layer, number) for number, layer in enumerate(layers)]
    ways = [_way(arrow, places) for arrow in drawn]
    rows: dict[int, list[int]] = defaultdict(list)
    for index, place in enumerate(places):
        rows[place.layer].append(index)
    _order(rows, places)
    width = _spread(rows, places)
    boxes = [
        Box(number=n, title=titles[n], state=states.get(n, ""), x=places[n].x, y=_top(places[n].layer))
        for n in range(shown)
    ]
    return Picture(
        width=width,
        height=_top(max(rows, default=0)) + HEIGHT + _MARGIN,
        boxes=boxes,
        lines=[_line(arrow, way, places, states) for arrow, way in zip(drawn, ways, strict=True)],
        left_out=len(titles) - shown,
    )


def _layers(count: int, arrows: Sequence[Arrow]) -> list[int]:
    """Of each step: one below the lowest of those that lead to it."""
    found = [0] * count
    for arrow in sorted(arrows, key=lambda one: one.source):
        found[arrow.target] = max(found[arrow.target], found[arrow.source] + 1)
    return found


def _way(arrow: Arrow, places: list[_Place]) -> list[int]:
    """The places that an arrow goes through; those between the layers of its ends are made."""
    way = [arrow.source]
    for layer in range(places[arrow.source].layer + 1, places[arrow.target].layer):
        places.append(_Place(layer, None))
        way.append(len(places) - 1)
    way.append(arrow.target)
    for one, other in pairwise(way):
        places[one].below.append(other)
        places[other].above.append(one)
    return way


def _order(rows: Mapping[int, list[int]], places: Sequence[_Place]) -> None:
    """Each layer in the order in which its neighbours stand, down and up again: so that few arrows cross."""
    at = {index: float(n) for row in rows.values() for n, index in enumerate(row)}
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for layer in sorted(rows, reverse=not down):
            row = rows[layer]
            wanted: dict[int, float] = {}
            for index in row:
                near = places[index].above if down else places[index].below
                wanted[index] = sum(at[other] for other in near) / len(near) if near else at[index]
            row.sort(key=wanted.__getitem__)
            at.update({index: float(n) for n, index in enumerate(row)})


def _spread(rows: Mapping[int, list[int]], places: Sequence[_Place]) -> float:
    """Each layer around the same middle; gives the width of all."""
    widths = {
        layer: sum(places[index].width for index in row) + _BETWEEN * (len(row) - 1) for layer, row in rows.items()
    }
    widest = max(widths.values(), default=WIDTH)
    for layer, row in rows.items():
        x = _MARGIN + (widest - widths[layer]) / 2
        for index in row:
            places[index].x = x
            x += places[index].width + _BETWEEN
    return widest + 2 * _MARGIN


def _top(layer: int) -> float:
    return _MARGIN + layer * (HEIGHT + _BELOW)


def _line(arrow: Arrow, way: Sequence[int], places: Sequence[_Place], states: Mapping[int, str]) -> Line:
    middles = [places[index].x + places[index].width / 2 for index in way]
    y = _top(places[way[0]].layer) + HEIGHT
    parts = [f"M{middles[0]:.0f} {y:.0f}"]
    for here, there, index in zip(middles, middles[1:], way[1:], strict=False):
        end = _top(places[index].layer)
        half = (y + end) / 2
        parts.append(f"C{here:.0f} {half:.0f} {there:.0f} {half:.0f} {there:.0f} {end:.0f}")
        y = end
        if index != way[-1]:
            y += HEIGHT
            parts.append(f"V{y:.0f}")
    return Line(
        path=" ".join(parts),
        label=arrow.label,
        x=middles[0] + (middles[1] - middles[0]) * _LABEL_X,
        y=_top(places[way[0]].layer) + HEIGHT + _BELOW * _LABEL_Y,
        dynamic=arrow.dynamic,
        taken=states.get(arrow.source) == "completed" and bool(states.get(arrow.target)),
    )
