"""Requests over HTTP: contracts, parsing, permissions, and problems as answers."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import IO, TYPE_CHECKING, Any, Literal, TypeVar, cast

from django.core.exceptions import PermissionDenied
from django.http import Http404, QueryDict
from rest_framework import exceptions, serializers
from rest_framework.exceptions import APIException, ParseError, ValidationError
from rest_framework.parsers import BaseParser
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.settings import api_settings
from rest_framework.throttling import SimpleRateThrottle
from rest_framework.views import APIView, exception_handler

from temporalex_django import errors
from temporalex_django.access import Operation, policy
from temporalex_django.authoring.authorization import APP
from temporalex_django.conf import get_settings
from temporalex_django.core.names import quoted
from temporalex_django.operations.runs.resume import has_step_role

if TYPE_CHECKING:
    SerializerType = type[serializers.Serializer[Any]]
else:
    SerializerType = type

# --- contracts --------------------------------------------------------------------------------------------------------
#
# Each declares, in one place, what a method of a route accepts and what it answers. Permissions, checks of parameters
# and the OpenAPI description are derived from it.

#: Header by which a request that is sent again is recognized.
IDEMPOTENCY_KEY = "Idempotency-Key"
F = TypeVar("F", bound=Callable[..., Any])
Scope = Literal["read", "start", "message", "act"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """The declaration of a query parameter that a REST method accepts: its name, type and help text."""

    name: str
    kind: Literal["string", "integer", "number", "boolean", "date-time"] = "string"
    help: str = ""
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """The contract of one method of one route.

    - ``operation``: the name of the operation about which the access policy is asked.
    - ``permission``: the code name of the permission that it needs. If empty, every user who is logged in may call it,
      and gets only what belongs to them.
    - ``summary``: one line about it, for the OpenAPI description.
    - ``scope``: the throttle scope that counts it.
    - ``query`` and ``body``: the parameters, and the serializer of the body or None.
    - ``answers``: the serializer of the response for each status; None means no body.
    - ``several``: True if the response with status 200 is a page of such objects.
    - ``keyed``: True if it accepts the header ``Idempotency-Key``.
    - ``matched``: True if it accepts the header ``If-Match``.
    """

    operation: str
    permission: str
    summary: str
    scope: Scope = "read"
    query: tuple[Parameter, ...] = ()
    body: SerializerType | None = None
    answers: Mapping[int, SerializerType | None] = field(default_factory=dict)
    several: bool = False
    keyed: bool = False
    matched: bool = False

    def permission_request(self, message: str | None) -> Operation:
        permission = f"{APP}.{self.permission}" if self.permission else None
        return Operation(action=self.operation, permission=permission, message=message)


def with_contract(contract: Contract) -> Callable[[F], F]:
    """Return a decorator that sets ``contract`` on a method of a view set.

    The contract declares the permission, parameters, body and responses of the method.
    """

    def decorate(method: F) -> F:
        method.contract = contract  # type: ignore[attr-defined] # read by views and by OpenAPI
        return method

    return decorate


def reject_unknown(parameters: QueryDict, names: Iterable[str]) -> None:
    """Raise ``ValidationError`` for a query parameter that is not in ``names``, is given twice, or has no value."""
    # A misspelt filter that is ignored would list, or change, more runs than the client meant.
    allowed = [*dict.fromkeys(names)]
    for name, values in parameters.lists():
        if name not in allowed:
            hint = f"This address accepts {', '.join(allowed)}." if allowed else "This address has no parameters."
            raise ValidationError({"unknown": [f"There is no parameter {quoted(name)}. {hint}"]})
        if len(values) != 1:
            raise ValidationError({name: ["Give this parameter only once."]})
        if not values[0]:
            raise ValidationError({name: ["Enter a value, or leave the parameter out."]})


# --- problems ---------------------------------------------------------------------------------------------------------
#
# The exception handler: errors as ``application/problem+json`` (RFC 9457), with their stable ``code``.
#
# Only the views of this package use it. The handler of the project is neither called nor changed.


MEDIA_TYPE = "application/problem+json"

#: The first class that matches counts, so subclasses come before their bases. An error that is not listed gets 500.
STATUS_OF_ERRORS: tuple[tuple[type[errors.TemporalexError], HTTPStatus], ...] = (
    (errors.MessageIdTaken, HTTPStatus.CONFLICT),
    (errors.AmbiguousId, HTTPStatus.CONFLICT),
    (errors.WorkflowClosed, HTTPStatus.CONFLICT),
    (errors.RunPaused, HTTPStatus.CONFLICT),
    (errors.RunBlocked, HTTPStatus.CONFLICT),
    (errors.WorkflowSwitchedOff, HTTPStatus.CONFLICT),
    (errors.AlreadyRunning, HTTPStatus.CONFLICT),
    (errors.NotCancellable, HTTPStatus.CONFLICT),
    (errors.ResumeRefused, HTTPStatus.CONFLICT),
    (errors.ActionNotPossible, HTTPStatus.CONFLICT),
    (errors.HumanTaskClosed, HTTPStatus.CONFLICT),
    (errors.HumanTaskClaimed, HTTPStatus.CONFLICT),
    (errors.FormChanged, HTTPStatus.CONFLICT),
    (errors.NestingError, HTTPStatus.CONFLICT),
    (errors.OutcomeUnknown, HTTPStatus.CONFLICT),
    (errors.RunChanged, HTTPStatus.PRECONDITION_FAILED),
    (errors.IdempotencyKeyReused, HTTPStatus.UNPROCESSABLE_ENTITY),
    (errors.TooManyUpdates, HTTPStatus.SERVICE_UNAVAILABLE),
    (errors.UpdateRejected, HTTPStatus.UNPROCESSABLE_ENTITY),
    (errors.UpdateFailed, HTTPStatus.UNPROCESSABLE_ENTITY),
    (errors.QueryTimeout, HTTPStatus.SERVICE_UNAVAILABLE),
    (errors.HistoryGone, HTTPStatus.GONE),
    (errors.QueryFailed, HTTPStatus.UNPROCESSABLE_ENTITY),
    (errors.WorkflowNotFound, HTTPStatus.NOT_FOUND),
    (errors.HumanTaskNotFound, HTTPStatus.NOT_FOUND),
    (errors.WorkerNotFound, HTTPStatus.NOT_FOUND),
    (errors.TaskNotFound, HTTPStatus.NOT_FOUND),
    (errors.ScheduleNotFound, HTTPStatus.NOT_FOUND),
    (errors.UnknownWorkflow, HTTPStatus.NOT_FOUND),
    (errors.UnknownVersion, HTTPStatus.NOT_FOUND),
    (errors.UnknownQuery, HTTPStatus.NOT_FOUND),
    (errors.UnknownSignal, HTTPStatus.NOT_FOUND),
    (errors.InvalidId, HTTPStatus.BAD_REQUEST),
    (errors.InvalidStart, HTTPStatus.BAD_REQUEST),
    (errors.InvalidHeaders, HTTPStatus.BAD_REQUEST),
    (errors.PayloadError, HTTPStatus.BAD_REQUEST),
    (errors.ScheduleInvalid, HTTPStatus.BAD_REQUEST),
    (errors.ActionNotPermitted, HTTPStatus.FORBIDDEN),
    (errors.UpdateTimeout, HTTPStatus.SERVICE_UNAVAILABLE),
    (errors.KeyMissing, HTTPStatus.SERVICE_UNAVAILABLE),  # another process may have it
)
#: Codes for the errors of Django and DRF that mean the same as one of this package.
_CODES = {HTTPStatus.FORBIDDEN: errors.ActionNotPermitted.code, HTTPStatus.NOT_FOUND: "not_found"}
#: Seconds after which a client should ask again.
RETRY_AFTER = "1"
_MAX_DETAIL_LENGTH = 2000


def problem_handler(exc: Exception, context: dict[str, Any]) -> Response | None:
    """Return the response for an exception of a view; ``context`` has the request, as DRF passes it.

    Returns None for an unexpected exception, for which Django makes a response with status 500.
    """
    address = context["request"].get_full_path()
    if isinstance(exc, errors.TemporalexError):
        return _problem_response(exc, address)
    response = exception_handler(
        exc, context
    )  # DRF's own function, not the host's setting: headers of 401, 405 and 429
    if response is None:
        return None
    status = HTTPStatus(response.status_code)
    extensions: dict[str, Any] = {}
    if isinstance(exc, exceptions.ValidationError):
        code, detail, extensions = (
            "invalid",
            "The request is not valid: `errors` lists what to correct.",
            {"errors": _escape_unencodable(response.data)},
        )
    elif isinstance(exc, (Http404, PermissionDenied)):
        code, detail = _CODES[status], str(exc) or status.description
    else:
        assert isinstance(exc, exceptions.APIException)
        code, detail = _CODES.get(status) or str(exc.default_code), str(exc.detail)
    response.data = _problem_body(status, code=code, title=status.phrase, detail=detail, address=address, **extensions)
    response.content_type = MEDIA_TYPE
    return response


#: Members of problems beside those of RFC 9457, from which a client can act without parsing texts. They are attributes
#: of errors, and absent if the attribute has no value.
_MEMBERS_OF_ERRORS: tuple[tuple[type[errors.TemporalexError], tuple[str, ...]], ...] = (
    (errors.UpdateTimeout, ("update_id",)),
    (errors.RunChanged, ("changes",)),
    (errors.AmbiguousId, ("candidates",)),
    (errors.UnknownSignal, ("known",)),
    (errors.UpdateFailed, ("reference",)),
    (errors.PayloadError, ("path",)),
    (errors.UpdateRejected, ("reason", "accepts", "path")),
)


def _problem_response(exc: errors.TemporalexError, address: str) -> Response:
    status = _status_of(exc)
    # A title is the same for every error of a class (RFC 9457); the details of this one are in ``detail``.
    title = type(exc)().message.replace("`", "")  # the first sentence of its class
    members = {name: getattr(exc, name) for cls, names in _MEMBERS_OF_ERRORS if isinstance(exc, cls) for name in names}
    extensions = {name: member for name, member in members.items() if member is not None}
    body = _problem_body(status, code=exc.code, title=title, detail=str(exc), address=address, **extensions)
    headers = {"Retry-After": RETRY_AFTER} if status == HTTPStatus.SERVICE_UNAVAILABLE else None
    return Response(body, status=status, headers=headers, content_type=MEDIA_TYPE)


def _status_of(exc: errors.TemporalexError) -> HTTPStatus:
    if isinstance(exc, errors.UpdateFailed) and not exc.accepted:  # a fault of the validator's code, not of the sender
        return HTTPStatus.INTERNAL_SERVER_ERROR
    # The argument does not have the declared type: a malformed request, not a refusal by the validator.
    if isinstance(exc, errors.UpdateRejected) and exc.path is not None:
        return HTTPStatus.BAD_REQUEST
    for cls, status in STATUS_OF_ERRORS:
        if isinstance(exc, cls):
            return status
    return HTTPStatus.INTERNAL_SERVER_ERROR


def _escape_unencodable(value: Any) -> Any:
    """Escape characters that UTF-8 cannot encode: validation errors may quote lone surrogates."""
    if isinstance(value, Mapping):
        return {_escape_unencodable(str(name)): _escape_unencodable(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_escape_unencodable(member) for member in value]
    return str(value)[:_MAX_DETAIL_LENGTH].encode("utf-8", "backslashreplace").decode()


def _problem_body(
    status: HTTPStatus, *, code: str, title: str, detail: str, address: str, **extensions: Any
) -> dict[str, Any]:
    """Return the body of an error response by RFC 9457."""
    # Texts may quote payloads of any size.
    detail = detail if len(detail) <= _MAX_DETAIL_LENGTH else f"{detail[:_MAX_DETAIL_LENGTH]}…"
    return {
        "type": f"urn:temporalex:{code}",
        "title": title,
        "status": int(status),
        "detail": detail.encode("utf-8", "backslashreplace").decode(),  # see _escape_unencodable
        "instance": address,
        "code": code,
        **extensions,
    }


# --- parsing ----------------------------------------------------------------------------------------------------------
#
# The parser of request bodies: JSON in UTF-8 of a limited size, whatever encoding the client declares.


#: Largest size of a body as a multiple of that of a payload: JSON also has blanks, escapes and other fields.
_JSON_OVERHEAD = 4


class BodyTooLarge(APIException):
    """The request body exceeds the limit that ``BoundedJSONParser`` sets; the response has status 413."""

    status_code = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    default_code = "too_large"


class BoundedJSONParser(BaseParser):
    """Parser of JSON bodies of a limited size.

    Raises ``ParseError`` for malformed JSON, for NaN and infinities, and for JSON that is nested too deeply. Raises
    ``BodyTooLarge`` for a body above four times ``MAX_PAYLOAD_BYTES``.
    """

    media_type = "application/json"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        max_bytes = _JSON_OVERHEAD * get_settings().MAX_PAYLOAD_BYTES
        # One byte more than allowed shows that the body is too large, without reading the rest of it.
        content = stream.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise BodyTooLarge(f"The body is too large: at most {max_bytes:,} bytes are allowed.")
        try:
            return json.loads(content.decode("utf-8"), parse_constant=_reject_constant)
        # Hostile nesting must be an error of the client, not of the server.
        except RecursionError:
            raise ParseError("Malformed JSON: it is nested too deeply.") from None
        except ValueError as exc:
            raise ParseError(f"Malformed JSON: {exc}") from exc


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not valid JSON")


_lock = threading.Lock()
#: Number of waiting requests by the key of the user.
_waiting_by_user: Counter[str] = Counter()


@contextmanager
def wait_slot(user_key: str) -> Iterator[bool]:
    """Let this request wait for an outcome while the block runs, if not too many requests wait already.

    Yields True if it may wait. A slot is the permission to wait. A process has ``WAITING_REQUESTS`` of them, and one
    user may have at most half of them. ``user_key`` is the key of the user. Without a free slot it yields False, and
    the request should answer at once.
    """
    limit = get_settings().WAITING_REQUESTS
    with _lock:
        is_granted = _waiting_by_user.total() < limit and _waiting_by_user[user_key] < max(1, limit // 2)
        # True counts as 1: a request that is not granted changes nothing, here and below.
        _waiting_by_user[user_key] += is_granted
    try:
        yield is_granted
    finally:
        with _lock:
            _waiting_by_user[user_key] -= is_granted
            # Entries at zero are removed: the counter must not grow with every user that ever came.
            if not _waiting_by_user[user_key]:
                del _waiting_by_user[user_key]


# --- permissions ------------------------------------------------------------------------------------------------------
#
# The permissions and throttles of REST.
#
# A method needs the permission of its contract, and the access policy must allow the operation.


class InstancePermission(BasePermission):
    """Permission class of the REST views: it asks the access policy about the operation that a request performs.

    It asks first without a run, and then about the run that was found. It refuses users who are not logged in, whatever
    the settings of the project say.
    """

    def has_permission(self, request: Request, view: APIView) -> bool:
        operation = _requested_operation(view)
        user = request.user  # None if the project has turned UNAUTHENTICATED_USER off
        if operation is None:  # a method that the address does not have: DRF answers 405, but only to users
            return user is not None and user.is_authenticated
        # Set before the decision, since DRF takes the message from the object after a refusal.
        self.message = f"This requires the permission {operation.permission}."
        if user is None or not user.is_authenticated:
            return False
        # A user who may do this to no run is refused before the look-up, and so learns nothing about existing runs.
        return policy().allows(user, operation) or _is_step_approver(request, view, operation)

    def has_object_permission(self, request: Request, view: APIView, obj: Any) -> bool:
        requested = _requested_operation(view)
        assert requested is not None
        operation = requested.of(obj)
        self.message = f"This requires the permission {operation.permission}."
        return policy().allows(request.user, operation) or _is_step_approver(request, view, operation)


def _requested_operation(view: APIView) -> Operation | None:
    contract = getattr(view, "contract", None)
    if contract is None:
        return None
    operation: Operation = contract.permission_request(view.kwargs.get("name"))
    return operation


def _is_step_approver(request: Request, view: APIView, operation: Operation) -> bool:
    """Return True if the user has the role of a step of the graph to resume, and needs no permission.

    The result is also False for a run that does not exist, so that it does not reveal which runs exist.
    """
    if operation.action != "resume":
        return False
    visible_runs = view.get_queryset()  # type: ignore[attr-defined] # of view sets
    return has_step_role(
        request.user,
        view.kwargs["id"],
        workflow=request.query_params.get("workflow") or None,
        visible_runs=visible_runs,
    )


#: Prefix of the scopes: ``temporalex-read``, ``temporalex-start``, ``temporalex-message``, ``temporalex-act``.
SCOPE_PREFIX = "temporalex-"


class ScopeThrottle(SimpleRateThrottle):
    """Throttle that counts the requests of a user in each scope; a scope without a rate has no limit.

    The default throttles of the project apply to its own views only.
    """

    def __init__(self) -> None:
        """Do not read a rate, as the base class does: the scope is known only when a view asks."""

    def allow_request(self, request: Request, view: APIView) -> bool:
        contract = getattr(view, "contract", None)
        if contract is None:
            return True
        self.scope = f"{SCOPE_PREFIX}{contract.scope}"
        # DRF reads the rate of a throttle when it is created, but the scope of this one depends on the requested
        # method.
        self.rate = cast("str | None", api_settings.DEFAULT_THROTTLE_RATES.get(self.scope))
        if self.rate is None:
            return True
        self.num_requests, self.duration = self.parse_rate(self.rate)
        return super().allow_request(request, view)

    def get_cache_key(self, request: Request, view: APIView) -> str:
        user_key = getattr(request.user, "pk", None) or self.get_ident(request)
        return self.cache_format % {"scope": self.scope, "ident": user_key}
