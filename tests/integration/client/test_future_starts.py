"""Starts in the future on the database: in transactions, by REST and by the command, and what people read of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from rest_framework.test import APIClient

from temporalex_django import NoReply, Ok, Reply, Workflow, api, errors
from temporalex_django.authoring.redaction import UNREDACTED
from temporalex_django.models import Chain, Instance
from temporalex_django.operations.read.run_summary import summarize_run
from temporalex_django.testing import DjangoEnvironment
from tests.support.client_flows import drain

pytestmark = pytest.mark.django_db
DAY = timedelta(days=1)
BEGIN = datetime(2040, 5, 4, 9, tzinfo=UTC)


class FutureBasket(Workflow):
    execution_timeout = timedelta(hours=3)
    run_timeout = timedelta(hours=2)

    async def run(self, args: Any) -> Any:
        def add(n: int, state: Any) -> Any:
            return NoReply([*state, n])

        def put(n: int, state: Any) -> Any:
            return Reply(n, [*state, n])

        return Ok(await api.phase([], signal={"add": add}, update={"put": put}))


def sentence(run: Instance, now: datetime) -> tuple[str, str]:
    summary = summarize_run(run, redactor=UNREDACTED, now=now)
    return summary.state, summary.text


def test_its_rows_have_the_times() -> None:
    with CaptureQueriesContext(connection) as plain_queries:
        FutureBasket.start(id="f-1")
    with CaptureQueriesContext(connection) as queries:
        h = FutureBasket.start(id="f-2", start_at=BEGIN, start_before=BEGIN + timedelta(minutes=5))
    run = Instance.objects.get(pk=h.run_id)
    chain = Chain.objects.get(run_id=run.pk)
    plain = Instance.objects.get(workflow_id="f-1")

    assert len(queries) == len(plain_queries)
    assert (run.starts_at, run.start_before, run.begins_at) == (BEGIN, BEGIN + timedelta(minutes=5), BEGIN)
    assert (chain.due_at, chain.deadline) == (BEGIN, BEGIN + timedelta(minutes=5))
    assert run.expires_at == BEGIN + timedelta(hours=3)
    assert (plain.starts_at, plain.start_before, plain.begins_at) == (None, None, plain.created_at)


def test_a_delay_counts_from_the_start() -> None:
    h = FutureBasket.start(id="f-1", start_delay=90)
    run = Instance.objects.get(pk=h.run_id)
    chain = Chain.objects.get(run_id=run.pk)
    assert chain.due_at is not None
    assert chain.deadline is not None
    assert abs(chain.due_at - run.created_at - timedelta(seconds=90)) < timedelta(seconds=1)
    assert abs(chain.deadline - run.created_at - timedelta(hours=2, seconds=90)) < timedelta(seconds=1)


def test_a_rolled_back_start_leaves_nothing() -> None:
    with transaction.atomic():
        FutureBasket.start(id="f-1", start_at=BEGIN)
        transaction.set_rollback(True)
    with transaction.atomic():
        FutureBasket.start(id="f-1", start_at=BEGIN)
        with pytest.raises(errors.NotAccepting, match="the run has not begun; it starts at 2040-05-04T09:00:00"):
            FutureBasket.handle("f-1").update("put", 1)
    assert Instance.objects.get().status == "pending"


def test_a_worker_leaves_it_alone_and_reads_its_messages_once() -> None:
    h = FutureBasket.start(id="f-1", start_at=BEGIN)
    h.signal("add", 1)
    drain()
    h.signal("add", 2)
    drain()
    run, chain = Instance.objects.get(), Chain.objects.get()
    assert (run.status, chain.due_at, chain.head_token) == ("pending", BEGIN, None)
    # A wake-up that knows nothing of the start, as after a crash or a switch.
    Chain.objects.update(due_at=timezone.now())
    drain()
    assert Chain.objects.get().due_at == BEGIN
    Instance.objects.update(starts_at=timezone.now())
    Chain.objects.update(due_at=timezone.now())
    drain()
    assert Instance.objects.get().status == "waiting"


def test_a_due_time_in_the_future_alone_does_not_stop_a_run() -> None:
    """A clock that was set back must not refuse the messages of a run that was to begin at once."""
    h = FutureBasket.start(id="f-1")
    Chain.objects.update(due_at=timezone.now() + DAY)
    assert h.update("put", 1) == 1


def test_the_page_says_when_it_starts() -> None:
    env = DjangoEnvironment()
    h = env.start(FutureBasket, start_delay=DAY, start_before=env.clock + timedelta(days=1, hours=1))
    run = Instance.objects.get(pk=h.run_id)
    assert sentence(run, env.clock) == (
        "not_begun",
        "Starts tomorrow at 00:00. Times out if it has not begun by tomorrow 01:00.",
    )
    late = run.begins_at + timedelta(seconds=2)
    assert sentence(run, late) == ("not_taken_up", "Started 2 s ago; no worker has picked it up yet.")
    h.cancel("changed my mind")
    run.refresh_from_db()
    assert sentence(run, env.clock) == ("cancelled", "Cancelled at 00:00, before it began: changed my mind.")


def test_the_page_says_that_it_did_not_begin_in_time() -> None:
    env = DjangoEnvironment()
    h = env.start(FutureBasket, start_delay=60, start_before=env.clock + timedelta(seconds=90))
    h.pause()
    env.advance(120)
    h.unpause()
    run = Instance.objects.get(pk=h.run_id)
    assert sentence(run, env.clock) == ("timed_out", "Timed out at 00:02, before it began.")


def test_rest_starts_in_the_future() -> None:
    client = APIClient()
    client.force_authenticate(get_user_model().objects.create_superuser("root"))
    body = {"workflow": FutureBasket.name, "id": "f-1", "start_at": "2040-05-04T11:00:00+02:00"}
    response = client.post("/api/instances/", {**body, "start_before": "2040-05-04T12:00:00+02:00"}, format="json")
    assert response.status_code == 201, response.content
    found = response.json()
    assert (found["starts_at"], found["start_before"]) == ("2040-05-04T09:00:00Z", "2040-05-04T10:00:00Z")
    assert found["waiting_for"] == ["its start at 2040-05-04T09:00:00+00:00"]
    assert found["summary"]["text"].startswith("Starts on 4 May 2040 at 09:00.")
    delayed = client.post("/api/instances/", {"workflow": FutureBasket.name, "start_delay": 60}, format="json")
    assert delayed.json()["starts_at"] is not None
    naive = client.post("/api/instances/", {**body, "id": "f-2", "start_at": "2040-05-04T11:00:00"}, format="json")
    assert naive.status_code == 400
    assert "offset from UTC" in naive.content.decode()
    both = client.post("/api/instances/", {**body, "id": "f-2", "start_delay": 5}, format="json")
    assert (both.status_code, both.json()["code"]) == (400, "invalid_start")


def test_the_command_starts_in_the_future() -> None:
    def start(*options: str) -> Instance:
        call_command("temporalex", "start", FutureBasket.name, *options, stdout=StringIO())
        return Instance.objects.latest("pk")

    run = start("--start-at", "2040-05-04T11:00:00+02:00", "--start-before", "2040-05-04T12:00:00+02:00")
    assert (run.starts_at, run.start_before) == (BEGIN, BEGIN + timedelta(hours=1))
    assert start("--start-delay", "60").starts_at is not None
    with pytest.raises(CommandError, match="is not a time with an offset from UTC"):
        start("--start-at", "2040-05-04T11:00:00")


def test_signal_with_start_of_the_class_takes_the_times() -> None:
    h = FutureBasket.signal_with_start("add", 1, id="f-1", start_at=BEGIN, start_before=BEGIN + DAY)
    run = Instance.objects.get(pk=h.run_id)
    assert (run.starts_at, run.start_before) == (BEGIN, BEGIN + DAY)
    h = FutureBasket.signal_with_start("add", 1, id="f-2", start_delay=60)
    assert Instance.objects.get(pk=h.run_id).starts_at is not None
