"""Definitions of graphs: what is refused, in which words, and that nothing of it is registered."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import dataclass
from datetime import timedelta

import pytest

from temporalex_django import (
    Approval,
    Debug,
    Done,
    Event,
    GraphWorkflow,
    Step,
    Unique,
    Wait,
    WaitForEvent,
    errors,
    transit,
)
from temporalex_django.authoring import workflow as workflows


def step(name: str, *events: str, **more) -> type[Step]:
    def execute(self, instance, config, context):
        return Event(self.events[0])

    return type(name, (Step,), {"events": events or ("ok",), "execute": execute, "__module__": __name__, **more})


A, B, C, D = (step(name) for name in "ABCD")
Two = step("Two", "yes", "no")
UNIQUE = {"unique": Unique(key="bad")}


def bad(initial=A, transitions=None, **more):
    """A class body."""
    return {"initial": initial, "transitions": {} if transitions is None else transitions, **UNIQUE, **more}


def routed(*targets, event="ok", source=A):
    return transit(source, event, targets=list(targets))(lambda context: targets[0])


class NoExecute(Step):
    events = ("ok",)


class Odd(Step):
    events = ("ok",)

    def execute(self, context):
        return Event("ok")


class AtomicAsync(Step):
    events = ("ok",)
    atomic = True

    async def execute(self, instance, config, context):
        return Event("ok")


@dataclass
class Loose(Step):
    events = ("ok",)
    n: list

    def execute(self, instance, config, context):
        return Event("ok")


#: Class bodies, and everything that is said about each.
BAD = {
    "a cycle": (
        bad(transitions={(A, "ok"): B, (B, "ok"): C, (C, "ok"): A}),
        ["acyclic: A → B → C → A is a cycle"],
    ),
    "a self-loop": (bad(transitions={(A, "ok"): A}), ["acyclic: A → A is a cycle"]),
    "a cycle through a dynamic clause": (
        bad(transitions={(B, "ok"): A}, route=routed(B, Done)),
        ["acyclic: A → B → A is a cycle"],
    ),
    "an unreachable step": (
        bad(transitions={(A, "ok"): Done, (B, "ok"): Done}),
        ["reachable: no path leads from A to B"],
    ),
    "a leaf that is not Done": (bad(transitions={(A, "ok"): B}), [
        "events: step B declares 'ok', but has no transition for it",
        "leaf: nothing follows B: every path must end with Done",
    ]),
    "branches that never meet": (
        bad(transitions={(A, "ok"): [B, C], (B, "ok"): Done, (C, "ok"): Done}),
        ["convergence: A fans out on 'ok' to B, C, but their paths do not all meet in one step before Done"],
    ),
    "of three branches only two meet": (
        bad(transitions={(A, "ok"): [B, C, Two], (B, "ok"): D, (C, "ok"): D, (D, "ok"): Done, (Two, "yes"): Done, (Two, "no"): Done}),
        ["convergence: A fans out on 'ok' to B, C, Two, but their paths do not all meet in one step before Done"],
    ),
    "a way around the join": (
        bad(transitions={(A, "ok"): [B, Two], (B, "ok"): D, (Two, "yes"): D, (Two, "no"): Done, (D, "ok"): Done}),
        ["convergence: A fans out on 'ok' to B, Two, but their paths do not all meet in one step before Done"],
    ),
    "two steps with one key": (
        bad(transitions={(A, "ok"): (other := step("Other", key="a")), (other, "ok"): Done}),
        ["unique context keys: A, Other all write to 'a': give each its own key"],
    ),
    "two waits without keys": (
        bad(Wait(1), {(Wait(1), "timeout"): Wait(2), (Wait(2), "timeout"): Done}),
        ["unique context keys: Wait, Wait all write to 'wait': give each its own key"],
    ),
    "an event without a transition": (
        bad(Two, {(Two, "yes"): Done}),
        ["events: step Two declares 'no', but has no transition for it"],
    ),
    "a transition on an event that is not declared": (
        bad(transitions={(A, "ok"): Done, (A, "oops"): Done}),
        ["events: step A has a transition for 'oops', but does not declare it"],
    ),
    "a transition of Done": (
        bad(transitions={(A, "ok"): Done, (Done, "done"): B, (B, "ok"): C, (C, "ok"): Done}),
        ["events: Done is the end, so nothing can follow (Done, 'done')", "acyclic: Done → B → C → Done is a cycle"],
    ),
    "no start": ({**UNIQUE, "transitions": {(A, "ok"): Done}}, [
        "initial: the start is missing: write initial = FirstStep, or (FirstStep, config)",
    ]),
    "a start that is no step": (bad("A", {(A, "ok"): Done}), [
        "initial: 'A' is not a step (a step, (step, config), or a list of these)",
    ]),
    "two starts": (bad([A, B], {(A, "ok"): Done, (B, "ok"): Done}), ["initial: it must be one step, or (step, config)"]),
    "a target that is no step": (bad(transitions={(A, "ok"): "B"}), [
        "transitions: (A, 'ok'): 'B' is not a step (a step, (step, config), or a list of these)",
        "events: step A declares 'ok', but has no transition for it",
        "leaf: nothing follows A: every path must end with Done",
    ]),
    "None as a target": (bad(transitions={(A, "ok"): None}), [
        "transitions: (A, 'ok'): None is not a step (a step, (step, config), or a list of these)",
        "events: step A declares 'ok', but has no transition for it",
        "leaf: nothing follows A: every path must end with Done",
    ]),
    "Step itself as a target": (bad(transitions={(A, "ok"): Step}), [
        f"transitions: (A, 'ok'): {Step!r} is not a step (a step, (step, config), or a list of these)",
        "events: step A declares 'ok', but has no transition for it",
        "leaf: nothing follows A: every path must end with Done",
    ]),
    "no target at all": (bad(transitions={(A, "ok"): []}), [
        "transitions: (A, 'ok'): it has no target; a path must end with Done",
        "events: step A declares 'ok', but has no transition for it",
        "leaf: nothing follows A: every path must end with Done",
    ]),
    "one target twice": (bad(transitions={(A, "ok"): [B, B], (B, "ok"): Done}), [
        "transitions: (A, 'ok'): B is in the list twice",
        "events: step A declares 'ok', but has no transition for it",
        "reachable: no path leads from A to B",
        "reachable: no path leads from A to Done",
        "leaf: nothing follows A: every path must end with Done",
    ]),
    "a config that cannot be encoded": (bad(transitions={(A, "ok"): (B, {1: object}), (B, "ok"): Done}), None),
    "transitions that are no mapping": (bad(transitions=[((A, "ok"), Done)]), None),
    "a key that is no pair": (bad(transitions={A: Done}), None),
    "an event that is no string": (bad(transitions={(A, 7): Done, (A, "ok"): Done}), [
        "transitions: A: 7 is not a valid event name (a string)",
    ]),
    "an ambiguous clause": (bad(transitions={(A, "ok"): Done, (B, "ok"): Done}, route=routed(B, Done)), [
        "transitions: (A, 'ok') has several clauses, but only one is allowed",
    ]),
    "a step without execute": (bad(NoExecute, {(NoExecute, "ok"): Done}), [
        "step NoExecute: it has no execute(self, instance, config, context)",
    ]),
    "an execute of another form": (bad(Odd, {(Odd, "ok"): Done}), [
        "step Odd: execute must take (self, instance, config, context)",
    ]),
    "an atomic step that is async": (bad(AtomicAsync, {(AtomicAsync, "ok"): Done}), [
        "step AtomicAsync: an atomic step runs inside the turn's transaction and cannot be async",
    ]),
    "a step without events": (bad(step("Mute", events=()), {}), [
        "step Mute: it declares no events",
        "leaf: nothing follows Mute: every path must end with Done",
    ]),
    "events that are a string": (bad(said := step("Said", events="ok"), {(said, "ok"): Done}), [
        "step Said: events must be a list of names, not 'ok'",
    ]),
    "an event declared twice": (bad(twice := step("Twice", "ok", "ok"), {(twice, "ok"): Done}), [
        "step Twice: it declares an event twice: ok, ok",
    ]),
    "a key that is reserved": (bad(hidden := step("Hidden", key="__x"), {(hidden, "ok"): Done}), [
        "step Hidden: the key '__x' must be a name that does not begin with '_'",
    ]),
    "a class where parameters are needed": (bad(Wait, {(Wait, "timeout"): Done}), [
        "step Wait: it has parameters: use an instance of it",
    ]),
    "no unique": ({"initial": A, "transitions": {(A, "ok"): Done}}, [
        'unique: a graph needs a business key: unique = Unique(key="orderid")',
    ]),
    "a run of its own": (bad(transitions={(A, "ok"): Done}, graph=1), [
        "graph: graphs reserve this name: rename the attribute",
    ]),
    "tags that are no strings": (bad(transitions={(A, "ok"): Done}, tags=["a", 1]), [
        "tags ['a', 1] must be a list of strings",
    ]),
    "metadata that is not JSON": (bad(transitions={(A, "ok"): Done}, metadata={"a": {"b": [float("nan")]}, 1: 2}), [
        "metadata at a.b[0]: nan is not JSON",
        "metadata: the key 1 must be a string",
    ]),
    "a step with impossible options": (bad(slow := step("Slow", timeout=-1), {(slow, "ok"): Done}), [
        "step Slow: activity options: start_to_close must be more than 0, not -1",
    ]),
    "a key of Done's": (bad(end := step("End", key="done"), {(end, "ok"): Done}), [
        "unique context keys: Done, End all write to 'done': give each its own key",
    ]),
    "events that are no strings": (bad(nested := step("Nested", events=[["a"]]), {}), [
        "step Nested: events must be a list of names, not [['a']]",
        "leaf: nothing follows Nested: every path must end with Done",
    ]),
    "an event with a control character": (bad(step("Rings", "a\x00")), [
        "step Rings: events must be a list of names, not ('a\\x00',)",
        "leaf: nothing follows Rings: every path must end with Done",
    ]),
    "a tuple to fan out": (bad(transitions={(A, "ok"): (B, C), (B, "ok"): Done}), [
        "transitions: (A, 'ok'): (B, C) is a tuple: write a list to fan out",
        "events: step A declares 'ok', but has no transition for it",
        "reachable: no path leads from A to B",
        "reachable: no path leads from A to Done",
        "leaf: nothing follows A: every path must end with Done",
    ]),
    "a step that cannot be hashed": (bad(Loose([1])), None),
    "a cycle beside other things": (
        bad(transitions={(A, "ok"): [B, C], (B, "ok"): D, (D, "ok"): B, (C, "ok"): Done, (Two, "yes"): A}),
        [
            "events: step Two declares 'no', but has no transition for it",
            "acyclic: B → D → B is a cycle",
            "reachable: no path leads from A to Two",
        ],
    ),
    "two cycles": (bad(Two, {(Two, "yes"): A, (Two, "no"): C, (A, "ok"): B, (B, "ok"): A, (C, "ok"): C}), [
        "acyclic: A → B → A is a cycle",
        "acyclic: C → C is a cycle",
    ]),
    "no start, and more": ({**UNIQUE, "transitions": {(A, "zz"): A}}, [
        "initial: the start is missing: write initial = FirstStep, or (FirstStep, config)",
        "events: step A declares 'ok', but has no transition for it",
        "events: step A has a transition for 'zz', but does not declare it",
        "acyclic: A → A is a cycle",
    ]),
    "several things at once": (
        bad("A", {(A, "ok"): None, (B, 3): Done}, tags="x"),
        [
            "tags 'x' must be a list of strings",
            "initial: 'A' is not a step (a step, (step, config), or a list of these)",
            "transitions: (A, 'ok'): None is not a step (a step, (step, config), or a list of these)",
            "transitions: B: 3 is not a valid event name (a string)",
        ],
    ),
}  # fmt: skip

#: Those whose message holds a representation of a value.
PARTS = {
    "a config that cannot be encoded": "transitions: (A, 'ok'): the config of B cannot be encoded",
    "transitions that are no mapping": "transitions: it must be a mapping of (step, event) to targets, not [",
    "a step that cannot be hashed": "initial: Loose cannot be hashed: make its class a frozen dataclass of hashable values",
    "a key that is no pair": "transitions: the key <class",
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_graph_is_refused_with_all_that_is_wrong(case):
    """HE-003 HE-054 HE-055 HE-056 HE-057 HE-059 HE-060 HE-064 HE-066 HE-067 HE-068 HE-069 HE-070.

    HE-071 HE-073 HE-074 HE-075 HE-076 HE-168.
    """
    body, said = BAD[case]
    with pytest.raises(errors.WorkflowDefinitionError) as caught:
        type("BadGraph", (GraphWorkflow,), {"__module__": __name__, **body})
    message = caught.value.message
    if said is None:
        assert message.startswith("workflow BadGraph: ")
        assert PARTS[case] in message
    else:
        assert message == "workflow BadGraph: " + "; ".join(said)
    assert "BadGraph" not in workflows.registry


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Unique(key="Order"), "Unique: the key 'Order' must be lower-case letters and digits"),
        (lambda: Unique(key="a\n"), r"Unique: the key 'a\n' must be lower-case letters and digits"),
        (lambda: Unique(key=""), "Unique: the key '' must be lower-case letters and digits"),
        (
            lambda: Unique(key="a", scope="tenant"),
            "Unique: the scope 'tenant' must be one of workflow, version, global, none",
        ),
        (lambda: transit("A", "ok", targets=[B]), "transit('A', 'ok'): 'A' is not a step"),
        (lambda: transit(A, 1, targets=[B]), "transit(A, 1): 1 is not a valid event name"),
        (
            lambda: transit(A, "ok", targets=[]),
            "transit(A, 'ok'): targets must be a list of the steps that it can choose",
        ),
        (lambda: transit(A, "ok", targets=[B, "C"]), "transit(A, 'ok'): the target 'C' is not a step"),
        (lambda: WaitForEvent(""), "WaitForEvent: '' is not a valid event name"),
        (
            lambda: WaitForEvent("timeout", timeout=1),
            "WaitForEvent: an event named 'timeout' cannot be distinguished from its own timeout",
        ),
        (
            lambda: WaitForEvent("x", key="_x"),
            "WaitForEvent: '_x' cannot be a key (a name that does not begin with '_')",
        ),
        (
            lambda: Approval(role=""),
            "Approval: role must be a permission (app.codename) or the name of a group, not ''",
        ),
    ],
)
def test_parts_refuse_bad_arguments_at_once(make, message):
    """HE-131 HE-139."""
    with pytest.raises(errors.WorkflowDefinitionError) as caught:
        make()
    assert caught.value.message == message


@pytest.mark.parametrize(
    "make", [lambda: Wait(-1), lambda: Wait("soon"), lambda: Approval(due=True), lambda: Wait(True)]
)
def test_durations_are_durations(make):
    with pytest.raises(errors.WorkflowDefinitionError, match=r"Wait|Approval"):
        make()


def test_a_dynamic_transition_is_a_plain_function_of_the_context():
    """HE-061."""
    for fn in (lambda: B, lambda self, context: B, 7):
        with pytest.raises(errors.WorkflowDefinitionError, match=r"decorate a plain function that takes \(context\)"):
            transit(A, "ok", targets=[B])(fn)

    async def later(context):
        return B

    with pytest.raises(errors.WorkflowDefinitionError):
        transit(A, "ok", targets=[B])(later)


def test_a_clause_that_stands_twice_in_the_source_is_found():
    """HE-069: in a mapping the second would win without a word."""
    with pytest.raises(errors.WorkflowDefinitionError) as caught:

        class BadGraph(GraphWorkflow):
            unique = Unique(key="bad")
            initial = A
            transitions = {
                (A, "ok"): B,
                (B, "ok"): Done,
                (A, "ok"): Done,  # noqa: F601 - the point
            }

    assert (
        "transitions: (A, 'ok') appears twice, and the second entry would silently replace the first"
        in caught.value.message
    )


def test_a_class_is_found_in_its_source_among_others_of_its_name(tmp_path, monkeypatch):
    """HE-069: by the place of the statement; a module that was changed is read again."""
    monkeypatch.syspath_prepend(tmp_path)
    text = """
        from temporalex_django import Done, Event, GraphWorkflow, Step, Unique

        class A(Step):
            events = ("ok",)
            def execute(self, instance, config, context):
                return Event("ok")

        def make():
            class Flow(GraphWorkflow):
                unique = Unique(key="one")
                initial = A
                transitions = {(A, "ok"): Done}
            return Flow

        class Outer:
            class Flow(GraphWorkflow):
                unique = Unique(key="two")
                initial = A
                transitions = {(A, "ok"): Done, %s}
        """
    module = tmp_path / "some_graphs.py"
    module.write_text(textwrap.dedent(text % ""))
    import some_graphs

    assert some_graphs.make().unique.key == "one"
    module.write_text(textwrap.dedent(text % '(A, "ok"): Done'))
    del sys.modules["some_graphs"]
    sys.path_importer_cache.clear()
    with pytest.raises(errors.WorkflowDefinitionError, match="appears twice"):
        import some_graphs


_TWICE, _ONCE = '{(A, "ok"): Done, (A, "ok"): Done}', '{(A, "ok"): Done}'
_FLOW = """
class Flow(GraphWorkflow):
    unique = Unique(key="{key}")
    initial = A
    transitions = {clauses}
