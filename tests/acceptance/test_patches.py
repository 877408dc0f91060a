"""The life of a patch: before, with, deprecated, gone."""

from __future__ import annotations

import pytest

from temporalex_django import Ok, api, errors
from tests.support.hosts import in_memory
from tests.support.runs import events, flow, kinds, other, produced, work


async def before(self, args):
    await work(1)
    await api.sleep(10)
    await work(2)
    return Ok("old")


async def patched(self, args):
    new = api.patched("p")
    await (other(1) if new else work(1))
    await api.sleep(10)
    await work(2)
    return Ok("new" if new else "old")


async def deprecated(self, args):
    api.deprecate_patch("p")
    await other(1)
    await api.sleep(10)
    await work(2)
    return Ok("new")


async def gone(self, args):
    await other(1)
    await api.sleep(10)
    await work(2)
    return Ok("new")


def test_new_run_gets_true_and_one_marker(env):
    """TX-032 TX-034 TX-201 TX-144."""
    h = env.start(flow(patched))
    env.advance(10)
    assert h.result() == "new"
    assert [(c.kind, c.seq, c.attributes) for c in env.commands[0]][0] == (
        "SetPatchMarker",
        None,
        {"id": "p", "deprecated": False},
    )
    assert kinds(h)[0] == "PatchMarked"


def test_old_run_keeps_the_old_path(env):
    """TX-033 TX-034: rebuilt with the patched code, also while it is live."""
    h = env.start(flow(before))
    flow(patched)
    env.advance(10)
    assert h.result() == "old"
    assert "PatchMarked" not in kinds(h)


def test_old_history_replays_with_the_patch_and_not_without_the_old_path(env):
    """TX-033 TX-035 TX-186."""
    h = env.start(flow(before))
    env.advance(10)
    env.replay_history(flow(patched), h.history())
    with pytest.raises(errors.NondeterminismError):
        env.replay_history(flow(gone), h.history())
    flow(before)


def test_deprecated_call_replays_marked_and_unmarked_histories(env):
    """TX-035 TX-201."""
    marked = env.start(flow(patched))
    env.advance(10)
    env.replay_history(flow(deprecated), marked.history())

    unmarked = env.start(flow(gone))
    env.advance(10)
    env.replay_history(flow(deprecated), unmarked.history())

    for h, wrong in ((marked, gone), (unmarked, before)):  # neither history fits just any code
        with pytest.raises(errors.NondeterminismError):
            env.replay_history(flow(wrong), h.history())
    flow(deprecated)


def test_deprecate_marks_new_runs_with_the_flag_and_can_go_later(env):
    """TX-035 TX-039."""
    h = env.start(flow(deprecated))
    env.advance(10)
    assert events(h, "PatchMarked") == [{"id": "p", "deprecated": True}]
    env.replay_history(flow(gone), h.history())
    flow(deprecated)


def test_marker_that_is_not_deprecated_cannot_go(env):
    """TX-039."""
    h = env.start(flow(patched))
    env.advance(10)
    with pytest.raises(errors.NondeterminismError, match="PatchMarked, id p"):
        env.replay_history(flow(gone), h.history())
    flow(patched)


def test_one_marker_however_often_it_is_asked_and_ids_are_independent(env):
    """TX-036 TX-038 TX-164: also from different units."""

    async def run(self, args):
        answers = [api.patched("a"), api.patched("b"), api.patched("a")]
        await api.parallel([lambda: api.patched("a"), lambda: api.patched("c")])
        api.deprecate_patch("a")
        return Ok([*answers, api.patched("a")])

    h = env.start(flow(run))
    assert h.result() == [True, True, True, True]
    assert [a["id"] for a in events(h, "PatchMarked")] == ["a", "b", "c"]
    assert len(produced(env)) == 4


def test_old_run_that_reaches_the_call_live_gets_true(env):
    """TX-037: and later replays too."""

    async def old(self, args):
        await api.sleep(10)
        await work(1)
        return Ok("old")

    async def new(self, args):
        await api.sleep(10)
        if api.patched("late"):
            await other(1)
            return Ok("new")
        await work(1)
        return Ok("old")

    h = env.start(flow(old))
    flow(new)
    env.advance(10)
    assert h.result() == "new"
    assert len(events(h, "PatchMarked")) == 1


@pytest.mark.parametrize("call", ["patched", "deprecate_patch"])
def test_loop_that_began_before_the_patch_keeps_its_first_answer(env, call):
    """TX-035 TX-036: a marker set in a later round would be set in the first one by a rebuild."""

    async def old(self, args):
        for n in range(3):
            await work(n)
            await api.sleep(10)
        return Ok()

    async def new(self, args):
        for n in range(3):
            answer = getattr(api, call)("loop")
            assert not answer
            await work(n)
            await api.sleep(10)
        return Ok()

    h = env.start(flow(old))
    flow(new)
    for _ in range(3):
        env.advance(10)
    assert h.blocked is None
    assert h.result() is None
    assert "PatchMarked" not in kinds(h)


@in_memory
@pytest.mark.parametrize("bad", ["", None, 5])
def test_bad_patch_id_is_refused(env, bad):
    async def run(self, args):
        for call in (api.patched, api.deprecate_patch):
            with pytest.raises(errors.WorkflowDefinitionError):
                call(bad)
        return Ok()

    assert env.start(flow(run)).result() is None
