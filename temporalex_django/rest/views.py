"""The view set of runs, which starts runs, sends them messages and operates them.

Each method executes one class of ``operations`` (see decision 36); reads use querysets.
"""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from temporalex_django import errors
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.authorization import sender_key
from temporalex_django.authoring.requests import StartRequest
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.core.payloads.search_attributes import parse_all
from temporalex_django.operations.base import storage
from temporalex_django.operations.idempotency import require_unchanged
from temporalex_django.operations.run_lookup import find_chain
from temporalex_django.operations.runs.messages import Query, SendSignal
from temporalex_django.operations.runs.operator_action import OperatorRunAction
from temporalex_django.operations.runs.resume import Resume
from temporalex_django.operations.runs.start import Start
from temporalex_django.operations.runs.update import SendUpdate, read_outcome
from temporalex_django.rest import serializers
from temporalex_django.rest.base import translate_key_reuse, with_idempotency_key
from temporalex_django.rest.contracts import (
    UPDATE_ID,
    WAIT,
    WORKFLOW,
    command_contract,
    operator_contract,
    read_contract,
)
from temporalex_django.rest.read import RunReadViewSet
from temporalex_django.rest.requests import IDEMPOTENCY_KEY, RETRY_AFTER, Contract, wait_slot, with_contract

DEFAULT_WAIT = 5.0
_RUN_RESPONSE = {200: serializers.RunOut}
_UPDATE_RESPONSES = {200: serializers.UpdateOut, 202: serializers.NoOutcomeOut}


