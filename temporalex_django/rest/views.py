"""Runs over HTTP. Every verb is one class of ``actions``; what is read are plain querysets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlencode

from django.db.models import QuerySet
from django.db.models.functions import Length
from django.http import HttpRequest
from rest_framework import viewsets
from rest_framework.authentication import SessionAuthentication
from rest_framework.exceptions import ValidationError
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse

from temporalex_django import errors
from temporalex_django.access import runs_for, view_of
from temporalex_django.actions.addresses import client_address, request_id
from temporalex_django.actions.base import Actor, storage
from temporalex_django.actions.cancel import Cancel
from temporalex_django.actions.describe import Result, describe, described, live_workers
from temporalex_django.actions.query import Query
from temporalex_django.actions.resume import Resume
from temporalex_django.actions.signal import SendSignal
from temporalex_django.actions.start import Start
from temporalex_django.actions.targets import RunTarget, find, find_chain
from temporalex_django.actions.terminate import Terminate
from temporalex_django.actions.update import SendUpdate, outcome_of
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.binding import Description
from temporalex_django.authoring.people import Person
from temporalex_django.models import HistoryEvent, Instance, Status
from temporalex_django.rest import serializers
from temporalex_django.rest.auditing import Audited
from temporalex_django.rest.pagination import NewestFirst, fitting
from temporalex_django.rest.parsing import BoundedJSON
from temporalex_django.rest.permissions import InstancePermission
from temporalex_django.rest.problems import RETRY_AFTER, problem_handler
from temporalex_django.rest.seats import seat

if TYPE_CHECKING:
    GenericViewSet = viewsets.GenericViewSet[Instance]
else:
    GenericViewSet = viewsets.GenericViewSet  # generic in the stubs only

APP_NAME = "temporalex_rest"
DEFAULT_WAIT = 5.0
LONGEST_WAIT = 60.0
EVENTS_A_PAGE = 200
MOST_EVENTS_A_PAGE = 1000
_UNREAD = ("args", "carried_messages", "published", "closing", "snapshot", "metadata", "search_attributes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What ``InstanceOut`` shows."""

    described: Description
    run: Instance
    url: str


