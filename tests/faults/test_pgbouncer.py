"""Behind PgBouncer in transaction mode.

Web requests and workers share sessions of the server, and nobody changes them for the others.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import connection, connections, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from temporalex_django.db.connections import worker_session
from temporalex_django.db.inserts import StartedRun, insert_start
from temporalex_django.db.run_reader import iterate_pages
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.run_start import RunStart
from temporalex_django.errors import AlreadyRunning, UpdateTimeout
from temporalex_django.models import Instance, Outbox, Worker
from tests.app.durable import Tally
from tests.conftest import in_ci
from tests.faults.mirrored.workflows import QUEUE, BookingRun
from tests.integration.cluster.conftest import cluster as cluster  # noqa: PLC0414 - a fixture
from tests.support import pgbouncer, processes
from tests.support.processes import worker
from tests.support.waiting import wait_for

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
    pytest.mark.xdist_group("pgbouncer"),
]

#: What a worker sets for its transactions, and what nobody else may find in his session.
LIMITS = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout", "tcp_keepalives_idle")


@pytest.fixture(scope="module")
def bouncer(django_db_setup: None) -> Iterator[dict[str, str]]:
    program = pgbouncer.program()
    if program is None:
        message = "no PgBouncer on this machine (Debian: apt-get install pgbouncer)"
        pytest.fail(message) if in_ci() else pytest.skip(message)
    with pgbouncer.pgbouncer(program, connection.settings_dict) as through:
        yield through


@pytest.fixture
def pooled(bouncer: dict[str, str], transactional_db: None) -> Iterator[dict[str, str]]:
    """This process is a web process behind the pooler."""
    own = connection.settings_dict
    before = {key: own[key] for key in bouncer}
    connection.close()
    own.update(bouncer)
    try:
        with override_settings(TEMPORALEX={**settings.TEMPORALEX, "POOLED": True}):
            yield bouncer
    finally:
        connection.close()
        own.update(before)


@pytest.fixture
def env(subprocess_env: dict[str, str], pooled: dict[str, str]) -> dict[str, str]:
    """A process behind it."""
    return {
        **subprocess_env,
        "DJANGO_SETTINGS_MODULE": "tests.settings_of_processes",
        "DATABASE_URL": pgbouncer.url(pooled, connection.settings_dict),
        "TX_TEST_TEMPORALEX": json.dumps({"POOLED": True}),
    }


def start(workflow: str, args: Any = None, **options: Any) -> StartedRun:
    options.setdefault("workflow_id", f"{workflow}-1")
    return insert_start(RunStart(workflow=workflow, args=args, **options), storage=DjangoStorage())


def instance(started: StartedRun) -> Instance:
    return Instance.objects.get(pk=started.run_id)


def request(ask: Callable[[psycopg.Cursor[Any]], Any]) -> Any:
    """What a request of another project behind the same pooler does: a connection, a transaction."""
    own = connection.settings_dict
    address = {"host": own["HOST"], "port": own["PORT"], "user": own["USER"], "dbname": own["NAME"]}
    with psycopg.connect(**address) as client, client.cursor() as cursor:
        return ask(cursor)


def limits(cursor: psycopg.Cursor[Any]) -> tuple[Any, ...]:
    cursor.execute("select " + ", ".join(f"current_setting('{name}')" for name in LIMITS))
    found = cursor.fetchone()
    assert found is not None
    return found


@contextmanager
def held(name: str) -> Iterator[threading.Event]:
    """Somebody has this user's row until the event is set."""
    locked, go = threading.Event(), threading.Event()

    def hold(cursor: psycopg.Cursor[Any]) -> None:
        cursor.execute("select id from auth_user where username = %s for update", [name])
        locked.set()
        go.wait(30)

    thread = threading.Thread(target=request, args=[hold])
    thread.start()
    assert locked.wait(30)
    try:
        yield go
    finally:
        go.set()
        thread.join(30)


def test_a_worker_leaves_the_sessions_of_the_pool_as_they_were(env: dict[str, str], tmp_path: Path) -> None:
    asked = request(limits)
    log = tmp_path / "log"
    log.touch()
    with worker(env, tmp_path) as process:
        runs = [start("Booking", {"name": f"u{i}"}, workflow_id=f"b{i}") for i in range(20)]
        runs.append(start("Recording", {"path": str(log), "hold": str(tmp_path / "none")}))
        seen = {request(limits) for _ in range(200)}
        wait_for(lambda: not any(instance(run).is_open for run in runs))
        seen |= {request(limits) for _ in range(50)}
        assert process.terminate() == 0

    assert seen == {asked}
    assert {instance(run).status for run in runs} == {"completed"}
    assert get_user_model().objects.filter(username__startswith="u").count() == 20
    assert not Worker.objects.exists()


