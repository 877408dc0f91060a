"""``retention`` of a class: chains that closed longer ago are deleted whole.

Nothing that is open or younger is touched.
"""

from __future__ import annotations

import itertools
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from temporalex_django import Async, ContinueAsNew, Ok, Reply, Stop, VersionedWorkflow, Workflow, api, errors, update
from temporalex_django.authoring import workflow as workflows
from temporalex_django.db import retention
from temporalex_django.db.inserts import insert_message
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine import policy
from temporalex_django.engine.ids import uuid7
from temporalex_django.models import ActivityTask, Chain, HistoryEvent, Instance, Message, OperatorAction
from temporalex_django.testing import drain

WEEK = timedelta(days=7)


@pytest.fixture(autouse=True)
def _classes_of_this_test() -> Any:
    before = dict(workflows.registry)
    yield
    workflows.registry.clear()
    workflows.registry.update(before)


def kept_a_week() -> type[Workflow]:
    class Kept(Workflow):
        name = "test.Kept"
        retention = WEEK

        async def run(self, args: Any) -> Any:
            if args:
                return ContinueAsNew(args - 1)
            if args is None:
                await api.wait_for_signal("go")
            return Ok(args)

    return Kept


def aged(handle: Any, by: timedelta) -> None:
    """As if its runs had closed so long before."""
    Instance.objects.filter(chain_id=handle.chain_id, closed_at__isnull=False).update(closed_at=F("closed_at") - by)


def answered_before(by: timedelta) -> None:
    """As if all messages had come, and had been answered, longer ago."""
    by += timedelta(seconds=1)
    Message.objects.update(created_at=F("created_at") - by, answered_at=F("answered_at") - by)


@pytest.mark.django_db
def test_a_chain_that_was_kept_long_enough_is_deleted_with_all_that_belongs_to_it() -> None:
    Kept = kept_a_week()
    old, young, other = Kept.start(2, id="old"), Kept.start(2, id="young"), Kept.start(None, id="open")
    drain()
    old_signal = Message.objects.create(
        chain_id=old.chain_id, queue="default", kind="signal", name="late", body=b"null", settled=True, fresh=False,
        created_at=Instance.objects.first().created_at,
    )  # fmt: skip
    OperatorAction.objects.create(at=old_signal.created_at, action="cancel", run_id=old.run_id, source="rest")
    aged(old, WEEK + timedelta(seconds=1))
    aged(young, WEEK - timedelta(minutes=1))
    left = [young.run_ids, other.run_ids]

    drain()

    with pytest.raises(errors.WorkflowNotFound):
        old.describe()
    assert set(Chain.objects.values_list("pk", flat=True)) == {young.chain_id, other.chain_id}
    runs = {str(pk) for pk in Instance.objects.values_list("pk", flat=True)}
    assert runs == {*left[0], *left[1]}
    assert {str(pk) for pk in HistoryEvent.objects.values_list("run_id", flat=True)} == runs
    assert not Message.objects.filter(chain_id=old.chain_id).exists()
    assert not ActivityTask.objects.exists()
    assert OperatorAction.objects.count() == 1
    assert young.result() == 0


@pytest.mark.django_db
def test_nothing_goes_while_any_part_of_the_chain_is_open() -> None:
    class Forever(Workflow):
        name = "test.Forever"
        retention = 1

        async def run(self, args: Any) -> Any:
            if args < 3:
                return ContinueAsNew(args + 1)
            await api.wait_for_signal("go")
            return Ok(None)

    handle = Forever.start(0, id="forever")
    drain()
    aged(handle, WEEK)
    drain()

    assert len(handle.run_ids) == 4
    handle.signal("go")
    drain()
    aged(handle, WEEK)
    drain()
    assert not Instance.objects.exists()


