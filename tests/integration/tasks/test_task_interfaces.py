"""Background tasks in REST, the commands, the admin and bulk jobs: lists, filters, groups, operations, progress."""

from __future__ import annotations

import io
import json
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.test import Client, override_settings
from django.urls import reverse
from django.utils import timezone

from temporalex_django import errors
from temporalex_django.models import BulkItem, BulkJob, EndedTask, EnqueuedTask, OperatorAction
from temporalex_django.operations.base import Actor
from temporalex_django.operations.bulk import StartTaskBulk, run_jobs
from temporalex_django.operations.read.background_tasks import TaskFilter, list_tasks
from temporalex_django.workers.loop import run_until_idle
from tests.settings_tasks import TASKS
from tests.support.people import stored

with override_settings(TASKS=TASKS):
    from tests.app import tasks as t

pytestmark = pytest.mark.django_db(transaction=True)
APP = "temporalex_django"
VIEW = (f"{APP}.view_enqueuedtask", f"{APP}.view_endedtask")
OPERATE = f"{APP}.operate_tasks"
BULK = f"{APP}.bulk_actions"


@pytest.fixture(autouse=True)
def _backends(settings: Any) -> None:
    t.RAN.clear()
    settings.TASKS = TASKS


def client_of(*permissions: str, name: str = "ann") -> Client:
    user = stored(name, *permissions)
    user.is_staff = True
    user.save()
    client = Client()
    client.force_login(user)
    return client


def failed(count: int = 1) -> list[Any]:
    made = [t.fails.enqueue("why") for _ in range(count)]
    run_until_idle()
    return made


def rest(client: Client, path: str, body: Any = None, **headers: str) -> Any:
    address = reverse("temporalex_rest:tasks") + path
    if body is None:
        return client.get(address)
    return client.post(address, body, content_type="application/json", headers=headers)


def command(*args: str) -> str:
    out = io.StringIO()
    call_command("temporalex", *args, stdout=out)
    return out.getvalue()


def read_list(filters: TaskFilter) -> list[str]:
    rows, _has_more = list_tasks(filters, None, limit=100)
    return [row.id for row in rows]


# -- lists -------------------------------------------------------------------------------------------------------------


def test_open_and_ended_tasks_are_one_list_with_filters() -> None:
    (broken,), begin = failed(), timezone.now()
    done, waiting = t.add.enqueue(1), t.add.using(queue_name="mail", run_after=begin + timedelta(days=1)).enqueue(2)
    run_until_idle(queues=["default"])
    ids = [str(waiting.id), str(done.id), str(broken.id)]
    cause = EndedTask.objects.get(pk=broken.id).cause
    line = t.fails.func.__code__.co_firstlineno + 2
    assert cause == f"ValueError at app/tasks.py:{line}"
    for filters, wanted in (
        ({}, ids),
        ({"status": "READY"}, ids[:1]),
        ({"status": "SUCCESSFUL"}, ids[1:2]),
        ({"status": "FAILED"}, ids[2:]),
        ({"queue": "mail"}, ids[:1]),
        ({"task": "tests.app.tasks.add"}, ids[:2]),
        ({"cause": cause}, ids[2:]),
        ({"cause": "KeyError at nowhere.py:1"}, []),
        ({"since": begin}, ids[:2]),
        ({"until": begin}, ids[2:]),
    ):
        assert read_list(TaskFilter(**filters)) == wanted, filters


def test_pages_continue_behind_the_last_task() -> None:
    made = [str(t.add.enqueue(number).id) for number in range(5)]
    client, seen, path = client_of(*VIEW), [], "?limit=2"
    while path:
        answer = rest(client, path).json()
        seen += [row["id"] for row in answer["results"]]
        path = answer["next"] and "?" + answer["next"].partition("?")[2]
    assert seen == made[::-1]


