"""The other five worked examples of the example project."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from example_project.shop import activities
from example_project.shop.values import Account, Batch, Collected, Delivery, NewCustomer
from example_project.shop.workflows import BatchProcess, Counter, EventCollector, Inventory, Onboarding
from temporalex_django import errors
from temporalex_django.testing.environment import Environment

# --- onboarding: a sequence -------------------------------------------------------------------------------------------


def test_onboarding_makes_the_account_and_sends_the_welcome(env: Environment) -> None:
    """TX-205."""
    welcomed = []
    env.mock(activities.create_account, lambda user_id: Account(id=7, user_id=user_id))
    env.mock(activities.send_welcome, welcomed.append)

    handle = env.start(Onboarding, NewCustomer(user_id="ann"))

    assert handle.result() == {"account_id": 7}
    assert welcomed == [Account(id=7, user_id="ann")]
    assert handle.query("status") == {"step": "done"}
    env.replay(handle)


def test_onboarding_says_which_step_it_is_at(env: Environment) -> None:
    """TX-205."""
    env.hold(activities.create_account)
    env.hold(activities.send_welcome)

    handle = env.start(Onboarding, {"user_id": "ann"})
    assert handle.query("status") == {"step": "creating_account"}

    env.complete(activities.create_account, {"id": 7, "user_id": "ann"})
    assert handle.query("status") == {"step": "sending_welcome"}


# --- counter: an entity -----------------------------------------------------------------------------------------------


def test_counter_counts_until_it_is_done(env: Environment) -> None:
    """TX-206."""
    handle = env.start(Counter)

    for name in ("increment", "increment", "decrement", "increment"):
        handle.signal(name)
    assert handle.query("value") == 2
    handle.signal("done")

    assert handle.result() == 2
    assert handle.query("value") == 2
    env.replay(handle)


# --- batch: a fan-out -------------------------------------------------------------------------------------------------


def test_batch_works_through_all_items_at_once(env: Environment) -> None:
    """TX-208."""
    env.hold(activities.process_item)

    handle = env.start(BatchProcess, Batch(items=["1", "2", "3"]))

    assert [command.kind for command in env.commands[0]] == ["ScheduleActivity"] * 3
    for name in ("one", "two", "three"):
        env.complete(activities.process_item, name)
    assert handle.result() == {"processed": 3}
    env.replay(handle)


def test_batch_counts_what_failed_and_finishes_the_rest(env: Environment) -> None:
    """TX-208."""
    done = []

    def process(item: str) -> str:
        if item == "2":
            raise LookupError(item)
        done.append(item)
        return item

    env.mock(activities.process_item, process)

    handle = env.start(BatchProcess, Batch(items=["1", "2", "3"]))
    env.advance(timedelta(minutes=10))

    with pytest.raises(errors.WorkflowFailed) as failed:
        handle.result()
    assert failed.value.reason == {"failures": 1}
    assert done == ["1", "3"]


# --- inventory: async handlers ----------------------------------------------------------------------------------------


def test_deliveries_are_priced_side_by_side_and_none_is_lost(env: Environment) -> None:
    """TX-209."""
    env.hold(activities.current_price)
    handle = env.start(Inventory)

    first = handle.update_async("restock", Delivery(sku="bread", quantity=5))
    second = handle.update_async("restock", {"sku": "bread", "quantity": 3})
    assert first.accepted
    assert second.accepted
    env.complete(activities.current_price, "1.99")
    env.complete(activities.current_price, "2.09")

    assert first.result() == {"quantity": 5, "price": "1.99"}
    assert second.result() == {"quantity": 8, "price": "2.09"}
    handle.signal("close")
    assert handle.result() == {"bread": {"quantity": 8, "price": "2.09"}}
    env.replay(handle)


def test_delivery_without_a_price_fails_for_its_caller_alone(env: Environment) -> None:
    """TX-209."""
    env.hold(activities.current_price)
    handle = env.start(Inventory)

    lost = handle.update_async("restock", Delivery(sku="nobody-sells-this", quantity=1))
    env.fail(activities.current_price, LookupError("no price"))
    fine = handle.update_async("restock", Delivery(sku="bread", quantity=1))
    env.complete(activities.current_price, "1.99")

    with pytest.raises(errors.UpdateFailed, match="no price"):
        lost.result()
    assert fine.result() == {"quantity": 1, "price": "1.99"}
    assert handle.query("stock") == {"bread": {"quantity": 1, "price": "1.99"}}


# --- event collector: continue-as-new ---------------------------------------------------------------------------------


@pytest.fixture
def stored(env: Environment) -> list[tuple[str, int, list[Any]]]:
    calls: list[tuple[str, int, list[Any]]] = []

    def store(collector: str, collected: Collected) -> int:
        calls.append((collector, collected.generation, list(collected.events)))
        return len(collected.events)

    env.mock(activities.store_events, store)
    return calls


def test_flush_stores_the_events_and_begins_a_new_run(env: Environment, stored: list[Any]) -> None:
    """TX-210."""
    handle = env.start(EventCollector, id="collector")

    handle.signal("event", {"n": 1})
    handle.signal("event", {"n": 2})
    assert handle.query("count") == 2
    handle.signal("flush")

    assert stored == [("collector", 0, [{"n": 1}, {"n": 2}])]
    assert len(handle.run_ids) == 2
    assert handle.query("count") == 0


def test_a_day_stores_too_and_the_next_generation_counts_on(env: Environment, stored: list[Any]) -> None:
    """TX-210."""
    handle = env.start(EventCollector, id="collector")

    handle.signal("event", "first day")
    env.advance(timedelta(hours=24))
    handle.signal("event", "second day")
    env.advance(timedelta(hours=24))

    assert stored == [("collector", 0, ["first day"]), ("collector", 1, ["second day"])]
    assert len(handle.run_ids) == 3


def test_events_that_come_with_the_flush_go_to_the_next_generation(env: Environment, stored: list[Any]) -> None:
    handle = env.start(EventCollector, id="collector")

    with env.batch():
        handle.signal("event", "before")
        handle.signal("flush")
        handle.signal("event", "after")

    assert stored == [("collector", 0, ["before"])]
    assert handle.query("count") == 1
