"""What a worker keeps of runs that it has parked and closed: nothing that grows from one wave of them to the next."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from django.db import transaction

from temporalex_django.db.inserts import StartedRun, insert_message, insert_start
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.run_start import RunStart
from temporalex_django.models import Instance
from tests.support.campaign import SCALE, scaled
from tests.support.processes import resident, worker
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.once_on_postgres]

COLLECTING = Path(__file__).parent / "collecting"
WAVES = 3
#: A worker collects garbage late, and holds what some 10,000 runs have left by then. Long waves reach that by
#: themselves.
LONG = SCALE >= 10


def test_the_third_wave_of_parked_runs_takes_no_more_memory_than_the_second(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    count, storage, collected = scaled(2_000 if LONG else 1_000), DjangoStorage(), tmp_path / "collected"
    patience = 60.0 + count / 20
    parked, over = [], []
    paths = f"{COLLECTING}{os.pathsep}{subprocess_env['PYTHONPATH']}"
    env = {**subprocess_env, "PYTHONPATH": paths, "TX_TEST_COLLECTED": str(collected)}
    if not LONG:  # more runs than are kept, as in long waves
        env |= {"DJANGO_SETTINGS_MODULE": "tests.settings_of_processes", "TX_TEST_TEMPORALEX": '{"CACHE_SIZE": 200}'}
    collected.touch()

    def wave(number: int) -> list[StartedRun]:
        args = {"spins": 0}
        with transaction.atomic():
            new = (RunStart(workflow="Ticking", workflow_id=f"t-{number}-{run}", args=args) for run in range(count))
            return [insert_start(one, storage=storage) for one in new]

    def are(status: str, how_many: int) -> bool:
        return Instance.objects.filter(status=status).count() == how_many

    def size() -> int:
        if not LONG:
            before = len(collected.read_text())
            os.kill(child, signal.SIGUSR1)
            wait_for(lambda: len(collected.read_text()) > before)
        return resident(child)

    with worker(env, tmp_path) as process:
        child = process.child
        for number in range(1, WAVES + 1):
            runs = wave(number)
            wait_for(lambda: are("waiting", count), seconds=patience)
            parked.append(size())
            with transaction.atomic():
                for run in runs:
                    insert_message(run.chain_id, kind="signal", name="stop", body=None, storage=storage)
            wait_for(lambda n=number: are("completed", n * count), seconds=patience)  # type: ignore[misc]
            over.append(size())
        assert process.child == child
    print(f"\n  {count:,} runs a wave: parked {_shown(parked)}, over {_shown(over)}")
    assert parked[2] < 1.05 * parked[1]
    assert over[2] < 1.05 * over[1]


def _shown(sizes: list[int]) -> str:
    return " ".join(f"{size / 1e6:.0f}" for size in sizes) + " MB"
