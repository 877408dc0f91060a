"""The REST face against what clients may send: no 500, always a problem with a code; and who may know what."""

from __future__ import annotations

import base64
import itertools
import json
import time
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from django.contrib.auth.models import Group
from django.test import override_settings
from rest_framework.test import APIClient

from temporalex_django import Approval, Done, GraphWorkflow, Unique, errors
from temporalex_django.backends import host
from temporalex_django.models import Chain, HistoryEvent, Instance, Message
from temporalex_django.rest import lists, views
from temporalex_django.rest.requests import BodyTooLarge, BoundedJSONParser, wait_slot
from tests.integration.client.test_ids import Waits, WaitsToo
from tests.integration.rest.test_instances import PERMISSIONS, URL, assert_problem, person
from tests.support.client_flows import Basket, Sleepy, drain

pytestmark = pytest.mark.django_db

decision = Approval(role="deciders")


class Decided(GraphWorkflow):
    name = "rest.Decided"
    unique = Unique(key="decided")
    initial = decision
    transitions = {(decision, "approved"): Done, (decision, "rejected"): Done}


@pytest.fixture
def api() -> APIClient:
    client = APIClient(raise_request_exception=False)
    client.force_authenticate(person(*PERMISSIONS))
    return client


@pytest.fixture
def basket():
    return Basket.start(id="b 1")


# -- no 500 ------------------------------------------------------------------------------------------------------------

READ = ["", "b 1/", "b 1/events/", "b 1/result/", "b 1/updates/add/"]
WRITTEN = [
    "",
    *(f"b 1/{verb}/" for verb in ("signals/note", "updates/add", "queries/items", "resume", "cancel", "terminate")),
]
PARAMETERS = ("after", "cursor", "format", "id", "limit", "queue", "status", "wait", "workflow")


