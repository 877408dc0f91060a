"""Errors that block a run: its code does not fit its history, or cannot be run."""

from __future__ import annotations

from temporalex_django.errors.base import TemporalexError


# Blocks the run and does not fail it: the history is right, and corrected code can continue it (see decision 16).
class NondeterminismError(TemporalexError):
    """The code does something other than what the history of the run recorded.

    ``seq`` is the number of the command at which code and history differ (the number of the event if there is no
    command). ``recorded`` is what the history holds there and ``produced`` is what the code did; "nothing" stands for a
    missing one. ``place`` is the file and line of the code (``path:line``) if it is known, and ``event`` is the number
    of the event.
    """

    code = "nondeterminism"
    next_step = (
        "Restore the old code, or keep the old path for open runs with `api.patched()`. The run then continues "
        "automatically."
    )

    def __init__(
        self,
        message: str | None = None,
        *,
        seq: int | None = None,
        recorded: str | None = None,
        produced: str | None = None,
        place: str | None = None,
        event: int | None = None,
    ) -> None:
        super().__init__(message)
        self.event = event
        self.seq = seq
        self.recorded = recorded
        self.produced = produced
        self.place = place


# The engine has one number, and a run of another number is not touched at all (see decision 17).
class EngineChanged(TemporalexError):
    """The run was started by another version of the engine, which would treat its history differently.

    The run is blocked, not lost.
    """

    code = "engine_changed"
    next_step = (
        "Let these runs finish under the version of temporalex_django that started them, or terminate them and "
        "start them again."
    )


# Neither yes nor no: a refusal would drop the message because of a fault in the authentication backend, so the run
# waits (see decision 37).
class JudgingFailed(TemporalexError):
    """The permission of a message's sender could not be checked, because the check itself failed.

    The run is blocked, not lost.
    """

    code = "judging_failed"
    next_step = "Check the authentication backends; the message contains their error. The run is retried automatically."


class DeadlockDetected(TemporalexError):
    """Workflow code did not reach a wait within the deadlock timeout."""

    code = "deadlock"
    next_step = "Use the stack trace in the log to find the loop, and move the computation into an activity."
