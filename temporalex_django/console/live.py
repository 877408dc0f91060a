"""Pages that stay true: a page polls its fragment, and gets status 204 while nothing of it has changed.

A poll shows no payloads, writes nothing, and never prolongs a session.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime
from functools import wraps
from hashlib import blake2b
from typing import Any, Final, TypeVar, cast

from django.http import HttpRequest, HttpResponse

#: The parameter of a poll: the mark of the fragment that the browser shows.
MARK: Final = "mark"
#: Fragments that one process renders at a time; further polls are told to come later.
_MAX_RENDERS = 4
_RETRY_SECONDS = 15
_renders = threading.BoundedSemaphore(_MAX_RENDERS)


def is_poll(request: HttpRequest) -> bool:
    """Return True if the request asks for a fragment of a page that is open."""
    return MARK in request.GET


class _FrozenSession:
    """The session of a poll. Django neither saves it nor sends its cookie, so it ends as if nobody had polled."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        # The middleware of sessions leaves a request alone whose session lacks these.
        if name in ("accessed", "modified"):
            raise AttributeError(name)
        return getattr(self._session, name)

    def __getitem__(self, key: str) -> Any:
        return self._session[key]

    def __contains__(self, key: str) -> bool:
        return key in self._session


def freeze_session(request: HttpRequest) -> None:
    """Keep the middleware of sessions from saving and prolonging the session of this request."""
    if hasattr(request, "session"):
        request.session = _FrozenSession(request.session)  # type: ignore[assignment] # what pages need of one


def limit_renders(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Return the view, which answers a poll with status 503 and ``Retry-After`` while too many others are rendered."""

    @wraps(view, assigned=())
    def limited(request: HttpRequest, **kwargs: Any) -> HttpResponse:
        if not is_poll(request):
            return view(request, **kwargs)
        if not _renders.acquire(blocking=False):
            return HttpResponse(status=503, headers={"Retry-After": str(_RETRY_SECONDS)})
        try:
            response = view(request, **kwargs)
            # A template is rendered later otherwise, when the place is free again.
            render = getattr(response, "render", None)
            return render() if callable(render) and not getattr(response, "is_rendered", True) else response
        finally:
            _renders.release()

    return limited


def mark_of(facts: Any, until: datetime | None) -> str:
    """Return the mark of a fragment: a digest of the facts that it shows, and the time until which it is true."""
    digest = blake2b(repr(facts).encode(), digest_size=9).hexdigest()
    return f"{digest}.{'' if until is None else int(until.timestamp())}"


def is_unchanged(request: HttpRequest, facts: Any, now: datetime) -> bool:
    """Return True if the fragment with these facts is the one that the browser shows, and still true."""
    digest, dot, until = request.GET.get(MARK, "").partition(".")
    if not dot or mark_of(facts, None) != f"{digest}.":
        return False
    return not until or (until.isascii() and until.isdigit() and len(until) < 12 and now.timestamp() < int(until))


#: Pages keep what they show for so many seconds, so that a hundred open pages cost no more than one.
KEPT_SECONDS = 5.0
#: Lists keep it for less: people watch them while they operate runs.
KEPT_SECONDS_OF_LISTS = 2.0
_MAX_KEPT = 200
_values: dict[tuple[Any, ...], tuple[float, Any]] = {}
T = TypeVar("T")


def keep(key: tuple[Any, ...], read: Callable[[], T], *, fresh: bool, seconds: float | None = None) -> T:
    """Return what ``read`` returns or, unless ``fresh``, what it returned a few seconds ago for the scope ``key``.

    ``seconds`` is how long that counts; ``KEPT_SECONDS`` by default.
    """
    read_at, value = _values.get(key, (0.0, None))
    if not fresh and value is not None and time.monotonic() - read_at < (KEPT_SECONDS if seconds is None else seconds):
        return cast("T", value)
    value = read()
    if len(_values) >= _MAX_KEPT:
        _values.clear()
    _values[key] = (time.monotonic(), value)
    return value


def unchanged() -> HttpResponse:
    """Return the response to a poll of a fragment that has not changed."""
    return HttpResponse(status=204)
