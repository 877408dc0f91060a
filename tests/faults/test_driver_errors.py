"""The database refuses a statement of a worker, whichever it is: nothing is lost or doubled, nobody is blocked."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import Error as DatabaseError
from django.db import OperationalError, connection
from django.db.models.functions import Now

from temporalex_django.db.inserts import insert_message
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.models import ActivityTask, Chain, Instance
from temporalex_django.workers.loop import WorkerLoop
from tests.faults.test_crash_marks import closed, instance, start
from tests.support.campaign import REPEATED

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

#: Disk full, statement cancelled, deadlock, serialization failure.
ON_POSTGRES = ["53100", "57014", "40P01", "40001"]
ON_SQLITE = ["database or disk is full", "database is locked"]
_MOST_POLLS = 60


class Fault:
    """Fails one statement, counted from 1. The server itself does it, so that the transaction is over."""

    def __init__(self, what: str, at: int) -> None:
        self.what = what
        self.at = at
        self.seen = 0

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        self.seen += 1
        if self.seen != self.at:
            return execute(sql, params, many, context)
        if connection.vendor == "sqlite":
            raise OperationalError(self.what) from sqlite3.OperationalError(self.what)
        return execute(
            f"do $$ begin raise exception 'injected' using errcode = '{self.what}'; end $$", None, many, context
        )


def worked_through(loop: WorkerLoop, fault: Fault) -> None:
    """As ``WorkerLoop.run`` goes on: what a poll raises is waited out, a connection that may be broken is replaced."""
    for _ in range(_MOST_POLLS):
        try:
            with connection.execute_wrapper(fault):
                found = loop.poll()
        except DatabaseError as exc:
            if loop.storage.is_connection_lost(exc):
                connection.close()
            found = None
        if not found and not loop.pool.busy and not Instance.objects.open().exists():
            return
        loop.single_runs._pauses.clear()
        loop.storage._deferrals._until.clear()
        # a run that could not be written alone is blocked for a moment; what an atomic
        # activity asked for is its failure, tried again in a moment: that has passed
        Chain.objects.filter(failed_tries__gt=0).update(due_at=Now())
        Chain.objects.filter(atomic_due__isnull=False).update(due_at=Now(), atomic_due=Now())
        ActivityTask.objects.filter(owner=None).update(due_at=Now())
    raise AssertionError(f"not done after {_MOST_POLLS} polls, with {fault.what} at statement {fault.at}")


@pytest.mark.parametrize("shift", range(1 if REPEATED else 4))
def test_an_error_at_any_statement_of_a_worker_costs_a_try_and_nothing_else(shift: int, tmp_path: Path) -> None:
    """The errors take turns; in the long form each statement meets each of them."""
    codes = ON_POSTGRES if connection.vendor == "postgresql" else ON_SQLITE
    loop = WorkerLoop(inline=True)
    loop.row.register(loop.storage)
    log, at, done = tmp_path / "log", 0, False
    while not done:
        at += 1
        tally = start("Tally", workflow_id=f"t{at}")
        insert_message(tally.chain_id, kind="update", name="add", body=3, request_id="a", storage=DjangoStorage())
        insert_message(tally.chain_id, kind="signal", name="stop", body=None, storage=DjangoStorage())
        runs = [
            tally,
            start("Booking", {"name": f"u{at}"}, workflow_id=f"b{at}"),
            start("Recording", {"path": str(log)}, workflow_id=f"r{at}"),
        ]
        fault = Fault(codes[(at + shift) % len(codes)], at)
        worked_through(loop, fault)
        assert all(closed(run) for run in runs)
        assert {instance(run).status for run in runs} == {"completed"}, f"{fault.what} at statement {at}"
        assert instance(tally).closing_value == {"result": 3}
        done = fault.seen < at  # behind the last statement
    assert at > 20
    assert get_user_model().objects.count() == at
    effects = [line.split()[:2] for line in log.read_text().splitlines()]
    assert len(effects) == at, "an effect was repeated"
    assert {attempt for attempt, _ in effects} == {"1"}
    assert not ActivityTask.objects.exists()
