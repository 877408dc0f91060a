"""Workers as processes: queues, retirement, and what ``runserver`` does."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped] # it ships no types
import pytest

from temporalex_django.db.inserts import StartedRun, insert_start
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.run_start import RunStart
from temporalex_django.models import HistoryEvent, Instance, Worker
from temporalex_django.workers.loop import run_until_idle
from tests.support.processes import running, worker
from tests.support.waiting import wait_for

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "commands"

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


def start(workflow: str, args: Any = None, **options: Any) -> StartedRun:
    options.setdefault("workflow_id", f"{workflow}-1")
    return insert_start(RunStart(workflow=workflow, args=args, **options), storage=DjangoStorage())


def closed(started: StartedRun) -> bool:
    return not Instance.objects.get(pk=started.run_id).is_open


def test_a_worker_takes_its_queues_and_no_others(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    here = start("Doubling", {"n": 1}, workflow_id="here", queue="slow")
    elsewhere = start("Doubling", {"n": 1}, workflow_id="elsewhere", queue="fast")
    with worker(subprocess_env, tmp_path, "--queues", "slow,slower"):
        assert Worker.objects.get().queues == ["slow", "slower"]
        wait_for(lambda: closed(here))
        assert Instance.objects.get(pk=elsewhere.run_id).status == "pending"


@pytest.mark.parametrize(
    ("near", "meant"), [("crwod", "Did you mean crowd?"), ("elsewhere", "The project uses crowd, default.")]
)
def test_a_worker_says_of_which_queue_nothing_in_the_project_knows(
    near: str, meant: str, subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    arguments = ["temporalex", "worker", "--burst", "--queues", f"crowd,{near}"]
    with running(arguments, subprocess_env, tmp_path / "out") as process:
        assert process.popen.wait(30) == 0

    said = (tmp_path / "out").read_text()
    assert said.count(f"uses the queue {near}, ") == said.count(meant) == 1
    assert "uses the queue crowd, " not in said


def test_a_worker_of_no_queue_is_refused(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    with running(["temporalex", "worker", "--queues", " ,"], subprocess_env, tmp_path / "out") as process:
        assert process.popen.wait(30) == 2

    assert (
        "--queues contains no queue. Leave it out to use all queues: crowd, default." in (tmp_path / "out").read_text()
    )


def test_a_worker_deletes_what_was_kept_long_enough(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    stays = start("Doubling", {"n": 1})
    with worker(subprocess_env, tmp_path):
        wait_for(lambda: closed(stays))
        start("Fleeting", 1)
        wait_for(lambda: Instance.objects.filter(workflow="Fleeting", status="completed").exists())
        wait_for(lambda: not Instance.objects.filter(workflow="Fleeting").exists())
    assert Instance.objects.get().pk == stays.run_id
    assert HistoryEvent.objects.exclude(run_id=stays.run_id).count() == 0


def test_a_run_whose_class_was_renamed_waits_for_a_worker_that_has_it(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    """Blocked with the cause and the way out, and healed by taking it."""
    env = {**subprocess_env, "DJANGO_SETTINGS_MODULE": "tests.settings_of_processes"}
    started = start("Former", 20, version=3)
    with worker(env, tmp_path, name="without"):
        blocked = wait_for(lambda: Instance.objects.get(pk=started.run_id).blocked)
        assert blocked["code"] == "unknown_workflow"
        assert "version 3 of 'Former'" in blocked["error"]
        assert "give its successor `name = 'Former'`" in blocked["error"]

    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "__init__.py").touch()
    (tmp_path / "later" / "workflows.py").write_text(
        "from temporalex_django import Ok, Workflow\n\n\n"
        "class Later(Workflow):\n"
        "    name = 'Former'\n\n"
        "    async def run(self, args):\n"
        "        return Ok(args + 1)\n",
        encoding="utf-8",
    )
    paths = [str(tmp_path), *filter(None, [env.get("PYTHONPATH")])]
    with worker({**env, "TX_TEST_APPS": "later", "PYTHONPATH": os.pathsep.join(paths)}, tmp_path, name="with"):
        wait_for(lambda: closed(started))
    row = Instance.objects.get(pk=started.run_id)
    assert (row.status, row.closing_value, row.blocked) == ("completed", {"result": 21}, None)


def test_burst_fails_when_it_does_not_come_to_an_end_in_time(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    log, hold = tmp_path / "log", tmp_path / "hold"
    log.touch()
    hold.touch()
    start("Recording", {"path": str(log), "hold": str(hold)})
    arguments = ["temporalex", "worker", "--burst", "--timeout", "1"]
    with running(arguments, subprocess_env, tmp_path / "out") as process:
        assert process.popen.wait(30) == 1
    hold.unlink()

    assert "still work" in (tmp_path / "out").read_text()


def test_a_worker_says_in_json_that_it_began_what_it_logs_and_that_it_ended(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    start("Doubling", {"n": 1})
    start("NobodyHasThisClass", {})

    with running(["temporalex", "worker", "--burst", "--json"], subprocess_env, tmp_path / "out") as process:
        assert process.popen.wait(30) == 0

    said = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    schema = json.loads((GOLDEN / "worker.schema.json").read_text())
    for one in said:
        jsonschema.validate(one, schema)
    assert (said[0]["event"], said[0]["database"], said[0]["workflows"] > 0) == ("started", "default", True)
    assert (said[-1]["event"], said[-1]["worker"], said[-1]["turns"] > 0) == ("ended", said[0]["worker"], True)
    blocked = [one for one in said[1:-1] if one["level"] == "ERROR"]
    assert "is blocked" in blocked[0]["text"]
    assert blocked[0]["about"]["run_id"] in blocked[0]["text"]


def test_a_pump_of_a_cluster_retires_and_is_replaced(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    env = {**subprocess_env, "TX_TEST_TEMPORALEX": '{"WORKER_MAX_SECONDS": 1.0}'}
    env |= {"DJANGO_SETTINGS_MODULE": "tests.settings_of_processes"}
    with running(["qcluster", "--skip-checks"], env, tmp_path / "log") as process:
        first = wait_for(lambda: process.popen.poll() is None and Worker.objects.filter(kind="q2").first())
        second = wait_for(lambda: Worker.objects.filter(kind="q2").exclude(pid=first.pid).first())
        started = start("Doubling", {"n": 1})
        wait_for(lambda: closed(started))

    assert second.pid != first.pid


def _status(port: int) -> int:
    """What the server answers with; 0 when it does not yet."""
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


@pytest.fixture
def _in_the_background() -> Iterator[None]:
    """Started by a shell in the background, pytest finds SIGINT ignored; what it starts must mind it all the same."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_in_the_background")
