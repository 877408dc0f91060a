"""Where activities run: whatever one of them raises ends its own attempt, and nothing else."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from temporalex_django import activity
from temporalex_django.engine import policy
from temporalex_django.engine.contracts.records import TaskResult, TaskState
from temporalex_django.workers import pool as pool_module
from temporalex_django.workers.pool import InlinePool, Pool
from tests.support.waiting import wait_for

RAISES: tuple[Callable[[], BaseException], ...] = (
    SystemExit,
    lambda: SystemExit(3),
    KeyboardInterrupt,
    GeneratorExit,
    asyncio.CancelledError,
    lambda: BaseException("of its own kind"),
    StopIteration,
    ValueError,
)
_numbers = itertools.count(1)


def made(which: int) -> BaseException:
    return RAISES[which]()


@activity
def quick(n: int) -> int:
    return n + 1


@activity
async def soon(n: int) -> int:
    await asyncio.sleep(0)
    return n + 1


@activity
def raising(which: int) -> None:
    raise made(which)


@activity
async def raising_in_the_loop(which: int) -> None:
    await asyncio.sleep(0)
    raise made(which)


@activity
async def raising_in_a_task(which: int) -> None:
    async def fails() -> None:
        raise made(which)

    await asyncio.gather(asyncio.create_task(fails()))


@activity
async def leaving_a_task_that_raises(which: int) -> int:
    async def fails() -> None:
        raise made(which)

    _left.append(asyncio.create_task(fails()))
    await asyncio.wait(_left[-1:])  # which does not take up its error
    return which


@activity
async def stopping_the_loop(n: int) -> int:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0)
    return n + 1


@activity
async def breaking_the_loop() -> None:
    def breaks() -> None:
        raise RuntimeError("a loop that does not go round any more")

    vars(asyncio.get_running_loop())["_run_once"] = breaks
    await asyncio.sleep(3600)


@activity
async def waiting_long() -> None:
    await asyncio.sleep(3600)


@activity
def held_up(gate: str | None) -> None:
    """Quick without a gate."""
    if gate is not None:
        begun, opened, over = _gates[gate]
        begun.set()
        opened.wait(30)
        over.set()


_left: list[Any] = []
_gates: dict[str, tuple[threading.Event, threading.Event, threading.Event]] = {}


def task(act: Any, *args: Any, **options: Any) -> TaskState:
    now = datetime.now(UTC)
    return TaskState(
        id=next(_numbers),
        chain_id=uuid4(),
        run_id=UUID(int=1),
        workflow_id="w",
        workflow="W",
        seq=1,
        activity=act.name,
        args=list(args),
        kwargs={},
        options={"retry": {"max_attempts": 1}, **options},
        queue="default",
        atomic=False,
        attempt=1,
        scheduled_at=now,
        due_at=now,
        owner=1,
    )


@pytest.fixture
def pool() -> Iterator[Pool]:
    one = Pool(threads=2, tasks=3, now=lambda: datetime.now(UTC), on_result=lambda: None)
    yield one
    one.close()


class Clock:
    """That of a pool: what takes long and what is quick does not depend on how quick this machine is."""

    sleep = staticmethod(time.sleep)

    def __init__(self) -> None:
        self.at = 1000.0

    def monotonic(self) -> float:
        return self.at


@pytest.fixture
def clock(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> Clock:
    one = Clock()
    monkeypatch.setattr(pool_module, "time", one)
    return one


def ends(pool: Pool, *tasks: TaskState) -> dict[int, TaskResult]:
    """Run these; their ends by the number of the task."""
    pool.submit(list(tasks))
    numbers = {t.id for t in tasks}
    wait_for(lambda: numbers <= {r.task.id for r in pool.results()})
    return {r.task.id: r for r in pool.results() if r.task.id in numbers}


def gate() -> str:
    name = str(uuid4())
    _gates[name] = threading.Event(), threading.Event(), threading.Event()
    return name


def test_who_is_cancelled_while_he_runs_leaves_his_place_to_others_and_comes_too_late(pool: Pool) -> None:
    gates = [gate(), gate()]
    stuck = [task(held_up, name) for name in gates]
    pool.submit(stuck)
    for name in gates:
        assert _gates[name][0].wait(30)

    pool.cancel(pool.pending_keys())
    after = task(quick, 1)
    assert kind(ends(pool, after)[after.id]) == "ActivityCompleted"
    for name in gates:
        _gates[name][1].set()
        assert _gates[name][2].wait(30)
    later = [task(quick, 1) for _ in range(4)]
    ends(pool, *later)
    assert {r.task.id for r in pool.results()} == {after.id, *(t.id for t in later)}


def test_nothing_is_taken_ahead_of_an_activity_one_attempt_of_which_takes_long(pool: Pool, clock: Clock) -> None:
    ends(pool, *(task(held_up, None) for _ in range(20)))
    assert pool.capacity().prefetch[held_up.name] > 0

    name = gate()
    slow = task(held_up, name)
    pool.submit([slow])
    assert _gates[name][0].wait(30)
    clock.at += 1.0
    assert held_up.name not in pool.capacity().prefetch
    assert pool.capacity().threads == 1
    _gates[name][1].set()
    wait_for(lambda: slow.id in {r.task.id for r in pool.results()})
    assert held_up.name not in pool.capacity().prefetch
    ends(pool, *(task(held_up, None) for _ in range(40)))
    assert held_up.name in pool.capacity().prefetch


def test_of_many_different_activities_that_are_quick_the_next_ones_are_taken_ahead(pool: Pool, clock: Clock) -> None:
    """As the steps of a large graph are, each of which runs once."""
    assert "new" not in taken(pool, "new", "new", "new")[2:]
    for _ in range(10):
        ends(pool, *(task(named(lambda: None)) for _ in range(5)))
    assert taken(pool, *("new" for _ in range(9))) == ["new"] * 9

    name = gate()
    pool.submit([task(named(lambda: (_gates[name][0].set(), _gates[name][1].wait(30))))])
    assert _gates[name][0].wait(30)
    clock.at += 1.0
    assert taken(pool, "new", "new", "new") == ["new"]  # by the other thread
    _gates[name][1].set()


@pytest.mark.usefixtures("clock")
def test_what_is_taken_ahead_is_limited_for_all_activities_together(pool: Pool) -> None:
    many = [named(lambda: None) for _ in range(50)]
    ends(pool, *(task(act) for act in many))
    names = [act.name for act in many for _ in range(50)]
    assert 50 < len(taken(pool, *names)) <= 2 + 400


@pytest.mark.usefixtures("clock")
def test_of_what_a_turn_itself_schedules_more_is_taken_than_is_claimed(pool: Pool) -> None:
    quick = named(lambda: None)
    ends(pool, *(task(quick) for _ in range(40)))
    empty = pool.capacity()
    gates = [gate(), gate()]
    pool.submit([task(held_up, name) for name in gates])
    assert all(_gates[name][0].wait(30) for name in gates)
    try:
        pool.submit([task(quick) for _ in range(150)])
        few = pool.capacity()
        pool.submit([task(quick) for _ in range(450)])
        many = pool.capacity()
    finally:
        for name in gates:
            _gates[name][1].set()

    assert (empty.prefetch_limit, empty.eager_limit) == (400, 600)
    assert (few.prefetch_limit, few.eager_limit) == (250, 600)
    assert (many.prefetch_limit, many.eager_limit) == (0, 400)


def test_how_many_runs_have_an_activity_in_hand(pool: Pool) -> None:
    ended = [task(quick, n) for n in range(2)]
    ended[1].chain_id = ended[0].chain_id
    ends(pool, *ended)
    gates = [gate(), gate()]
    pool.submit([task(held_up, name) for name in gates])
    assert all(_gates[name][0].wait(30) for name in gates)
    try:
        waiting = [task(quick, n) for n in range(3)]
        waiting[2].chain_id = waiting[1].chain_id
        pool.submit(waiting)
        assert pool.capacity().busy_runs == 1 + 2  # what runs may take long: that one is not counted
    finally:
        for name in gates:
            _gates[name][1].set()


def taken(pool: Pool, *names: str) -> list[str]:
    capacity = pool.capacity()
    return [name for name in names if capacity.acquire(name)]


def named(fn: Callable[[], object]) -> Any:
    """It as an activity with a name of its own."""

    def own() -> None:
        fn()

    own.__qualname__ = own.__name__ = f"own_{next(_numbers)}"
    return activity(own)


def kind(result: TaskResult) -> str:
    assert result.outcome is not None
    return result.outcome[0]


@pytest.mark.parametrize("which", range(len(RAISES)))
@pytest.mark.parametrize("act", [raising, raising_in_the_loop, raising_in_a_task], ids=lambda act: act.name)
def test_whatever_an_activity_raises_ends_its_attempt_alone(pool: Pool, act: Any, which: int) -> None:
    bad, good, other = task(act, which), task(soon, 1), task(quick, 1)
    found = ends(pool, bad, good, other)
    assert (kind(found[bad.id]), kind(found[good.id])) == ("ActivityFailed", "ActivityCompleted")
    assert kind(found[other.id]) == "ActivityCompleted"
    later = task(soon, 1)
    assert kind(ends(pool, later)[later.id]) == "ActivityCompleted"


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("act", [leaving_a_task_that_raises, stopping_the_loop], ids=lambda act: act.name)
def test_a_loop_that_is_stopped_goes_on_with_all_that_is_in_it(pool: Pool, act: Any, which: int) -> None:
    first, beside = task(act, which), task(soon, 1)
    found = ends(pool, first, beside)
    assert {kind(result) for result in found.values()} == {"ActivityCompleted"}
    later = task(soon, 1)
    assert kind(ends(pool, later)[later.id]) == "ActivityCompleted"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_that_breaks_is_made_anew(pool: Pool) -> None:
    """What was under way has failed, what had not begun begins in the new one."""
    under_way = [task(waiting_long), task(waiting_long), task(breaking_the_loop)]
    waiting = task(soon, 1)
    found = ends(pool, *under_way, waiting)
    assert {kind(found[t.id]) for t in under_way} == {"ActivityFailed"}
    assert "event loop of its worker broke" in found[under_way[0].id].outcome[1]["message"]  # type: ignore[index]
    assert kind(found[waiting.id]) == "ActivityCompleted"
    assert pool.busy == 4
    gc.collect()  # what was under way is complained about here, not in a test that comes later


@pytest.mark.parametrize("which", range(len(RAISES)))
@pytest.mark.parametrize("act", [raising, raising_in_the_loop], ids=lambda act: act.name)
def test_an_inline_pool_too(act: Any, which: int) -> None:
    pool = InlinePool(now=lambda: datetime.now(UTC))
    pool.submit([task(act, which)])
    assert [kind(result) for result in pool.results()] == ["ActivityFailed"]


def test_what_waits_behind_a_quick_one_that_hangs_gets_help(pool: Pool) -> None:
    """Quick ones are one thread's, until it is seen that they wait; nothing is rung for that nobody needs."""
    gate = _gates["hangs"] = (threading.Event(), threading.Event(), threading.Event())
    wait_for(lambda: ends(pool, task(held_up, None)) and pool._paces[held_up.name][0] < policy.QUICK_SECONDS)
    pool.discard_results(pool.results())
    hangs, *others = [task(held_up, "hangs"), *(task(held_up, None) for _ in range(20))]
    pool.submit([hangs, *others])
    assert gate[0].wait(30)

    def done() -> bool:
        return bool(pool.capacity()) and len(pool.results()) == 20

    wait_for(done)
    assert {result.task.id for result in pool.results()} == {one.id for one in others}
    for _ in range(50):
        pool.submit([task(quick, 1)])
    assert pool._wakeups.qsize() <= pool._threads
    gate[1].set()
    wait_for(lambda: len(pool.results()) == 71)
