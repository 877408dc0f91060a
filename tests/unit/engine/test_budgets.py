"""An activation takes what fits a budget; what it leaves comes in the next one, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from temporalex_django import Ok, Stop, api, errors, update
from temporalex_django.core.results import NoReply, Reply
from temporalex_django.engine import policy
from tests.support.runs import CheckedEnvironment, flow, work


@pytest.fixture(params=[False, True], ids=["kept", "rebuilt"])
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[CheckedEnvironment]:
    """An environment in which each activation has time for one message."""
    env = CheckedEnvironment(evict=request.param)
    env.engine._budgeted = True
    for name in ("RUN_SECONDS", "MIN_RUN_SECONDS"):
        monkeypatch.setattr(policy, name, 0.0)
    monkeypatch.setattr(policy, "TURN_SECONDS", 0.0)
    yield env
    env.check()


def tally() -> Any:
    async def run(self: Any, args: Any) -> Any:
        return Ok(
            await api.phase(
                [],
                signal={"note": lambda n, s: NoReply([*s, n]), "stop": lambda _, s: Stop(s)},
                update={"add": update(lambda n, s: Reply(len(s), [*s, n]))},
            )
        )

    return flow(run)


def activations(handle: Any) -> list[list[str]]:
    """Names of the messages that each activation applied."""
    names: dict[int, list[str]] = {}
    for event in handle.history():
        if event.kind in ("SignalReceived", "UpdateAccepted"):
            names.setdefault(event.activation, []).append(event.attributes["name"])
    return list(names.values())


def test_messages_beyond_the_budget_come_in_later_activations_in_order(small: CheckedEnvironment) -> None:
    h = small.start(tally())
    with small.batch():
        h.signal("note", 1)
        first = h.update_async("add", 2)
        h.signal("note", 3)
        second = h.update_async("add", 4)
        h.signal("stop")
    assert (h.result(), first.result(), second.result()) == ([1, 2, 3, 4], 1, 3)
    assert activations(h) == [["note"], ["add"], ["note"], ["add"], ["stop"]]


def test_updates_that_wait_behind_a_handler_keep_their_place_before_what_was_left(small: CheckedEnvironment) -> None:
    async def slowly(n: int, state: list[int]) -> Reply:
        return Reply(await work(n), [*state, n])

    async def run(self: Any, args: Any) -> Any:
        return Ok(
            await api.phase(
                [],
                signal={"note": lambda n, s: NoReply([*s, n]), "stop": lambda _, s: Stop(s)},
                update={"slowly": update(slowly)},
            )
        )

    small.hold(work)
    h = small.start(flow(run))
    with small.batch():
        asked = [h.update_async("slowly", 1), h.update_async("slowly", 2)]
        h.signal("note", 3)
        asked.append(h.update_async("slowly", 4))
        h.signal("stop")
    for number in (1, 2, 4):
        small.complete(work, number)
    assert h.result() == [1, 2, 3, 4]
    assert [one.result() for one in asked] == [1, 2, 4]


def test_signals_that_waited_for_their_phase_are_taken_in_later_activations_in_order(small: CheckedEnvironment) -> None:
    async def run(self: Any, args: Any) -> Any:
        await api.wait_for_signal("go")
        return Ok(
            await api.phase(
                [],
                signal={"note": lambda n, s: NoReply([*s, n]), "stop": lambda _, s: Stop(s)},
                update={"add": update(lambda n, s: Reply(len(s), [*s, n]))},
            )
        )

    h = small.start(flow(run))
    for number in range(3):
        h.signal("note", number)
    with small.batch():
        h.signal("go")
        added = h.update_async("add", 3)
        h.signal("stop")
    assert (h.result(), added.result()) == ([0, 1, 2, 3], 3)
    taken = [event.attributes.get("dispatched") for event in h.history() if event.kind == "ActivationStarted"]
    assert taken[4:] == [1, 1, None, None, None]


def sent_before(env: CheckedEnvironment, cls: Any, *signals: tuple[str, Any]) -> Any:
    """A run of ``cls`` that waits for ``go``, with these signals in its mailbox; then ``go`` comes."""
    h = env.start(cls)
    for name, body in signals:
        h.signal(name, body)
    h.signal("go")
    return h


def taken(handle: Any) -> list[int]:
    """What was taken in each activation that had to stop."""
    counts = (event.attributes.get("dispatched") for event in handle.history() if event.kind == "ActivationStarted")
    return [count for count in counts if count is not None]


def test_signals_that_waits_find_are_taken_in_later_activations_in_order(small: CheckedEnvironment) -> None:
    async def run(self: Any, args: Any) -> Any:
        await api.wait_for_signal("go")
        return Ok([await api.wait_for_signal("tick") for _ in range(4)])

    h = sent_before(small, flow(run), *(("tick", number) for number in range(4)))
    assert h.result() == [0, 1, 2, 3]
    assert taken(h) == [1, 1, 1]


def test_units_that_wait_for_what_is_there_get_it_in_the_order_of_their_waits(small: CheckedEnvironment) -> None:
    async def run(self: Any, args: Any) -> Any:
        await api.wait_for_signal("go")

        async def some() -> list[Any]:
            return [await api.wait_for_signal("tick"), await api.wait_for_signal("tick")]

        return Ok(await api.parallel([some, some, partial(api.wait_for_signal, "tick")]))

    h = sent_before(small, flow(run), *(("tick", number) for number in range(4)))
    h.signal("tick", 4)
    assert h.result() == [[0, 1], [2, 3], 4]  # as without a budget
    assert taken(h) == [1, 1, 1]


def test_a_race_is_decided_when_nobody_is_kept_from_a_signal(small: CheckedEnvironment) -> None:
    """Who has taken one of two has not lost it by the budget, and who ends first by it has not won."""

    async def run(self: Any, args: Any) -> Any:
        await api.wait_for_signal("go")

        async def both() -> list[Any]:
            return [await api.wait_for_signal("a"), await api.wait_for_signal("b")]

        async def at_once() -> None:
            pass

        async def other() -> list[Any]:
            return [await api.wait_for_signal("a"), await api.wait_for_signal("b")]

        first = await api.race(both, at_once)
        second = await api.race(at_once, other)
        return Ok([list(first), list(second), await other()])

    h = sent_before(small, flow(run), ("a", 1), ("b", 2), ("a", 3), ("b", 4))
    assert h.result() == [[0, [1, 2]], [0, None], [3, 4]]
    assert taken(h)


def test_a_phase_behind_waits_takes_its_messages_when_they_are_done(small: CheckedEnvironment) -> None:
    async def run(self: Any, args: Any) -> Any:
        await api.wait_for_signal("go")
        ticks = [await api.wait_for_signal("tick") for _ in range(3)]
        return Ok(await api.phase(ticks, update={"end": update(lambda n, s: Stop([*s, n], len(s)))}))

    h = small.start(flow(run))
    for number in range(3):
        h.signal("tick", number)
    with small.batch():
        h.signal("go")
        ended = h.update_async("end", 3)
    assert (h.result(), ended.result()) == ([0, 1, 2, 3], 3)


def test_what_ends_a_run_leaves_the_others_to_nobody(small: CheckedEnvironment) -> None:
    h = small.start(tally())
    with small.batch():
        h.signal("stop")
        h.signal("note", 1)
        late = h.update_async("add", 2)
    assert h.result() == []
    with pytest.raises(errors.WorkflowClosed):
        late.result()


def test_a_result_is_an_activation_before_the_messages(small: CheckedEnvironment) -> None:
    async def run(self: Any, args: Any) -> Any:
        await work()
        return Ok([await api.wait_for_signal("a"), await api.wait_for_signal("b")])

    small.hold(work)
    h = small.start(flow(run))
    with small.batch():
        h.signal("a", 1)
        h.signal("b", 2)
        small.complete(work)
    assert h.result() == [1, 2]


def test_refused_updates_count_as_progress(small: CheckedEnvironment) -> None:
    async def run(self: Any, args: Any) -> Any:
        return Ok(await api.wait_for_signal("go"))

    h = small.start(flow(run))
    with small.batch():
        refused = [h.update_async("nothing", n) for n in range(5)]
        h.signal("go", 7)
    assert h.result() == 7
    for one in refused:
        with pytest.raises(errors.UpdateRejected):
            one.result()


def test_a_run_that_failed_is_tried_with_one_message_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes before the message that fails the activation is not held up by it."""
    monkeypatch.setattr(policy, "TURN_SECONDS", 60.0)  # all six fit, however slow the machine is
    monkeypatch.setattr(policy, "RUN_SECONDS", 60.0)
    env = CheckedEnvironment()
    env.engine._budgeted = True

    def handler(n: int, seen: list[int]) -> NoReply:
        if n == 3:
            raise MemoryError("three")
        return NoReply([*seen, n])

    async def run(self: Any, args: Any) -> Any:
        return Ok(await api.phase([], signal={"n": handler}))

    h = env.start(flow(run))
    with env.batch():
        for n in range(6):
            h.signal("n", n)
    assert h.blocked is not None
    assert activations(h) == []
    env.advance(10)
    assert activations(h) == [["n"], ["n"], ["n"]]
    assert h.blocked is not None
