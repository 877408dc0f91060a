"""Every error as ``application/problem+json`` (RFC 9457), with the error's stable ``code``.

Used by our views alone, through ``get_exception_handler``: the host's own handler is neither read nor changed.
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

#: The first class that fits counts, so subclasses stand before their bases. What is not listed is the server's fault.
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
    (errors.RunChanged, HTTPStatus.PRECONDITION_FAILED),
    (errors.IdempotencyKeyReused, HTTPStatus.UNPROCESSABLE_ENTITY),
    (errors.TooManyUpdates, HTTPStatus.SERVICE_UNAVAILABLE),
    (errors.UpdateRejected, HTTPStatus.UNPROCESSABLE_ENTITY),
    (errors.UpdateFailed, HTTPStatus.UNPROCESSABLE_ENTITY),
    (errors.QueryFailed, HTTPStatus.UNPROCESSABLE_ENTITY),
    (errors.WorkflowNotFound, HTTPStatus.NOT_FOUND),
    (errors.HumanTaskNotFound, HTTPStatus.NOT_FOUND),
    (errors.WorkerNotFound, HTTPStatus.NOT_FOUND),
    (errors.UnknownWorkflow, HTTPStatus.NOT_FOUND),
    (errors.UnknownVersion, HTTPStatus.NOT_FOUND),
    (errors.UnknownQuery, HTTPStatus.NOT_FOUND),
    (errors.UnknownSignal, HTTPStatus.NOT_FOUND),
    (errors.InvalidId, HTTPStatus.BAD_REQUEST),
    (errors.PayloadError, HTTPStatus.BAD_REQUEST),
    (errors.ActionNotPermitted, HTTPStatus.FORBIDDEN),
    (errors.UpdateTimeout, HTTPStatus.SERVICE_UNAVAILABLE),
    (errors.KeyMissing, HTTPStatus.SERVICE_UNAVAILABLE),  # another process may have it
)
#: Django's and DRF's errors that stand for one of ours.
_CODES = {HTTPStatus.FORBIDDEN: errors.ActionNotPermitted.code, HTTPStatus.NOT_FOUND: "not_found"}
#: Seconds after which it makes sense to ask again.
RETRY_AFTER = "1"
_MAX_DETAIL_LENGTH = 2000


def problem_handler(exc: Exception, context: dict[str, Any]) -> Response | None:
    """None for what is no expected error: Django makes a 500 of it."""
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
            "The request does not have the right form.",
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


def _problem_response(exc: errors.TemporalexError, address: str) -> Response:
    status = next(
        (status_of_class for cls, status_of_class in STATUS_OF_ERRORS if isinstance(exc, cls)),
        HTTPStatus.INTERNAL_SERVER_ERROR,
    )
    if isinstance(exc, errors.UpdateFailed) and not exc.accepted:  # its validator failed: the sender is not to blame
        status = HTTPStatus.INTERNAL_SERVER_ERROR
    if isinstance(exc, errors.UpdateRejected) and exc.path is not None:
        status = HTTPStatus.BAD_REQUEST
    title = type(exc)().message.replace("`", "")  # the first sentence of its class
    extensions: dict[str, Any] = {}
    if isinstance(exc, errors.UpdateTimeout) and exc.update_id:
        extensions["update_id"] = exc.update_id
    elif isinstance(exc, errors.RunChanged):
        extensions["changes"] = exc.changes
    elif isinstance(exc, errors.AmbiguousId):
        extensions["candidates"] = exc.candidates
    elif isinstance(exc, errors.UnknownSignal):
        extensions["known"] = exc.known
    elif isinstance(exc, errors.UpdateFailed) and exc.reference:
        extensions["reference"] = exc.reference
    elif isinstance(exc, errors.PayloadError) and exc.path is not None:
        extensions["path"] = exc.path
    elif isinstance(exc, errors.UpdateRejected):
        extensions = {
            name: member for name in ("reason", "accepts", "path") if (member := getattr(exc, name)) is not None
        }
    body = _problem_body(status, code=exc.code, title=title, detail=str(exc), address=address, **extensions)
    headers = {"Retry-After": RETRY_AFTER} if status == HTTPStatus.SERVICE_UNAVAILABLE else None
    return Response(body, status=status, headers=headers, content_type=MEDIA_TYPE)


def _escape_unencodable(value: Any) -> Any:
    """What forms say may quote what no encoding can write."""
    if isinstance(value, Mapping):
        return {_escape_unencodable(str(name)): _escape_unencodable(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_escape_unencodable(member) for member in value]
    return str(value)[:_MAX_DETAIL_LENGTH].encode("utf-8", "backslashreplace").decode()


def _problem_body(
    status: HTTPStatus, *, code: str, title: str, detail: str, address: str, **extensions: Any
) -> dict[str, Any]:
    detail = detail if len(detail) <= _MAX_DETAIL_LENGTH else f"{detail[:_MAX_DETAIL_LENGTH]}…"
    return {
        "type": f"urn:temporalex:{code}",
        "title": title,
        "status": int(status),
        "detail": detail.encode("utf-8", "backslashreplace").decode(),  # it may quote what no encoding can write
        "instance": address,
        "code": code,
        **extensions,
    }
