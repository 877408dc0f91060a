"""A COMMIT that the server did and whose answer nobody hears: the connection broke in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import OperationalError, connection, connections, transaction

from temporalex_django import errors
from temporalex_django.backends.tables import inline_turn
from temporalex_django.models import Message
from tests.support.client_flows import Basket, drain
from tests.support.proxy import Proxy, proxied, through

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]

_MESSAGE = "insert into temporalex_message"


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with proxied(connection.settings_dict) as one, through(one, connection):
        yield one


@pytest.mark.parametrize("mode", ["auto", "worker"])
def test_an_update_whose_commit_is_not_answered_can_be_asked_for_by_its_id(proxy: Proxy, mode: str) -> None:
    handle = Basket.start(id="b-1")
    drain()
    proxy.lose_the_commit_of(_MESSAGE)

    with pytest.raises(errors.UpdateTimeout, match="Send it again with this id") as caught:
        handle.update("add", 5, mode=mode)

    assert proxy.lost == 1
    assert (caught.value.code, caught.value.accepted) == ("unknown", False)
    drain()
    assert handle.update("add", 5, id=caught.value.update_id) == 1  # the length that it had then
    assert handle.query("items") == [5]


def test_a_connection_that_breaks_while_an_update_is_waited_for_gives_its_id(proxy: Proxy, monkeypatch: Any) -> None:
    handle = Basket.start(id="b-1")
    drain()

    monkeypatch.setattr("temporalex_django.backends.tables.requests.notify_on_commit", lambda **_: proxy.cut())
    with pytest.raises(errors.UpdateTimeout) as caught:
        handle.update("add", 5, mode="worker")
    monkeypatch.undo()

    assert caught.value.code == "unknown"
    drain()
    assert handle.update("add", 5, id=caught.value.update_id) == 1


def test_so_does_an_async_one(proxy: Proxy) -> None:
    async def lost() -> Any:
        handle = await sync_to_async(Basket.start)(id="b-1")
        await sync_to_async(drain)()
        proxy.lose_the_commit_of(_MESSAGE)
        with pytest.raises(errors.UpdateTimeout) as caught:
            await handle.aupdate("add", 5)
        assert caught.value.code == "unknown"
        await sync_to_async(drain)()
        first = await handle.aupdate("add", 5, id=caught.value.update_id)
        await sync_to_async(connections.close_all)()
        return first

    assert asyncio.run(lost()) == 1


def test_inside_the_callers_transaction_it_is_his_error(proxy: Proxy, monkeypatch: Any) -> None:
    handle = Basket.start(id="b-1")
    drain()
    advance = inline_turn.advance

    def cut_off(*args: Any, **kwargs: Any) -> Any:
        proxy.cut()
        return advance(*args, **kwargs)

    monkeypatch.setattr(inline_turn, "advance", cut_off)
    with pytest.raises(OperationalError), transaction.atomic():
        handle.update("add", 5)
    monkeypatch.undo()

    assert handle.update("add", 6) == 1  # what he had begun is gone with his transaction


def test_a_database_that_is_away_from_the_start_is_no_such_case(proxy: Proxy) -> None:
    handle = Basket.start(id="b-1")
    proxy.close()
    connection.close()

    with pytest.raises(OperationalError):
        handle.update("add", 5)


def test_a_signal_whose_commit_is_not_answered_is_taken_once(proxy: Proxy) -> None:
    handle = Basket.start(id="b-1")
    proxy.lose_the_commit_of(_MESSAGE)
    with pytest.raises(OperationalError), transaction.atomic():
        handle.signal("note", 1, id="k")
    handle.signal("note", 1, id="k")

    assert (proxy.lost, Message.objects.count()) == (1, 1)
    handle.signal("checkout")
    drain()
    assert handle.result() == [1]