def cursor(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


VALUES = [
    "\0", "\n", "-1", "0", "1.5", "1e9", "nan", "inf", "9" * 5000, "x" * 10_000, "é", "\U0001f4a5", "%", "'\"--",
    cursor("p=nobody"), cursor("p=\0"), cursor("o=" + "9" * 5000), cursor("r=1&p="), "=", "ÿ" * 9,
]  # fmt: skip
DEEP = "[" * 200_000 + "]" * 200_000
BODIES = [
    "{", "null", "5", "[]", '""', "{}", "NaN", '{"args": NaN}', '{"args": 1e400}', '{"args": ' + "9" * 5000 + "}", DEEP,
    '{"args": ' + DEEP + "}", '{"a":' * 100_000 + "1" + "}" * 100_000, '{"args": "\\ud800"}', '{"args": {"\\ud800": 1e999}}',
    '{"payload": "\\ud800"}', '{"id": "\\u0000"}', '{"id": "\\ud800"}', '{"id": {}}', '{"id": 5}', '{"id": "' + "x" * 9999 + '"}',
    '{"workflow": "\\ud800"}', '{"workflow": "test.Basket", "version": 1e99}', '{"workflow": "test.Basket", "version": -5}',
    '{"workflow": "test.Basket", "value": "\\u0000"}', '{"workflow": "test.Basket", "id": "\\u0000"}', '{"workflow": ["x"]}',
    '{"workflow": "test.Basket", "args": "\\ud800"}', '{"workflow": "test.Basket", "args": ' + "[" * 300 + "]" * 300 + "}",
    '{"event": "\\u0000"}', '{"event": "x", "step": "\\ud800"}', '{"event": "x", "data": 1e999}', '{"reason": "\\u0000"}',
    '{"reason": "\\ud800"}', '{"reason": 5}', b"\xff\xfe", b"\xef\xbb\xbf{}", b"\x00", b'{"args": "\x00"}',
]  # fmt: skip
NO_TEXT = ["application/json; charset=" + name for name in ("rot13", "base64", "zlib")]
TYPES = [*NO_TEXT, "application/json; charset=utf-16", "application/json; charset=nobody"]
TYPES += ["application/xml", "multipart/form-data", "text/plain", "nonsense", ""]
IDS = ["%00", "%0a", "%ff%fe", "x" * 5000, "%7b%7d", "%25", "00000000-0000-0000-0000-000000000000", "%f0%9f%92%a5"]


def assert_fits(response, what: object) -> None:
    """No answer is the server's fault, and each refusal is a problem with a code."""
    assert response.status_code < 500 or response.status_code == 503, (what, response.content[:300])
    if response.status_code >= 400:
        assert response["Content-Type"] == "application/problem+json", (
            what,
            response.status_code,
            response.content[:300],
        )
        body = response.json()
        assert body["code"], what
        assert body["status"] == response.status_code
        assert len(body["detail"]) < 3000


@pytest.mark.parametrize("path", READ)
def test_parameters(api, basket, path):
    drain()
    for name, value in itertools.product(PARAMETERS, VALUES):
        assert_fits(api.get(URL + path, {name: value}), (name, value[:50]))


@pytest.mark.parametrize("path", WRITTEN)
def test_bodies(api, basket, path):
    for body in BODIES:
        assert_fits(api.post(URL + path, body, content_type="application/json"), body[:60])


@pytest.mark.parametrize("path", WRITTEN)
def test_parameters_of_what_writes(api, basket, path):
    for name, value in itertools.product(("wait", "workflow"), VALUES):
        assert_fits(
            api.post(f"{URL}{path}?{name}={quote(value)}", "{", content_type="application/json"), (name, value[:50])
        )


@pytest.mark.parametrize("path", WRITTEN + READ)
def test_encodings_and_methods(api, basket, path):
    for kind in TYPES:
        assert_fits(api.generic("POST", URL + path, "{}", content_type=kind), kind)
        query = "" if kind in NO_TEXT else "?wait=0"  # there Django itself fails, before it looks for a view
        assert_fits(api.generic("GET", URL + path + query, content_type=kind), kind)
    for method in ("PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "NOBODY"):
        assert_fits(api.generic(method, URL + path, "{}", content_type="application/json"), method)
    for accepts in ("text/html", "application/xml;q=zzz", "", "*/*", "\0"):
        assert_fits(api.generic("GET", URL + path, HTTP_ACCEPT=accepts), accepts)


@pytest.mark.parametrize("path", READ[1:] + WRITTEN[1:])
def test_ids_and_names_in_addresses(api, basket, path):
    _, _, rest = path.partition("/")
    parts = rest.split("/")
    for strange in IDS:
        for address in (f"{strange}/{rest}", *([f"b 1/{parts[0]}/{strange}/"] if len(parts) == 3 else [])):
            assert_fits(api.get(URL + address), address[:50])
            assert_fits(api.post(URL + address, "{}", content_type="application/json"), address[:50])


def test_what_is_refused_is_named(api, basket):
    for strange in (cursor("p=nobody"), "é", "x"):
        assert_problem(api.get(URL, {"cursor": strange}), 400, "invalid")
    assert_problem(api.get(URL, {"workflow": "\0"}), 400, "invalid")
    for name, value in (("after", "9" * 5000), ("after", 2**31), ("limit", 1001)):
        assert_problem(api.get(f"{URL}b 1/events/", {name: value}), 400, "invalid")
    for wait in ("nan", "inf", "-1", "1e9"):
        assert_problem(api.get(f"{URL}b 1/result/", {"wait": wait}), 400, "invalid")
    assert_problem(api.post(URL, DEEP, content_type="application/json"), 400, "parse_error")
    assert_problem(api.get(f"{URL}b 1/updates/add/", {"id": "\0"}), 400, "invalid_id")


@override_settings(TEMPORALEX={"MAX_PAYLOAD_BYTES": 1000})
def test_a_body_is_read_up_to_a_limit_only(api, basket):
    assert_problem(api.post(f"{URL}b 1/signals/note/", {"payload": "x" * 1001}, format="json"), 400, "payload")
    assert_problem(api.post(f"{URL}b 1/signals/note/", {"payload": "x" * 4001}, format="json"), 413, "too_large")

    class Endless:
        def read(self, size):
            return b" " * size

    with pytest.raises(BodyTooLarge):
        BoundedJSONParser().parse(Endless())


@pytest.mark.parametrize(
    ("error", "status", "again"),
    [
        (errors.UpdateTimeout("is it stored?", update_id="u-1", code="unknown"), 503, "1"),
        (errors.UpdateFailed("\ud800"), 422, None),
    ],
)
def test_errors_of_an_update(api, basket, monkeypatch, error, status, again):
    def fail(update):
        raise error

    monkeypatch.setattr(views.SendUpdate, "execute", fail)

    response = api.post(f"{URL}b 1/updates/add/", {"args": 1, "id": "u-1"}, format="json")

    body = assert_problem(response, status, error.code)
    assert response.headers.get("Retry-After") == again
    assert body.get("update_id") == (again and "u-1")


class Broken:
    """A codec whose key is gone."""

    def encode(self, value):
        raise OSError("no key")

    def decode(self, data):
        raise ZeroDivisionError("no key")


class Keyless(Broken):
    """One that lacks the key of what was written elsewhere."""

    def decode(self, data):
        raise errors.KeyMissing("2026-11")


@pytest.mark.parametrize("name", ["Broken", "Keyless"])
@pytest.mark.parametrize("path", sorted({*READ, *WRITTEN}))
def test_a_codec_that_raises(api, basket, path, name):
    basket.update("add", 1, id="u-1")
    basket.terminate()
    body = {"workflow": "test.Basket", "event": "x"}
    with override_settings(TEMPORALEX={"PAYLOAD_CODEC": f"{__name__}.{name}"}):
        for response in (api.get(URL + path, {"id": "u-1"}), api.post(URL + path, body, format="json")):
            assert_fits(response, path)


# -- who may know and do what ------------------------------------------------------------------------------------------


def test_resume_tells_strangers_nothing(api):
    Decided.start("1", {})
    drain()
    stranger = APIClient()
    stranger.force_authenticate(person("view", "start", "query", "cancel", "terminate", name="bob"))
    Basket.start(id="b-1")

    answers = [
        assert_problem(
            stranger.post(f"{URL}{ref}/resume/", body, content_type="application/json"), 403, "not_permitted"
        )
        for ref in ("decided::1", "nobody", "b-1", "nul\x00")
        for body in ("{", "{}", '{"event": "approved"}', '{"event": "shipped"}')
    ]

    odd = APIClient()
    odd.force_authenticate(Odd())  # nobody knows his groups
    sent = odd.post(f"{URL}decided::1/resume/", {"event": "approved"}, format="json")
    answers.append(assert_problem(sent, 403, "not_permitted"))
    assert {answer["detail"] for answer in answers} == {
        "This requires the permission temporalex_django.signal_instance."
    }
    assert_problem(APIClient().post(f"{URL}nobody/resume/"), 403, "not_permitted")
    assert not Message.objects.filter(kind="resume").exists()


def test_an_approver_needs_his_role_alone(api):
    Decided.start("1", {})
    drain()
    user = person(name="cleo")
    user.groups.add(Group.objects.create(name="deciders"))
    approver = APIClient()
    approver.force_authenticate(user)

    assert_problem(approver.post(f"{URL}nobody/resume/", {"event": "approved"}, format="json"), 403, "not_permitted")
    assert_problem(approver.post(f"{URL}decided::1/resume/", {}, format="json"), 400, "invalid")
    assert_problem(approver.get(f"{URL}decided::1/"), 403, "not_permitted")
    assert_problem(approver.post(f"{URL}decided::1/cancel/"), 403, "not_permitted")
    # who may signal, and lacks the role, is no approver
    assert_problem(api.post(f"{URL}decided::1/resume/", {"event": "approved"}, format="json"), 403, "not_permitted")
    response = approver.post(f"{URL}decided::1/resume/", {"event": "approved"}, format="json")

    assert (response.status_code, sorted(response.json())) == (200, ["id", "run_id", "url"])  # he may not look at runs
    assert Instance.objects.get().status == "completed"


class Odd:
    """A user who is not Django's."""

    pk = 7
    is_active = is_authenticated = True

    def has_perm(self, permission):
        return False


class Generous:
    """A backend that lets everybody do everything."""

    def authenticate(self, request, **credentials):
        return None

    def has_perm(self, user, permission, obj=None):
        return True


def test_who_is_not_logged_in_is_refused_whatever_the_host_permits(basket):
    anonymous = APIClient()
    with override_settings(AUTHENTICATION_BACKENDS=[f"{__name__}.Generous"]):
        answers = [anonymous.get(f"{URL}b 1/"), anonymous.post(f"{URL}b 1/cancel/"), anonymous.put(f"{URL}b 1/")]

    assert [answer.status_code for answer in answers] == [403] * 3


@pytest.mark.parametrize("path", WRITTEN)
def test_the_caller_is_judged_before_the_body(basket, path):
    nobody = APIClient()
    nobody.force_authenticate(person(name="bob"))

    for body in ("{", DEEP, '{"id": "\\u0000"}'):
        assert_problem(nobody.post(URL + path, body, content_type="application/json"), 403, "not_permitted")


def test_the_id_of_an_update_is_his_who_took_it(api, basket):
    other = APIClient()
    other.force_authenticate(person(*PERMISSIONS, name="bob"))
    path = f"{URL}b 1/updates/add/"
    sent = {"args": 5, "id": "u-1"}
    assert api.post(path, sent, format="json").json() == {"id": "u-1", "result": 1}

    for closed in (False, True):
        assert_problem(other.post(path, sent, format="json"), 409, "message_id_taken")
        assert_problem(api.post(path, {**sent, "args": 6}, format="json"), 409, "message_id_taken")
        assert_problem(api.post(f"{URL}b 1/updates/slow/", sent, format="json"), 409, "message_id_taken")
        assert api.post(path, sent, format="json").json() == {"id": "u-1", "result": 1}
        if not closed:
            basket.terminate()
    assert_problem(api.get(f"{URL}b 1/updates/slow/", {"id": "u-1"}), 404, "workflow_not_found")


def test_an_id_that_several_workflows_used(api):
    first = Waits.start(id="x")
    first.terminate()
    WaitsToo.start(id="x").terminate()

    body = assert_problem(api.get(f"{URL}x/"), 409, "ambiguous_id")

    assert [(c["workflow"], c["status"]) for c in body["candidates"]] == [
        ("ids.Waits", "terminated"), ("ids.WaitsToo", "terminated"),
    ]  # fmt: skip
    for candidate in body["candidates"]:
        assert api.get(f"{URL}x/", {"workflow": candidate["workflow"]}).json()["run_id"] == candidate["run_id"]
        assert api.get(f"{URL}{candidate['run_id']}/").json()["workflow"] == candidate["workflow"]
    assert_problem(api.post(f"{URL}x/signals/go/", {}, format="json"), 409, "ambiguous_id")
    assert_problem(api.post(f"{URL}x/signals/go/?workflow=ids.Waits", {}, format="json"), 409, "workflow_closed")
    run = first.describe().run_id
    assert_problem(api.post(URL, {"workflow": "ids.WaitsToo", "id": run.upper()}, format="json"), 400, "invalid_id")
    assert Chain.objects.count() == 2


# -- pages and waiting -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("most", "some"), [(200, 2), (1, 1)])
def test_a_page_of_events_ends_when_it_is_large(api, basket, monkeypatch, most, some):
    for n in range(1, 9):
        basket.update("add", n)
    monkeypatch.setattr(lists, "MAX_PAGE_BYTES", most)
    address, pages = f"{URL}b 1/events/", []

    while address:
        body = api.get(address).json()
        pages.append([event["seq"] for event in body["results"]])
        address = body["next"]

    assert [seq for page in pages for seq in page] == [*range(1, HistoryEvent.objects.count() + 1)]
    assert max(len(page) for page in pages) >= some
    assert len(pages) > 3


@pytest.mark.parametrize("widths", [[1] * 9, [190] * 5 + [1] * 4])
@pytest.mark.parametrize("limit", [4, 50])
@pytest.mark.parametrize("items", [3, 0.5])
def test_a_page_of_runs_ends_when_it_is_large(api, monkeypatch, widths, limit, items):
    wanted = [f"{i}-{'é' * width}" for i, width in enumerate(widths)][::-1]
    for name in reversed(wanted):
        Basket.start(id=name)
    most = items * max(len(json.dumps(run)) for run in api.get(URL).json()["results"])
    monkeypatch.setattr(lists, "MAX_PAGE_BYTES", most)

    def walk(address, link):
        found = []
        while address:
            body = api.get(address).json()
            found.append(body["results"])
            last, address = address, body[link]
        return found, last

    forth, last = walk(f"{URL}?limit={limit}", "next")
    back, _ = walk(last, "previous")

    for pages in (forth, back[::-1]):
        assert [run["id"] for page in pages for run in page] == wanted
        assert all(len(page) == 1 or sum(len(json.dumps(run)) for run in page) <= most for page in pages)
        assert items < 1 or max(len(page) for page in pages) >= 3


@pytest.mark.django_db(transaction=True)
def test_waiting_callers_are_limited(api, monkeypatch):
    Sleepy.start(id="s-1")
    drain()
    Basket.start(id="b-1")
    # of that module alone: other threads sleep, too
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: pytest.fail("it waited"))
    monkeypatch.setattr(host, "time", clock)
    monkeypatch.setattr(Basket, "version", 2)  # this process does not have the run's class: a worker is to do it

    with override_settings(TEMPORALEX={"WAITING_REQUESTS": 1}), wait_slot("somebody") as granted:
        assert granted
        result = api.get(f"{URL}s-1/result/?wait=60")
        update = api.post(f"{URL}b-1/updates/add/?wait=60", {"args": 1, "id": "u"}, format="json")

    for response in (result, update):
        assert (response.status_code, response["Retry-After"]) == (202, "1")
    assert update["Location"].endswith("/updates/add/?id=u")
    with (
        override_settings(TEMPORALEX={"WAITING_REQUESTS": 1}),
        wait_slot("somebody") as granted,
        wait_slot("another") as second,
    ):
        assert (granted, second) == (True, False)


@pytest.mark.django_db(transaction=True)
def test_who_has_a_seat_waits(api):
    Sleepy.start(id="s-1")
    drain()
    began = time.monotonic()

    assert api.get(f"{URL}s-1/result/?wait=0.7").status_code == 202

    assert time.monotonic() - began >= 0.7
