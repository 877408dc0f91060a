"""Read access to runs: lists, one run, its history, result, children and activities. It writes and locks nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, get_args, get_type_hints

from django.db.models import F, QuerySet
from django.db.models.functions import Length
from django.utils import timezone
from rest_framework import serializers as fields
from rest_framework.exceptions import ValidationError
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from temporalex_django import errors
from temporalex_django.access import is_unfiltered, policy
from temporalex_django.authoring.authorization import APP, sender_key
from temporalex_django.authoring.run_filters import NEWEST_FIRST, ORDERS
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.core.history.events import HistoryEvent as Event
from temporalex_django.forms.run_filters import RunFilter
from temporalex_django.models import HistoryEvent
from temporalex_django.operations.base import storage
from temporalex_django.operations.read import timeline
from temporalex_django.operations.read.describe import ResultWaiter, available_messages, describe, history_of
from temporalex_django.operations.read.failure_groups import failure_groups
from temporalex_django.operations.read.overview import Overview, load_overview
from temporalex_django.operations.registry import STEERING
from temporalex_django.present.problems import failure_diagnosis
from temporalex_django.present.project_view import FailureGroup
from temporalex_django.present.view_models import Diagnosis, Severity
from temporalex_django.rest import serializers
from temporalex_django.rest.contracts import BY_SEQ, ORDER, PAGES, WAIT, WORKFLOW, read_contract
from temporalex_django.rest.lists import count_fitting, filter_runs
from temporalex_django.rest.requests import RETRY_AFTER, wait_slot, with_contract
from temporalex_django.rest.runs import RunViewSet, describe_operation
from temporalex_django.rest.serializers import RecordOut, schema_of


class FailureGroupOut(RecordOut):
    """A group of failures with one cause in one workflow class, background task or destination.

    - ``kind``: what failed: an ``activity`` that is retried, a ``run``, a ``blocked`` run, a background ``task``, or an
      outgoing message (``dead_letter``).
    - ``cause``: the error, file and line of one of the failures. The filter ``cause`` of runs takes it.
    - ``fault``: the key of the group. It has no line.
    - ``count``: the number of failures. If ``is_bounded`` is true, there may be more.
    - ``since``, ``last`` and ``next_attempt``: the times of the first and the last failure, and of the next attempt.
    - ``example``: the business id of one of the runs, or the id of a task or a message.
    - ``text`` and ``next_step``: the sentences of ``doctor`` about the group.
    """

    record = FailureGroup
    names = (
        *("workflow", "activity", "cause", "fault", "code", "count", "is_bounded"),
        *("since", "last", "next_attempt", "example", "waits_for"),
    )

    kind = fields.ChoiceField(choices=get_args(get_type_hints(FailureGroup)["kind"]))
    text = fields.CharField()
    next_step = fields.CharField()


class OverviewProblemOut(RecordOut):
    """One finding of the overview, in the words of ``doctor``; ``headline`` is short, and may be empty."""

    record = Diagnosis
    names = ("code", "text", "headline", "next_step", "evidence", "about", "count", "since", "next_attempt")

    severity = fields.ChoiceField(choices=get_args(Severity))


class OverviewOut(RecordOut):
    """The overview of the project: seven numbers, and the worst problems.

    Numbers that the caller may not see are null. ``failed_bars`` are failed runs per half-hour, the oldest first.
    """

    record = Overview
    names = (
        *("at", "open", "stuck", "failed", "open_tasks", "overdue_tasks", "longest_wait"),
        *("workers", "lost_workers", "schedules", "more_problems", "is_empty"),
    )

    failed_bars = fields.ListField(child=fields.IntegerField())
    problems = OverviewProblemOut(many=True)


class RunReadViewSet(RunViewSet):
    """The REST addresses that read runs: lists, one run, and its history, timeline, result, messages and activities."""

    #: The filters of the list: ``RunFilter``, or your subclass of it.
    filterset_class: type[RunFilter] = RunFilter

    @with_contract(read_contract("Runs, newest first", serializers.InstanceOut, ORDER, *PAGES, several=True))
    def list(self, request: Request) -> Response:
        """Return runs that match the filters, newest first unless ``order`` says otherwise. At most four reads."""
        filters = {
            name: self._text_parameter(name)
            for name in self.filterset_class.base_filters
            if name in request.query_params
        }
        order = self._text_parameter("order") or NEWEST_FIRST
        if order not in ORDERS:
            raise ValidationError({"order": [f"Choose one of {', '.join(ORDERS)}."]})
        return self._page_response(
            self._represent_page(filter_runs(self.filterset_class, filters, self.get_queryset()), order=order)
        )

    @with_contract(read_contract("One run", serializers.InstanceDetail, WORKFLOW))
    def retrieve(self, request: Request, id: str) -> Response:
        """Return one run, with an ``ETag`` that you can send as ``If-Match`` of an operation."""
        return self._run_response(self._find_target(id))

    @with_contract(read_contract("Failures grouped by cause", FailureGroupOut, several=True))
    def failures(self, request: Request) -> Response:
        """Return the groups of failures with one cause, of the runs that the caller may see. At most six reads.

        Background tasks belong to no run. Their groups are included if the caller may see all runs and background
        tasks, and those of outgoing messages if the caller may see these.
        """
        runs = self.get_queryset()
        now = timezone.now()
        permissions = {"task": f"{APP}.view_enqueuedtask", "dead_letter": f"{APP}.view_outbox"}
        rows = [
            {**asdict(group), "text": diagnosis.text, "next_step": diagnosis.next_step}
            for group in failure_groups(storage().alias, None if is_unfiltered(runs) else runs, now=now)
            if group.kind not in permissions or policy().permits(self._user, permissions[group.kind])
            for diagnosis in (failure_diagnosis(group, now),)
        ]
        return Response({"next": None, "results": FailureGroupOut(rows, many=True).data})

    @with_contract(read_contract("The state of the project in numbers, and what is wrong", OverviewOut))
    def overview(self, request: Request) -> Response:
        """Return the overview of what the caller may see, as the console shows it. About twenty reads."""
        runs = self.get_queryset()
        return Response(OverviewOut(load_overview(self._user, None if is_unfiltered(runs) else runs)).data)

    @with_contract(read_contract("Runs that this one started", serializers.InstanceOut, WORKFLOW, *PAGES, several=True))
    def children(self, request: Request, id: str) -> Response:
        """Return the runs that this run started, newest first.

        Runs that other runs of its chain started are not among them.
        """
        return self._page_response(
            self._represent_page(self.get_queryset().filter(parent_run_id=self._find_target(id).selected_run_id))
        )

    @with_contract(read_contract("The history, in pages", serializers.EventOut, WORKFLOW, *BY_SEQ, several=True))
    def events(self, request: Request, id: str) -> Response:
        """Return a page of the history of a run, in the order of ``seq``.

        The page ends earlier if it would exceed ``MAX_PAGE_BYTES``.
        """
        target = self._find_target(id)
        told_events = history_of(target, storage=storage())
        if told_events is not None:
            return self._told_page(target, told_events)
        events = HistoryEvent.objects.using(storage().alias).filter(run_id=target.selected_run_id)
        return self._seq_page("events", target, events, Length("attributes"), serializers.EventOut)

    def _told_page(self, target: RunTarget, events: Sequence[Event]) -> Response:
        """Return a page of ``events``, the whole history of a run on a cluster."""
        after_seq, limit = self._page_bounds()
        redactor, later = self._redactor(target.row), [event for event in events if event.number > after_seq]
        rendered: Sequence[Any] = [
            {
                "seq": event.number,
                "activation": event.activation,
                "kind": event.kind,
                "at": event.at,
                "attributes": redactor.redact_attributes(event.attributes, kind=event.kind),
            }
            for event in later[:limit]
        ]
        rendered = rendered[: count_fitting([len(JSONRenderer().render(row)) for row in rendered])]
        next_url = None
        if len(rendered) < len(later):
            query = {"after": rendered[-1]["seq"], "limit": limit}
            next_url = self._next_url("events", query, id=str(target.selected_run_id))
        return Response({"next": next_url, "results": rendered})

    @with_contract(
        read_contract(
            "The timeline: one row for each thing that happened",
            serializers.TimelineOut,
            WORKFLOW,
            *BY_SEQ,
            several=True,
        )
    )
    def timeline(self, request: Request, id: str) -> Response:
        """Return a page of the timeline of a run: a row for each activity, timer, child, message or other thing.

        The page begins after the event with the number ``after``. Each row is complete, wherever its end is in the
        history.
        """
        target = self._find_target(id)
        after_seq, limit = self._page_bounds()
        redactor = self._redactor(target.row)
        rows, last_seq = timeline.timeline_page(
            target, after=after_seq, limit=limit, redactor=redactor, storage=storage()
        )
        next_url = None
        if last_seq is not None:
            next_url = self._next_url("timeline", {"after": last_seq, "limit": limit}, id=str(target.selected_run_id))
        now = timezone.now()
        rendered = [{**asdict(row), "text": row.text(now=now, titles=timeline.titles_of(row))} for row in rows]
        return Response({"next": next_url, "results": serializers.TimelineOut(rendered, many=True).data})

    @with_contract(read_contract("What it accepts now", serializers.AcceptedOut, WORKFLOW, several=True))
    def messages(self, request: Request, id: str) -> Response:
        """Return the messages that the run accepts now: signals, updates and events of graphs.

        Each has the schema of its payload, and the reason why the caller may not send it, if there is one.
        """
        run = self._load_run(self._find_target(id))
        rows = [
            {
                "kind": message.kind,
                "name": message.name,
                "step": message.step,
                "schema": schema_of(message.args_type),
                "returns": schema_of(message.answer_type),
                "about": message.about,
                "why_not": message.why_not(self._user, run),
            }
            for message in available_messages(run)
        ]
        return Response({"next": None, "results": serializers.AcceptedOut(rows, many=True).data})

    @with_contract(read_contract("What you can do to it", serializers.OperationOut, WORKFLOW, several=True))
    def operations(self, request: Request, id: str) -> Response:
        """Return the operations on a run.

        Each has the reason why the caller cannot perform it now, if there is one.
        """
        run = self._load_run(self._find_target(id))
        rows = [describe_operation(action, run, self._user) for action in STEERING.values()]
        return Response({"next": None, "results": serializers.OperationOut(rows, many=True).data})

    @with_contract(read_contract("Activities without a result", serializers.ActivityOut, WORKFLOW, several=True))
    def activities(self, request: Request, id: str) -> Response:
        """Return the activities of a run that have no result yet: the first hundred.

        Each has its attempts, its last failure, and the time of its next attempt. For a run on a cluster that does not
        answer, the status is 503.
        """
        target = self._find_target(id)
        description = describe(target, storage=storage(), redactor=self._redactor(target.row))
        if description.activities_error is not None:
            raise errors.UpdateTimeout(description.activities_error, code="unknown")
        return Response({"next": None, "results": serializers.ActivityOut(description.activities, many=True).data})

    @with_contract(
        read_contract(
            "How it ended",
            {200: serializers.ResultOut, 202: serializers.NoResultOut},
            WORKFLOW,
            WAIT,
        )
    )
    def result(self, request: Request, id: str) -> Response:
        """Return how a run ended.

        Status 200 for a closed run, with ``result`` or ``error``; status 202 for an open one. With ``wait`` (in
        seconds) the request waits for the end.
        """
        target = self._find_target(id)
        redactor = self._redactor(target.row)
        waiter = ResultWaiter(
            target,
            timeout=self._wait_seconds(default=0.0),
            storage=storage(),
            # Every wait holds a thread of the web server.
            wait_slot=partial(wait_slot, sender_key(self._user)),
            redactor=redactor,
        )
        try:
            return Response({"status": "completed", "result": waiter.get()})
        except errors.ResultTimeout as exc:
            description = describe(target, storage=storage(), redactor=redactor, with_activities=False)
            body = {"status": description.status, "blocked": description.blocked, "detail": str(exc)}
            # An open run is no error: the client asks again.
            return Response(body, status=202, headers={"Retry-After": RETRY_AFTER})
        except (errors.WorkflowFailed, errors.WorkflowCancelled) as exc:
            # The code of the error without its prefix is the status: failed, terminated, timed_out, cancelled.
            error = {
                "code": exc.code,
                "detail": str(exc),
                "type": getattr(exc, "type", None),
                "reason": getattr(exc, "reason", None),
            }
            return Response({"status": exc.code.removeprefix("workflow_"), "error": error})

    def _seq_page(
        self, url_name: str, target: RunTarget, rows: QuerySet[Any], size: Any, serializer_class: Any
    ) -> Response:
        """Return a page of rows by ``seq``, limited by their ``size`` (an expression for bytes). Two reads."""
        after_seq, limit = self._page_bounds()
        rows = rows.filter(seq__gt=after_seq).order_by("seq")
        # The first read gets sizes alone, so that a page of large payloads is never loaded and then dropped.
        sizes: list[tuple[int, int]] = [*rows.values_list(F("seq"), size)[: limit + 1]]
        count = min(limit, count_fitting([size for _, size in sizes]), len(sizes))
        page: Iterable[Any] = rows.filter(seq__lte=sizes[count - 1][0]) if sizes else ()
        next_url = None
        if count < len(sizes):
            query = {"after": sizes[count - 1][0], "limit": limit}
            next_url = self._next_url(url_name, query, id=str(target.selected_run_id))
        rendered = serializer_class(page, many=True, context={"view": self._redactor(target.row)}).data
        return Response({"next": next_url, "results": rendered})