def test_a_task_says_what_it_waits_for() -> None:
    later = t.add.using(run_after=timezone.now() + timedelta(days=2)).enqueue(1)
    retried = t.stumbles.enqueue("LookupError")
    run_until_idle()
    rows, _ = list_tasks(TaskFilter(), None, limit=10)
    texts = {row.id: row.text for row in rows}
    assert texts[str(later.id)].startswith("Add starts ")
    assert "failed" in texts[str(retried.id)]
    assert "Next attempt" in texts[str(retried.id)]
    EnqueuedTask.objects.filter(run_id=later.id).update(due_at=timezone.now() - timedelta(hours=1))
    rows, _ = list_tasks(TaskFilter(task="tests.app.tasks.add"), None, limit=10)
    assert "No live worker polls the queue default" in rows[0].text


@pytest.mark.parametrize("path", ["?status=LATE", "?since=yesterday", "?cursor=7", "?colour=red", "?limit=9999"])
def test_a_parameter_that_makes_no_sense_is_refused_by_name(path: str) -> None:
    assert rest(client_of(*VIEW), path).status_code == 400


# -- REST --------------------------------------------------------------------------------------------------------------


def test_the_operations_over_rest() -> None:
    (result,) = failed()
    client = client_of(*VIEW, OPERATE)
    answer = rest(client, f"{result.id}/retry_task/", {"reason": "again", "attempts": 1})
    assert (answer.status_code, answer.json()["status"], answer.json()["attempts"]) == (200, "READY", 1)
    assert rest(client, f"{result.id}/retry_task/", {"attempts": 1}).status_code == 409
    moved = rest(client, f"{result.id}/requeue/", {"queue": "mail", "priority": 9}).json()
    assert (moved["queue"], moved["priority"]) == ("mail", 9)
    assert rest(client, f"{result.id}/requeue/", {"queue": "nowhere"}).status_code == 409
    assert rest(client, f"{result.id}/run_task_now/", {}).status_code == 200
    assert rest(client, f"{result.id}/cancel_task/", {}).json()["status"] == "CANCELLED"
    assert rest(client, f"{uuid4()}/cancel_task/", {}).status_code == 404
    assert rest(client, "nothing/cancel_task/", {}).json()["code"] == "task_not_found"
    assert [*OperatorAction.objects.order_by("id").values_list("action", flat=True)] == [
        *("retry_task", "requeue", "run_task_now", "cancel_task"),
    ]


def test_a_request_that_is_sent_again_acts_once() -> None:
    (result,) = failed()
    client, headers = client_of(*VIEW, OPERATE), {"Idempotency-Key": "click-1"}
    assert rest(client, f"{result.id}/retry_task/", {}, **headers).status_code == 200
    run_until_idle()
    assert rest(client, f"{result.id}/retry_task/", {}, **headers).json()["status"] == "FAILED"
    result.refresh()
    assert result.attempts == 2


@pytest.mark.parametrize(("permissions", "view", "operate"), [((), 403, 403), (VIEW, 200, 403), ((OPERATE,), 403, 200)])
def test_each_address_needs_its_permission(permissions: tuple[str, ...], view: int, operate: int) -> None:
    result = t.add.enqueue(1)
    client = client_of(*permissions)
    assert rest(client, "").status_code == view
    assert rest(client, f"{result.id}/").status_code == view
    for name in ("run_task_now", "cancel_task"):
        assert rest(client, f"{result.id}/{name}/", {}).status_code == operate, name


def test_payloads_need_their_permission_and_the_look_is_recorded() -> None:
    (result,) = failed()
    hidden = rest(client_of(*VIEW), f"{result.id}/").json()
    assert (hidden["call"], hidden["result"], hidden["log"]) == (None, None, None)
    shown = rest(client_of(*VIEW, f"{APP}.view_payload", name="bob"), f"{result.id}/").json()
    assert shown["call"] == [["why"], {}]
    assert shown["log"][0]["error"]["class"] == "builtins.ValueError"
    assert OperatorAction.objects.get().actor_name == "bob"


