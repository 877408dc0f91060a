"""Dispatchers over versions, in environments: function workflows and graphs alike."""

from __future__ import annotations

import pytest

from temporalex_django import Done, Event, GraphWorkflow, Ok, Step, Unique, VersionedWorkflow, Workflow, api, errors


class Say(Step):
    events = ("said",)

    def execute(self, instance, config, context):
        return Event("said", {"version": instance.version})


class Letters(VersionedWorkflow):
    class First(Workflow):
        async def run(self, args):
            return Ok([1, args, api.info().version, api.info().workflow])

    class Second(Workflow):
        version = 2

        async def run(self, args):
            if api.patched("greeting"):
                return Ok([2, args, await api.wait_for_signal("more")])
            return Ok([2, args])

    versions = {1: First, 2: Second}
    current = 1


class Graphs(VersionedWorkflow):
    class First(GraphWorkflow):
        unique = Unique(key="versioned")
        initial = Say
        transitions = {(Say, "said"): Done}

    class Second(GraphWorkflow):
        version = 2
        unique = Unique(key="versioned")
        initial = Done

    versions = {1: First, 2: Second}
    current = 2


def test_function_workflows_have_versions_by_class_and_patches_within_one(env):
    """HE-154 HE-161 HE-165."""
    assert env.start(Letters, "a").result() == [1, "a", 1, "Letters"]
    h = env.start(Letters, "b", version=2)
    assert h.describe()["version"] == 2
    h.signal("more", "c")
    assert h.result() == [2, "b", "c"]
    assert [e.attributes["id"] for e in h.history() if e.kind == "PatchMarked"] == ["greeting"]


def test_graphs_have_versions(env):
    """HE-157 HE-161."""
    assert env.start(Graphs, {}, value="1").result() == {"done": {}}
    assert env.start(Graphs, {}, value="2", version=1).result() == {"say": {"version": 1}, "done": {}}
    with pytest.raises(errors.UnknownVersion, match="Graphs has no version 3"):
        env.start(Graphs, {}, value="3", version=3)
    with pytest.raises(errors.UnknownVersion):
        env.start(Letters.First, None, version=2)


def test_a_child_of_a_dispatcher_is_of_its_present_version_or_of_the_one_named(env):
    """HE-159."""

    class Parent(Workflow):
        async def run(self, args):
            return Ok(
                [
                    await api.child(Letters, "x"),
                    await api.child(Graphs, {}, value="1", version=1),
                ]
            )

    assert env.start(Parent).result() == [[1, "x", 1, "Letters"], {"say": {"version": 1}, "done": {}}]


def test_a_child_of_no_workflow_class_is_refused(env):
    """HE-163."""

    class Parent(Workflow):
        async def run(self, args):
            with pytest.raises(errors.WorkflowDefinitionError, match="is not a workflow class"):
                api.child(VersionedWorkflow, {})
            with pytest.raises(errors.UnknownVersion):
                api.child(Letters, {}, version=9)
            return Ok(None)

    assert env.start(Parent).result() is None
