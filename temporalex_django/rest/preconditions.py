"""Repeated requests over HTTP: idempotency keys and ETags."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from typing import Any, TypeVar
from uuid import UUID

from rest_framework.exceptions import ParseError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.encoders import JSONEncoder

from temporalex_django.core.names import check_message_id
from temporalex_django.errors import IdempotencyKeyReused, MessageIdTaken
from temporalex_django.operations.idempotency import DuplicateRequest, IdempotentRequest, RunVersion
from temporalex_django.rest.base import ContractViewSet
from temporalex_django.rest.contract import IDEMPOTENCY_KEY

# --- idempotency ------------------------------------------------------------------------------------------------------
#
# The header ``Idempotency-Key``, for requests that start runs or operate them.
#
# A request that is sent again with its key is not executed again, and gets the same response.


T = TypeVar("T")
Method = Callable[..., Response]


class IdempotentViewSet(ContractViewSet):
    """Base class of view sets whose methods may accept the header ``Idempotency-Key``.

    Such a method is decorated with ``with_idempotency_key``. ``idempotent_request`` is the present request if it has a
    key, or else None.
    """

    idempotent_request: IdempotentRequest | None = None

    @abstractmethod
    def repeat_response(self, object_id: UUID, *, is_new: bool, **names: Any) -> Response:
        """Return the response to a request with an ``Idempotency-Key`` that was executed before, from the present rows.

        ``object_id`` is the id of the run, job or task that the first response showed, and ``is_new`` is True if that
        request created it. ``names`` are the arguments of the URL.
        """

    def _run_once(
        self,
        execute: Callable[[], T],
        key_of_result: Callable[[T], tuple[UUID, bool]],
        *,
        at_once: bool = False,
    ) -> T:
        """Call ``execute``, and store the request's key in the same transaction (``at_once``: before it).

        ``at_once`` means that another system does the work. ``key_of_result`` returns the id of the object that the
        response shows, and True if it is new. Raises ``DuplicateRequest`` if the request was executed before.
        """
        if self.idempotent_request is None:
            return execute()
        # One transaction for the key and the action: a crash leaves both or neither.
        request = self.idempotent_request
        with request.run_once_at_once() if at_once else request.run_once() as kept_answer:
            result = execute()
            kept_answer.made, kept_answer.new = key_of_result(result)
        return result


def with_idempotency_key(method: Method) -> Method:
    """Decorate a method of a view set so that it accepts the header ``Idempotency-Key``.

    A request that is sent again with its key is not executed; the method ``repeat_response`` answers it. A request that
    was refused does not use up its key.
    """

    @wraps(method)
    def wrapper(self: IdempotentViewSet, request: Request, **names: Any) -> Response:
        key = request.headers.get(IDEMPOTENCY_KEY)
        if key is None:
            return method(self, request, **names)
        self.idempotent_request = IdempotentRequest(
            by=self._actor(), key=check_message_id(key, label=IDEMPOTENCY_KEY), request=_request_bytes(request)
        )
        try:
            # First without a lock, for the usual repetition; ``run_once`` raises the same for one that runs at the same
            # time.
            self.idempotent_request.check_duplicate()
            return method(self, request, **names)
        except DuplicateRequest as before:
            return self.repeat_response(before.object_id, is_new=before.is_new, **names)

    return wrapper


@contextmanager
def translate_key_reuse(request: Request) -> Iterator[None]:
    """Turn ``MessageIdTaken`` into ``IdempotencyKeyReused`` if the ``Idempotency-Key`` serves as the message id.

    Put it around the sending of a message. The client then gets an error about the header that it sent.
    """
    try:
        yield
    # A message stores its own id with its effect, so it needs no row for the key (see decision 25).
    except MessageIdTaken as exc:
        if IDEMPOTENCY_KEY not in request.headers:
            raise
        raise IdempotencyKeyReused(str(exc)) from exc


def _request_bytes(request: Request) -> bytes:
    """Return bytes that recognize a request that is sent again. Bodies with equal JSON give equal bytes."""
    try:
        return json.dumps([request.method, request.get_full_path(), request.data], sort_keys=True).encode()
    except RecursionError:
        raise ParseError("Malformed JSON: it is nested too deeply.") from None


# --- etags ------------------------------------------------------------------------------------------------------------
#
# The headers ``ETag`` and ``If-Match``.
#
# A tag contains the version of the run or schedule that a client has seen. So an operation can be refused if it has
# changed. For a run, the error says what has changed.


_PART_COUNT = 6
_ANY = "*"


def etag_of(version: RunVersion, body: Any) -> str:
    """Return the ``ETag`` of a response about a run.

    It contains the version of the run, with which ``If-Match`` is compared, and a digest of ``body``.
    """
    digest = _digest(body)
    paused = "paused" if version.paused else ""
    return f'"{version.run_id.hex}.{version.events}.{version.status}.{version.blocked}.{paused}.{digest}"'


def _digest(body: Any) -> str:
    # The digest is for caches only: ``If-Match`` compares the version, and ignores changes of other fields.
    return hashlib.sha256(json.dumps(body, cls=JSONEncoder).encode("utf-8", "replace")).hexdigest()[:12]


def schedule_etag(changed_at: datetime, body: Any) -> str:
    """Return the ``ETag`` of a response about a schedule.

    It contains the time at which the definition was changed, with which ``If-Match`` is compared, and a digest of
    ``body``.
    """
    return f'"{changed_at.isoformat()}.{_digest(body)}"'


def parse_schedule_if_match(header: str) -> list[datetime] | None:
    """Return the times of the last change that a header ``If-Match`` about a schedule accepts; None for ``*``.

    None means that any state of the schedule is accepted. Tags that this package has not made are left out.
    """
    if header.strip() == _ANY:
        return None
    times = []
    for tag_text in header.split(","):
        try:
            times.append(datetime.fromisoformat(_tag_content(tag_text).rpartition(".")[0]))
        except ValueError:
            continue
    return times


def _tag_content(tag: str) -> str:
    """Return an entity tag without quotes and ``W/``: proxies that compress responses weaken tags."""
    return tag.strip().removeprefix("W/").strip('"')


def parse_if_match(header: str) -> list[RunVersion] | None:
    """Return the versions of a run that a header ``If-Match`` accepts, or None for ``*``, which accepts any.

    Tags that this package has not made are left out.
    """
    if header.strip() == _ANY:
        return None
    # An empty list matches nothing, so a header with foreign tags alone is refused.
    versions = (_parse_etag(tag_text.strip()) for tag_text in header.split(","))
    return [tag_text for tag_text in versions if tag_text is not None]


def _parse_etag(tag: str) -> RunVersion | None:
    """Return the version in a tag, or None if this package has not made the tag."""
    parts = _tag_content(tag).split(".")
    if len(parts) != _PART_COUNT:
        return None
    try:
        return RunVersion(
            run_id=UUID(parts[0]), events=int(parts[1]), status=parts[2], blocked=parts[3], paused=bool(parts[4])
        )
    except ValueError:
        return None
