"""The page of a run compares recorded inputs with those of today's code, for people who may see payloads."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client, override_settings

from temporalex_django import Ok, Workflow, activity, api
from temporalex_django.models import Instance, OperatorAction
from tests.support.client_flows import drain
from tests.support.run_pages import text_of

pytestmark = [pytest.mark.django_db, pytest.mark.of_the_tables("rows of histories")]

RUNS = "/admin/temporalex_django/instance/"
LINK = "Compare inputs with the code"


@activity(name="compare.charge")
def charge(order: dict[str, Any]) -> str:
    return "paid"


class Pays(Workflow):
    name = "test.ComparePays"
    amount: ClassVar[int] = 10
    card: ClassVar[str] = "4111-old"
    seconds: ClassVar[int] = 60
    raises: ClassVar[bool] = False

    async def run(self, args: Any) -> Any:
        if self.raises:
            raise RuntimeError("no rate for 4111-new")
        await charge({"amount": self.amount, "card": {"number": self.card}})
        await api.sleep(self.seconds)
        return Ok()


@pytest.fixture(autouse=True)
def _code() -> Iterator[None]:
    before = {name: vars(Pays)[name] for name in ("amount", "card", "seconds", "raises")}
    yield
    for name, default in before.items():
        setattr(Pays, name, default)


@pytest.fixture
def run() -> Instance:
    Pays.start(id="pays-1")
    drain()
    return Instance.objects.get()


def login(client: Client, *permissions: str) -> Client:
    user = get_user_model().objects.create_user(f"user-{'-'.join(permissions)}", is_staff=True)
    user.user_permissions.add(*Permission.objects.filter(codename__in=permissions))
    client.force_login(user)
    return client


def compared(client: Client, run: Instance) -> tuple[int, str]:
    address = f"{RUNS}console/runs/{run.pk}/compare/"
    token = re.search(r'name="token" value="([^"]+)"', client.get(address).content.decode())
    answer = client.post(address, {"token": "" if token is None else token[1]})
    return answer.status_code, html.unescape(answer.content.decode())


def test_both_values_stand_side_by_side(client: Client, run: Instance) -> None:
    Pays.amount, Pays.seconds = 12, 90
    client = login(client, "view_instance", "view_payload")

    assert LINK in text_of(client, run.pk)
    status, text = compared(client, run)
    rows = re.findall(r"<tr><td class=\"tx-number\">(\d+)</td>(.*?)</tr>", text, re.DOTALL)
    inputs, durations = (re.findall(r"<code[^>]*>(.*?)</code>", row) for _, row in rows)

    assert status == 200
    assert (inputs, durations) == (["10", "12"], ["60.0", "90.0"])
    assert "test_compare_inputs.py:" in text
    assert OperatorAction.objects.filter(action="view_payload", run_id=run.pk).exists()


def test_the_same_code_differs_nowhere(client: Client, run: Instance) -> None:
    status, text = compared(login(client, "view_instance", "view_payload"), run)

    assert (status, "The code produces the same inputs" in text) == (200, True)


def test_without_the_permission_there_is_no_link_and_no_page(client: Client, run: Instance) -> None:
    Pays.card = "4111-new"
    client = login(client, "view_instance")

    assert LINK not in text_of(client, run.pk)
    status, text = compared(client, run)
    assert status == 403
    assert "4111" not in text


def test_redacted_fields_stay_redacted(client: Client, run: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of undeclared keys stand in no path; the fields that they lead to are redacted all the same."""
    monkeypatch.setattr(Pays, "redacted", ("card.number",))
    Pays.card = "4111-new"

    status, text = compared(login(client, "view_instance", "view_payload"), run)

    assert (status, text.count("[redacted]")) == (200, 2)
    assert "4111" not in text


def test_code_that_fails_in_the_replay_says_so(client: Client, run: Instance) -> None:
    Pays.raises = True

    status, text = compared(login(client, "view_instance", "view_payload"), run)

    assert status == 409
    assert "RuntimeError" in text or "does not match" in text


def test_code_of_workers_alone_is_not_run_in_a_web_process(client: Client, run: Instance) -> None:
    client = login(client, "view_instance", "view_payload")
    with override_settings(TEMPORALEX={"UPDATES_IN": "workers"}):
        assert LINK not in text_of(client, run.pk)
        status, text = compared(client, run)

    assert status == 409 or "temporalex replay" in text
