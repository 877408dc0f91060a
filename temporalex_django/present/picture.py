"""The layout of a drawing of a graph: its steps as boxes in layers, and the arrows between them.

This module computes positions and sizes only, in the units of SVG. The admin makes SVG from them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

#: Largest number of steps that are drawn. ``Picture.left_out`` counts the others.
MAX_STEPS = 300
WIDTH, HEIGHT = 208, 46
_GAP_X, _GAP_Y = 28, 74
_BEND_WIDTH = 20  # the width that an arrow takes where it passes a layer
_MARGIN = 12
#: Position of a label on the first curve of its arrow: past the middle, where the arrows of one step have separated.
#: If more arrows meet at the end of the curve than begin with it, the label is as far before the middle.
_LABEL_X, _LABEL_Y = 0.72, 0.62
#: Largest average width of a letter of a label. The browser chooses the font, so no exact width is known here.
_LETTER_WIDTH = 7
_SWEEPS = 4
_MAX_TITLE_LENGTH = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """A transition from one step of a graph to another, before it has a place in the drawing.

    ``source`` and ``target`` are the numbers of the steps. ``dynamic`` is True if code chooses among several targets.
    """

    source: int
    target: int
    label: str
    dynamic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A step of a graph in the drawing; ``x`` and ``y`` are the position of its upper left corner.

    ``state`` is the state of the step in the run, and empty if the run has not reached it.
    """

    number: int
    title: str
    state: str
    x: float
    y: float

    @property
    def short_title(self) -> str:
        """The title, cut to a length that fits into the box."""
        if len(self.title) <= _MAX_TITLE_LENGTH:
            return self.title
        return self.title[: _MAX_TITLE_LENGTH - 1] + "…"

    @property
    def center_x(self) -> float:
        return self.x + WIDTH / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """An arrow in the drawing: a path in the syntax of SVG, and the position (``x``, ``y``) of its label.

    ``is_taken`` is True if the run seems to have followed it, by the states of both steps.
    """

    path: str
    label: str
    x: float
    y: float
    dynamic: bool
    is_taken: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The drawing of a graph: its size, the boxes of its steps, and the lines of its transitions, in the units of SVG.

    ``left_out`` is the number of steps that are not drawn, because there are too many.
    """

    width: float
    height: float
    boxes: Sequence[Box]
    lines: Sequence[Line]
    left_out: int = 0


@dataclass(slots=True)
class _Node:
    """A place in one layer of the drawing of a graph.

    A step takes it or, with ``step`` None, a long arrow that passes the layer. ``above`` and ``below`` are the indexes
    of the nodes that it is connected with in the layers next to it.
    """

    layer: int
    step: int | None
    above: list[int] = field(default_factory=list)
    below: list[int] = field(default_factory=list)
    x: float = 0.0

    @property
    def width(self) -> float:
        if self.step is not None:
            return WIDTH
        return _BEND_WIDTH

    @property
    def center_x(self) -> float:
        return self.x + self.width / 2


def draw_picture(titles: Sequence[str], arrows: Iterable[Arrow], states: Mapping[int, str]) -> Picture:
    """Return the drawing of a graph, at most ``MAX_STEPS`` of its steps.

    ``titles`` has one title for each step, in topological order. Its index is the number of the step. ``states`` has
    the states of the steps that the run has reached, by number.
    """
    step_count = min(len(titles), MAX_STEPS)
    visible_arrows = [arrow for arrow in arrows if arrow.source < step_count and arrow.target < step_count]
    layers = _assign_layers(step_count, visible_arrows)
    nodes = [_Node(layer, number) for number, layer in enumerate(layers)]
    routes = [_build_route(arrow, nodes) for arrow in visible_arrows]
    rows: dict[int, list[int]] = defaultdict(list)
    for index, node in enumerate(nodes):
        rows[node.layer].append(index)
    _order_rows(rows, nodes)
    width = _make_room_for_labels(visible_arrows, routes, nodes, _position_rows(rows, nodes))
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
    """Return the layer of each step: one below the lowest that leads to it. Layer 0 is at the top."""
    layers = [0] * count
    # Steps come in topological order, so the layer of a source is final before its arrows are followed.
    for arrow in sorted(arrows, key=lambda edge: edge.source):
        layers[arrow.target] = max(layers[arrow.target], layers[arrow.source] + 1)
    return layers


def _build_route(arrow: Arrow, nodes: list[_Node]) -> list[int]:
    """Return the nodes of an arrow as indexes. Append one to ``nodes`` for each layer between its ends."""
    route = [arrow.source]
    for layer in range(nodes[arrow.source].layer + 1, nodes[arrow.target].layer):
        # A long arrow takes part in the ordering of every layer that it passes: otherwise it would run through boxes.
        nodes.append(_Node(layer, None))
        route.append(len(nodes) - 1)
    route.append(arrow.target)
    for upper, lower in pairwise(route):
        nodes[upper].below.append(lower)
        nodes[lower].above.append(upper)
    return route


def _order_rows(rows: Mapping[int, list[int]], nodes: Sequence[_Node]) -> None:
    """Sort the nodes in each layer so that few arrows cross: each moves to the middle of its neighbours."""
    # The barycenter heuristic of layered drawings: a few sweeps come close to the fewest crossings.
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
                    # A node without neighbours keeps its place.
                    else positions[index]
                )
            row.sort(key=barycenters.__getitem__)
            positions.update({index: float(n) for n, index in enumerate(row)})


def _position_rows(rows: Mapping[int, list[int]], nodes: Sequence[_Node]) -> float:
    """Set ``x`` of all nodes so that the layers are centred, and return the width of the drawing."""
    widths = {layer: sum(nodes[index].width for index in row) + _GAP_X * (len(row) - 1) for layer, row in rows.items()}
    widest = max(widths.values(), default=WIDTH)
    for layer, row in rows.items():
        x = _MARGIN + (widest - widths[layer]) / 2
        for index in row:
            nodes[index].x = x
            x += nodes[index].width + _GAP_X
    return widest + 2 * _MARGIN


def _make_room_for_labels(
    arrows: Sequence[Arrow], routes: Sequence[Sequence[int]], nodes: Sequence[_Node], width: float
) -> float:
    """Return the width with labels, and move all nodes if one would begin outside of the drawing."""
    middles = [_label_position(route, nodes)[0] for route in routes]
    halves = [len(arrow.label) * _LETTER_WIDTH / 2 for arrow in arrows]
    overhang = max((half - middle for middle, half in zip(middles, halves, strict=True)), default=0.0)
    rightmost = max((middle + half for middle, half in zip(middles, halves, strict=True)), default=0.0)
    moved = max(0.0, overhang)
    for node in nodes:
        node.x += moved
    return max(width, rightmost) + moved


def _label_position(route: Sequence[int], nodes: Sequence[_Node]) -> tuple[float, float]:
    """Return ``(x, y)`` of an arrow's label, which lies on the first part of its route."""
    start, end = nodes[route[0]], nodes[route[1]]
    is_late = len(start.below) >= len(end.above)
    part_x, part_y = (_LABEL_X, _LABEL_Y) if is_late else (1 - _LABEL_X, 1 - _LABEL_Y)
    return (
        start.center_x + (end.center_x - start.center_x) * part_x,
        _layer_y(start.layer) + HEIGHT + _GAP_Y * part_y,
    )


