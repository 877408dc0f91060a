"""What a turn reads and writes, on the database of the lane."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from temporalex_django.conf import codec
from temporalex_django.db.inserts import StartedRun, insert_message, insert_start, message_outcome, update_outcome
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.contracts.records import NewEvent, NewTask, Outcome, RunState, RunWrite
from temporalex_django.engine.external_messages import NewMessage
from temporalex_django.engine.ids import token, uuid7
from temporalex_django.engine.run_start import RunStart
from temporalex_django.engine.scheduling import Capacity, EagerClaim
from temporalex_django.engine.turn import WorkflowEngine
from temporalex_django.errors import AlreadyRunning, PayloadError, WorkflowNotFound
from temporalex_django.models import ActivityTask, Chain, HistoryEvent, Instance, Message, Worker
from tests.app.attempts import tiny
from tests.support.client_flows import Basket, drain

pytestmark = [pytest.mark.django_db, pytest.mark.each_lane, pytest.mark.usefixtures("each_wire")]

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def storage() -> DjangoStorage:
    return DjangoStorage()


def start(storage: DjangoStorage, workflow_id: str = "w-1", **options: Any) -> StartedRun:
    return insert_start(RunStart(workflow_id=workflow_id, workflow="Cart", args={"n": 1}, **options), storage=storage)


def claim(storage: DjangoStorage, *, limit: int = 100) -> list[RunState]:
    return storage.claim(limit=limit, queues=["default"])


def event(seq: int, **attributes: Any) -> NewEvent:
    return NewEvent(number=seq, activation=1, kind="SignalReceived", at=NOW, attributes=attributes)


def task(run: RunState, seq: int = 1, **options: Any) -> NewTask:
    return NewTask(
        run_id=run.run_id,
        chain_id=run.chain_id,
        workflow_id="w-1",
        workflow="Cart",
        seq=seq,
        activity="shop.charge",
        args=[1],
        kwargs={"a": 2},
        options={"retry": {"max_attempts": 3}, **options},
        queue="default",
        atomic=bool(options.get("atomic")),
        scheduled_at=NOW,
    )


def test_a_start_is_claimed_with_its_facts(storage: DjangoStorage) -> None:
    started = start(storage, tags=["vip"], execution_timeout=60)

    with storage.transaction():
        (run,) = claim(storage)

        assert (run.chain_id, run.run_id) == started
        assert (run.head_token, run.length, run.closed, run.activated_at) == (None, 0, False, None)
        assert run.due_at is not None
        assert run.deadline is not None
        assert abs(run.deadline - run.due_at - timedelta(seconds=60)) < timedelta(seconds=1)
        facts = storage.run_records([run.run_id])[run.run_id]
    assert (facts.workflow_id, facts.workflow, facts.version, facts.args) == ("w-1", "Cart", 1, {"n": 1})
    assert facts.seed > 0
    instance = Instance.objects.get(pk=started.run_id)
    assert (instance.status, instance.tags, instance.input) == ("pending", ["vip"], {"n": 1})


def test_everything_that_a_turn_produced_is_read_back(storage: DjangoStorage) -> None:
    started = start(storage)
    first = insert_message(started.chain_id, kind="signal", name="go", body={"a": "ü"}, storage=storage)
    second = insert_message(started.chain_id, kind="update", name="add", body=1, request_id="u-1", storage=storage)
    third = insert_message(started.chain_id, kind="update", name="add", body=2, request_id="u-2", storage=storage)
    with storage.transaction():
        (run,) = claim(storage)
        inbox = storage.inbox([run.chain_id])[run.chain_id]
        assert [(m.id, m.kind, m.name, m.payload, m.message_id) for m in inbox] == [
            (first.id, "signal", "go", {"a": "ü"}, None),
            (second.id, "update", "add", 1, "u-1"),
            (third.id, "update", "add", 2, "u-2"),
        ]
        run.head_token, run.length, run.activations, run.activated_at = storage.new_token(), 2, 1, NOW
        run.due_at = NOW + timedelta(days=1)
        storage.write(
            [
                RunWrite(
                    run=run,
                    events=[event(1, name="go"), event(2, payload=b"x".decode())],
                    tasks=[task(run, 1), task(run, 2, atomic=True)],
                    consumed=[first.id],
                    settled={second.id: Outcome(status="accepted")},
                    waiting={third.id: 1},
                    instance={"status": "waiting", "published": {"n": 0}, "blocked": None, "waiting_for": ["signal"]},
                )
            ]
        )

    assert storage.histories({run.run_id: 0})[run.run_id][0].attributes == {"name": "go"}
    assert [e.number for e in storage.histories({run.run_id: 1})[run.run_id]] == [2]
    assert HistoryEvent.objects.filter(run_id=run.run_id).count() == 2
    chain = Chain.objects.get(pk=run.chain_id)
    assert (chain.head_token, chain.length, chain.due_at) == (run.head_token, 2, run.due_at)
    instance = Instance.objects.get(pk=run.run_id)
    assert (instance.status, instance.published_state, instance.waiting_for) == ("waiting", {"n": 0}, ["signal"])
    assert message_outcome(second.id, storage=storage) == Outcome(status="accepted")
    assert message_outcome(third.id, storage=storage) is None
    with storage.transaction():
        assert claim(storage) == []  # neither due nor fresh
        (left,) = storage.inbox([run.chain_id])[run.chain_id]
        assert (left.id, left.after) == (third.id, 1)
        (run,) = storage.claim(limit=1, queues=["default"], chains=[run.chain_id])
        storage.write(
            [RunWrite(run=run, outcomes={"u-1": Outcome(status="completed", value=[1])}, cancelled_tasks=[1])]
        )
    assert update_outcome(run.chain_id, "u-1", storage=storage) == Outcome(status="completed", value=[1])
    assert [t.seq for t in ActivityTask.objects.filter(run_id=run.run_id)] == [2]


def test_a_rolled_back_turn_leaves_nothing(storage: DjangoStorage) -> None:
    """ST-056."""
    start(storage)
    with pytest.raises(RuntimeError), storage.transaction():  # noqa: PT012 - the block is the transaction
        (run,) = claim(storage)
        run.length, run.head_token = 1, storage.new_token()
        storage.write([RunWrite(run=run, events=[event(1)])])
        raise RuntimeError

    with storage.transaction():
        (run,) = claim(storage)
    assert (run.length, run.head_token) == (0, None)
    assert storage.histories({run.run_id: 0})[run.run_id] == []


def test_a_message_rings_by_itself(storage: DjangoStorage) -> None:
    started = start(storage)
    with storage.transaction():
        (run,) = claim(storage)
        run.due_at = None
        storage.write([RunWrite(run=run)])
        assert claim(storage) == []
    assert storage.next_due(queues=["default"]) is None

    insert_message(started.chain_id, kind="signal", name="go", body=None, storage=storage)

    assert storage.next_due(queues=["default"]) == 0.0
    assert storage.next_due(queues=["other"]) is None
    with storage.transaction():
        assert [r.chain_id for r in claim(storage)] == [started.chain_id]


def test_messages_of_many_chains_take_turns(storage: DjangoStorage) -> None:
    chains = [start(storage, f"w-{i}").chain_id for i in range(7)]
    with storage.transaction():
        for run in (runs := claim(storage)):
            run.due_at = None
        storage.write([RunWrite(run=run) for run in runs])
    for chain in chains:
        for _ in range(3):
            insert_message(chain, kind="signal", name="go", body=None, storage=storage)

    seen: list[UUID] = []
    for _ in range(4):
        with storage.transaction():
            seen += [run.chain_id for run in claim(storage, limit=2)]

    assert sorted(seen[:7]) == sorted(chains)  # nobody twice before everybody once


def test_a_closed_run_keeps_its_messages_answered_and_frees_its_id(storage: DjangoStorage) -> None:
    started = start(storage)
    update = insert_message(started.chain_id, kind="update", name="add", body=1, request_id="u-1", storage=storage)
    behind = insert_message(started.chain_id, kind="update", name="add", body=1, request_id="u-2", storage=storage)
    with storage.transaction():
        (run,) = claim(storage)
        storage.write(
            [
                RunWrite(
                    run=run, settled={update.id: Outcome(status="accepted")}, waiting={behind.id: 0}, tasks=[task(run)]
                )
            ]
        )
    with storage.transaction():
        (run,) = storage.claim(limit=1, queues=["default"], chains=[run.chain_id])
        run.closed, run.deadline = True, NOW
        closing = Outcome(status="failed", value={"code": "workflow_closed"})
        storage.write(
            [RunWrite(run=run, drop_tasks=True, closing=closing, instance={"status": "completed", "closed_at": NOW})]
        )

    assert update_outcome(run.chain_id, "u-1", storage=storage) == closing
    chain = Chain.objects.get(pk=run.chain_id)
    assert (chain.closed, chain.open_key, chain.due_at, chain.deadline) == (True, None, None, None)
    assert not ActivityTask.objects.exists()
    assert not Instance.objects.open().exists()
    with storage.transaction():  # the one that waited is fresh again, for a turn that answers it
        (run,) = claim(storage)
        assert run.closed
        assert [m.id for m in storage.inbox([run.chain_id])[run.chain_id]] == [behind.id]
    assert start(storage).chain_id != started.chain_id


def test_continue_as_new_gives_the_chain_a_new_run(storage: DjangoStorage) -> None:
    started = start(storage, tags=["vip"], version=3)
    with storage.transaction():
        (run,) = claim(storage)
        stamp = storage.now()
        run.length, run.head_token, run.activations, run.activated_at, run.due_at = 3, 77, 2, stamp, None
        new = storage.run_records([run.run_id])[run.run_id].successor(
            uuid7(),
            args={"n": 2},
            seed=5,
            carried_messages={"signals": [{"name": "s", "payload": 1}], "cancel": None},
        )
        storage.write([RunWrite(run=run, next_run=new, instance={"status": "continued_as_new", "closed_at": NOW})])

    with storage.transaction():
        (run,) = claim(storage)
        facts = storage.run_records([run.run_id])[run.run_id]
    assert (run.chain_id, run.run_id, run.length, run.head_token, run.activated_at) == (
        started.chain_id,
        new.run_id,
        0,
        None,
        stamp,
    )
    assert (facts.args, facts.seed, facts.carried_messages, facts.version) == (
        {"n": 2},
        5,
        {"signals": [{"name": "s", "payload": 1}], "cancel": None},
        3,
    )
    assert Instance.objects.get(pk=new.run_id).tags == ["vip"]
    with pytest.raises(AlreadyRunning):
        start(storage)


def test_a_taker_gets_what_it_has_room_for(storage: DjangoStorage) -> None:
    """Where an insert tells the ids; the others, and what it lacks the code of, wait in the queue."""
    start(storage)
    with storage.transaction():
        (run,) = claim(storage)
        tasks = [replace(task(run, n), activity=tiny.name if n < 4 else "nobody.has_it") for n in (1, 2, 3, 4)]
        taker = EagerClaim(owner=7, capacity=Capacity(threads=2), queues={"default"})
        taken = storage.write([RunWrite(run=run, tasks=tasks)], eager_claim=taker)()

    expected = [1, 2] if storage.sql.claims_on_insert else []
    assert [(one.seq, one.attempt, one.owner) for one in taken] == [(n, 1, 7) for n in expected]
    rows = {row.seq: (row.pk, row.attempt, row.owner) for row in ActivityTask.objects.all()}
    assert len(rows) == 4
    assert [rows[one.seq] for one in taken] == [(one.id, 1, 7) for one in taken]
    assert {seq for seq, row in rows.items() if row[1:] == (0, None)} == {1, 2, 3, 4} - set(expected)


def test_messages_find_their_chain_by_business_id(storage: DjangoStorage) -> None:
    one, two = start(storage, "one"), start(storage, "two")
    with storage.transaction():
        runs = {run.chain_id: run for run in claim(storage)}
        to = [
            NewMessage(kind="signal", name="a", payload=1, workflow_id="two"),
            NewMessage(kind="signal", name="b", payload=2, chain_id=two.chain_id),
            NewMessage(kind="signal", name="c", payload=3, workflow_id="nobody"),
        ]
        storage.write([RunWrite(run=runs[one.chain_id], messages=to)])

        assert [m.name for m in storage.inbox([two.chain_id])[two.chain_id]] == ["a", "b"]
    assert Message.objects.count() == 2


@pytest.mark.parametrize(
    ("scope", "other"),
    [
        ("global", {"scope": "workflow"}),
        ("global", {"scope": "version"}),
        ("global", {"scope": "global"}),
        ("workflow", {"scope": "workflow"}),
        ("workflow", {"scope": "version"}),
        ("version", {"scope": "version"}),
    ],
)
def test_a_live_id_is_refused_and_the_callers_transaction_stays_whole(
    storage: DjangoStorage, scope: str, other: dict[str, Any]
) -> None:
    start(storage, "same", **other)

    with transaction.atomic():
        with pytest.raises(AlreadyRunning) as caught:
            start(storage, "same", scope=scope)
        assert not caught.value.pending
        start(storage, "another")
    assert Instance.objects.count() == 2


@pytest.mark.parametrize(("first", "second"), [("none", "none"), ("none", "global"), ("version", "none")])
def test_scope_none_never_collides(storage: DjangoStorage, first: str, second: str) -> None:
    one = start(storage, "same", scope=first)
    other = start(storage, "same", scope=second)

    assert {run.chain_id for run in claim(storage)} == {one.chain_id, other.chain_id}


def test_versions_do_not_collide_in_scope_version(storage: DjangoStorage) -> None:
    start(storage, "same", scope="version", version=1)
    start(storage, "same", scope="version", version=2)
    with pytest.raises(AlreadyRunning):
        start(storage, "same", scope="version", version=2)


def test_an_update_id_is_taken_once_and_free_again_when_rejected(storage: DjangoStorage) -> None:
    chain = start(storage).chain_id
    first = insert_message(chain, kind="update", name="add", body=1, request_id="u", storage=storage)
    again = insert_message(chain, kind="update", name="add", body=1, request_id="u", storage=storage)
    assert (again.id, again.new) == (first.id, False)
    with storage.transaction():
        (run,) = claim(storage)
        storage.write([RunWrite(run=run, settled={first.id: Outcome(status="rejected", value={"code": "x"})})])

    third = insert_message(chain, kind="update", name="add", body=1, request_id="u", storage=storage)

    assert third.new
    assert third.id > first.id
    assert update_outcome(chain, "u", storage=storage) is None


def test_an_unknown_chain_is_named(storage: DjangoStorage) -> None:
    with pytest.raises(WorkflowNotFound):
        insert_message(uuid7(), kind="signal", name="x", body=1, storage=storage)
    with pytest.raises(WorkflowNotFound):
        insert_message(uuid7(), kind="update", name="x", body=1, request_id="1", storage=storage)


def test_an_unreadable_payload_names_its_run(storage: DjangoStorage) -> None:
    started = start(storage)
    Instance.objects.update(args=b"\xff")

    with pytest.raises(PayloadError) as caught:
        storage.run_records([started.run_id])

    assert caught.value.run_id == started.run_id  # type: ignore[attr-defined]
    assert "unreadable" in repr(Instance.objects.get().input)


@pytest.mark.parametrize("size", [10, 100])
def test_the_number_of_statements_does_not_depend_on_the_number_of_runs(storage: DjangoStorage, size: int) -> None:
    for i in range(size):
        chain = start(storage, f"w-{i}").chain_id
        insert_message(chain, kind="update", name="a", body=1, request_id="u", storage=storage)
        insert_message(chain, kind="signal", name="a", body=1, storage=storage)
        insert_message(chain, kind="signal", name="b", body=1, storage=storage)

    with storage.transaction(), CaptureQueriesContext(connection) as queries:
        runs = claim(storage)
        inbox = storage.inbox([r.chain_id for r in runs])
        storage.run_records([r.run_id for r in runs])
        storage.histories({r.run_id: 0 for r in runs})
        storage.now()
        writes = []
        for run in runs:
            update, one, two = (m.id for m in inbox[run.chain_id])
            run.length, run.head_token, run.due_at = 1, storage.new_token(), None
            writes.append(
                RunWrite(
                    run=run,
                    events=[event(1)],
                    tasks=[task(run)],
                    cancelled_tasks=[7],
                    consumed=[one],
                    waiting={two: 1},
                    settled={update: Outcome(status="accepted")},
                    outcomes={"u": Outcome(status="completed")},
                    instance={"status": "running", "started_at": NOW},
                )
            )
        storage.write(writes)

    assert len(runs) == size
    assert len(queries) <= 20, [q["sql"][:90] for q in queries]
    assert ActivityTask.objects.count() == size
    assert {status for (status,) in Instance.objects.values_list("status")} == {"running"}


@pytest.mark.postgres
def test_a_claim_reads_the_first_of_those_that_are_due_and_sorts_none(storage: DjangoStorage) -> None:
    """Whatever the planner believes of tables that were empty when they were analyzed: 50,000 due cost what 100 do."""
    due = "now() - g * interval '1 ms' from generate_series(1, 3000) g"
    with connection.cursor() as cursor:
        cursor.execute("analyze temporalex_chain, temporalex_activity_task")
        cursor.execute(
            "insert into temporalex_chain (id, run_id, queue, due_at)"
            f" select gen_random_uuid(), gen_random_uuid(), 'default', {due}"
        )
        cursor.execute(
            "insert into temporalex_activity_task (chain_id, run_id, workflow_id, workflow, seq, activity, call, options, queue,"
            " run_queue, scheduled_at, due_at) select gen_random_uuid(), gen_random_uuid(), 'w', 'test.W', 1, 'a', '', '',"
            f" 'default', 'default', now(), {due}"
        )
    plans: list[str] = []

    def explained(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        if "order by due_at" in str(sql):
            asking = psycopg.Cursor(connection.connection)
            asking.execute(f"explain (costs off) {sql}", params)
            plans.append("\n".join(line for (line,) in asking.fetchall()))
        return execute(sql, params, many, context)

    with storage.transaction(), connection.execute_wrapper(explained):
        assert len(claim(storage)) == 100
        storage.claim_tasks(capacity=Capacity(threads=8), queues=["default"], owner=1)

    assert len(plans) == 2
    assert ["Sort" in plan for plan in plans] == [False, False], plans
    assert "Index Scan using temporalex_chain_due" in plans[0]


@pytest.mark.postgres
def test_what_is_new_in_long_histories_is_read_without_what_is_known(storage: DjangoStorage) -> None:
    """Of many runs at a time, too: on analyzed tables a join read all of them from their beginnings."""
    runs, events = [uuid7() for _ in range(200)], 100
    with connection.cursor() as cursor:
        cursor.execute(
            "insert into temporalex_history_event (run_id, seq, activation, kind, at, attributes)"
            " select r, s, s, 'ActivationStarted', now(), %s from unnest(%s::uuid[]) r, generate_series(1, %s) s",
            [codec().encode({}), runs, events],
        )
        cursor.execute("analyze temporalex_history_event")
    read: list[int] = []

    def scanned(plan: dict[str, Any]) -> Iterator[int]:
        if plan.get("Relation Name") == "temporalex_history_event":
            yield round(plan["Actual Rows"] * plan["Actual Loops"])
        for part in plan.get("Plans", ()):
            yield from scanned(part)

    def explained(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        asking = psycopg.Cursor(connection.connection)
        asking.execute(f"explain (analyze, format json) {sql}", params)
        (((found,),),) = asking.fetchall()
        read.extend(scanned(found["Plan"]))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(explained):
        found = storage.histories(dict.fromkeys(runs, events - 2))

    assert [[event.number for event in found[run]] for run in runs] == [[events - 1, events]] * len(runs)
    assert read == [2 * len(runs)]


@pytest.mark.postgres
def test_closing_a_chain_and_deleting_it_reads_no_messages_of_others() -> None:
    """Answers are kept as long as their chains: there are many more of them than there is work."""
    with connection.cursor() as cursor:
        cursor.execute(
            "insert into temporalex_message (chain_id, queue, kind, name, body, request_id, settled, fresh, outcome_status, created_at)"
            " select gen_random_uuid(), 'default', case when n % 50 = 0 then 'signal' else 'update' end, 'add', '',"
            " case when n % 50 > 0 then 'u' || n end, true, false, 'completed', now() from generate_series(1, 5000) n"
        )
        cursor.execute("analyze temporalex_message")
    plans: dict[str, str] = {}

    def explained(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        if "temporalex_message" in str(sql) and not sql.startswith("insert"):
            asking = psycopg.Cursor(connection.connection)
            asking.execute(f"explain {sql}", params)
            plans[sql] = "\n".join(line for (line,) in asking.fetchall())
        return execute(sql, params, many, context)

    handle = Basket.start(id="b-1")
    drain()
    handle.update("add", 1)
    with connection.execute_wrapper(explained):
        handle.terminate("kept for long enough")
        drain()
        handle.delete("kept for long enough")

    # One names the updates in the log, and one answers them.
    assert sum("outcome_status = 'accepted'" in sql for sql in plans) == 2
    assert sum(sql.startswith("delete") for sql in plans) >= 2
    assert {sql: plan for sql, plan in plans.items() if "Seq Scan on temporalex_message" in plan} == {}


@pytest.mark.postgres
def test_an_inbox_is_read_without_what_was_settled_before(storage: DjangoStorage) -> None:
    """An entity has tens of thousands of signals behind it: they cost its turns nothing."""
    started = start(storage)
    with connection.cursor() as cursor:
        cursor.execute(
            "insert into temporalex_message (chain_id, queue, kind, name, body, settled, fresh, created_at)"
            " select %s, 'default', 'signal', 'go', '', true, false, now() from generate_series(1, 5000) n",
            [started.chain_id],
        )
        cursor.execute("analyze temporalex_message")
    plans: list[str] = []

    def explained(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        asking = psycopg.Cursor(connection.connection)
        asking.execute(f"explain (analyze, buffers off, timing off) {sql}", params)
        plans.append("\n".join(line for (line,) in asking.fetchall()))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(explained):
        assert storage.inbox([started.chain_id]) == {started.chain_id: []}
    assert plans
    assert "Rows Removed by Filter" not in "".join(plans)


@pytest.mark.django_db(transaction=True)
def test_who_waits_for_the_writer_lock_looks_often_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    if not DjangoStorage().sql.writer_lock:
        pytest.skip("SQLite's own")
    storage, held, go = DjangoStorage(), threading.Event(), threading.Event()

    def hold() -> None:
        """As another process does, which is not in the line of this one."""
        with transaction.atomic():
            Chain.objects.all().delete()
            held.set()
            assert go.wait(30)
        connection.close()

    def patience() -> int:
        return int(connection.connection.execute("pragma busy_timeout").fetchone()[0])

    connection.ensure_connection()
    before, tries = patience(), []
    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(30)

    connection.connection.execute("pragma busy_timeout = 20")  # as init_command may say
    with pytest.raises(OperationalError, match="locked") as caught, storage.transaction():
        raise AssertionError("nobody has the lock twice")
    assert storage.is_transient(caught.value)
    assert (connection.in_atomic_block, connection.get_autocommit(), patience()) == (False, True, 20)
    connection.connection.execute(f"pragma busy_timeout = {before}")

    def tried(execute: Any, sql: str, *rest: Any) -> Any:
        if sql.startswith("BEGIN"):
            tries.append(sql)
            if len(tries) == 3:
                go.set()
        return execute(sql, *rest)

    with connection.execute_wrapper(tried), storage.transaction():
        assert len(tries) >= 3
        start(storage)
    holder.join(30)
    assert (patience(), Chain.objects.count()) == (before, 1)


def test_a_virtual_clock_judges_everything() -> None:
    clock = [NOW]
    storage = DjangoStorage(clock=lambda: clock[0])
    start(storage)
    with storage.transaction():
        (run,) = claim(storage)
        run.due_at = NOW + timedelta(hours=1)
        storage.write([RunWrite(run=run, tasks=[task(run, schedule_to_start=7200)])])
        assert claim(storage) == []
    assert storage.next_due(queues=["default"]) == 0.0  # the activity

    assert storage.now() == NOW
    assert len(storage.claim_tasks(capacity=Capacity(threads=5), queues=["default"], owner=1)) == 1
    assert storage.next_due(queues=["default"]) == 3600.0
    clock[0] += timedelta(hours=1)
    with storage.transaction():
        assert len(claim(storage)) == 1


def test_a_run_that_killed_its_worker_comes_alone_and_only_to_workers(storage: DjangoStorage) -> None:
    chains = [start(storage, f"w-{i}").chain_id for i in range(3)]
    Chain.objects.filter(pk=chains[0]).update(crashes=1)
    worker = DjangoStorage(worker=True)

    with storage.transaction():
        assert storage.claim(limit=1, queues=["default"], chains=chains[:1]) == []
        assert [run.chain_id for run in claim(worker) if run.crashes] == chains[:1]
        report = WorkflowEngine(worker, worker).advance(limit=10, queues=["default"])
        assert (report.suspect_chains, set(report.claimed_chains)) == (chains[:1], set(chains[1:]))
        (run,) = worker.claim(limit=1, queues=[], chains=chains[:1])
        storage.write([RunWrite(run=run)])
    assert Chain.objects.get(pk=chains[0]).crashes == 1  # nothing of it was run
    with storage.transaction():
        storage.write([RunWrite(run=run, delivered=True)])
    assert Chain.objects.get(pk=chains[0]).crashes == 0


def test_a_declined_run_is_left_alone(storage: DjangoStorage) -> None:
    one, two = start(storage, "one"), start(storage, "two")
    insert_message(one.chain_id, kind="signal", name="x", body=1, storage=storage)
    storage.defer([one.chain_id], seconds=5.0)

    with storage.transaction():
        assert [run.chain_id for run in claim(storage)] == [two.chain_id]
        assert len(claim(DjangoStorage())) == 2


def test_live_workers_are_those_whose_lease_is_valid(storage: DjangoStorage) -> None:
    now = storage.now()
    for name, left in (("Here", 10), ("Gone", -10)):
        Worker.objects.create(
            id=uuid7(),
            epoch=token(),
            kind="worker",
            host="h",
            pid=1,
            queues=["default"],
            workflows={name: [1]},
            started_at=now,
            beat_at=now,
            expires_at=now + timedelta(seconds=left),
        )

    assert [name for name in ("Here", "Gone", "Nowhere") if storage.has_live_worker(name, 1)] == ["Here"]
    assert not storage.has_live_worker("Here", 2)


def test_runs_are_found_by_their_subject(storage: DjangoStorage, django_user_model: Any) -> None:
    user = django_user_model.objects.create(username="u")
    started = start(storage, subject=user)
    start(storage, "other")

    assert [i.pk for i in Instance.objects.for_subject(user)] == [started.run_id]
    assert Instance.objects.get(pk=started.run_id).subject == user
