"""Laws of graphs, over random ones.

Against checks and a join rule that are written down here a second time, with sets and searches.
"""

from __future__ import annotations

import contextlib
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temporalex_django import Done, Err, Event, GraphWorkflow, Step, Unique, WaitForEvent, errors, transit
from temporalex_django import event as declared
from temporalex_django.graph import Instance, engine
from temporalex_django.graph.progress import Progress
from temporalex_django.testing import WorkflowEnvironment
from tests.property.examples import examples

_names = count()


def step(number: int, events: int) -> type[Step]:
    def execute(self: Any, instance: Any, config: Any, context: Any) -> Event:
        return Event("e0")

    body = {"events": tuple(f"e{n}" for n in range(events)), "execute": execute, "__module__": __name__}
    return type(f"S{number}", (Step,), body)


#: For each node its events; for each event the nodes behind it that it leads to (none: Done), and whether code chooses
#: one of them.
Plan = list[list[tuple[list[int], bool]]]


@st.composite
def plans(draw: st.DrawFn, most: int = 8) -> Plan:
    size = draw(st.integers(1, most))
    plan: Plan = []
    for node in range(size):
        targets = st.just([])
        if node + 1 < size:
            targets = st.lists(st.integers(node + 1, size - 1), max_size=3, unique=True)
        plan.append(draw(st.lists(st.tuples(targets, st.booleans()), min_size=1, max_size=2)))
    return plan