"""


def flow(clauses: str, key: str = "one", *, indent: str = "") -> str:
    return textwrap.indent(_FLOW.format(clauses=clauses, key=key), indent)


_MADE = flow(_TWICE, indent="    ")
_WIDE = '        words = """\nwide\n"""\n'


@pytest.mark.parametrize(
    ("text", "twice"),
    [
        (f"if False:\n{flow(_ONCE, indent='    ')}\nelse:\n{flow(_TWICE, indent='    ')}", True),
        (f"if False:\n{flow(_TWICE, indent='    ')}\nelse:\n{flow(_ONCE, indent='    ')}", False),
        (f"try:\n{flow(_TWICE, indent='    ')}\nexcept Exception:\n    pass\n{flow(_ONCE)}", False),
        (f"def make():{_MADE.replace('        initial', '# at the margin' + chr(10) + '        initial')}make()", True),
        (f"def make():{_MADE.replace('        init', _WIDE + '        init')}make()", True),
        (f"same = lambda cls: cls\n@same\n@same{flow(_TWICE)}", True),
        (f"def never():{flow(_TWICE, indent='    ')}\nexec({flow(_ONCE)!r})", False),
    ],
    ids=["else", "not the other branch", "mended", "comment", "long string", "decorated", "exec"],
)
def test_the_class_statement_that_is_executed_is_looked_at(text, twice, tmp_path, monkeypatch):
    """Whatever else of its name stands in the file, and however its lines are indented."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "other_graphs", raising=False)
    head = """
        from temporalex_django import Done, Event, GraphWorkflow, Step, Unique

        class A(Step):
            events = ("ok",)
            def execute(self, instance, config, context):
                return Event("ok")
        """
    (tmp_path / "other_graphs.py").write_text(f"{textwrap.dedent(head)}\n{text}\n")
    found = ""
    try:
        __import__("other_graphs")
    except errors.WorkflowDefinitionError as exc:
        found = exc.message
    assert ("appears twice" in found) is twice
    assert twice or not found


