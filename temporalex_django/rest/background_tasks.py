"""Background tasks over REST: lists of open and ended ones, one with its payloads, and the operations on them."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any
from uuid import UUID

from django.core.exceptions import ValidationError as FieldError
from rest_framework import serializers as fields
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from temporalex_django.errors import WorkflowNotFound
from temporalex_django.forms.run_filters import UTCDateTimeField
from temporalex_django.models import BulkJob
from temporalex_django.operations.background_tasks import (
    STATUSES,
    TASK_ACTIONS,
    CancelTask,
    Requeue,
    RetryTask,
    RunTaskNow,
    TaskAction,
    parse_id,
)
from temporalex_django.operations.base import storage
from temporalex_django.operations.bulk import StartTaskBulk, jobs_for
from temporalex_django.operations.read.background_tasks import (
    TaskDetail,
    TaskFilter,
    TaskRow,
    describe_task,
    find_described_task,
    list_tasks,
)
from temporalex_django.rest import serializers
from temporalex_django.rest.base import IdempotentViewSet, with_idempotency_key
from temporalex_django.rest.contracts import PAGES
from temporalex_django.rest.lists import NewestFirstPagination
from temporalex_django.rest.requests import Contract, Parameter, with_contract
from temporalex_django.rest.serializers import RecordOut

_FILTERS = (
    Parameter(name="status", help=f"One of {', '.join(STATUSES)}."),
    Parameter(name="queue"),
    Parameter(name="task", help="The path of the function."),
    Parameter(name="cause", help="The cause of a failure: also those of its group, in the same function of the code."),
    Parameter(name="run", help="Id of the run whose activities enqueued them."),
    Parameter(name="since", kind="date-time", help="The earliest time of the enqueue."),
    Parameter(name="until", kind="date-time", help="Enqueued before this time."),
)


class BackgroundTaskOut(RecordOut):
    """A background task (an enqueued Django task), as lists show it.

    ``text`` says what it waits for, or how it ended. ``progress_text`` needs the permission to see payloads.
    """

    record = TaskRow


class BackgroundTaskDetail(RecordOut):
    """A background task with its arguments (``call``), its result, and the errors of its attempts (``log``).

    They need the permission to see payloads. Without it, they are null.
    """

    record = TaskDetail


class TaskBody(serializers.ReasonBody):
    """The body of a request that performs an operation on a background task.

    ``attempts`` is the number of attempts that you have seen. The request is refused if the task has had another one.
    """

    attempts = fields.IntegerField(required=False, min_value=0)


class RequeueBody(TaskBody):
    """The body of a request that moves a background task to another ``queue``, to another ``priority``, or both."""

    queue = fields.CharField(required=False, max_length=200)
    priority = fields.IntegerField(required=False, min_value=-100, max_value=100)


class TaskFilterBody(serializers.Body):
    """The filter of background tasks in the body of a request, with the parameters of the list."""

    status = fields.ChoiceField(choices=STATUSES, required=False)
    queue = fields.CharField(required=False, max_length=200)
    task = fields.CharField(required=False, max_length=300)
    cause = fields.CharField(required=False, max_length=1000)
    run = fields.CharField(required=False, max_length=100)
    since = serializers.time_field(required=False)
    until = serializers.time_field(required=False)


class TaskBulkBody(serializers.ReasonBody):
    """The body of a request that performs an operation on many background tasks: ``tasks`` (ids), or a ``filter``.

    ``queue`` and ``priority`` are for the operation ``requeue``.
    """

    action = fields.ChoiceField(choices=[*TASK_ACTIONS])
    tasks = fields.ListField(child=fields.UUIDField(), required=False, allow_empty=False)
    filter = TaskFilterBody(required=False)
    queue = fields.CharField(required=False, max_length=200)
    priority = fields.IntegerField(required=False, min_value=-100, max_value=100)


def _contract(action: type[TaskAction], body: Any = TaskBody) -> Contract:
    return Contract(
        operation=action.name,
        permission=action.permission,
        summary=str(action.summary),
        answers={200: BackgroundTaskOut},
        body=body,
        scope="act",
        keyed=True,
    )


class BackgroundTaskViewSet(IdempotentViewSet):
    """The REST addresses of the background tasks that the caller may see; every other task gets status 404."""

    @with_contract(
        Contract(
            operation="view",
            permission="view_enqueuedtask",
            summary="Background tasks, newest first",
            query=(*_FILTERS, Parameter(name="cursor", help="The cursor in `next` of another page."), PAGES[1]),
            answers={200: BackgroundTaskOut},
            several=True,
        )
    )
    def list(self, request: Request) -> Response:
        """Return the background tasks that wait, run, or have ended and are kept, newest first.

        It also needs the permission ``view_endedtask``. At most two reads of tasks, and two of workers and switches.
        """
        limit = self._number_parameter(
            "limit", default=NewestFirstPagination.page_size, maximum=NewestFirstPagination.max_page_size
        )
        rows, has_more = list_tasks(
            self._filter(), self._user, before=self._position(), limit=limit or NewestFirstPagination.page_size
        )
        query = {name: value for name, value in request.query_params.items() if name != "cursor"}
        next_url = self._next_url("tasks", {**query, "cursor": rows[-1].id}) if has_more else None
        return Response({"next": next_url, "results": BackgroundTaskOut(rows, many=True).data})

    def _filter(self) -> TaskFilter:
        texts = {name: self._text_parameter(name) or None for name in ("status", "queue", "task", "cause", "run")}
        if texts["status"] is not None and texts["status"] not in STATUSES:
            raise ValidationError({"status": [f"Choose one of {', '.join(STATUSES)}."]})
        return TaskFilter(**texts, since=self._time("since"), until=self._time("until"))

    def _time(self, name: str) -> Any:
        text = self._text_parameter(name)
        try:
            return UTCDateTimeField(required=False).clean(text) if text else None
        except FieldError as exc:
            raise ValidationError({name: exc.messages}) from None

    def _position(self) -> UUID | None:
        cursor = self._text_parameter("cursor")
        position = parse_id(cursor) if cursor else None
        if cursor and position is None:
            raise ValidationError({"cursor": ["This is not a valid cursor. Use `next` of a page."]})
        return position

    @with_contract(
        Contract(
            operation="view",
            permission="view_enqueuedtask",
            summary="One background task",
            answers={200: BackgroundTaskDetail},
        )
    )
    def retrieve(self, request: Request, task: str) -> Response:
        """Return one background task. A person's look at its payloads is recorded in the audit log."""
        del request
        return Response(BackgroundTaskDetail(describe_task(task, self._actor())).data)

    @with_contract(_contract(RetryTask))
    @with_idempotency_key
    def retry_task(self, request: Request, task: str) -> Response:
        """Run a failed or cancelled task again, under its id. Status 409 if it has not failed."""
        return self._run_action(RetryTask, task)

    @with_contract(_contract(CancelTask))
    @with_idempotency_key
    def cancel_task(self, request: Request, task: str) -> Response:
        """Cancel a task: one that waits ends at once, one that runs is asked to end. Status 409 if it has ended."""
        return self._run_action(CancelTask, task)

    @with_contract(_contract(RunTaskNow))
    @with_idempotency_key
    def run_task_now(self, request: Request, task: str) -> Response:
        """Make a task due that waits for its time or its next attempt. Status 409 if it runs or has ended."""
        return self._run_action(RunTaskNow, task)

    @with_contract(_contract(Requeue, RequeueBody))
    @with_idempotency_key
    def requeue(self, request: Request, task: str) -> Response:
        """Move a task that waits to another queue or priority. Status 409 if it runs, has ended, or cannot go there."""
        return self._run_action(Requeue, task)

    @with_contract(
        Contract(
            operation=StartTaskBulk.name,
            permission=StartTaskBulk.permission,
            summary="Apply an operation to many background tasks",
            answers={201: serializers.JobOut},
            body=TaskBulkBody,
            scope="act",
            keyed=True,
        )
    )
    @with_idempotency_key
    def bulk(self, request: Request) -> Response:
        """Start a bulk job over background tasks. Returns status 201, with the job; ``bulk/<job>/`` follows it."""
        del request
        body = self._body()
        action, ids, filters = body.pop("action"), body.pop("tasks", None), body.pop("filter", None)
        if (ids is None) is (filters is None):
            raise ValidationError({"tasks": ["Give either tasks or a filter."]})
        if action != Requeue.name and (unknown := {"queue", "priority"} & set(body)):
            raise ValidationError({min(unknown): [f"{action} does not take this."]})
        start = StartTaskBulk(action, tasks=ids if filters is None else TaskFilter(**filters), by=self._actor(), **body)
        return self._job_response(self._run_once(start.execute, lambda job: (job.pk, True)))

    def _job_response(self, job: BulkJob) -> Response:
        headers = {"Location": self._url_for("bulk-job", job=str(job.pk))}
        return Response(serializers.JobOut(job).data, status=HTTPStatus.CREATED, headers=headers)

    def _run_action(self, action: type[TaskAction], task: str) -> Response:
        execute = action(task, by=self._actor(), **self._body()).execute
        return self._task_response(self._run_once(execute, lambda changed: (changed.id, False)).id)

    def repeat_response(self, object_id: UUID, *, is_new: bool, **names: Any) -> Response:
        if is_new:  # a bulk job, the only thing that is created here
            job = jobs_for(self._user, alias=storage().alias).filter(pk=object_id).first()
            if job is None:
                raise WorkflowNotFound("there is no such bulk job")
            return self._job_response(job)
        return self._task_response(object_id)

    def _task_response(self, task_id: UUID) -> Response:
        return Response(BackgroundTaskOut(find_described_task(task_id, self._user, is_own_result=True)).data)


#: Routes of background tasks: the address, its name, and the methods of the view set.
TASK_ROUTES: tuple[tuple[str, str, type[IdempotentViewSet], dict[str, str]], ...] = (
    ("tasks/", "tasks", BackgroundTaskViewSet, {"get": "list"}),
    ("tasks/bulk/", "task-bulk", BackgroundTaskViewSet, {"post": "bulk"}),
    ("tasks/<str:task>/", "task", BackgroundTaskViewSet, {"get": "retrieve"}),
    *((f"tasks/<str:task>/{name}/", name, BackgroundTaskViewSet, {"post": name}) for name in TASK_ACTIONS),
)
