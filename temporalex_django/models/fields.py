"""Field kinds that several tables share."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import models

from temporalex_django.conf import codec
from temporalex_django.errors import KeyMissing, PayloadError


class UnreadablePayload:
    """What ``decode_payload()`` gives for bytes that the codec cannot read: a page must show the run all the same."""

    def __init__(self, error: str) -> None:
        self.error = error

    def __repr__(self) -> str:
        return f"<unreadable payload: {self.error}>"


def decode_payload(data: bytes | memoryview | None) -> Any:
    """The plain value of payload bytes for showing; None for NULL, a ``UnreadablePayload`` for what cannot be read.

    Never raises.
    """
    if data is None:
        return None
    try:
        return codec().decode(bytes(data))
    except (PayloadError, KeyMissing, ImproperlyConfigured, ValueError) as exc:
        return UnreadablePayload(str(exc))


def unconstrained_key(to: str, **options: Any) -> Any:
    """A foreign key without a constraint in the database.

    A referencing INSERT would lock the referenced row (KEY SHARE), which blocks turns and halves event throughput.
    """
    options.setdefault("related_name", "+")
    options.setdefault("db_index", False)
    return models.ForeignKey(to, on_delete=models.DO_NOTHING, db_constraint=False, **options)
