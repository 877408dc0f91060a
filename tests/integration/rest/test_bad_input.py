"""Bad input at each address of REST: the table is made of the addresses themselves, so that a new one stands in it.

What is right at an address is its row in the permission matrix; each test below sends that with one thing wrong.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib.auth.models import Permission
from django.test import Client, override_settings
from rest_framework import serializers
from rest_framework.test import APIClient

from temporalex_django.models import HumanTask, Instance, OperatorAction
from temporalex_django.operations.registry import STEERING
from temporalex_django.rest import urls
from temporalex_django.rest.requests import Contract
from tests.integration.operations.test_permission_matrix import REST, filled, routes
from tests.integration.rest.test_instances import URL, assert_problem
from tests.support.matrix import NIGHTLY, POLICY, standing
from tests.support.people import stored

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("_tenants")]

VERBS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
JSON = ("application/json", "application/problem+json")
#: SQL, HTML, formats and what turns a line around; and what no database keeps.
NASTY = ("'; drop table temporalex_instance; --<script>alert(1)<script>%s{0}${7*7}\u202e", "\0")
#: Numbers that no column, float or time can hold.
NUMBERS = (10**400, 2**63)
#: What a field of that kind does not take.
WRONG: tuple[tuple[type, Any], ...] = (
    (serializers.ChoiceField, "no such choice"), (serializers.CharField, [1]), (serializers.IntegerField, "x"),
    (serializers.BooleanField, "perhaps"), (serializers.FloatField, "x"), (serializers.ListField, 5),
    (serializers.DictField, 5),
)  # fmt: skip
#: The problem of what is not there, by what the address names.
NOT_FOUND = {
    "human-tasks/<": "human_task_not_found",
    "tasks/<": "task_not_found",
    "schedules/<": "schedule_not_found",
}
#: What a run that is closed does not take.
MESSAGES = ("signal", "update", "resume")


@pytest.fixture(autouse=True)
def _tenants() -> Iterator[None]:
    with override_settings(TEMPORALEX={"ACCESS_POLICY": POLICY, "MAX_PAYLOAD_BYTES": 2000}):
        yield


def views() -> dict[str, Any]:
    """A view of each address, by method and name."""
    found = {}
    for pattern in urls.urlpatterns:
        made: Any = pattern.callback
        for verb, action in made.actions.items():
            found[f"{verb.upper()} {pattern.name}"] = made.cls(**made.initkwargs, action=action)
    return found


VIEWS = views()
WRITING = [name for name in VIEWS if name.startswith(("POST", "PUT"))]


class Asked:
    """A request that is right, to be sent with something wrong in it."""

    def __init__(self, name: str) -> None:
        self.verb, _, self.name = name.partition(" ")
        assert name in REST, f"{name}: add a row to REST in tests/integration/operations/test_permission_matrix.py"
        self.row = REST[name]
        self.contract: Contract = VIEWS[name].contract
        self.user = stored("red-right")  # whom the run that asks people asks, too
        self.user.user_permissions.set(Permission.objects.filter(content_type__app_label="temporalex_django"))
        self.api = APIClient(raise_request_exception=False)
        self.api.force_authenticate(type(self.user).objects.get(pk=self.user.pk))
        self.run = self.row.ready()
        self.row.do(self._note)
        self.before = standing()

    def _note(self, body: Any = None, *, at: Any = (), query: str = "") -> None:
        self.body, self.at = body, {"id": self.run.id, **dict(at)}
        self.route = routes()[f"{self.verb} {self.name}"]
        self.address = filled(self.route, self.at) + query

    def send(self, body: Any = ..., *, address: str = "", api: Any = None, **headers: str) -> Any:
        sent = self.body if body is ... else body
        answer = (api or self.api).generic(
            self.verb,
            address or self.address,
            "" if self.verb == "GET" else json.dumps(sent) if not isinstance(sent, bytes) else sent,
            content_type=headers.pop("content_type", "application/json"),
            headers=headers,
        )
        assert answer.status_code < 500, (sent, address, answer.content[:500])
        assert answer.status_code == 204 or answer["Content-Type"] in JSON, (sent, address, answer.content[:500])
        assert answer["X-Content-Type-Options"] == "nosniff"
        assert answer["Cache-Control"] == "private, no-store"
        return answer

    def refused(self, answer: Any, status: int, code: str) -> Any:
        """It is that problem, and nothing has been done."""
        body = assert_problem(answer, status, code)
        assert standing() == self.before
        return body


@pytest.mark.parametrize("name", VIEWS)
def test_what_the_address_does_not_take(name: str) -> None:
    asked = Asked(name)
    there = {verb for verb in VERBS if f"{verb} {asked.name}" in VIEWS}
    for verb in set(VERBS) - there:
        answer = asked.api.generic(verb, asked.address, "{}", content_type="application/json")
        asked.refused(answer, 405, "method_not_allowed")
        allowed = {one.strip() for one in answer["Allow"].split(",")}
        assert there <= allowed <= there | {"HEAD", "OPTIONS"}
    joint = "&" if "?" in asked.address else "?"
    problem = asked.refused(asked.send(address=f"{asked.address}{joint}colour=red"), 400, "invalid")
    assert "colour" in problem["errors"]["unknown"][0]
    if not asked.contract.keyed:
        asked.refused(asked.send(**{"Idempotency-Key": "k"}), 400, "invalid")
    if not asked.contract.matched:
        asked.refused(asked.send(**{"If-Match": "*"}), 400, "invalid")
    for part in asked.at:  # in the address
        if f"<str:{part}>" in asked.route:
            for nasty in NASTY:
                strange = filled(asked.route, {**asked.at, part: quote(nasty)})
                # 409: the run has no failed message of that id
                expected = {400, 404, 409} if part == "message" else {400, 404}
                assert asked.send(address=strange).status_code in expected, strange
    for parameter in VIEWS[name].parameter_names():
        for nasty in NASTY:
            assert asked.send(address=f"{asked.address.partition('?')[0]}?{parameter}={quote(nasty)}") is not None
    assert Instance.objects.count() >= len(asked.before[0])


@pytest.mark.parametrize("name", WRITING)
def test_what_the_body_does_not_take(name: str) -> None:
    asked = Asked(name)
    assert asked.contract.body is not None
    form = asked.contract.body().fields
    right = asked.body or {}

    for wrong in ([], "x", 5, True):
        asked.refused(asked.send(wrong), 400, "invalid")
    problem = asked.refused(asked.send({**right, "<colour>": "red"}), 400, "invalid")
    assert "colour" in problem["errors"]["unknown"][0]
    for field, kind in form.items():
        if (wrong := next((value for of, value in WRONG if isinstance(kind, of)), None)) is not None:
            problem = asked.refused(asked.send({**right, field: wrong}), 400, "invalid")
            assert field in problem["errors"], problem
        if kind.required:
            without = {key: value for key, value in right.items() if key != field}
            assert field in asked.refused(asked.send(without), 400, "invalid")["errors"]
    asked.refused(asked.send(b"{" + b" " * 8000 + b"}"), 413, "too_large")
    asked.refused(asked.send(b"{"), 400, "parse_error")
    asked.refused(asked.send(b"a=1", content_type="application/x-www-form-urlencoded"), 415, "unsupported_media_type")
    for field in form:
        for nasty in NASTY:
            assert asked.send({**right, field: nasty}) is not None
            assert asked.send({**right, field: {nasty: [nasty]}}) is not None
        for number in NUMBERS:
            for value in (number, [1, number]):
                assert asked.send({**right, field: value}) is not None
    assert Instance.objects.count() >= len(asked.before[0]) - (asked.name == "delete")


@pytest.mark.parametrize(("name", "field"), [("POST terminate", "reason"), ("POST decide", "comment")])
def test_a_text_of_a_person_is_never_refused(name: str, field: str) -> None:
    asked = Asked(name)
    text = "the\tcustomer\0 Café\u00a0Paris\r\n\ud800" + "x" * 900
    answer = asked.send({**(asked.body or {}), field: text})
    assert answer.status_code in (200, 202), answer.content
    stored_text = OperatorAction.objects.latest("pk").reason or HumanTask.objects.latest("closed_at").comment
    assert " ".join(stored_text.split()).startswith("the customer Café Paris")
    assert "\x00" not in stored_text


@pytest.mark.parametrize("name", WRITING)
def test_who_is_elsewhere_or_forged(name: str) -> None:
    asked = Asked(name)
    browser = Client(enforce_csrf_checks=True, raise_request_exception=False)
    browser.force_login(asked.user)
    assert "CSRF" in asked.refused(asked.send(api=browser), 403, "not_permitted")["detail"]
    other = APIClient(raise_request_exception=False)
    other.force_authenticate(asked.row.user("other tenant"))
    if "<" in asked.route and not asked.row.of_all:
        what = next((code for part, code in NOT_FOUND.items() if part in asked.route), "workflow_not_found")
        there = asked.refused(asked.send(api=other), 404, what)["detail"]
        absent = {"id": "nobody", "job": uuid.uuid4(), "task": uuid.uuid4(), "schedule": "nobody"}
        nobody = filled(asked.route, {**asked.at, **absent})
        nowhere = asked.refused(asked.send(api=other, address=nobody), 404, what)["detail"]
        told = (
            there.replace(asked.run.id, "nobody")
            .replace(NIGHTLY, "nobody")
            .replace(str(asked.at.get("task")), str(absent["task"]))
        )
        assert told == nowhere  # as if it were not there


@pytest.mark.parametrize("name", WRITING)
def test_who_is_late(name: str) -> None:
    """The run is closed, and it closes between what was read and what is sent."""
    asked = Asked(name)
    row = Instance.objects.filter(workflow_id=asked.run.id).latest("pk")
    tag = asked.api.get(f"{URL}{asked.run.id}/")["ETag"]
    if row.is_open:
        asked.run.terminate("somebody was quicker")
    row.refresh_from_db()
    asked.before = standing()

    if asked.contract.matched:
        seen = tag if asked.contract.operation != "delete" else '"another"'
        problem = asked.refused(asked.send(**{"If-Match": seen}), 412, "changed")
        assert problem["changes"] or seen != tag
    action = STEERING.get(asked.contract.operation)
    why = None if action is None else action.why_not(row, seq=asked.at.get("seq"))
    if why is not None:
        assert "already closed" in asked.refused(asked.send(), 409, "workflow_closed")["detail"]
    elif asked.contract.operation in MESSAGES:
        asked.refused(asked.send(), 409, "workflow_closed")
    elif "human-tasks/<" in asked.route:
        asked.refused(asked.send(), 409, "human_task_closed")
    else:
        assert asked.send().status_code < 400


@pytest.mark.parametrize("name", [name for name in WRITING if VIEWS[name].contract.keyed])
def test_who_sends_it_twice(name: str) -> None:
    asked = Asked(name)

    first = asked.send(**{"Idempotency-Key": "k-1"})
    once = standing()
    again = asked.send(**{"Idempotency-Key": "k-1"})

    assert (first.status_code < 400, again.status_code) == (True, first.status_code), first.content
    assert standing() == once
