"""Keys and certificates that are replaced while processes use them."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from temporalex_django.backends.cluster import client as clients
from temporalex_django.backends.cluster import worker as workers
from tests.support.cluster_worker import running_worker
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.once]

QUEUE = f"cluster-keys-{uuid.uuid4().hex[:8]}"


async def identity(sdk: Any) -> Any:
    return sdk


@pytest.fixture
def keys(cluster: dict[str, Any], settings: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys that the function of the setting returns: the last one counts."""
    keys = ["first"]
    entry = {**cluster, "API_KEY": lambda: keys[-1], "TLS": False}
    settings.TEMPORALEX = {**settings.TEMPORALEX, "CLUSTER": entry}
    for module in (clients, workers):
        monkeypatch.setattr(module, "CREDENTIALS_SECONDS", 0.05)
    return keys


def test_a_key_is_read_anew_and_a_client_is_made_only_for_another_one(keys: list[str]) -> None:
    client = clients.cluster_client()
    first = client.call(identity)
    assert first.api_key == "first"
    client._read_again_at = 0.0
    assert client.call(identity) is first
    keys.append("second")
    client._read_again_at = 0.0
    assert client.call(identity).api_key == "second"


def test_a_new_key_that_the_cluster_does_not_take_leaves_the_old_connection(
    keys: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = clients.cluster_client()
    first = client.call(identity)

    async def refuse(credentials: Any) -> Any:
        raise clients.ClusterUnavailable("the certificate has expired")

    monkeypatch.setattr(client, "_connect", refuse)
    keys.append("second")
    client._read_again_at = 0.0
    assert client.call(identity) is first
    assert "continuing with the earlier ones: ClusterUnavailable" in caplog.text


@pytest.mark.django_db(transaction=True)
def test_a_worker_takes_the_new_client(keys: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    make = workers.ClusterWorker._make_worker

    def note(self: Any, client: Any, queue: str) -> Any:
        made.append(make(self, client, queue))
        return made[-1]

    monkeypatch.setattr(workers.ClusterWorker, "_make_worker", note)
    with running_worker(QUEUE):
        wait_for(lambda: made)
        keys.append("second")
        wait_for(lambda: made[-1].client.api_key == "second")
    assert len(made) == 1
