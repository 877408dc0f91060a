"""The rules for a graph, checked when the class is defined; all violations are reported together."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from graphlib import CycleError
from typing import Any

from temporalex_django.core.payloads import codec
from temporalex_django.errors import PayloadError
from temporalex_django.graph.definition.structure import Graph, successors_of, topological_order
from temporalex_django.graph.definition.transitions import (
    Clause,
    Target,
    dynamic_transits,
    require_hashable,
    targets_of,
)
from temporalex_django.graph.steps import (
    Done,
    Step,
    StepRef,
    class_of,
    events_of,
    is_event,
    is_key,
    is_step,
    key_of,
    name_of,
    not_a_step_text,
)


def duplicate_clauses(cls: type) -> Iterator[str]:
    """Yield the keys that the literal dictionary ``transitions`` of a class body has twice, as source text.

    Python would drop the first value without an error. Yields nothing if the source cannot be read, as in a shell.
    """
    for statement in _class_body(cls):
        match statement:
            case ast.Assign(targets=[ast.Name(id="transitions")], value=ast.Dict(keys=keys)):
                pass
            case ast.AnnAssign(target=ast.Name(id="transitions"), value=ast.Dict(keys=keys)):
                pass
            case _:
                continue
        seen: set[str] = set()
        for key in keys:
            if key is None:  # ** of another mapping
                continue
            text = ast.unparse(key)
            if text in seen:
                yield text
            seen.add(text)


def _class_body(cls: type) -> list[ast.stmt]:
    """Return the statements of the class that is being defined.

    The file may hold other classes of that name. The right one contains the current line of a frame on the stack.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == cls.__module__:
            class_nodes = [
                node
                for node in _class_definitions(_read_source(frame.f_code.co_filename))
                if node.name == cls.__name__ and _first_line(node) <= frame.f_lineno <= (node.end_lineno or 0)
            ]
            if class_nodes:
                return max(class_nodes, key=_first_line).body
        frame = frame.f_back
    return []


