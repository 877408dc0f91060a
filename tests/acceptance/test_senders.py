"""``by=``: who sent a message travels with it, stands in the history and is there for ``api.sender()``."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from temporalex_django import Async, ContinueAsNew, NoReply, Ok, Reply, Stop, Workflow, api, errors, update
from tests.support.people import Somebody

ANN = Somebody("ann")


def who() -> str | None:
    sender = api.sender()
    return None if sender is None else f"{sender.key}/{sender.name}"


class Desk(Workflow):
    """Notes who sent what: a signal before the phase, then updates and signals."""

    async def run(self, args: Any) -> Ok:
        seen = [who()]
        await api.wait_for_signal("open")
        seen.append(who())
        seen = await api.phase(
            seen,
            update={"say": update(say, validator=judge), "slow": slow, "spread": spread},
            signal={"note": lambda _, state: NoReply([*state, who()]), "close": lambda _, state: Stop(state)},
        )
        return Ok([*seen, who()])


def judge(args: Any, state: Any) -> None:
    if args == "judged":
        raise errors.UpdateRejected(f"asked by {who()}")


def say(args: Any, state: Any) -> Reply:
    return Reply(who(), [*state, who()])


def slow(args: Any, state: Any) -> Async:
    async def later() -> Any:
        await api.sleep(60)
        return who()

    return Async(later, state)


async def spread(args: Any, state: Any) -> Reply:
    async def branch() -> Any:
        return who()

    return Reply(await api.parallel([branch, branch]), state)


def test_handlers_know_who_sent_the_message(env: Any) -> None:
    h = env.start(Desk, id="desk")
    h.signal("open", by=ANN)
    assert h.update("say", by=ANN) == "ann/ann"
    assert h.update("say") is None
    assert h.update("spread", by=ANN) == ["ann/ann", "ann/ann"]
    with pytest.raises(errors.UpdateRejected, match="asked by ann/ann"):
        h.update("say", "judged", by=ANN)
    behind = h.update_async("slow", by=ANN)
    h.signal("note", by=Somebody("bob"))
    env.advance(timedelta(minutes=1))
    assert behind.result() == "ann/ann"
    h.signal("close")

    assert h.result() == [None, "ann/ann", "ann/ann", None, "bob/bob", "ann/ann"]


def test_the_history_says_who_and_of_code_nothing(env: Any) -> None:
    h = env.start(Desk, id="desk")
    for by in (ANN, None):
        h.signal("open", {"a": 1}, by=by)
        h.update("say", by=by)

    found = [e.attributes for e in h.history() if e.kind in ("SignalReceived", "UpdateAccepted")]
    assert [attributes.get("sender") for attributes in found] == [{"key": "ann", "name": "ann"}] * 2 + [None] * 2
    assert [("sender" in attributes) for attributes in found] == [True, True, False, False]


class Relay(Workflow):
    async def run(self, args: Any) -> Any:
        if args is None:
            await api.sleep(1)
            return ContinueAsNew(1)
        await api.wait_for_signal("go")
        return Ok(who())


def test_a_signal_that_goes_on_to_the_next_run_keeps_its_sender(env: Any) -> None:
    h = env.start(Relay, id="relay")
    h.signal("go", by=ANN)
    env.advance(1)

    assert h.result() == "ann/ann"


def test_signal_with_start_carries_the_sender(env: Any) -> None:
    h = env.signal_with_start(Relay, "go", None, 1, id="relay", by=Somebody("ann", "temporalex_django.start_instance"))

    assert h.result() == "ann/ann"


class Elsewhere(Workflow):
    name = "test.SendersElsewhere"

    async def run(self, args: Any) -> Ok:
        await api.wait_condition(lambda: api.sender() is None)
        return Ok(None)


def test_a_predicate_is_about_no_message(env: Any) -> None:
    with pytest.raises(errors.WorkflowFailed, match=r"api\.sender is not allowed in a predicate"):
        env.start(Elsewhere, id="x").result()


@pytest.mark.parametrize("by", ["boss", 7, Somebody])
def test_a_user_is_wanted_not_a_name(env: Any, by: Any) -> None:
    h = env.start(Desk, id="desk")
    calls = (
        lambda: h.signal("open", by=by),
        lambda: h.update("say", by=by),
        lambda: h.query("x", by=by),
        lambda: h.cancel(by=by),
        lambda: h.terminate(by=by),
        lambda: h.describe(by=by),
        lambda: env.start(Desk, by=by),
        lambda: env.signal_with_start(Desk, "open", id="desk", by=by),
    )

    for call in calls:
        with pytest.raises(errors.ActionNotPermitted, match="is not a user: pass a user"):
            call()
    assert len(h.history()) == 2


def test_what_is_no_message_takes_the_permission_of_the_operation(env: Any) -> None:
    h = env.start(Desk, id="desk")
    operations = {
        "view": (
            lambda by: h.describe(by=by),
            lambda by: h.history(by=by),
            lambda by: h.result(by=by),
            lambda by: h.instance(by=by),
        ),
        "query": (lambda by: h.query("x", by=by),),
        "start": (lambda by: env.start(Desk, by=by),),
        "cancel": (lambda by: h.cancel(by=by),),
        "terminate": (lambda by: h.terminate(by=by),),
    }
    every = {f"temporalex_django.{name}_instance" for name in operations}

    for name, calls in operations.items():
        wanted = f"temporalex_django.{name}_instance"
        for call in calls:
            with pytest.raises(errors.ActionNotPermitted, match=wanted):
                call(Somebody("eve", *(every - {wanted})))
            with pytest.raises(errors.ActionNotPermitted, match=wanted):
                call(Somebody("gone", wanted, is_active=False))
    assert h.status == "waiting"
    h.cancel("enough", by=Somebody("ann", "temporalex_django.cancel_instance"))
    assert [e.attributes for e in h.history() if e.kind == "CancelRequested"] == [{"reason": "enough"}]
