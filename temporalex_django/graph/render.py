"""Pictures of a graph as text: mermaid, DOT and D2. Names and labels are escaped: a class may be called anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from temporalex_django.graph.definition.structure import Graph
from temporalex_django.graph.instance import Instance
from temporalex_django.graph.steps import StepRef, name_of

#: Fill and border of a step by its state; readable in print, and told apart by the label as well.
COLOURS = {
    "completed": ("#d9f2e3", "#1f7a4d"),
    "active": ("#dbeafe", "#1d4ed8"),
    "waiting": ("#fef3c7", "#b45309"),
    "requested": ("#ede9fe", "#6d28d9"),
    "failed": ("#fee2e2", "#b91c1c"),
}


def states(instance: Instance | None) -> dict[StepRef, str]:
    """The state of each step that has one."""
    if instance is None:
        return {}
    found: dict[StepRef, str] = {}
    for state in ("completed", "active", "waiting", "requested"):
        found.update(dict.fromkeys(getattr(instance, f"{state}_steps"), state))
    if instance.failed_step is not None:
        found[instance.failed_step] = "failed"
    return found


def mermaid(graph: Graph, instance: Instance | None = None) -> str:
    """``flowchart TD`` with a class definition for each state that occurs."""
    standing = states(instance)
    lines = ["flowchart TD"]
    for number, step in enumerate(graph.steps):
        state = standing.get(step)
        label = _for_mermaid(name_of(step) + (f" ({state})" if state else ""))
        lines.append(f'    s{number}["{label}"]' + (f":::{state}" if state else ""))
    for source, event, target, dynamic in _arrows(graph):
        arrow = "-.->" if dynamic else "-->"
        lines.append(f'    s{source} {arrow}|"{_for_mermaid(event)}"| s{target}')
    for state in sorted(set(standing.values())):
        fill, stroke = COLOURS[state]
        lines.append(f"    classDef {state} fill:{fill},stroke:{stroke},color:#111827")
    return "\n".join(lines) + "\n"


def dot(graph: Graph, instance: Instance | None = None) -> str:
    """A ``digraph``."""
    standing = states(instance)
    lines = ["digraph {", "    node [shape=box style=rounded fontname=sans-serif];"]
    for number, step in enumerate(graph.steps):
        state = standing.get(step)
        look = ""
        if state:
            fill, stroke = COLOURS[state]
            look = f' style="rounded,filled" fillcolor="{fill}" color="{stroke}"'
        lines.append(f"    s{number} [label={_quoted(name_of(step) + (f' ({state})' if state else ''))}{look}];")
    for source, event, target, dynamic in _arrows(graph):
        style = " style=dashed" if dynamic else ""
        lines.append(f"    s{source} -> s{target} [label={_quoted(event)}{style}];")
    return "\n".join([*lines, "}"]) + "\n"


def d2(graph: Graph, instance: Instance | None = None) -> str:
    """Input of the ``d2`` program, which draws it."""
    standing = states(instance)
    lines = ["direction: down"]
    for number, step in enumerate(graph.steps):
        state = standing.get(step)
        label = _quoted(name_of(step) + (f" ({state})" if state else ""))
        look = ""
        if state:
            fill, stroke = COLOURS[state]
            look = f' {{style.fill: "{fill}"; style.stroke: "{stroke}"}}'
        lines.append(f"s{number}: {label}{look}")
    for source, event, target, dynamic in _arrows(graph):
        style = " {style.stroke-dash: 4}" if dynamic else ""
        lines.append(f"s{source} -> s{target}: {_quoted(event)}{style}")
    return "\n".join(lines) + "\n"


FORMATS: dict[str, Callable[[Graph, Instance | None], str]] = {"mermaid": mermaid, "dot": dot, "d2": d2}


def _arrows(graph: Graph) -> Iterator[tuple[int, str, int, bool]]:
    for edge in graph.edges():
        for target in edge.targets:
            yield graph.number[edge.source], edge.event, graph.number[target], edge.dynamic


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _for_mermaid(text: str) -> str:
    """Mermaid takes entities inside quotes."""
    found = text.replace("&", "#amp;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
    return found.replace("\n", " ").replace("|", "#124;")
