"""``doctor`` about the cluster: one that is away, a queue that nobody polls, rows that nobody compares, its clock."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from temporalex_django import Ok, Workflow, api, errors
from temporalex_django.backends.cluster import health, reconcile
from temporalex_django.management import doctor
from temporalex_django.models import Chain, Instance, Worker
from temporalex_django.present.diagnosis import diagnose
from temporalex_django.temporal.payloads import Payloads
from tests.integration.cluster.test_worker import looping as looping_on
from tests.support.commands import shell
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

QUEUE = f"cluster-doctor-{uuid.uuid4().hex[:8]}"


class MirroredPatient(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        return Ok(await api.wait_for_signal("go"))


def codes() -> set[str]:
    return {finding.code for finding in diagnose(doctor.load_project(), now=timezone.now())}


def test_open_runs_are_counted_by_backend(cluster: Any) -> None:
    assert "open runs" not in shell("doctor").out
    for backend in ("tables", "temporal", "temporal"):
        MirroredPatient.start(None, id=f"patient-{uuid.uuid4().hex[:8]}")
        newest = Chain.objects.latest("id")
        Chain.objects.filter(pk=newest.pk).update(backend=backend)
    assert "open runs: 1 on the tables and 2 on the Temporal cluster" in shell("doctor").out


def test_a_queue_that_nobody_polls_is_named_after_a_while(cluster: Any) -> None:
    MirroredPatient.start(None, id=f"patient-{uuid.uuid4().hex[:8]}")
    assert "cluster_unpolled" not in codes()
    Instance.objects.update(created_at=timezone.now() - timedelta(seconds=40))
    assert "cluster_unpolled" in codes()
    with looping_on(queue=QUEUE):
        wait_for(lambda: not codes() & {"cluster_unpolled", "mirror_behind", "cluster_clock"})
        assert Worker.objects.exists()
    assert "cluster_unpolled" in codes()


def test_rows_that_nobody_compares_and_a_wrong_clock_are_named(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "is_due", lambda storage: False)
    MirroredPatient.start(None, id=f"patient-{uuid.uuid4().hex[:8]}")
    Instance.objects.update(created_at=timezone.now() - timedelta(seconds=40))
    with looping_on(queue=QUEUE):
        wait_for(lambda: "mirror_behind" in codes() and "cluster_unpolled" not in codes())
        assert "cluster_clock" not in codes()
        monkeypatch.setattr(health, "_skew", lambda last_poll, now: 600.0)
        assert "cluster_clock" in codes()


def test_a_payload_that_the_worker_cannot_read_is_named(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks_the_key(self: Any, payload: Any) -> Any:
        raise errors.KeyMissing("k-2")

    handle = MirroredPatient.start(None, id=f"patient-{uuid.uuid4().hex[:8]}")
    with monkeypatch.context() as patch:
        patch.setattr(Payloads, "decode", lacks_the_key)
        with looping_on(queue=QUEUE):
            wait_for(lambda: handle.describe().blocked)
            (finding,) = [
                each for each in diagnose(doctor.load_project(), now=timezone.now()) if each.code == "blocked"
            ]
    assert "k-2" in f"{finding.text} {finding.evidence} {handle.describe().blocked}"
    with looping_on(queue=QUEUE):
        wait_for(lambda: handle.describe().waiting_for)
    assert "blocked" not in codes()


def test_a_cluster_that_is_away_is_named(cluster: Any, settings: Any) -> None:
    settings.TEMPORALEX = {**settings.TEMPORALEX, "CLUSTER": {**cluster, "ADDRESS": "127.0.0.1:1"}}
    assert "cluster_away" in codes()


@pytest.mark.parametrize(
    ("seconds", "skew"),
    [(600, 600.0), (0, 0.0), (-60, 0.0), (-690, -600.0)],
    ids=["ahead", "same", "polling", "behind"],
)
def test_the_clock_of_the_cluster_is_told_by_polls(seconds: int, skew: float) -> None:
    now = timezone.now()
    assert health._skew(now + timedelta(seconds=seconds), now) == skew


def test_a_project_without_a_cluster_is_not_asked_about_one() -> None:
    assert doctor.load_project().cluster is None


@pytest.mark.parametrize(
    ("version", "is_old"), [("1.31.4", True), ("1.32.0", False), ("1.32.0-158.0", False), ("2.0.0", False), ("", False)]
)
def test_a_version_of_the_server_is_compared(version: str, is_old: bool) -> None:
    assert health.is_old(version) is is_old


def test_a_server_that_is_too_old_is_named(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "cluster_old" not in codes()
    monkeypatch.setattr(health, "OLDEST", (99, 0))
    assert "cluster_old" in codes()


def test_open_runs_with_an_earlier_prefix_are_named(cluster: Any, settings: Any) -> None:
    run = MirroredPatient.start(None, id=f"patient-{uuid.uuid4().hex[:8]}")
    assert "cluster_prefix" not in codes()
    settings.TEMPORALEX = {**settings.TEMPORALEX, "CLUSTER": {**cluster, "PREFIX": f"other-{cluster['PREFIX']}"}}
    [text] = [
        finding.text
        for finding in diagnose(doctor.load_project(), now=timezone.now())
        if finding.code == "cluster_prefix"
    ]
    assert f"{cluster['PREFIX']}g:{run.id}" in text
    Instance.objects.update(metadata={"started_by": "another client of the cluster"})
    assert "cluster_prefix" not in codes()
