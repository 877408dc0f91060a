"""The parser of request bodies: JSON in UTF-8 of a limited size, whatever encoding the client declares."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import IO, Any

from rest_framework.exceptions import APIException, ParseError
from rest_framework.parsers import BaseParser

from temporalex_django.conf import get_settings

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
