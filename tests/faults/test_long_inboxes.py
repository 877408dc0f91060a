"""A worker is killed in the middle of a long inbox.

What was consumed is kept, the next worker rebuilds the run and goes on.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from django.db import transaction

from temporalex_django.db.inserts import insert_message, insert_start
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.run_start import RunStart
from temporalex_django.models import Chain, Instance, Message
from tests.app.turns import spins
from tests.support.campaign import scaled
from tests.support.processes import worker
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once_on_postgres]


def test_killed_half_way_every_signal_is_consumed_once_and_in_order(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    count = scaled(5_000)
    storage = DjangoStorage()
    args = {"spins": spins(1)}
    started = insert_start(RunStart(workflow="Ticking", workflow_id="t-1", args=args), storage=storage)
    with transaction.atomic():
        for number in range(count):
            insert_message(started.chain_id, kind="signal", name="tick", body=number, storage=storage)
        insert_message(started.chain_id, kind="signal", name="stop", body=None, storage=storage)

    def left() -> int:
        return Message.objects.filter(chain_id=started.chain_id).count()

    patience = 60.0 + count / 20
    with worker(subprocess_env, tmp_path, name="first") as first:
        wait_for(lambda: left() < count / 2, seconds=patience)
        first.kill()
    assert left() > 0
    with worker(subprocess_env, tmp_path, name="second"):
        wait_for(lambda: not Instance.objects.get(pk=started.run_id).is_open, seconds=patience)

    run = Instance.objects.get(pk=started.run_id)
    assert run.closing_value == {"result": [count, count]}
    assert (run.blocked, Chain.objects.get(pk=started.chain_id).crashes) == (None, 0)
