"""The part of a worker that polls a cluster: the tables do not suffer if it cannot start."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from temporalex_django.engine import policy
from temporalex_django.workers import cluster


class Poller:
    """Stands in for ``ClusterWorker``, and notes the queues that it polls."""

    def __init__(self, **_: Any) -> None:
        self.queues: list[frozenset[str]] = []

    def poll(self, queues: frozenset[str]) -> None:
        self.queues.append(queues)


def test_a_worker_that_cannot_start_is_logged_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, tries = 1000.0, 0

    def module(name: str) -> Any:
        nonlocal tries
        if name == "reconcile":
            return SimpleNamespace(is_due=lambda: False, run_round=lambda: None)
        tries += 1
        if tries == 1:
            raise ImportError("temporalio 0.1 is too old")
        return SimpleNamespace(ClusterWorker=Poller)

    monkeypatch.setattr(cluster, "cluster_module", module)
    monkeypatch.setattr("temporalex_django.workers.cluster.time.monotonic", lambda: now)
    monkeypatch.setattr(cluster.ClusterPoller, "_compare", lambda self: None)
    row: Any = SimpleNamespace(drained_at=None, id="w1")
    switches: Any = SimpleNamespace(queues=frozenset(), held_queues=frozenset())
    poller = cluster.ClusterPoller(object(), row, queues=["default"], alias="default", resolve=lambda *_: None)  # type: ignore[arg-type]

    with caplog.at_level(logging.ERROR):
        poller.update(switches)
        poller.update(switches)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "the cluster is not polled, because its worker cannot start"
    ]

    now += policy.MIRROR_SECONDS
    poller.update(switches)
    assert tries == 2
    assert poller._worker.queues == [frozenset({"default"})]  # type: ignore[union-attr]