@pytest.mark.django_db
def test_each_version_keeps_its_own_time() -> None:
    class First(Workflow):
        retention = 60

        async def run(self, args: Any) -> Ok:
            return Ok(1)

    class Second(Workflow):
        version = 2

        async def run(self, args: Any) -> Ok:
            return Ok(2)

    class Both(VersionedWorkflow):
        name = "test.Both"
        versions = {1: First, 2: Second}
        current = 2

    handles = [Both.start(id="one", version=1), Both.start(id="two")]
    drain()
    for handle in handles:
        aged(handle, WEEK)
    drain()

    assert list(Instance.objects.values_list("workflow_id", flat=True)) == ["two"]


@pytest.mark.django_db
def test_without_a_retention_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflows, "registry", {})

    with CaptureQueriesContext(connection) as queries:
        assert not retention.Retention(DjangoStorage()).sweep()
    assert len(queries) == 0


@pytest.mark.django_db
def test_pages_go_on_where_the_last_one_ended_and_a_sweep_stops_when_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Kept = kept_a_week()
    handles = [Kept.start(0, id=f"run-{number}") for number in range(7)]
    drain()
    for handle in handles[3:]:
        aged(handle, WEEK * 2)
    monkeypatch.setattr(policy, "RETENTION_PAGE", 2)
    monkeypatch.setattr(retention, "_start_timestamp", lambda run: 0.0)
    swept = retention.Retention(DjangoStorage())
    monkeypatch.setattr(policy, "RETENTION_SWEEP_SECONDS", 0.0)
    assert swept.sweep()
    assert Instance.objects.count() == 7
    monkeypatch.setattr(policy, "RETENTION_SWEEP_SECONDS", 60.0)

    assert not swept.sweep()

    assert sorted(Instance.objects.values_list("workflow_id", flat=True)) == ["run-0", "run-1", "run-2"]


@pytest.mark.django_db
def test_a_message_that_was_on_its_way_to_a_deleted_chain_wakes_nobody_for_ever() -> None:
    Kept = kept_a_week()
    handle = Kept.start(0, id="old")
    drain()
    aged(handle, WEEK * 2)
    swept = retention.Retention(DjangoStorage())
    swept.sweep()
    assert not Chain.objects.exists()
    late = DjangoStorage().now()
    Message.objects.create(
        chain_id=handle.chain_id, queue="default", kind="signal", name="x", body=b"null", created_at=late
    )

    swept.sweep()

    assert not Message.objects.exists()


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_a_chain_that_somebody_has_locked_is_left_for_later() -> None:
    from django.db import transaction

    Kept = kept_a_week()
    handle = Kept.start(0, id="old")
    drain()
    aged(handle, WEEK * 2)
    swept: list[int] = []

    def sweep() -> None:
        retention.Retention(DjangoStorage()).sweep()
        swept.append(Chain.objects.count())
        connection.close()

    with transaction.atomic():
        Chain.objects.select_for_update(no_key=True).get(pk=handle.chain_id)
        thread = threading.Thread(target=sweep)
        thread.start()
        thread.join(20)
    assert swept == [1]
    retention.Retention(DjangoStorage()).sweep()
    assert not Chain.objects.exists()


@pytest.mark.parametrize("wrong", [0, -1, timedelta(0), timedelta(days=-1), "7 days", True, float("nan"), [7]])
def test_what_is_no_time_to_keep_is_refused_where_it_is_declared(wrong: Any) -> None:
    with pytest.raises(errors.WorkflowDefinitionError, match="retention"):
        type("Wrong", (Workflow,), {"retention": wrong, "run": Workflow.run, "__module__": __name__})


def test_ids_of_another_kind_say_nothing_about_when_a_run_began() -> None:
    import time
    from uuid import uuid4

    assert abs(retention._start_timestamp(uuid7()) - time.time()) < 60
    assert retention._start_timestamp(uuid4()) == 0.0