class InstanceViewSet(RunReadViewSet):
    """The REST addresses of runs: it starts runs, sends them messages, operates them and reads them.

    ``<id>`` is a run id, or a business id, which means its newest run. ``?workflow=`` selects a class if several have
    that id. You can subclass it and route your subclass with ``urls.routes``.

    A request is checked in this order: the caller, the run, the body.
    """

    #: The operator action of an address that is made from ``operations.registry.STEERING``.
    steering: type[OperatorRunAction[Any]] | None = None

    @with_contract(
        command_contract(
            "start",
            "Start a run",
            serializers.StartBody,
            {201: serializers.RunOut, 200: serializers.RunOut},
            scope="start",
            keyed=True,
        )
    )
    @with_idempotency_key
    def create(self, request: Request) -> Response:
        """Start a run. Returns status 201, or 200 if the request uses the open run that has the id (``on_conflict``).

        The response is the run, with its address in ``Location``.
        """
        body = self._body()
        cls = workflows.find(body["workflow"]).choose(body["version"], {})
        search_attributes = parse_all(body["search_attributes"], cls.search_attributes, label=f"start of {cls.name}")
        start_request = StartRequest(
            workflow=cls,
            args=body["args"],
            id=body["id"],
            value=body["value"],
            search_attributes=search_attributes,
            tags=body["tags"],
            start_at=body["start_at"],
            start_delay=body["start_delay"],
            start_before=body["start_before"],
            on_conflict=body["on_conflict"],
            on_closed=body["on_closed"],
            debounce=body["debounce"],
            throttle=body["throttle"],
            headers=body["headers"],
        )
        start = Start(start_request, by=self._actor())
        target = self._run_once(start.execute, lambda target: (target.run_id, start.outcome != "existing"))
        return self._created_response(target, is_new=start.outcome != "existing")

    @with_contract(
        command_contract(
            "signal", "Send a signal", serializers.SignalBody, {202: serializers.SignalOut}, WORKFLOW, keyed=True
        )
    )
    def signal(self, request: Request, id: str, name: str) -> Response:
        """Send a signal to a run. Returns status 202. The run reads the signal in its next turn."""
        target = self._find_target(id)
        body = self._body()
        message_id = self._message_id(body)
        with translate_key_reuse(request):
            SendSignal(
                target,
                signal=name,
                payload=body["payload"],
                id=message_id,
                headers=body["headers"],
                exact=True,
                by=self._actor(),
            ).execute()
        return Response({"id": target.workflow_id, "signal": name}, status=202)

    @with_contract(
        command_contract(
            "update",
            "Send an update and wait for its response",
            serializers.UpdateBody,
            _UPDATE_RESPONSES,
            WORKFLOW,
            WAIT,
            keyed=True,
        )
    )
    def send_update(self, request: Request, id: str, name: str) -> Response:
        """Send an update to a run and wait for its response. Returns status 200 with the response.

        If there is no response after ``wait`` seconds, the status is 202. Then request the address in ``Location``, or
        send the update with that id again.
        """
        target = self._find_target(id)
        body, wait = self._body(), self._wait_seconds(default=DEFAULT_WAIT)
        update = SendUpdate(
            target,
            update=name,
            args=body["args"],
            id=self._message_id(body),
            timeout=wait,
            headers=body["headers"],
            by=self._actor(),
            exact=True,
            wait_slot=partial(wait_slot, sender_key(self._user)),
        )
        try:
            with translate_key_reuse(request):
                return Response({"id": update.message_id, "result": update.execute()})
        except errors.UpdateTimeout as exc:
            return self._pending_response(exc, target=target, name=name)

    @with_contract(
        read_contract("The response to an update that was sent before", _UPDATE_RESPONSES, WORKFLOW, UPDATE_ID)
    )
    def outcome(self, request: Request, id: str, name: str) -> Response:
        """Return the response to the update ``name`` that was sent to a run before.

        ``id`` in the path names the run; ``?id=`` is the message id of the update.
        """
        target, update_id = self._find_target(id), request.query_params.get("id", "")
        # Marks the response as showing payloads, so that the read is audited.
        self._redactor(target.row)
        try:
            return Response(
                {"id": update_id, "result": read_outcome(target, name, update_id, storage=storage(), by=self._actor())}
            )
        except errors.UpdateTimeout as exc:
            return self._pending_response(exc, target=target, name=name)

    @with_contract(
        command_contract(
            "query", "Query the published state", serializers.QueryBody, {200: serializers.AnswerOut}, WORKFLOW
        )
    )
    def query(self, request: Request, id: str, name: str) -> Response:
        """Answer the query ``name`` from the published state of a run. Returns status 200."""
        target = self._find_target(id)
        query = Query(target, query=name, args=self._body()["args"], by=self._actor())
        return Response({"result": query.execute()})

    @with_contract(
        command_contract(
            "resume",
            "Give a graph the event that a step waits for",
            serializers.ResumeBody,
            _RUN_RESPONSE,
            WORKFLOW,
            permission="signal_instance",
            keyed=True,
        )
    )
    def resume(self, request: Request, id: str) -> Response:
        """Send an event to a waiting step of a graph. Returns status 200.

        Status 409 means that no step waits for the event, or that several do.
        """
        target = self._find_target(id)
        body = self._body()
        event_fields = {name: body[name] for name in ("event", "step", "data")}
        resume = Resume(target, **event_fields, id=request.headers.get(IDEMPOTENCY_KEY), exact=True, by=self._actor())
        with translate_key_reuse(request):
            resume.execute()
        # The step may have ended the run or continued it as new: show the present run of the chain.
        return self._run_response(find_chain(target.chain_id, storage=storage()))

    @with_idempotency_key
    def operate(self, request: Request, id: str, seq: int | None = None, message: str | None = None) -> Response:
        """Perform an operation, such as cancel or retry, on a run or on the part of the run that the address names.

        ``seq`` is the command number of an activity or timer, and ``message`` the id of a failed message. Status 200
        with the run as it is then, 201 with a new run if the operation creates one, and 204 if the run was deleted.
        """
        assert self.steering is not None
        target = self._find_target(id)
        selector: dict[str, Any] = {} if seq is None else {"seq": seq}
        selector |= {} if message is None else {"message": message}
        action = self.steering(target, by=self._actor(), **{**self._body(), **selector})

        def execute() -> tuple[RunTarget, bool]:
            # The run is compared under the lock in which the action runs: no other change can come between them.
            with require_unchanged(target, self._if_match_versions(request), at_once=action.acts_at_once):
                outcome = action.execute()
            if isinstance(outcome, RunTarget):
                return (outcome, True)
            return (self._current_target(target), False)

        # A repeated request shows the run of the first response, so its id is stored with the key.
        selected_run_id, is_new = self._run_once(
            execute,
            lambda outcome: (outcome[0].selected_run_id, outcome[1]),
            at_once=action.acts_at_once,
        )
        response = self._operation_response(selected_run_id, is_new=is_new)
        if response.data is not None and (notice := str(action.notice)):
            response.data["notice"] = notice
        return response

    def repeat_response(self, object_id: UUID, *, is_new: bool, **names: Any) -> Response:
        try:
            target = self._find_target(str(object_id))
        except errors.WorkflowNotFound:
            # A new run that is gone was deleted later; without a new run, the deletion may be what the request did.
            if is_new:
                raise
            return Response(status=204)
        # An address with an id operates a run, one without it starts one.
        if "id" in names:
            return self._operation_response(target, is_new=is_new)
        return self._created_response(target, is_new=is_new)

    def _current_target(self, target: RunTarget) -> RunTarget:
        """Return the chain's current run, which may be new, as after a reset. A target found by a run id stays."""
        if target.pinned is not None:
            return target
        try:
            return find_chain(target.chain_id, storage=storage(), visible_runs=self.get_queryset())
        except errors.WorkflowNotFound:  # deleted
            return target

    def _created_response(self, target: RunTarget, *, is_new: bool) -> Response:
        """Return status 201 for a new run, and 200 for one that was open already."""
        status = 201 if is_new else 200
        return self._run_response(
            target, status=status, headers={"Location": self._url_for("instance", id=target.workflow_id)}
        )

    def _operation_response(self, target: RunTarget, *, is_new: bool) -> Response:
        if is_new:
            return self._run_response(
                target, status=201, headers={"Location": self._url_for("instance", id=str(target.selected_run_id))}
            )
        try:
            return self._run_response(target)
        except errors.WorkflowNotFound:
            return Response(status=204)

    # -- parts ---------------------------------------------------------------------------------------------------------

    @property
    def contract(self) -> Contract | None:
        if self.steering is None or self.action != "operate":
            return super().contract
        return operator_contract(self.steering)

    def _message_id(self, body: dict[str, Any]) -> str | None:
        """Return ``id`` of the body, or the ``Idempotency-Key``. Raises ``ValidationError`` for both."""
        message_id: str | None = body["id"]
        key = self.request.headers.get(IDEMPOTENCY_KEY)
        if key is not None and message_id is not None:
            raise ValidationError({IDEMPOTENCY_KEY: ["Give either this header or `id` in the body, not both."]})
        if key is None:
            return message_id
        return key

    def _pending_response(self, exc: errors.UpdateTimeout, *, target: RunTarget, name: str) -> Response:
        """Return status 202 with the address of an outcome. Raises ``exc`` if the update is not surely stored."""
        # With busy and unknown the update may not be stored, so there is no address to ask at.
        if exc.code != errors.UpdateTimeout.code:
            raise exc
        address = self._url_for("update", id=str(target.selected_run_id), name=name)
        body = {"id": exc.update_id, "accepted": exc.accepted, "detail": str(exc)}
        headers = {"Location": f"{address}?{urlencode({'id': exc.update_id or ''})}", "Retry-After": RETRY_AFTER}
        return Response(body, status=202, headers=headers)