def _first_line(node: ast.ClassDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _read_source(filename: str) -> str:
    """Return the source as it is on disk now, because a module may have been reloaded."""
    linecache.checkcache(filename)
    return "".join(linecache.getlines(filename))


@lru_cache(maxsize=1)
def _class_definitions(source: str) -> tuple[ast.ClassDef, ...]:
    """Return all class statements of a source. The cache lets a module with many graphs be parsed once."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def build(cls: type) -> tuple[Graph | None, list[str]]:
    """Return ``(graph, sentences)`` for a class, with one sentence for each violation of a rule.

    A sentence names the rule and the step. The graph is None if there is a violation.
    """
    problems: list[str] = []
    initial = _initial_target(cls, problems)
    clauses = [*_static_clauses(cls, problems), *_dynamic_clauses(cls)]
    problems += _ambiguity_problems(clauses)
    problems += [
        f"transitions: {pair} appears twice, and the second entry would silently replace the first"
        for pair in duplicate_clauses(cls)
    ]
    # Without a valid start, check the steps all the same, so that all problems are reported at once.
    successors = successors_of([clause.step for clause in clauses[:1]] if initial is None else [initial.step], clauses)
    steps = list(successors)
    problems += [problem for step in steps for problem in _step_problems(step)]
    problems += _key_problems(steps)
    problems += _event_problems(steps, clauses)
    cycles = [*_cycle_problems(successors)]
    problems += cycles
    if initial is not None:
        problems += _reachability_problems(initial.step, successors)
    problems += _leaf_problems(successors)
    # The graph numbers its steps in topological order, so it cannot be built with a cycle.
    if initial is None or cycles:
        return None, problems
    graph = Graph(initial, clauses)
    problems += _convergence_problems(graph)
    return (None if problems else graph), problems


def _initial_target(cls: type, problems: list[str]) -> Target | None:
    """Return the first step of a class with its config, or None after a sentence was added to ``problems``."""
    value = getattr(cls, "initial", None)
    if value is None:
        problems.append("initial: the start is missing: write initial = FirstStep, or (FirstStep, config)")
        return None
    try:
        targets = targets_of(value)
    except ValueError as exc:
        problems.append(f"initial: {exc}")
        return None
    if len(targets) != 1 or isinstance(value, list):
        problems.append("initial: it must be one step, or (step, config)")
        return None
    return _plain_target("initial", targets[0], problems)


def _static_clauses(cls: type, problems: list[str]) -> Iterator[Clause]:
    """Yield a clause for each item of the mapping ``transitions`` of a class.

    Add a sentence to ``problems`` for each invalid item.
    """
    transitions = getattr(cls, "transitions", {})
    if not isinstance(transitions, Mapping):
        problems.append(f"transitions: it must be a mapping of (step, event) to targets, not {transitions!r}")
        return
    for key, value in transitions.items():
        if not (isinstance(key, tuple) and len(key) == 2 and is_step(key[0])):
            reason = ""
            if isinstance(key, tuple) and len(key) == 2:
                reason = f": {not_a_step_text(key[0])}"
            problems.append(f"transitions: the key {key!r} must be (step, event){reason}")
            continue
        step, event = key
        try:
            require_hashable(step)
        except ValueError as exc:
            problems.append(f"transitions: {exc}")
            continue
        if not is_event(event):
            problems.append(f"transitions: {name_of(step)}: {event!r} is not a valid event name (a string)")
            continue
        location = f"transitions: ({name_of(step)}, {event!r})"
        try:
            targets = targets_of(value)
        except ValueError as exc:
            problems.append(f"{location}: {exc}")
            continue
        if not targets:
            problems.append(f"{location}: it has no target; a path must end with Done")
            continue
        yield Clause(step, str.__str__(event), tuple(_plain_target(location, target, problems) for target in targets))


def _plain_target(location: str, target: Target, problems: list[str]) -> Target:
    """Return the target with its config as plain data, which is the form that the step gets from the history.

    A config that is no payload adds a sentence, which ``location`` begins, to ``problems``. The config is then dropped.
    """
    try:
        return Target(target.step, codec.to_plain(target.config, label=f"the config of {name_of(target.step)}"))
    except PayloadError as exc:
        problems.append(f"{location}: {exc.message}")
        return Target(target.step)


def _dynamic_clauses(cls: type) -> Iterator[Clause]:
    for transit in dynamic_transits(cls):
        yield Clause(transit.step, transit.event, tuple(Target(step) for step in transit.targets), transit.fn)


def _ambiguity_problems(clauses: Sequence[Clause]) -> Iterator[str]:
    """Yield a sentence for each pair of step and event that has more than one clause."""
    seen: dict[tuple[StepRef, str], int] = {}
    for clause in clauses:
        pair = (clause.step, clause.event)
        # Keys of the mapping are unique, but a dynamic clause may be for the same pair.
        seen[pair] = seen.get(pair, 0) + 1
        if seen[pair] == 2:
            yield (
                f"transitions: ({name_of(clause.step)}, {clause.event!r}) has several clauses, but only one is allowed"
            )


def _step_problems(step: StepRef) -> Iterator[str]:
    """Yield a sentence for each problem of a step itself: its ``execute``, its key and its events."""
    cls, name = class_of(step), name_of(step)
    if step is not Done and isinstance(step, type) and getattr(step, "waits", False):
        yield f"step {name}: it has parameters: use an instance of it"
        return
    yield from _execute_problems(cls, name)
    if step is Done:
        return
    if not is_key(key_of(step)):
        yield f"step {name}: the key {key_of(step)!r} must be a name that does not begin with '_'"
    events = step.events
    if not isinstance(events, (list, tuple)) or not all(is_event(event) for event in events):
        yield f"step {name}: events must be a list of names, not {events!r}"
    elif not events:
        yield f"step {name}: it declares no events"
    elif len(set(events)) != len(events):
        yield f"step {name}: it declares an event twice: {', '.join(events)}"


def _execute_problems(cls: type[Step], name: str) -> Iterator[str]:
    execute = inspect.getattr_static(cls, "execute", None)
    if cls.execute is Step.execute:
        yield f"step {name}: it has no execute(self, instance, config, context)"
    elif not callable(getattr(cls, "execute", None)) or not _accepts_step_arguments(execute):
        yield f"step {name}: execute must take (self, instance, config, context)"
    elif cls.atomic and inspect.iscoroutinefunction(cls.execute):
        yield f"step {name}: an atomic step runs inside the turn's transaction and cannot be async"


def _accepts_step_arguments(execute: Any) -> bool:
    fn = execute.__func__ if isinstance(execute, (staticmethod, classmethod)) else execute
    # The static attribute is read, so ``self`` (or ``cls``) is still among the parameters.
    count = 3 if isinstance(execute, staticmethod) else 4
    try:
        inspect.signature(fn).bind(*range(count))
    except (TypeError, ValueError):
        return False
    return True


def _key_problems(steps: Iterable[StepRef]) -> Iterator[str]:
    # Every graph has Done, so its key is taken.
    owners: dict[str, list[StepRef]] = {key_of(Done): [Done]}
    for step in steps:
        if step is not Done:
            owners.setdefault(key_of(step), []).append(step)
    for key, refs in owners.items():
        if len(refs) > 1:
            names = ", ".join(name_of(ref) for ref in refs)
            yield f"unique context keys: {names} all write to {key!r}: give each its own key"


def _event_problems(steps: Iterable[StepRef], clauses: Iterable[Clause]) -> Iterator[str]:
    """Yield a sentence for each event without a transition, and for each transition for an undeclared event."""
    followed_events: dict[StepRef, dict[str, None]] = {}
    for clause in clauses:
        followed_events.setdefault(clause.step, {})[clause.event] = None
    for step in steps:
        followed = followed_events.get(step, {})
        if step is Done:
            for event in followed:
                yield f"events: Done is the end, so nothing can follow ({name_of(step)}, {event!r})"
            continue
        if not isinstance(step.events, (list, tuple)) or not all(is_event(event) for event in step.events):
            continue  # reported by _step_problems already
        events = events_of(step)
        for event in dict.fromkeys(events):
            if event not in followed:
                yield f"events: step {name_of(step)} declares {event!r}, but has no transition for it"
        for event in followed:
            if event not in events:
                yield f"events: step {name_of(step)} has a transition for {event!r}, but does not declare it"


def _cycle_problems(successors: Mapping[StepRef, Sequence[StepRef]]) -> Iterator[str]:
    """Yield one sentence with a cycle for each group of steps that lead to each other."""
    remaining = dict(successors)
    while True:
        try:
            topological_order(remaining)
        except CycleError as exc:
            cycle = exc.args[1]
            yield f"acyclic: {' → '.join(name_of(step) for step in cycle)} is a cycle"
            cyclic_steps = {
                step
                for step in remaining
                if step in reachable_steps(cycle[0], remaining) and cycle[0] in reachable_steps(step, remaining)
            }
            remaining = {
                step: [other for other in following if other not in cyclic_steps]
                for step, following in remaining.items()
                if step not in cyclic_steps
            }
        else:
            return


def reachable_steps(start: StepRef, successors: Mapping[StepRef, Sequence[StepRef]]) -> set[StepRef]:
    """Return the steps that can follow ``start``, directly or not. ``start`` itself is among them only in a cycle.

    ``successors`` has the direct successors of each step.
    """
    steps: set[StepRef] = set()
    pending = [start]
    while pending:
        for step in successors.get(pending.pop(), ()):
            if step not in steps:
                steps.add(step)
                pending.append(step)
    return steps


def _reachability_problems(start: StepRef, successors: Mapping[StepRef, Sequence[StepRef]]) -> Iterator[str]:
    """Yield a sentence for each step that no path from ``start`` reaches."""
    reachable = reachable_steps(start, successors) | {start}
    for step in successors:
        if step not in reachable:
            yield f"reachable: no path leads from {name_of(start)} to {name_of(step)}"


def _leaf_problems(successors: Mapping[StepRef, Sequence[StepRef]]) -> Iterator[str]:
    for step, following in successors.items():
        if not following and step is not Done:
            yield f"leaf: nothing follows {name_of(step)}: every path must end with Done"


def _convergence_problems(graph: Graph) -> Iterator[str]:
    """Yield a sentence for each transition to several steps whose paths do not all meet before ``Done``."""
    for clause in graph.clauses.values():
        if clause.route is None and len(clause.targets) > 1:
            branches = [target.step for target in clause.targets]
            if graph.can_miss_join(branches):
                names = ", ".join(name_of(branch) for branch in branches)
                yield (
                    f"convergence: {name_of(clause.step)} fans out on {clause.event!r} to {names}, "
                    "but their paths do not all meet in one step before Done"
                )
