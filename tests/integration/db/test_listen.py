"""Who waits for a result or an answer hears of it on his own connection."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection, transaction

from temporalex_django import Ok, Workflow
from temporalex_django.backends import host
from temporalex_django.backends.host import Deadline, wait_for
from temporalex_django.db.dialects.base import get_dialect
from temporalex_django.db.messages.notify import WaitFunction, listen
from temporalex_django.errors import ResultTimeout
from temporalex_django.workers.loop import run_until_idle
from tests.support.client_flows import drain

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]


class Heard(Workflow):
    async def run(self, args: object) -> Ok[object]:
        return Ok(args)


def listened_to() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("select pg_listening_channels()")
        return [name for (name,) in cursor.fetchall()]


def test_a_result_ends_the_pause_of_who_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_FIRST_PAUSE", "_FIRST_LISTENING_PAUSE", "_LONGEST_PAUSE", "_LISTENING_SECONDS"):
        monkeypatch.setattr(host, name, 1000.0)  # no look would find it in time
    handle, looked, listens = Heard.start(7), list[list[str]](), threading.Event()
    assert handle.chain_id is not None

    def look() -> str | None:
        looked.append(listened_to())
        if looked[-1]:
            listens.set()
        status = handle.describe().status
        return status if status == "completed" else None

    def work() -> None:
        assert listens.wait(60)
        try:
            run_until_idle()
        finally:
            connection.close()

    worker = threading.Thread(target=work)
    worker.start()
    deadline = Deadline(120)
    found = wait_for(look, deadline, listen=partial(listen, handle.chain_id, alias="default"))
    worker.join(60)

    assert found == "completed"
    assert deadline.seconds_left > 0
    assert looked[:2] == [[], ["temporalex_done"]]  # what is there already needs no ear
    assert listened_to() == []


class Listens(Exception):
    pass


def test_results_and_answers_are_waited_for_by_ear(monkeypatch: pytest.MonkeyPatch) -> None:
    def hears(chain: UUID, *, alias: str) -> AbstractContextManager[WaitFunction]:
        raise Listens(chain, alias)

    for module in ("operations.read.describe", "backends.tables.requests"):
        monkeypatch.setattr(f"temporalex_django.{module}.listen", hears)
    handle = Heard.start(7)

    with pytest.raises(Listens) as result:
        handle.result(timeout=60)
    with pytest.raises(Listens) as answer:
        handle.update("nothing", mode="worker", timeout=60)

    assert result.value.args == answer.value.args == (handle.chain_id, "default")
    drain()
    assert handle.result(timeout=60) == 7  # it is there: nobody need tell


def test_nothing_is_listened_to_in_a_transaction_or_behind_a_pooler(settings: Any) -> None:
    with transaction.atomic(), listen(uuid4(), alias="default") as rest:
        assert rest is time.sleep
        assert listened_to() == []
    settings.TEMPORALEX = {"POOLED": True}
    with listen(uuid4(), alias="default") as rest:
        assert rest is time.sleep
        assert listened_to() == []


def test_a_connection_that_breaks_is_left_to_whoever_uses_it_next() -> None:
    with listen(uuid4(), alias="default") as rest:
        other = connection.copy()
        with connection.cursor() as cursor:
            cursor.execute("select pg_backend_pid()")
            (pid,) = cursor.fetchone()
        with other.cursor() as cursor:
            cursor.execute("select pg_terminate_backend(%s, 60000)", [pid])
        other.close()
        rest(0.01)  # it was a pause all the same
    connection.close()
    assert listened_to() == []


def tell_of(chain: UUID) -> None:
    other = connection.copy()
    with other.cursor() as cursor:
        cursor.execute("select pg_notify('temporalex_done', %s)", [chain.hex])
    other.close()


def test_who_heard_in_vain_hears_again() -> None:
    handle, rested = Heard.start(7), list[float]()
    chain = handle.chain_id
    assert chain is not None

    def looks() -> str | None:
        with suppress(ResultTimeout):
            return f"{handle.result(timeout=0)}"
        return None

    with listen(chain, alias="default") as rest:
        assert looks() is None
        for _ in range(3):  # told of, and nothing there
            tell_of(chain)
            began = time.monotonic()
            rest(300.0)
            assert looks() is None
            assert listened_to() == []  # that went with the look
            rest(300.0)
            assert listened_to() == ["temporalex_done"]  # so it looks once more
            assert looks() is None
            rested.append(time.monotonic() - began)
    assert listened_to() == []
    assert max(rested) < 300.0


def test_who_hears_and_looks_no_more_listens_no_more() -> None:
    chain = uuid4()
    with listen(chain, alias="default") as rest:
        tell_of(chain)
        rest(300.0)
    assert listened_to() == []
    with listen(chain, alias="default"):  # what was to go with a look went, and takes nothing with it now
        Heard.start(7)
        assert listened_to() == ["temporalex_done"]


def test_listening_ends_though_somebody_has_deallocated_all_statements() -> None:
    for number in range(8):  # so often a statement is prepared
        chain = uuid4()
        with listen(chain, alias="default") as rest:
            tell_of(chain)
            rest(60)
            if number == 7:
                with connection.cursor() as cursor:
                    cursor.execute("deallocate all")
            get_dialect("default").execute(f"select {number}")  # the look with which it goes
        assert listened_to() == []
