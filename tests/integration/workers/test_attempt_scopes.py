"""What an activity leaves behind does not reach the next one, of whatever run: in a worker of one thread."""

from __future__ import annotations

import asyncio
import decimal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any

import pytest
from asgiref.sync import SyncToAsync
from django.contrib.auth import get_user_model
from django.core.cache import caches
from django.db import connection, connections, transaction
from django.db.backends.signals import connection_created

from temporalex_django.db.attempt_scope import AttemptScope
from temporalex_django.testing import DjangoEnvironment, WorkflowEnvironment, drain
from temporalex_django.workers import loop as loop_module
from tests.app.scopes import Steps, litter, look
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)

on_postgres = pytest.mark.postgres
UNTOUCHED = ["en-us", "UTC", 28, "untouched"]
LITTER = ["de", "Asia/Tokyo", 5, "left behind"]
IN_WORKERS = ["external", "local", "atomic", "async"]
LEFT_OPEN = ["open_atomic", "write_in_open_atomic", "turn_autocommit_off", "close_in_atomic", "begin"]


@contextmanager
def working() -> Iterator[None]:
    """A worker with one thread for activities, in threads of this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop_module, "activity_threads", lambda: 1)
        loop, stop = loop_module.WorkerLoop(), threading.Event()

    def run() -> None:
        try:
            loop.run(stop)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        loop.wake.set()
        thread.join(60)
        # The thread in which async activities use the ORM is that of the process.
        SyncToAsync.single_thread_executor.submit(connections.close_all).result(30)


_numbers = iter(range(1_000_000))


def results(*steps: Sequence[str]) -> list[Any]:
    """What the steps of a new run give, each a pair of the kind of an activity and what it does."""
    handle = Steps.start([list(step) for step in steps], id=f"steps-{next(_numbers)}")
    return list(handle.result(timeout=60))


@pytest.fixture
def opened() -> Iterator[list[tuple[str, str]]]:
    """The connections that were opened, each as the name of the thread and the alias."""
    seen: list[tuple[str, str]] = []

    def note(sender: Any, connection: Any, **_: Any) -> None:
        seen.append((threading.current_thread().name, connection.alias))

    connection_created.connect(note)
    yield seen
    connection_created.disconnect(note)


# -- contexts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*IN_WORKERS, "process"])
def test_nothing_of_a_context_reaches_the_next_attempt(kind: str) -> None:
    with working():
        assert results((kind, "look"), (kind, "litter"), (kind, "look")) == [UNTOUCHED, LITTER, UNTOUCHED]
        assert results(*((other, "look") for other in IN_WORKERS)) == [UNTOUCHED] * 4


@pytest.mark.parametrize("host", [WorkflowEnvironment, DjangoEnvironment])
@pytest.mark.parametrize("kind", IN_WORKERS)
def test_nor_in_environments(host: Callable[[], Any], kind: str) -> None:
    env = host()
    handle = env.start(Steps, [[kind, "litter"], [kind, "look"]], id="steps")
    assert handle.result() == [LITTER, UNTOUCHED]
    assert look() == UNTOUCHED


@pytest.mark.parametrize("kind", IN_WORKERS)
def test_nor_in_the_thread_of_a_caller(kind: str) -> None:
    handle = Steps.start([[kind, "litter"], [kind, "look"]], id="steps")
    drain()
    assert handle.result(timeout=1) == [LITTER, UNTOUCHED]
    assert look() == UNTOUCHED


def test_an_attempt_sees_what_its_surroundings_have_set_and_cannot_change_it() -> None:
    def inside() -> None:
        litter()
        handle = Steps.start([["atomic", "look"], ["atomic", "litter"]], id="steps")
        drain()
        assert handle.result(timeout=1) == [["de", "Asia/Tokyo", 28, "left behind"], LITTER]  # decimals start anew

    with decimal.localcontext():  # a copy of a context has the same object
        copy_context().run(inside)


def test_no_attempt_opens_a_connection_that_another_has_opened(
    opened: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds, create = ["external", "local", "atomic", "async"], caches.create_connection

    def create_cache(alias: str) -> Any:
        opened.append((threading.current_thread().name, alias))
        return create(alias)

    monkeypatch.setattr(caches, "create_connection", create_cache)
    steps = [(kind, action) for kind in kinds for action in ("count_users", "use_caches")]
    with working():
        assert results(*steps) == [0, 1] * 4
        del opened[:]
        assert results(*steps * 5) == [0, 1] * 20
        others = (threading.current_thread().name, "temporalex-maintenance", "temporalex-listener")
        assert [entry for entry in opened if entry[0] not in others] == []


def test_async_attempts_that_run_together_have_caches_of_their_own() -> None:
    """Clients of caches need not be safe for threads, and an async attempt uses two."""

    async def three() -> list[Any]:
        together = asyncio.Barrier(2)

        async def one(*, waits: bool = True) -> Any:
            async with AttemptScope("one"):
                mine = caches["default"]
                if waits:
                    await together.wait()
                return mine

        pair = await asyncio.gather(one(), one())
        return [*pair, await asyncio.create_task(one(waits=False))]

    with ThreadPoolExecutor(1) as executor:  # this thread has its own already
        first, second, later = executor.submit(asyncio.run, three()).result(30)
    assert first is not second
    assert later in (first, second)


# -- transactions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", LEFT_OPEN)
@pytest.mark.parametrize("kind", ["external", "local", "async"])
def test_an_open_transaction_fails_its_attempt_and_no_other(kind: str, action: str) -> None:
    with working():
        failed, *others = results((kind, action), (kind, "count_users"), ("atomic", "count_users"))
        assert others == [0, 0]
        assert "left a transaction open on the connection 'default'" in failed, failed
        assert "transaction.atomic()" in failed
        assert f"scopes.{'in_the_loop' if kind == 'async' else kind}" in failed
    assert not get_user_model().objects.exists()


def test_its_own_error_comes_first() -> None:
    with working():
        failed, count = results(("external", "begin_and_fail"), ("external", "count_users"))
    assert (failed.partition(":")[0], count) == ("LookupError", 0)


@pytest.mark.parametrize("action", ["open_atomic", "write_in_open_atomic"])
def test_a_block_that_an_atomic_activity_leaves_open(action: str) -> None:
    with working():
        failed, *others = results(("atomic", action), ("atomic", "count_users"), ("external", "count_users"))
        assert "left a transaction open" in failed
        assert others == [0, 0]
        assert results(("atomic", "count_users")) == [0]
    assert not get_user_model().objects.exists()


@pytest.mark.parametrize("host", ["worker", "drain", "environment"])
@pytest.mark.parametrize("action", ["catch_database_error", "set_rollback"])
def test_an_atomic_activity_whose_writes_are_lost_has_failed(host: str, action: str) -> None:
    """Django rolls them back without an error when the block ends."""
    steps = [["atomic", action], ["atomic", "count_users"], ["atomic", "catch_database_error_in_block"]]
    if host == "worker":
        with working():
            failed, count, undone = results(*steps)
    elif host == "drain":
        handle = Steps.start(steps, id="steps")
        drain()
        failed, count, undone = handle.result(timeout=1)
    else:
        failed, count, undone = DjangoEnvironment().start(Steps, steps, id="steps").result()

    assert "TransactionManagementError" in failed
    assert "scopes.atomic caught an error of the connection 'default'" in failed
    assert (count, undone) == (0, "undone")
    assert [user.username for user in get_user_model().objects.all()] == ["two"]


@pytest.mark.skipif(connection.vendor != "sqlite", reason="PRAGMA is a statement of SQLite")
@pytest.mark.parametrize("kind", ["external", "local", "async"])
@pytest.mark.parametrize("statement", ["pragma query_only(1)", "pragma query_only = 1"])
def test_a_pragma_of_an_activity_ends_with_it(kind: str, statement: str) -> None:
    with working():
        assert results((kind, statement), (kind, "catch_database_error_in_block")) == [None, "undone"]


@pytest.mark.parametrize("statement", ["commit", "rollback", "begin", "/* why */ Commit", "select 1 ;; end"])
def test_an_atomic_activity_cannot_end_the_transaction_of_its_run(statement: str) -> None:
    with working():
        failed, count = results(("atomic", statement), ("atomic", "count_users"))
    assert "is atomic and cannot send" in failed
    assert count == 0


@pytest.mark.parametrize("action", ["open_atomic", "write_in_open_atomic"])
@pytest.mark.parametrize("kind", ["external", "atomic", "async"])
def test_an_environment_and_its_transaction_survive_it(kind: str, action: str) -> None:
    with transaction.atomic():
        env = DjangoEnvironment()
        handle = env.start(Steps, [[kind, action], [kind, "count_users"]], id="steps")
        failed, count = handle.result()
        assert "left a transaction open" in failed
        assert (count, get_user_model().objects.count()) == (0, 0)


def test_a_transaction_that_drain_finds_open_is_not_its_own_fault() -> None:
    with transaction.atomic():
        handle = Steps.start([["external", "count_users"], ["external", "open_atomic"]], id="steps")
        drain()
        count, failed = handle.result(timeout=1)
        assert (count, "left a transaction open" in failed) == (0, True)
    assert not connection.in_atomic_block


# -- sessions of PostgreSQL --------------------------------------------------------------------------------------------

# Locks of this database alone: other processes run these tests at the same time.
_LOCKS = (
    "select count(*) from pg_locks where locktype = 'advisory' and objid = 77"
    " and database = (select oid from pg_database where datname = current_database())"
)
SESSION = [
    ("set work_mem = '5MB'", "show work_mem"),
    ("SET SESSION work_mem TO '5MB'", "show work_mem"),
    ("/* tenant */ set work_mem = '5MB'", "show work_mem"),
    ("select 1; set work_mem = '5MB'", "show work_mem"),
    ("select set_config('work_mem', '5MB', false)", "show work_mem"),
    ("set search_path = information_schema, public", "show search_path"),
    ("set role pg_read_all_data", "select current_user"),
    ("set time zone 'Asia/Tokyo'", "show timezone"),
    ("select pg_advisory_lock(77)", _LOCKS),
    ("select pg_try_advisory_lock(77)", _LOCKS),
    ("listen somewhere", "select count(*) from pg_listening_channels() c where c = 'somewhere'"),
    ("create temp table left_behind (n int)", "select count(*) from pg_class where relname = 'left_behind'"),
    ("create temporary view left_behind as select 1", "select count(*) from pg_class where relname = 'left_behind'"),
    ("create table pg_temp.left_behind (n int)", "select count(*) from pg_class where relname = 'left_behind'"),
    ("select 1 as n into temp left_behind", "select count(*) from pg_class where relname = 'left_behind'"),
    ("prepare left_behind as select 1", "select count(*) from pg_prepared_statements where name = 'left_behind'"),
]


@on_postgres
@pytest.mark.parametrize(("statement", "question"), SESSION)
def test_a_session_that_was_changed_is_closed(statement: str, question: str) -> None:
    with working():
        for kind in ("external", "local", "atomic", "async"):
            # The server releases locks and tables of a closed connection a moment later, also those of another test.
            before = [0] if "count(*)" in question else results((kind, question))
            again = f"{kind}: {question} gives {before} again"
            wait_for(lambda kind=kind, before=before: results((kind, question)) == before, what=again)
            assert not isinstance(results((kind, statement))[0], str) or "Error" not in results((kind, statement))[0]
            again = f"{kind}: {question} gives {before} again"
            wait_for(lambda kind=kind, before=before: results((kind, question)) == before, what=again)


def _open_elsewhere() -> None:
    """Open a connection of this thread that no attempt has seen, as other async code of the process does."""
    connections["default"].close()
    del connections["default"]
    connections["default"].ensure_connection()


@on_postgres
def test_a_session_that_other_async_code_opened_is_closed_when_it_was_changed() -> None:
    SyncToAsync.single_thread_executor.submit(_open_elsewhere).result(30)
    with working():
        assert results(("async", "set work_mem = '5MB'"), ("async", "show work_mem")) == [None, "4MB"]


@pytest.mark.parametrize("action", LEFT_OPEN)
def test_a_transaction_left_open_where_other_async_code_opened_the_connection(action: str) -> None:
    SyncToAsync.single_thread_executor.submit(_open_elsewhere).result(30)
    with working():
        failed, *others = results(("async", action), ("async", "count_users"), ("external", "count_users"))
        assert "left a transaction open on the connection 'default'" in failed, failed
        assert others == [0, 0]
    assert not get_user_model().objects.exists()


@on_postgres
def test_a_session_that_was_not_changed_is_kept() -> None:
    harmless = [
        "select 'set role x; commit'",
        "select pg_advisory_xact_lock(77)",
        "set constraints all immediate",
        "select set_config('work_mem', '5MB', true)",
        "update auth_user set last_name = 'set role' where id = 0",
    ]
    with working():
        for kind in ("external", "local", "async", "atomic"):
            (before,) = results((kind, "backend_pid"))
            for statement in harmless:
                assert "Error" not in str(results((kind, statement))[0])
            assert results((kind, "backend_pid")) == [before], kind


@on_postgres
@pytest.mark.parametrize(
    "statement",
    [
        "set local search_path = pg_catalog",
        "set local role pg_read_all_data",
        "set search_path = pg_catalog",
        "set role pg_read_all_data",
        "select set_config('search_path', 'pg_catalog', true)",
        "select 1; set local search_path to pg_catalog",
        "set local session authorization default",
        "set local statement_timeout = 1",
    ],
)
def test_a_setting_of_an_atomic_activity_ends_before_the_next_step(statement: str) -> None:
    with working():
        first, path, role, count = results(
            ("atomic", statement),
            ("atomic", "show search_path"),
            ("atomic", "select current_user = session_user"),
            ("atomic", "count_users"),
        )
    assert "Error" not in str(first)
    assert "public" in path
    assert (role, count) == (True, 0)


@on_postgres
def test_a_custom_setting_of_a_tenant_is_empty_afterwards() -> None:
    tenant = "select current_setting('app.tenant', true)"
    with working():
        assert results(
            ("atomic", "set local app.tenant = 'ann' ;; select current_setting('app.tenant')"),
            ("atomic", tenant),
            ("atomic", "rolled_back_setting"),
            ("external", "select set_config('app.tenant', 'bob', false)"),
            ("external", tenant),
        ) == ["ann", "", "4MB", "bob", None]


@on_postgres
@pytest.mark.parametrize("statement", ["reset all", "select set_config(lower('WORK_MEM'), '1MB', true)"])
def test_a_setting_without_a_name_is_refused_in_an_atomic_activity(statement: str) -> None:
    with working():
        failed, count = results(("atomic", statement), ("atomic", "count_users"))
    assert "without the name of the setting" in failed
    assert count == 0


@on_postgres
def test_what_sets_up_a_session_is_no_part_of_an_attempt(opened: list[tuple[str, str]]) -> None:
    def set_up(sender: Any, connection: Any, **_: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("set work_mem = '6MB'")

    connection_created.connect(set_up)
    try:
        with working():
            (before,) = results(("external", "backend_pid"))  # the first one cannot be told from its set-up
            (first, *others) = results(*[("external", "backend_pid")] * 4)
            assert set(others) == {first}
            assert before
    finally:
        connection_created.disconnect(set_up)
