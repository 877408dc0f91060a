"""Where a run stands: the few facts that all parts of its executor share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from temporalex_django.core import payloads
from temporalex_django.core.handing_over import handed
from temporalex_django.core.history.activation import RunInfo
from temporalex_django.core.senders import Sender
from temporalex_django.core.telling import told

logger = logging.getLogger("temporalex_django.workflow")


class Standing:
    """Written by the executor and its parts alone; primitives read it.

    ``pure_context``: the pure context that user code is in. ``validated``: who sent the update that a validator looks
    at. ``goes_on``: from another run, and no phase was open yet. ``closed``: kind of the command that closed the run.
    ``signals``: those that its class declares, None where it declares none.
    ``admits``: the host answers each update in the activation that delivers it. ``snapshot``: what a process that was
    moved here goes on from. ``effects`` counts what code did that no command shows: it published, drew a number, set
    search attributes, or took a signal. ``blocks``: an unexpected error blocks the run instead of failing it;
    ``unexpected`` is the one that did.
    """

    __slots__ = (
        "admits", "blocks", "closed", "effects", "goes_on", "history_length", "info", "now", "payload_limit", "pure_context", "replaying",
        "signals", "snapshot", "unexpected", "validated",
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
        self.validated: Sender | None = None
        self.snapshot: dict[str, Any] | None = None
        self.goes_on = False
        self.closed: str | None = None
        self.admits = False
        self.effects = 0
        self.blocks = blocks
        self.unexpected: Exception | None = None

    @property
    def run(self) -> str:
        """The run as errors and logs name it."""
        return f"{self.info.workflow} {self.info.id}"

    @property
    def between_runs(self) -> bool:
        """Whether updates wait for the first phase of this run, or for the next run, instead of being refused.

        A host that answers in the activation that delivers an update has nowhere to let it wait.
        """
        return (self.goes_on or self.closed is not None) and self.closed in (None, "ContinueAsNew") and not self.admits

    def plain(self, value: Any, what: str) -> Any:
        """``value`` as JSON data. Raises ``PayloadError``."""
        return payloads.plain(value, what=what, limit=self.payload_limit)

    def handed(self, value: Any, what: str, *, read: Callable[[Any], Any] | None = None, annotate: str = "") -> Any:
        """The same for whoever is to get it back as it was: see ``handing_over.handed``."""
        return handed(value, what=what, limit=self.payload_limit, read=read, annotate=annotate)

    @contextmanager
    def pure(self, context: str) -> Iterator[None]:
        """User code that runs inside may look and compute, nothing else."""
        outer, self.pure_context = self.pure_context, context
        try:
            yield
        finally:
            self.pure_context = outer

    @contextmanager
    def validating(self, sender: Sender | None) -> Iterator[None]:
        """A validator runs inside; ``sender`` is whom it may ask about."""
        self.validated = sender
        with self.pure("validator"):
            yield

    def leave_trace(self) -> None:
        """Code did something that no command shows, see ``effects``."""
        self.effects += 1

    def block_for(self, error: Exception) -> None:
        """An unexpected error blocks the run."""
        self.unexpected = error

    def complain(self, what: str, error: BaseException) -> None:
        """An error that has no caller to go to: logged once, when it happens first."""
        if not self.replaying:
            logger.error("%s: %s failed: %s", self.run, what, told(error))

    def complain_of_replay(self, what: str, error: BaseException) -> None:
        """A handler fails on replay, and the history does not say that it failed: older code, or an older history."""
        logger.warning("%s: %s failed on replay, and not in the history: %s", self.run, what, told(error))

    def tell_rejected(self, what: str, error: BaseException) -> None:
        """A validator may reject by raising whatever it likes. Its place is told: perhaps it did not mean to."""
        logger.info("%s: %s rejected by raising: %s", self.run, what, told(error))

    def tell_failed(self, attributes: dict[str, Any], error: BaseException | None) -> None:
        """The run has failed: why, and where, in a line of the log; once."""
        if self.replaying:
            return
        if error is None:
            why = "it returned Err"
        elif attributes.get("step"):
            why = f"step {attributes['step']}: {attributes.get('type') or 'it gave Err'}"
        else:
            why = told(error)
        ids = {"workflow": self.info.workflow, "workflow_id": self.info.id, "run_id": self.info.run_id}
        logger.error("%s failed: %s", self.run, why, extra=ids)
