"""Where a run stands: the few facts that all parts of its executor share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from temporalex_django.core import payloads
from temporalex_django.core.error_text import error_line
from temporalex_django.core.handing_over import encode_lossless
from temporalex_django.core.history.activation import RunInfo
from temporalex_django.core.senders import Sender

logger = logging.getLogger("temporalex_django.workflow")


class RunContext:
    """Written by the executor and its parts alone; primitives read it.

    ``pure_context``: the pure context that user code is in. ``update_sender``: who sent the update that a validator
    looks at. ``is_continued``: from another run, and no phase was open yet. ``closed``: kind of the command that closed
    the run. ``signals``: those that its class declares, None where it declares none. ``admits_updates``: the host
    answers each update in the activation that delivers it. ``snapshot``: what a process that was moved here goes on
    from. ``effects`` counts what code did that no command shows: it published, drew a number, set search attributes, or
    took a signal. ``blocks_on_error``: an unexpected error blocks the run instead of failing it; ``blocking_error`` is
    the one that did.
    """

    __slots__ = (
        "admits_updates",
        "blocking_error",
        "blocks_on_error",
        "closed",
        "effects",
        "history_length",
        "info",
        "is_continued",
        "now",
        "payload_limit",
        "pure_context",
        "replaying",
        "signals",
        "snapshot",
        "update_sender",
    )  # fmt: skip

    def __init__(
        self, info: RunInfo, *, payload_limit: int, signals: frozenset[str] | None = None, blocks: bool = False
    ) -> None:
        self.info = info
        self.signals = signals
        self.payload_limit = payload_limit
        self.now = datetime.min.replace(tzinfo=UTC)
        self.history_length = 0
        self.replaying = False
        self.pure_context: str | None = None
        self.update_sender: Sender | None = None
        self.snapshot: dict[str, Any] | None = None
        self.is_continued = False
        self.closed: str | None = None
        self.admits_updates = False
        self.effects = 0
        self.blocks_on_error = blocks
        self.blocking_error: Exception | None = None

    @property
    def run_label(self) -> str:
        """The run as errors and logs name it."""
        return f"{self.info.workflow} {self.info.id}"

    @property
    def is_between_runs(self) -> bool:
        """Whether updates wait for the first phase of this run, or for the next run, instead of being refused.

        A host that answers in the activation that delivers an update has nowhere to let it wait.
        """
        return (
            (self.is_continued or self.closed is not None)
            and self.closed in (None, "ContinueAsNew")
            and not self.admits_updates
        )

    def to_plain(self, value: Any, label: str) -> Any:
        """``value`` as JSON data. Raises ``PayloadError``."""
        return payloads.to_plain(value, label=label, limit=self.payload_limit)

    def encode_lossless(
        self, value: Any, label: str, *, read: Callable[[Any], Any] | None = None, annotate: str = ""
    ) -> Any:
        """The same for whoever is to get it back as it was: see ``handing_over.encode_lossless``."""
        return encode_lossless(value, label=label, limit=self.payload_limit, read=read, annotate=annotate)

    @contextmanager
    def pure_section(self, context: str) -> Iterator[None]:
        """User code that runs inside may look and compute, nothing else."""
        outer, self.pure_context = self.pure_context, context
        try:
            yield
        finally:
            self.pure_context = outer

    @contextmanager
    def validation(self, sender: Sender | None) -> Iterator[None]:
        """A validator runs inside; ``sender`` is whom it may ask about."""
        self.update_sender = sender
        with self.pure_section("validator"):
            yield

    def record_effect(self) -> None:
        """Code did something that no command shows, see ``effects``."""
        self.effects += 1

    def set_blocking_error(self, error: Exception) -> None:
        """An unexpected error blocks the run."""
        self.blocking_error = error

    def log_failure(self, label: str, error: BaseException) -> None:
        """An error that has no caller to go to: logged once, when it happens first."""
        if not self.replaying:
            logger.error("%s: %s failed: %s", self.run_label, label, error_line(error))

    def log_replay_failure(self, label: str, error: BaseException) -> None:
        """A handler fails on replay, and the history does not say that it failed: older code, or an older history."""
        logger.warning("%s: %s failed on replay, and not in the history: %s", self.run_label, label, error_line(error))

    def log_rejection(self, label: str, error: BaseException) -> None:
        """A validator may reject by raising whatever it likes. Its place is told: perhaps it did not mean to."""
        logger.info("%s: %s rejected by raising: %s", self.run_label, label, error_line(error))

    def log_run_failure(self, attributes: dict[str, Any], error: BaseException | None) -> None:
        """The run has failed: why, and where, in a line of the log; once."""
        if self.replaying:
            return
        if error is None:
            reason = "it returned Err"
        elif attributes.get("step"):
            reason = f"step {attributes['step']}: {attributes.get('type') or 'it gave Err'}"
        else:
            reason = error_line(error)
        ids = {"workflow": self.info.workflow, "workflow_id": self.info.id, "run_id": self.info.run_id}
        logger.error("%s failed: %s", self.run_label, reason, extra=ids)
