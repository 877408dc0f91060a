"""A shop whose carts and orders live on a cluster: workflows, and a page that starts and messages them."""

from __future__ import annotations

import threading
import uuid
from datetime import timedelta
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import get_token
from django.urls import include, path

from temporalex_django import Ok, Reply, RetryPolicy, Stop, Workflow, activity, api, update

QUEUE: Final = f"cluster-shop-{uuid.uuid4().hex[:8]}"
#: The gateway of the shop accepts no payment while this is set.
closed = threading.Event()


@activity(retry=RetryPolicy(initial_interval=3600.0))
def pay_in_cluster_shop(amount: int) -> int:
    if closed.is_set():
        raise ConnectionError("the gateway does not answer")
    return amount


class ClusterShopCart(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        items = await api.phase(
            0,
            update={"add": update(lambda count, items: Reply(items + count, items + count))},
            signal={"checkout": lambda _, items: Stop(items)},
        )
        return Ok(items)


class ClusterShopOrder(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        await api.sleep(timedelta(days=1))
        return Ok(await pay_in_cluster_shop(args["amount"]))


def shop(request: HttpRequest) -> HttpResponse:
    """The page of the shop: each button is a request that acts on the cart or the order."""
    said = "Welcome"
    match request.POST.get("do"):
        case "open":
            with transaction.atomic():
                get_user_model().objects.create(username="customer")
                ClusterShopCart.start(None, id="cart")
                ClusterShopOrder.start({"amount": 7}, id="order")
            said = "Opened"
        case "add":
            said = f"Items: {ClusterShopCart.handle('cart').update('add', 2)}"
        case "cancel":
            ClusterShopCart.handle("cart").cancel("no money")
            said = "Cancelled"
    buttons = "".join(f"<button name=do value={name}>{name}</button>" for name in ("open", "add", "cancel"))
    token = f"<input type=hidden name=csrfmiddlewaretoken value={get_token(request)}>"
    return HttpResponse(f"<p>{said}</p><form method=post>{token}{buttons}</form>")


urlpatterns = [path("shop/", shop), path("", include("tests.urls"))]
