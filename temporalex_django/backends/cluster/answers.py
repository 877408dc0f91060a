"""Answers of the cluster as errors and outcomes of this package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from temporalio.api.common.v1 import Payloads as ApiPayloads
from temporalio.api.errordetails.v1 import QueryFailedFailure
from temporalio.api.failure.v1 import Failure
from temporalio.service import RPCError, RPCStatusCode

from temporalex_django.backends.cluster.client import ClusterUnavailable
from temporalex_django.core.failures import error_line
from temporalex_django.engine.activity_policy import FAULT, failed_outcome
from temporalex_django.engine.contracts.records import Outcome
from temporalex_django.errors import ActionNotPossible, HistoryGone, UpdateTimeout
from temporalex_django.temporal.failures import read_failure
from temporalex_django.temporal.payloads import Payloads

#: Statuses for a key that has expired, or a namespace that is not there yet: people correct that.
_DENIED: Final = frozenset({RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.PERMISSION_DENIED})
#: Statuses with which the cluster takes no request of this project: it is away, or does not accept the key.
_AWAY: Final = _DENIED | {RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED}
#: Statuses of answers that may be others at the next try.
_TRANSIENT: Final = _AWAY | {
    RPCStatusCode.CANCELLED,
    RPCStatusCode.RESOURCE_EXHAUSTED,
    RPCStatusCode.ABORTED,
    RPCStatusCode.INTERNAL,
    RPCStatusCode.UNKNOWN,
}
#: Parts of the text of ``UNKNOWN`` for a request during which the connection to the server has broken.
_BROKEN: Final = ("transport error", "error reading a body from connection", "h2 protocol error")


def is_gone(error: RPCError) -> bool:
    """Return True if ``error`` says that the run is closed or unknown, and False if the namespace is not found."""
    return error.status is RPCStatusCode.NOT_FOUND and "amespace" not in error.message


def is_transient(error: RPCError) -> bool:
    """Return True if ``error`` is temporary, so that a repetition of the request may succeed."""
    return error.status in _TRANSIENT or (error.status is RPCStatusCode.NOT_FOUND and not is_gone(error))


def is_away(error: RPCError) -> bool:
    """Return True if the cluster takes no request of this project now, whatever the request is."""
    if error.status is RPCStatusCode.UNKNOWN:
        return any(text in error.message for text in _BROKEN)
    return error.status in _AWAY


def is_pause(error: RPCError) -> bool:
    """Return True if the cluster refuses a request because the run is paused."""
    return error.status is RPCStatusCode.FAILED_PRECONDITION and "paused" in error.message


@contextmanager
def report_unavailable(label: str, *, update_id: str | None = None, reads: bool = False) -> Iterator[None]:
    """Return a context manager that converts errors of the cluster to errors of this package.

    ``UpdateTimeout`` means that the cluster did not answer, or cannot answer now. Its code is ``unknown``, unless the
    request ``reads`` or the cluster does not accept the key: then nothing was done. ``ActionNotPossible`` means that it
    refused the request, and ``HistoryGone`` that the run to be read is not there. ``label`` names the call in the
    message.
    """
    code = None if reads else "unknown"
    try:
        yield
    except ClusterUnavailable as exc:
        raise UpdateTimeout(f"{label}: {exc}; try again", update_id=update_id, code=code) from exc
    except RPCError as exc:
        if is_transient(exc):
            raise UpdateTimeout(
                f"{label}: the Temporal cluster says {exc.status.name}: {exc.message}; try again",
                update_id=update_id,
                code=None if exc.status in _DENIED else code,
            ) from exc
        if reads and is_gone(exc):
            raise HistoryGone(f"{label}: the Temporal cluster no longer has the run") from exc
        raise ActionNotPossible(f"{label}: the Temporal cluster refused it: {exc.message}") from exc


@contextmanager
def report_unwritten(label: str) -> Iterator[None]:
    """Return a context manager that converts every error of its block to ``UpdateTimeout`` (code ``unknown``).

    Use it for the writes after an operation that the cluster has performed, so that nobody takes the operation for a
    refused one. ``label`` names the operation.
    """
    try:
        yield
    except Exception as exc:
        raise UpdateTimeout(
            f"{label}: the Temporal cluster has done it, but the database has not stored the result "
            f"({error_line(exc)}). Workers will write the rows of the run later",
            code="unknown",
        ) from exc


def first_value(values: ApiPayloads, payloads: Payloads) -> Any:
    """Return the first of the values in an answer, or None if there is none."""
    return payloads.decode(values.payloads[0]) if values.payloads else None


def outcome_of_failure(failure: Failure, payloads: Payloads) -> Outcome:
    """Return the outcome of an update that was rejected or failed."""
    attributes = read_failure(failure, payloads)
    if "reference" in attributes:
        return Outcome(status=FAULT, value=attributes)
    if "code" in attributes:
        return Outcome(status="rejected", value=attributes)
    return failed_outcome({"type": attributes.get("type"), "message": attributes.get("message") or ""})


def query_failure(error: RPCError, payloads: Payloads) -> dict[str, Any]:
    """Return the attributes of the error with which a query has failed: ``code`` and ``message``, if it has them."""
    for detail in error.grpc_status.details:
        failed = QueryFailedFailure()
        if detail.Is(QueryFailedFailure.DESCRIPTOR) and detail.Unpack(failed) and failed.HasField("failure"):
            return read_failure(failed.failure, payloads)
    return {"message": error.message}