@pytest.mark.django_db
def test_a_chain_that_goes_on_for_ever_costs_what_a_young_one_does() -> None:
    """Rows and statements of a run, after ten runs and after fifty; what is younger, and its current run, stay."""

    class Endless(Workflow):
        name = "test.Endless"
        chain_retention = WEEK

        async def run(self, args: Any) -> Any:
            if await api.wait_for_signal("next") == "stop":
                return Ok(args)
            return ContinueAsNew(args + 1)

    def rows() -> tuple[int, ...]:
        return tuple(model.objects.count() for model in (Instance, HistoryEvent, Message, ActivityTask, Chain))

    def goes_on(times: int) -> list[str]:
        for _ in range(times):
            handle.signal("next", id=f"s{next(numbers)}")
            connection.queries_log.clear()
            with CaptureQueriesContext(connection) as asked:
                drain()
            aged(handle, WEEK + timedelta(seconds=1))
            answered_before(WEEK)
        return sorted(query["sql"].split(" where ")[0][:60] for query in asked)

    numbers = itertools.count()
    handle = Endless.start(0, id="endless")
    drain()
    statements, few = goes_on(10), rows()
    many = goes_on(40)
    assert rows() == few
    assert len(many) < len(statements) + 15, "a statement more for every two runs would be seen"
    assert few[0] <= 3
    aged(handle, -WEEK)
    younger = rows()
    drain()
    assert rows() == younger, "what is younger stays"
    handle.signal("next", "stop")
    drain()
    assert handle.result() == 50


@pytest.mark.django_db(transaction=True)
def test_what_was_accepted_long_ago_is_still_answered() -> None:
    """An update that waits for somebody for longer than earlier runs are kept."""

    async def approved() -> int:
        await api.sleep(30 * 24 * 3600)
        return 5

    class Patient(Workflow):
        name = "test.Patient"
        chain_retention = WEEK

        async def run(self, args: Any) -> Any:
            if not args:
                return ContinueAsNew(1)
            return Ok(await api.phase(None, update={"approve": update(lambda n, state: Async(approved, state))}))

    handle = Patient.start(0, id="patient")
    drain()
    for id_ in ("u1", "u2"):
        with pytest.raises(errors.UpdateTimeout):
            handle.update("approve", 5, id=id_, mode="worker", timeout=0)
    drain()
    Message.objects.filter(request_id="u2").update(outcome_status="completed")
    assert Message.objects.get(request_id="u1").outcome_status == "accepted"
    aged(handle, WEEK + timedelta(seconds=1))
    answered_before(WEEK)
    drain()
    assert Instance.objects.count() == 1
    assert [one.request_id for one in Message.objects.all()] == ["u1"]


@pytest.mark.django_db(transaction=True)
def test_what_was_answered_late_is_kept_from_its_answer_on() -> None:
    """The same id asks for the same answer, however long it waited for that: in a handler, or unread."""

    async def approved(n: int) -> int:
        await api.wait_for_signal("go")
        return n

    class Late(Workflow):
        name = "test.Late"
        chain_retention = WEEK

        async def run(self, args: Any) -> Any:
            if await api.phase(
                0,
                update={
                    "approve": update(lambda n, state: Async(lambda: approved(n), state)),
                    "read": update(lambda n, state: Reply(state, state + 1)),
                },
                signal={"next": lambda _, state: Stop(True), "stop": lambda _, state: Stop(False)},
            ):
                return ContinueAsNew(None)
            return Ok(args)

    handle = Late.start(0, id="late")
    drain()
    for name in ("approve", "read"):
        insert_message(
            handle.chain_id, kind="update", name=name, body=5, request_id=name, storage=DjangoStorage()
        )  # nobody reads them for a week
    answered_before(WEEK)
    drain()
    assert handle.update("read", 5, id="read") == 0
    handle.signal("go")
    drain()
    assert handle.update("approve", 5, id="approve") == 5
    handle.signal("next")
    drain()
    aged(handle, WEEK + timedelta(seconds=1))
    drain()
    assert Instance.objects.count() == 1
    assert (handle.update("approve", 6, id="approve"), handle.update("read", 6, id="read")) == (5, 0)
    handle.signal("next")
    answered_before(WEEK)
    drain()
    aged(handle, WEEK + timedelta(seconds=1))
    drain()
    assert not Message.objects.exists()
