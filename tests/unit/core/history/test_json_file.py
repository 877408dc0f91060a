"""Histories as text: what comes back, and what is refused."""

from __future__ import annotations

import json

import pytest

from temporalex_django import Ok, Stop, api, errors
from temporalex_django.core.history import replay as json_file
from temporalex_django.core.history.replay import replay
from temporalex_django.testing import WorkflowEnvironment
from tests.support.runs import flow, work


async def two_steps(self, args):
    first = await work({"amount": "12.50", "text": "größer"})
    await api.sleep(5)
    return Ok([first, await work(2)])


@pytest.fixture
def stored(env):
    h = env.start(flow(two_steps))
    env.advance(5)
    return h.history()


def test_what_is_read_is_what_was_written_and_replays(stored):
    read = json_file.load(json_file.dump(stored))
    assert read.events == stored
    assert (read.workflow, read.id) == ("Flow", "Flow-1")
    replay(flow(two_steps).definition, read.events)
    assert json_file.dump(read.events) == json_file.dump(stored)


def edited(change):
    def apply(text):
        data = json.loads(text)
        change(data)
        return json.dumps(data)

    return apply


def at(index, **values):
    return edited(lambda data: data["events"][index].update(values))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text[: text.index('"seq": 7')], "not complete JSON: it was cut off after event 6"),
        (lambda text: text[:9], "cut off after event 0"),
        (lambda _: "[]", "is not a history"),
        (lambda _: "null", "is not a history"),
        (lambda _: '{"events": [{"eventId": "1"}]}', r"a history of Temporal with .* and project_plugin\(\)"),
        (edited(lambda data: data.pop("id")), "is not a history"),
        (edited(lambda data: data.update(temporalex_history=99)), "format 99, but this version reads formats up to 1"),
        (edited(lambda data: data["events"].pop()), "those from event 12 on are missing"),
        (edited(lambda data: data["events"].pop(3)), "event 5 is in the place of event 4"),
        (edited(lambda data: data["events"].clear()), "those from event 1 on are missing"),
        (at(2, attributes={"seq": 1, "activity": "x.y", "args": []}), "event 3 differs from the export"),
        (at(4, kind="SignalReceived"), "event 5 differs from the export"),
        (at(4, kind="Surprise"), "event 5 has the unknown kind 'Surprise'"),
        (at(4, kind=7), "event 5 has no valid 'kind'"),
        (at(4, at="yesterday"), "event 5 has no valid 'at'"),
        (at(4, at="2026-01-01T00:00:00"), "event 5 has an 'at' without a time zone"),
        (edited(lambda data: data["events"].__setitem__(1, None)), "event 2 is None, not an object"),
        (edited(lambda data: data.update(workflow="Other")), "event 1 has 'Flow': it belongs to a different run"),
    ],
)
def test_a_file_that_is_not_what_was_exported_is_refused_with_the_event(stored, change, says):
    with pytest.raises(errors.PayloadError, match=says):
        json_file.load(change(json_file.dump(stored)), source="h.json")


@pytest.mark.parametrize("engine", [1, 99])
def test_a_history_of_another_engine_is_refused(stored, engine):
    facts = {**stored[0].attributes, "engine": engine}
    other = [type(stored[0])(1, 1, "WorkflowStarted", stored[0].at, facts), *stored[1:]]
    with pytest.raises(errors.PayloadError, match=f"event 1 is from engine {engine}, but this is engine 2"):
        json_file.load(json_file.dump(other))
    with pytest.raises(errors.EngineChanged, match=f"was started by engine {engine}"):
        replay(flow(two_steps).definition, other)


def test_one_that_does_not_begin_at_the_start_is_refused(stored):
    cut = [type(e)(e.number - 1, e.activation, e.kind, e.at, e.attributes) for e in stored[1:]]
    with pytest.raises(errors.PayloadError, match="a history begins with WorkflowStarted"):
        json_file.load(json_file.dump(cut))


class TestPlace:
    """The file and line of the command at which code and history part."""

    @pytest.fixture
    def env(self):
        return WorkflowEnvironment()

    def place(self, recorded, changed, env):
        h = env.start(flow(recorded))
        with pytest.raises(errors.NondeterminismError) as caught:
            replay(flow(changed).definition, h.history())
        path, _, line = caught.value.place.rpartition(":")
        assert path == __file__
        return int(line) - changed.__code__.co_firstlineno

    async def simple(self, args):
        return Ok(await work(1))

    def test_another_command(self, env):
        async def changed(self, args):
            await api.sleep(1)
            return Ok(await work(1))

        assert self.place(type(self).simple, changed, env) == 1

    def test_a_command_of_a_helper(self, env):
        async def helper():
            return await api.sleep(3)

        async def changed(self, args):
            return Ok(await helper())

        assert self.place(type(self).simple, changed, env) == helper.__code__.co_firstlineno + 1 - (
            changed.__code__.co_firstlineno
        )

    def test_a_branch_that_is_not_a_function_of_the_user(self, env):
        async def changed(self, args):
            await work(1) if args else None
            return Ok(await api.parallel([api.sleep(4)]))

        assert self.place(type(self).simple, changed, env) == 2

    def test_a_missing_command_shows_where_the_run_stands(self, env):
        async def changed(self, args):
            await api.wait_for_signal("never")
            return Ok(await work(1))

        assert self.place(type(self).simple, changed, env) == 1

    def test_an_early_end_shows_run(self, env):
        async def changed(self, args):
            return Ok(None)

        assert self.place(type(self).simple, changed, env) == 0

    def test_a_handler(self, env):
        async def recorded(self, args):
            return Ok(await api.phase(0, signal={"go": lambda _, s: Stop(s)}, timeout=5))

        async def changed(self, args):
            await api.sleep(5)
            await work(2)
            return Ok(0)

        h = env.start(flow(recorded))
        env.advance(5)
        with pytest.raises(errors.NondeterminismError) as caught:
            replay(flow(changed).definition, h.history())
        assert caught.value.recorded.startswith("WorkflowCompleted")
        assert caught.value.place == f"{__file__}:{changed.__code__.co_firstlineno + 2}"
