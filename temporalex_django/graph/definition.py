"""Definitions of graphs: their transitions, their structure, and what is wrong with them."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

from temporalex_django.authoring.activity import Activity
from temporalex_django.authoring.django_tasks import is_task
from temporalex_django.core.payloads import codec
from temporalex_django.errors import PayloadError, WorkflowDefinitionError
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

# --- validation -------------------------------------------------------------------------------------------------------
#
# The rules for a graph, checked when the class is defined; all violations are reported together.


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
    """Return the body in which a frame on the stack is now: the file may hold other classes of that name."""
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
    """Return all class statements. The cache lets a module with many graphs be parsed once."""
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
    """Return the first step with its config, or None after a sentence was added to ``problems``."""
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
    """Yield a clause for each item of ``transitions``. An invalid item adds to ``problems``."""
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
    """Return the config as plain data, as the step gets it from the history, or drop it and add to ``problems``."""
    try:
        return Target(target.step, codec.to_plain(target.config, label=f"the config of {name_of(target.step)}"))
    except PayloadError as exc:
        problems.append(f"{location}: {exc.message}")
        return Target(target.step)


def _dynamic_clauses(cls: type) -> Iterator[Clause]:
    for transit in dynamic_transits(cls):
        yield Clause(transit.step, transit.event, tuple(Target(step) for step in transit.targets), transit.fn)


def _ambiguity_problems(clauses: Sequence[Clause]) -> Iterator[str]:
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
    """Yield one cycle for each group of steps that lead to each other."""
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


# --- transitions ------------------------------------------------------------------------------------------------------
#
# Transitions: the steps that follow an event of a step, in the forms in which a workflow class writes them.


@dataclass(frozen=True, slots=True)
class Target:
    """A step to which a transition leads, with the config that the transition gives to the step, or None."""

    step: StepRef
    config: Any = None


@dataclass(frozen=True, slots=True)
class Clause:
    """A transition: the ``targets`` that follow when ``step`` emits ``event``.

    A dynamic clause has a function ``route(context)``, which chooses among the targets when the event comes.
    """

    step: StepRef
    event: str
    targets: tuple[Target, ...]
    route: Callable[[Any], Any] | None = None


class Transit:
    """A dynamic transition as ``@transit`` declares it in the body of a workflow class.

    ``fn`` is the decorated function, which chooses among the targets.
    """

    def __init__(self, step: StepRef, event: str, targets: tuple[StepRef, ...], fn: Callable[[Any], Any]) -> None:
        self.step = step
        self.event = event
        self.targets = targets
        self.fn = fn

    def __get__(self, instance: object, owner: type | None = None) -> Callable[[Any], Any]:
        return self.fn


def transit(
    step: StepRef, event: str, *, targets: Sequence[StepRef]
) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Return a decorator for a function that chooses the steps which follow when ``step`` emits ``event``.

    It decorates a function ``(context)`` in the body of the workflow class, above ``@staticmethod``.

    The function returns one of ``targets``, ``(target, config)``, or a list of these; an empty list activates nothing.
    It must be deterministic, like all workflow code. Raises ``WorkflowDefinitionError`` for invalid arguments, and for
    a function that is async or cannot be called with a context.
    """
    problems = []
    if not is_step(step):
        problems = [not_a_step_text(step)]
    if not is_event(event):
        problems.append(f"{event!r} is not a valid event name")
    if (
        isinstance(targets, (str, bytes, Mapping))
        or not hasattr(targets, "__iter__")
        or not (target_steps := tuple(targets))
    ):
        target_steps = ()
        problems.append("targets must be a list of the steps that it can choose")
    problems += [f"the target {not_a_step_text(target)}" for target in target_steps if not is_step(target)]
    for ref in (step, *target_steps):
        try:
            require_hashable(ref)
        except ValueError as exc:
            problems.append(str(exc))
    if problems:
        raise WorkflowDefinitionError(f"transit({name_of(step)}, {event!r}): " + "; ".join(problems))

    def decorate(fn: Callable[[Any], Any]) -> Any:
        function = fn.__func__ if isinstance(fn, staticmethod) else fn
        if not callable(function) or inspect.iscoroutinefunction(function) or not _accepts_context(function):
            raise WorkflowDefinitionError(
                f"transit({name_of(step)}, {event!r}): decorate a plain function that takes (context), not {fn!r}"
            )
        return Transit(step, str.__str__(event), target_steps, function)

    return decorate


