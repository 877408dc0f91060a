"""Decoding of the payloads of activities. A worker without the key of the codec cannot read them."""

from __future__ import annotations

import logging
from typing import Any

from temporalex_django.conf import codec
from temporalex_django.core.error_text import error_line
from temporalex_django.engine.contracts.records import TaskState
from temporalex_django.errors import KeyMissing, PayloadError

log = logging.getLogger("temporalex_django.db")


def is_readable(task: TaskState) -> bool:
    """Decode the payloads of an activity in place and return True; return False if this process cannot read them."""
    try:
        decode_task(task)
    except (KeyMissing, PayloadError) as exc:
        log.warning("an activity is deferred to a worker that can read it: %s", error_line(exc))
        return False
    return True


def decode_task(task: TaskState) -> None:
    """Decode the payloads of an activity in place.

    Raises ``KeyMissing`` if this process lacks a key, and ``PayloadError`` if they cannot be read for another reason.
    """
    decode = codec().decode
    call: Any = task.args
    options: Any = task.options
    try:
        task.args, task.kwargs = decode(call)
        task.options = decode(options)
        if task.heartbeat_details is not None:
            task.heartbeat_details = decode(task.heartbeat_details)
    except KeyMissing:
        raise
    except Exception as exc:
        raise PayloadError(f"activity {task.seq} ({task.activity}) cannot be read: {exc}") from exc
