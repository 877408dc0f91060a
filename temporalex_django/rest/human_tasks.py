"""Human tasks: the inbox of the caller, and the operations on its tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from django.contrib.contenttypes.models import ContentType
from django.db.models import F, OuterRef, QuerySet, Subquery
from rest_framework import serializers as fields
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from temporalex_django.access import VIEW, policy
from temporalex_django.authoring import authorization
from temporalex_django.errors import HumanTaskNotFound, TemporalexError
from temporalex_django.forms.human_task_form import form_spec_of
from temporalex_django.models import HumanTask, Instance
from temporalex_django.models.fields import UnreadablePayload
from temporalex_django.operations.base import storage
from temporalex_django.operations.human_tasks import operations
from temporalex_django.operations.human_tasks.inbox import candidates_of, find_task, inbox, redact_tasks
from temporalex_django.operations.human_tasks.operations import Claim, Decide, Delegate, HumanTaskAction, Release
from temporalex_django.rest import serializers
from temporalex_django.rest.base import IdempotentViewSet, translate_key_reuse, with_idempotency_key
from temporalex_django.rest.contracts import PAGES
from temporalex_django.rest.lists import DueFirstPages, NewestFirstPagination
from temporalex_django.rest.requests import IDEMPOTENCY_KEY, Contract, Parameter, SerializerType, with_contract
from temporalex_django.rest.serializers import Note
from temporalex_django.rest.views import InstanceViewSet

_ALL = Parameter(
    name="all",
    kind="boolean",
    help="true: the tasks of all runs that you may view, including those that others decide.",
)
_MINE = Parameter(name="mine", kind="boolean", help="true: only the tasks that you have claimed.")
_WORKFLOW = Parameter(name="workflow", help="Name of the workflow class.")
_INBOX = "inbox"
_RUN = Parameter(name="run", help="A run id.")


class DecideBody(serializers.Body):
    """The body of a request that decides a human task.

    ``outcome`` is one of the outcomes of the task, and ``data`` the values of its form. ``form`` is the digest of the
    form that you filled in. The server refuses a decision if the form has changed since then.
    """

    outcome = fields.CharField(max_length=200)
    data = fields.JSONField(required=False, allow_null=True, default=None)  # type: ignore[assignment] # as ResumeBody
    comment = Note()
    form = fields.CharField(required=False, allow_null=True, default=None, max_length=100)


class DelegateBody(serializers.ReasonBody):
    """The body of a request that delegates a human task.

    ``to`` is the login name of the other person.
    """

    to = fields.CharField(max_length=150)


class NoBody(serializers.Body):
    """The body of a request that needs no fields, such as claiming a human task."""


def _task_contract(
    operation: str,
    summary: str,
    *,
    body: SerializerType | None = None,
    query: tuple[Parameter, ...] = (),
    **options: Any,
) -> Contract:
    """Return a contract that needs no permission, because the candidates of a task may call the method."""
    answers: Mapping[int, SerializerType | None] = {200: serializers.HumanTaskDetail}
    return Contract(
        operation=operation, permission="", summary=summary, query=query, body=body, **{"answers": answers, **options}
    )


class HumanTaskViewSet(IdempotentViewSet):
    """The REST addresses of the human tasks that the caller may see; every other task gets status 404.

    ``run_views`` is the view set of runs: its ``get_queryset`` restricts the tasks. ``urls.routes`` sets it.
    """

    run_views: type[InstanceViewSet] = InstanceViewSet

    @with_contract(
        _task_contract(
            _INBOX,
            "Tasks that you may decide now, earliest due time first",
            query=(_ALL, _MINE, _WORKFLOW, _RUN, *PAGES),
            answers={200: serializers.HumanTaskOut},
            several=True,
        )
    )
    def list(self, request: Request) -> Response:
        """Return the human tasks that the caller may decide now, in the order of their due times. One read.

        The query parameter ``all`` adds those that others may decide, which needs the permission ``view_instance``.
        """
        limit = self._number_parameter(
            "limit", default=NewestFirstPagination.page_size, maximum=NewestFirstPagination.max_page_size
        )
        page = DueFirstPages(request.query_params.get("cursor"), limit=limit or NewestFirstPagination.page_size)
        tasks, cursor = page.page(annotate_subjects(self._filtered_tasks(request)))
        query = {name: value for name, value in request.query_params.items() if name != "cursor"}
        rows = [*map(self._task_fields, operations.mark_nobody_left(*redact_tasks(tasks, self._user)))]
        next_url = None if cursor is None else self._next_url("human-tasks", {**query, "cursor": cursor})
        return Response({"next": next_url, "results": serializers.HumanTaskOut(rows, many=True).data})

    def _filtered_tasks(self, request: Request) -> QuerySet[HumanTask]:
        tasks: QuerySet[HumanTask] = inbox(self._user)
        if self._boolean_parameter("all"):
            if not policy().allows(self._user, VIEW):
                self.permission_denied(request, message=f"This requires the permission {VIEW.permission}.")
            tasks = (
                operations.tasks_of_visible_runs(self._user)
                .open()
                .order_by(F("due_at").asc(nulls_last=True), "opened_at", "pk")
            )
        # The subquery keeps this one read, and needs no order.
        if (host_runs := self._host_runs()) is not None:
            tasks = tasks.filter(run__in=host_runs.order_by().values("pk"))
        if self._boolean_parameter("mine"):
            tasks = tasks.filter(claimed_by_key=authorization.sender_key(self._user))
        if workflow := self._text_parameter("workflow"):
            tasks = tasks.filter(workflow=workflow)
        if run_id := self._text_parameter("run"):
            try:
                tasks = tasks.filter(run_id=UUID(run_id))
            except ValueError:
                raise ValidationError({"run": ["Enter a run id."]}) from None
        return tasks

    def _boolean_parameter(self, name: str) -> bool:
        text = self.request.query_params.get(name, "false")
        # A misspelt value must not silently list less, or more.
        if text not in ("true", "false"):
            raise ValidationError({name: ["Enter true or false."]})
        return bool(text == "true")

    @with_contract(_task_contract(_INBOX, "One human task, with its form"))
    def retrieve(self, request: Request, task: str) -> Response:
        """Return a human task, open or closed, with its form; a closed one says how it ended."""
        return self._task_response(self._find_task(task))

    @with_contract(
        _task_contract(
            Claim.name, "Claim it, so that nobody else decides it for a while", body=NoBody, scope="act", keyed=True
        )
    )
    @with_idempotency_key
    def claim(self, request: Request, task: str) -> Response:
        """Claim a human task, so that nobody else decides it for a while. Returns status 200.

        If the caller has claimed the task already, their claim is extended.
        """
        return self._run_action(task, lambda human_task: Claim(human_task, by=self._actor(), **self._body()))

    @with_contract(
        _task_contract(
            Release.name, "Release it, so that others can decide it again", body=NoBody, scope="act", keyed=True
        )
    )
    @with_idempotency_key
    def release(self, request: Request, task: str) -> Response:
        """End the claim of a human task, so that others may decide it again. Returns status 200.

        To end the claim of another person you need the permission ``release_humantask``.
        """
        return self._run_action(task, lambda human_task: Release(human_task, by=self._actor(), **self._body()))

    @with_contract(
        _task_contract(
            Delegate.name, "Let another person decide it as well", body=DelegateBody, scope="act", keyed=True
        )
    )
    @with_idempotency_key
    def delegate(self, request: Request, task: str) -> Response:
        """Delegate a human task to another person, who may then decide it as well. Returns status 200.

        If somebody has claimed the task, their claim ends.
        """
        return self._run_action(
            task, lambda human_task: Delegate(human_task, by=self._actor(), **self._delegate_arguments())
        )

    @with_contract(_task_contract(Decide.name, "Decide it", body=DecideBody, scope="message", keyed=True))
    def decide(self, request: Request, task: str) -> Response:
        """Decide a human task. Returns status 200; the run continues with the decision.

        If the task is no longer open, status 409 says who decided it, or how else it was closed.
        """
        human_task = self._find_task(task)
        decision = Decide(human_task, id=request.headers.get(IDEMPOTENCY_KEY), by=self._actor(), **self._body())
        # A decision is a message with its own id, so the key needs no row (see decision 25).
        with translate_key_reuse(request):
            decision.execute()
        # Read again: the turn of the decision has changed the row.
        return self._task_response(self._find_task(task))

    def repeat_response(self, object_id: UUID, *, is_new: bool, **names: Any) -> Response:
        return self._task_response(self._find_task(str(object_id)))

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _run_action(self, ref: str, build_action: Callable[[HumanTask], HumanTaskAction[Any]]) -> Response:
        task = self._find_task(ref)
        task_action = build_action(task)
        self._run_once(task_action.execute, lambda _task: (task.pk, False))
        return self._task_response(self._find_task(ref))

    def _delegate_arguments(self) -> dict[str, Any]:
        body = self._body()
        return {**body, "to": operations.find_user(body["to"])}

    def _find_task(self, ref: str) -> HumanTask:
        task = find_task(ref, self._user)
        # The same attributes as of rows from a page.
        task.subject_type, task.subject_id = task.run.subject_type_id, task.run.subject_id  # type: ignore[attr-defined] # as annotate_subjects
        if (host_runs := self._host_runs()) is not None and not host_runs.filter(pk=task.run_id).exists():
            raise HumanTaskNotFound
        return task

    def _host_runs(self) -> QuerySet[Instance] | None:
        """Return the runs of the project's own view set. None: it is this package's, which adds no restriction."""
        if self.run_views is InstanceViewSet:
            return None
        return self.run_views(request=self.request, headers={}, action="retrieve", kwargs={}).get_queryset()

    def _task_response(self, task: HumanTask) -> Response:
        # Titles, comments and shown values are payloads of the run.
        (redacted_task,) = redact_tasks(operations.mark_nobody_left(task), self._user)
        fields_of_task = {
            **self._task_fields(redacted_task),
            "shows": None if isinstance(redacted_task.shown_value, UnreadablePayload) else redacted_task.shown_value,
            "form": _form_fields(task),
            "why_not": operations.why_not(task, self._user),
        }
        return Response(serializers.HumanTaskDetail(fields_of_task).data)

    def _task_fields(self, task: HumanTask) -> dict[str, Any]:
        subject = getattr(task, "subject_type", None)
        if subject is not None:
            content_type = ContentType.objects.db_manager(storage().alias).get_for_id(subject)
            subject = {"type": f"{content_type.app_label}.{content_type.model}", "id": str(task.subject_id)}  # type: ignore[attr-defined] # annotate_subjects
        return {
            **{
                name: getattr(task, name) for name in map(str, serializers.HumanTaskOut().fields) if hasattr(task, name)
            },
            "text": operations.task_sentence(task),
            "asked": candidates_of(task),
            "subject": subject,
            "requested_by": _person(task.requested_by_key, task.requested_by_name),
            "claimed_by": _person(task.claimed_by_key, task.claimed_by_name),
            "decided_by": _person(task.decided_by_key, task.decided_by_name),
            "ending": task.ending or None,
            "outcome": task.outcome or None,
            "url": self._url_for("human-task", task=str(task.pk)),
        }


def annotate_subjects(tasks: QuerySet[HumanTask]) -> QuerySet[HumanTask]:
    """Annotate human tasks with the type and the key of their run's subject (``subject_type`` and ``subject_id``)."""
    run = Instance.objects.filter(pk=OuterRef("run_id")).order_by()
    return tasks.annotate(
        subject_type=Subquery(run.values("subject_type_id")[:1]), subject_id=Subquery(run.values("subject_id")[:1])
    )


def _person(key: str, name: str) -> dict[str, str] | None:
    if key or name:
        return {"key": key, "name": name}
    return None


def _form_fields(task: HumanTask) -> dict[str, Any] | None:
    try:
        task_form = form_spec_of(task)
    # This process does not have the class of the task: show it without its form.
    except TemporalexError:
        return None
    schema = task.form["schema"] if task.form and task_form.kind == "schema" else None
    return {"kind": task_form.kind, "schema": schema, "names": task_form.field_names, "digest": task_form.digest}
