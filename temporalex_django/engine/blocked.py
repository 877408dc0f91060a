"""The description of why a run is blocked, and the time when the run is tried again."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from temporalex_django.core.failures import (
    FailureCause,
    cause_at,
    error_attribute,
    error_line,
    exception_message,
    exception_name,
    is_error,
    traceback_of,
)
from temporalex_django.core.history.replay import is_user_code
from temporalex_django.core.names import counted
from temporalex_django.engine import policy
from temporalex_django.engine.contracts.records import BlockMark, RunState, RunWrite
from temporalex_django.errors import NondeterminismError, TemporalexError

logger = logging.getLogger("temporalex_django.engine")
_NEXT_STEP: Final = "Correct the code. The run is then retried; to retry it now: manage.py temporalex try-again."
#: Code of a run that is blocked because it ended the processes that ran it. New workers do not correct that.
CRASH = "crash"


def retry_immediately(run: RunState, *, now: datetime) -> RunWrite:
    """Make a blocked run due now, before its planned retry, and return the ``RunWrite`` to store.

    The caller has locked the run.
    """
    run.due_at = now
    return RunWrite(run=run)


def next_retry_at(tries: int, now: datetime) -> datetime:
    """Return the time at which to retry a run whose present activation has failed ``tries`` times.

    The wait doubles with each failure, up to a limit.
    """
    return now + timedelta(seconds=min(2.0 ** min(tries, 16), policy.LONGEST_BACKOFF))


def block_mark(code: str, error: str, *, tries: int, now: datetime, waits_for: str | None = None) -> BlockMark:
    """Return the data that say why a run is blocked, for the column ``blocked`` of its row.

    ``code`` is a short name of the cause, and ``error`` says it in words. ``tries`` counts failed activations in a row.
    ``waits_for`` names the code or the encryption key that no live worker has.
    """
    at = now.isoformat()
    block: BlockMark = {"code": code, "error": error, "since": at, "last": at, "attempt": tries}
    if waits_for is not None:
        block["waits_for"] = waits_for
    return block


def block_mark_of(error: BaseException, *, tries: int, now: datetime, waits_for: str | None = None) -> BlockMark:
    """Return the data for the column ``blocked`` of a run whose activation raised ``error``.

    The error gives the code, the text and the place in the user's code. ``tries`` counts failed activations in a row.
    ``waits_for`` names the code or the encryption key that no live worker has.
    """
    code = cause_at(exception_name(type(error)), "").text
    if is_error(error, TemporalexError):
        code = error_attribute(error, "code") or code
    text = f"{exception_name(type(error))}: {exception_message(error)}"
    block = block_mark(code, text, tries=tries, now=now, waits_for=waits_for)
    if type(error) is NondeterminismError and error.recorded is not None and error.produced is not None:
        block |= {"recorded": error.recorded, "produced": error.produced}
        if error.event is not None:
            block["event"] = error.event
    place, function = _code_location(error)
    if place:
        block["place"] = place
    if function:
        block["function"] = function
    return block


def block_cause(mark: BlockMark) -> FailureCause:
    """Return the cause by which blocked runs are grouped: the type of the error, and the place that raised it.

    ``mark`` is the value of the column ``blocked``.
    """
    kind = CRASH if mark["code"] == CRASH else mark["error"].partition(":")[0]
    return cause_at(kind, mark.get("place", ""), mark.get("function", ""))


#: The class and the business id of a run, or None if they are not known.
RunNames = tuple[str, str] | None


class BlockLog:
    """The lines of the log about blocked runs: INFO for each run, and ERROR once a minute for each cause.

    The line at ERROR has the number of runs that the cause has blocked since the last one. Lines have no payloads.
    ``clock`` returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._causes: dict[tuple[str, str], tuple[float, int]] = {}  # time of the last line at ERROR, runs since then

    def add(self, run_id: UUID, names: RunNames, error: BaseException, waits_for: str | None) -> None:
        """Log that an error has blocked a run. ``waits_for`` names the code or the key that it needs, or is None."""
        next_step = _NEXT_STEP
        if is_error(error, TemporalexError):
            next_step = error_attribute(error, "next_step") or next_step
        mark = block_mark_of(error, tries=1, now=datetime.now(UTC))
        line = error_line(error) if waits_for is None else f"{error_line(error)}; it waits for {waits_for}"
        self.add_line(run_id, names, block_cause(mark).fault, line, next_step)

    def add_line(
        self,
        run_id: UUID,
        names: RunNames,
        cause: str,
        line: str,
        next_step: str = _NEXT_STEP,
    ) -> None:
        """Log that a run is blocked, with the cause in words. ``cause`` is the text by which lines are counted."""
        workflow, workflow_id = names or ("", "")
        label = f"{workflow} {workflow_id} (run {run_id})" if names else f"run {run_id}"
        facts = {"workflow": workflow, "workflow_id": workflow_id, "run_id": str(run_id)}
        text = f"{label} is blocked: {line}. Next step: {next_step}"
        logger.info("%s", text, extra=facts)
        now = self._clock()
        at, count = self._causes.get((workflow, cause), (-math.inf, 0))
        if now - at < policy.BLOCK_LOG_SECONDS:
            self._causes[workflow, cause] = at, count + 1
            return
        # Causes that ended must not stay in memory, unless their next line has runs to count.
        self._causes = {
            key: (since, others)
            for key, (since, others) in self._causes.items()
            if others or now - since < policy.BLOCK_LOG_SECONDS
        }
        self._causes[workflow, cause] = now, 0
        others = f" ({counted(count, 'other run was', 'other runs were')} blocked by this since the last such line)"
        logger.error("%s", f"{text}{others if count else ''}", extra=facts)


def _code_location(error: BaseException) -> tuple[str, str]:
    """Return the last place in user code as ``folder/file:line``, and its function; empty if not known."""
    place = function = ""
    if is_error(error, NondeterminismError):
        place = error.place or ""
    # The traceback of this error shows the comparison with the history; ``place`` names the line that caused it.
    traceback = None
    if not is_error(error, NondeterminismError):
        traceback = traceback_of(error)
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if is_user_code(code):
            place, function = f"{code.co_filename}:{traceback.tb_lineno}", code.co_name
        traceback = traceback.tb_next
    return "/".join(place.split("/")[-2:]), function
