"""The page of a run on a cluster in the admin: where it lives, and what only the cluster knows."""

from __future__ import annotations

import io
import json
import re
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.core.management import call_command
from django.test import Client

from temporalex_django import Ok, RetryPolicy, Stop, Workflow, activity, activity_context, api
from temporalex_django.models import Instance
from temporalex_django.workers.loop import run_until_idle
from tests.support.run_pages import text_of
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

QUEUE = f"cluster-pages-{uuid.uuid4().hex[:8]}"
RUNS = "/admin/temporalex_django/instance/"
API = "/api/instances/"
CARD = "4711"
#: The label printer waits until it is set.
gate = threading.Event()


class PagedTables(Workflow):
    backend = "tables"
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        await api.sleep(86_400)
        return Ok(None)


class PagedTill(Workflow):
    task_queue = QUEUE
    signals = ("close",)

    async def run(self, args: Any) -> Any:
        return Ok(await api.phase(0, signal={"close": lambda _, total: Stop(total)}))


@activity(retry=RetryPolicy(initial_interval=3600.0, max_attempts=5))
def charge_paged_card(card: str) -> str:
    raise ConnectionError(f"<b>refused</b> {card}")


@activity(retry=RetryPolicy(initial_interval=0.1))
def print_paged_label(number: int) -> int:
    context = activity_context()
    if context.attempt == 1:
        raise OSError("no paper")
    context.heartbeat({"printed": number})
    gate.wait(120)
    return number


@activity(queue="nobody-polls-this")
def archive_paged(number: int) -> int:
    return number


class PagedOrder(Workflow):
    task_queue = QUEUE
    signals = ("note",)

    async def run(self, args: Any) -> Any:
        await api.parallel(
            [charge_paged_card(CARD), print_paged_label(2), archive_paged(3), api.sleep(86_400)],
        )
        return Ok(None)