class _Builder:
    """Blocks of steps, put one behind the other, side by side, or as alternatives: most of these are good graphs."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.plan: Plan = []

    def node(self, events: int) -> int:
        self.plan.append([([], False)] * events)
        return len(self.plan) - 1

    def connect(self, ends: list[tuple[int, int]], target: int) -> None:
        for node, event in ends:
            self.plan[node][event] = ([target], False)

    def block(self, depth: int) -> tuple[int, list[tuple[int, int]]]:
        """The first node, and the events that lead nowhere yet."""
        kind = self.draw(st.sampled_from(["step", "sequence", "fan", "events", "route"] if depth else ["step"]))
        if kind == "step":
            node = self.node(1)
            return node, [(node, 0)]
        if kind == "sequence":
            first, ends = self.block(depth - 1)
            second, more = self.block(depth - 1)
            self.connect(ends, second)
            return first, more
        node = self.node(2 if kind == "events" else 1)
        branches = [self.block(depth - 1) for _ in range(2 if kind == "events" else self.draw(st.integers(2, 3)))]
        ends = [end for _, several in branches for end in several]
        if kind == "events":
            skip = self.draw(st.booleans())  # one of the events leads past its branch
            self.plan[node] = [([first], False) for first, _ in branches]
            if skip:
                self.plan[node].append(([], False))
                ends.append((node, 2))
            return node, ends
        self.plan[node] = [([first for first, _ in branches], kind == "route")]
        if kind == "fan":
            join = self.node(1)
            self.connect(ends, join)
            ends = [(join, 0)]
        return node, ends


@st.composite
def structured(draw: st.DrawFn) -> Plan:
    builder = _Builder(draw)
    builder.block(draw(st.integers(1, 3)))
    return builder.plan


def clauses(plan: Plan) -> dict[tuple[int, int], tuple[list[int], bool]]:
    """By node and event; -1 is Done."""
    return {
        (node, event): (targets or [-1], dynamic and len(targets) > 1)
        for node, events in enumerate(plan)
        for event, (targets, dynamic) in enumerate(events)
    }


def workflow(plan: Plan) -> tuple[type[GraphWorkflow], list[type[Step]]]:
    """Raises ``WorkflowDefinitionError``. A dynamic clause takes the branch that ``initial`` says."""
    steps = [step(number, len(events)) for number, events in enumerate(plan)]
    ref = {-1: Done, **dict(enumerate(steps))}
    body: dict[str, Any] = {"unique": Unique(key="r"), "initial": steps[0], "transitions": {}, "__module__": __name__}
    for (node, event), (targets, dynamic) in clauses(plan).items():
        if dynamic:

            def route(context: Any, *, node: int = node, event: int = event, targets: list[int] = targets) -> Any:
                return ref[targets[context.initial[f"{node}.{event}"] % len(targets)]]

            body[f"route{node}_{event}"] = transit(
                steps[node], f"e{event}", targets=[ref[target] for target in targets]
            )(route)
        else:
            found = [ref[target] for target in targets]
            body["transitions"][steps[node], f"e{event}"] = found if len(found) > 1 else found[0]
    return type(f"Random{next(_names)}", (GraphWorkflow,), body), steps


# -- a second opinion on definitions -----------------------------------------------------------------------------------


def paths(plan: Plan, start: int) -> list[list[int]]:
    """Every path from a node to Done, which they all come to (targets have higher numbers)."""
    if start == -1:
        return [[-1]]
    following = {target for (node, _), (targets, _) in clauses(plan).items() if node == start for target in targets}
    return [[start, *rest] for target in sorted(following) for rest in paths(plan, target)]


def violations(plan: Plan) -> list[str]:
    found = []
    reached = {node for path in paths(plan, 0) for node in path}
    if reached - {-1} != set(range(len(plan))):
        found.append("reachable")
    for targets, dynamic in clauses(plan).values():
        if len(targets) > 1 and not dynamic:
            passed = [set(path) - {-1} for target in targets for path in paths(plan, target)]
            if not set.intersection(*passed):
                found.append("convergence")
    return found


@examples(0.5)
@given(plans(most=6) | structured())
def test_a_graph_is_accepted_exactly_when_nothing_is_wrong_with_it(plan):
    """HE-056 HE-059 HE-060 HE-073: and a rejected one names a violation that there is."""
    wrong = violations(plan)
    try:
        workflow(plan)
    except errors.WorkflowDefinitionError as exc:
        said = {problem.split(":")[0] for problem in exc.message.split(": ", 1)[1].split("; ")}
        assert said == set(wrong)
    else:
        assert wrong == []


# -- a second opinion on joins -----------------------------------------------------------------------------------------


def reference(plan: Plan, choices: dict[str, int], order: st.DataObject) -> list[int]:
    """The rule of joins by the letter: which nodes run. ``order`` draws what ends next."""
    table = clauses(plan)
    behind: dict[int, set[int]] = {}
    for (node, _), (targets, _) in table.items():
        for target in targets:
            behind.setdefault(target, set()).add(node)

    def reach(node: int) -> set[int]:
        found: set[int] = set()
        todo = [node]
        while todo:
            source = todo.pop()
            for (n, _), (targets, _) in table.items():
                if n == source:
                    todo += [t for t in targets if t not in found]
                    found.update(targets)
        return found

    active, requested, completed, ran = [0], [], set(), []
    while active:
        node = active.pop(order.draw(st.integers(0, len(active) - 1)))
        ran.append(node)
        completed.add(node)
        if node != -1:
            event = choices[f"{node}"] % len(plan[node])
            targets, dynamic = table[node, event]
            chosen = [targets[choices[f"{node}.{event}"] % len(targets)]] if dynamic else targets
            requested += [t for t in chosen if t not in requested and t not in active and t not in completed]
        moved = True
        while moved:
            moved = False
            for target in list(requested):
                can_run = set(active)
                for live in [*active, *(r for r in requested if r != target)]:
                    can_run |= reach(live) | {live}
                if all(p in completed or p not in can_run for p in behind.get(target, ())):
                    requested.remove(target)
                    active.append(target)
                    moved = True
    assert requested == []
    return ran


def choices_of(plan: Plan, data: st.DataObject) -> dict[str, int]:
    keys = [f"{node}" for node in range(len(plan))] + [f"{node}.{event}" for node, event in clauses(plan)]
    return {key: data.draw(st.integers(0, 2), label=key) for key in keys}


def accepted(data: st.DataObject) -> tuple[Plan, type[GraphWorkflow], list[type[Step]]]:
    plan = data.draw(structured() | plans(most=6).filter(lambda plan: not violations(plan)))
    return plan, *workflow(plan)


def run_pure(cls, steps, plan, choices, data) -> Instance:
    """With the functions of the engine, in any order."""
    instance = engine.advance(Instance.new(id="r::1", workflow=cls, initial=choices))
    while instance.active_steps:
        ref = data.draw(st.sampled_from(sorted(instance.active_steps, key=lambda s: s.__name__)))
        event = "done" if ref is Done else f"e{choices[str(steps.index(ref))] % len(plan[steps.index(ref)])}"
        instance = engine.activate_transitions(engine.complete_step(instance, ref, event), ref, event)
    return engine.advance(instance)


@examples(0.5)
@given(st.data())
def test_an_accepted_graph_ends_with_every_step_that_could_run_having_run_once(data):
    """HE-024 HE-035 HE-040 HE-046: the same steps as by the letter of the rule, whatever ends first."""
    plan, cls, steps = accepted(data)
    choices = choices_of(plan, data)
    instance = run_pure(cls, steps, plan, choices, data)
    assert instance.status == "completed"
    ran = [-1 if entry.step is Done else steps.index(entry.step) for entry in instance.execution_history]
    assert len(ran) == len(set(ran))
    assert set(ran) == set(reference(plan, choices, data))


@examples(0.5)
@given(st.data())
def test_a_join_never_begins_before_what_leads_to_it_has_ended(data):
    """At every moment."""
    plan, cls, steps = accepted(data)
    choices = choices_of(plan, data)
    instance = engine.advance(Instance.new(id="r::1", workflow=cls, initial=choices))
    while instance.active_steps:
        live = instance.active_steps | instance.requested_steps
        for ref in instance.active_steps:
            leading = {other for other in live if other is not ref and ref in _after(cls, other)}
            assert not leading
        ref = data.draw(st.sampled_from(sorted(instance.active_steps, key=lambda s: s.__name__)))
        event = "done" if ref is Done else f"e{choices[str(steps.index(ref))] % len(plan[steps.index(ref)])}"
        instance = engine.activate_transitions(engine.complete_step(instance, ref, event), ref, event)


def _after(cls: type[GraphWorkflow], ref: Any) -> set[Any]:
    graph, found, todo = cls.graph(), set(), [ref]
    while todo:
        for target in graph[todo.pop()]:
            if target not in found:
                found.add(target)
                todo.append(target)
    return found


@examples(0.5)
@given(st.data())
def test_the_course_comes_to_what_the_engine_comes_to(data):
    """Results folded together or one after the other: the same steps, the same end."""
    plan, cls, steps = accepted(data)
    choices = choices_of(plan, data)
    pure = run_pure(cls, steps, plan, choices, data)
    progress = Progress(Instance.new(id="r::1", workflow=cls, initial=choices))
    begun = progress.begin(None)
    while begun:
        several = data.draw(st.permutations(begun))[: data.draw(st.integers(1, len(begun)))]
        ended = [(number, Event(_event(cls, number, steps, plan, choices))) for number in several]
        begun = [number for number in begun if number not in several] + progress.fold(ended, None)
    assert progress.instance.status == "completed"
    assert progress.instance.completed_steps == pure.completed_steps


def _event(cls, number, steps, plan, choices) -> str:
    index = steps.index(cls._graph.steps[number])
    return f"e{choices[str(index)] % len(plan[index])}"


@pytest.mark.parametrize("evict", [False, True], ids=["cached", "rebuilt"])
@examples(0.5)
@given(data=st.data())
def test_a_durable_run_comes_to_what_the_engine_comes_to(evict, data):
    """Whatever order the steps end in; its projection and its replay agree with it."""
    plan, cls, steps = accepted(data)
    choices = choices_of(plan, data)
    pure = run_pure(cls, steps, plan, choices, data)
    env = WorkflowEnvironment(evict=evict)
    for ref in steps:
        env.hold(ref)
    h = env.start(cls, choices, value="1")
    while held := sorted(h.instance().active_steps, key=lambda s: s.__name__):
        ref = data.draw(st.sampled_from(held))
        index = steps.index(ref)
        env.complete(ref, Event(f"e{choices[str(index)] % len(plan[index])}", {"n": index}))
    assert h.status == "completed"
    instance = h.instance()
    assert (instance.status, instance.completed_steps) == ("completed", pure.completed_steps)
    assert set(h.result()) == {entry_key(ref) for ref in pure.completed_steps}
    env.replay(h)


def entry_key(ref: Any) -> str:
    from temporalex_django.graph.steps import key_of

    return key_of(ref)


@examples(0.5)
@given(st.lists(st.tuples(st.sampled_from(["first", "second", "third"]), st.integers(0, 2)), max_size=6), st.booleans())
def test_resumes_of_several_waiting_steps_in_any_order(events, together):
    """HE-051 HE-108: each wakes its own step, a second one of the same is refused, and what its validator refuses."""

    def even(data: int, context: Any) -> Err[str] | None:
        return Err("odd") if data % 2 else None

    waits = [WaitForEvent(declared(name, data=int, validator=even), key=name) for name in ("first", "second", "third")]
    start, join = step(0, 1), step(1, 1)
    body = {
        "unique": Unique(key="w"),
        "initial": start,
        "transitions": {
            (start, "e0"): waits,
            **{(wait, wait.name): join for wait in waits},
            (join, "e0"): Done,
        },
        "__module__": __name__,
    }
    cls = type(f"Waits{next(_names)}", (GraphWorkflow,), body)
    env = WorkflowEnvironment()
    h = env.start(cls, {}, value="1")
    if together:
        with env.batch():
            for name, data in events:
                h.resume(name, data=data)
    else:
        for name, data in events:
            with contextlib.suppress(errors.UpdateRejected, errors.ResumeRefused):
                h.resume(name, data=data)
    wanted = list(dict.fromkeys(name for name, data in events if data % 2 == 0))
    if set(wanted) == {"first", "second", "third"}:
        assert h.status == "completed"
    else:
        assert {wait.name for wait in h.instance().waiting_steps} == {"first", "second", "third"} - set(wanted)
    taken = [e.attributes["payload"]["step"] for e in h.history() if e.kind == "SignalReceived"]
    assert taken == wanted
    env.replay(h)
