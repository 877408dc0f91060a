"""Statements that PostgreSQL gets together: what each answers, what a failure leaves, what breaks the connection."""

# ruff: noqa: PT012 - what is raised comes at the end of a block
from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from django.db import (
    DatabaseError,
    IntegrityError,
    InterfaceError,
    NotSupportedError,
    OperationalError,
    connection,
    connections,
    transaction,
)
from django.test.utils import CaptureQueriesContext
from packaging.version import Version
from psycopg.pq import ConnStatus
from psycopg.waiting import Ready

from temporalex_django import Ok, Workflow, activity
from temporalex_django.core.payloads.codec import JsonCodec
from temporalex_django.db.dialects import libpq
from temporalex_django.db.dialects.base import get_dialect
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.contracts.dialect import Dialect
from temporalex_django.workers.loop import run_until_idle
from tests.support.wires import use_wire

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]
#: Sent so often a statement is prepared.
OFTEN = 8


#: What libpq does for us alone: prepared statements that we keep ourselves, one wait less, the server's last words.
libpq_alone = pytest.mark.parametrize("sql", ["ahead", "at the end"], indirect=True)


@pytest.fixture(params=["ahead", "at the end", "plain"])
def sql(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dialect]:
    """With wrappers of others all are sent at the end; plain psycopg sends them when it likes."""
    use_wire("plain" if request.param == "plain" else "libpq", monkeypatch)
    dialect = get_dialect("default")
    dialect.execute("create table if not exists beads (n int4 primary key, colour text)")
    with connection.execute_wrapper(passing) if request.param == "at the end" else nullcontext():
        yield dialect
    connection.close()
    get_dialect("default").execute("drop table beads")


def passing(execute: Any, statement: str, params: Any, many: bool, context: Any) -> Any:
    return execute(statement, params, many, context)


def numbers(sql: Dialect) -> list[int]:
    return [n for (n,) in sql.select("select n from beads order by n", [], ("int4",))]


def thread(sql: Dialect, *numbers: int) -> None:
    for number in numbers:
        sql.execute("insert into beads values (%s::int4, %s::text)", [number, "red"])


def threaded(sql: Dialect) -> list[int]:
    return [n for (n,) in sql.select("select n from beads order by n", [], ("int4",))]


def prepared() -> set[str]:
    """Statements that this session has prepared by now."""
    with connection.cursor() as cursor:
        cursor.execute("select statement from pg_prepared_statements where name like '\\_tx%'")
        return {statement for (statement,) in cursor.fetchall()}


@contextmanager
def other_session() -> Iterator[psycopg.Connection[Any]]:
    parameters = connections["default"].get_connection_params()
    with psycopg.connect(
        **{k: v for k, v in parameters.items() if k not in {"pool", "cursor_factory"}}, autocommit=True
    ) as other:
        yield other


def test_each_gets_its_own_answer(sql: Dialect) -> None:
    with sql.pipeline():
        first = sql.submit("select %s::int4 + 1, '100%%'", [1], ("int4", "text"))
        thread(sql, 1, 2)
        rows = sql.submit("select n, colour, null from beads order by n", [], ("int4", "text", "text"))
        none = sql.submit("select n from beads where n > %s::int4", [5], ("int4",))

    assert first() == [(2, "100%")]
    assert rows() == [(1, "red", None), (2, "red", None)]
    assert none() == []


def test_an_answer_can_be_had_inside_and_a_block_be_in_another(sql: Dialect) -> None:
    with sql.pipeline():
        thread(sql, 1)
        assert threaded(sql) == [1]
        with sql.pipeline():
            thread(sql, 2)
            inner = sql.submit("select max(n) from beads", [], ("int4",))
        assert inner() == [(2,)]
        thread(sql, 3)

    assert threaded(sql) == [1, 2, 3]


def test_a_block_that_fails_takes_nothing_with_it_that_was_asked_around_it(sql: Dialect) -> None:
    with transaction.atomic(), sql.pipeline():
        thread(sql, 1)
        with suppress(ZeroDivisionError), sql.pipeline():
            thread(sql, 2)
            _ = 1 / 0
        thread(sql, 3)

    assert {1, 3} <= {*threaded(sql)}


