"""Headers in bodies of requests, and of a run that is shown."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from temporalex_django import Ok, Reply, Stop, Workflow, api
from temporalex_django.models import Message
from tests.integration.rest.test_instances import PERMISSIONS, assert_problem, person

pytestmark = pytest.mark.django_db

URL = "/api/instances/"
GIVEN = {"tenant": "a", "request-id": "r1"}


class RestHeaders(Workflow):
    name = "rest.Headers"

    async def run(self, args: Any) -> Ok:
        read = {"say": lambda _, state: Reply(api.headers(), state)}
        return Ok(await api.phase(None, signal={"close": lambda _, __: Stop(api.headers())}, update=read))


@pytest.fixture
def client() -> APIClient:
    client = APIClient()
    client.force_authenticate(person(*PERMISSIONS))
    return client


def test_a_start_takes_them_and_the_run_shows_them(client: APIClient) -> None:
    shown = client.post(URL, {"workflow": "rest.Headers", "id": "h1", "headers": GIVEN}, format="json")
    assert (shown.status_code, shown.json()["headers"]) == (201, GIVEN)
    assert client.get(f"{URL}h1/").json()["headers"] == GIVEN
    assert "headers" not in client.get(URL).json()["results"][0]


def test_messages_take_them(client: APIClient) -> None:
    handle = RestHeaders.start(id="h2")
    answer = client.post(f"{URL}h2/updates/say/", {"headers": {"of": "say"}}, format="json")
    assert answer.json()["result"] == {"of": "say"}
    assert client.post(f"{URL}h2/signals/close/", {"headers": {"of": "close"}}, format="json").status_code == 202
    assert Message.objects.get(chain_id=handle.chain_id, kind="signal").headers == {"of": "close"}


def test_who_may_not_see_payloads_sees_the_names_alone(client: APIClient) -> None:
    handle = RestHeaders.start(id="h3", headers=GIVEN)
    handle.update("say", headers={"of": "say"})
    guest = person("view", name="guest")
    guest.user_permissions.remove(*guest.user_permissions.filter(codename="view_payload"))
    client.force_authenticate(guest)
    shown = client.get(f"{URL}h3/").json()["headers"]
    assert shown.keys() == GIVEN.keys()
    assert not {*shown.values()} & {*GIVEN.values()}
    events = client.get(f"{URL}h3/events/").json()["results"]
    assert "r1" not in str(events)
    assert "'of'" not in str(events)


@pytest.mark.parametrize("headers", [{"a": 1}, {"a": None}, {"A": "b"}, {"a": "x" * 5000}, {"a": ["b"]}])
def test_bad_headers_are_400_and_nothing_is_sent(client: APIClient, headers: Any) -> None:
    handle = RestHeaders.start(id="h4")
    for path, body in (
        ("", {"workflow": "rest.Headers", "id": "h5"}),
        ("h4/signals/close/", {}),
        ("h4/updates/say/", {}),
    ):
        problem = assert_problem(
            client.post(f"{URL}{path}", {**body, "headers": headers}, format="json"), 400, "invalid_headers"
        )
        assert "header" in problem["detail"]
    assert not Message.objects.filter(chain_id=handle.chain_id).exists()
    assert client.get(f"{URL}h5/").status_code == 404


def test_headers_that_are_no_object_are_400(client: APIClient) -> None:
    answer = client.post(URL, {"workflow": "rest.Headers", "headers": ["a"]}, format="json")
    assert answer.status_code == 400
    assert "headers" in answer.json()["errors"]
