"""Steering from the admin: buttons, confirm pages and what they do, all made of the registry of actions."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar
from unittest.mock import patch

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client

from temporalex_django import Ok, Workflow, activity, api
from temporalex_django.console.run import operator_views
from temporalex_django.errors import ActionNotPossible
from temporalex_django.models import Instance, OperatorAction, Worker
from temporalex_django.operations import base, registry
from temporalex_django.operations.base import Actor
from temporalex_django.operations.runs.operator_action import Input, OperatorRunAction
from tests.support.client_flows import Basket, drain
from tests.support.run_pages import text_of

pytestmark = pytest.mark.django_db

RUNS = "/admin/temporalex_django/instance/"


class Knock(OperatorRunAction[None]):
    """For tests: notes what it was given."""

    name = "knock"
    permission = "signal_instance"
    cluster = "rows only"
    label: ClassVar[Any] = "Knock on it"
    summary: ClassVar[Any] = "Knock on a run."
    effect: ClassVar[Any] = "It <b>hears</b> it."
    done: ClassVar[Any] = "Knocked."
    inputs = (
        Input(name="times", kind=int, label="How often", required=True),
        Input(name="how", kind=str, label="How", choices=("hard", "soft")),
        Input(name="with", kind=object, label="With what"),
        Input(name="loud", kind=bool, label="Loud"),
    )
    calls: ClassVar[list[Any]] = []
    error: ClassVar[Exception | None] = None

    def perform(self) -> None:
        with self.storage.transaction():
            self.record(self.target.audit_subject, reason=self.reason)
            if self.error is not None:
                raise self.error
        self.calls.append((self.target.workflow_id, self.reason, self.input_values, self.by))


class Poke(Knock):
    name = "poke"
    target_kind = "activity"
    inputs = ()

    def perform(self) -> None:
        self.calls.append(self.seq)


for _name in ("knock", "poke"):  # nobody else is to find them
    base.registry.pop(_name, None)


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    operations_of_tests = {"knock": Knock, "poke": Poke}
    monkeypatch.setattr(operator_views, "STEERING", registry.STEERING | operations_of_tests)
    monkeypatch.setattr(registry, "ACTIONS", registry.ACTIONS | operations_of_tests)
    monkeypatch.setattr(Knock, "calls", [])


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(get_user_model().objects.create_superuser("root"))
    return client


@pytest.fixture
def run() -> Any:
    handle = Basket.start(id="b-1")
    drain()
    return handle


def somebody(*codenames: str) -> Client:
    user, _made = get_user_model().objects.get_or_create(username="ann", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client()
    client.force_login(user)
    return client


def do(handle: Any, name: str, query: str = "") -> str:
    return f"{RUNS}console/runs/{handle.run_id}/do/{name}/{query}"


def token(client: Client, address: str) -> str:
    found = re.search(r'name="token" value="([^"]+)"', client.get(address).content.decode())
    assert found is not None
    return found[1]


def act(client: Client, address: str, **given: Any) -> Any:
    return client.post(address, {"token": token(client, address), **given}, follow=True)


def test_looking_says_the_effect_and_does_nothing(admin, run):
    for name in ("knock", "terminate", "cancel"):
        text = admin.get(do(run, name)).content.decode()
        assert "<form method" in text
        assert "Reason" in text
    text = admin.get(do(run, "knock")).content.decode()

    assert "Knock on a run. It &lt;b&gt;hears&lt;/b&gt; it." in text
    assert "How often" in text
    assert 'value="hard"' in text
    assert Knock.calls == []
    assert Instance.objects.get().status == "waiting"
    assert not OperatorAction.objects.filter(automatic=False).exists()


def test_posting_acts_with_reason_and_inputs_in_the_name_of_whoever_posts(admin, run):
    response = act(admin, do(run, "knock"), reason="to wake it", input_times="3", input_how="hard", input_with="[1]")

    assert "Knocked." in response.content.decode()
    ((workflow_id, reason, given, by),) = Knock.calls
    assert (workflow_id, reason, given) == (
        "b-1",
        "to wake it",
        {"times": 3, "how": "hard", "with": [1], "loud": False},
    )
    assert isinstance(by, Actor)
    assert (by.user.get_username(), by.source, by.address) == ("root", "admin", "127.0.0.1")


def test_what_is_missing_or_wrong_is_a_form_error(admin, run):
    for given in (
        {},
        {"input_times": "x"},
        {"input_times": "1", "input_how": "odd"},
        {"input_times": 1, "input_with": "{"},
    ):
        response = act(admin, do(run, "knock"), **given)
        assert response.status_code == 200
        assert "errorlist" in response.content.decode()
    assert Knock.calls == []


def test_what_cannot_be_undone_takes_a_reason(admin, run):
    assert "This field is required" in act(admin, do(run, "terminate")).content.decode()
    assert Instance.objects.get().status == "waiting"

    act(admin, do(run, "terminate"), reason="<i>gone</i> wrong")

    assert Instance.objects.get().status == "terminated"
    noted = OperatorAction.objects.get(action="terminate")
    assert (noted.reason, noted.source, noted.actor_name) == ("<i>gone</i> wrong", "admin", "root")
    assert "<i>gone" not in text_of(admin, run.run_id)


def test_a_run_that_closed_since_somebody_looked_says_so_and_nothing_is_done(admin, run):
    address = do(run, "terminate")
    once = token(admin, address)
    run.terminate(reason="first")

    response = admin.post(address, {"token": once, "reason": "second"})

    assert response.status_code == 409
    assert "already closed" in response.content.decode()
    assert "Nothing was done" in response.content.decode()
    assert OperatorAction.objects.filter(action="terminate").count() == 1


def test_a_form_that_is_posted_twice_acts_once(admin, run):
    address = do(run, "knock")
    once = token(admin, address)
    texts = [admin.post(address, {"token": once, "input_times": "1"}, follow=True).content.decode() for _ in range(2)]

    assert len(Knock.calls) == 1
    assert "Knocked." in texts[0]
    assert "so nothing was done this time" in texts[1]


@pytest.mark.django_db(transaction=True)
def test_the_same_form_from_two_processes_acts_once_and_two_operators_are_told_of_each_other(admin, run):
    """What is true across processes is the database: nothing else is asked."""
    other = Client()
    other.force_login(get_user_model().objects.create_superuser("bob"))
    address = do(run, "knock")
    once = token(admin, address)
    twin = Client()
    twin.cookies = admin.cookies
    answers = at_once(lambda: admin.post(address, {"token": once, "input_times": "1"}),
                      lambda: twin.post(address, {"token": once, "input_times": "1"}))  # fmt: skip
    assert [answer.status_code for answer in answers] == [302, 302]
    assert len(Knock.calls) == 1
    assert OperatorAction.objects.filter(action="knock").count() == 1

    address = do(run, "terminate")
    first, second = token(admin, address), token(other, address)
    answers = at_once(lambda: admin.post(address, {"token": first, "reason": "one"}),
                      lambda: other.post(address, {"token": second, "reason": "two"}))  # fmt: skip
    assert sorted(answer.status_code for answer in answers) == [302, 409]
    (refused,) = (answer for answer in answers if answer.status_code == 409)
    assert "already closed" in refused.content.decode()
    assert OperatorAction.objects.filter(action="terminate").count() == 1


def at_once(*calls: Any) -> list[Any]:
    """Each in a thread of its own, with a connection of its own."""
    barrier = threading.Barrier(len(calls))

    def called(call: Any) -> Any:
        try:
            barrier.wait(10)
            return call()
        finally:
            connection.close()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [*pool.map(called, calls)]


def test_what_the_action_refuses_is_a_form_error_and_may_be_tried_again(admin, run, monkeypatch):
    monkeypatch.setattr(Knock, "error", ActionNotPossible("nobody is at <home>"))
    address = do(run, "knock")
    once = token(admin, address)

    response = admin.post(address, {"token": once, "input_times": "1"})
    assert response.status_code == 409
    assert "nobody is at &lt;home&gt;" in response.content.decode()
    monkeypatch.setattr(Knock, "error", RuntimeError("a bug"))
    with pytest.raises(RuntimeError):
        admin.post(address, {"token": once, "input_times": "1"})
    monkeypatch.setattr(Knock, "error", None)

    assert "Knocked." in admin.post(address, {"token": once, "input_times": "1"}, follow=True).content.decode()


def test_the_buttons_of_a_run_say_why_they_are_grey(admin, run):
    text = text_of(admin, run.run_id)
    assert f'href="{do(run, "terminate")}"' in text
    assert f'href="{do(run, "poke")}"' not in text  # that is of an activity
    viewer = somebody("view_instance", "signal_instance")
    text = text_of(viewer, run.run_id)
    assert f'href="{do(run, "knock")}"' in text
    assert f'href="{do(run, "terminate")}"' not in text
    assert "this requires the permission “Can terminate runs”" in text
    assert "this requires the permission" in viewer.get(do(run, "terminate")).content.decode()
    run.terminate()

    assert f'href="{do(run, "knock")}"' not in text_of(admin, run.run_id)


def test_a_fork_is_grey_for_who_may_not_start_such_runs(run, monkeypatch):
    """It makes a run: what a start takes is asked before, too, here and by REST."""

    def said(*codes: str) -> tuple[str, Any]:
        browser = somebody("view_instance", "reset_instance", *codes)
        (fork,) = (one for one in browser.get(f"/api/instances/{run.run_id}/operations/").json()["results"]
                   if one["name"] == "fork")  # fmt: skip
        return text_of(browser, run.run_id), fork["why_not"]

    page, why = said()
    assert f'href="{do(run, "fork")}"' not in page
    assert f'href="{do(run, "reset")}"' in page
    assert "this requires the permission “Can start runs”" in page
    assert why == "This requires the permission temporalex_django.start_instance."
    page, why = said("start_instance")
    assert f'href="{do(run, "fork")}"' in page
    assert why is None
    monkeypatch.setattr(Basket, "start_permission", "auth.add_user")
    page, why = said("start_instance")
    assert "auth.add_user" in page
    assert why == "This requires the permission auth.add_user."
    monkeypatch.setattr(Basket, "start_permission", None)
    monkeypatch.setattr(Basket, "internal", True)
    page, why = said("start_instance")
    assert f'href="{do(run, "fork")}"' not in page
    assert "it is internal, or an old version" in page
    assert why == "You cannot start test.Basket here: it is internal, or an old version."


def test_without_the_permission_nothing_is_done(run):
    viewer = somebody("view_instance")
    for given in ({"token": "t", "reason": "r"}, {}):
        assert viewer.post(do(run, "terminate"), given).status_code == 403
    assert Instance.objects.get().status == "waiting"
    assert somebody_else().get(do(run, "terminate")).status_code == 403


def somebody_else() -> Client:
    client = Client()
    client.force_login(get_user_model().objects.create_user("bob", is_staff=True))
    return client


def test_actions_on_an_activity_take_its_number(admin, run):
    assert "number 7" in admin.get(do(run, "poke", "?seq=7")).content.decode()
    act(admin, do(run, "poke", "?seq=7"))
    assert Knock.calls == [7]
    for odd in ("", "?seq=", "?seq=-1", "?seq=x", "?seq=%C2%B2", "?seq=" + "9" * 30):
        assert admin.get(do(run, "poke", odd)).status_code == 404


class Sleeper(Workflow):
    name = "test.AdminSleeper"

    async def run(self, args: Any) -> Any:
        said = await nap("well")
        await api.sleep(3600)
        return Ok(said)


@activity(name="test.admin.nap")
def nap(how: str) -> str:
    return f"slept {how}"


@pytest.mark.django_db(transaction=True)
def test_run_due_now_does_what_is_due_under_debug_alone(settings):
    """By the button of the list of workers: what a burst of a worker does, in the process of the server."""
    workers = "/admin/temporalex_django/instance/console/workers/"
    sleeper = Sleeper.start(id="due")
    boss, looks = somebody("run_due", "view_worker", "view_instance"), somebody_else()
    assert "Run due work" not in boss.get(workers).content.decode()
    refused = boss.post(f"{workers}run-due/", {"reason": "demo"}, follow=True)
    assert "run manage.py temporalex worker --burst" in refused.content.decode()
    assert not OperatorAction.objects.exists() and not sleeper.history()

    settings.DEBUG = True
    assert "Run due work" in boss.get(workers).content.decode()
    assert "Run due work" not in looks.get(workers).content.decode()
    assert looks.post(f"{workers}run-due/", {}).status_code == 403
    assert boss.get(f"{workers}run-due/").status_code == 405
    assert not sleeper.history()
    done = boss.post(f"{workers}run-due/", {"reason": "demo"}, follow=True).content.decode()
    assert re.search(r"Ran [1-9]\d* turns?\. Nothing is due now\.", done)
    assert [event.kind for event in sleeper.history()][-1] == "TimerStarted"  # all that was due, and no more

    timer = sleeper.history()[-1].attributes["seq"]
    sleeper.skip_timer(timer, reason="fire now")
    boss.post(f"{workers}run-due/", {})
    assert sleeper.result(timeout=0) == "slept well"
    acted = OperatorAction.objects.filter(action="run_due").order_by("pk")
    assert [(row.reason, row.denied, row.forced) for row in acted if not row.denied] == [
        ("demo", False, True),
        ("", False, True),
    ]
    assert acted.filter(denied=True).count() == 1
    assert not Worker.objects.exists()  # it has left

    with patch(
        "temporalex_django.operations.runs.control.run_due",
        side_effect=TimeoutError("after 20 s there is still work that is due"),
    ):
        said = boss.post(f"{workers}run-due/", {}, follow=True).content.decode()
    assert "20 s there is still work that is due. Run the due work again." in said


def test_odd_addresses_and_methods(admin, run):
    assert admin.get(do(run, "nothing")).status_code == 404
    assert admin.delete(do(run, "terminate")).status_code == 405
    assert (
        admin.get(f"{RUNS}console/runs/{'0' * 8}-{'0' * 4}-{'0' * 4}-{'0' * 4}-{'0' * 12}/do/terminate/").status_code
        == 404
    )
    assert admin.get(f"{RUNS}x/do/terminate/").status_code == 302
    assert Client().get(do(run, "terminate")).status_code == 302
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(get_user_model().objects.get(username="root"))
    assert strict.post(do(run, "terminate"), {"token": "t", "reason": "r"}).status_code == 403
    assert Instance.objects.get().status == "waiting"
