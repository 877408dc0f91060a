"""kill -9 while a Django task runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

from temporalex_django.models import ActivityTask
from tests.settings_tasks import TASKS
from tests.support.processes import running, worker
from tests.support.waiting import wait_for

with override_settings(TASKS=TASKS):
    from tests.app import tasks as t

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


@override_settings(TASKS=TASKS)
def test_a_killed_worker_leaves_its_task_to_the_next_and_at_most_once_is_at_most_once(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    env = {**subprocess_env, "DJANGO_SETTINGS_MODULE": "tests.settings_tasks"}
    log, hold, once, deadly = (tmp_path / name for name in ("log", "hold", "once", "deadly"))
    for path in (log, hold, once, deadly):
        path.touch()
    result = t.held.enqueue(str(log), str(hold))
    with worker(env, tmp_path, name="first") as first:
        wait_for(log.read_text)
        assert str(t.held.get_result(result.id).status) == "RUNNING"
        first.kill()
    hold.unlink()
    single = t.dies.enqueue(str(once))

    def over(one: Any) -> bool:
        one.refresh()
        return bool(one.is_finished)

    with running(["temporalex", "worker"], env, tmp_path / "second.log") as second:
        wait_for(lambda: second.popen.poll() is not None or (over(result) and over(single)))
    awaited = t.told_later.enqueue()
    with worker(env, tmp_path, name="third"):
        wait_for(lambda: over(result) and over(single) and over(awaited))

    assert (str(result.status), result.return_value) == ("SUCCESSFUL", int(log.read_text().split()[-1]))
    assert result.attempts == len(log.read_text().split()) == len(result.worker_ids) >= 2
    assert "WorkerLost" in result.errors[0].traceback
    assert (str(single.status), once.read_text().count("here"), single.attempts) == ("FAILED", 1, 1)
    assert "WorkerLost" in single.errors[0].traceback

    assert (str(awaited.status), awaited.return_value) == ("SUCCESSFUL", 1), "in the event loop of a worker"

    killer = t.kills.enqueue(str(deadly))
    for turn in range(3):
        with running(["temporalex", "worker"], env, tmp_path / f"w{turn}.log") as process:
            wait_for(lambda p=process: p.popen.poll() is not None)  # type: ignore[misc]
    with worker(env, tmp_path, name="last"):
        wait_for(lambda: over(killer))
    assert (str(killer.status), killer.attempts, deadly.read_text().count("here")) == ("FAILED", 3, 3)
    assert "3 workers died while running it" in killer.errors[-1].traceback
    assert not ActivityTask.objects.exists()
