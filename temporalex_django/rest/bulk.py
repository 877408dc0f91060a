"""Bulk jobs: one thing done to many runs, by workers; a job is started, looked at, stopped and resumed."""

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

from temporalex_django.actions.base import storage
from temporalex_django.actions.bulk_items import redact_items
from temporalex_django.actions.bulk_jobs import jobs_for
from temporalex_django.actions.registry import STEERING
from temporalex_django.actions.resume_bulk import ResumeBulk
from temporalex_django.actions.signal import SendSignal
from temporalex_django.actions.start_bulk import StartBulk
from temporalex_django.actions.stop_bulk import StopBulk
from temporalex_django.core.names import quoted
from temporalex_django.errors import WorkflowNotFound
from temporalex_django.models import BulkItem, BulkJob
from temporalex_django.rest import serializers
from temporalex_django.rest.contract import Contract, Form, Parameter, says
from temporalex_django.rest.contracts import BY_SEQ, PAGES
from temporalex_django.rest.narrowing import narrowed
from temporalex_django.rest.once import Repeatable, once
from temporalex_django.rest.views import InstanceViewSet

_ACTIONS = (SendSignal.name, *STEERING)
_OUTCOMES = {"open": "", "done": "done", "failed": "failed"}
OUTCOME = Parameter(name="outcome", help="open, done or failed.")
#: Words of ``StartBulk`` that are no inputs of an action.
_OWN = {*inspect.signature(StartBulk).parameters} - {"inputs"}


class BulkBody(serializers.ReasonBody):
    """``runs`` (run ids), or ``filter``: what ``GET instances/`` takes. ``inputs`` are those of the action.

    An action on activities or timers is done to those of the runs; ``activity`` and ``cause`` among the inputs choose.
    """

    action = fields.ChoiceField(choices=_ACTIONS)
    runs = fields.ListField(child=fields.CharField(), required=False, allow_empty=False)
    filter = fields.DictField(child=fields.CharField(), required=False, allow_empty=False)
    inputs = fields.DictField(child=fields.JSONField(allow_null=True), required=False, default=dict)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if ("runs" in attrs) == ("filter" in attrs):
            raise fields.ValidationError({"runs": ["either these, or `filter`"]})
        return attrs


def _on_jobs(
    operation: str, summary: str, answers: Mapping[int, Form | None], *query: Parameter, **more: Any
) -> Contract:
    return Contract(
        operation=operation, permission=StartBulk.permission, summary=summary, query=query, answers=answers, **more
    )


def _looks_after(operation: str, summary: str) -> Contract:
    """The contract of what is done to a job."""
    answers = {200: serializers.JobOut}
    return _on_jobs(operation, summary, answers, body=serializers.ReasonBody, scope="act", keyed=True)


