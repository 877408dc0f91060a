"""Async generators of workflow code: closed with the unit that began them, in order, and by nobody else."""

from __future__ import annotations

import gc

import pytest

from temporalex_django import NoReply, Ok, Stop, api, errors
from tests.support.runs import flow, forget, kinds, once, other, work


def counting(log, name, *, undo=None):
    """An async generator that notes its end."""

    async def count():
        number = 0
        try:
            while True:
                yield number
                number += 1
        finally:
            log.append(f"{name} closed")
            if undo is not None:
                log.append(await undo(name))

    return count()


def test_left_in_the_middle_it_is_closed_when_its_unit_ends(env):
    """Not by the collector, and not where the loop was left."""

    async def run(self, args):
        log = []
        for name in ("first", "second"):
            async for number in counting(log, name):
                if number == 2:
                    break
            await work()
        gc.collect()
        log.append("the end of run")
        return Ok(log)

    h = env.start(flow(run))
    assert h.result() == ["the end of run", "first closed", "second closed"]


def test_in_the_order_in_which_they_were_begun_and_with_all_that_a_unit_may_do(env):
    """What they do last is durable and is in the history before the unit's end."""

    async def branch(log, name):
        made = [counting(log, f"{name} {number}", undo=work) for number in range(3)]
        for generator in (made[2], made[0], made[1]):
            await anext(generator)
        await api.sleep(5)
        log.append(f"{name} ends")
        return name

    async def run(self, args):
        log = []
        ended = await api.parallel([lambda: branch(log, "a")])
        return Ok([ended, log])

    h = env.start(flow(run))
    env.advance(5)
    ended, log = h.result()
    assert ended == ["a"]
    assert log == ["a ends", *[line for n in (2, 0, 1) for line in (f"a {n} closed", f"a {n}")]]
    assert kinds(h).count("ActivityCompleted") == 3


def test_one_that_was_exhausted_has_nothing_more_to_do(env):
    async def few(log):
        try:
            for number in range(3):
                await api.sleep(1)
                yield number
        finally:
            log.append("closed")

    async def run(self, args):
        log = []
        return Ok([[number async for number in few(log)], log])

    h = env.start(flow(run))
    env.advance(5)
    assert h.result() == [[0, 1, 2], ["closed"]]


def test_closing_is_shielded_from_a_cancel_and_its_errors_go_to_nobody(env, caplog):
    async def run(self, args):
        self.generator = counting([], "slow", undo=lambda _: api.sleep(10))
        self.broken = counting([], "broken", undo=lambda _: 1 / 0)
        await anext(self.generator)
        await anext(self.broken)
        return Ok("done")

    h = env.start(flow(run))
    h.cancel()
    assert h.status == "waiting"
    env.advance(10)
    assert h.result() == "done"
    (said,) = [r.message for r in caplog.records if r.levelname == "ERROR"]
    assert said.startswith(f"Flow {h.id}: run: closing the async generator counting.<locals>.count failed")


@pytest.mark.parametrize("how", ["cancel", "raise"])
def test_a_unit_that_fails_closes_them_too(env, how):
    async def run(self, args):
        await anext(made := counting([], "generator", undo=other))
        await work()
        if how == "raise":
            raise ValueError(made.__name__)
        await api.sleep(60)

    h = env.start(flow(run))
    if how == "cancel":
        h.cancel()
    assert kinds(h)[-3:-1] == ["ActivityScheduled", "ActivityCompleted"]
    assert h.status == {"cancel": "cancelled", "raise": "failed"}[how]


def test_what_is_collected_later_does_nothing(env):
    """In a run that is gone, dropped from memory or terminated, while others are at work."""
    log = []

    async def run(self, args):
        await anext(made := counting(log, "generator", undo=work))
        await api.wait_for_signal("never")
        return Ok(made)

    gone, other_run = env.start(flow(run)), env.start(once(lambda: api.wait_for_signal("go")))
    gone.terminate()
    forget(env)
    gc.collect()
    other_run.signal("go", 1)
    gc.collect()
    assert (other_run.result(), kinds(other_run)) == (1, ["SignalReceived", "WorkflowCompleted"])
    assert log == []


def test_a_handler_of_a_phase_closes_its_own(env):
    """Before its answer counts."""

    async def slow(number, state):
        await anext(made := counting([], f"generator {number}", undo=work))
        return NoReply([*state, made.__name__])

    h = env.start(once(lambda: api.phase([], signal={"slow": slow, "done": lambda _, s: Stop(s)})))
    env.hold(work)
    h.signal("slow", 1)
    h.signal("done")
    assert h.status == "running"
    env.complete(work)
    assert h.result() == ["count"]


def test_outside_of_a_unit_none_can_begin(env):
    """A predicate that is looked at again is of no unit: nobody could close what it begins."""

    async def run(self, args):
        self.ready = False
        waited, _ = await api.parallel([lambda: api.wait_condition(self.test), self.set])
        return Ok(type(waited.reason).__name__)

    def test(self):
        return self.ready and counting([], "generator").__anext__()

    async def set_(self):
        await api.sleep(1)
        self.ready = True

    h = env.start(flow(run, test=test, set=set_))
    env.advance(1)
    assert h.result() == errors.NestingError.__name__
