"""``temporalex doctor`` on broken projects: what it says first, and what it says of a run that stands still."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from django.db import OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.recorder import MigrationRecorder
from django.test import override_settings
from django.utils import timezone

from temporalex_django import checks, errors
from temporalex_django.authoring import workflow as workflows
from temporalex_django.core.payloads.codec import JsonCodec
from temporalex_django.management import outputs
from temporalex_django.management.replay import ReplayBatch
from temporalex_django.models import ActivityTask, Chain, Instance, SwitchedOff, Worker
from temporalex_django.present.view_models import LATE_PERIOD as STUCK
from tests.integration.management.test_commands import fits, golden
from tests.support.client_flows import Basket, drain
from tests.support.commands import shell, timeless, transcript
from tests.support.matrix import Choice, Errand
from tests.support.people import stored

pytestmark = [pytest.mark.django_db, pytest.mark.of_the_tables("problems of workers of the tables")]

LATE = 2 * STUCK


@pytest.fixture(autouse=True)
def _same_each_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("COLUMNS", raising=False)
    # Tests that ran before may have declared schedules.
    monkeypatch.setattr("temporalex_django.authoring.schedules.schedule._declarations", {})
    with timeless():
        yield


def worker(**about: Any) -> Worker:
    """One that is alive, with the classes of these tests."""
    now = timezone.now()
    able = {
        "queues": ["default"],
        "workflows": {Basket.name: [1], Errand.name: [1]},
        "activity_names": ["matrix.refused"],
        "expires_at": now + timedelta(hours=1),
        **about,
    }
    return Worker.objects.create(
        id=uuid.uuid4(), epoch=uuid.uuid4().int % 2**40, kind="worker", host="web-3", pid=7, started_at=now,
        beat_at=now, **able,
    )  # fmt: skip


def due() -> None:
    """A run that waits for its first turn, and has waited for a while."""
    Basket.start(id="basket-1")
    Chain.objects.update(due_at=timezone.now() - LATE)
    Instance.objects.update(created_at=timezone.now() - LATE)


def errand() -> None:
    Errand.start(value="1")
    drain()


def blocked() -> None:
    worker()
    Basket.start(id="basket-1")
    drain()
    mark = {"code": "nondeterminism", "error": "does not fit", "recorded": "timer", "produced": "activity charge"}
    Instance.objects.update(
        blocked={**mark, "event": 4, "place": "orders.py:88", "attempt": 1, "since": "2026-11-03T14:02:00+00:00"}
    )


def paused() -> None:
    worker()
    Basket.start(id="basket-1").pause("bank holiday")


def untaken() -> None:
    errand()
    worker(activity_names=[])
    ActivityTask.objects.update(
        failed_at=None, failure=None, cause=None, failing_since=None, due_at=timezone.now() - LATE
    )


def failing() -> None:
    errand()
    worker()


def not_migrated() -> None:
    MigrationRecorder.Migration.objects.filter(app="temporalex_django").delete()


def off(kind: str, name: str) -> None:
    SwitchedOff.objects.create(kind=kind, name=name, since=timezone.now() - LATE, by="ann", reason="the bank is down")


def dead() -> None:
    due()
    worker(expires_at=timezone.now() - timedelta(hours=1))


@dataclass(frozen=True)
class Broken:
    """A project with something wrong, and what is to be said of it first."""

    says: str
    rows: Callable[[], Any] = bool
    settings: dict[str, Any] | None = None
    patches: tuple[Any, ...] = ()
    severity: str = "error"


def gone(*_: Any) -> None:
    raise OperationalError('connection to server at "db" failed: refused\nDETAIL: secret')


Q2 = {"name": "tests", "orm": "default", "workers": 2, "timeout": 60, "retry": 120}
#: Each is tried alone; the sentence is the first of all that is said.
BROKEN: dict[str, Broken] = {
    "a misspelt setting": Broken("did you mean 'POLL_INTERVAL'?", settings={"TEMPORALEX": {"POLL_INTERVALL": 1}}),
    "a database that is no database": Broken(
        "TEMPORALEX['DATABASE'] is 'runs', which is not in DATABASES", settings={"TEMPORALEX": {"DATABASE": "runs"}}
    ),
    "a database that is gone": Broken(
        'The database default cannot be reached: connection to server at "db" failed: refused.',
        patches=(patch.object(BaseDatabaseWrapper, "ensure_connection", gone),),
    ),
    "no tables": Broken("The workflow tables on default are not up to date. Unapplied migrations: 0001_initial.", not_migrated),
    "a module that is not loaded": Broken(
        "shop.workflows is not loaded: run() must be async",
        patches=(
            patch.object(checks, "definition_errors", [("shop.workflows", errors.WorkflowDefinitionError("run() must be async"))]),
        ),
    ),
    "a broker that is none": Broken(
        "Q_CLUSTER['broker_class'] is 'temporalex_django.q2.Brokr', which cannot be imported",
        settings={"Q_CLUSTER": {**Q2, "broker_class": "temporalex_django.q2.Brokr"}},
    ),
    "no class": Broken(
        "No workflow class is registered in this project.", patches=(patch.object(workflows, "registry", {}),),
        severity="warning",
    ),
    "a cluster without our broker": Broken(
        "django-q2 is set up without the broker of temporalex: this cluster does not advance workflows.", due,
        settings={"Q_CLUSTER": Q2}, severity="warning",
    ),
    "no worker": Broken("No live workers: runs cannot make progress.", due),
    "a worker that died": Broken("No live workers: runs cannot make progress. Last seen: web-3:7, 14:02.", dead),
    "workers that are drained": Broken(
        "All live workers are drained: runs cannot make progress. Drained: web-3:7.",
        lambda: (due(), worker(drained_at=timezone.now())),
    ),
    "a queue that is off": Broken(
        "The queue default was switched off by ann at 14:02 (the bank is down).",
        lambda: (due(), worker(), off("queue", "default")), severity="warning",
    ),
    "an activity that is off": Broken(
        "The activity matrix.refused was switched off by ann at 14:02 (the bank is down).",
        lambda: (untaken(), off("activity", "matrix.refused")), severity="warning",
    ),
    "a worker of another queue": Broken(
        "1 run of test.Basket (version 1) has been due since 14:02 and is waiting for a worker: no live worker polls the queue 'default'.",
        lambda: (due(), worker(queues=["slow"])),
    ),
    "a worker with old code": Broken(
        "1 run of test.Basket (version 1) has been due since 14:02 and is waiting for a worker: 1 worker polls the queue default; it lacks the code of",
        lambda: (due(), worker(workflows={Basket.name: [2]})),
    ),
    "workers that do not come to it": Broken(
        "1 run of test.Basket has been due for 3 s, although a live worker can run it.", lambda: (due(), worker()),
        severity="warning",
    ),
    "code that no longer fits": Broken("1 run of test.Basket is blocked (nondeterminism)", blocked),
    "a pause that was forgotten": Broken("1 run of test.Basket is paused.", paused, severity="warning"),
    "an activity without code": Broken("In 1 run, the activity matrix.refused has been waiting for a worker since 14:02", untaken),
    "an activity that fails": Broken(
        "1 activity of test.MatrixErrand has been failing since 14:02 and is being retried: matrix.refused: ConnectionError at support/matrix.py:", failing, severity="warning"
    ),
    "a clock that is wrong": Broken(
        "The clock of web-3:7 is 3 s ahead of the database's", lambda: worker(clock_skew=40.0), severity="warning"
    ),
    "nothing to do": Broken("No runs are open: there is nothing to do.", worker, severity="note"),
    "nothing wrong": Broken(
        "No problems found: 1 run is open and will continue when the event that it is waiting for arrives.",
        lambda: (worker(), Basket.start(id="basket-1"), drain()),
        severity="note",
    ),
}  # fmt: skip


@contextmanager
def project(broken: Broken) -> Iterator[None]:
    with ExitStack() as stack:
        broken.rows()
        if broken.settings:
            stack.enter_context(override_settings(**broken.settings))
        for one in broken.patches:
            stack.enter_context(one)
        yield


@pytest.mark.parametrize("name", BROKEN)
def test_the_first_sentence(name: str) -> None:
    broken = BROKEN[name]
    with project(broken):
        ran = shell("doctor", "--json")
        said = fits("doctor", ran.out)
        golden(f"doctor/{name.replace(' ', '_')}.txt", transcript("doctor"))

    first = said["findings"][0]
    assert broken.says in first["text"]
    assert (first["severity"], bool(first["next_step"])) == (broken.severity, True)
    assert said["well"] == all(one["severity"] != "error" for one in said["findings"])
    assert ran.status == (0 if said["well"] else outputs.FINDINGS)
    assert "secret" not in ran.out


def test_one_run() -> None:
    blocked()
    Basket.start(id="it's")
    stored("ann")
    stored("bob", "temporalex_django.view_instance")
    golden(
        "doctor/RUN.txt",
        transcript("doctor", "basket-1"),
        transcript("doctor", "it's"),
        transcript("doctor", "nobody"),
        transcript("doctor", "basket-1", "--as-user", "ann"),
        transcript("doctor", "basket-1", "--as-user", "bob"),
    )
    said = json.loads(shell("doctor", "basket-1", "--json").out)
    assert (said["well"], said["runs"][0]["found"]["code"]) == (False, "blocked")


def test_before_a_deploy(monkeypatch: pytest.MonkeyPatch) -> None:
    """What open runs hold and the code lacks fails a pipeline; what fits does not."""
    errand()
    Choice.start("1")
    Basket.start(id="basket-1")
    Basket.start(id="old")
    drain()
    said = [transcript("doctor", "--deploy"), transcript("doctor", "basket-1", "--deploy")]
    assert shell("doctor", "--deploy").status == 0

    Instance.objects.filter(workflow_id="old").update(workflow="shop.Gone", version=3)
    ActivityTask.objects.update(activity="shop.gone")
    step = [{"kind": "step", "name": "gone", "events": ["approved"]}]
    Instance.objects.filter(workflow=Choice.name).update(waits=step)
    decode = JsonCodec.decode

    def locked(self: Any, data: bytes) -> Any:
        if data == Instance.objects.get(workflow=Choice.name).published:
            raise errors.KeyMissing("2025")
        return decode(self, data)

    def changed(runs: Any) -> Any:
        about = {"workflow": Basket.name, "id": "basket-1", "run": "1"}
        differs = {"kind": "input", "command": "ActivityScheduled, seq 1, activity shop.pay", "path": "cents"}
        return ReplayBatch(
            len(runs),
            [{**about, "message": "event 4 says timer"}],
            [{**about, **differs, "event": 3, "file": "shop/workflows.py", "line": 7}],
        )

    monkeypatch.setattr(JsonCodec, "decode", locked)
    monkeypatch.setattr("temporalex_django.management.doctor.replay_runs", changed)
    golden("doctor/deploy.txt", *said, transcript("doctor", "--deploy", "--sample", 5))
    ran = shell("doctor", "--deploy", "--json")
    assert ran.status == outputs.FINDINGS
    found = [one["code"] for one in fits("doctor", ran.out)["findings"]]
    assert found == ["deploy_class", "deploy_step", "deploy_key", "deploy_activity", "deploy_replay", "deploy_input"]


def test_other_inputs_fail_a_deploy_when_that_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    Basket.start(id="basket-1")
    drain()

    def changed(runs: Any) -> Any:
        about = {"workflow": Basket.name, "id": "basket-1", "run": "1", "event": 3, "file": None, "line": None}
        differs = {"kind": "input", "command": "ActivityScheduled, seq 1, activity shop.pay", "path": "cents"}
        timer = {"kind": "duration", "command": "TimerStarted, seq 2", "path": "duration"}
        return ReplayBatch(len(runs), [], [{**about, **differs}, {**about, **timer}])

    monkeypatch.setattr("temporalex_django.management.doctor.replay_runs", changed)
    told = shell("doctor", "--deploy")
    assert told.status == 0
    assert "warning: In 1 history of" in told.out
    assert "activity shop.pay, cents" in told.out
    assert "duration" not in told.out
    strict = shell("doctor", "--deploy", "--strict")
    assert strict.status == outputs.FINDINGS
    assert "error: In 1 history of" in strict.out
    assert shell("doctor", "--strict").status == outputs.USAGE_ERROR
