"""Errors that block a run: its code and its history part, or its code cannot be run."""

from __future__ import annotations

from temporalex_django.errors.base import TemporalexError


class NondeterminismError(TemporalexError):
    """The code no longer does what the history of the run says it did.

    ``seq`` is the number of the command at which they part (of the history event, where there is no command),
    ``recorded`` what the history holds there, ``produced`` what the code did; "nothing" where one of them has nothing.
    ``place`` is the file and line of the code (``path:line``), where it is known, ``event`` the number of the event.
    """

    code = "nondeterminism"
    next_step = (
        "Put the code back, or keep the old path for runs in flight with `api.patched()`; the run heals by itself then."
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


class EngineChanged(TemporalexError):
    """The run was started by another version of the engine, which would not do the same with its history.

    It is blocked, not lost.
    """

    code = "engine_changed"
    next_step = "Let such runs end under the version of temporalex_django that started them, or terminate them and start them again."


class JudgingFailed(TemporalexError):
    """Whether the sender of a message has the permission that its handler takes could not be found out.

    The run is blocked, not lost.
    """

    code = "judging_failed"
    next_step = "Look at the authentication backends, whose error it names; the run is tried again by itself."


class DeadlockDetected(TemporalexError):
    """Workflow code did not come to a wait within the deadlock timeout."""

    code = "deadlock"
    next_step = "Find the loop by the stack in the log; move computation into an activity."
