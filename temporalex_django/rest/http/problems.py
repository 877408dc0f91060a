"""The exception handler: errors as ``application/problem+json`` (RFC 9457), with their stable ``code``.

Only the views of this package use it. The handler of the project is neither called nor changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.views import exception_handler

from temporalex_django import errors

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
    """Return a copy of ``value`` in which characters that UTF-8 cannot encode are escaped.

    ``value`` may consist of mappings, lists and texts. Messages of validation errors may quote lone surrogates of the
    request.
    """
    if isinstance(value, Mapping):
        return {_escape_unencodable(str(name)): _escape_unencodable(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_escape_unencodable(member) for member in value]
    return str(value)[:_MAX_DETAIL_LENGTH].encode("utf-8", "backslashreplace").decode()


def _problem_body(
    status: HTTPStatus, *, code: str, title: str, detail: str, address: str, **extensions: Any
) -> dict[str, Any]:
    """Return the body of an error response by RFC 9457.

    ``code`` is the stable code of the error, ``address`` the URL of the request, and ``extensions`` are further
    members.
    """
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
