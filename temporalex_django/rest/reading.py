"""What is read of runs: lists, one run, its history, result, children and activities. Nothing is written or locked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from typing import Any

from django.db.models import F, QuerySet
from django.db.models.functions import Length
from django.utils import timezone
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from temporalex_django import errors
from temporalex_django.actions import timeline
from temporalex_django.actions.accepting import available_messages
from temporalex_django.actions.base import storage
from temporalex_django.actions.describe import ResultWaiter, describe
from temporalex_django.actions.registry import STEERING
from temporalex_django.actions.targets import RunTarget
from temporalex_django.authoring.authorization import sender_key
from temporalex_django.authoring.listing import NEWEST_FIRST, ORDERS
from temporalex_django.models import HistoryEvent
from temporalex_django.rest import serializers
from temporalex_django.rest.contract import says
from temporalex_django.rest.contracts import BY_SEQ, ORDER, PAGES, WAIT, WORKFLOW, view
from temporalex_django.rest.filters import RunFilter
from temporalex_django.rest.narrowing import narrowed
from temporalex_django.rest.pagination import fitting
from temporalex_django.rest.problems import RETRY_AFTER
from temporalex_django.rest.runs import RunViewSet
from temporalex_django.rest.seats import seat
from temporalex_django.rest.steering import operation_of
from temporalex_django.rest.types import schema_of


class ReadingViewSet(RunViewSet):
    """Runs, to be looked at."""

    #: What narrows the list: a subclass of ``RunFilter`` may have more.
    filterset_class = RunFilter

    def parameters(self) -> list[str]:
        filters = [*self.filterset_class.base_filters] if self.action == "list" else []
        return [*filters, *super().parameters()]

    @says(view("Runs, newest first", serializers.InstanceOut, ORDER, *PAGES, several=True))
    def list(self, request: Request) -> Response:
        """Three reads, at most four."""
        given = {name: self._text(name) for name in self.filterset_class.base_filters if name in request.query_params}
        order = self._text("order") or NEWEST_FIRST
        if order not in ORDERS:
            raise ValidationError({"order": [f"one of {', '.join(ORDERS)}"]})
        return self._paged(self._listed(narrowed(self.filterset_class, given, self.get_queryset()), order=order))

    @says(view("One run as it stands", serializers.InstanceDetail, WORKFLOW))
    def retrieve(self, request: Request, id: str) -> Response:
        """With an ``ETag``, which ``If-Match`` of an action takes."""
        return self._one(self._target(id))

    @says(view("Runs that this one started", serializers.InstanceOut, WORKFLOW, *PAGES, several=True))
    def children(self, request: Request, id: str) -> Response:
        """Of that run alone, not of the chain; newest first."""
        return self._paged(self._listed(self.get_queryset().filter(parent_run_id=self._target(id).selected_run_id)))

    @says(view("The history, in pages", serializers.EventOut, WORKFLOW, *BY_SEQ, several=True))
    def events(self, request: Request, id: str) -> Response:
        """A page ends earlier when it would be larger than ``BYTES_A_PAGE``."""
        target = self._target(id)
        events = HistoryEvent.objects.using(storage().alias).filter(run_id=target.selected_run_id)
        return self._by_seq("events", target, events, Length("attributes"), serializers.EventOut)

    @says(
        view("The history as people read it: a row a thing", serializers.TimelineOut, WORKFLOW, *BY_SEQ, several=True)
    )
    def timeline(self, request: Request, id: str) -> Response:
        """What began behind the event ``after``, with its end wherever that stands in the history."""
        target = self._target(id)
        after, limit = self._after()
        view = self._view(target.row)
        rows, last = timeline.timeline_page(
            target.selected_run_id, after=after, limit=limit, redactor=view, storage=storage()
        )
        following = None
        if last is not None:
            following = self._following("timeline", {"after": last, "limit": limit}, id=str(target.selected_run_id))
        now = timezone.now()
        shown = [{**asdict(row), "text": row.text(now=now, titles=timeline.titles_of(row))} for row in rows]
        return Response({"next": following, "results": serializers.TimelineOut(shown, many=True).data})

    @says(view("What it takes now", serializers.AcceptedOut, WORKFLOW, several=True))
    def messages(self, request: Request, id: str) -> Response:
        """Signals, updates and events of graphs: the schema of what goes with each, and why he may not send it."""
        run = self._row(self._target(id))
        rows = [
            {
                "kind": one.kind,
                "name": one.name,
                "step": one.step,
                "schema": schema_of(one.args_type),
                "about": one.about,
                "why_not": one.why_not(self._user, run),
            }
            for one in available_messages(run)
        ]
        return Response({"next": None, "results": serializers.AcceptedOut(rows, many=True).data})

    @says(view("What can be done to it", serializers.OperationOut, WORKFLOW, several=True))
    def operations(self, request: Request, id: str) -> Response:
        """What operators do to a run, and why it cannot be done now."""
        run = self._row(self._target(id))
        rows = [operation_of(action, run, self._user) for action in STEERING.values()]
        return Response({"next": None, "results": serializers.OperationOut(rows, many=True).data})

    @says(view("Activities without a result", serializers.ActivityOut, WORKFLOW, several=True))
    def activities(self, request: Request, id: str) -> Response:
        """Attempts, the last failure, and when they are tried next; the first hundred."""
        target = self._target(id)
        found = describe(target, storage=storage(), redactor=self._view(target.row)).activities
        return Response({"next": None, "results": serializers.ActivityOut(found, many=True).data})

    @says(
        view(
            "How it ended",
            {200: serializers.ResultOut, 202: serializers.NoResultOut},
            WORKFLOW,
            WAIT,
        )
    )
    def result(self, request: Request, id: str) -> Response:
        """200 for a closed run, with ``result`` or ``error``; 202 for an open one.

        ``wait`` (seconds) waits for its end.
        """
        target = self._target(id)
        view = self._view(target.row)
        result = ResultWaiter(
            target,
            timeout=self._wait(default=0.0),
            storage=storage(),
            wait_slot=partial(seat, sender_key(self._user)),
            redactor=view,
        )
        try:
            return Response({"status": "completed", "result": result.get()})
        except errors.ResultTimeout as exc:
            now = describe(target, storage=storage(), redactor=view)
            body = {"status": now.status, "blocked": now.blocked, "detail": str(exc)}
            return Response(body, status=202, headers={"Retry-After": RETRY_AFTER})
        except (errors.WorkflowFailed, errors.WorkflowCancelled) as exc:
            # the code without its prefix is the status: failed, terminated, timed_out, cancelled
            error = {
                "code": exc.code,
                "detail": str(exc),
                "type": getattr(exc, "type", None),
                "reason": getattr(exc, "reason", None),
            }
            return Response({"status": exc.code.removeprefix("workflow_"), "error": error})

    def _by_seq(self, address: str, target: RunTarget, rows: QuerySet[Any], size: Any, form: Any) -> Response:
        """A page of rows of a run, in the order of ``seq``; two reads."""
        after, limit = self._after()
        rows = rows.filter(seq__gt=after).order_by("seq")
        sizes: list[tuple[int, int]] = [*rows.values_list(F("seq"), size)[: limit + 1]]
        count = min(limit, fitting([size for _, size in sizes]), len(sizes))
        page: Iterable[Any] = rows.filter(seq__lte=sizes[count - 1][0]) if sizes else ()
        following = None
        if count < len(sizes):
            more = {"after": sizes[count - 1][0], "limit": limit}
            following = self._following(address, more, id=str(target.selected_run_id))
        shown = form(page, many=True, context={"view": self._view(target.row)}).data
        return Response({"next": following, "results": shown})