def graph(initial, transitions, **more):
    return type("Good", (GraphWorkflow,), {"__module__": __name__, **bad(initial, transitions, **more)})


@pytest.mark.parametrize(
    ("initial", "transitions", "more"),
    [
        (Done, {}, {}),
        (A, {(A, "ok"): Done}, {}),
        ((A, {"any": [1]}), {(A, "ok"): Done}, {}),
        (A, {(A, "ok"): [B, C], (B, "ok"): C, (C, "ok"): Done}, {}),
        (A, {(A, "ok"): [B, C], (B, "ok"): D, (C, "ok"): D, (D, "ok"): Done}, {}),
        (Two, {(Two, "yes"): A, (Two, "no"): B, (A, "ok"): C, (B, "ok"): C, (C, "ok"): Done}, {}),
        (A, {(A, "ok"): [Two, B], (Two, "yes"): C, (Two, "no"): B, (C, "ok"): B, (B, "ok"): Done}, {}),
        (A, {(B, "ok"): Done, (C, "ok"): Done}, {"route": routed(B, C)}),
        (A, {(A, "ok"): Debug, (Debug, "completed"): Done}, {}),
        (A, {(A, "ok"): [Done]}, {}),
        (
            Wait(1, key="first"),
            {(Wait(1, key="first"), "timeout"): Wait(timedelta(1)), (Wait(timedelta(1)), "timeout"): Done},
            {},
        ),
    ],
)
def test_good_graphs_are_accepted(initial, transitions, more):
    """HE-027 HE-033 HE-058 HE-061 HE-063 HE-065."""
    cls = graph(initial, transitions, **more)
    assert workflows.registry["Good"] is cls
    assert set(cls.graph()) >= {key[0] for key in transitions}


