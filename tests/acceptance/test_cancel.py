"""Cancellation of function workflows."""

from __future__ import annotations

import pytest

from temporalex_django import Async, Err, NoReply, Ok, Reply, Stop, api, errors
from tests.support.runs import events, flow, kinds, once, other, produced_kinds, work


def bare_phase(**options):
    return lambda: api.phase(0, signal={"never": lambda _, s: Stop(s)}, **options)


WAITS = {
    "activity": (lambda: work(1), ["ActivityCancelled"]),
    "sleep": (lambda: api.sleep(60), ["TimerCancelled"]),
    "wait_for_signal": (lambda: api.wait_for_signal("never"), []),
    "phase": (bare_phase(), []),
    "phase with timeout": (bare_phase(timeout=60), ["TimerCancelled"]),
    "wait_condition": (lambda: api.wait_condition(lambda: False), []),
    "wait_condition with timeout": (lambda: api.wait_condition(lambda: False, timeout=60), ["TimerCancelled"]),
    "parallel": (lambda: api.parallel([work(1), api.sleep(60)]), ["ActivityCancelled", "TimerCancelled"]),
    "parallel with limit": (lambda: api.parallel([work(1), api.sleep(60)], limit=1), ["ActivityCancelled"]),
    "parallel of nothing": (lambda: api.parallel([lambda: api.wait_for_signal("never")]), []),
}


@pytest.mark.parametrize("name", WAITS)
def test_cancel_raises_at_once_in_every_kind_of_wait(env, name):
    """ST-032 ST-085 ST-088 ST-091: escaped, the run ends cancelled; the event replays at the same point."""
    body, undone = WAITS[name]
    env.hold(work)
    h = env.start(once(body))
    h.cancel()
    assert h.status == "cancelled"
    with pytest.raises(errors.WorkflowCancelled):
        h.result()
    assert kinds(h)[kinds(h).index("CancelRequested") :] == ["CancelRequested", *undone, "WorkflowCancelled"]


@pytest.mark.parametrize("name", WAITS)
def test_cancelled_wait_can_be_caught_and_work_goes_on(env, name):
    """ST-086 ST-088: caught, and a value returned, the run completes; Cancelled comes once."""
    body, _ = WAITS[name]
    env.hold(work)

    async def run(self, args):
        before = api.cancel_requested()
        try:
            await body()
        except Exception:
            return Ok("an ordinary handler saw it")
        except errors.Cancelled:
            await api.sleep(5)
            return Ok([before, api.cancel_requested()])

    h = env.start(flow(run))
    h.cancel()
    env.advance(5)
    assert h.result() == [False, True]


def test_replaced_by_another_error_the_run_fails(env):
    """ST-088."""

    async def run(self, args):
        try:
            await api.sleep(60)
        except errors.Cancelled:
            raise ValueError("instead") from None

    h = env.start(flow(run))
    h.cancel()
    with pytest.raises(errors.WorkflowFailed, match="ValueError: instead"):
        h.result()


def test_second_request_is_dropped(env):
    """ST-084."""

    async def run(self, args):
        try:
            await api.sleep(60)
        except errors.Cancelled:
            await api.sleep(60)
        return Ok("cleaned")

    h = env.start(flow(run))
    h.cancel()
    h.cancel()
    env.advance(60)
    assert h.result() == "cleaned"
    assert kinds(h).count("CancelRequested") == 1


def test_before_the_first_wait_it_comes_at_the_first_wait(env):
    """At the current or the next wait."""
    with env.batch():
        h = env.start(once(lambda: api.sleep(60)))
        h.cancel()
    assert h.status == "cancelled"
    assert produced_kinds(env) == ["StartTimer", "CancelTimer", "CancelWorkflow"]


def test_result_that_is_there_already_wins_and_the_next_wait_raises(env):
    """Resolutions first."""

    async def run(self, args):
        await api.sleep(10)
        await other(1)
        return Ok()

    env.hold(other)
    h = env.start(flow(run))
    with env.batch():
        env.advance(10)
        h.cancel()
    assert h.status == "cancelled"
    assert kinds(h) == [
        "TimerStarted",
        "TimerFired",
        "CancelRequested",
        "ActivityScheduled",
        "ActivityCancelled",
        "WorkflowCancelled",
    ]


