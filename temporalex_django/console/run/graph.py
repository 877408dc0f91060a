"""The graph of a run with the state of each step, as a drawing and as a list with the same content."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from django.template import Context, Engine
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from temporalex_django.authoring.redaction import UNREDACTED
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.console.base import shape
from temporalex_django.core.history.events import HistoryEvent as Event
from temporalex_django.errors import TemporalexError
from temporalex_django.graph.instance import Instance as GraphInstance
from temporalex_django.graph.projection import project
from temporalex_django.graph.render import COLOURS, states
from temporalex_django.graph.workflow import GraphWorkflow
from temporalex_django.models import HistoryEvent, Instance
from temporalex_django.operations.read import describe
from temporalex_django.operations.read.timeline import redact_event
from temporalex_django.present.formatting import capitalize
from temporalex_django.present.picture import HEIGHT, WIDTH, Arrow, Box, Picture, draw_picture

_TEMPLATES = Path(__file__).parents[2] / "templates"
#: Colours of a file, beside the layout of ``graph.svg``: of a step by its state, readable in print.
_STYLE = (
    "text{font:12px sans-serif;fill:#111827}.tx-step-name,.tx-step-state{font-weight:600}"
    ".tx-event-name{font-size:11px;fill:#4b5563;text-anchor:middle;paint-order:stroke;stroke:#fff;stroke-width:4px}"
    ".tx-line{fill:none;stroke:#9ca3af;stroke-width:1.5}.tx-taken{stroke:#1f7a4d;stroke-width:2.5}"
    ".tx-dynamic{stroke-dasharray:5 4}.tx-tip{fill:#6b7280}"
    ".tx-step{color:#6b7280}.tx-step rect{fill:#fff;stroke:currentColor;stroke-width:1.5}"
    ".tx-step .tx-step-state{fill:currentColor}"
    + "".join(
        f".tx-step-{state}{{color:{border}}}.tx-step-{state} rect{{fill:{fill}}}"
        for state, (fill, border) in COLOURS.items()
    )
)
#: Largest number of events from which the states of the steps are computed.
MAX_EVENTS: Final = 2000
#: Kinds of ``formatting.badge`` by the state of a step.
_SHAPES = {
    "completed": "completed", "active": "running", "waiting": "waiting", "requested": "pending", "failed": "failed",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnStep:
    """A step of a graph as the page of a run shows it, in the drawing and in the list below it.

    ``box`` is its place and state in the drawing, and ``shape`` the symbol of its state. ``leads_to`` has a text for
    each step that may follow: the event and the title of that step.
    """

    box: Box
    shape: SafeString
    state_text: str
    leads_to: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPicture:
    """The graph of a run as its page shows it: the drawing, and the list of its steps.

    ``why_not`` says why the steps have no states, and is None if they have them.
    """

    drawn: Picture
    steps: Sequence[DrawnStep]
    why_not: str | None
    width: int = WIDTH
    height: int = HEIGHT


def graph_class_of(run: Instance) -> type[GraphWorkflow] | None:
    """Return the graph class of a run in exactly its version.

    Returns None if the run is not a graph, or if this process lacks that version of the class.
    """
    # Without the very version, another one may be found: its steps would not be those of the run.
    code: type[Workflow] | None = describe.class_or_none(run.workflow, run.version)
    if code is not None and issubclass(code, GraphWorkflow) and code.version == run.version:
        return code
    return None


def read_graph_events(run: Instance, *, alias: str) -> list[Event] | None:
    """Return all events of a run, or None if there are more than ``MAX_EVENTS``. One read."""
    rows = HistoryEvent.objects.using(alias).filter(run_id=run.pk).order_by("seq")[: MAX_EVENTS + 1]
    events = [redact_event(row, UNREDACTED) for row in rows]
    return None if len(events) > MAX_EVENTS else events


def build_graph_picture(
    graph_class: type[GraphWorkflow], events: Sequence[Event] | None, *, why_not: str | None = None
) -> GraphPicture:
    """Return the drawing of the graph, with the states of its steps that follow from the history of a run.

    ``events`` is the whole history, or None if it is too long to read; the steps then have no states. ``why_not`` is
    another reason why there is no history, or None.
    """
    instance = None
    if why_not is None:
        instance, why_not = _read_instance(graph_class, events)
    return draw_graph(graph_class, instance, why_not=why_not)


def draw_graph(
    graph_class: type[GraphWorkflow], instance: GraphInstance | None, *, why_not: str | None = None
) -> GraphPicture:
    """Return the drawing of the graph, with the states that its steps have in ``instance``."""
    refs = list(graph_class.graph())
    step_numbers = {step: n for n, step in enumerate(refs)}
    step_states = {step_numbers[step]: state for step, state in states(instance).items()}
    # Several events may lead from one step to the same next step: one arrow with all their names.
    edge_events: dict[tuple[int, int], list[str]] = defaultdict(list)
    dynamic: set[tuple[int, int]] = set()
    for edge in graph_class.edges():
        for target in edge.targets:
            arrow_key = step_numbers[edge.source], step_numbers[target]
            edge_events[arrow_key].append(edge.event)
            dynamic |= {arrow_key} if edge.dynamic else set()
    arrows = [
        Arrow(source=arrow_key[0], target=arrow_key[1], label=", ".join(event_names), dynamic=arrow_key in dynamic)
        for arrow_key, event_names in edge_events.items()
    ]
    names = [capitalize(describe.title_of_step(step)) for step in refs]
    drawn = draw_picture(names, arrows, step_states)
    state_texts = _state_texts()
    leads_to: dict[int, list[str]] = defaultdict(list)
    for arrow in arrows:
        leads_to[arrow.source].append(f"{arrow.label} → {names[arrow.target]}")
    steps = [
        DrawnStep(
            box=box,
            shape=shape(_SHAPES.get(box.state, "")),
            state_text=state_texts.get(box.state, ""),
            leads_to=leads_to[box.number],
        )
        for box in drawn.boxes
    ]
    return GraphPicture(drawn=drawn, steps=steps, why_not=why_not)


def render_svg(picture: GraphPicture) -> str:
    """Return a drawing as an SVG file, with the symbols and the layout of the page, in colours for white paper.

    It needs no template engine of the project.
    """
    engine = Engine(
        dirs=[str(_TEMPLATES)],
        libraries={"i18n": "django.templatetags.i18n", "l10n": "django.templatetags.l10n"},
    )
    template = engine.get_template("temporalex_django/console/run/graph.svg")
    return template.render(Context({"graph": picture, "style": mark_safe(_STYLE)}))  # noqa: S308 - a constant


def _read_instance(
    graph_class: type[GraphWorkflow], events: Sequence[Event] | None
) -> tuple[GraphInstance | None, str | None]:
    """Return ``(instance, why there is none or None)``. Events are None if the history is too long."""
    if events is None:
        return None, _("The history is too long to read here, so the states of the steps are not shown.")
    try:
        return (project(graph_class, events) if events else None), None
    # Other code may have written the history, or a payload cannot be read: the page must show the graph anyway.
    except (TemporalexError, LookupError, TypeError, ValueError):
        return None, _("The history does not match the current graph, so the states of the steps are not shown.")


def _state_texts() -> dict[str, str]:
    return {
        "completed": _("completed"),
        "active": _("active"),
        "waiting": _("waiting"),
        "requested": _("waiting for other steps"),
        "failed": _("failed"),
    }
