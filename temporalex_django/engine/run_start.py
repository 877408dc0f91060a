"""The start of a run, by a caller or by another run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from temporalex_django.core.messages.sender import Headers
from temporalex_django.core.names import original_name


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """The values of a run to start, as a storage stores them.

    Those that the class declares come from ``authoring.workflow.start_options``. ``scope`` names the open runs among
    which the id is unique: global, workflow, version or none. ``execution_timeout`` (seconds) limits the whole chain,
    ``run_timeout`` each run of it. ``search_attributes`` have the form of ``core.payloads.search_attributes``.
    ``snapshot`` is data that the run starts with in addition to its input ``args``, such as that of declared steps.

    The run begins at ``start_at``, or ``start_delay`` seconds after it was started. Without either, and with a time
    that has passed, it begins at once. If it has not begun by ``start_before``, it is timed out. ``start_limit`` is the
    throttle or the debounce that delays it, if any. ``scheduled_for`` is the time of the slot for which a schedule
    starts it. ``headers`` is None if it has none.
    """

    workflow_id: str
    workflow: str
    args: Any
    version: int = 1
    queue: str = "default"
    scope: str = "global"
    seed: int | None = None
    execution_timeout: float | None = None
    run_timeout: float | None = None
    parent: str | None = None
    parent_chain: UUID | None = None
    parent_run: UUID | None = None
    parent_seq: int | None = None
    parent_close: str | None = None
    scheduled_for: datetime | None = None
    tags: Sequence[str] | None = None
    metadata: Mapping[str, Any] | None = None
    search_attributes: Mapping[str, Any] | None = None
    snapshot: Mapping[str, Any] | None = None
    start_at: datetime | None = None
    start_delay: float | None = None
    start_before: datetime | None = None
    start_limit: Mapping[str, Any] | None = None
    headers: Headers | None = None

    @property
    def open_key(self) -> str | None:
        """The text that is unique among open runs, made of the business id and the scope; None with scope none.

        A database constraint on it prevents a second open run. It contains the original name of a renamed class, so
        that it also covers the runs that old code starts.
        """
        match self.scope:
            case "global":
                return f"g:{self.workflow_id}"
            case "workflow":
                return f"w:{original_name(self.workflow)}:{self.workflow_id}"
            case "version":
                return f"v:{original_name(self.workflow)}:{self.version}:{self.workflow_id}"
            case _:
                return None

    @property
    def first_timeout(self) -> float | None:
        """The seconds until the first run times out, or None."""
        if self.execution_timeout is None or self.run_timeout is None:
            return self.execution_timeout or self.run_timeout
        return min(self.execution_timeout, self.run_timeout)

    @property
    def is_delayed(self) -> bool:
        """True if the caller named a time at which the run begins."""
        return self.start_at is not None or self.start_delay is not None

    def begins_at(self, now: datetime) -> datetime:
        """Return when the run begins if it is started at ``now``. Timeouts count from then."""
        if self.start_at is not None:
            return max(now, self.start_at)
        return now + timedelta(seconds=self.start_delay or 0)

    def due_at(self, now: datetime) -> datetime:
        """Return when a worker first has to process the run if it is started at ``now``.

        That is when the run begins, or when it times out before.
        """
        begin, deadline = self.begins_at(now), self.deadline(now)
        return begin if deadline is None else min(begin, deadline)

    def starts_at(self, now: datetime) -> datetime | None:
        """Return when the run begins if it is started at ``now``, or None if the caller named no time."""
        if self.is_delayed:
            return self.begins_at(now)
        return None

    def expires_at(self, now: datetime) -> datetime | None:
        """Return when the whole chain times out if it is started at ``now``, or None if it has no timeout."""
        if self.execution_timeout is None:
            return None
        return self.begins_at(now) + timedelta(seconds=self.execution_timeout)

    def deadline(self, now: datetime) -> datetime | None:
        """Return when the first run of the chain times out if it is started at ``now``, or None if it never does.

        Before the run begins, ``start_before`` counts, too.
        """
        if (timeout := self.first_timeout) is None:
            return self.start_before
        deadline = self.begins_at(now) + timedelta(seconds=timeout)
        return deadline if self.start_before is None else min(deadline, self.start_before)