# -- bulk --------------------------------------------------------------------------------------------------------------


def test_four_hundred_with_one_cause_are_retried_together() -> None:
    made = failed(40)
    t.add.enqueue(1)
    run_until_idle()
    cause = EndedTask.objects.get(pk=made[0].id).cause
    client = client_of(*VIEW, OPERATE, BULK)
    body = {"action": "retry_task", "filter": {"status": "FAILED", "cause": cause}, "reason": "fixed"}
    answer = rest(client, "bulk/", body, **{"Idempotency-Key": "once"})
    assert (answer.status_code, answer.json()["total"]) == (201, 40)
    assert rest(client, "bulk/", body, **{"Idempotency-Key": "once"}).json()["id"] == answer.json()["id"]
    # Half of them go by themselves meanwhile.
    for result in made[:20]:
        row = EndedTask.objects.get(pk=result.id)
        row.status = "SUCCESSFUL"
        row.save()
    while run_jobs("default"):
        pass
    job = BulkJob.objects.get()
    assert (job.state, job.done, job.failed, job.already_done) == ("done", 20, 20, 20)
    assert EnqueuedTask.objects.count() == 20
    assert set(BulkItem.objects.filter(outcome="failed").values_list("code", flat=True)) == {"not_possible"}


@pytest.mark.parametrize(
    "body",
    [
        {"action": "retry_task"},
        {"action": "delete", "filter": {}},
        {"action": "retry_task", "filter": {"status": "LATE"}},
        {"action": "retry_task", "filter": {"status": "FAILED"}, "queue": "mail"},
        {"action": "cancel_task", "tasks": []},
    ],
)
def test_a_bulk_job_that_makes_no_sense_is_refused(body: dict[str, Any]) -> None:
    failed()
    assert rest(client_of(*VIEW, OPERATE, BULK), "bulk/", body).status_code == 400
    assert not BulkJob.objects.exists()


def test_a_bulk_job_needs_the_permissions_of_both() -> None:
    (result,) = failed()
    for number, permissions in enumerate([(BULK,), (OPERATE,), (BULK, OPERATE)]):
        user = stored(f"u{number}", *permissions)
        start = StartTaskBulk("retry_task", tasks=TaskFilter(status="FAILED"), by=Actor(user=user))
        with pytest.raises(errors.ActionNotPermitted):
            start.execute()
    user = stored("right", BULK, OPERATE)
    assert StartTaskBulk("retry_task", tasks=[result.id], by=Actor(user=user)).execute().total == 1


# -- commands ----------------------------------------------------------------------------------------------------------


def test_the_commands() -> None:
    (result,) = failed()
    listed = json.loads(command("enqueued", "--json"))
    assert (listed["id"], listed["status"]) == (str(result.id), "FAILED")
    assert "ValueError at" in command("enqueued")
    assert "The task will run again." in command("retry-task", str(result.id), "--reason", "again")
    moved = json.loads(command("requeue", str(result.id), "--to", "mail", "--json"))
    assert moved["queue"] == "mail"
    assert "The task is due now." in command("run-task-now", str(result.id))
    assert "The task was cancelled." in command("cancel-task", str(result.id), "--yes")
    assert "bulk job" in command("retry-task", "--status", "CANCELLED", "--yes")
    assert BulkJob.objects.get().total == 1
    with pytest.raises(CommandError, match="which tasks are meant"):
        command("retry-task")
    with pytest.raises(CommandError, match="there is no background task"):
        command("cancel-task", str(uuid4()), "--yes")


def test_a_task_is_followed_to_its_end() -> None:
    (result,) = failed()
    assert "It failed" in command("enqueued", "--follow", str(result.id))
    assert json.loads(command("enqueued", "--follow", str(result.id), "--json"))["status"] == "FAILED"


