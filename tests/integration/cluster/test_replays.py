"""``temporalex replay`` and ``doctor --deploy`` about runs on a cluster, whose histories are there."""

from __future__ import annotations

import json
import uuid
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command

from temporalex_django import Ok, Workflow, api
from temporalex_django.management.doctor import compare_with_runs
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

QUEUE = f"cluster-replays-{uuid.uuid4().hex[:8]}"


class MirroredForReplays(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        return Ok(await api.wait_for_signal("go"))


def test_runs_on_a_cluster_are_counted_and_not_called_clean(cluster: Any, worker: None) -> None:
    handle = MirroredForReplays.start(None, id=f"replays-{uuid.uuid4().hex[:6]}")
    wait_for(lambda: handle.describe().waiting_for)
    printed, as_json = StringIO(), StringIO()
    call_command("temporalex", "replay", stdout=printed)
    call_command("temporalex", "replay", "--json", stdout=as_json)
    assert "0 histories replayed" in printed.getvalue()
    assert "which were not replayed: 1." in printed.getvalue()
    report = json.loads(as_json.getvalue())
    assert (report["checked"], report["clean"], report["on_cluster"]) == (0, 0, 1)
    found = compare_with_runs(None, sample=10, report=lambda done, total: None)
    assert [(finding.code, finding.severity) for finding in found] == [("fits", "note"), ("deploy_cluster", "warning")]
