"""The async twins, on the database of the lane."""

from __future__ import annotations

import inspect

import pytest
from asgiref.sync import async_to_sync

from temporalex_django import Workflow, WorkflowHandle, errors
from temporalex_django.models import Instance
from tests.support.client_flows import Basket, Sleepy, drain

pytestmark = pytest.mark.django_db

OPERATIONS = ("signal", "update", "query", "result", "cancel", "terminate", "describe", "history")


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_has_a_twin_of_the_same_shape(name):
    plain, twin = getattr(WorkflowHandle, name), getattr(WorkflowHandle, f"a{name}")

    assert inspect.iscoroutinefunction(twin)
    assert inspect.signature(plain).parameters == inspect.signature(twin).parameters


@pytest.mark.parametrize("name", ["start", "signal_with_start"])
def test_the_class_has_twins_too(name):
    plain, twin = getattr(Workflow, name), getattr(Workflow, f"a{name}")

    assert inspect.iscoroutinefunction(twin)
    assert inspect.signature(plain).parameters == inspect.signature(twin).parameters


def test_the_twins_do_the_same():
    async def story():
        handle = await Basket.astart(id="b-1")
        assert await handle.aupdate("add", 5, id="u-1") == 1
        assert await handle.aupdate("add", 9, id="u-1") == 1  # for code the id alone is the key
        await handle.asignal("note", 6)
        assert await handle.aquery("items") == [5]
        with pytest.raises(errors.UpdateRejected):
            await handle.aupdate("add", -1)
        with pytest.raises(errors.ResultTimeout):
            await handle.aresult(timeout=0.02)
        again = await Basket.asignal_with_start("checkout", id="b-1")
        assert (await again.adescribe()).status == "waiting"
        assert len(await again.ahistory()) > 3
        return again

    handle = async_to_sync(story)()
    drain()

    async def ending():
        assert await handle.aresult() == [5, 6]
        other = await Sleepy.astart()
        await other.acancel()
        await other.aterminate("why")
        with pytest.raises(errors.WorkflowTerminated, match="why"):
            await other.aresult()

    async_to_sync(ending)()


@pytest.mark.usefixtures("unhurried")
@pytest.mark.django_db(transaction=True)
def test_waiting_for_an_outcome_holds_no_transaction():
    async def story():
        handle = await Basket.astart(id="b-1")
        with pytest.raises(errors.UpdateTimeout) as caught:
            await handle.aupdate("slow", 4, id="u-1", timeout=0.05)
        assert caught.value.accepted
        with pytest.raises(errors.UpdateTimeout):
            await handle.aupdate("add", 4, mode="worker", timeout=0.05)

    async_to_sync(story)()
    drain()

    assert Instance.objects.get().published_state == [4]
