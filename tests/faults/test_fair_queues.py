"""Callers that lock a business row before ``update()``, and the atomic activity of the same run that needs it.

Both go on.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from django.contrib.auth import get_user_model
from django.db import DatabaseError, connections, transaction

from temporalex_django import WorkflowHandle
from temporalex_django.db.inserts import insert_message, insert_start
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.run_start import RunStart
from temporalex_django.errors import UpdateTimeout
from tests.support.processes import worker
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]

CALLERS = 6
TURNS = 25


def test_atomic_activities_are_not_starved_by_callers_that_have_their_row(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    users, over, answered = get_user_model().objects, threading.Event(), []
    users.create(username="hot", last_name="0")
    new = RunStart(workflow="Contested", workflow_id="c-1", args={"name": "hot", "times": TURNS})
    started = insert_start(new, storage=DjangoStorage())

    def call() -> None:
        while not over.is_set():
            try:
                with transaction.atomic():
                    users.select_for_update().get(username="hot")
                    time.sleep(0.03)  # what a view does with the row
                    WorkflowHandle("c-1").update("touch", None)
                answered.append(1)
            except (UpdateTimeout, DatabaseError):
                continue
        connections.close_all()

    def done() -> bool:
        return users.get(username="hot").last_name == str(TURNS)

    callers = [threading.Thread(target=call) for _ in range(CALLERS)]
    with worker(subprocess_env, tmp_path):
        wait_for(lambda: WorkflowHandle("c-1").describe().accepts["updates"])
        for caller in callers:
            caller.start()
        try:
            insert_message(started.chain_id, kind="signal", name="begin", body=None, storage=DjangoStorage())
            began = time.monotonic()
            wait_for(done, seconds=120)
            print(f"\n  {TURNS} turns in {time.monotonic() - began:.1f} s")
            before = len(answered)
            wait_for(
                lambda: len(answered) > before + CALLERS
            )  # an update is not judged while an atomic activity is due
        finally:
            over.set()
            for caller in callers:
                caller.join()
    assert done()
