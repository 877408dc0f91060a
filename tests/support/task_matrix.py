"""The rows of the permission matrix about background tasks."""

from __future__ import annotations

from typing import Any

from temporalex_django.models import EndedTask, EnqueuedTask
from temporalex_django.operations.background_tasks import CancelTask, Requeue, RetryTask, RunTaskNow
from tests.support.matrix import Row, django_tasks, token

LOOK, OPERATE = ("view_enqueuedtask", "view_endedtask"), ("operate_tasks",)
BULK = (*LOOK, *OPERATE, "bulk_actions")


def waiting() -> str:
    """Return the id of a task that waits; the tenant *red* has enqueued it."""
    django_tasks()
    return str(EnqueuedTask.objects.get().run_id)


def failed() -> str:
    """Return the id of a task that has failed; the tenant *red* has enqueued it."""
    django_tasks()
    return str(EndedTask.objects.get().pk)


OPERATIONS = {
    "retry_task": Row(OPERATE, lambda by: RetryTask(failed(), by=by)),
    "cancel_task": Row(OPERATE, lambda by: CancelTask(waiting(), by=by)),
    "run_task_now": Row(OPERATE, lambda by: RunTaskNow(waiting(), by=by)),
    "requeue": Row(OPERATE, lambda by: Requeue(waiting(), priority=1, by=by)),
}
REST = {
    "GET tasks": Row(LOOK, lambda send: send(), of_run=False),
    "GET task": Row(LOOK, lambda send: send(at={"task": waiting()})),
    "POST retry_task": Row(OPERATE, lambda send: send({}, at={"task": failed()})),
    "POST cancel_task": Row(OPERATE, lambda send: send({}, at={"task": waiting()})),
    "POST run_task_now": Row(OPERATE, lambda send: send({}, at={"task": waiting()})),
    "POST requeue": Row(OPERATE, lambda send: send({"priority": 1}, at={"task": waiting()})),
    "POST task-bulk": Row(
        (*OPERATE, "bulk_actions"), lambda send: send({"action": "cancel_task", "tasks": [waiting()]})
    ),
}
COMMANDS = {
    "retry-task": Row(OPERATE, lambda run, ref: run(failed())),
    "cancel-task": Row(OPERATE, lambda run, ref: run(waiting(), "--yes")),
    "run-task-now": Row(OPERATE, lambda run, ref: run(waiting())),
    "requeue": Row(OPERATE, lambda run, ref: run(waiting(), "--priority", "1")),
}


def _pages(model: str, key: str, *names: str) -> dict[str, Row]:
    found: dict[str, Row] = {}
    for name in names:
        body: dict[str, Any] = {"reason": "why", "priority": "1"}
        found |= {
            f"{model} {name} post": Row(OPERATE, lambda page, body=body: page(key, body), of_run=False),
            f"{model} bulk_{name}": Row(BULK, lambda page: page(query="?task=shop.mail"), of_run=False),
            f"{model} bulk_{name} post": Row(
                BULK,
                lambda page, body=body: page(None, {**body, "token": token()}, query="?task=shop.mail"),
                of_run=False,
            ),
            f"{model} chosen {name.partition('_')[0]}": Row(
                BULK,
                lambda page, name=name: page(key, lambda pk: {"action": name, "_selected_action": pk, "index": "0"}),
                of_run=False,
            ),
        }
    return found


ADMIN = _pages("endedtask", "ended task", "retry_task") | _pages(
    "enqueuedtask", "enqueued", "run_task_now", "requeue", "cancel_task"
)
ADMIN["enqueuedtask by_id"] = Row(("view_enqueuedtask",), lambda page: page("task id"), of_run=False)
