"""Many starts in one call, on the database: in transactions, in statements of a thousand, and in somebody's name."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier
from typing import Any
from unittest.mock import patch

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from temporalex_django import Ok, Workflow, WorkflowHandle, errors
from temporalex_django.engine import policy
from temporalex_django.models import Chain, Instance, OperatorAction
from temporalex_django.testing import DjangoEnvironment
from tests.support.client_flows import drain

CALLERS = 3


class ManyOnes(Workflow):
    execution_timeout = timedelta(hours=1)
    search_attributes = {"total": int}

    async def run(self, args: Any) -> Any:
        return Ok(args)


def statements(count: int) -> int:
    with CaptureQueriesContext(connection) as queries:
        ManyOnes.start_many(range(count))
    return len(queries)


@pytest.mark.django_db
def test_the_statements_do_not_grow_with_the_runs() -> None:
    assert statements(300) == statements(3)
    with patch.object(policy, "STARTS_TOGETHER", 100):
        assert statements(300) > statements(3)
    assert Instance.objects.count() == 606


@pytest.mark.django_db
def test_rows_are_those_of_single_starts() -> None:
    user = get_user_model().objects.create_user("subject")
    options = {"id": "o-1", "subject": user, "tags": ["x"], "search_attributes": {"total": 3}, "start_delay": 60}
    single = ManyOnes.start(7, **{**options, "id": "o-2"})
    [handle] = ManyOnes.start_many([(7, options)])
    own = {"id", "chain", "workflow_id", "seed", "created_at", "starts_at", "expires_at"}
    rows = [
        {
            field.name: getattr(Instance.objects.get(pk=h.run_id), field.attname)
            for field in Instance._meta.concrete_fields
        }
        for h in (single, handle)
    ]
    assert {name for name in rows[0] if rows[0][name] != rows[1][name]} <= own
    run = Instance.objects.get(pk=handle.run_id)
    assert run.starts_at == run.created_at + timedelta(seconds=60) == run.chain.due_at
    assert run.expires_at == run.chain.deadline == run.starts_at + timedelta(hours=1)
    assert [*ManyOnes.list(attributes={"total": 3})] == [handle, single]


@pytest.mark.django_db
def test_workers_run_them_after_the_commit_of_the_caller() -> None:
    with transaction.atomic():
        ManyOnes.start_many([1, 2])
        transaction.set_rollback(True)
    assert not Instance.objects.exists()
    with transaction.atomic():
        handles = ManyOnes.start_many([1, 2])
    drain()
    assert [handle.result() for handle in handles] == [1, 2]


@pytest.mark.django_db
def test_somebody_needs_the_permission_and_each_start_is_audited() -> None:
    ann = get_user_model().objects.create_user("ann")
    with pytest.raises(errors.ActionNotPermitted, match="start_instance"):
        ManyOnes.start_many([1, 2], by=ann)
    assert not Instance.objects.exists()
    ann.user_permissions.add(Permission.objects.get(codename="start_instance"))
    handles = ManyOnes.start_many([1, 2], by=get_user_model().objects.get(pk=ann.pk))
    rows = OperatorAction.objects.filter(action="start", denied=False).order_by("pk")
    assert [str(row.run_id) for row in rows] == [handle.run_id for handle in handles]


@pytest.mark.django_db
def test_an_environment_starts_them_in_somebodys_name() -> None:
    ann = get_user_model().objects.create_user("ann")
    with pytest.raises(errors.ActionNotPermitted, match="start_instance"):
        DjangoEnvironment().start_many(ManyOnes, [1], by=ann)


@pytest.mark.django_db(transaction=True)
def test_async_code_starts_them_too() -> None:
    handles = async_to_sync(ManyOnes.astart_many)([1, (2, {"id": "two"})])
    assert [handle.id for handle in handles][1] == "two"


@pytest.mark.django_db
def test_a_run_id_is_no_business_id_of_others() -> None:
    first = ManyOnes.start(1)
    with pytest.raises(errors.InvalidId):
        ManyOnes.start_many([(2, {"id": first.run_id})])


@pytest.mark.django_db(transaction=True)
def test_callers_at_once_start_each_id_once() -> None:
    barrier = Barrier(CALLERS)

    def start(offset: int) -> list[Any]:
        try:
            barrier.wait(30)
            numbers = [(number + offset) % 30 for number in range(30)]
            return ManyOnes.start_many([(number, {"id": f"n-{number}"}) for number in numbers])
        finally:
            connections.close_all()

    with ThreadPoolExecutor(CALLERS) as pool:
        results = [result for some in pool.map(start, (0, 10, 20)) for result in some]
    assert Chain.objects.count() == 30
    assert sum(isinstance(result, WorkflowHandle) for result in results) == 30
    assert sum(isinstance(result, errors.AlreadyRunning) for result in results) == 60
