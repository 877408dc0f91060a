"""A client that a generator makes of our description works against a server: what we say of REST is what it does."""

from __future__ import annotations

import base64
import importlib
import subprocess
import sys
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model

from tests.integration.rest.test_openapi import GOLDEN
from tests.support.client_flows import Basket, drain

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.once,
    pytest.mark.of_the_tables("rows of histories"),
]

PACKAGE = "generated_runs_client"


@pytest.fixture
def generated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Gives modules of the client by their names."""
    settings = tmp_path / "config.yaml"
    settings.write_text("post_hooks: []\n")
    made = subprocess.run(
        [
            sys.executable, "-m", "openapi_python_client", "generate", "--path", str(GOLDEN), "--meta", "none",
            "--output-path", str(tmp_path / PACKAGE), "--config", str(settings), "--fail-on-warning",
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout + made.stderr
    monkeypatch.syspath_prepend(str(tmp_path))
    yield lambda name: importlib.import_module(f"{PACKAGE}.{name}")
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


def test_a_generated_client_starts_a_run_updates_it_and_reads_its_result(generated: Any, live_server: Any) -> None:
    get_user_model().objects.create_superuser("ann", password="secret")
    models, runs = generated("models"), lambda name: generated(f"api.runs.runs_{name}").sync_detailed
    token = base64.b64encode(b"ann:secret").decode()
    make = generated("client").AuthenticatedClient

    with make(base_url=f"{live_server.url}/api", token=token, prefix="Basic") as client:
        body = models.StartBody(workflow="test.Basket", id="b-1")
        started = [runs("create")(client=client, body=body, idempotency_key="k-1") for _ in range(2)]
        assert [answer.status_code for answer in started] == [HTTPStatus.CREATED] * 2
        assert started[0].parsed.run_id == started[1].parsed.run_id == Basket.handle("b-1").run_id
        drain()

        added = runs("send_update")("b-1", "add", client=client, body=models.UpdateBody(args=5))
        assert (added.status_code, added.parsed.result) == (HTTPStatus.OK, 1)
        refused = runs("send_update")("b-1", "add", client=client, body=models.UpdateBody(args=-1))
        assert (refused.status_code, refused.parsed.code) == (HTTPStatus.UNPROCESSABLE_ENTITY, "update_rejected")
        waits = runs("result")("b-1", client=client)
        assert (waits.status_code, waits.parsed.status) == (HTTPStatus.ACCEPTED, "waiting")

        sent = runs("signal")("b-1", "checkout", client=client, body=models.SignalBody())
        assert sent.status_code == HTTPStatus.ACCEPTED
        drain()
        ended = runs("result")("b-1", client=client, wait=10.0)
        assert (ended.status_code, ended.parsed.status) == (HTTPStatus.OK, "completed")
        assert ended.parsed.result == Basket.handle("b-1").result(timeout=0)

        (listed,) = runs("list")(client=client, workflow="test.Basket", status="completed").parsed.results
        assert (listed.id, listed.closed_at is not None) == ("b-1", True)
        rows = runs("timeline")("b-1", client=client).parsed.results
        assert [row.kind for row in rows] == ["run", "update", "signal", "end"]
        job = generated("api.bulk.bulk_create").sync_detailed(
            client=client, body=models.BulkBody(action=models.BulkBodyAction.DELETE, runs=[listed.run_id])
        )
        assert (job.status_code, job.parsed.total) == (HTTPStatus.CREATED, 1)
        missing = runs("retrieve")("nobody", client=client)
        assert (missing.status_code, missing.parsed.code) == (HTTPStatus.NOT_FOUND, "workflow_not_found")
