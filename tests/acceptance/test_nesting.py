"""The nesting matrix: every cell of it."""

from __future__ import annotations

from itertools import product

import pytest

from temporalex_django import Async, Ok, Reply, Stop, api, errors
from tests.support.hosts import in_memory
from tests.support.runs import flow, once, work

PLACES = (
    *("run", "sync handler", "async handler", "branch", "branch in a sync handler", "branch in an async handler"),
    *("branch of race", "branch of race in a sync handler", "branch of race in an async handler"),
)


async def use_activity():
    return await work(1)


async def use_sleep():
    await api.sleep(1)


async def use_wait_for_signal():
    return await api.wait_for_signal("given")


async def use_now():
    return [str(api.now()), api.random(), str(api.uuid4())]


async def use_publish():
    api.publish_state(1)


async def use_patch():
    api.deprecate_patch("old")
    return api.patched("new")


async def use_phase():
    return await api.phase(0, signal={"inner": lambda _, s: Stop(s)})


async def use_parallel():
    return await api.parallel([use_activity, use_sleep])


async def use_race():
    return await api.race(use_sleep, use_activity)


async def use_shield():
    async with api.shield():
        await use_activity()


async def use_wait_cancelled():
    return await api.race(api.wait_cancelled(), use_activity)


async def use_saga():
    async with api.saga() as saga:
        saga.add(work, 1)
        await use_activity()


async def use_update_state():
    return await api.update_state(lambda s: (1, s))


async def use_wait_condition():
    return await api.wait_condition(lambda: True)


async def use_reads():
    return [api.info().id, api.cancel_requested(), api.logger.info("hello")]


USES = {
    "activity": use_activity,
    "sleep": use_sleep,
    "wait_for_signal": use_wait_for_signal,
    "now, random, uuid4": use_now,
    "publish_state": use_publish,
    "patched, deprecate_patch": use_patch,
    "phase": use_phase,
    "parallel": use_parallel,
    "race": use_race,
    "shield": use_shield,
    "wait_cancelled": use_wait_cancelled,
    "saga": use_saga,
    "update_state": use_update_state,
    "wait_condition": use_wait_condition,
    "info, cancel_requested, logger": use_reads,
}
FORBIDDEN = {(use, place) for use in ("phase", "update_state") for place in PLACES} - {
    ("phase", "run"),
    ("update_state", "async handler"),
}

ROWS = {
    "TX-139": ("run", "activity"),
    "TX-140": ("run", "sleep"),
    "TX-141": ("run", "wait_for_signal"),
    "TX-142": ("run", "now, random, uuid4"),
    "TX-143": ("run", "publish_state"),
    "TX-144": ("run", "patched, deprecate_patch"),
    "TX-145": ("run", "phase"),
    "TX-146": ("run", "parallel"),
    "TX-147": ("sync handler", "activity"),
    "TX-148": ("sync handler", "sleep"),
    "TX-149": ("sync handler", "parallel"),
    "TX-150": ("sync handler", "now, random, uuid4"),
    "TX-151": ("sync handler", "publish_state"),
    "TX-152": ("async handler", "activity"),
    "TX-153": ("async handler", "sleep"),
    "TX-154": ("async handler", "parallel"),
    "TX-155": ("async handler", "now, random, uuid4"),
    "TX-156": ("async handler", "update_state"),
    "TX-157": ("async handler", "publish_state"),
    "TX-158": ("branch", "activity"),
    "TX-159": ("branch", "sleep"),
    "TX-160": ("branch", "parallel"),
    "TX-161": ("branch", "now, random, uuid4"),
    "TX-162": ("branch", "publish_state"),
    "TX-163 sync": ("sync handler", "wait_for_signal"),
    "TX-163 async": ("async handler", "wait_for_signal"),
    "TX-163 branch": ("branch", "wait_for_signal"),
    "TX-164 sync": ("sync handler", "patched, deprecate_patch"),
    "TX-164 async": ("async handler", "patched, deprecate_patch"),
    "TX-164 branch": ("branch", "patched, deprecate_patch"),
    "TX-167": ("async handler", "phase"),
    "TX-169": ("branch", "phase"),
    "TX-170": ("run", "update_state"),
    "TX-171": ("sync handler", "update_state"),
    "TX-172": ("branch", "update_state"),
    "TX-173": ("sync handler", "phase"),
    "TX-116": ("branch in an async handler", "update_state"),
}


async def caught(use):
    try:
        await use()
    except errors.NestingError as exc:
        return str(exc)
    return "fine"


async def in_branch(place, use):
    if "race" in place:
        return (await api.race(lambda: caught(use)))[1]
    return (await api.parallel([lambda: caught(use)]))[0]


async def in_phase(place, use):
    async def sync(_, state):
        return Stop(await (in_branch(place, use) if "branch" in place else caught(use)))

    def spawn(_, state):
        async def background():
            outcome = await (in_branch(place, use) if "branch" in place else caught(use))
            await api.update_state(lambda s: (None, outcome))

        return Async(background, state)

    handlers = {"go": spawn if "async" in place else sync}
    if "async" in place:
        handlers["end"] = lambda _, s: Stop(s)
    return await api.phase("nothing", signal=handlers)


def used_at(place, use):
    """A workflow that completes with what became of ``use`` at ``place``."""

    async def run(self, args):
        if place == "run":
            return Ok(await caught(use))
        if place in ("branch", "branch of race"):
            return Ok(await in_branch(place, use))
        return Ok(await in_phase(place, use))

    return flow(run)


