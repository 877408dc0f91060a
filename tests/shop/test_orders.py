"""An order on the shop's tables: the provider, a clerk at the desk, the carrier's reports."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from example_project.provider.ledger import Ledger
from example_project.provider.server import Provider, Weather
from example_project.shop.carrier import SIGNATURE, signature
from example_project.shop.models import Invoice, Notice, Product, Shipment, Stock, StockMovement
from example_project.shop.orders import CLERKS, OrderProcess
from temporalex_django import errors
from temporalex_django.models import HistoryEvent
from temporalex_django.testing import drain

pytestmark = pytest.mark.django_db(transaction=True)

BREAD = {"product_id": "1134483", "quantity": 2, "amount": "3.98"}
WINE = {"product_id": "1000236", "quantity": 3, "amount": "45.00"}


@pytest.fixture(autouse=True)
def provider(tmp_path: Path, settings: Any) -> Iterator[Provider]:
    ledger = Ledger(tmp_path / "orders.sqlite3")
    with Provider(0, ledger=ledger, weather=Weather(fail=0, late=0)) as provider:
        settings.SHOP_ORDERS_PROVIDER_URL = provider.url
        thread = threading.Thread(target=provider.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield provider
        provider.shutdown()
        thread.join()
    ledger.close()


@pytest.fixture
def clerk() -> User:
    user = User.objects.create_user("cleo")
    user.groups.add(Group.objects.create(name=CLERKS))
    return user


def order(number: str, *lines: dict[str, Any]) -> Any:
    handle = OrderProcess.start(number, {"customer": "ann", "lines": [*lines]})
    drain()
    return handle


def logged_in(user: User) -> Client:
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)
    return client


def post(client: Client, address: str, **data: str) -> Any:
    """As a page sends it, with its token."""
    client.get("/")
    return client.post(address, {**data, "csrfmiddlewaretoken": client.cookies["csrftoken"].value})


def report(parcel: str, *, sign: bool = True, body: bytes | None = None, event: str = "delivered") -> Any:
    content = body or json.dumps({"parcel": parcel, "event": event, "at": "2017-06-14T12:00:00Z"}).encode()
    headers = {SIGNATURE: signature(content)} if sign else {}
    client = Client(enforce_csrf_checks=True)
    return client.post("/carrier/", content, content_type="application/json", headers=headers)


def parcel() -> str:
    return Shipment.objects.get().parcel


def waiting(handle: Any) -> list[str]:
    return [step.key for step in handle.instance().waiting_steps]


def test_a_small_order_is_charged_booked_shipped_and_invoiced(provider: Provider) -> None:
    Stock.objects.create(product_id="1134483", on_hand=10)
    Product.objects.create(id="1134483", price="1.99")

    handle = order("42", BREAD)

    assert waiting(handle) == ["carrier"]
    booked = provider.ledger.report()
    assert (booked["charges"], booked["cents"], booked["repeats"]) == (1, 398, 0)
    assert Stock.objects.get(pk="1134483").on_hand == 8
    assert not Invoice.objects.exists()

    assert report(parcel()).json() == {"parcel": parcel(), "known": False}
    drain()

    result = handle.result(timeout=0)
    assert result["carrier"] == {"at": "2017-06-14T12:00:00Z"}
    assert result["send_invoice"] == {
        "number": Invoice.objects.get(order="42", cents=398, customer="ann").pk,
        "total": "3.98",
    }


def test_a_clerk_approves_at_the_desk_and_who_did_is_in_the_history(clerk: User) -> None:
    handle = order("42", WINE)
    order("43", BREAD)
    client = logged_in(clerk)

    page = client.get("/review/").content.decode()
    assert "45.00" in page
    assert "Approve order 42" in page
    assert "Approve order 43" not in page

    assert post(client, "/review/42/", decision="approve", why="a regular").status_code == 302
    drain()

    assert waiting(handle) == ["carrier"]
    assert handle.instance().context.steps.review == {
        "by": "cleo",
        "by_key": str(clerk.pk),
        "comment": "a regular",
    }
    assert "No orders are waiting" in client.get("/review/").content.decode()


def test_a_rejected_order_is_refunded_and_its_goods_come_back(clerk: User, provider: Provider) -> None:
    Stock.objects.create(product_id="1000236", on_hand=10)
    handle = order("42", WINE)
    assert Stock.objects.get(pk="1000236").on_hand == 7

    post(logged_in(clerk), "/review/42/", decision="reject", why="no such street")
    drain()

    assert handle.result(timeout=0)["cancel_order"] == {"reason": "no such street"}
    assert Stock.objects.get(pk="1000236").on_hand == 10
    assert sorted(StockMovement.objects.values_list("kind", flat=True)) == ["return", "sale"]
    assert provider.ledger.report()["refunds"] == 1
    assert Notice.objects.get().body == "no such street."
    assert not Shipment.objects.exists()


def test_nobody_else_decides(clerk: User) -> None:
    handle = order("42", WINE)
    seen = HistoryEvent.objects.count()
    customer = logged_in(User.objects.create_user("ann"))

    assert customer.get("/review/").status_code == 403
    assert post(customer, "/review/42/", decision="approve").status_code == 403
    assert Client().get("/review/").status_code == 302
    with pytest.raises(errors.ActionNotPermitted, match=CLERKS):
        OrderProcess.resume("42", "approved", by=User.objects.get(username="ann"))

    assert waiting(handle) == ["review"]
    assert HistoryEvent.objects.count() == seen


def test_a_decision_that_comes_second_is_told_so(clerk: User) -> None:
    order("42", WINE)
    client = logged_in(clerk)
    post(client, "/review/42/", decision="approve")

    post(client, "/review/42/", decision="reject")

    assert "That did not work" in client.get("/review/").content.decode()
    drain()
    assert Shipment.objects.count() == 1


def test_a_report_that_comes_twice_or_too_late_changes_nothing() -> None:
    handle = order("42", BREAD)
    assert report(parcel()).json()["known"] is False
    assert report(parcel()).json()["known"] is True
    drain()
    assert Invoice.objects.count() == 1

    OrderProcess.start("43", {"customer": "ann", "lines": [BREAD]})
    drain()
    OrderProcess.cancel("43")
    late = Shipment.objects.get(order="43").parcel
    answer = report(late)
    assert (answer.status_code, answer.json()["known"]) == (200, True)
    assert handle.status == "completed"
    assert Invoice.objects.count() == 1


def test_a_report_that_nobody_has_signed_is_refused() -> None:
    handle = order("42", BREAD)

    assert report(parcel(), sign=False).status_code == 403
    assert (
        Client().post("/carrier/", b"{}", content_type="application/json", headers={SIGNATURE: "ä"}).status_code == 403
    )
    assert Client().get("/carrier/").status_code == 405
    assert report("P0").status_code == 404
    assert report(parcel(), event="lost").status_code == 400
    assert report(parcel(), body=b"[]").status_code == 400
    assert report(parcel(), body=b"{").status_code == 400

    assert Shipment.objects.get().delivered_at is None
    assert waiting(handle) == ["carrier"]


def test_a_report_that_finds_the_order_busy_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = order("42", BREAD)

    def busy(*_: object, **__: object) -> None:
        raise errors.UpdateTimeout("its lock was not free", update_id="1")

    with monkeypatch.context() as patch:
        patch.setattr(OrderProcess, "resume", busy)
        assert report(parcel()).status_code == 503
    assert Shipment.objects.get().delivered_at is None

    assert report(parcel()).status_code == 200
    drain()
    assert handle.status == "completed"


def test_the_same_number_again_is_another_order(provider: Provider) -> None:
    order("42", BREAD)
    report(parcel())
    drain()

    order("42", BREAD)

    assert Shipment.objects.filter(order="42").count() == 2
    assert StockMovement.objects.filter(cart_id="order::42").count() == 2
    assert provider.ledger.report()["charges"] == 2
