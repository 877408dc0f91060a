"""Headers: short texts by name that travel with starts, messages and activities, such as ``traceparent``.

A replay does not compare them. It reads them from the history, so ``api.headers()`` returns the same again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from temporalex_django.core.names import quoted
from temporalex_django.errors import InvalidHeaders

Headers = Mapping[str, str]

#: Largest size of all headers of a message: the bytes of their names and values in UTF-8.
MAX_HEADER_BYTES: Final = 4096
NO_HEADERS: Final[Headers] = MappingProxyType({})
#: A token of HTTP in lower case.
_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


def check_headers(headers: Headers | None, *, label: str) -> dict[str, str] | None:
    """Return a copy of ``headers``, or None if there are none.

    ``label`` names what they belong to. Raises ``InvalidHeaders``, which names the header, unless all of them are texts
    without control characters, the names are tokens in lower case, and they have at most ``MAX_HEADER_BYTES``.
    """
    if headers is None:
        return None
    if not isinstance(headers, Mapping):
        raise InvalidHeaders(f"{label}: headers must be a mapping of names to texts, not {type(headers).__name__}")
    size = 0
    for name, value in headers.items():
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise InvalidHeaders(
                f"{label}: {quoted(name)} is not the name of a header: use lower-case letters, digits and '-'"
            )
        if not isinstance(value, str):
            raise InvalidHeaders(f"{label}: the header {quoted(name)} must be text, not {type(value).__name__}")
        size += len(name) + _size_of(value, f"{label}: the header {quoted(name)}")
    if size > MAX_HEADER_BYTES:
        raise InvalidHeaders(
            f"{label}: the headers have {size} bytes, more than {MAX_HEADER_BYTES}: the longest one is "
            f"{quoted(max(headers, key=lambda name: len(headers[name])))}"
        )
    return dict(headers) or None


def _size_of(value: str, label: str) -> int:
    """Return the bytes of the value of a header, which ``label`` names. Raises ``InvalidHeaders``."""
    if _CONTROL.search(value) is not None:
        raise InvalidHeaders(f"{label} has a control character, such as a line break")
    if value.isascii():
        return len(value)
    try:
        return len(value.encode())
    except UnicodeEncodeError:
        raise InvalidHeaders(f"{label} has a character that UTF-8 cannot encode") from None


def merge_headers(first: Headers | None, second: Headers | None) -> Headers | None:
    """Return the headers of both; where both have a name, the value in ``second`` counts. None if there are none."""
    if not first or not second:
        return second or first or None
    return {**first, **second}


def headers_attributes(headers: Headers | None) -> dict[str, Any]:
    """Return headers as attributes of jobs, commands and events; an empty dictionary if there are none."""
    return {"headers": dict(headers)} if headers else {}


def headers_from(attributes: Mapping[str, Any]) -> Headers | None:
    """Return the headers from attributes that ``headers_attributes`` made, or None if they have none."""
    return attributes.get("headers")
