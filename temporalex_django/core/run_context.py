"""The context of a run: its identity, its clock and random numbers, its patches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from temporalex_django.core.failures import error_line, failure_summary
from temporalex_django.core.history.activation import RunInfo
from temporalex_django.core.messages.sender import Headers, Sender
from temporalex_django.core.payloads import codec
from temporalex_django.core.payloads.round_trip import encode_lossless, require_readable
from temporalex_django.core.primitive_table import PureContext

# --- run context ------------------------------------------------------------------------------------------------------
#
# The run context: the few facts of a run that all parts of its executor share.


logger = logging.getLogger("temporalex_django.workflow")


class RunContext:
    """The facts of a run. The executor and its parts write them; primitives only read them.

    - ``payload_limit``: the largest size of a payload, in bytes.
    - ``pure_context``: the pure context in which user code runs, or None.
    - ``update_sender`` and ``update_headers``: the sender and the headers of the update that a validator judges.
    - ``is_continued``: True if the run continues another one and has not opened a phase yet.
    - ``closed``: the kind of the command that closed the run; None while it is open.
    - ``failure``: the error that failed it, without what may quote a payload, or None.
    - ``signals``: the signals that its class declares; None if it declares none.
    - ``admits_updates``: True if the host answers each update in the activation that delivers it.
    - ``suggests_continue_as_new``: that of the activation.
    - ``snapshot``: the state from which a process continues after a move.
    - ``effects``: the count of effects without a command: code published, drew a number, set search attributes or took
      a signal.
    - ``blocks_on_error``: True if an unexpected error blocks the run instead of failing it.
    - ``blocking_error``: the error that blocked it.
    - ``backend``: the name of the backend on which the run lives; None in a test environment, where all runs live.
    """

    __slots__ = (
        "admits_updates",
        "backend",
        "blocking_error",
        "blocks_on_error",
        "closed",
        "effects",
        "failure",
        "history_length",
        "info",
        "is_continued",
        "now",
        "payload_limit",
        "pure_context",
        "replaying",
        "signals",
        "snapshot",
        "suggests_continue_as_new",
        "update_headers",
        "update_sender",
    )  # fmt: skip

    def __init__(
        self,
        info: RunInfo,
        *,
        payload_limit: int,
        signals: frozenset[str] | None = None,
        blocks: bool = False,
        backend: str | None = None,
    ) -> None:
        self.info = info
        self.backend = backend
        self.signals = signals
        self.payload_limit = payload_limit
        self.now = datetime.min.replace(tzinfo=UTC)
        self.history_length = 0
        self.suggests_continue_as_new = False
        self.replaying = False
        self.pure_context: PureContext | None = None
        self.update_sender: Sender | None = None
        self.update_headers: Headers | None = None
        self.snapshot: dict[str, Any] | None = None
        self.is_continued = False
        self.closed: str | None = None
        self.admits_updates = False
        self.effects = 0
        self.failure: str | None = None
        self.blocks_on_error = blocks
        self.blocking_error: Exception | None = None

    @property
    def run_label(self) -> str:
        """The name of the run in errors and logs."""
        return f"{self.info.workflow} {self.info.id}"

    @property
    def is_between_runs(self) -> bool:
        """True if updates wait for the first phase of this run, or for the next run, instead of being refused.

        A host that answers in the activation that delivers an update cannot let it wait. See decision 26.
        """
        return (
            (self.is_continued or self.closed is not None)
            and self.closed in (None, "ContinueAsNew")
            and not self.admits_updates
        )

    def to_plain(self, value: Any, label: str) -> Any:
        """Return ``value`` as JSON data. ``label`` names it in the ``PayloadError`` that this may raise."""
        return codec.to_plain(value, label=label, limit=self.payload_limit)

    def encode_input(self, value: Any, label: str, annotation: Any) -> Any:
        """Return the input of another run as plain data. ``annotation`` is the one with which that run reads it.

        ``label`` names the value in the ``PayloadError`` for an input that the annotation does not restore.
        """
        plain = self.to_plain(value, label)
        require_readable(value, plain, lambda: annotation, label=label)
        return plain

    def encode_lossless(
        self,
        value: Any,
        label: str,
        *,
        read: Callable[[Any], Any] | None = None,
        annotate: str = "",
        must_fit: bool = False,
    ) -> Any:
        """Return ``value`` as plain data for a reader who must get it back unchanged.

        The arguments are those of ``round_trip.encode_lossless``. Raises ``PayloadError``.
        """
        return encode_lossless(
            value, label=label, limit=self.payload_limit, read=read, annotate=annotate, must_fit=must_fit
        )

    @contextmanager
    def pure_section(self, context: PureContext) -> Iterator[None]:
        """Return a context manager whose block is user code that may only read and compute, such as a predicate."""
        outer, self.pure_context = self.pure_context, context
        try:
            yield
        finally:
            self.pure_context = outer

    @contextmanager
    def validation(self, sender: Sender | None, headers: Headers | None = None) -> Iterator[None]:
        """Return a context manager whose block is a validator, in which ``api.sender()`` returns ``sender``.

        ``headers`` are those that ``api.headers()`` returns there; None means those of the run.
        """
        self.update_sender, self.update_headers = sender, headers
        with self.pure_section("validator"):
            yield

    def record_effect(self) -> None:
        """Count an effect of workflow code that no command shows, such as a random number; see ``effects``."""
        self.effects += 1

    def set_blocking_error(self, error: Exception) -> None:
        """Record the unexpected error because of which the host has to block the run."""
        self.blocking_error = error

    def log_failure(self, label: str, error: BaseException) -> None:
        """Log an error that no code receives. ``label`` names what failed. Does nothing during a replay."""
        if not self.replaying:
            logger.error("%s: %s failed: %s", self.run_label, label, error_line(error))

    def log_replay_failure(self, label: str, error: BaseException) -> None:
        """Log that a handler fails in a replay although it did not fail when the history was made.

        So the code has changed since, or another process with other code made the history.
        """
        logger.warning("%s: %s failed on replay, but not in the history: %s", self.run_label, label, error_line(error))

    def log_rejection(self, label: str, error: BaseException) -> None:
        """Log that the validator ``label`` rejected an update by raising, which may be a mistake of the code."""
        logger.info("%s: %s rejected it with an exception: %s", self.run_label, label, error_line(error))

    def note_failure(self, attributes: dict[str, Any], error: BaseException | None) -> None:
        """Keep the error with which the run has failed for senders that came too late, and log it with its place.

        ``attributes`` are those of ``WorkflowFailed``. ``error`` is the exception, or None if ``run`` returned a value.
        Nothing is logged during a replay.
        """
        kind = attributes.get("type")
        self.failure = failure_summary(attributes)
        if self.replaying:
            return
        if attributes.get("step"):
            reason = self.failure
        elif error is not None:
            reason = error_line(error)
        elif kind is None:
            reason = "it returned Err"
        else:
            # The message quotes the value, so the log has only its kind.
            reason = f"run returned a value that ends no run ({kind}); result() raises the error"
        ids = {"workflow": self.info.workflow, "workflow_id": self.info.id, "run_id": self.info.run_id}
        logger.error("%s failed: %s", self.run_label, reason, extra=ids)


# --- patches ----------------------------------------------------------------------------------------------------------
#
# Patch markers: the way in which running workflows survive a change of their code. See decision 17.


class Patches:
    """The patches of a run: which changes (``api.patched(id)``) its code has asked about, and the answers.

    ``recorded`` has the ids of the markers in the history, each of which says that the run took the new code. The first
    answer for an id is kept and given again.
    """

    def __init__(self) -> None:
        self.recorded: set[str] = set()
        self._answers: dict[str, bool] = {}
        self._marked: set[str] = set()

    def check_patch(self, patch: str, *, replaying: bool) -> tuple[bool, bool]:
        """Return ``(answer, emit)``: if the run takes the changed code, and if it must emit the marker of the patch.

        The answer is True at first execution, and in a replay if the history has the marker. A marker is emitted once,
        with the first answer that is True.
        """
        answer = self._is_patched(patch, replaying=replaying)
        return answer, answer and self._mark(patch)

    def deprecate(self, patch: str, *, replaying: bool) -> bool:
        """Return True if the marker of a deprecated patch must be emitted now.

        During a replay this is so only if the history has the marker, so an old history without it still replays.
        """
        return self._is_patched(patch, replaying=replaying) and self._mark(patch)

    def _is_patched(self, patch: str, *, replaying: bool) -> bool:
        # The answer is kept. A run that passed here without the marker must not set it in a later round of a loop. A
        # rebuild knows the marker from the start and would set it in the first round.
        return self._answers.setdefault(patch, not replaying or patch in self.recorded)

    def _mark(self, patch: str) -> bool:
        new = patch not in self._marked
        self._marked.add(patch)
        return new