def test_a_view_waits_for_a_row_as_long_as_it_takes(env: dict[str, str], tmp_path: Path) -> None:
    get_user_model().objects.create(username="hot")
    with worker(env, tmp_path):
        runs = [start("Doubling", {"n": i}, workflow_id=f"d{i}") for i in range(5)]
        wait_for(lambda: not any(instance(run).is_open for run in runs))
        for _ in range(5):
            with held("hot") as go:
                began = time.monotonic()
                threading.Timer(0.4, go.set).start()
                request(lambda c: c.execute("update auth_user set last_name = 'x' where username = 'hot'"))
                assert time.monotonic() - began > 0.1


def test_requests_start_update_and_wait_through_it_and_leave_nothing_behind(
    env: dict[str, str], tmp_path: Path
) -> None:
    asked = request(limits)
    counted = Tally.start(id="t")
    assert counted.update("add", 1) == 1  # nobody else is there: in the request

    with transaction.atomic():
        DjangoStorage().lock_chain(counted.chain_id, wait=1.0)
        busy = threading.Thread(target=_refused, args=[lambda: Tally.handle("t").update("add", 1, timeout=0.3)])
        busy.start()
        busy.join(30)
    with transaction.atomic():
        Tally.start(id="twice")
        pending = threading.Thread(target=_refused, args=[lambda: Tally.start(id="twice")])
        pending.start()
        pending.join(30)
    assert {request(limits) for _ in range(50)} == {asked}

    asleep = start("Sleeping", {"seconds": 0.2})
    with worker(env, tmp_path):
        totals = [counted.update("add", 1, mode="worker" if i % 2 else "auto") for i in range(10)]
        counted.signal("stop")
        assert counted.result(timeout=30) == totals[-1]
        wait_for(lambda: not instance(asleep).is_open)
    assert {request(limits) for _ in range(50)} == {asked}
    assert instance(asleep).status == "completed"


def test_runs_on_a_cluster_are_mirrored_through_it(
    cluster: dict[str, Any], env: dict[str, str], tmp_path: Path
) -> None:
    asked, names = request(limits), [uuid.uuid4().hex[:10] for _ in range(10)]
    options = {"POOLED": True, "BACKEND": "temporal", "CLUSTER": cluster}
    env = {**env, "TX_TEST_APPS": "tests.faults.mirrored", "TX_TEST_TEMPORALEX": json.dumps(options)}
    with processes.running(["temporalex", "worker", "--queues", QUEUE], env, tmp_path / "worker.log"):
        with transaction.atomic():
            handles = [BookingRun.start({"name": name, "waits": True}, id=f"booking-{name}") for name in names]
        for handle in handles:
            wait_for(lambda handle=handle: "go" in str(handle.describe().waiting_for), seconds=120)
        seen = {request(limits) for _ in range(50)}
        for handle in handles:
            handle.signal("go")
        assert [handle.result(timeout=60) for handle in handles] == [[1, 1]] * 10
    assert seen | {request(limits) for _ in range(50)} == {asked}
    assert {run.status for run in Instance.objects.all()} == {"completed"}
    assert not Outbox.objects.exists()


def _refused(ask: Callable[[], Any]) -> None:
    with pytest.raises((UpdateTimeout, AlreadyRunning)):
        ask()
    connections.close_all()


def test_rows_are_read_in_pages_without_a_cursor_of_the_server(pooled: dict[str, str]) -> None:
    """Between two transactions another client may have the session, and the cursor is gone."""
    for i in range(7):
        start("Doubling", {"n": i}, workflow_id=f"d{i}")
    rows = iterate_pages(Instance.objects.filter(workflow="Doubling"), by="-id", size=3)
    found = [next(rows)]
    clients = [threading.Thread(target=request, args=[lambda c: c.execute("select 1")]) for _ in range(10)]
    for client in clients:
        client.start()
        client.join(30)
    assert request(lambda c: c.execute("select count(*) from pg_cursors").fetchone()) == (0,)
    found += rows
    assert [row.workflow_id for row in found] == [f"d{i}" for i in reversed(range(7))]


@pytest.mark.parametrize("behind", [True, False])
def test_limits_cost_a_statement_in_transactions_of_workers_behind_a_pooler_and_nowhere_else(behind: bool) -> None:
    def statements(storage: DjangoStorage) -> int:
        with CaptureQueriesContext(connection) as queries, storage.transaction(), storage.transaction():
            storage.sql.select("select 1", [], ("int4",))
        return sum("set_config" in query["sql"] or "set lock_timeout" in query["sql"] for query in queries)

    with override_settings(TEMPORALEX={"POOLED": behind}):
        assert statements(DjangoStorage()) == 0
        with worker_session("default"):
            connection.ensure_connection()
            assert statements(DjangoStorage(worker=True)) == (1 if behind else 0)
        assert statements(DjangoStorage()) == 0
