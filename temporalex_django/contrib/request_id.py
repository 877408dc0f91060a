"""The id of a web request, in the log lines of the request and of the runs that it causes.

    MIDDLEWARE = ["temporalex_django.contrib.request_id.RequestIdMiddleware", ...]
    TEMPORALEX = {"INTERCEPTORS": ["temporalex_django.contrib.request_id.RequestId"]}

The middleware reads the header that the setting ``REQUEST_ID_HEADER`` names. The interceptor sends the id as the header
``request-id`` with each start and message. The formatters of ``contrib.logs`` add it to lines as ``request_id``.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.utils.decorators import sync_and_async_middleware

from temporalex_django.conf import get_settings
from temporalex_django.interceptors import AttemptCall, ClientCall, Interceptor, WorkflowCode

HEADER = "request-id"
_MAX_LENGTH = 64
_INVALID_CHARS = re.compile(r"[^A-Za-z0-9\-_.:/+=@]")
#: Runs whose request ids a process remembers for its log lines: those that it ran last.
_MOST_RUNS = 10_000

_current: ContextVar[str] = ContextVar("temporalex_request_id", default="")
_of_runs: OrderedDict[str, str] = OrderedDict()


def request_id(meta: Mapping[str, Any]) -> str:
    """Return the id of the HTTP request, from the header that ``REQUEST_ID_HEADER`` names.

    ``meta`` is ``request.META``. Characters that do not belong in an id are removed. The id is empty if there is no
    such header.
    """
    header = get_settings().REQUEST_ID_HEADER
    if header is None:
        return ""
    header_text = str(meta.get(f"HTTP_{header.upper().replace('-', '_')}") or "")
    return _INVALID_CHARS.sub("", header_text[:_MAX_LENGTH])


def current_request_id(run_id: str | None = None) -> str:
    """Return the request id of the present request or activity, or of a run that this process has run lately.

    It is empty if there is none.
    """
    return (_of_runs.get(run_id, "") if run_id is not None else "") or _current.get()


@contextmanager
def use_request_id(value: str) -> Iterator[None]:
    """Return a context manager in whose block ``value`` is the id of the present request."""
    token = _current.set(value)
    try:
        yield
    finally:
        _current.reset(token)


@sync_and_async_middleware
def RequestIdMiddleware(get_response: Any) -> Any:  # noqa: N802 - Django names middleware like a class
    """Keep the id of each request while it is handled."""
    if iscoroutinefunction(get_response):

        async def handle_async(request: Any) -> Any:
            with use_request_id(request_id(request.META)):
                return await get_response(request)

        return handle_async

    def handle(request: Any) -> Any:
        with use_request_id(request_id(request.META)):
            return get_response(request)

    return handle


class RequestId(Interceptor):
    """The interceptor that sends the id of the present web request as the header ``request-id``.

    A start or a message that has the header keeps its own.
    """

    @contextmanager
    def client_call(self, call: ClientCall) -> Iterator[None]:
        """Return a context manager for a call. It adds the id of the present request to the headers."""
        if value := _current.get():
            call.headers.setdefault(HEADER, value)
        yield

    @contextmanager
    def workflow_code(self, code: WorkflowCode) -> Iterator[None]:
        """Return a context manager for workflow code. It remembers the id of the request that started the run."""
        _remember(code.run_id, code.run_headers)
        yield

    @contextmanager
    def activity_attempt(self, attempt: AttemptCall) -> Iterator[None]:
        """Return a context manager for an attempt, in whose block log lines have the id of the causing request."""
        _remember(attempt.run_id, attempt.headers)
        with use_request_id(attempt.headers.get(HEADER, "")):
            yield


def _remember(run_id: str, headers: Mapping[str, str]) -> None:
    value = headers.get(HEADER)
    if value is None:
        return
    _of_runs[run_id] = value
    _of_runs.move_to_end(run_id)
    # Two threads may do this at once; a run that is forgotten early costs its log lines the id.
    while len(_of_runs) > _MOST_RUNS:
        _of_runs.popitem(last=False)
