"""Human tasks: the inbox of whoever asks, and what he does with what is in it."""

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
from temporalex_django.actions import deciding
from temporalex_django.actions.base import storage
from temporalex_django.actions.claim import Claim
from temporalex_django.actions.decide import Decide
from temporalex_django.actions.delegate import Delegate
from temporalex_django.actions.human_task import HumanTaskAction
from temporalex_django.actions.inbox import candidates_of, find_task, inbox
from temporalex_django.actions.release import Release
from temporalex_django.actions.seeing import redact_tasks
from temporalex_django.authoring import authorization
from temporalex_django.errors import HumanTaskNotFound, TemporalexError
from temporalex_django.forms.asked import form_of
from temporalex_django.models import HumanTask, Instance
from temporalex_django.models.fields import UnreadablePayload
from temporalex_django.rest import serializers
from temporalex_django.rest.contract import KEY, Contract, Form, Parameter, says
from temporalex_django.rest.contracts import PAGES
from temporalex_django.rest.once import Repeatable, key_is_id, once
from temporalex_django.rest.pagination import FirstDue, NewestFirst
from temporalex_django.rest.views import InstanceViewSet

_LONGEST_COMMENT = 2000
_ALL = Parameter(name="all", kind="boolean", help="true: of all runs that you may look at, whoever decides them.")
_MINE = Parameter(name="mine", kind="boolean", help="true: those that you have claimed.")
_WORKFLOW = Parameter(name="workflow", help="Name of the class.")
_INBOX = "inbox"
_RUN = Parameter(name="run", help="A run id.")


class DecideBody(serializers.Body):
    """``form``: the digest of the form which you have seen; a decision in another form is refused."""

    outcome = fields.CharField(max_length=200)
    data = fields.JSONField(required=False, allow_null=True, default=None)  # type: ignore[assignment] # as ResumeBody
    comment = fields.CharField(required=False, allow_blank=True, default="", max_length=_LONGEST_COMMENT)
    form = fields.CharField(required=False, allow_null=True, default=None, max_length=100)


class DelegateBody(serializers.ReasonBody):
    """``to`` is the name with which that person signs in."""

    to = fields.CharField(max_length=150)


class NoBody(serializers.Body):
    """Nothing is said with it."""


def _of_one(
    operation: str, summary: str, *, body: Form | None = None, query: tuple[Parameter, ...] = (), **more: Any
) -> Contract:
    """Takes no permission: whose it is, the task itself says."""
    answers: Mapping[int, Form | None] = {200: serializers.HumanTaskDetail}
    return Contract(
        operation=operation, permission="", summary=summary, query=query, body=body, **{"answers": answers, **more}
    )


