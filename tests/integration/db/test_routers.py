"""What one run does wrong is its own business, and a router that knows a replica is not asked about our tables."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import override_settings

from temporalex_django import Ok, Workflow, activity
from temporalex_django.engine import policy
from temporalex_django.models import Instance
from tests.support.client_flows import Basket, drain

pytestmark = pytest.mark.django_db


@activity(atomic=True)
def company_books(name: str) -> int:
    return int(get_user_model().objects.create(username=name).pk)


class GoodCompany(Workflow):
    name = "test.GoodCompany"

    async def run(self, args: Any) -> Any:
        return Ok(args)


class PoisonCompany(Workflow):
    name = "test.PoisonCompany"

    async def run(self, args: Any) -> Any:
        raise RuntimeError("poison")


class BookingCompany(Workflow):
    name = "test.BookingCompany"

    async def run(self, args: Any) -> Any:
        await company_books(args)
        return Ok(args)


def test_of_200_runs_one_raises_one_cannot_be_read_and_the_others_finish() -> None:
    good = [GoodCompany.start(n, id=f"good{n}") for n in range(198)]
    PoisonCompany.start(None, id="raises")
    unreadable = GoodCompany.start(1, id="unreadable")
    Instance.objects.filter(pk=unreadable.run_id).update(args=b"\xff{")

    drain()

    assert [one.result(0) for one in good] == [*range(198)]
    left = {run.workflow_id: run for run in Instance.objects.exclude(status="completed")}
    assert set(left) == {"raises", "unreadable"}
    assert left["raises"].blocked or left["raises"].status == "failed"
    assert left["unreadable"].blocked["code"] == "payload"


def test_an_atomic_activity_that_takes_long_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(policy, "SLOW_ATOMIC_SECONDS", 0.0)
    slow, other = BookingCompany.start("ann", id="slow"), GoodCompany.start(1, id="other")
    with caplog.at_level(logging.WARNING, "temporalex_django"):
        drain()
    assert "company_books held its transaction for" in caplog.text
    assert (slow.result(0), other.result(0)) == ("ann", 1)


class ReplicaRouter:
    """Reads go to a replica that there is not."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "replica" if model._meta.app_label == "temporalex_django" else None

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return None


def test_reads_of_runs_go_where_they_are_written() -> None:
    with override_settings(DATABASE_ROUTERS=[f"{__name__}.ReplicaRouter"]):
        basket = Basket.start(id="b-1")
        drain()
        assert basket.update("add", 5) == 1
        assert basket.query("items") == [5]
        assert basket.describe().status == "waiting"
        assert [handle.id for handle in Basket.list()] == ["b-1"]
        assert basket.history()
        basket.signal("checkout")
        drain()
        assert basket.result() == [5]
