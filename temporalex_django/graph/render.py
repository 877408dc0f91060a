"""Pictures of a graph as text, in the languages mermaid, DOT and D2.

Names and labels are escaped, because they may hold any character.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from temporalex_django.graph.definition import Graph
from temporalex_django.graph.instance import Instance
from temporalex_django.graph.steps import StepRef, name_of

#: Fill and border of a step by its state. They are readable in print, and the label also names the state.
COLOURS = {
    "completed": ("#d9f2e3", "#1f7a4d"),
    "active": ("#dbeafe", "#1d4ed8"),
    "waiting": ("#fef3c7", "#b45309"),
    "requested": ("#ede9fe", "#6d28d9"),
    "failed": ("#fee2e2", "#b91c1c"),
}


def states(instance: Instance | None) -> dict[StepRef, str]:
    """Return the state of each step that has one, such as "active" or "completed"; empty without an instance."""
    if instance is None:
        return {}
    step_states: dict[StepRef, str] = {}
    for state in ("completed", "active", "waiting", "requested"):
        step_states.update(dict.fromkeys(getattr(instance, f"{state}_steps"), state))
    if instance.failed_step is not None:
        step_states[instance.failed_step] = "failed"
    return step_states


def mermaid(graph: Graph, instance: Instance | None = None) -> str:
    """Return the graph as a mermaid ``flowchart TD``.

    With ``instance``, the states of its steps are shown, with a class definition for each state that occurs.
    """
    step_states = states(instance)
    lines = ["flowchart TD"]
    for number, step in enumerate(graph.steps):
        state = step_states.get(step)
        label = _escape_mermaid(name_of(step) + (f" ({state})" if state else ""))
        # Nodes are called by number: two classes of different modules may have one name.
        lines.append(f'    s{number}["{label}"]' + (f":::{state}" if state else ""))
    for source, event, target, dynamic in _arrows(graph):
        arrow = "-.->" if dynamic else "-->"
        lines.append(f'    s{source} {arrow}|"{_escape_mermaid(event)}"| s{target}')
    for state in sorted(set(step_states.values())):
        fill, stroke = COLOURS[state]
        lines.append(f"    classDef {state} fill:{fill},stroke:{stroke},color:#111827")
    return "\n".join(lines) + "\n"


def dot(graph: Graph, instance: Instance | None = None) -> str:
    """Return the graph as a ``digraph`` in the DOT language. With ``instance``, the states of its steps are shown."""
    step_states = states(instance)
    lines = ["digraph {", "    node [shape=box style=rounded fontname=sans-serif];"]
    for number, step in enumerate(graph.steps):
        state = step_states.get(step)
        fill_style = ""
        if state:
            fill, stroke = COLOURS[state]
            fill_style = f' style="rounded,filled" fillcolor="{fill}" color="{stroke}"'
        lines.append(f"    s{number} [label={_quote(name_of(step) + (f' ({state})' if state else ''))}{fill_style}];")
    for source, event, target, dynamic in _arrows(graph):
        style = " style=dashed" if dynamic else ""
        lines.append(f"    s{source} -> s{target} [label={_quote(event)}{style}];")
    return "\n".join([*lines, "}"]) + "\n"


def d2(graph: Graph, instance: Instance | None = None) -> str:
    """Return the graph as input of the ``d2`` program. With ``instance``, the states of its steps are shown."""
    step_states = states(instance)
    lines = ["direction: down"]
    for number, step in enumerate(graph.steps):
        state = step_states.get(step)
        label = _quote(name_of(step) + (f" ({state})" if state else ""))
        fill_style = ""
        if state:
            fill, stroke = COLOURS[state]
            fill_style = f' {{style.fill: "{fill}"; style.stroke: "{stroke}"}}'
        lines.append(f"s{number}: {label}{fill_style}")
    for source, event, target, dynamic in _arrows(graph):
        style = " {style.stroke-dash: 4}" if dynamic else ""
        lines.append(f"s{source} -> s{target}: {_quote(event)}{style}")
    return "\n".join(lines) + "\n"


FORMATS: dict[str, Callable[[Graph, Instance | None], str]] = {"mermaid": mermaid, "dot": dot, "d2": d2}


def _arrows(graph: Graph) -> Iterator[tuple[int, str, int, bool]]:
    """Yield ``(source, event, target, dynamic)``. If ``dynamic``, a function chooses the target."""
    for edge in graph.edges():
        for target in edge.targets:
            yield graph.number[edge.source], edge.event, graph.number[target], edge.dynamic


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _escape_mermaid(text: str) -> str:
    """Escape a label with the entities that mermaid accepts inside quotes."""
    escaped_text = text.replace("&", "#amp;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
    return escaped_text.replace("\n", " ").replace("|", "#124;")
