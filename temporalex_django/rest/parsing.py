"""What comes in: JSON in UTF-8, of a bounded size, whatever a client says about its encoding."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import IO, Any

from rest_framework.exceptions import APIException, ParseError
from rest_framework.parsers import BaseParser

from temporalex_django.conf import get_settings

#: A payload of so many bytes may take more in a client's JSON: blanks, escapes, the other fields.
_JSON_OVERHEAD = 4


class BodyTooLarge(APIException):
    """The body is larger than any payload may be."""

    status_code = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    default_code = "too_large"


class BoundedJSONParser(BaseParser):
    """Raises ``ParseError`` for what is no JSON or is nested too deep, ``BodyTooLarge`` for too much.

    NaN is no JSON.
    """

    media_type = "application/json"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        max_bytes = _JSON_OVERHEAD * get_settings().MAX_PAYLOAD_BYTES
        content = stream.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise BodyTooLarge(f"A body may have {max_bytes:,} bytes.")
        try:
            return json.loads(content.decode("utf-8"), parse_constant=_reject_constant)
        except RecursionError:
            raise ParseError("Malformed JSON: it is nested too deep.") from None
        except ValueError as exc:
            raise ParseError(f"Malformed JSON: {exc}") from exc


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