@pytest.mark.parametrize("often", [1, OFTEN], ids=["new", "prepared"])
def test_nothing_behind_one_that_fails_is_done(sql: Dialect, often: int) -> None:
    for number in range(often):
        with sql.pipeline():
            thread(sql, number)
    answers: list[Any] = []
    with pytest.raises(IntegrityError, match="beads_pkey"), sql.pipeline():
        thread(sql, 100, 0, 101)
        answers.append(sql.submit("select 1", [], ("int4",)))  # plain psycopg may know of the failure by then

    assert threaded(sql) == list(range(often)), "together they are one transaction where none is open"
    for answer in answers:
        with pytest.raises(DatabaseError):
            answer()


def test_in_a_transaction_a_savepoint_takes_back_what_failed(sql: Dialect) -> None:
    with transaction.atomic():
        thread(sql, 1)
        with pytest.raises(IntegrityError), transaction.atomic(), sql.pipeline():
            thread(sql, 2, 1, 3)
        with sql.pipeline():
            thread(sql, 4)

    assert threaded(sql) == [1, 4]


def test_an_exception_inside_is_the_one_that_is_raised_and_leaves_the_connection_good(sql: Dialect) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic(), sql.pipeline():
        thread(sql, 1, 1)
        _ = 1 / 0

    with sql.pipeline():
        thread(sql, 2)
    assert threaded(sql) == [2]


def test_wrappers_that_ask_on_the_same_connection_may_be_used_inside(sql: Dialect) -> None:
    planned: list[str] = []

    def explain(execute: Any, statement: str, params: Any, many: bool, context: Any) -> Any:
        with psycopg.Cursor(context["connection"].connection) as cursor:
            planned.append(cursor.execute(f"explain {statement}", params).fetchall()[0][0])
        return execute(statement, params, many, context)

    with transaction.atomic(), connection.execute_wrapper(explain), sql.pipeline():
        thread(sql, 1, 2)

    assert ["Insert on beads" in plan for plan in planned] == [True, True]
    assert threaded(sql) == [1, 2]


def test_it_begins_the_transaction_as_the_connection_is_set(sql: Dialect) -> None:
    connection.ensure_connection()
    connection.connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with transaction.atomic():
        with sql.pipeline():
            level = sql.submit("select current_setting('transaction_isolation')", [], ("text",))
        assert connection.connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS

    assert level() == [("repeatable read",)]
    assert connection.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


@libpq_alone
def test_what_comes_often_is_prepared_once(sql: Dialect) -> None:
    for number in range(OFTEN):
        with sql.pipeline():
            thread(sql, number)

    assert [statement for statement in prepared() if "beads" in statement] == [
        "insert into beads values ($1::int4, $2::text)"
    ]
    assert threaded(sql) == list(range(OFTEN))


def test_behind_a_pooler_nothing_is_prepared(sql: Dialect, settings: Any) -> None:
    settings.TEMPORALEX = {**getattr(settings, "TEMPORALEX", {}), "POOLED": True}
    connection.close()
    for number in range(OFTEN):
        with sql.pipeline():
            thread(sql, number)

    assert prepared() == set()


@libpq_alone
def test_where_psycopg_prepares_too_ours_are_not(sql: Dialect) -> None:
    """It deallocates all of the session after a rollback, and would take them away from under us."""
    connection.close()
    connection.ensure_connection()
    connection.connection.prepare_threshold = 1
    for number in range(OFTEN):
        with sql.pipeline():
            thread(sql, number)

    assert prepared() == set()