class Base(GraphWorkflow):
    unique = Unique(key="base")
    initial = A

    transitions = {(B, "ok"): Done, (C, "ok"): Done}

    @transit(A, "ok", targets=[B, C])
    @staticmethod
    def route(context):
        return B


def test_a_subclass_inherits_the_graph_and_may_replace_a_route():
    """Clauses are looked up as attributes are."""

    class Same(Base):
        pass

    class Other(Base):
        transitions = {(B, "ok"): Done}

        @transit(A, "ok", targets=[B])
        @staticmethod
        def route(context):
            return B

    assert Same.edges() == Base.edges()
    assert [edge.targets for edge in Other.edges() if edge.dynamic] == [(B,)]
    assert C not in Other.graph()


def test_introspection_gives_copies():
    """HE-006 HE-062 HE-170 HE-171 HE-172 HE-173 HE-155 HE-156 HE-166 HE-167."""
    graph = Base.graph()
    assert graph[A] == (B, C)
    graph.clear()
    assert list(Base.graph())[0] is A
    (dynamic,) = [edge for edge in Base.edges() if edge.dynamic]
    assert (dynamic.source, dynamic.event, dynamic.targets) == (A, "ok", (B, C))
    assert (Base.predecessors(Done), Base.predecessors(A), Base.predecessors(D)) == ({B, C}, frozenset(), frozenset())
    assert (Base.version, Base.is_versioned(), Base.resolve_version(1)) == (1, False, (1, Base))
    assert (Base.tags, Base.metadata, Base.unique.key) == ([], {}, "base")
    for found in (Base.edges(), Base.predecessors(Done)):
        assert isinstance(found, (tuple, frozenset))


def test_nested_metadata_is_allowed():
    """HE-169."""
    assert graph(A, {(A, "ok"): Done}, metadata={"a": {"b": [1, None, True, "x", 1.5]}}).metadata["a"]["b"][4] == 1.5
