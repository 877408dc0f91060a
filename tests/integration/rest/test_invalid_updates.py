"""An update whose arguments have the wrong type is the sender's mistake: 400, with the place of it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from rest_framework.test import APIClient

from temporalex_django import NoReply, Ok, Workflow, api, errors
from temporalex_django.rest.requests import problem_handler
from temporalex_django.testing import drain
from tests.support.client_flows import Basket

pytestmark = pytest.mark.django_db(transaction=True)


@dataclass
class Line:
    """A line of an order."""

    sku: str
    quantity: int


class Lines(Workflow):
    """Collects lines."""

    name = "test.RestLines"

    async def run(self, args: None) -> Ok[Any]:
        def add(line: Line, state: Any) -> Any:
            return NoReply([*state, line.sku])

        return Ok(await api.phase([], update={"add": add}))


def test_a_type_error_is_400_with_its_path() -> None:
    Lines.start(id="lines")
    drain()
    client = APIClient()
    client.force_authenticate(get_user_model().objects.create_superuser("root"))

    answer = client.post(
        "/api/instances/lines/updates/add/", {"args": {"sku": "cup", "quantity": "two"}}, format="json"
    )

    body = answer.json()
    assert (answer.status_code, body["code"], body["path"]) == (400, "update_rejected", "$.quantity")
    assert "Expected `int`, got `str`" in body["detail"]
    with pytest.raises(errors.UpdateRejected) as caught:
        Lines.handle("lines").update("add", {"sku": "cup", "quantity": "two"})
    assert caught.value.path == "$.quantity"


def test_what_a_validator_refuses_is_422_without_a_path() -> None:
    Basket.start(id="basket")
    drain()
    client = APIClient()
    client.force_authenticate(get_user_model().objects.create_superuser("root"))
    answer = client.post("/api/instances/basket/updates/add/", {"args": -1}, format="json")
    assert (answer.status_code, "path" in answer.json()) == (422, False)


def test_titles_of_problems_are_plain_text() -> None:
    class Request:
        """As far as the handler reads one."""

        def get_full_path(self) -> str:
            return "/"

    kinds = [one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, errors.TemporalexError)]
    assert len(kinds) > 30
    for kind in kinds:
        answer: Any = problem_handler(kind(), {"request": Request()})
        assert "`" not in answer.data["title"], kind
