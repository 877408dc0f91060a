"""A shop on a cluster in the browser: a view starts and updates runs there, and the admin operates them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import transaction
from temporalio.api.workflowservice import v1 as service

from temporalex_django.backends.cluster import calls
from temporalex_django.backends.cluster import client as clients
from temporalex_django.backends.cluster.client import cluster_client
from temporalex_django.backends.cluster.runs import find_on_cluster
from temporalex_django.backends.host import host
from temporalex_django.models import Instance, OperatorAction, Outbox
from temporalex_django.workers.loop import run_until_idle
from tests.support import cluster_shop
from tests.support.cluster_shop import ClusterShopCart, ClusterShopOrder
from tests.support.cluster_worker import running_worker
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.support.cluster_shop")]

RUNS = "/admin/temporalex_django/instance/"


@pytest.fixture
def shop(temporal_address: str, settings: Any, live_server: Any) -> Iterator[str]:
    """The address of the shop, whose runs live on a cluster."""
    entry = {"ADDRESS": temporal_address, "PREFIX": f"{uuid.uuid4().hex[:8]}:"}
    settings.TEMPORALEX = {**settings.TEMPORALEX, "BACKEND": "temporal", "CLUSTER": entry}
    cluster_shop.closed.set()
    with running_worker(cluster_shop.QUEUE):
        yield live_server.url
    with clients._lock:
        client, clients._client = clients._client, None
    if client is not None:
        client.close()


def sign_in(page: Any, url: str) -> None:
    get_user_model().objects.create_superuser("root", password="secret")
    page.goto(f"{url}{RUNS}")
    page.fill("input[name=username]", "root")
    page.fill("input[name=password]", "secret")
    with page.expect_navigation():
        page.press("input[name=password]", "Enter")


def perform(page: Any, url: str, run: Instance, operation: str, button: str, *, query: str = "") -> None:
    """Perform an operation on its page of the admin."""
    page.goto(f"{url}{RUNS}console/runs/{run.pk}/do/{operation}/{query}")
    if page.get_by_label("Reason").count():
        page.get_by_label("Reason").fill("by hand")
    with page.expect_navigation():
        page.get_by_role("button", name=button, exact=True).click()


def choose(page: Any, name: str) -> None:
    with page.expect_navigation():
        page.get_by_role("button", name=name, exact=True).click()


def test_a_cart_and_an_order_from_a_view_to_the_admin(shop: str, page: Any) -> None:
    page.goto(f"{shop}/shop/")
    choose(page, "open")
    assert "Opened" in page.inner_text("p")
    run_until_idle()  # the dispatcher of a worker
    choose(page, "add")
    assert page.inner_text("p") == "Items: 2"
    choose(page, "cancel")
    cart, order = ClusterShopCart.handle("cart"), ClusterShopOrder.handle("order")
    wait_for(lambda: cart.describe().status == "cancelled")
    wait_for(lambda: order.describe().waiting_for)

    sign_in(page, shop)
    run = Instance.objects.get(workflow_id="order")
    perform(page, shop, run, "skip_timer", "Fire now", query="?seq=1")
    wait_for(lambda: any("pay_in_cluster_shop" in wait for wait in order.describe().waiting_for))
    wait_for(lambda: has_failed(run))
    page.goto(f"{shop}{RUNS}console/runs/{run.pk}/")
    assert "the gateway does not answer" in page.inner_text("#tx-main")
    assert "next attempt at" in page.inner_text("#tx-main")
    assert "1" in page.inner_text("table:has(#tx-happened)")
    cluster_shop.closed.clear()
    with page.expect_navigation():
        page.get_by_role("link", name="Retry now").first.click()
    if page.get_by_label("Reason").count():
        page.get_by_label("Reason").fill("by hand")
    choose(page, "Retry now")
    assert order.result(timeout=20) == 7

    perform(page, shop, run, "reset", "Reset", query="?to=0")
    wait_for(lambda: order.describe().waiting_for)
    assert order.describe().status == "waiting"
    done = OperatorAction.objects.filter(source="admin").values_list("action", flat=True)
    assert {"skip_timer", "retry_activity", "reset"} <= set(done)

    page.goto(f"{shop}{RUNS}console/runs/{order.run_id}/")
    assert "a run on a Temporal cluster cannot be copied" in page.content()


def has_failed(run: Instance) -> bool:
    """Return True if the server has a failed attempt of an activity of the run."""
    address = find_on_cluster(run.chain_id, storage=host().storage())
    described = cluster_client().call(lambda sdk: sdk.get_workflow_handle(address.cluster_id).describe())
    return any(pending.HasField("last_failure") for pending in described.raw_description.pending_activities)


def test_a_dead_letter_is_read_and_dropped(shop: str, page: Any) -> None:
    cart = ClusterShopCart.start(None, id="cart")
    wait_for(lambda: cart.describe().accepts["updates"])
    client = cluster_client()
    address = find_on_cluster(Instance.objects.get().chain_id, storage=host().storage())
    # Somebody terminates it on the server, which no worker sees.
    kind = service.TerminateWorkflowExecutionRequest
    client.ask(calls.make_request(kind, address, reason="by hand"))
    with transaction.atomic():
        cart.signal("checkout")
    run_until_idle()

    sign_in(page, shop)
    page.goto(f"{shop}/admin/temporalex_django/outbox/")
    assert "workflow_closed" in page.inner_text("#result_list")
    assert "ClusterShopCart cart" in page.inner_text("#result_list")
    page.locator("input.action-select").first.check()
    page.locator("select[name=action]").first.select_option(label="Drop")
    choose(page, "Run" if page.get_by_role("button", name="Run", exact=True).count() else "Go")
    assert not Outbox.objects.exists()