@libpq_alone
def test_a_connection_does_not_keep_all_that_it_ever_prepared(sql: Dialect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("temporalex_django.db.dialects.libpq._MOST_PREPARED", 3)
    for number in range(5):
        for _ in range(OFTEN):
            with sql.pipeline():
                answer = sql.submit(f"select {number} + %s::int4", [1], ("int4",))
            assert answer() == [(number + 1,)]
    with sql.pipeline():
        sql.submit("select 1", [], ("int4",))

    assert len(prepared()) == 3


@libpq_alone
def test_what_a_migration_makes_of_a_prepared_statement_costs_one_try(sql: Dialect) -> None:
    for _ in range(OFTEN):
        with sql.pipeline():
            sql.submit("select * from beads", [], ())
    with other_session() as other:
        other.execute("alter table beads add column size int4")
    with pytest.raises(NotSupportedError, match="cached plan"), sql.pipeline():
        sql.submit("select * from beads", [], ())

    with sql.pipeline():
        thread(sql, 1)
        rows = sql.submit("select * from beads", [], ())
    assert rows() == [(1, "red", None)]


@libpq_alone
def test_statements_that_somebody_deallocated_cost_one_try(sql: Dialect) -> None:
    for number in range(OFTEN):
        with sql.pipeline():
            thread(sql, number)
    with connection.cursor() as cursor:
        cursor.execute("deallocate all")
    with pytest.raises(DatabaseError, match="does not exist"), sql.pipeline():
        thread(sql, 100)

    with sql.pipeline():
        thread(sql, 101)
    assert threaded(sql)[-1] == 101


@libpq_alone
def test_a_session_that_is_ended_says_why_and_the_connection_is_closed(sql: Dialect) -> None:
    raw = connection.connection
    with pytest.raises(OperationalError, match="terminating connection"), transaction.atomic(), sql.pipeline():
        thread(sql, 1)
        sql.submit("select pg_terminate_backend(pg_backend_pid())", [], ("bool",))

    assert raw.closed
    connection.close()
    assert threaded(sql) == []


def test_on_a_connection_that_is_closed_already_nothing_is_sent(sql: Dialect) -> None:
    connection.ensure_connection()
    connection.connection.close()
    with pytest.raises((OperationalError, InterfaceError), match="closed"), sql.pipeline():
        thread(sql, 1)

    connection.close()
    assert threaded(sql) == []


def test_whoever_is_interrupted_while_he_waits_has_no_connection_left(
    sql: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise SystemExit(3)

    raw = connection.connection
    with pytest.raises(SystemExit), transaction.atomic():
        thread(sql, 1)
        with sql.pipeline():
            thread(sql, 2)
            monkeypatch.setattr(raw, "wait", interrupted)

    assert raw.closed
    connection.close()
    assert threaded(sql) == []


def test_what_cannot_be_sent_leaves_nothing_half_sent(sql: Dialect) -> None:
    with pytest.raises(DatabaseError), transaction.atomic(), sql.pipeline():
        thread(sql, 1)
        sql.submit("select %s::int4", [object()], ("int4",))

    with sql.pipeline():
        thread(sql, 2)
    assert threaded(sql) == [2]


def test_djangos_query_log_has_them(sql: Dialect) -> None:
    with CaptureQueriesContext(connection) as queries, sql.pipeline():
        thread(sql, 7)

    assert ["insert into beads" in one["sql"] for one in queries] == [True]


def test_execute_wrappers_see_them(sql: Dialect) -> None:
    seen: list[str] = []

    def note(execute: Any, statement: str, params: Any, many: bool, context: Any) -> Any:
        seen.append(statement)
        return execute(statement, params, many, context)

    with connection.execute_wrapper(note), sql.pipeline():
        thread(sql, 1)

    assert ["insert into beads" in one for one in seen] == [True]


class Asking(JsonCodec):
    """Looks for its key in the database, each time."""

    def encode(self, value: Any) -> bytes:
        with connection.cursor() as cursor:
            cursor.execute("select 1")
        return super().encode(value)


@activity()
def nothing() -> None:
    """Nothing."""


class Pair(Workflow):
    """Two activities in a row."""

    async def run(self, args: None) -> Ok[None]:
        """Do nothing twice."""
        await nothing()
        await nothing()
        return Ok(None)


def test_a_codec_may_ask_the_database(settings: Any) -> None:
    settings.TEMPORALEX = {**getattr(settings, "TEMPORALEX", {}), "PAYLOAD_CODEC": f"{__name__}.Asking"}
    handle = Pair.start()
    run_until_idle()

    assert handle.status == "completed"


def test_where_the_caller_commits_himself_a_turn_does_not(sql: Dialect) -> None:
    transaction.set_autocommit(False)
    try:
        storage = DjangoStorage()
        with storage.transaction():
            thread(sql, 1)
            with storage.final_pipeline():
                thread(sql, 2)
        transaction.rollback()
    finally:
        transaction.set_autocommit(True)

    assert threaded(sql) == []


def test_an_interrupt_while_it_waits_stays_one(sql: Dialect) -> None:
    raw = connection.connection
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt), sql.pipeline():
            sql.submit("select pg_sleep(20)", [], ())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    assert raw.closed
    connection.close()
    assert threaded(sql) == []


def test_an_answer_that_cannot_be_read_ends_the_wait() -> None:
    """By libpq, which then gives nothing, for ever."""
    protocol = SimpleNamespace(
        flush=int,
        consume_input=int,
        notifies=lambda: None,
        is_busy=bool,
        get_result=lambda: None,
        status=ConnStatus.BAD,
    )
    answers = libpq._receive_results(protocol, [], [], 1)
    next(answers)

    with pytest.raises(psycopg.OperationalError, match="lost"):
        answers.send(Ready.R)


@pytest.mark.skipif(
    Version(psycopg.__version__) < Version("3.2.4"), reason="before, psycopg gives it to nobody who listens later"
)
def test_a_notification_that_comes_with_an_answer_is_there_for_who_listens(sql: Dialect) -> None:
    with connection.cursor() as cursor:
        cursor.execute("listen beads")
    with sql.pipeline():
        sql.submit("select pg_notify('beads', 'blue')", [], ("text",))

    assert [notice.payload for notice in connection.connection.notifies(timeout=0)] == ["blue"]


def test_many_large_answers_and_questions_fit_through(sql: Dialect) -> None:
    large = "x" * 3_000_000
    with sql.pipeline():
        answers = [sql.submit("select %s::text || %s::text", [large, str(n)], ("text",)) for n in range(20)]

    assert [len(answer()[0][0]) for answer in answers] == [len(large) + len(str(n)) for n in range(20)]


def test_what_goes_behind_is_a_transaction_of_its_own(sql: Dialect) -> None:
    sql.send_with_next("insert into beads select 2, pg_current_xact_id()::text")
    sql.execute("insert into beads select 1, pg_current_xact_id()::text")
    first, second = (colour for (colour,) in sql.select("select colour from beads order by n", [], ("text",)))
    assert first != second


@libpq_alone
def test_what_goes_behind_goes_once_and_costs_no_wait(sql: Dialect, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[object] = []
    wait = psycopg.Connection.wait
    monkeypatch.setattr(psycopg.Connection, "wait", lambda *args: waits.append(args) or wait(*args))
    sql.send_with_next("insert into beads values (2, 'red')")
    thread(sql, 1)
    assert len(waits) == 1
    assert numbers(sql) == numbers(sql) == [1, 2]


def test_what_becomes_of_it_behind_is_nobodys_business(sql: Dialect) -> None:
    for _ in range(OFTEN):  # it fails before it is prepared and behind that
        sql.send_with_next("insert into beads values (%s::int4 / 0, 'red')", [1])
        assert sql.select("select 1", [], ("int4",)) == [(1,)]
    thread(sql, 3)
    assert numbers(sql) == [3]


def test_what_goes_behind_one_that_fails_is_done(sql: Dialect) -> None:
    thread(sql, 1)
    sql.send_with_next("insert into beads values (2, 'red')")
    with pytest.raises(IntegrityError):
        thread(sql, 1)
    assert numbers(sql) == [1, 2]


def test_in_a_transaction_nothing_goes_behind_before_it_is_over(sql: Dialect) -> None:
    with suppress(ZeroDivisionError), transaction.atomic():
        sql.send_with_next("insert into beads values (2, 'red')")
        thread(sql, 1)
        with transaction.atomic():
            assert numbers(sql) == [1]
        raise ZeroDivisionError
    assert numbers(sql) == []  # sent with this one, behind it
    assert numbers(sql) == [2]


def test_what_goes_behind_can_be_taken_back_until_it_is_sent(sql: Dialect) -> None:
    take_back = sql.send_with_next("insert into beads values (2, 'red')")
    assert take_back()
    too_late = sql.send_with_next("insert into beads values (3, 'red')")
    thread(sql, 1)
    assert not take_back()
    assert not too_late()
    assert numbers(sql) == [1, 3]


def test_behind_statements_together_it_comes_last(sql: Dialect) -> None:
    with sql.pipeline():
        sql.send_with_next("insert into beads select 9, string_agg(n::text, ',' order by n) from beads")
        thread(sql, 1)
        thread(sql, 2)
    assert sql.select("select colour from beads where n = 9", [], ("text",)) == [("1,2",)]


def test_what_the_end_of_a_statement_finds_wrong_is_raised(sql: Dialect) -> None:
    sql.execute("alter table beads add unique (colour) deferrable initially deferred")
    with pytest.raises(IntegrityError):
        sql.execute("insert into beads values (1, 'red'), (2, 'red')")
    assert numbers(sql) == []