def test_result_after_the_cancelled_wait_has_nobody_to_go_to(env):
    """ST-034: in one activation the result comes first; later there is no call left."""

    async def run(self, args):
        try:
            await work(1)
        except errors.Cancelled:
            await api.wait_for_signal("go")
        return Ok("fine")

    env.hold(work)
    together, later = env.start(flow(run)), env.start(flow(run))
    with env.batch():
        together.cancel()
        env.complete(work, "first")
    assert together.result() == "fine" and "ActivityCompleted" in kinds(together)
    later.cancel()
    with pytest.raises(LookupError):
        env.complete(work, "late")
    later.signal("go")
    assert later.result() == "fine" and later.blocked is None


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("message", ["signal", "update"])
def test_cancel_reaches_handlers_and_the_phase_drains_before_it_is_raised(env, kind, message, caplog):
    """ST-085 TX-082 TX-094: an update that was under way fails for its caller, a signal is not an error."""

    async def body():
        await work(1)

    async def sync(_, state):
        await body()
        return Reply(1, state) if message == "update" else NoReply(state)

    handler = sync if kind == "sync" else (lambda _, s: Async(body, s))
    env.hold(work)
    h = env.start(once(lambda: api.phase(0, **{message: {"go": handler}}, timeout=60)))
    u = h.update_async("go") if message == "update" else h.signal("go")
    h.cancel()
    assert h.status == "cancelled"
    assert set(kinds(h)[-4:]) >= {"TimerCancelled", "ActivityCancelled", "WorkflowCancelled"}
    if u is not None:
        with pytest.raises(errors.UpdateFailed, match="Cancelled"):
            u.result()
    assert not [r for r in caplog.records if r.levelname == "ERROR"]


def test_handler_that_cleans_up_delays_the_end(env):
    """ST-088 TX-094: units of the phase end before it raises; updates that wait are refused."""

    async def sync(_, state):
        try:
            await work(1)
        except errors.Cancelled:
            await api.sleep(5)
        return Reply("cleaned", "kept")

    env.hold(work)
    h = env.start(once(lambda: api.phase(0, update={"go": sync, "next": lambda a, s: Reply(1, s)})))
    u, waiting = h.update_async("go"), h.update_async("next")
    h.cancel()
    assert h.status == "waiting" and waiting.done
    with pytest.raises(errors.UpdateRejected):
        waiting.result()
    with pytest.raises(errors.UpdateRejected):
        h.update("next")
    env.advance(5)
    assert u.result() == "cleaned"
    assert h.status == "cancelled"


def test_update_state_that_waits_is_cancelled_without_being_applied(env):
    """TX-110 ST-085: cancel in a delayed update_state."""

    async def slow(_, state):
        try:
            await api.wait_for_signal("never")
        except errors.Cancelled:
            await api.sleep(5)
        return NoReply([*state, "slow"])

    def begin(_, state):
        async def background():
            await api.wait_for_signal("go")
            await api.update_state(lambda s: (None, [*s, "never applied"]))

        return Async(background, state)

    seen = []

    async def run(self, args):
        phase = api.phase([], signal={"begin": begin, "slow": slow})
        try:
            await phase
        except errors.Cancelled:
            seen.append("raised")
            raise

    h = env.start(flow(run))
    for name in ("begin", "slow", "go"):
        h.signal(name)
    h.cancel()
    assert h.status == "waiting"
    env.advance(5)
    assert h.status == "cancelled"
    assert h.blocked is None


def test_terminate_runs_no_code(env):
    """TX-217."""
    ran = []

    async def run(self, args):
        try:
            await api.sleep(60)
        finally:
            ran.append(1)

    h = env.start(flow(run))
    h.terminate("why")
    env.advance(120)
    assert ran == []
    assert h.status == "terminated"
    assert events(h, "WorkflowTerminated") == [{"reason": "why"}]


def test_cancelled_has_no_public_constructor():
    """Control, no public constructor."""
    with pytest.raises(TypeError):
        errors.Cancelled()
    assert not issubclass(errors.Cancelled, Exception)


def test_err_after_cancel(env):
    """ST-088."""

    async def run(self, args):
        try:
            await api.sleep(60)
        except errors.Cancelled:
            return Err("gave up")

    h = env.start(flow(run))
    h.cancel()
    with pytest.raises(errors.WorkflowFailed, match="gave up"):
        h.result()
