"""Runs over HTTP. Every verb is one class of ``actions``; what is read are plain querysets."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from temporalex_django import errors
from temporalex_django.actions.base import storage
from temporalex_django.actions.query import Query
from temporalex_django.actions.resume import Resume
from temporalex_django.actions.signal import SendSignal
from temporalex_django.actions.start import Start
from temporalex_django.actions.steering import OperatorRunAction
from temporalex_django.actions.targets import RunTarget, find_chain
from temporalex_django.actions.unchanged import require_unchanged
from temporalex_django.actions.update import SendUpdate, read_outcome
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.authorization import sender_key
from temporalex_django.core.attributes import parse_all
from temporalex_django.rest import serializers
from temporalex_django.rest.contract import KEY, Contract, says
from temporalex_django.rest.contracts import UPDATE_ID, WAIT, WORKFLOW, does, steering_contract, view
from temporalex_django.rest.once import key_is_id, once
from temporalex_django.rest.problems import RETRY_AFTER
from temporalex_django.rest.reading import ReadingViewSet
from temporalex_django.rest.seats import seat

DEFAULT_WAIT = 5.0
_RUN = {200: serializers.RunOut}
_UPDATE = {200: serializers.UpdateOut, 202: serializers.NoOutcomeOut}


class InstanceViewSet(ReadingViewSet):
    """``<id>`` is a run id or a business id (its newest run; ``?workflow=`` narrows it).

    Subclass it, and route it with ``urls.routes``.

    The caller is judged before the run is looked up, and that before the body.
    """

    #: What an address does that is made of ``actions.registry.STEERING``.
    steering: type[OperatorRunAction[Any]] | None = None

    @says(
        does(
            "start",
            "Start a run",
            serializers.StartBody,
            {201: serializers.RunOut},
            scope="start",
            keyed=True,
        )
    )
    @once
    def create(self, request: Request) -> Response:
        """Start a run: 201."""
        body = self._body()
        cls = workflows.find(body["workflow"]).choose(body["version"], {})
        given = parse_all(body["search_attributes"], cls.search_attributes, label=f"start of {cls.name}")
        start = Start(
            cls,
            args=body["args"],
            id=body["id"],
            value=body["value"],
            search_attributes=given,
            tags=body["tags"],
            by=self._actor(),
        )
        return self._started(self._done(start.execute, lambda target: (target.run_id, True)))

    @says(does("signal", "Send a signal", serializers.SignalBody, {202: serializers.SignalOut}, WORKFLOW, keyed=True))
    def signal(self, request: Request, id: str, name: str) -> Response:
        """202: the run reads it in its next turn."""
        target = self._target(id)
        body = self._body()
        sent = self._message_id(body)
        with key_is_id(request):
            SendSignal(target, signal=name, payload=body["payload"], id=sent, exact=True, by=self._actor()).execute()
        return Response({"id": target.workflow_id, "signal": name}, status=202)

    @says(
        does(
            "update",
            "Send an update and wait for its response",
            serializers.UpdateBody,
            _UPDATE,
            WORKFLOW,
            WAIT,
            keyed=True,
        )
    )
    def send_update(self, request: Request, id: str, name: str) -> Response:
        """200 with the response.

        202 when there is none after ``wait`` seconds: ask at its Location, or send the same id again.
        """
        target = self._target(id)
        body, wait = self._body(), self._wait(default=DEFAULT_WAIT)
        update = SendUpdate(
            target,
            update=name,
            args=body["args"],
            id=self._message_id(body),
            timeout=wait,
            by=self._actor(),
            exact=True,
            wait_slot=partial(seat, sender_key(self._user)),
        )
        try:
            with key_is_id(request):
                return Response({"id": update.message_id, "result": update.execute()})
        except errors.UpdateTimeout as exc:
            return self._not_done(exc, target=target, name=name)

    @says(view("The response to an update that was sent before", _UPDATE, WORKFLOW, UPDATE_ID))
    def outcome(self, request: Request, id: str, name: str) -> Response:
        """Of an update that was sent before, by ``?id=``."""
        target, update_id = self._target(id), request.query_params.get("id", "")
        self._view(target.row)
        try:
            return Response(
                {"id": update_id, "result": read_outcome(target, name, update_id, storage=storage(), by=self._actor())}
            )
        except errors.UpdateTimeout as exc:
            return self._not_done(exc, target=target, name=name)

    @says(does("query", "Ask the published state", serializers.QueryBody, {200: serializers.AnswerOut}, WORKFLOW))
    def query(self, request: Request, id: str, name: str) -> Response:
        """200 with the answer."""
        target = self._target(id)
        query = Query(target, query=name, args=self._body()["args"], by=self._actor())
        return Response({"result": query.execute()})

    @says(
        does(
            "resume",
            "Give a graph the event that a step waits for",
            serializers.ResumeBody,
            _RUN,
            WORKFLOW,
            permission="signal_instance",
            keyed=True,
        )
    )
    def resume(self, request: Request, id: str) -> Response:
        """200: the step has its event. 409 when none or several steps wait for it."""
        target = self._target(id)
        body = self._body()
        said = {name: body[name] for name in ("event", "step", "data")}
        resume = Resume(target, **said, id=request.headers.get(KEY), exact=True, by=self._actor())
        with key_is_id(request):
            resume.execute()
        return self._one(find_chain(target.chain_id, storage=storage()))

    @once
    def steer(self, request: Request, id: str, seq: int | None = None, message: str | None = None) -> Response:
        """200 and the run as it stands then, 201 and the new one where that is what it makes, 204 where it is gone."""
        assert self.steering is not None
        target = self._target(id)
        of: dict[str, Any] = {} if seq is None else {"seq": seq}
        of |= {} if message is None else {"message": message}
        action = self.steering(target, by=self._actor(), **{**self._body(), **of})

        def act() -> tuple[RunTarget, bool]:
            with require_unchanged(target, self._matched(request)):
                made = action.execute()
            return (made, True) if isinstance(made, RunTarget) else (self._now(target), False)

        shown, new = self._done(act, lambda made: (made[0].selected_run_id, made[1]))
        response = self._steered(shown, new=new)
        if response.data is not None and (notice := str(action.notice)):
            response.data["notice"] = notice
        return response

    def again(self, made: UUID, *, new: bool, **names: Any) -> Response:
        try:
            target = self._target(str(made))
        except errors.WorkflowNotFound:
            if new:
                raise
            return Response(status=204)
        return self._steered(target, new=new) if "id" in names else self._started(target)

    def _now(self, target: RunTarget) -> RunTarget:
        """What its business id means now, where that was asked for: a reset has made another run."""
        if target.pinned is not None:
            return target
        try:
            return find_chain(target.chain_id, storage=storage(), visible_runs=self.get_queryset())
        except errors.WorkflowNotFound:  # deleted
            return target

    def _started(self, target: RunTarget) -> Response:
        return self._one(target, status=201, headers={"Location": self._address("instance", id=target.workflow_id)})

    def _steered(self, target: RunTarget, *, new: bool) -> Response:
        if new:
            return self._one(
                target, status=201, headers={"Location": self._address("instance", id=str(target.selected_run_id))}
            )
        try:
            return self._one(target)
        except errors.WorkflowNotFound:
            return Response(status=204)

    # -- parts ---------------------------------------------------------------------------------------------------------

    @property
    def contract(self) -> Contract | None:
        return super().contract if self.steering is None or self.action != "steer" else steering_contract(self.steering)

    def _message_id(self, body: dict[str, Any]) -> str | None:
        """What a client may send the same again by: ``id`` of the body, or ``Idempotency-Key``."""
        sent: str | None = body["id"]
        key = self.request.headers.get(KEY)
        if key is not None and sent is not None:
            raise ValidationError({KEY: ["that, or `id` in the body, not both"]})
        return sent if key is None else key

    def _not_done(self, exc: errors.UpdateTimeout, *, target: RunTarget, name: str) -> Response:
        if exc.code != errors.UpdateTimeout.code:
            raise exc
        address = self._address("update", id=str(target.selected_run_id), name=name)
        body = {"id": exc.update_id, "accepted": exc.accepted, "detail": str(exc)}
        headers = {"Location": f"{address}?{urlencode({'id': exc.update_id or ''})}", "Retry-After": RETRY_AFTER}
        return Response(body, status=202, headers=headers)
