"""Fields and decoding that several tables share."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import models

from temporalex_django.conf import codec
from temporalex_django.errors import KeyMissing, PayloadError


class UnreadablePayload:
    """The object that ``decode_payload()`` returns in place of a value, for bytes that the codec cannot read.

    So a page can show the rest of the run. ``error`` says why.
    """

    def __init__(self, error: str) -> None:
        self.error = error

    def __repr__(self) -> str:
        return f"<unreadable payload: {self.error}>"


def decode_payload(data: bytes | memoryview | None) -> Any:
    """Decode payload bytes for display. Never raises.

    Returns None for NULL, and an ``UnreadablePayload`` for bytes that cannot be read.
    """
    if data is None:
        return None
    try:
        return codec().decode(bytes(data))
    # A missing key or a codec that is configured wrongly concerns this process only. The row itself is fine, and
    # another process may read it.
    except (PayloadError, KeyMissing, ImproperlyConfigured, ValueError) as exc:
        return UnreadablePayload(str(exc))


def unconstrained_key(to: str, **options: Any) -> Any:
    """Return a foreign key to the model ``to`` that has no constraint in the database.

    With a constraint each referencing INSERT would lock the referenced row (KEY SHARE). That lock blocks turns and
    halves event throughput (see decision 39).
    """
    options.setdefault("related_name", "+")
    options.setdefault("db_index", False)
    return models.ForeignKey(to, on_delete=models.DO_NOTHING, db_constraint=False, **options)
