"""Debounced and throttled starts on the database: many callers at once, their audit, and what people read."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from io import StringIO
from threading import Barrier
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from rest_framework.test import APIClient

from temporalex_django import Ok, Workflow
from temporalex_django.authoring.redaction import UNREDACTED
from temporalex_django.models import Chain, Instance, OperatorAction
from temporalex_django.operations.read.run_summary import summarize_run
from temporalex_django.testing import DjangoEnvironment

CALLERS = 4


class PacedRun(Workflow):
    async def run(self, args: Any) -> Any:
        return Ok(args)


def at_once(start: Any) -> list[Any]:
    barrier = Barrier(CALLERS)

    def call(number: int) -> Any:
        try:
            barrier.wait(30)
            return start(number)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(CALLERS) as pool:
        return [*pool.map(call, range(CALLERS))]


@pytest.mark.django_db(transaction=True)
def test_of_callers_at_once_one_starts_the_run_and_the_others_replace_its_input() -> None:
    outcomes = at_once(lambda number: PacedRun.start(number, id="d", debounce=3600).start_outcome)
    assert Counter(outcomes) == {"started": 1, "debounced": CALLERS - 1}
    run = Instance.objects.get()
    assert run.input in range(CALLERS)
    assert run.chain.due_at == run.starts_at


@pytest.mark.django_db(transaction=True)
def test_callers_at_once_do_not_pass_a_throttle() -> None:
    at_once(lambda number: [PacedRun.start(throttle=(3, 3600)) for _ in range(3)])
    begins = sorted(Chain.objects.values_list("due_at", flat=True))
    assert len(begins) == 3 * CALLERS
    for earlier, later in zip(begins, begins[3:], strict=False):
        assert later - earlier > timedelta(seconds=3599)


@pytest.mark.django_db
def test_a_thousandth_duplicate_costs_as_much_as_the_second() -> None:
    def statements() -> int:
        with CaptureQueriesContext(connection) as queries:
            PacedRun.start(id="d", debounce=3600)
        return len(queries)

    statements()
    second = statements()
    for _ in range(20):
        assert statements() == second
    assert Instance.objects.count() == 1


@pytest.mark.django_db
def test_a_run_that_no_worker_has_taken_yet_is_still_debounced() -> None:
    PacedRun.start(1, id="d", debounce=3600)
    Chain.objects.update(due_at=timezone.now() - timedelta(seconds=5))
    Instance.objects.update(starts_at=timezone.now() - timedelta(seconds=5))
    assert PacedRun.start(2, id="d", debounce=3600).start_outcome == "debounced"
    run = Instance.objects.get()
    assert run.input == 2
    assert run.chain.due_at > timezone.now()


@pytest.mark.django_db
def test_a_rolled_back_start_replaces_nothing_and_does_not_count() -> None:
    PacedRun.start(1, id="d", debounce=3600)
    before = Instance.objects.get().starts_at
    with transaction.atomic():
        PacedRun.start(2, id="d", debounce=7200)
        PacedRun.start(3, throttle=(1, 3600))
        transaction.set_rollback(True)
    run = Instance.objects.get()
    assert (run.input, run.starts_at) == (1, before)
    assert Instance.objects.get(pk=PacedRun.start(4, throttle=(1, 3600)).run_id).starts_at is None


@pytest.mark.django_db
def test_each_start_of_a_person_is_audited() -> None:
    root = get_user_model().objects.create_superuser("root")
    for number in range(2):
        PacedRun.start(number, id="d", debounce=3600, by=root)
    rows = OperatorAction.objects.order_by("pk")
    assert [(row.action, row.details) for row in rows] == [("start", {}), ("start", {"outcome": "debounced"})]


@pytest.mark.django_db
def test_the_page_names_the_throttle() -> None:
    env = DjangoEnvironment()
    h = [env.start(PacedRun, throttle=(1, 7200)) for _ in range(2)][-1]
    run = Instance.objects.get(pk=h.run_id)
    text = summarize_run(run, redactor=UNREDACTED, now=env.clock).text
    assert text == "Starts at 02:00. It is throttled: at most 1 run can start in any period of 2 h."


@pytest.mark.django_db
def test_rest_and_the_command_take_both() -> None:
    client = APIClient()
    client.force_authenticate(get_user_model().objects.create_superuser("root"))

    def post(**body: Any) -> Any:
        return client.post("/api/instances/", {"workflow": PacedRun.name, **body}, format="json")

    assert post(id="d", debounce=60).status_code == 201
    assert post(id="d", debounce=60, args=2).status_code == 201
    assert Instance.objects.get().input == 2
    assert [post(throttle=[1, 60, "k"]).json()["starts_at"] is None for _ in range(2)] == [True, False]
    bad = post(throttle=[0, 60])
    assert (bad.status_code, bad.json()["code"]) == (400, "invalid_start")

    def start(*options: str) -> str:
        out = StringIO()
        call_command("temporalex", "start", PacedRun.name, *options, stdout=out)
        return out.getvalue()

    assert start("--id", "d", "--debounce", "60").startswith("replaced the input of ")
    assert start("--throttle", "5", "60").startswith("started ")
    with pytest.raises(CommandError, match="--throttle must be a count and a number of seconds"):
        start("--throttle", "a", "b")