def _layer_y(layer: int) -> float:
    return _MARGIN + layer * (HEIGHT + _GAP_Y)


def _draw_line(arrow: Arrow, route: Sequence[int], nodes: Sequence[_Node], states: Mapping[int, str]) -> Line:
    centers = [nodes[index].center_x for index in route]
    label_x, label_y = _label_position(route, nodes)
    y = _layer_y(nodes[route[0]].layer) + HEIGHT
    parts = [f"M{centers[0]:.0f} {y:.0f}"]
    for start_x, end_x, index in zip(centers, centers[1:], route[1:], strict=False):
        end_y = _layer_y(nodes[index].layer)
        middle_y = (y + end_y) / 2
        parts.append(f"C{start_x:.0f} {middle_y:.0f} {end_x:.0f} {middle_y:.0f} {end_x:.0f} {end_y:.0f}")
        y = end_y
        if index != route[-1]:
            # The arrow goes straight down beside the boxes of a layer that it only passes.
            y += HEIGHT
            parts.append(f"V{y:.0f}")
    return Line(
        path=" ".join(parts),
        label=arrow.label,
        x=label_x,
        y=label_y,
        dynamic=arrow.dynamic,
        # An approximation from the states of both ends: the target may have begun through another arrow.
        is_taken=states.get(arrow.source) == "completed" and bool(states.get(arrow.target)),
    )
