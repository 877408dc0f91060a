"""The graph of a workflow class: the facts about its steps and transitions that are computed before anything runs.

Steps are numbered in topological order, and a set of steps is a bit mask: bit ``i`` stands for step number ``i``. So
the test of a join, whether everything before a step has ended, is one ``and``, however large the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from temporalex_django.graph.definition.transitions import Clause, Target
from temporalex_django.graph.steps import Done, StepRef, key_of


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
