"""Bulk jobs: one operation on many runs, which workers process.

You can start, read, stop and resume a job.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from rest_framework import serializers as fields
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from temporalex_django.core.names import quoted
from temporalex_django.errors import WorkflowNotFound
from temporalex_django.models import BulkItem, BulkJob
from temporalex_django.operations.base import storage
from temporalex_django.operations.bulk import ResumeBulk, StartBulk, StopBulk, jobs_for, redact_items
from temporalex_django.operations.registry import STEERING
from temporalex_django.operations.runs.messages import SendSignal
from temporalex_django.rest import serializers
from temporalex_django.rest.base import IdempotentViewSet, with_idempotency_key
from temporalex_django.rest.contracts import BY_SEQ, PAGES
from temporalex_django.rest.lists import filter_runs
from temporalex_django.rest.requests import Contract, Parameter, SerializerType, with_contract
from temporalex_django.rest.views import InstanceViewSet

_ACTION_NAMES = (SendSignal.name, *STEERING)
_OUTCOMES = {"open": "", "done": "done", "failed": "failed"}
OUTCOME_PARAMETER = Parameter(name="outcome", help="Enter open, done or failed.")
#: Parameters of ``StartBulk`` that are not inputs of an action.
_START_PARAMETERS = {*inspect.signature(StartBulk).parameters} - {"inputs"}


class BulkBody(serializers.ReasonBody):
    """The body of a request that starts a bulk job.

    Give ``runs`` (run ids), or ``filter`` (an object with the filters of ``GET instances/``). ``inputs`` are those of
    the action. An action on activities or timers applies to those of the runs; ``activity`` and ``cause`` among the
    inputs select them.
    """

    action = fields.ChoiceField(choices=_ACTION_NAMES)
    runs = fields.ListField(child=fields.CharField(), required=False, allow_empty=False)
    filter = fields.DictField(child=fields.CharField(), required=False, allow_empty=False)
    inputs = fields.DictField(child=fields.JSONField(allow_null=True), required=False, default=dict)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        # Exactly one of them: a body without either must not select every run.
        if ("runs" in attrs) == ("filter" in attrs):
            raise fields.ValidationError({"runs": ["Give either `runs` or `filter`."]})
        return attrs


def _job_contract(
    operation: str, summary: str, answers: Mapping[int, SerializerType | None], *query: Parameter, **options: Any
) -> Contract:
    """Return a contract; ``answers`` are serializers by status, ``options`` further fields of ``Contract``."""
    return Contract(
        operation=operation, permission=StartBulk.permission, summary=summary, query=query, answers=answers, **options
    )


def _job_action_contract(operation: str, summary: str) -> Contract:
    answers = {200: serializers.JobOut}
    return _job_contract(operation, summary, answers, body=serializers.ReasonBody, scope="act", keyed=True)


class BulkViewSet(IdempotentViewSet):
    """The bulk jobs of the caller.

    Superusers who may see all runs see all jobs. ``run_views`` is the view set of the runs: its ``get_queryset``, its
    ``filterset_class`` and its permission classes restrict the runs of these jobs. ``urls.routes`` sets it.
    """

    run_views: type[InstanceViewSet] = InstanceViewSet

    def get_queryset(self) -> QuerySet[BulkJob]:
        return jobs_for(self._user, alias=storage().alias)

    @with_contract(_job_contract("view", "Bulk jobs, newest first", {200: serializers.JobOut}, *PAGES, several=True))
    def list(self, request: Request) -> Response:
        """Return the bulk jobs of the caller, newest first. One read."""
        page = self.paginate_queryset(self.get_queryset()) or ()
        return self._page_response([*serializers.JobOut(page, many=True).data])

    @with_contract(
        _job_contract(
            StartBulk.name,
            "Apply an operation to many runs",
            {201: serializers.JobOut},
            body=BulkBody,
            scope="act",
            keyed=True,
        )
    )
    @with_idempotency_key
    def create(self, request: Request) -> Response:
        """Start a bulk job. Returns status 201.

        The request only stores the job; workers perform the operation on its runs.
        """
        body = self._body()
        if (action_class := STEERING.get(body["action"])) is not None:
            body["inputs"] = {**action_class.selection_from(body.get("filter", {})), **body["inputs"]}
        runs_view = self._view_of_runs(body["action"], body["inputs"])
        # A bulk job must allow nothing that the address of a single run would refuse.
        runs_view.check_permissions(request)
        start = self._build_start(body, runs_view)
        return self._created_response(self._run_once(start.execute, lambda job: (job.pk, True)))

    @with_contract(_job_contract("view", "One bulk job", {200: serializers.JobOut}))
    def retrieve(self, request: Request, job: str) -> Response:
        """Return one bulk job, with the numbers of runs that are done, failed and left."""
        return self._job_response(self._find_job(job))

    @with_contract(
        _job_contract(
            "view", "The runs of a bulk job", {200: serializers.ItemOut}, *BY_SEQ, OUTCOME_PARAMETER, several=True
        )
    )
    def items(self, request: Request, job: str) -> Response:
        """Return the runs of a bulk job with their outcomes, in the order in which workers process them.

        The query parameter ``outcome`` (open, done or failed) restricts them. At most three reads.
        """
        outcome = self._text_parameter("outcome")
        if outcome and outcome not in _OUTCOMES:
            raise ValidationError({"outcome": [OUTCOME_PARAMETER.help]})
        after_seq, limit = self._page_bounds()
        rows = BulkItem.objects.using(storage().alias).filter(job=self._find_job(job), pk__gt=after_seq).order_by("pk")
        if outcome:
            rows = rows.filter(outcome=_OUTCOMES[outcome])
        # One row more than the page has shows if another page follows.
        fetched_items = [*rows[: limit + 1]]
        runs_view = self.run_views(request=request, headers={}, action="retrieve", kwargs={})
        visible_runs = runs_view.get_queryset()
        page = redact_items(
            fetched_items[:limit],
            self._user,
            alias=storage().alias,
            visible_runs=visible_runs,
            is_admitted=runs_view.can_access,
        )
        next_url = None
        if len(fetched_items) > limit:
            filters = {"outcome": outcome} if outcome else {}
            next_url = self._next_url("bulk-items", {"after": page[-1].pk, "limit": limit, **filters}, job=job)
        return Response({"next": next_url, "results": serializers.ItemOut(page, many=True).data})

    @with_contract(_job_action_contract(StopBulk.name, "Stop it"))
    @with_idempotency_key
    def stop(self, request: Request, job: str) -> Response:
        """Stop a bulk job. Returns status 200.

        Runs that were processed stay as they are. The other runs are not processed until the job is resumed.
        """
        return self._job_response(self._run_action(StopBulk(job, by=self._actor(), **self._body())))

    @with_contract(_job_action_contract(ResumeBulk.name, "Resume it"))
    @with_idempotency_key
    def resume(self, request: Request, job: str) -> Response:
        """Resume a stopped bulk job. Returns status 200; workers continue with the remaining runs."""
        return self._job_response(self._run_action(ResumeBulk(job, by=self._actor(), **self._body())))

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _view_of_runs(self, action: str, inputs: Mapping[str, Any]) -> InstanceViewSet:
        """Return the view set whose queryset and permissions restrict the runs. A signal has its name in ``inputs``."""
        action_class = STEERING.get(action)
        url_kwargs = {"name": str(inputs.get("signal"))} if action_class is None else {}
        method = action if action_class is None else "operate"
        return self.run_views(request=self.request, headers={}, action=method, kwargs=url_kwargs, steering=action_class)

    def _build_start(self, body: dict[str, Any], runs_view: InstanceViewSet) -> StartBulk:
        """Return the operation for the runs of ``runs_view``. Raises ``ValidationError`` for a wrong input."""
        inputs, visible_runs = body["inputs"], runs_view.get_queryset()
        # Inputs become keyword arguments, so an input named ``by`` or ``runs`` would replace what the server passes.
        if unknown := [name for name in inputs if name in _START_PARAMETERS]:
            raise ValidationError({"inputs": [f"{body['action']} has no input {quoted(unknown[0])}"]})
        try:
            return StartBulk(
                body["action"],
                runs=body["runs"]
                if "runs" in body
                else filter_runs(runs_view.filterset_class, body["filter"], visible_runs),
                visible_runs=visible_runs,
                is_admitted=runs_view.can_access,
                reason=body["reason"],
                by=self._actor(),
                **inputs,
            )
        # ``StartBulk`` raises it for an input that the action does not take, or lacks, and names the input.
        except TypeError as exc:
            raise ValidationError({"inputs": [str(exc)]}) from None

    def _run_action(self, action: StopBulk) -> BulkJob:
        return self._run_once(action.execute, lambda job: (job.pk, False))

    def repeat_response(self, object_id: UUID, *, is_new: bool, **names: Any) -> Response:
        job = self._find_job(str(object_id))
        if is_new:
            return self._created_response(job)
        return self._job_response(job)

    def _created_response(self, job: BulkJob) -> Response:
        return self._job_response(job, status=201, headers={"Location": self._url_for("bulk-job", job=str(job.pk))})

    def _find_job(self, ref: str) -> BulkJob:
        try:
            job = self.get_queryset().filter(pk=UUID(ref)).first()
        except ValueError:
            job = None
        if job is None:
            raise WorkflowNotFound("there is no such bulk job")
        return job

    def _job_response(self, job: BulkJob, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
        return Response(serializers.JobOut(job).data, status=status, headers=headers)
