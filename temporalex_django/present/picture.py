"""A graph as a drawing: steps in layers, arrows between them. Numbers only; whoever shows it makes marks of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

#: Steps that are drawn; the rest is left out, and said to be.
MAX_STEPS = 300
WIDTH, HEIGHT = 176, 46
_GAP_X, _GAP_Y = 28, 74
_BEND_WIDTH = 20  # the room that an arrow takes where it passes a layer
_MARGIN = 12
#: Where on the first bow of an arrow its label stands: behind the middle, where arrows of a step have parted.
_LABEL_X, _LABEL_Y = 0.72, 0.62
_SWEEPS = 4
_MAX_TITLE_LENGTH = 24


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
    def short_title(self) -> str:
        """What fits into it."""
        return self.title if len(self.title) <= _MAX_TITLE_LENGTH else self.title[: _MAX_TITLE_LENGTH - 1] + "…"

    @property
    def center_x(self) -> float:
        return self.x + WIDTH / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """An arrow as it is drawn: a path in SVG's words, and where its label stands."""

    path: str
    label: str
    x: float
    y: float
    dynamic: bool
    is_taken: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """All of it. ``left_out`` steps are not drawn."""

    width: float
    height: float
    boxes: Sequence[Box]
    lines: Sequence[Line]
    left_out: int = 0


@dataclass(slots=True)
class _Node:
    """A step, or where a long arrow passes a layer."""

    layer: int
    step: int | None
    above: list[int] = field(default_factory=list)
    below: list[int] = field(default_factory=list)
    x: float = 0.0

    @property
    def width(self) -> float:
        return WIDTH if self.step is not None else _BEND_WIDTH


def draw_picture(titles: Sequence[str], arrows: Iterable[Arrow], states: Mapping[int, str]) -> Picture:
    """Of steps that are numbered in topological order, with the states of those that have one."""
    step_count = min(len(titles), MAX_STEPS)
    visible_arrows = [arrow for arrow in arrows if arrow.source < step_count and arrow.target < step_count]
    layers = _assign_layers(step_count, visible_arrows)
    nodes = [_Node(layer, number) for number, layer in enumerate(layers)]
    routes = [_build_route(arrow, nodes) for arrow in visible_arrows]
    rows: dict[int, list[int]] = defaultdict(list)
    for index, node in enumerate(nodes):
        rows[node.layer].append(index)
    _order_rows(rows, nodes)
    width = _position_rows(rows, nodes)
    boxes = [
        Box(
            number=index_of_step,
            title=titles[index_of_step],
            state=states.get(index_of_step, ""),
            x=nodes[index_of_step].x,
            y=_layer_y(nodes[index_of_step].layer),
        )
        for index_of_step in range(step_count)
    ]
    return Picture(
        width=width,
        height=_layer_y(max(rows, default=0)) + HEIGHT + _MARGIN,
        boxes=boxes,
        lines=[_draw_line(arrow, route, nodes, states) for arrow, route in zip(visible_arrows, routes, strict=True)],
        left_out=len(titles) - step_count,
    )


def _assign_layers(count: int, arrows: Sequence[Arrow]) -> list[int]:
    """Of each step: one below the lowest of those that lead to it."""
    layers = [0] * count
    for arrow in sorted(arrows, key=lambda edge: edge.source):
        layers[arrow.target] = max(layers[arrow.target], layers[arrow.source] + 1)
    return layers


def _build_route(arrow: Arrow, nodes: list[_Node]) -> list[int]:
    """The places that an arrow goes through; those between the layers of its ends are made."""
    route = [arrow.source]
    for layer in range(nodes[arrow.source].layer + 1, nodes[arrow.target].layer):
        nodes.append(_Node(layer, None))
        route.append(len(nodes) - 1)
    route.append(arrow.target)
    for upper, lower in pairwise(route):
        nodes[upper].below.append(lower)
        nodes[lower].above.append(upper)
    return route


def _order_rows(rows: Mapping[int, list[int]], nodes: Sequence[_Node]) -> None:
    """Each layer in the order in which its neighbours stand, down and up again: so that few arrows cross."""
    positions = {index: float(n) for row in rows.values() for n, index in enumerate(row)}
    for sweep in range(_SWEEPS):
        is_downward = sweep % 2 == 0
        for layer in sorted(rows, reverse=not is_downward):
            row = rows[layer]
            barycenters: dict[int, float] = {}
            for index in row:
                neighbours = nodes[index].above if is_downward else nodes[index].below
                barycenters[index] = (
                    sum(positions[neighbour] for neighbour in neighbours) / len(neighbours)
                    if neighbours
                    else positions[index]
                )
            row.sort(key=barycenters.__getitem__)
            positions.update({index: float(n) for n, index in enumerate(row)})


def _position_rows(rows: Mapping[int, list[int]], nodes: Sequence[_Node]) -> float:
    """Each layer around the same middle; gives the width of all."""
    widths = {layer: sum(nodes[index].width for index in row) + _GAP_X * (len(row) - 1) for layer, row in rows.items()}
    widest = max(widths.values(), default=WIDTH)
    for layer, row in rows.items():
        x = _MARGIN + (widest - widths[layer]) / 2
        for index in row:
            nodes[index].x = x
            x += nodes[index].width + _GAP_X
    return widest + 2 * _MARGIN


def _layer_y(layer: int) -> float:
    return _MARGIN + layer * (HEIGHT + _GAP_Y)


def _draw_line(arrow: Arrow, route: Sequence[int], nodes: Sequence[_Node], states: Mapping[int, str]) -> Line:
    centers = [nodes[index].x + nodes[index].width / 2 for index in route]
    y = _layer_y(nodes[route[0]].layer) + HEIGHT
    parts = [f"M{centers[0]:.0f} {y:.0f}"]
    for start_x, end_x, index in zip(centers, centers[1:], route[1:], strict=False):
        end_y = _layer_y(nodes[index].layer)
        middle_y = (y + end_y) / 2
        parts.append(f"C{start_x:.0f} {middle_y:.0f} {end_x:.0f} {middle_y:.0f} {end_x:.0f} {end_y:.0f}")
        y = end_y
        if index != route[-1]:
            y += HEIGHT
            parts.append(f"V{y:.0f}")
    return Line(
        path=" ".join(parts),
        label=arrow.label,
        x=centers[0] + (centers[1] - centers[0]) * _LABEL_X,
        y=_layer_y(nodes[route[0]].layer) + HEIGHT + _GAP_Y * _LABEL_Y,
        dynamic=arrow.dynamic,
        is_taken=states.get(arrow.source) == "completed" and bool(states.get(arrow.target)),
    )
