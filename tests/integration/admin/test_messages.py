"""Messages from the admin: what a run takes now, as forms."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client

from temporalex_django import (
    Approval,
    Done,
    Err,
    GraphWorkflow,
    NoReply,
    Ok,
    Reply,
    Stop,
    Unique,
    WaitForEvent,
    Workflow,
    api,
    update,
)
from temporalex_django.models import Instance, Message, OperatorAction
from tests.support.client_flows import drain
from tests.support.run_pages import text_of

pytestmark = pytest.mark.django_db

RUNS = "/admin/temporalex_django/instance/"


class Colour(Enum):
    RED = "r"
    BLUE = "b"


@dataclass
class Wish:
    """Something of every type that has a field of its own."""

    text: str
    number: int
    real: float
    price: Decimal
    day: date
    at: datetime
    colour: Colour
    size: Literal[5, 6]
    maybe: int | None
    flag: bool = False
    pause: timedelta = timedelta(0)
    tags: list[str] = field(default_factory=list)
    any: Any = None


def wish(args: Wish, state: Any) -> Reply:
    """Say what you want."""
    return Reply("noted", args)


def small(args: int, state: Any) -> Ok[None] | Err[str]:
    return Ok(None) if args < 10 else Err("only less than ten")


def count(args: int, state: Any) -> Reply:
    return Reply(args + 1, state)


class Wishes(Workflow):
    name = "test.AdminWishes"

    async def run(self, args: Any) -> Ok[Wish | None]:
        def note(payload: str, state: Any) -> NoReply:
            return NoReply([*(state or []), payload])

        got = await api.phase(
            None,
            update={
                "wish": wish,
                "count": update(count, validator=small, permission="tests.count_wishes"),
                "end": lambda args, state: Stop(state, "over"),
            },
            signal={"note": note},
        )
        return Ok(got)


class Waits(Workflow):
    name = "test.AdminWaits"

    async def run(self, args: Any) -> Any:
        return Ok(await api.wait_for_signal("go ahead"))


ask = Approval(role="clerks", key="ask")

parcel = WaitForEvent("delivered", key="parcel")


class Delivers(GraphWorkflow):
    name = "test.AdminDelivers"
    unique = Unique(key="admindelivers")
    initial = parcel
    transitions = {(parcel, "delivered"): Done}


class Asks(GraphWorkflow):
    name = "test.AdminAsks"
    unique = Unique(key="adminask")
    initial = ask
    transitions = {(ask, "approved"): Done, (ask, "rejected"): Done}


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


def message(handle: Any, kind: str, name: str, step: str | None = None) -> str:
    more = f"&step={step}" if step else ""
    return f"{RUNS}console/runs/{handle.run_id}/message/?kind={kind}&name={name}{more}"


def token(client: Client, address: str) -> str:
    found = re.search(r'name="token" value="([^"]+)"', client.get(address).content.decode())
    assert found is not None
    return found[1]


def send(client: Client, address: str, *, follow: bool = True, **given: Any) -> Any:
    return client.post(address, {"token": token(client, address), **given}, follow=follow)


WISH = {
    "arg_text": "<b>milk</b>", "arg_number": "7", "arg_real": "0.5", "arg_price": "12.50", "arg_day": "2026-02-03",
    "arg_at": "2026-02-03T04:05:06", "arg_colour": "1", "arg_size": "0", "arg_maybe": "", "arg_flag": "on",
    "arg_pause": "1 02:00:00", "arg_tags": '["a"]', "arg_any": '{"k": [1]}',
}  # fmt: skip


def test_the_page_has_a_form_for_each_message_that_the_run_takes(admin):
    handle = Wishes.start(id="w-1")
    drain()

    text = text_of(admin, handle.run_id)

    assert "Messages that the run accepts now" in text
    for name in (*WISH, "token"):
        assert f'name="{name}"' in text
    assert text.count("/message/?kind=") == 4
    assert "Say what you want." in text
    assert 'type="datetime-local"' in text
    assert "<script" not in re.sub(r"<script[^>]* src=", "", text) or "<script>" not in text


def test_every_type_becomes_the_payload_that_its_annotation_means(admin):
    handle = Wishes.start(id="w-1")
    drain()

    response = send(admin, message(handle, "update", "wish"), **WISH)
    handle.update("end")

    assert "“wish” is done: &quot;noted&quot;" in response.content.decode()
    assert handle.result() == Wish(
        text="<b>milk</b>", number=7, real=0.5, price=Decimal("12.50"), day=date(2026, 2, 3),
        at=datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC), colour=Colour.BLUE, size=5, maybe=None, flag=True,
        pause=timedelta(days=1, hours=2), tags=["a"], any={"k": [1]},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"arg_number": "seven"}, "Enter a whole number"),
        ({"arg_number": ""}, "This field is required"),
        ({"arg_tags": "[1]"}, "Expected `str`, got `int`"),
        ({"arg_tags": "{"}, "This is not valid JSON"),
        ({"arg_any": "[" * 100_000}, "This is not valid JSON"),
        ({"arg_any": '"\\ud800"'}, "This is not valid JSON"),
        ({"arg_colour": "9"}, "not one of the available choices"),
        ({"arg_text": "\x00"}, "Null characters are not allowed"),
        ({"arg_price": "NaN"}, "Enter a number"),
        ({"arg_day": "31.02."}, "Enter a valid date"),
        ({"arg_number": "9" * 5000}, "Enter a whole number"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_does_not_fit_is_a_form_error_and_nothing_is_sent(admin, wrong, said):
    handle = Wishes.start(id="w-1")
    drain()

    response = send(admin, message(handle, "update", "wish"), **{**WISH, **wrong})

    text = response.content.decode()
    assert said in text
    assert 'value="&lt;b&gt;milk&lt;/b&gt;"' in text or "arg_text" in wrong  # what was right stays
    assert not Message.objects.exists()


def test_a_refused_update_is_a_form_error_with_its_reason_and_may_be_corrected(admin):
    handle = Wishes.start(id="w-1")
    drain()
    address = message(handle, "update", "count")

    refused = send(admin, address, payload="12")
    assert refused.status_code == 409
    text = refused.content.decode()
    assert "only less than ten" in text
    assert not Message.objects.filter(name="count").exists()

    again = re.search(r'name="token" value="([^"]+)"', text)
    response = admin.post(address, {"token": again[1], "payload": "3"}, follow=True)

    assert "“count” is done: 4" in response.content.decode()


def test_a_form_that_is_posted_twice_acts_once(admin):
    handle = Wishes.start(id="w-1")
    drain()
    address = message(handle, "update", "count")
    once = token(admin, address)
    for _ in range(2):
        assert (
            "“count” is done: 4" in admin.post(address, {"token": once, "payload": "3"}, follow=True).content.decode()
        )
    note = message(handle, "signal", "note")
    once = token(admin, note)
    for _ in range(2):
        assert "Sent" in admin.post(note, {"token": once, "payload": "hello"}, follow=True).content.decode()
    other = admin.post(note, {"token": once, "payload": "changed"})

    assert other.status_code == 409
    assert Message.objects.filter(name="note").count() == 1
    assert [*OperatorAction.objects.exclude(action="view_payload").order_by("id").values_list("action", "source")] == [
        ("update", "admin"), ("signal", "admin"),
    ]  # fmt: skip


def test_a_run_that_closed_since_somebody_looked_says_so_and_nothing_is_done(admin):
    handle = Wishes.start(id="w-1")
    drain()
    address = message(handle, "signal", "note")
    once = token(admin, address)
    handle.update("end")
    before = Message.objects.count()

    response = admin.post(address, {"token": once, "payload": "late"})

    assert response.status_code == 409
    assert "The run is closed" in response.content.decode()
    assert "Nothing was done" in response.content.decode()
    assert Message.objects.count() == before
    assert "Messages that the run accepts now" not in text_of(admin, handle.run_id)


def test_what_the_run_does_not_take_now_is_not_sent(admin):
    handle = Wishes.start(id="w-1")
    drain()

    response = admin.post(message(handle, "signal", "nonsense"), {"token": "t", "payload": "1"})

    assert response.status_code == 409
    assert "does not accept “nonsense” now" in response.content.decode()
    assert admin.get(f"{RUNS}console/runs/{handle.run_id}/message/?kind=other&name=note").status_code == 404
    assert admin.put(message(handle, "signal", "note")).status_code == 405


def test_a_signal_that_is_waited_for_outside_of_a_phase(admin):
    handle = Waits.start(id="w-1")
    drain()

    send(admin, message(handle, "signal", "go ahead"), payload='{"by": "ship"}')
    drain()

    assert handle.result() == {"by": "ship"}


def test_whoever_may_not_send_a_message_sees_why_and_cannot(admin):
    handle = Wishes.start(id="w-1")
    drain()
    viewer = somebody("view_instance", "update_instance")
    text = text_of(viewer, handle.run_id)

    assert "requires the permission tests.count_wishes" in text
    assert "requires the permission temporalex_django.signal_instance" in text
    assert text.count('<form method="post" action="/admin/temporalex_django/instance/') == 2  # wish, end
    for kind, name in (("update", "count"), ("signal", "note")):
        address = message(handle, kind, name)
        assert "requires the permission" in viewer.get(address).content.decode()
        assert viewer.post(address, {"token": "t", "payload": "1"}).status_code == 403
        assert viewer.post(address, {}).status_code == 403
    assert not Message.objects.exists()


def test_a_step_of_a_graph_is_decided_by_whoever_has_its_role(admin):
    handle = Asks.start({}, value="1")
    drain()
    stranger = somebody("view_instance", "signal_instance")
    address = message(handle, "resume", "approved", step="ask")

    assert "Only clerks may decide this" in text_of(stranger, handle.run_id)
    assert stranger.post(address, {"token": "t"}).status_code == 403
    once = token(admin, address)
    assert "Decided: “" in admin.post(address, {"token": once, "payload": '"fine"'}, follow=True).content.decode()
    assert Instance.objects.get().status == "completed"
    assert admin.post(address, {"token": once, "payload": '"fine"'}).status_code == 409


def test_an_event_for_a_step_that_asks_nobody_is_sent(admin):
    """Nobody decides there, so the pages speak of the event."""
    handle = Delivers.start({}, value="1")
    drain()
    address = message(handle, "resume", "delivered", step="parcel")

    assert "You can send it." in text_of(admin, handle.run_id)
    asked = admin.get(address).content.decode()
    assert "The history records your name." in asked
    sent = admin.post(address, {"token": token(admin, address), "payload": "1"}, follow=True).content.decode()

    assert "“delivered” was sent to the step that waits for it." in sent
    assert "Decided: “" not in sent
    assert Instance.objects.get().status == "completed"


def test_markup_in_names_and_payloads_is_escaped(admin):
    handle = Wishes.start(id="<i>w")
    drain()

    text = admin.get(
        f"{RUNS}console/runs/{handle.run_id}/message/?kind=signal&name=%3Cscript%3Ealert(1)%3C/script%3E"
    ).content.decode()

    assert "<script>alert" not in text
    assert "<i>w" not in text


def test_a_form_without_a_csrf_token_is_refused():
    handle = Wishes.start(id="w-1")
    drain()
    client = Client(enforce_csrf_checks=True)
    client.force_login(get_user_model().objects.create_superuser("root"))

    assert client.post(message(handle, "update", "end"), {"token": "t"}).status_code == 403
    assert handle.describe().status == "waiting"
