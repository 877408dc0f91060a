"""What each address of the REST face takes: all else is refused by name, and nothing of the host's is in the way."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.core.cache import cache
from django.test import override_settings
from django.utils import timezone
from rest_framework.test import APIClient
from rest_framework.throttling import BaseThrottle

from temporalex_django import Ok, Reply, Workflow, api, query
from temporalex_django.models import ActivityTask, Chain, Instance, OperatorAction, Worker
from temporalex_django.operations.registry import STEERING
from temporalex_django.rest import serializers
from temporalex_django.rest.urls import urlpatterns
from tests.integration.rest.test_instances import URL, assert_problem, person
from tests.support import tenants
from tests.support.client_flows import Basket, Opening, Sleepy, double, drain

pytestmark = pytest.mark.django_db


class Parent(Workflow):
    """Starts children."""

    name = "rest.Parent"

    async def run(self, args: int) -> Ok[None]:
        await api.parallel([lambda: api.child(Sleepy) for _ in range(args)])
        return Ok(None)


class Doubling(Workflow):
    name = "rest.Doubling"

    @query("price")
    @staticmethod
    def price(state: Any) -> list[int]:
        return [state]

    @staticmethod
    def ask(args: int, state: Opening) -> Reply[Opening, Opening]:
        return Reply(state, state)

    async def asked(self, args: Opening) -> Any:
        return await api.phase(args, update={"ask": self.ask})

    async def run(self, args: Opening) -> Ok[int]:
        return Ok(await double(21))


def everybody(name: str = "ann") -> Any:
    user = get_user_model().objects.create_user(name)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="temporalex_django"))
    return user


def rest_of(user: Any) -> APIClient:
    found = APIClient(raise_request_exception=False)
    found.force_authenticate(user)
    return found


@pytest.fixture
def client() -> APIClient:
    return rest_of(everybody())


def ids(response: Any) -> list[str]:
    assert response.status_code == 200, response.content
    return [run["id"] for run in response.json()["results"]]


# -- lists -----------------------------------------------------------------------------------------------------------


def test_a_filter_that_there_is_not_is_refused_with_those_that_there_are(client: APIClient) -> None:
    Basket.start(id="b-1")

    errors = assert_problem(client.get(URL, {"state": "running"}), 400, "invalid")["errors"]

    for accepted in (
        "status",
        "workflow",
        "version",
        "queue",
        "id_prefix",
        "blocked",
        "subject",
        "created_after",
        "cursor",
    ):
        assert accepted in errors["unknown"][0]
    assert "'state'" in errors["unknown"][0]
    assert_problem(client.get(f"{URL}?status="), 400, "invalid")
    assert_problem(client.get(f"{URL}?queue=a&queue=b"), 400, "invalid")
    assert_problem(client.get(f"{URL}b-1/", {"status": "running"}), 400, "invalid")


def test_what_narrows_a_list(client: APIClient) -> None:
    owner = get_user_model().objects.create_user("owner")
    Basket.start(id="b-1", subject=owner)
    Basket.start(id="b-2").terminate()
    Sleepy.start(id="s-1")
    long_ago = timezone.now() - timedelta(days=9)
    old = UUID(int=int(long_ago.timestamp() * 1000) << 80)
    Chain.objects.filter(run__workflow_id="s-1").update(run=old)
    Instance.objects.filter(workflow_id="s-1").update(id=old, blocked={"code": "x"}, version=3, created_at=long_ago)
    day_ago = (timezone.now() - timedelta(days=1)).isoformat()

    for parameters, wanted in [
        ({"subject": f"auth.user:{owner.pk}"}, ["b-1"]),
        ({"subject": "auth.user:0"}, []),
        ({"id_prefix": "b-"}, ["b-2", "b-1"]),
        ({"id_prefix": "%"}, []),
        ({"blocked": "true"}, ["s-1"]),
        ({"blocked": "false", "workflow": "test.Sleepy"}, []),
        ({"version": "3"}, ["s-1"]),
        ({"queue": "other"}, []),
        ({"status": "pending,terminated"}, ["b-2", "b-1", "s-1"]),
        ({"status": "terminated"}, ["b-2"]),
        ({"status": "terminated,failed"}, ["b-2"]),
        ({"status": "completed,terminated"}, ["b-2"]),
        ({"created_after": day_ago}, ["b-2", "b-1"]),
        ({"created_before": day_ago}, ["s-1"]),
        ({"closed_after": day_ago}, ["b-2"]),
        ({"closed_before": day_ago}, []),
    ]:
        assert ids(client.get(URL, parameters)) == wanted, parameters
    assert client.get(f"{URL}b-1/").json()["subject"] == {"type": "auth.user", "id": str(owner.pk)}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("subject", "order"), ("subject", "auth.user"), ("subject", "no.model:1"), ("blocked", "yes"), ("version", "x"),
        ("version", "9" * 30), ("version", "-1"), ("created_after", "soon"), ("workflow", "a\0"), ("subject", "auth.user:\0"),
    ],
)  # fmt: skip
def test_a_filter_that_does_not_fit_is_refused(client: APIClient, name: str, value: str) -> None:
    assert name in assert_problem(client.get(URL, {name: value}), 400, "invalid")["errors"]


def test_a_list_takes_two_reads_whatever_narrows_it(client: APIClient, django_assert_max_num_queries: Any) -> None:
    owner = get_user_model().objects.create_user("owner")
    for n in range(5):
        Basket.start(id=f"b-{n}", subject=owner)
    client.get(URL)

    with django_assert_max_num_queries(4):
        assert (
            len(ids(client.get(URL, {"subject": f"auth.user:{owner.pk}", "status": "pending", "id_prefix": "b"}))) == 5
        )


# -- one run -----------------------------------------------------------------------------------------------------------


def test_children(client: APIClient) -> None:
    parent = Parent.start(3, id="p-1")
    Sleepy.start(id="s-1")
    drain()

    first = client.get(f"{URL}p-1/children/", {"limit": 2}).json()
    second = client.get(first["next"]).json()

    children = first["results"] + second["results"]
    assert [child["workflow"] for child in children] == ["test.Sleepy"] * 3
    assert {child["parent_run_id"] for child in children} == {parent.run_id}
    assert client.get(f"{URL}s-1/children/").json()["results"] == []


def test_activities_with_their_attempts(client: APIClient) -> None:
    Doubling.start(Opening("ann"), id="d-1")
    run = Instance.objects.get()
    now = timezone.now()
    for seq in (1, 2):
        ActivityTask.objects.create(
            chain_id=run.chain_id, run=run, workflow_id="d-1", workflow=run.workflow, seq=seq, activity="double",
            call=b"[[21],{}]", options=b"{}", queue="default", run_queue="default", attempt=seq, max_attempts=5,
            scheduled_at=now, due_at=now + timedelta(seconds=30),
        )  # fmt: skip
    Instance.objects.update(status="waiting", started_at=now)  # a run without a turn has none

    rows = client.get(f"{URL}d-1/activities/").json()["results"]

    assert [(row["seq"], row["activity"], row["attempt"], row["max_attempts"]) for row in rows] == [
        (1, "double", 1, 5), (2, "double", 2, 5),
    ]  # fmt: skip
    assert rows == client.get(f"{URL}d-1/").json()["activities"]


def test_messages_that_a_run_takes(client: APIClient) -> None:
    basket = Basket.start(id="b-1")
    drain()
    bob = rest_of(person("view", name="bob"))

    mine = {row["name"]: row for row in client.get(f"{URL}b-1/messages/").json()["results"]}
    his = {row["name"]: row for row in bob.get(f"{URL}b-1/messages/").json()["results"]}

    assert (mine["add"]["kind"], mine["add"]["schema"], mine["add"]["why_not"]) == ("update", {"type": "integer"}, None)
    assert mine["note"]["schema"] is None
    assert "update_instance" in his["add"]["why_not"]
    basket.terminate()
    assert client.get(f"{URL}b-1/messages/").json()["results"] == []


def test_what_can_be_done_to_a_run(client: APIClient) -> None:
    basket = Basket.start(id="b-1")
    bob = rest_of(person("view", name="bob"))

    def answer(who: APIClient) -> dict[str, Any]:
        return {row["name"]: row["why_not"] for row in who.get(f"{URL}b-1/operations/").json()["results"]}

    assert set(answer(client)) == set(STEERING)
    assert answer(client)["terminate"] is None
    assert "terminate_instance" in answer(bob)["terminate"]
    basket.terminate()
    assert "closed" in answer(client)["terminate"]


def test_there_is_an_address_for_all_that_operators_do() -> None:
    posted = {pattern.name for pattern in urlpatterns}

    assert set(STEERING) <= posted


# -- two operators -----------------------------------------------------------------------------------------------------


def test_an_action_on_what_has_changed_is_refused_and_says_what(client: APIClient) -> None:
    basket = Basket.start(id="b-1")
    drain()
    first, second = client.get(f"{URL}b-1/")["ETag"], client.get(f"{URL}b-1/")["ETag"]
    assert first == second
    basket.update("add", 1)

    refused = client.post(f"{URL}b-1/terminate/", {"reason": "x"}, format="json", HTTP_IF_MATCH=first)

    changes = assert_problem(refused, 412, "changed")["changes"]
    assert changes["events"]["was"] < changes["events"]["is"]
    assert basket.status == "waiting"
    assert not OperatorAction.objects.filter(action="terminate").exists()
    now = client.get(f"{URL}b-1/")["ETag"]
    done = client.post(f"{URL}b-1/terminate/", format="json", HTTP_IF_MATCH=f'"other", W/{now}')
    assert (done.status_code, done.json()["status"]) == (200, "terminated")
    assert done["ETag"] != now
    late = assert_problem(client.post(f"{URL}b-1/terminate/", format="json", HTTP_IF_MATCH=now), 412, "changed")
    assert late["changes"]["status"] == {"was": "waiting", "is": "terminated"}


def test_a_tag_that_is_none_of_ours_matches_nothing_and_a_star_everything(client: APIClient) -> None:
    Basket.start(id="b-1")

    for tag in ('"x"', "nonsense", '"a.b.c.d.e.f"', "", '"' + "9" * 5000 + '"'):
        assert_problem(client.post(f"{URL}b-1/terminate/", format="json", HTTP_IF_MATCH=tag), 412, "changed")
    assert client.post(f"{URL}b-1/terminate/", format="json", HTTP_IF_MATCH="*").status_code == 200


def test_a_header_that_is_not_taken_is_refused(client: APIClient) -> None:
    Basket.start(id="b-1")

    assert (
        "If-Match"
        in assert_problem(client.post(f"{URL}b-1/signals/note/", format="json", HTTP_IF_MATCH='"x"'), 400, "invalid")[
            "errors"
        ]
    )


def test_a_message_with_a_key_is_taken_once(client: APIClient) -> None:
    basket = Basket.start(id="b-1")
    drain()
    update, key = f"{URL}b-1/updates/add/", {"HTTP_IDEMPOTENCY_KEY": "k-1"}

    answers = [client.post(update, {"args": 5}, format="json", **key).json() for _ in range(2)]

    assert answers == [{"id": "k-1", "result": 1}] * 2
    assert_problem(client.post(update, {"args": 6}, format="json", **key), 422, "idempotency_key_reused")
    assert_problem(client.post(f"{URL}b-1/signals/note/", format="json", **key), 422, "idempotency_key_reused")
    assert_problem(client.post(update, {"args": 5, "id": "k-1"}, format="json", **key), 400, "invalid")
    assert_problem(client.post(update, {"args": 5}, format="json", HTTP_IDEMPOTENCY_KEY="\0"), 400, "invalid_id")
    for _ in range(2):
        sent = client.post(f"{URL}b-1/signals/note/", {"payload": 7}, format="json", HTTP_IDEMPOTENCY_KEY="k-2")
        assert sent.status_code == 202
    basket.signal("checkout")
    drain()
    assert basket.result() == [5, 7]


# -- bodies ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "takes"),
    [("", "workflow"), ("b-1/signals/note/", "payload"), ("b-1/updates/add/", "args"), ("b-1/queries/items/", "args"),
     ("b-1/resume/", "event"), *((f"b-1/{name.replace('_', '-')}/", "reason") for name, action in STEERING.items() if action.target_kind == "run")],
)  # fmt: skip
def test_a_field_that_a_body_does_not_have_is_refused_with_those_that_it_has(
    client: APIClient, path: str, takes: str
) -> None:
    Basket.start(id="b-1")

    answer = assert_problem(
        client.post(URL + path, '{"reaso\\ud800n": 1}', content_type="application/json"), 400, "invalid"
    )

    assert takes in answer["errors"]["unknown"][0]
    assert Chain.objects.filter(closed=False).count() == 1
    assert not OperatorAction.objects.exists()


# -- what can run ------------------------------------------------------------------------------------------------------


def test_workers(client: APIClient) -> None:
    now = timezone.now()
    for n in range(2):
        Worker.objects.create(
            id=f"0189000{n}-0000-7000-8000-000000000000", epoch=n, kind="worker", host="h", pid=n, queues=["default"],
            workflows={"test.Basket": [1]}, started_at=now, beat_at=now, expires_at=now + timedelta(hours=n * 2 - 1),
        )  # fmt: skip

    rows = client.get("/api/workers/").json()["results"]

    assert [(row["pid"], row["alive"], row["workflows"]) for row in rows] == [
        (1, True, {"test.Basket": [1]}), (0, False, {"test.Basket": [1]}),
    ]  # fmt: skip
    assert_problem(rest_of(person("view", name="bob")).get("/api/workers/"), 403, "not_permitted")


def test_types_say_what_they_take(client: APIClient) -> None:
    found = {row["workflow"]: row for row in client.get("/api/types/").json()["results"]}

    basket, doubling = found["test.Basket"], found["rest.Doubling"]
    assert doubling["args"]["$defs"]["Opening"]["required"] == ["owner"]
    assert [(row["name"], row["returns"]) for row in doubling["updates"]] == [("ask", doubling["args"])]
    assert [(row["name"], row["returns"]["type"]) for row in doubling["queries"]] == [("price", "array")]
    assert {row["name"]: row["schema"] for row in basket["updates"]}["add"] == {"type": "integer"}
    assert {row["name"] for row in basket["signals"]} == {"note", "checkout"}
    assert {row["name"] for row in basket["queries"]} == {"items", "upto", "broken"}
    assert (found["rest.Parent"]["about"], found["test.Orders"]["unique"]) == ("Starts children.", "order")
    assert found["rest.Decided"]["events"] == ["approved", "rejected"] if "rest.Decided" in found else True
    assert client.get("/api/types/test.Basket/").json()["results"] == [basket]
    assert_problem(client.get("/api/types/test.Nobody/"), 404, "unknown_workflow")


# -- the host ----------------------------------------------------------------------------------------------------------


class Never(BaseThrottle):
    def allow_request(self, request: Any, view: Any) -> bool:
        return False


def test_what_the_host_has_set_for_his_own_views_is_not_obeyed(client: APIClient, settings: Any) -> None:
    settings.REST_FRAMEWORK = {
        **settings.REST_FRAMEWORK,
        "DEFAULT_THROTTLE_CLASSES": [f"{__name__}.Never"],
        "DEFAULT_VERSIONING_CLASS": "rest_framework.versioning.AcceptHeaderVersioning",
        "DEFAULT_FILTER_BACKENDS": ["rest_framework.filters.SearchFilter"],
        "DEFAULT_PAGINATION_CLASS": None,
        "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.BrowsableAPIRenderer"],
        "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.FormParser"],
        "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.AllowAny"],
        "DATETIME_FORMAT": "%d.%m.%y",
        "URL_FORMAT_OVERRIDE": "limit",
    }
    Basket.start(id="b-1")

    (run,) = client.get(URL, {"limit": 5}, HTTP_ACCEPT="text/html").json()["results"]

    assert run["created_at"].startswith("20") and run["created_at"].endswith("Z")
    assert APIClient().get(URL).status_code in (401, 403)


def test_rates_count_only_when_they_are_set(client: APIClient, settings: Any) -> None:
    cache.clear()
    for n in range(3):
        assert client.post(URL, {"workflow": "test.Basket", "id": f"b-{n}"}, format="json").status_code == 201
    settings.REST_FRAMEWORK = {**settings.REST_FRAMEWORK, "DEFAULT_THROTTLE_RATES": {"temporalex-start": "1/hour"}}

    assert client.post(URL, {"workflow": "test.Basket", "id": "b-8"}, format="json").status_code == 201
    refused = client.post(URL, {"workflow": "test.Basket", "id": "b-9"}, format="json")

    assert_problem(refused, 429, "throttled")
    assert int(refused["Retry-After"]) > 0
    assert len(ids(client.get(URL))) == 4
    assert rest_of(everybody("eve")).post(URL, {"workflow": "test.Basket"}, format="json").status_code == 201


# -- tenants -----------------------------------------------------------------------------------------------------------


@override_settings(TEMPORALEX={"ACCESS_POLICY": tenants.POLICY})
def test_every_address_of_one_run_is_404_for_another_tenant() -> None:
    Basket.start(id="blue-1")
    red = rest_of(everybody("red-ann"))
    asked = 0
    for pattern in urlpatterns:
        address = (
            f"/api/{pattern.pattern}".replace("<str:id>", "blue-1").replace("<int:seq>", "1").replace("<str:name>", "x")
        )
        if "blue-1" not in address:
            continue
        for method in {*pattern.callback.actions} - {"head"}:
            asked += 1
            response = getattr(red, method)(address, {} if method == "post" else None, format="json")
            assert response.status_code == 404, (method, address, response.content)
            assert_problem(response, 404, "workflow_not_found")
    assert asked >= 13
    assert not OperatorAction.objects.exists()


def test_no_body_shares_its_name() -> None:
    bodies = [name for name in vars(serializers) if name.endswith("Body")]

    assert len(bodies) == len(set(bodies))
