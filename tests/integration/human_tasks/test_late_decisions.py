"""People who are late, or come while the database is busy, are told so in the words of the package."""

from __future__ import annotations

import sqlite3

import pytest
from django.db import connection, connections

from temporalex_django import Ok, Workflow, api, errors
from temporalex_django.models import HumanTask
from temporalex_django.operations.base import Actor
from temporalex_django.operations.human_tasks.operations import Claim, Decide
from temporalex_django.testing import drain
from tests.support.people import stored

pytestmark = pytest.mark.django_db(transaction=True)
MAY = "auth.change_group"


class Asks(Workflow):
    name = "test.LateAsks"

    async def run(self, args):
        return Ok((await api.approval("Pay it", role=MAY)).outcome)


@pytest.fixture
def task() -> HumanTask:
    Asks.start(id="asks")
    drain()
    return HumanTask.objects.get()


def test_a_decision_of_a_run_that_has_just_closed(task):
    ann = stored("ann", MAY)
    Asks.handle("asks").terminate("enough")

    with pytest.raises(errors.HumanTaskClosed):
        Decide(task, outcome="approved", by=Actor(user=ann)).execute()


@pytest.mark.skipif(connection.vendor != "sqlite", reason="SQLite has one lock for all writers")
def test_a_claim_while_somebody_else_writes(task):
    ann = stored("ann", MAY)
    connections["default"].ensure_connection()
    connection.cursor().execute("pragma busy_timeout = 50")
    other = sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None)
    other.execute("begin immediate")
    try:
        with pytest.raises(errors.UpdateTimeout) as busy:
            Claim(task, by=Actor(user=ann)).execute()
        with pytest.raises(errors.UpdateTimeout) as paused:
            Asks.handle("asks").pause()
    finally:
        other.execute("rollback")
        other.close()

    assert busy.value.code == paused.value.code == "busy"
    Claim(task, by=Actor(user=ann)).execute()
    assert HumanTask.objects.get().claimed_by_name == "ann"