class BulkViewSet(Repeatable):
    """Jobs of whoever asks; superusers for whom there are all runs see all of them.

    ``run_views``: what its ``get_queryset``, its ``filterset_class`` and its permission classes leave of runs, these
    jobs are about. ``urls.routes`` sets it.
    """

    run_views: type[InstanceViewSet] = InstanceViewSet

    def get_queryset(self) -> QuerySet[BulkJob]:
        return jobs_for(self._user, alias=storage().alias)

    @says(_on_jobs("view", "Bulk jobs, newest first", {200: serializers.JobOut}, *PAGES, several=True))
    def list(self, request: Request) -> Response:
        """One read."""
        page = self.paginate_queryset(self.get_queryset()) or ()
        return self._paged([*serializers.JobOut(page, many=True).data])

    @says(
        _on_jobs(
            StartBulk.name,
            "Do one thing to many runs",
            {201: serializers.JobOut},
            body=BulkBody,
            scope="act",
            keyed=True,
        )
    )
    @once
    def create(self, request: Request) -> Response:
        """Start a job: 201. Workers go through it; nothing is done to the runs in the request."""
        body = self._body()
        if (steering := STEERING.get(body["action"])) is not None:
            body["inputs"] = {**steering.selection_from(body.get("filter", {})), **body["inputs"]}
        runs = self._runs(body["action"], body["inputs"])
        runs.check_permissions(request)
        start = self._started(body, runs)
        return self._new(self._done(start.execute, lambda job: (job.pk, True)))

    @says(_on_jobs("view", "A bulk job as it stands", {200: serializers.JobOut}))
    def retrieve(self, request: Request, job: str) -> Response:
        """How many runs are done, failed and left."""
        return self._one(self._job(job))

    @says(_on_jobs("view", "Its runs", {200: serializers.ItemOut}, *BY_SEQ, OUTCOME, several=True))
    def items(self, request: Request, job: str) -> Response:
        """What became of each run, in the order in which workers come to them; at most three reads."""
        wanted = self._text("outcome")
        if wanted and wanted not in _OUTCOMES:
            raise ValidationError({"outcome": [OUTCOME.help]})
        after, limit = self._after()
        rows = BulkItem.objects.using(storage().alias).filter(job=self._job(job), pk__gt=after).order_by("pk")
        if wanted:
            rows = rows.filter(outcome=_OUTCOMES[wanted])
        found = [*rows[: limit + 1]]
        runs = self.run_views(request=request, headers={}, action="retrieve", kwargs={})
        there = runs.get_queryset()
        page = redact_items(
            found[:limit], self._user, alias=storage().alias, visible_runs=there, is_admitted=runs.admits
        )
        following = None
        if len(found) > limit:
            more = {"outcome": wanted} if wanted else {}
            following = self._following("bulk-items", {"after": page[-1].pk, "limit": limit, **more}, job=job)
        return Response({"next": following, "results": serializers.ItemOut(page, many=True).data})

    @says(_looks_after(StopBulk.name, "Stop it"))
    @once
    def stop(self, request: Request, job: str) -> Response:
        """200: what was done stays, the other runs are left alone until it is resumed."""
        return self._one(self._kept(StopBulk(job, by=self._actor(), **self._body())))

    @says(_looks_after(ResumeBulk.name, "Go on with it"))
    @once
    def resume(self, request: Request, job: str) -> Response:
        """200: workers go on with the runs that are left."""
        return self._one(self._kept(ResumeBulk(job, by=self._actor(), **self._body())))

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _runs(self, action: str, inputs: Mapping[str, Any]) -> InstanceViewSet:
        """The view set of the runs, as if it was asked to do that to one of them."""
        steering = STEERING.get(action)
        named = {"name": str(inputs.get("signal"))} if steering is None else {}
        method = action if steering is None else "steer"
        return self.run_views(request=self.request, headers={}, action=method, kwargs=named, steering=steering)

    def _started(self, body: dict[str, Any], runs: InstanceViewSet) -> StartBulk:
        """Raises ``ValidationError`` for inputs that the action does not take, or lacks."""
        inputs, there = body["inputs"], runs.get_queryset()
        if strange := [name for name in inputs if name in _OWN]:
            raise ValidationError({"inputs": [f"{body['action']} takes no {quoted(strange[0])}"]})
        try:
            return StartBulk(
                body["action"],
                runs=body["runs"] if "runs" in body else narrowed(runs.filterset_class, body["filter"], there),
                visible_runs=there,
                is_admitted=runs.admits,
                reason=body["reason"],
                by=self._actor(),
                **inputs,
            )
        except TypeError as exc:
            raise ValidationError({"inputs": [str(exc)]}) from None

    def _kept(self, action: StopBulk) -> BulkJob:
        return self._done(action.execute, lambda job: (job.pk, False))

    def again(self, made: UUID, *, new: bool, **names: Any) -> Response:
        job = self._job(str(made))
        return self._new(job) if new else self._one(job)

    def _new(self, job: BulkJob) -> Response:
        return self._one(job, status=201, headers={"Location": self._address("bulk-job", job=str(job.pk))})

    def _job(self, ref: str) -> BulkJob:
        try:
            job = self.get_queryset().filter(pk=UUID(ref)).first()
        except ValueError:
            job = None
        if job is None:
            raise WorkflowNotFound("there is no such bulk job")
        return job

    def _one(self, job: BulkJob, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
        return Response(serializers.JobOut(job).data, status=status, headers=headers)