def _accepts_context(fn: Callable[..., Any]) -> bool:
    try:
        inspect.signature(fn).bind(None)
    except TypeError:
        return False
    return True


def targets_of(value: Any) -> tuple[Target, ...]:
    """Return the targets that ``value`` describes: a step, ``(step, config)``, or a list of these.

    Raises ``ValueError`` that names the part which is none of these.
    """
    if isinstance(value, list):
        targets = tuple(_as_target(part) for part in value)
        for index, target in enumerate(targets):
            if any(target.step == other.step for other in targets[:index]):
                raise ValueError(f"{name_of(target.step)} is in the list twice")
        return targets
    return (_as_target(value),)


def _as_target(value: Any) -> Target:
    """Raise ``ValueError``, with advice, for anything but a step or ``(step, config)``."""
    if is_step(value):
        return Target(require_hashable(value))
    if isinstance(value, tuple) and len(value) == 2 and is_step(value[0]):
        # A tuple of two steps looks like (step, config), and is almost always meant as a fan-out.
        if is_step(value[1]):
            raise ValueError(f"({name_of(value[0])}, {name_of(value[1])}) is a tuple: write a list to fan out")
        return Target(require_hashable(value[0]), value[1])
    if isinstance(value, tuple) and len(value) == 2 and (isinstance(value[0], Activity) or is_task(value[0])):
        value = value[0]
    raise ValueError(not_a_step_text(value, " (a step, (step, config), or a list of these)"))


def require_hashable(step: StepRef) -> StepRef:
    """Return the step. Raises ``ValueError`` if the step is not hashable, because it then cannot be looked up."""
    try:
        hash(step)
    except TypeError:
        raise ValueError(
            f"{name_of(step)} cannot be hashed: make its class a frozen dataclass of hashable values"
        ) from None
    return step


def dynamic_transits(cls: type) -> Iterator[Transit]:
    """Yield the dynamic clauses that ``@transit`` declares in a class and its bases, in order of definition.

    A function replaces an earlier one of the same name.
    """
    attributes: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items():
            # Remove it first, so that a name that is defined again moves to the place of its new definition.
            attributes.pop(name, None)
            attributes[name] = value
    for value in attributes.values():
        if isinstance(value, Transit):
            yield value


# --- structure --------------------------------------------------------------------------------------------------------
#
# The graph of a workflow class: the facts about its steps and transitions that are computed before anything runs.
#
# Steps are numbered in topological order, and a set of steps is a bit mask: bit ``i`` stands for step number ``i``. So
# the test of a join, whether everything before a step has ended, is one ``and``, however large the graph.


class Edge(NamedTuple):
    """A transition of a graph: when the step ``source`` emits ``event``, the steps ``targets`` follow.

    If ``dynamic`` is True, a function chooses among the targets when the event comes.
    """

    source: StepRef
    event: str
    targets: tuple[StepRef, ...]
    dynamic: bool


