"""The page "Run workflows on a Temporal cluster": its cart works as the page says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from temporalex_django.models import Chain, Instance
from temporalex_django.workers.loop import WorkerLoop
from tests.support.pages import HOWTO, module_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


@pytest.fixture
def page(cluster: Any, settings: Any) -> Iterator[Any]:
    """The blocks of the page as a module, with a worker as ``temporalex worker`` runs it."""
    with module_of("run-on-temporal") as module:
        address = {name: cluster[name] for name in ("ADDRESS", "PREFIX")}
        own = {"CLUSTER": {**module.TEMPORALEX["CLUSTER"], **address}, "BACKEND": "tables"}
        settings.TEMPORALEX = {**settings.TEMPORALEX, **own}
        loop, stop = WorkerLoop(), threading.Event()
        thread = threading.Thread(target=loop.run, args=[stop])
        thread.start()
        try:
            yield module
        finally:
            stop.set()
            thread.join(60)
            module.Cart.backend = None  # it stays registered, and other tests have no cluster
    assert not thread.is_alive()


def test_the_cart_of_the_page_lives_on_the_cluster_and_replays(cluster: Any, page: Any) -> None:
    assert page.fill_cart(7) == {"customer": 7, "reserved": 2}
    run = Instance.objects.get()
    assert (Chain.objects.get().backend, run.status, run.workflow_id) == ("temporal", "completed", "cart-7")
    prefix = page.TEMPORALEX["CLUSTER"]["PREFIX"]
    asyncio.run(page.replay_on_cluster(cluster["ADDRESS"], str(run.cluster_id)))
    text = " ".join((HOWTO / "run-on-temporal.md").read_text(encoding="utf-8").split())
    assert f"shows the same run as `{prefix}{str(run.cluster_id).partition(':')[2]}`" in text
