"""An instance that is read late: whatever a step does with it, it is as the instance is."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import threading

import pytest

from temporalex_django import Done, Event, GraphWorkflow, Step, Unique
from temporalex_django.graph.durable_run import LazyInstance, activity_of
from temporalex_django.graph.instance import Instance


class Only(Step):
    events = ("ok",)

    def execute(self, instance, config, context):
        return Event("ok")


class Short(GraphWorkflow):
    unique = Unique(key="short")
    initial = Only
    transitions = {(Only, "ok"): Done}


@pytest.fixture
def real() -> Instance:
    return Instance.new(id="late-1", workflow=Short, initial={"a": 1})


@pytest.mark.parametrize(
    "made_of",
    [copy.copy, copy.deepcopy, lambda late: pickle.loads(pickle.dumps(late)), dataclasses.replace],
    ids=["copy", "deepcopy", "pickle", "replace"],
)
def test_what_is_made_of_it_is_a_plain_instance(made_of, real):
    made = made_of(LazyInstance(lambda: real))
    assert type(made) is Instance
    assert made == real


def test_it_can_be_replaced_with_other_values(real):
    late = LazyInstance(lambda: real)
    assert (
        dataclasses.replace(late, status="running") == real.changed(status="running") == late.changed(status="running")
    )


def test_it_compares_and_shows_as_the_instance_does(real):
    late = LazyInstance(lambda: real)
    assert isinstance(late, Instance)
    assert (late, real) == (real, late)
    assert late == LazyInstance(lambda: real)
    assert repr(late) == repr(real)
    assert dataclasses.asdict(late).keys() == dataclasses.asdict(real).keys()
    with pytest.raises(TypeError, match="unhashable"):
        hash(late)


def test_it_is_read_once_and_only_when_it_is_looked_at(real):
    reads = []
    late = LazyInstance(lambda: (reads.append(1), real)[1])
    assert not reads
    assert (late.id, late.status, late.version) == ("late-1", "pending", 1)
    assert len(reads) == 1


def test_two_threads_read_theirs_at_the_same_time(real):
    """A slow read of one step does not hold up the others."""
    both = threading.Barrier(2, timeout=5)
    found = []

    def load() -> Instance:
        both.wait()
        return real

    threads = [threading.Thread(target=lambda: found.append(LazyInstance(load).id)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["late-1", "late-1"]


class Run:
    """The run of a step as a host of any kind gives access to it, an ``authoring.activity.RunSource``."""

    def __init__(self, instance):
        self._instance = instance
        self.asked = []

    def workflow(self, version):
        self.asked.append(("workflow", version))
        return self._instance.workflow

    def instance(self, version):
        self.asked.append(("instance", version))
        return self._instance


def test_an_attempt_asks_its_run_for_the_instance_when_the_step_reads_it(real):
    """Whoever runs the step, the instance is not there before, and comes once."""
    run, activity, args = Run(real), activity_of(Only), ["only", {"n": 1}, 3]
    execute, (instance, config, context), _ = activity.decode_call(args, {}, run)
    result = activity.encode_result(execute(instance, config, context), args, run)
    assert result == {"event": "ok", "data": None} and run.asked == [("workflow", 3)] * 2
    assert (context.initial.a, instance.id, context.steps) == (1, "late-1", {})
    assert run.asked[2:] == [("instance", 3)]
