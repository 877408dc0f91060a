"""Code that does not come to a wait. The limit is the host's: of workers a setting, in memory ``deadlock_timeout``."""

from __future__ import annotations

import contextlib
from functools import partial

import pytest

from temporalex_django import Ok, api, errors
from temporalex_django.testing import WorkflowEnvironment
from tests.support.hosts import HOSTS
from tests.support.runs import flow, kinds, once, work

LIMIT = 0.2
#: Of code that comes to its waits: no machine is so slow.
GENEROUS = 60.0


def limit_code(env, seconds):
    """Set the limit of the host for code that does not come to a wait."""
    if hasattr(env, "cluster"):
        env.code_limit = seconds
    else:
        env.engine._deadlock_timeout = seconds


@pytest.fixture
def watched(env, collector_at_rest):
    limit_code(env, LIMIT)
    return env


def spins(catches=Exception):
    """A workflow that loops for ever when it is told to, and that catches what it may."""

    async def run(self, args):
        await api.wait_for_signal("go")
        await work()
        while True:
            try:
                while True:
                    pass
            except catches:
                api.publish_state("caught")

    return flow(run)


def test_a_loop_is_interrupted_and_the_activation_leaves_nothing(watched):
    """ST-079 ST-080: the run is blocked, not failed; what the activation had done before is not written."""
    watched.hold(work)
    h = watched.start(spins())
    h.signal("go")
    before = h.history()
    watched.complete(work)
    assert isinstance(h.blocked, errors.DeadlockDetected)
    assert h.describe()["blocked"]["code"] == "deadlock"
    assert (h.status, h.history()) == ("running", before)


@pytest.mark.parametrize("catches", [Exception, BaseException])
def test_the_loop_cannot_catch_it(watched, catches, caplog):
    """ST-082 ST-081: not as an exception; swallowed it counts all the same, and the stack is logged."""

    async def run(self, args):
        await api.wait_for_signal("go")
        try:
            while True:
                pass
        except catches:
            return Ok("caught")

    h = watched.start(flow(run))
    h.signal("go")
    assert isinstance(h.blocked, errors.DeadlockDetected)
    assert kinds(h) == []
    assert "while True" in caplog.text or "pass" in caplog.text


def test_the_run_heals_with_the_code(watched):
    """ST-080."""
    h = watched.start(spins())
    h.signal("go")
    assert h.blocked is not None

    async def mended(self, args):
        await api.wait_for_signal("go")
        await work()
        return Ok("mended")

    flow(mended)
    limit_code(watched, GENEROUS)
    watched.advance(1)
    assert h.result() == "mended"


# On a cluster the SDK gives 2 seconds in all, and the second interruption comes a second after the first.
@pytest.mark.hosts(*HOSTS)
def test_an_interruption_leaves_nothing_behind(watched):
    """ST-080 ST-082: code that swallows it and loops on is stopped too; the next run is not disturbed."""

    async def run(self, args):
        await api.wait_for_signal("go")
        for swallowing in (True, False):
            try:
                while True:
                    pass
            except BaseException:
                assert swallowing

    h = watched.start(flow(run))
    h.signal("go")
    assert isinstance(h.blocked, errors.DeadlockDetected)
    limit_code(watched, GENEROUS)
    after = watched.start(once(lambda: api.parallel([partial(work, n) for n in range(20)]), name="After"))
    assert (after.blocked, after.status) == (None, "completed")


def test_waiting_is_no_deadlock(watched):
    """ST-083: for an activity, a timer or a signal, however long it takes by the clock of the run."""
    limit_code(watched, GENEROUS)
    watched.hold(work)
    waits = {"Activity": work, "Timer": lambda: api.sleep(10**6), "Signal": lambda: api.wait_for_signal("x")}
    runs = [watched.start(once(body, name=name)) for name, body in waits.items()]
    watched.advance(10**5)
    assert [(h.blocked, h.status) for h in runs] == [(None, "running"), (None, "waiting"), (None, "waiting")]


def test_without_a_limit_nothing_is_interrupted():
    """ST-078: work that takes a while is done; with a limit the same goes on until it is interrupted."""

    async def run(self, args):
        return Ok(sum(1 for _ in range(args)))

    fine = WorkflowEnvironment().start(flow(run), 300_000)
    short = WorkflowEnvironment(deadlock_timeout=0.01).start(flow(run), 10**12)
    assert fine.status == "completed"
    assert isinstance(short.blocked, errors.DeadlockDetected)


def bare(work_):
    while True:
        try:  # noqa: SIM105 - what it is about
            work_()
        except:  # noqa: E722 - as above
            pass


def nested(work_):
    while True:
        try:
            while True:
                work_()
        except BaseException:
            with contextlib.suppress(BaseException):
                work_()


def with_finally(work_):
    count = 0
    while True:
        try:
            while True:
                count += 1
        except BaseException:
            continue
        finally:
            work_()


@pytest.mark.each_python
@pytest.mark.hosts("memory", "memory-evicted")
@pytest.mark.parametrize("loop", [bare, nested, with_finally])
def test_a_loop_with_a_bare_except_is_stopped(watched, loop):
    async def run(self, args):
        await api.wait_for_signal("go")
        if right["is"]:
            return Ok("right")
        loop(lambda: sum(range(10)))
        return None

    right = {"is": False}
    h = watched.start(flow(run), id="bare")
    h.signal("go")
    assert isinstance(h.blocked, errors.DeadlockDetected)

    right["is"] = True
    watched.advance(0)

    assert h.result() == "right"