# -- the admin ---------------------------------------------------------------------------------------------------------


def test_a_failed_task_is_retried_from_its_page_once_however_often_the_form_is_sent() -> None:
    (result,) = failed()
    client = client_of(*VIEW, OPERATE)
    page = client.get(reverse("admin:temporalex_django_endedtask_change", args=[result.id]))
    assert b"It failed" in page.content
    address = reverse("admin:temporalex_django_endedtask_retry_task", args=[result.id])
    assert address.encode() in page.content
    form = {"reason": "fixed", "attempts": "1"}
    page = client.post(address, form, follow=True)
    assert page.redirect_chain[-1][0].startswith(reverse("admin:temporalex_django_enqueuedtask_changelist"))
    run_until_idle()
    answer = client.post(address, form, follow=True)
    assert b"it has had another attempt since you looked" in answer.content
    result.refresh()
    assert result.attempts == 2


def test_a_group_is_retried_with_one_preview_and_one_confirmation() -> None:
    failed(12)
    client = client_of(*VIEW, OPERATE, BULK)
    page = client.get(reverse("admin:temporalex_django_endedtask_changelist"))
    (group,) = page.context["groups"]
    assert (group["group"].count, str(group["action"])) == (12, "Retry")
    preview = client.get(group["address"])
    assert (len(preview.context["tasks"]), preview.context["more"]) == (10, 2)
    form = {"reason": "fixed", "token": preview.context["token"]}
    answer = client.post(group["address"], form)
    job = BulkJob.objects.get()
    assert (answer.url, job.total) == (reverse("admin:temporalex_console:job", args=[job.pk]), 12)
    client.post(group["address"], form)
    assert BulkJob.objects.count() == 1


def test_selected_tasks_are_cancelled_by_an_action_of_the_list() -> None:
    made = [t.add.enqueue(number) for number in range(3)]
    client = client_of(*VIEW, OPERATE, BULK)
    rows = [*EnqueuedTask.objects.order_by("id")[:2].values_list("pk", flat=True)]
    chosen = client.post(
        reverse("admin:temporalex_django_enqueuedtask_changelist"),
        {"action": "cancel_task", "_selected_action": rows},
    )
    preview = client.get(chosen.url)
    assert sorted(task.id for task in preview.context["tasks"]) == sorted(str(result.id) for result in made[:2])
    client.post(chosen.url, {"token": preview.context["token"], "reason": ""})
    while run_jobs("default"):
        pass
    assert EndedTask.objects.filter(status="CANCELLED").count() == 2


def test_operations_in_the_admin_need_their_permission() -> None:
    (result,), waiting = failed(), t.add.enqueue(1)
    client = client_of(*VIEW)
    row = EnqueuedTask.objects.get(run_id=waiting.id)
    page = client.get(reverse("admin:temporalex_django_enqueuedtask_change", args=[row.pk]))
    assert b"/cancel_task/" not in page.content
    for model, pk, name in (("endedtask", result.id, "retry_task"), ("enqueuedtask", row.pk, "cancel_task")):
        address = reverse(f"admin:temporalex_django_{model}_{name}", args=[pk])
        assert client.post(address, {"reason": ""}).status_code == 403
        bulk = reverse(f"admin:temporalex_django_{model}_bulk_{name}")
        assert client.get(bulk, {"task": "tests.app.tasks.add"}).status_code == 403
    assert EnqueuedTask.objects.count() == 1


@pytest.mark.parametrize("query", ["within=24", "within=never", "task=tests.app.tasks.fails", "cause=x", "cause=%00"])
@pytest.mark.parametrize("model", ["endedtask", "enqueuedtask"])
def test_the_filters_of_the_lists(model: str, query: str) -> None:
    failed()
    page = client_of(*VIEW).get(reverse(f"admin:temporalex_django_{model}_changelist") + f"?{query}")
    assert page.status_code == 200