class Graph:
    """The steps and transitions of a class, built once and never changed.

    ``initial`` is the first step with its config, and ``clauses`` are the transitions. A mask is a set of steps: an int
    whose bit ``i`` stands for step number ``i``. ``direct[i]`` is the mask of the direct predecessors of step ``i``,
    and ``next[i]`` the mask of its direct successors. ``before[i]`` is the mask of all steps from which ``i`` can be
    reached. ``after[i]`` is the mask of all steps that can be reached from ``i``. Raises ``CycleError`` (of
    ``graphlib``) for a graph with a cycle.
    """

    def __init__(self, initial: Target, clauses: Iterable[Clause]) -> None:
        self.initial = initial
        self.clauses = {(clause.step, clause.event): clause for clause in clauses}
        successors = successors_of([initial.step], self.clauses.values())
        self.steps: tuple[StepRef, ...] = topological_order(successors)
        self.number: dict[StepRef, int] = {step: i for i, step in enumerate(self.steps)}
        self.keys: tuple[str, ...] = tuple(key_of(step) for step in self.steps)
        self.by_key: dict[str, StepRef] = dict(zip(self.keys, self.steps, strict=True))
        self.direct: list[int] = [0] * len(self.steps)  # masks of direct predecessors
        self.before: list[int] = [0] * len(self.steps)
        self.after: list[int] = [0] * len(self.steps)
        self.next: list[int] = [self.mask(successors[step]) for step in self.steps]
        # In ascending numbers, so that the mask of a step is complete before its successors take it over.
        for i, following in enumerate(self.next):
            for n in bits(following):
                self.direct[n] |= 1 << i
                self.before[n] |= self.before[i] | 1 << i
        for i in reversed(range(len(self.steps))):
            for n in bits(self.next[i]):
                self.after[i] |= self.after[n] | 1 << n

    def mask(self, steps: Iterable[StepRef]) -> int:
        """Return the bit mask of these steps."""
        mask = 0
        for step in steps:
            mask |= 1 << self.number[step]
        return mask

    def refs(self, mask: int) -> Iterator[StepRef]:
        """Return the steps whose numbers are in ``mask``, in the order of their numbers."""
        return (self.steps[i] for i in bits(mask))

    def predecessors(self, step: StepRef) -> frozenset[StepRef]:
        """Return the steps from which a transition leads directly to ``step``.

        The set is empty for a step that the graph lacks.
        """
        number = self.number.get(step)
        if number is None:
            return frozenset()
        return frozenset(self.refs(self.direct[number]))

    def edges(self) -> tuple[Edge, ...]:
        """Return all transitions of the graph."""
        return tuple(
            Edge(c.step, c.event, tuple(t.step for t in c.targets), c.route is not None) for c in self.clauses.values()
        )

    def can_miss_join(self, branches: Sequence[StepRef]) -> bool:
        """Return True if the paths from the steps ``branches`` do not all meet in one step before ``Done``.

        A transition to such branches is refused, because parallel branches must join again. A step that all the paths
        pass is a common post-dominator of the branches.
        """
        common = -1
        for branch in branches:
            common &= self.post_dominators[self.number[branch]]
        end = self.number.get(Done)
        return not (common if end is None else common & ~(1 << end))

    @property
    def post_dominators(self) -> list[int]:
        """The post-dominators of each step as a set (a bit mask of step numbers), by step number.

        The post-dominators of a step are the steps on every path from it to the end of the graph, the step itself
        included.
        """
        if not hasattr(self, "_post_dominators"):
            masks = [0] * len(self.steps)
            for i in reversed(range(len(self.steps))):
                # -1 has all bits set: the intersection over the successors starts with every step.
                always = -1 if self.next[i] else 0
                for n in bits(self.next[i]):
                    always &= masks[n]
                masks[i] = always | 1 << i
            self._post_dominators = masks
        return self._post_dominators


def bits(mask: int) -> Iterator[int]:
    """Yield the positions of the bits that are set in ``mask``, in ascending order: the numbers of the steps in it."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def successors_of(first_steps: Iterable[StepRef], clauses: Iterable[Clause]) -> dict[StepRef, list[StepRef]]:
    """Return the direct successors of each step, by step.

    The ``first_steps`` come first, then the other steps in the order in which the clauses name them.
    """
    successors: dict[StepRef, list[StepRef]] = {step: [] for step in first_steps}
    for clause in clauses:
        following = successors.setdefault(clause.step, [])
        for target in clause.targets:
            successors.setdefault(target.step, [])
            if target.step not in following:
                following.append(target.step)
    return successors


def topological_order(successors: Mapping[StepRef, Sequence[StepRef]]) -> tuple[StepRef, ...]:
    """Return the steps in an order in which each comes after its predecessors.

    ``successors`` has the direct successors of each step. Steps of which neither follows the other keep their order in
    ``successors``. Raises ``CycleError`` (of ``graphlib``).
    """
    sorter: TopologicalSorter[StepRef] = TopologicalSorter()
    # Add all steps first, so that steps without an order between them keep the order of appearance.
    for step in successors:
        sorter.add(step)
    for step, following in successors.items():
        for other in following:
            sorter.add(other, step)
    return tuple(sorter.static_order())


__all__ = ["CycleError", "Edge", "Graph", "bits", "successors_of", "topological_order"]
