"""Graphs, chains and families of the largest size: each page takes few statements, is bounded, and says so."""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.utils import timezone

from temporalex_django import Done, Event, GraphWorkflow, Step, Unique
from temporalex_django.models import Instance
from temporalex_django.operations.read.family import MAX_LEVELS
from tests.support.client_flows import Sleepy, drain
from tests.support.run_pages import CONSOLE, PARTS, address_of

pytestmark = pytest.mark.django_db

STEPS, RUNS, LEVELS, STATEMENTS = 2_000, 10_000, 45, 12
_MOST_CHARACTERS = 3_000_000


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(get_user_model().objects.create_superuser("root"))
    client.get(CONSOLE)
    return client


def long_graph() -> type[GraphWorkflow]:
    """A graph of many steps, one after the other."""

    def execute(self: Any, instance: Any, config: Any, context: Any) -> Event:
        return Event("next")

    steps = [type(f"Step{number}", (Step,), {"events": ("next",), "execute": execute}) for number in range(STEPS)]
    transitions = {(step, "next"): after for step, after in zip(steps, [*steps[1:], Done], strict=True)}
    return type(
        "LongGraph",
        (GraphWorkflow,),
        {
            "name": "test.LongGraphInTheConsole",
            "unique": Unique(key="order"),
            "initial": steps[0],
            "transitions": transitions,
        },
    )


def row_of(number: int, **columns: Any) -> Instance:
    now = timezone.now()
    return Instance(
        **{
            "id": uuid4(), "chain_id": uuid4(), "workflow": "x", "workflow_id": f"run-{number}", "version": 1,
            "status": "running", "queue": "q", "created_at": now, "args": b"null", "seed": 1, **columns,
        }
    )  # fmt: skip


def test_a_graph_of_two_thousand_steps(admin: Client, django_assert_max_num_queries: Any) -> None:
    run = long_graph().start("7")
    with django_assert_max_num_queries(STATEMENTS):
        text = admin.get(address_of(run.run_id, "graph")).content.decode()
    assert "more steps are not drawn" in text
    assert len(text) < _MOST_CHARACTERS
    with django_assert_max_num_queries(STATEMENTS):
        assert admin.get(address_of(run.run_id)).status_code == 200


def test_a_chain_of_ten_thousand_runs(admin: Client, django_assert_max_num_queries: Any) -> None:
    handle = Sleepy.start(id="forever")
    drain()
    run, now = Instance.objects.get(pk=handle.run_id), timezone.now()
    chain = {"workflow": run.workflow, "workflow_id": run.workflow_id, "chain_id": run.chain_id}
    Instance.objects.bulk_create(
        row_of(number, **chain, status="continued_as_new", closed_at=now, id=_older(run.pk, number))
        for number in range(1, RUNS)
    )
    oldest = Instance.objects.filter(chain_id=run.chain_id).order_by("pk")[0]
    for one in (run, oldest):
        for part in ("", *PARTS):
            with django_assert_max_num_queries(STATEMENTS):
                answer = admin.get(address_of(one.pk, part))
            assert answer.status_code == 200
            assert len(answer.content) < _MOST_CHARACTERS
    assert "Only the newest" in admin.get(address_of(run.pk, "family")).content.decode()
    with django_assert_max_num_queries(STATEMENTS):
        assert admin.get(f"{CONSOLE}runs/?q=forever").status_code == 200


def test_a_family_of_more_levels_than_a_tree_has(admin: Client, django_assert_max_num_queries: Any) -> None:
    ids = [Sleepy.start(id=f"run-{level}").run_id for level in range(LEVELS)]
    drain()
    runs = [Instance.objects.get(pk=run_id) for run_id in ids]
    for parent, child in pairwise(runs):
        Instance.objects.filter(pk=child.pk).update(parent_run=parent, parent_seq=1)
    for one in (runs[0], runs[LEVELS // 2]):
        with django_assert_max_num_queries(STATEMENTS):
            text = admin.get(address_of(one.pk, "family")).content.decode()
        assert "there may be more" in text
        assert f"run-{MAX_LEVELS - 1}" in text
    assert f"run-{LEVELS - 1}" not in admin.get(address_of(runs[0].pk, "family")).content.decode()


def _older(run_id: Any, number: int) -> Any:
    """Return an id that is older than that of a run."""
    return type(run_id)(int=run_id.int - (number << 80))