class InstanceViewSet(Audited, GenericViewSet):
    """``<id>`` is a run id or a business id (its newest run; ``?workflow=`` narrows it).

    Subclass it, and route it with ``urls.routes``.

    The caller is judged before the run is looked up, and that before the body.
    """

    parser_classes = (BoundedJSON,)
    renderer_classes = (JSONRenderer,)
    permission_classes = (InstancePermission,)
    pagination_class = NewestFirst
    metadata_class = None  # OPTIONS: DRF's would describe forms that we do not have
    filter_backends = ()  # the host's default ones are for his own views
    queryset = Instance.objects.none()

    def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Request:
        """What a client says about the encoding is not asked for.

        JSON and addresses are UTF-8, and some of Python's codecs are no texts.
        """
        request.encoding = "utf-8"
        return super().initialize_request(request, *args, **kwargs)

    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], Response | None]:
        return problem_handler

    # -- reading -------------------------------------------------------------------------------------------------------

    def list(self, request: Request) -> Response:
        """Newest first; ``status`` (several, with commas), ``workflow`` and ``queue`` narrow it. Two reads."""
        store = storage()
        runs = self.filter_queryset(self.get_queryset()).defer(*_UNREAD)
        if wanted := [s for s in request.query_params.get("status", "").split(",") if s]:
            if unknown := set(wanted) - set(Status.values):
                raise ValidationError({"status": f"{', '.join(sorted(unknown))}: no such status"})
            runs = runs.filter(status__in=wanted)
        for name in ("workflow", "queue"):
            if value := self._text(name):
                runs = runs.filter(**{name: value})
        page: Sequence[Instance] = self.paginate_queryset(runs) or ()
        workers = live_workers(alias=store.alias) if any(run.status == Status.PENDING for run in page) else None
        shown = []
        for run in page:
            waiting = list(run.waiting_for or [])
            if workers is not None and run.status == Status.PENDING and not run.blocked:
                missing = workers.missing(workflow=run.workflow, version=run.version, queue=run.queue)
                waiting += [missing] if missing else []
            view = view_of(self._user, run)
            shown.append(self._shown(described(run, waiting_for=waiting, view=view), run))
        paginator = self.paginator
        assert isinstance(paginator, NewestFirst)
        rendered: list[Any] = [*serializers.InstanceOut(shown, many=True).data]
        return self.get_paginated_response(paginator.cut(rendered))

    def retrieve(self, request: Request, id: str) -> Response:
        """One run as it stands."""
        return Response(self._detail(self._target(id)))

    def events(self, request: Request, id: str) -> Response:
        """The history in pages: ``after`` (a seq) and ``limit``; ``next`` is the address of the following page.

        Two reads.

        A page ends earlier when it would be larger than ``BYTES_A_PAGE``.
        """
        target = self._target(id)
        view = view_of(self._user, target.row)
        after = self._number("after", default=0, most=2**31 - 1)
        limit = self._number("limit", default=EVENTS_A_PAGE, most=MOST_EVENTS_A_PAGE) or EVENTS_A_PAGE
        events = HistoryEvent.objects.using(storage().alias).filter(run_id=target.shown, seq__gt=after).order_by("seq")
        sizes = [*events.values_list("seq", Length("attributes"))[: limit + 1]]
        count = min(limit, fitting([size for _, size in sizes]), len(sizes))
        page = [*events.filter(seq__lte=sizes[count - 1][0])] if sizes else []
        following = None
        if count < len(sizes):
            address = self._address("events", str(target.shown))
            following = f"{address}?{urlencode({'after': page[-1].seq, 'limit': limit})}"
        return Response(
            {"next": following, "results": serializers.EventOut(page, many=True, context={"view": view}).data}
        )

    def result(self, request: Request, id: str) -> Response:
        """200 for a closed run, with ``result`` or ``error``; 202 for an open one.

        ``wait`` (seconds) waits for its end.
        """
        target = self._target(id)
        view = view_of(self._user, target.row)
        result = Result(target, timeout=self._wait(default=0.0), storage=storage(), seat=seat, view=view)
        try:
            return Response({"status": "completed", "result": result.get()})
        except errors.ResultTimeout as exc:
            now = describe(target, storage=storage(), view=view)
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

    # -- writing -------------------------------------------------------------------------------------------------------

    def create(self, request: Request) -> Response:
        """Start a run: 201."""
        body = self._body(serializers.StartBody)
        cls = workflows.find(body["workflow"]).choose(body["version"], {})
        target = Start(cls, args=body["args"], id=body["id"], value=body["value"], by=self._actor()).execute()
        headers = {"Location": self._address("instance", target.workflow_id)}
        return Response(self._detail(target), status=201, headers=headers)

    def signal(self, request: Request, id: str, name: str) -> Response:
        """202: the run reads it in its next turn."""
        target = self._target(id)
        body = self._body(serializers.SignalBody)
        SendSignal(target, signal=name, payload=body["payload"], id=body["id"], exact=True, by=self._actor()).execute()
        return Response({"id": target.workflow_id, "signal": name}, status=202)

    def send_update(self, request: Request, id: str, name: str) -> Response:
        """200 with the response.

        202 when there is none after ``wait`` seconds: ask at its Location, or send the same id again.
        """
        target = self._target(id)
        body, wait = self._body(serializers.UpdateBody), self._wait(default=DEFAULT_WAIT)
        update = SendUpdate(
            target, update=name, args=body["args"], id=body["id"], timeout=wait, by=self._actor(), exact=True, seat=seat
        )
        try:
            return Response({"id": update.id, "result": update.execute()})
        except errors.UpdateTimeout as exc:
            return self._not_done(exc, target=target, name=name)

    def outcome(self, request: Request, id: str, name: str) -> Response:
        """Of an update that was sent before, by ``?id=``."""
        target, update_id = self._target(id), request.query_params.get("id", "")
        try:
            return Response(
                {"id": update_id, "result": outcome_of(target, name, update_id, storage=storage(), by=self._actor())}
            )
        except errors.UpdateTimeout as exc:
            return self._not_done(exc, target=target, name=name)

    def query(self, request: Request, id: str, name: str) -> Response:
        """200 with the answer."""
        target = self._target(id)
        query = Query(target, query=name, args=self._body(serializers.QueryBody)["args"], by=self._actor())
        return Response({"result": query.execute()})

    def resume(self, request: Request, id: str) -> Response:
        """200: the step has its event. 409 when none or several steps wait for it."""
        target = self._target(id)
        body = self._body(serializers.ResumeBody)
        Resume(target, event=body["event"], step=body["step"], data=body["data"], by=self._actor()).execute()
        return Response(self._detail(find_chain(target.chain_id, storage=storage())))

    def cancel(self, request: Request, id: str) -> Response:
        """202: a graph is cancelled, a function workflow decides what it does about it."""
        target = self._target(id)
        Cancel(target, reason=self._body(serializers.ReasonBody)["reason"], by=self._actor()).execute()
        return Response({"id": target.workflow_id}, status=202)

    def terminate(self, request: Request, id: str) -> Response:
        """200: it is closed."""
        target = self._target(id)
        Terminate(target, reason=self._body(serializers.ReasonBody)["reason"], by=self._actor()).execute()
        return Response(self._detail(target))

    # -- parts ---------------------------------------------------------------------------------------------------------

    def get_queryset(self) -> QuerySet[Instance]:
        """The runs that there are for the user: the others are 404. A subclass may narrow them further."""
        alias = storage().alias
        narrowed = runs_for(self._user, alias=alias)
        return Instance.objects.using(alias) if narrowed is None else narrowed

    def _target(self, ref: str) -> RunTarget:
        """Among ``get_queryset``; then ``has_object_permission`` of the permission classes is asked."""
        target = find(ref, storage=storage(), workflow=self._text("workflow") or None, among=self.get_queryset())
        self.check_object_permissions(self.request, target.row)
        return target

    @property
    def _user(self) -> Person:
        return cast("Person", self.request.user)

    def sent_by_program(self, request: Request) -> bool:
        """Whether a program sends this and no person: all that is not authenticated by the session of a browser."""
        return not isinstance(request.successful_authenticator, SessionAuthentication)

    def _actor(self) -> Actor:
        request = self.request
        return Actor(
            user=request.user,
            source="rest",
            address=client_address(request.META),
            request_id=request_id(request.META),
            program=self.sent_by_program(request),
        )

    def _body(self, form: type[serializers.Base]) -> dict[str, Any]:
        data = self.request.data
        parsed = form(data={} if data is None else data)
        parsed.is_valid(raise_exception=True)
        return dict(parsed.validated_data)

    def _detail(self, target: RunTarget) -> Any:
        store = storage()
        run = Instance.objects.using(store.alias).defer(*_UNREAD).filter(pk=target.shown).first()
        if run is None:  # deleted since it was found
            raise errors.WorkflowNotFound(f"{target.workflow} {target.workflow_id} is gone")
        view = view_of(self._user, run)
        return serializers.InstanceDetail(self._shown(describe(target, storage=store, run=run, view=view), run)).data

    def _shown(self, what: Description, run: Instance) -> Shown:
        return Shown(described=what, run=run, url=self._address("instance", what.run_id))

    def _address(self, view: str, ref: str, **more: str) -> str:
        match = self.request.resolver_match
        namespace = match.namespace if match is not None else APP_NAME
        return reverse(f"{namespace}:{view}" if namespace else view, kwargs={"id": ref, **more}, request=self.request)

    def _not_done(self, exc: errors.UpdateTimeout, *, target: RunTarget, name: str) -> Response:
        if exc.code != errors.UpdateTimeout.code:
            raise exc
        address = self._address("update", str(target.shown), name=name)
        body = {"id": exc.update_id, "accepted": exc.accepted, "detail": str(exc)}
        headers = {"Location": f"{address}?{urlencode({'id': exc.update_id or ''})}", "Retry-After": RETRY_AFTER}
        return Response(body, status=202, headers=headers)

    def _wait(self, *, default: float) -> float:
        given = self.request.query_params.get("wait")
        try:
            wait = default if given is None else float(given)
        except ValueError:
            wait = -1.0
        if not 0 <= wait <= LONGEST_WAIT:
            raise ValidationError({"wait": f"a number of seconds from 0 to {LONGEST_WAIT:g}"})
        return wait

    def _text(self, name: str) -> str:
        """A parameter that is compared with a column."""
        value: str = self.request.query_params.get(name, "")
        if not value.isprintable():
            raise ValidationError({name: "printable characters"})
        return value

    def _number(self, name: str, *, default: int, most: int) -> int:
        given = self.request.query_params.get(name)
        if given is None:
            return default
        if not given.isascii() or not given.isdigit() or len(given) > len(str(most)) or int(given) > most:
            raise ValidationError({name: f"a whole number from 0 to {most}"})
        return int(given)
