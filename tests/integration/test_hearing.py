"""Who waits for a result or an answer hears of it on his own connection."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager
from functools import partial
from uuid import UUID

import pytest
from django.db import connection, transaction

from temporalex_django import Ok, Workflow
from temporalex_django.actions import waiting
from temporalex_django.actions.waiting import Deadline, wait_for
from temporalex_django.db.hearing import Rest, hearing
from temporalex_django.errors import ResultTimeout, UpdateTimeout
from temporalex_django.workers.loop import run_until_idle
from tests.support.client_flows import drain

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]


class Heard(Workflow):
    async def run(self, args: object) -> Ok:
        return Ok(args)


def listened_to() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("select pg_listening_channels()")
        return [name for (name,) in cursor.fetchall()]


def test_a_result_ends_the_pause_of_who_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_FIRST", "_FIRST_HEARING", "_LONGEST", "_HEARS_FOR"):
        monkeypatch.setattr(waiting, name, 1000.0)  # no look would find it in time
    handle, looked, listens = Heard.start(7), [], threading.Event()

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
    found = wait_for(look, deadline, ear=partial(hearing, handle.chain_id, alias="default"))
    worker.join(60)

    assert found == "completed"
    assert deadline.left > 0
    assert looked[:2] == [[], ["temporalex_done"]]  # what is there already needs no ear
    assert listened_to() == []


def test_results_and_answers_are_waited_for_by_ear(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[UUID] = []

    def hears(chain: UUID, *, alias: str) -> AbstractContextManager[Rest]:
        heard.append(chain)
        return hearing(chain, alias=alias)

    for module in ("describe", "update"):
        monkeypatch.setattr(f"temporalex_django.actions.{module}.hearing", hears)
    handle = Heard.start(7)
    drain()
    assert handle.result() == 7
    assert heard == []

    other = Heard.start(8)
    with pytest.raises(ResultTimeout):
        other.result(timeout=0.001)
    with pytest.raises(UpdateTimeout):
        other.update("nothing", mode="worker", timeout=0.001)
    assert heard == [other.chain_id] * 2


def test_nothing_is_listened_to_in_a_transaction_or_behind_a_pooler(settings) -> None:
    handle = Heard.start(7)
    with transaction.atomic(), hearing(handle.chain_id, alias="default") as rest:
        assert rest is time.sleep
        assert listened_to() == []
    settings.TEMPORALEX = {"POOLED": True}
    with hearing(handle.chain_id, alias="default") as rest:
        assert rest is time.sleep
        assert listened_to() == []


def test_a_connection_that_breaks_is_left_to_whoever_uses_it_next() -> None:
    handle = Heard.start(7)
    with hearing(handle.chain_id, alias="default") as rest:
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
