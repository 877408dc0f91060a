"""Starting runs from the admin."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client

from temporalex_django import Ok, Unique, Workflow
from temporalex_django.models import Instance, OperatorAction
from tests.support.client_flows import drain
from tests.support.run_pages import text_of

pytestmark = pytest.mark.django_db

RUNS = "/admin/temporalex_django/instance/"
START = f"{RUNS}console/runs/start/"


@dataclass
class Card:
    number: str
    holder: str


@dataclass
class Ordering:
    customer: str
    card: Card
    quantity: int = 1
    note: str | None = None


class Orders(Workflow):
    """Takes an order.

    And more.
    """

    name = "test.AdminOrders"
    redacted = ("card.number",)

    async def run(self, args: Ordering) -> Any:
        return Ok(args)


class ByValue(Workflow):
    name = "test.AdminByValue"
    unique = Unique(key="adminvalue")

    async def run(self, args: None) -> Any:
        return Ok(None)


class Found(Workflow):
    name = "test.AdminFound"
    search_attributes = {"total": Decimal, "labels": list[str], "paid": bool}

    async def run(self, args: None) -> Any:
        return Ok(None)


class Guarded(Workflow):
    name = "test.AdminGuarded"
    start_permission = "tests.start_guarded"

    async def run(self, args: Any) -> Any:
        return Ok(args)


class Inner(Workflow):
    name = "test.AdminInner"
    internal = True

    async def run(self, args: Any) -> Any:
        return Ok(args)


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(get_user_model().objects.create_superuser("root"))
    return client


def somebody(*codenames: str) -> Client:
    user = get_user_model().objects.create_user("ann", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client()
    client.force_login(user)
    return client


def token(client: Client, address: str) -> str:
    found = re.search(r'name="token" value="([^"]+)"', client.get(address).content.decode())
    assert found is not None
    return found[1]


def start(client: Client, workflow: str, **given: Any) -> Any:
    address = f"{START}?workflow={workflow}"
    return client.post(address, {"token": token(client, address), **given}, follow=True)


ORDER = {"arg_customer": "ann", "arg_card": '{"number": "DE89-3704-0044", "holder": "Ann"}', "arg_quantity": "2"}


def test_the_classes_that_one_may_start_are_listed(admin):
    text = admin.get(START).content.decode()
    assert "test.AdminOrders" in text
    assert "Takes an order." in text
    assert "test.AdminInner" not in text
    assert "Start a run" in admin.get(RUNS).content.decode()

    starter = somebody("view_instance", "start_instance")
    text = starter.get(START).content.decode()
    assert "test.AdminOrders" in text
    assert "test.AdminGuarded" not in text
    assert starter.get(f"{START}?workflow=test.AdminGuarded").status_code == 403
    assert starter.post(f"{START}?workflow=test.AdminGuarded", {"token": "t"}).status_code == 403
    assert admin.get(f"{START}?workflow=test.AdminInner").status_code == 403
    assert admin.get(f"{START}?workflow=test.Nothing").status_code == 404
    assert admin.put(START).status_code == 405


def test_without_the_permission_there_is_no_way_to_start():
    viewer = somebody("view_instance")
    assert viewer.get(START).status_code == 403
    assert viewer.post(f"{START}?workflow=test.AdminOrders", {"token": "t", **ORDER}).status_code == 403
    assert "Start a run" not in viewer.get(RUNS).content.decode()
    assert not Instance.objects.exists()


def test_a_run_is_started_with_what_the_form_says(admin):
    response = start(admin, "test.AdminOrders", identity="o-1", **ORDER)
    drain()

    run = Instance.objects.get()
    assert response.redirect_chain[-1][0] == f"{RUNS}console/runs/{run.pk}/"
    assert "Started o-1." in response.content.decode()
    assert run.workflow_id == "o-1"
    assert run.input == {"customer": "ann", "card": {"number": "DE89-3704-0044", "holder": "Ann"}, "quantity": 2}
    noted = OperatorAction.objects.get(action="start")
    assert (noted.actor_name, noted.source) == ("root", "admin")


def test_search_attributes_are_fields_of_the_form(admin):
    form = admin.get(f"{START}?workflow=test.AdminFound").content.decode()
    assert "Search attribute total" in form and "Decimal. Leave it empty if you do not want to set it" in form
    given = {"attribute_total": "120.50", "attribute_labels": "red, blue,", "attribute_paid": "true"}
    start(admin, "test.AdminFound", **given)
    run = Instance.objects.get()
    assert run.search_attributes == {"total": {"decimal": "120.50"}, "labels": ["red", "blue"], "paid": True}
    assert [one.id for one in Found.list(attributes={"total__gt": 120, "labels": "blue"})] == [run.workflow_id]
    for wrong, said in (
        ({"attribute_total": "much"}, "must be a number, not"),
        ({"attribute_paid": "perhaps"}, "must be true or false, not"),
        ({"attribute_total": "NaN"}, "the search attribute total"),
    ):
        assert said in html.unescape(start(admin, "test.AdminFound", **wrong).content.decode()), said
    assert Instance.objects.count() == 1


def test_an_id_is_made_up_or_a_value_is_asked_for(admin):
    start(admin, "test.AdminOrders", **ORDER)
    assert "This field is required" in start(admin, "test.AdminByValue").content.decode()
    start(admin, "test.AdminByValue", identity="7")

    assert Instance.objects.filter(workflow="test.AdminOrders").count() == 1
    assert Instance.objects.get(workflow="test.AdminByValue").workflow_id == "adminvalue::7"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"identity": "a/b"}, "is not a valid id"),
        ({"arg_customer": ""}, "This field is required"),
        ({"arg_card": '{"number": 1}'}, "Expected `str`, got `int`"),
        ({"arg_quantity": "many"}, "Enter a whole number"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_started(admin, wrong, said):
    response = start(admin, "test.AdminOrders", **{**ORDER, **wrong})

    assert said in response.content.decode()
    assert not Instance.objects.exists()


def test_an_id_that_is_taken_is_refused_and_a_form_posted_twice_starts_once(admin):
    address = f"{START}?workflow=test.AdminByValue"
    once = token(admin, address)
    for _ in range(2):
        admin.post(address, {"token": once, "identity": "1"})
    assert Instance.objects.count() == 1

    response = start(admin, "test.AdminByValue", identity="1")

    assert response.status_code == 409
    assert Instance.objects.count() == 1


def test_another_one_like_it_begins_with_its_input_but_for_what_is_redacted(admin):
    start(admin, "test.AdminOrders", identity="o-1", **ORDER)
    run = Instance.objects.get()
    text = text_of(admin, run.pk)
    address = f"{START}?workflow=test.AdminOrders&amp;like={run.pk}"
    assert address in text

    form = admin.get(address.replace("&amp;", "&")).content.decode()
    assert 'value="ann"' in form
    assert 'value="2"' in form
    assert "DE89-3704-0044" not in form
    assert "[redacted]" not in form
    assert 'value="o-1"' not in form

    blind = somebody("view_instance", "start_instance")
    assert 'value="ann"' not in blind.get(address.replace("&amp;", "&")).content.decode()