class PagedChild(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        await api.sleep(86_400)
        return Ok(None)


class PagedParent(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        return Ok(await api.child(PagedChild, id=f"{args}-child"))


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(get_user_model().objects.create_superuser("root"))
    return client


def page(client: Client, run: Any) -> str:
    return " ".join(text_of(client, run).split())


def facts(text: str) -> dict[str, str]:
    """The headings and the values in the first panel of a page."""
    pairs = re.findall(r"<dt>(.*?)</dt>\s*<dd>(.*?)</dd>", text)
    return {name: re.sub(r"<[^>]*>", "", value).strip() for name, value in pairs}


def test_the_page_says_where_a_run_lives_and_when_its_row_was_written(worker: None, admin: Client) -> None:
    handle = PagedTill.start(None, id="<b>till")
    wait_for(lambda: handle.describe().status == "waiting")
    run = Instance.objects.get()
    assert run.cluster_id is not None
    assert run.mirrored_at is not None

    text = page(admin, run.pk)
    shown = facts(text)

    assert shown["Runs on"] == "a Temporal cluster"
    assert shown["Id on the cluster"] == run.cluster_id.replace("<", "&lt;").replace(">", "&gt;")
    assert shown["Run id on the cluster"] == str(run.cluster_run_id)
    assert run.mirrored_at.strftime("%H:%M:%S") in shown["As of"]
    assert "<b>till" not in text


def test_a_run_that_has_not_reached_the_cluster_says_so(cluster: dict[str, Any], admin: Client) -> None:
    cluster["ADDRESS"] = "127.0.0.1:1"
    handle = PagedTill.start(None, id="early", start_delay=3600)

    assert facts(page(admin, handle.run_id))["Run id on the cluster"].startswith("none yet")


def test_the_list_marks_runs_on_a_cluster_and_a_page_of_the_tables_has_no_such_facts(
    cluster: dict[str, Any], admin: Client
) -> None:
    there = PagedTill.start(None, id="there", start_delay=3600)
    here = PagedTables.start(None, id="here", start_delay=3600)
    run_until_idle()

    text = " ".join(admin.get(f"{RUNS}console/runs/").content.decode().split())

    assert "PagedTill · cluster<" in text
    assert "PagedTables<" in text
    assert "Runs on" in facts(page(admin, there.run_id))
    assert not {"Runs on", "As of"} & facts(page(admin, here.run_id)).keys()


# -- what only the cluster knows --------------------------------------------------------------------------------------


@pytest.fixture
def order(worker: None) -> Iterator[Any]:
    """A run with an activity that failed, one that runs after a failure, one that nobody takes, and a timer."""
    gate.clear()
    handle = PagedOrder.start(None, id="order")
    wait_for(lambda: sorted(states(handle).values()) == ["queued", "retrying", "running"])
    wait_for(lambda: handle.describe().activities[1].beat_at)
    yield handle
    gate.set()
    handle.terminate()


def states(handle: Any) -> dict[str, str]:
    return {entry.activity.rpartition(".")[2]: entry.state for entry in handle.describe().activities}


def test_a_description_lists_the_open_activities_with_attempts_and_failures(order: Any) -> None:
    charged, printed, archived = order.describe().activities

    assert (charged.seq, charged.state, charged.attempt, charged.max_attempts) == (1, "retrying", 1, 5)
    assert charged.last_failure.type == "ConnectionError"
    assert charged.last_failure.message == "<b>refused</b> 4711"
    assert "charge_paged_card" in charged.last_failure.traceback
    assert 3500 < (charged.next_try - charged.last_failure.at).total_seconds() <= 3601
    assert (printed.state, printed.attempt, printed.last_failure.message) == ("running", 2, "no paper")
    assert printed.started_at is not None
    assert (archived.state, archived.attempt, archived.queue) == ("queued", 0, "nobody-polls-this")
    assert order.describe().activities_error is None


def test_the_page_shows_activities_history_and_timers_as_for_other_runs(order: Any, admin: Client) -> None:
    text = page(admin, order.run_id)

    assert "charge_paged_card failed on attempt 1" in text
    assert "&lt;b&gt;refused&lt;/b&gt; 4711" in text
    assert "<b>refused" not in text
    table = text[text.index("Activities in progress") :]
    table = table[: table.index("</table>")]
    assert re.findall(r"<td>([0-9]+(?: / [0-9]+)?)</td>", table) == ["1 / 5", "2", "0"]
    assert "next attempt at" in table
    assert "running since" in table
    assert "queued since" in table
    assert "nobody-polls-this" in table
    assert "4711" in table  # an argument, from the history
    assert "printed" in table  # the details of a heartbeat
    assert ">atomic<" not in table
    assert "Switch off" in table
    assert f"{RUNS}console/runs/{order.run_id}/do/skip_timer/?seq=4" in text
    history = text[text.index('id="history"') :]
    assert "ActivityScheduled" in history
    assert "not available" not in text
    for operation in ("retry_activity", "complete_activity", "fail_activity"):
        assert f"{RUNS}console/runs/{order.run_id}/do/{operation}/?seq=1" in text, operation


def test_the_history_is_compared_with_the_code(order: Any, admin: Client, monkeypatch: Any) -> None:
    assert "4711" not in compare(order, admin)
    monkeypatch.setattr(sys.modules[__name__], "CARD", "4712")

    text = compare(order, admin)

    assert "4711" in text
    assert "4712" in text


def compare(handle: Any, admin: Client) -> str:
    address = f"{RUNS}console/runs/{handle.run_id}/compare/"
    token = re.search(r'name="token" value="([^"]+)"', admin.get(address).content.decode())
    assert token is not None
    return admin.post(address, {"token": token[1]}).content.decode()


def test_a_button_of_an_activity_does_what_it_says(order: Any, admin: Client) -> None:
    address = f"{RUNS}console/runs/{order.run_id}/do/fail_activity/?seq=1"
    form = admin.get(address)
    token = re.search(r'name="token" value="([^"]+)"', form.content.decode())
    assert token is not None
    admin.post(address, {"reason": "by hand", "input_message": "declined", "token": token[1]})

    wait_for(lambda: "charge_paged_card" not in states(order))


def test_without_the_permission_the_page_tells_no_payload(order: Any) -> None:
    user = get_user_model().objects.create_user("ann", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename="view_instance"))
    client = Client()
    client.force_login(user)

    text = page(client, order.run_id)

    assert "charge_paged_card" in text
    for secret in ("4711", "no paper", "printed"):
        assert secret not in text.replace("print_paged_label", "")


def test_rest_and_commands_show_activities_and_the_history(order: Any, admin: Client) -> None:
    activities = admin.get(f"{API}{order.run_id}/activities/").json()["results"]
    assert [entry["state"] for entry in activities] == ["retrying", "running", "queued"]
    detail = admin.get(f"{API}{order.run_id}/").json()
    assert len(detail["activities"]) == 3
    assert detail["activities_error"] is None

    first = admin.get(f"{API}{order.run_id}/events/?limit=2").json()
    assert [event["seq"] for event in first["results"]] == [1, 2]
    rest = admin.get(first["next"].replace("limit=2", "limit=100")).json()
    assert [event["seq"] for event in rest["results"]] == [*range(3, len(order.history()) + 1)]
    assert rest["next"] is None
    timeline = admin.get(f"{API}{order.run_id}/timeline/?limit=2").json()
    later = admin.get(timeline["next"].replace("limit=2", "limit=100")).json()
    kinds = [row["kind"] for row in [*timeline["results"], *later["results"]]]
    assert kinds == ["run", "activity", "activity", "activity", "timer"]

    described = "".join(run_command("describe", str(order.run_id)).split())  # lines are as wide as the terminal
    assert "print_paged_label:running,attempt2," in described
    events = [json.loads(line) for line in run_command("history", str(order.run_id), "--json").splitlines()]
    assert [event["kind"] for event in events].count("ActivityScheduled") == 3
    assert "Chargepagedcard" in "".join(run_command("history", str(order.run_id)).split())


def test_a_run_and_its_child_link_to_each_other(worker: None, admin: Client) -> None:
    parent = PagedParent.start("paged", id="paged")
    child = wait_for(lambda: Instance.objects.filter(workflow_id="paged-child").first())

    assert f"{RUNS}console/runs/{child.pk}/" in page(admin, parent.run_id)
    assert f"{RUNS}console/runs/{parent.run_id}/" in page(admin, child.pk)
    parent.terminate()


def run_command(*arguments: str) -> str:
    output = io.StringIO()
    call_command("temporalex", *arguments, stdout=output)
    return output.getvalue()


# -- a cluster that says nothing --------------------------------------------------------------------------------------


def test_a_server_that_does_not_answer_neither_breaks_nor_holds_the_page(
    cluster: dict[str, Any], settings: Any, start_worker: Any, admin: Client
) -> None:
    with start_worker():
        handle = PagedTill.start(None, id="silent")
        wait_for(lambda: handle.describe().status == "waiting")
    with socket.socket() as mute:  # it accepts connections, and says nothing
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        away = {**cluster, "ADDRESS": f"127.0.0.1:{mute.getsockname()[1]}"}
        settings.TEMPORALEX = {**settings.TEMPORALEX, "CLUSTER": away}
        began = time.monotonic()
        text = text_of(admin, handle.run_id, "")
        took = time.monotonic() - began
        text += text_of(admin, handle.run_id, "messages", "data")
        activities = admin.get(f"{API}{handle.run_id}/activities/")
        detail = admin.get(f"{API}{handle.run_id}/").json()

    assert took < 4
    assert "The activities are not available now. The Temporal cluster has not answered in time." in text
    assert "The history is not available now.</strong> The Temporal cluster has not answered in time." in text
    assert "Running timers are not available" in text
    assert "close" in text  # what its row says is still there
    assert (activities.status_code, activities.headers["Retry-After"]) == (503, "1")
    assert detail["activities"] == []
    assert detail["activities_error"] == "The Temporal cluster has not answered in time."


def test_without_a_worker_the_page_says_who_could_tell_the_history(start_worker: Any, admin: Client) -> None:
    with start_worker():
        handle = PagedTill.start(None, id="alone")
        wait_for(lambda: handle.describe().status == "waiting")

    text = page(admin, handle.run_id)

    assert "The history is not available now.</strong> No worker has answered in time." in text
    assert "No activity is in progress." in text
    assert "No events yet." not in text
