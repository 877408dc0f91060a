"""A decision is about what people were shown, and code asks whether that still holds."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from temporalex_django import NoReply, Ok, Stop, Workflow, api, errors
from tests.support.people import person
from tests.support.runs import work

MAY = "auth.change_group"


class Cart(Workflow):
    """Asks again as long as the cart changes while it waits for somebody."""

    name = "test.CoveredCart"

    async def run(self, args: Any) -> Any:
        asked = 0
        while True:
            asked += 1
            decision = await api.approval("Pay the cart", role=MAY, shows=args)
            late = await api.phase(
                args,
                signal={"add": lambda item, state: NoReply([*state, item]), "pay": lambda _, state: Stop(state)},
            )
            if decision.covers(late):
                return Ok([asked, late])
            args = late


def test_code_asks_whether_the_decision_still_holds(env: Any) -> None:
    ann = person(env, "ann", MAY)
    run = env.start(Cart, [["pear", 3]])
    (task,) = run.human_tasks()
    assert (task.title, task.shows) == ("Pay the cart", [["pear", 3]])
    run.decide("approved", by=ann)
    run.signal("add", ["fig", 4])
    run.signal("pay")
    (task,) = [one for one in run.human_tasks() if not one.happened]
    assert task.shows == [["pear", 3], ["fig", 4]]
    run.decide("approved", by=ann)
    run.signal("pay")
    assert run.result() == [2, [["pear", 3], ["fig", 4]]]


def test_what_is_compared_is_plain_data(env: Any) -> None:
    class Compared(Workflow):
        name = "test.CoveredCompared"

        async def run(self, args: Any) -> Any:
            amount = {"amount": Decimal("1.50"), "to": "a"}
            first = await api.approval("Pay", role=MAY, shows=amount)
            second = await api.approval("Pay nothing in particular", role=MAY)
            third = await api.approval("Pay in time", role=MAY, shows=amount, due=60)
            with pytest.raises(errors.PayloadError):
                first.covers(object())
            return Ok(
                [
                    [first.covers({"to": "a", "amount": "1.50"}), first.covers({"to": "b", "amount": "1.50"})],
                    [second.shown, second.covers(None), second.covers("Pay nothing in particular")],
                    [third.outcome, third.covers(amount)],
                ]
            )

    ann = person(env, "ann", MAY)
    run = env.start(Compared)
    run.decide("approved", by=ann)
    run.decide("approved", by=ann)
    env.advance(timedelta(minutes=2))
    assert run.result() == [[True, False], ["", False, False], ["overdue", False]]


class Priced(Workflow):
    """What people are shown is the result of an activity."""

    name = "test.CoveredPriced"

    async def run(self, args: Any) -> Any:
        price = await work(args)
        decision = await api.approval("Pay it", role=MAY, shows={"price": price})
        return Ok([price, decision.covers({"price": price})])


def test_a_decision_is_not_delivered_again_for_what_nobody_was_shown(env: Any) -> None:
    """Approved, then edited: behind a reset the approval is asked for anew, since it shows something else."""
    ann = person(env, "ann", MAY)
    run = env.start(Priced, 100)
    run.decide("approved", by=ann)
    assert run.result() == [100, True]
    before = run.history()
    (decided,) = (event for event in before if event.kind == "SignalReceived")
    assert decided.attributes["question"]["shows"]

    run.reset(1)
    assert run.result() == [100, True]  # the same is shown, so that the decision holds
    run.reset(1, edited={1: [999_999]})
    (task,) = [one for one in run.human_tasks() if not one.happened]
    assert task.shows == {"price": 999_999}
    assert run.status == "waiting"
    run.decide("rejected", by=ann)
    assert run.result() == [999_999, True]
