"""Workers are rung for when a run is started: with its statement where that is all, else behind the commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import psycopg
import pytest
from django.db import connection, transaction

from temporalex_django import Ok, Workflow
from temporalex_django.db.dialects.base import get_dialect

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]


class Rung(Workflow):
    task_queue = "rung"
    search_attributes: ClassVar = {"colour": str}

    async def run(self, args: object) -> Ok[object]:
        return Ok(args)


@pytest.fixture
def hints() -> Iterator[Callable[[], list[str]]]:
    """The hints that workers have heard since the last call: those that are committed are there at once."""
    other: Any = connection.copy()
    with other.cursor() as cursor:
        cursor.execute("listen temporalex")

    def heard() -> list[str]:
        with other.cursor() as cursor:
            cursor.execute("select pg_notify('temporalex', 'the last one')")
        found = []
        for notice in other.connection.notifies(timeout=60):
            if notice.payload == "the last one":
                return found
            found.append(notice.payload)
        raise AssertionError("nothing was heard for a minute")

    yield heard
    other.close()


def test_a_start_alone_rings_once_and_waits_once(
    hints: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    Rung.start(1)
    assert hints() == ["rung"]
    waits: list[object] = []
    wait = psycopg.Connection.wait

    def counted(*given: Any) -> Any:
        waits.append(given)
        return wait(*given)

    with monkeypatch.context() as patch:
        patch.setattr(psycopg.Connection, "wait", counted)
        Rung.start(2)
    assert len(waits) == 1
    assert hints() == ["rung"]


def test_starts_in_a_transaction_ring_once_behind_its_commit(hints: Callable[[], list[str]]) -> None:
    with transaction.atomic():
        Rung.start(1)
        Rung.start(2)
        assert hints() == []
    assert hints() == ["rung"]


def test_who_starts_with_search_attributes_rings_too(hints: Callable[[], list[str]]) -> None:
    Rung.start(1, search_attributes={"colour": "red"})
    assert hints() == ["rung"]


def test_a_start_that_is_taken_back_rings_for_nobody(hints: Callable[[], list[str]]) -> None:
    with transaction.atomic():
        Rung.start(1)
        transaction.set_rollback(True)
    assert hints() == []


def test_behind_a_pooler_nobody_is_rung_for(hints: Callable[[], list[str]], settings: Any) -> None:
    settings.TEMPORALEX = {"POOLED": True}
    Rung.start(1)
    assert hints() == []


def test_a_start_that_is_not_even_sent_leaves_no_hint_for_the_next_statement(hints: Callable[[], list[str]]) -> None:
    def refuses(*_: Any) -> Any:
        raise RuntimeError("no query is sent")

    with connection.execute_wrapper(refuses), pytest.raises(RuntimeError, match="no query"):
        Rung.start(1)
    get_dialect("default").execute("select 1")
    assert hints() == []


def test_a_start_is_done_though_the_connection_breaks_with_its_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    breaks = "select pg_terminate_backend(pg_backend_pid()), %s::text, %s::text"
    monkeypatch.setattr("temporalex_django.db.inserts.NOTIFY", breaks)
    handle = Rung.start(1)
    connection.close()
    assert handle.describe().status == "pending"
