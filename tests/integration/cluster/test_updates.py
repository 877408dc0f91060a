"""Updates whose callers have gone: they end, they are audited, and a repeat stores their outcome."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import transaction

from temporalex_django import NoReply, Ok, Reply, Workflow, api, errors, query, update
from temporalex_django.backends.cluster import requests
from temporalex_django.backends.cluster.client import cluster_client
from temporalex_django.models import Message, OperatorAction, Outbox
from tests.integration.cluster.conftest import WorkerMaker
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

QUEUE = f"cluster-updates-{uuid.uuid4().hex[:8]}"


class MirroredUpdated(Workflow):
    task_queue = QUEUE

    signals = ("double",)

    @query("total")
    @staticmethod
    def total(state: Any) -> Any:
        return state

    async def run(self, args: Any) -> Any:
        api.publish_state("open")
        return Ok(
            await api.phase(
                0,
                update={"add": update(lambda n, total: Reply(total + n, total + n))},
                signal={"double": lambda _, total: NoReply(2 * total)},
            )
        )


def started() -> Any:
    return MirroredUpdated.start(None, id=f"updated-{uuid.uuid4().hex[:6]}")


def test_an_update_follows_what_was_committed_before_it(cluster: Any, start_worker: WorkerMaker) -> None:
    with start_worker():
        with transaction.atomic():
            handle = started()
        assert handle.update("add", 3, timeout=30) == 3
        with transaction.atomic():
            handle.signal("double")
        assert handle.update("add", 1, timeout=30) == 7
        with transaction.atomic():
            other = started()
        assert other.query("total") == "open"
    assert not Outbox.objects.exists()


def test_an_update_of_a_run_that_begins_later_says_when(cluster: Any) -> None:
    handle = MirroredUpdated.start(None, id=f"updated-{uuid.uuid4().hex[:6]}", start_delay=3600)
    starts_at = handle.describe().starts_at
    with pytest.raises(errors.NotAccepting, match="has not begun; it starts at") as refused:
        handle.update("add", 1)
    assert starts_at.isoformat(timespec="seconds") in str(refused.value)
    assert not Message.objects.exists()


def test_an_update_of_a_run_whose_start_cannot_be_sent_says_why(cluster: Any, settings: Any) -> None:
    settings.TEMPORALEX = {**settings.TEMPORALEX, "CLUSTER": {**cluster, "ADDRESS": "127.0.0.1:1"}}
    handle = started()
    with pytest.raises(errors.UpdateTimeout, match="127.0.0.1:1 cannot be reached.*Nothing was sent"):
        handle.update("add", 1, timeout=0.2)
    assert [row.kind for row in Outbox.objects.all()] == ["temporal.start"]
    assert not Message.objects.exists()


def test_an_update_is_not_sent_for_ever(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_GRACE", 0.2)
    handle = started()
    with pytest.raises(errors.UpdateTimeout):
        handle.update("add", 1, timeout=0.2)
    wait_for(lambda: not asyncio.all_tasks(cluster_client()._loop))


def test_an_update_without_an_outcome_is_audited_and_a_repeat_stores_it(
    cluster: Any, start_worker: WorkerMaker
) -> None:
    handle, boss = started(), get_user_model().objects.create_superuser("boss")
    with pytest.raises(errors.UpdateTimeout):
        handle.update("add", 1, id="u-1", timeout=0.2, by=boss)
    row = OperatorAction.objects.get(action="update")
    assert (row.actor_name, row.details["update_id"]) == ("boss", "u-1")
    with start_worker():
        assert handle.update("add", 1, id="u-1", timeout=30, by=boss) == 1
    assert Message.objects.get(request_id="u-1").outcome_status == "completed"
    assert OperatorAction.objects.filter(action="update").count() == 1