def test_runserver_under_debug_runs_workflows(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {**subprocess_env, "DJANGO_SETTINGS_MODULE": "tests.settings_of_processes", "TX_TEST_DEBUG": "1"}
    started = start("Doubling", {"n": 1})
    with running(["runserver", f"127.0.0.1:{port}", "--noreload", "--skip-checks"], env, tmp_path / "log"):
        wait_for(lambda: closed(started))
        assert "This process runs workflows" in (tmp_path / "log").read_text()
        row = Worker.objects.get()
        assert row.kind == "local"
        assert Path(row.crash_marker).exists()
        wait_for(lambda: _status(port))  # until it serves, an import may swallow the interrupt
        os.kill(row.pid, signal.SIGINT)  # Ctrl-C
        wait_for(lambda: not Worker.objects.exists())


def test_replay_spreads_over_processes(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    storage = DjangoStorage()
    for n in range(60):
        insert_start(RunStart(workflow="Doubling", args={"n": n}, workflow_id=f"d-{n}"), storage=storage)
    run_until_idle()
    report = tmp_path / "report.json"
    with running(["temporalex", "replay", "--processes", "2", "--json"], subprocess_env, report) as process:
        assert process.popen.wait(60) == 0
    counts = {"checked": 60, "clean": 60, "on_cluster": 0}
    assert json.loads(report.read_text()) == {**counts, "left_out": {}, "findings": [], "differences": []}