def cell(env, name, place):
    """What became of one use at one place: "fine", or the text of the error."""
    h = env.start(used_at(place, USES[name]))
    h.signal("given") if h.status == "waiting" else None
    for signal in ("go", "inner"):
        if h.status == "waiting":
            h.signal(signal)
    env.advance(5)
    if h.status == "waiting":
        h.signal("end")
    return h.result()


def check(env, name, place):
    outcome = cell(env, name, place)
    if (name, place) in FORBIDDEN:
        assert f"api.{name} is not allowed in a {'branch' if 'branch' in place else place}" in outcome
    else:
        assert outcome == "fine"


@pytest.mark.parametrize(("place", "name"), ROWS.values(), ids=ROWS)
def test_row(env, name, place):
    """The cells that have a row of their own (its id is the case's)."""
    check(env, name, place)


@in_memory
@pytest.mark.parametrize(("place", "name"), sorted({*product(PLACES, USES)} - {*ROWS.values()}))
def test_cell(env, name, place):
    """TX-031: all others. The place is judged before anything reaches a host, so the two in memory will do."""
    check(env, name, place)


@in_memory
@pytest.mark.parametrize("place", PLACES)
def test_forbidden_cells_are_refused_at_the_call_already(env, place):
    """Checked when called."""

    async def use():
        for name, call in (
            ("phase", lambda: api.phase(0, timeout=1)),
            ("update_state", lambda: api.update_state(lambda s: (1, s))),
        ):
            if (name, place) in FORBIDDEN:
                with pytest.raises(errors.NestingError, match=name):
                    call()

    h = env.start(used_at(place, use))
    if h.status == "waiting":
        h.signal("go")
    if h.status == "waiting":
        h.signal("end")
    assert h.result() == "fine"


def test_async_handler_may_not_return_async(env):
    """TX-166."""
    nested = lambda _, s: Async(lambda: Async(lambda: 1, 2), s)  # noqa: E731
    h = env.start(once(lambda: api.phase(0, update={"go": nested})))
    with pytest.raises(errors.UpdateFailed, match="NestingError.*Async"):
        h.update("go")


def test_branch_may_not_return_async(env):
    """TX-168."""

    async def run(self, args):
        (outcome,) = await api.parallel([lambda: Async(lambda: 1, 2)])
        return Ok([type(outcome.reason).__name__, str(outcome.reason)])

    name, text = env.start(flow(run)).result()
    assert name == "NestingError" and "Async" in text


def test_phase_that_was_called_in_run_cannot_be_awaited_in_a_branch(env):
    """TX-169: checked again when awaited."""

    async def run(self, args):
        (outcome,) = await api.parallel([api.phase(0, timeout=1)])
        return Ok(str(outcome.reason))

    assert "phase is not allowed in a branch" in env.start(flow(run)).result()


PRIMITIVES = {
    "activity": lambda: work(1),
    "sleep": lambda: api.sleep(1),
    "wait_for_signal": lambda: api.wait_for_signal("x"),
    "publish_state": lambda: api.publish_state(1),
    "now": api.now,
    "random": api.random,
    "uuid4": api.uuid4,
    "patched": lambda: api.patched("x"),
    "deprecate_patch": lambda: api.deprecate_patch("x"),
    "phase": lambda: api.phase(0, timeout=1),
    "parallel": lambda: api.parallel([]),
    "race": lambda: api.race(lambda: 1),
    "shield": api.shield,
    "wait_cancelled": api.wait_cancelled,
    "saga": api.saga,
    "update_state": lambda: api.update_state(lambda s: (1, s)),
    "wait_condition": lambda: api.wait_condition(lambda: True),
    "cancel_requested": api.cancel_requested,
    "info": api.info,
}


@pytest.mark.parametrize("name", PRIMITIVES)
def test_outside_a_workflow_every_primitive_says_so(name):
    """TX-177: by name, with a hint."""
    with pytest.raises(errors.OutsideWorkflow, match="work" if name == "activity" else name):
        PRIMITIVES[name]()


@in_memory
@pytest.mark.parametrize("name", sorted(set(PRIMITIVES) - {"now", "info", "cancel_requested"}))
def test_predicates_may_only_read(env, name):
    """ST-020."""

    async def run(self, args):
        try:
            await api.wait_condition(lambda: PRIMITIVES[name]())
        except errors.NestingError as exc:
            return Ok(str(exc))

    assert "not allowed in a predicate" in env.start(flow(run)).result()


def test_primitives_inside_an_activity_are_outside_the_workflow(env):
    """TX-177: an activity is not workflow code, even where it runs in the same thread."""
    seen = []

    def stand_in(value):
        with pytest.raises(errors.OutsideWorkflow):
            api.now()
        seen.append(value)

    env.mock(work, stand_in)
    h = env.start(once(lambda: work(1)))
    assert h.result() is None
    assert seen == [1]


def test_handlers_may_be_lambdas_that_give_calls(env):
    """Plain or async callables; a plain one may give an awaitable."""

    async def answered(args):
        return Reply(await work(args), args)

    h = env.start(
        once(lambda: api.phase(0, update={"go": lambda a, s: answered(a)}, signal={"end": lambda _, s: Stop(s)}))
    )
    assert h.update("go", 3) == 3
    h.signal("end")
    assert h.result() == 3
