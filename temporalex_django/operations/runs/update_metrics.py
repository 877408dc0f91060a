"""The metrics of updates, resumes and decisions, as their senders see them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from temporalex_django.errors import (
    ActionNotPermitted,
    TemporalexError,
    UpdateFailed,
    UpdateRejected,
    UpdateTimeout,
)
from temporalex_django.telemetry import definitions
from temporalex_django.telemetry.recording import recorder


@contextmanager
def record_update(workflow: str) -> Iterator[None]:
    """Record how long the block took and how it ended; the block sends an update to a run of this class and waits."""
    if not recorder.is_active:
        yield
        return
    started_at, outcome = time.monotonic(), "completed"
    try:
        yield
    except BaseException as exc:
        outcome = _outcome_of(exc)
        raise
    finally:
        if outcome:
            recorder.record(definitions.UPDATES, workflow=workflow, outcome=outcome)
            recorder.record(definitions.UPDATE_SECONDS, time.monotonic() - started_at, workflow=workflow)


def _outcome_of(error: BaseException) -> str:
    """Return the outcome in the metrics of an update that raised ``error``; "" if it was not sent at all."""
    # The subclasses of ``UpdateRejected`` say why a run takes no updates now.
    if type(error) is UpdateRejected:
        return "rejected"
    if isinstance(error, UpdateFailed):
        return "failed"
    if isinstance(error, UpdateTimeout):
        return "timeout"
    if isinstance(error, ActionNotPermitted):
        return ""
    return "refused" if isinstance(error, TemporalexError) else "error"
