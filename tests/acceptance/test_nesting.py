"""The nesting matrix: every cell of it. Its rows and its forbidden cells are those of the table of primitives."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import product
from types import SimpleNamespace

import pytest

from temporalex_django import Async, Done, Ok, Reply, Stop, Workflow, activity, api, errors, query, transit, update
from temporalex_django.core.primitive_table import ACTIVITY, CONTEXTS_OF_RUN, PRIMITIVES
from tests.acceptance.graphs import graph, steps
from tests.support.hosts import in_memory
from tests.support.runs import flow, once, work

PLACES = (
    *("run", "sync handler", "async handler", "branch", "branch in a sync handler", "branch in an async handler"),
    *("branch of race", "branch of race in a sync handler", "branch of race in an async handler"),
)


TABLE = {row.name: row for row in (ACTIVITY, *PRIMITIVES)}


def doubled(value):
    return 2 * value


#: As Django's own look, and those of the backport.
TASK = SimpleNamespace(func=doubled, takes_context=False, module_path=f"{__name__}.TASK", queue_name="default")
KID = once(lambda: work(1), name="test.NestedKid")


async def use_activity():
    return await work(1)


async def use_task():
    return await api.task(TASK, 1)


async def use_approval():
    return await api.race(api.approval("Really?", users=["ann"]), use_activity)


async def use_search_attributes():
    api.set_search_attributes({"total": 1})


async def use_child():
    return await api.child(KID)


async def use_others():
    with suppress(errors.WorkflowNotFound):
        await api.signal_external("nobody", "hello")
    with suppress(errors.WorkflowNotFound):
        await api.cancel_external("nobody")


async def use_sleep_until():
    return await api.sleep_until(api.now() + timedelta(seconds=1))


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
    return [api.info().id, api.cancel_requested(), str(api.sender()), api.headers(), api.logger.info("hello")]


USES = {
    "activity": use_activity,
    "sleep": use_sleep,
    "sleep_until": use_sleep_until,
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
    "info, cancel_requested, sender, headers, logger": use_reads,
    "task": use_task,
    "approval": use_approval,
    "set_search_attributes": use_search_attributes,
    "child": use_child,
    "signal_external, cancel_external": use_others,
}


def differences(names, table):
    """Say which primitive lacks its entry in a table of this module, and which entry has no primitive."""
    return [
        f"{name} has no entry in {table} of tests/acceptance/test_nesting.py" for name in TABLE if name not in names
    ] + [f"{name} in {table} has no row in core/primitive_table.py" for name in names if name not in TABLE]


def unit_of(place):
    return "branch" if "branch" in place else place


FORBIDDEN = {(name, place) for name, place in product(TABLE, PLACES) if not TABLE[name].is_allowed(unit_of(place))}

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

    return flow(run, search_attributes={"total": int})


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
        assert f"api.{name} is not allowed in a {unit_of(place)}" in outcome
    else:
        assert outcome == "fine"


def test_every_primitive_has_a_use():
    """A new row of the table needs a use here, and nothing else."""
    assert differences({name for names in USES for name in names.split(", ")} - {"logger"}, "USES") == []


def test_what_the_table_forbids():
    """TX-031: two primitives have one place each, and all others have all places."""
    places = {name: {place for place in PLACES if (name, place) not in FORBIDDEN} for name in TABLE}
    assert places == {name: {*PLACES} for name in TABLE} | {"phase": {"run"}, "update_state": {"async handler"}}


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


LATER = datetime(2100, 1, 1, tzinfo=UTC)

CALLS = {
    "activity": lambda: work(1),
    "sleep": lambda: api.sleep(1),
    "sleep_until": lambda: api.sleep_until(LATER),
    "task": lambda: api.task(TASK, 1),
    "wait_for_signal": lambda: api.wait_for_signal("x"),
    "approval": lambda: api.approval("Really?", users=["ann"]),
    "publish_state": lambda: api.publish_state(1),
    "set_search_attributes": lambda: api.set_search_attributes({}),
    "now": api.now,
    "random": api.random,
    "uuid4": api.uuid4,
    "patched": lambda: api.patched("x"),
    "deprecate_patch": lambda: api.deprecate_patch("x"),
    "phase": lambda: api.phase(0, timeout=1),
    "parallel": lambda: api.parallel([]),
    "race": lambda: api.race(lambda: 1),
    "update_state": lambda: api.update_state(lambda s: (1, s)),
    "wait_condition": lambda: api.wait_condition(lambda: True),
    "child": lambda: api.child(KID),
    "signal_external": lambda: api.signal_external("nobody", "x"),
    "cancel_external": lambda: api.cancel_external("nobody"),
    "cancel_requested": api.cancel_requested,
    "wait_cancelled": api.wait_cancelled,
    "shield": api.shield,
    "saga": api.saga,
    "info": api.info,
    "sender": api.sender,
    "headers": api.headers,
}
SHOWN_AS = {"activity": "work", "task": "doubled|TASK"}


#: A primitive without a call fails one test with a sentence, not all tests of its cells.
CALLED = [name for name in TABLE if name in CALLS]


def test_every_primitive_has_a_call():
    assert differences(CALLS, "CALLS") == []


def test_outside_a_workflow_every_primitive_says_so():
    """TX-177: by name, with a hint."""
    for name in CALLED:
        with pytest.raises(errors.OutsideWorkflow, match=SHOWN_AS.get(name, name)):
            CALLS[name]()


def asked(name, seen):
    """What became of a call of the primitive is put at the end of ``seen``."""
    try:
        CALLS[name]()
    except (errors.NestingError, errors.OutsideWorkflow) as exc:
        seen.append(str(exc))
    else:
        seen.append("fine")


def ask_in_validator(env, name, seen):
    def judge(args, state):
        asked(name, seen)

    h = env.start(once(lambda: api.phase(0, update={"go": update(lambda _, s: Stop(s), validator=judge)})))
    h.update("go")


def ask_in_predicate(env, name, seen):
    def is_true():
        asked(name, seen)
        return True

    env.start(once(lambda: api.wait_condition(is_true)))


def ask_in_closure(env, name, seen):
    def change(state):
        asked(name, seen)
        return None, state

    async def spawned():
        await api.update_state(change)

    handlers = {"go": lambda _, s: Async(spawned, s), "end": lambda _, s: Stop(s)}
    h = env.start(once(lambda: api.phase(0, signal=handlers)))
    h.signal("go")
    h.signal("end")


def ask_in_transition(env, name, seen):
    first, left, right = steps("First", "Left", "Right").values()

    def route(context):
        asked(name, seen)
        return left

    turn = transit(first, "ok", targets=[left, right])(route)
    env.start(graph(first, {(left, "ok"): Done, (right, "ok"): Done}, route=turn), {}, value="1")


ASKERS = {
    "validator": ask_in_validator,
    "predicate": ask_in_predicate,
    "update_state closure": ask_in_closure,
    "transition": ask_in_transition,
}


@in_memory
@pytest.mark.parametrize("context", CONTEXTS_OF_RUN)
def test_pure_contexts_may_only_read(env, context):
    """ST-020: a number or a command there would make live and rebuilt runs differ."""
    answers = {}
    for name in CALLED:
        ASKERS[context](env, name, seen := [])
        answers[name] = seen[0]
    allowed = {name for name in CALLED if TABLE[name].is_allowed(context)}
    assert {name for name, answer in answers.items() if answer == "fine"} == allowed
    refused = {name: answer for name, answer in answers.items() if name not in allowed}
    assert {name for name, answer in refused.items() if f"not allowed in a {context}" not in answer} == set(), refused


def test_what_pure_contexts_may_read():
    """ST-020 HE-061: a predicate belongs to no message, so it has no sender."""
    reads = {"now", "info", "cancel_requested"}
    allowed = {context: {name for name in TABLE if TABLE[name].is_allowed(context)} for context in CONTEXTS_OF_RUN}
    assert allowed == {
        "validator": reads | {"sender", "headers"},
        "predicate": reads,
        "update_state closure": set(),
        "transition": set(),
    }


@in_memory
def test_query_reaches_no_run(env):
    """TX-134: the state is all that it has."""
    answers = {}

    class Asked(Workflow):
        @query("ask")
        @staticmethod
        def ask(state):
            for name in CALLED:
                asked(name, seen := [])
                answers[name] = seen[0]

        async def run(self, args):
            api.publish_state(1)
            await api.wait_for_signal("end")

    env.start(Asked).query("ask")
    assert {*answers} == {*CALLED}
    assert [name for name, answer in answers.items() if answer == "fine"] == []


@in_memory
def test_activity_with_the_name_of_a_primitive_is_an_activity(env):
    """Its place is that of an activity, whatever it is called."""
    named_phase = activity(name="phase")(lambda: 1)
    named_now = activity(name="now")(lambda: 1)
    seen = []

    async def run(self, args):
        await api.wait_condition(lambda: [seen.append(str(refusal(named_now)))])
        return Ok(await api.parallel([named_phase]))

    assert env.start(flow(run)).result() == [1]
    assert "not allowed in a predicate" in seen[0]


def refusal(call):
    try:
        return call()
    except errors.NestingError as exc:
        return exc


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