class HumanTaskViewSet(Repeatable):
    """What is not for the caller is 404 for him.

    ``run_views``: about the runs that its ``get_queryset`` leaves. ``urls.routes`` sets it.
    """

    run_views: type[InstanceViewSet] = InstanceViewSet

    @says(
        _of_one(
            _INBOX,
            "What you may decide now, what is due first at first",
            query=(_ALL, _MINE, _WORKFLOW, _RUN, *PAGES),
            answers={200: serializers.HumanTaskOut},
            several=True,
        )
    )
    def list(self, request: Request) -> Response:
        """One read; with ``all`` what others may decide besides, which takes ``view_instance``."""
        limit = self._number("limit", default=NewestFirst.page_size, most=NewestFirst.max_page_size)
        page = FirstDue(request.query_params.get("cursor"), limit=limit or NewestFirst.page_size)
        found, cursor = page.page(with_subjects(self._narrowed(request)))
        given = {name: value for name, value in request.query_params.items() if name != "cursor"}
        shown = [*map(self._shown, deciding.mark_nobody_left(*redact_tasks(found, self._user)))]
        following = None if cursor is None else self._following("human-tasks", {**given, "cursor": cursor})
        return Response({"next": following, "results": serializers.HumanTaskOut(shown, many=True).data})

    def _narrowed(self, request: Request) -> QuerySet[HumanTask]:
        tasks: QuerySet[HumanTask] = inbox(self._user)
        if self._flag("all"):
            if not policy().allows(self._user, VIEW):
                self.permission_denied(request, message=f"That takes the permission {VIEW.permission}.")
            tasks = (
                deciding.tasks_of_visible_runs(self._user)
                .open()
                .order_by(F("due_at").asc(nulls_last=True), "opened_at", "pk")
            )
        if (there := self._there()) is not None:
            tasks = tasks.filter(run__in=there.order_by().values("pk"))
        if self._flag("mine"):
            tasks = tasks.filter(claimed_by_key=authorization.sender_key(self._user))
        if workflow := self._text("workflow"):
            tasks = tasks.filter(workflow=workflow)
        if run := self._text("run"):
            try:
                tasks = tasks.filter(run_id=UUID(run))
            except ValueError:
                raise ValidationError({"run": ["a run id"]}) from None
        return tasks

    def _flag(self, name: str) -> bool:
        given = self.request.query_params.get(name, "false")
        if given not in ("true", "false"):
            raise ValidationError({name: ["true or false"]})
        return bool(given == "true")

    @says(_of_one(_INBOX, "What is asked, and the form in which it is decided"))
    def retrieve(self, request: Request, task: str) -> Response:
        """Open or closed: what became of it stands there, too."""
        return self._one(self._task(task))

    @says(_of_one(Claim.name, "Nobody else decides it for a while", body=NoBody, scope="act", keyed=True))
    @once
    def claim(self, request: Request, task: str) -> Response:
        """Again by the same person it prolongs his claim."""
        return self._acted(task, lambda found: Claim(found, by=self._actor(), **self._body()))

    @says(_of_one(Release.name, "Let others decide it", body=NoBody, scope="act", keyed=True))
    @once
    def release(self, request: Request, task: str) -> Response:
        """Of whoever has claimed it."""
        return self._acted(task, lambda found: Release(found, by=self._actor(), **self._body()))

    @says(_of_one(Delegate.name, "Let somebody else decide it, too", body=DelegateBody, scope="act", keyed=True))
    @once
    def delegate(self, request: Request, task: str) -> Response:
        """A claim ends with it."""
        return self._acted(task, lambda found: Delegate(found, by=self._actor(), **self._to()))

    @says(_of_one(Decide.name, "Decide it", body=DecideBody, scope="message", keyed=True))
    def decide(self, request: Request, task: str) -> Response:
        """200: it is decided, and the run goes on. 409 says who was quicker, or what happened instead."""
        found = self._task(task)
        decide = Decide(found, id=request.headers.get(KEY), by=self._actor(), **self._body())
        with key_is_id(request):
            decide.execute()
        return self._one(self._task(task))

    def again(self, made: UUID, *, new: bool, **names: Any) -> Response:
        return self._one(self._task(str(made)))

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _acted(self, ref: str, action: Callable[[HumanTask], HumanTaskAction[Any]]) -> Response:
        task = self._task(ref)
        act = action(task)
        self._done(act.execute, lambda _done: (task.pk, False))
        return self._one(self._task(ref))

    def _to(self) -> dict[str, Any]:
        body = self._body()
        return {**body, "to": deciding.find_user(body["to"])}

    def _task(self, ref: str) -> HumanTask:
        found = find_task(ref, self._user)
        found.subject_type, found.subject_id = found.run.subject_type_id, found.run.subject_id  # type: ignore[attr-defined] # as with_subjects
        if (there := self._there()) is not None and not there.filter(pk=found.run_id).exists():
            raise HumanTaskNotFound
        return found

    def _there(self) -> QuerySet[Instance] | None:
        """The runs that a view set of the host's own leaves; None: ours leaves all that the access policy does."""
        if self.run_views is InstanceViewSet:
            return None
        return self.run_views(request=self.request, headers={}, action="retrieve", kwargs={}).get_queryset()

    def _one(self, task: HumanTask) -> Response:
        (shown_task,) = redact_tasks(deciding.mark_nobody_left(task), self._user)
        shown = {
            **self._shown(shown_task),
            "shows": None if isinstance(shown_task.shown_value, UnreadablePayload) else shown_task.shown_value,
            "form": _form(task),
            "why_not": deciding.why_not(task, self._user),
        }
        return Response(serializers.HumanTaskDetail(shown).data)

    def _shown(self, task: HumanTask) -> dict[str, Any]:
        of_kind = getattr(task, "subject_type", None)
        if of_kind is not None:
            kind = ContentType.objects.db_manager(storage().alias).get_for_id(of_kind)
            of_kind = {"type": f"{kind.app_label}.{kind.model}", "id": str(task.subject_id)}  # type: ignore[attr-defined] # with_subjects
        return {
            **{
                name: getattr(task, name) for name in map(str, serializers.HumanTaskOut().fields) if hasattr(task, name)
            },
            "text": deciding.task_sentence(task),
            "asked": candidates_of(task),
            "subject": of_kind,
            "requested_by": _person(task.requested_by_key, task.requested_by_name),
            "claimed_by": _person(task.claimed_by_key, task.claimed_by_name),
            "decided_by": _person(task.decided_by_key, task.decided_by_name),
            "ending": task.ending or None,
            "outcome": task.outcome or None,
            "url": self._address("human-task", task=str(task.pk)),
        }


def with_subjects(tasks: QuerySet[HumanTask]) -> QuerySet[HumanTask]:
    """With what their runs are about, read for the rows of the page alone."""
    run = Instance.objects.filter(pk=OuterRef("run_id")).order_by()
    return tasks.annotate(
        subject_type=Subquery(run.values("subject_type_id")[:1]), subject_id=Subquery(run.values("subject_id")[:1])
    )


def _person(key: str, name: str) -> dict[str, str] | None:
    return {"key": key, "name": name} if key or name else None


def _form(task: HumanTask) -> dict[str, Any] | None:
    try:
        asked = form_of(task)
    except TemporalexError:
        return None
    schema = task.form["schema"] if task.form and asked.kind == "schema" else None
    return {"kind": asked.kind, "schema": schema, "names": asked.names, "digest": asked.digest}
