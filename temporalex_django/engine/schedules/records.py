"""The data of schedules and their slots (times to fire), for the code that fires them. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from hashlib import blake2s
from typing import Any
from uuid import UUID

from temporalex_django.authoring.schedules.schedule import Overlap
from temporalex_django.authoring.schedules.slots import TimeTable, load_zone, render_run_id


class SlotOutcome(StrEnum):
    """The outcomes that a slot (a time at which a schedule fires) can have."""

    #: Its run was started.
    STARTED = "started"
    #: It waits until the run of an earlier slot has closed.
    WAITING = "waiting"
    #: It was passed over on purpose; ``SlotReason`` says why.
    SKIPPED = "skipped"
    #: No worker fired it within the catch-up window.
    MISSED = "missed"
    #: Its run could not be started.
    FAILED = "failed"


class SlotReason(StrEnum):
    """The reasons why a slot (time to fire) was skipped or missed; empty for the other outcomes.

    A slot that was backfilled afterwards keeps its reason.
    """

    NONE = ""
    #: A run of the schedule was open.
    OVERLAP = "overlap"
    #: As many slots waited as may wait.
    BUFFER = "buffer"
    #: The slot was older than the catch-up window.
    WINDOW = "window"
    #: The schedule was paused.
    PAUSED = "paused"
    #: The code no longer declares the schedule.
    GONE = "gone"


class SlotCause(StrEnum):
    """The causes of a slot (time to fire): the specs of the schedule, a backfill, or a person who triggered it."""

    TIME = "time"
    BACKFILL = "backfill"
    TRIGGER = "trigger"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRecord:
    """A slot (a time at which a schedule fires) with its outcome.

    ``at`` is its time (UTC), and ``cause`` says what made it. ``outcome`` and ``reason`` say what became of it, at the
    time ``decided_at``. A started slot has the ids of its run. It is ``running`` until the schedule has seen that the
    run is closed. A failed slot has ``error``, a code and a message. ``actor`` is the name of the user who triggered or
    backfilled it, and ``actor_key`` their key.

    A record may stand for ``count`` slots from ``at`` to ``until``, all with one outcome.
    """

    at: datetime
    cause: SlotCause
    outcome: SlotOutcome
    decided_at: datetime
    reason: SlotReason = SlotReason.NONE
    workflow_id: str = ""
    run_id: UUID | None = None
    chain_id: UUID | None = None
    running: bool = False
    error_code: str = ""
    error: str = ""
    until: datetime | None = None
    count: int = 1
    actor: str = ""
    actor_key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePause:
    """The pause of a schedule: since when, why, and who paused it.

    ``by`` is the name of a user, empty for code. ``after_failures`` is True if the schedule paused itself.
    """

    since: datetime
    reason: str = ""
    by: str = ""
    after_failures: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """A backfill that is under way: the slots (times to fire) after ``after`` and up to ``until`` are still to start.

    The next one is started at ``next_at``, and one after the other every ``pause`` seconds. ``total`` is the number of
    slots of the whole range, and ``done`` how many have been handled. ``actor`` is the name of the user who asked, and
    ``actor_key`` their key.
    """

    after: datetime
    until: datetime
    pause: float
    next_at: datetime
    total: int
    done: int = 0
    actor: str = ""
    actor_key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleState:
    """A schedule as it is stored, with the position that it has reached.

    ``args`` is the plain input of its runs, unless ``arguments_function`` names a function that makes it. ``position``
    is the time up to which slots have been handled. ``last_walls`` has the wall-clock time of each spec's last slot.
    ``fires`` counts the started slots, and ``failures`` the failed runs and slots in a row. ``gone_since`` is set while
    the code no longer declares the schedule. ``waiting`` is the number of waiting slots.
    """

    id: int
    name: str
    workflow: str
    table: TimeTable
    args: Any = None
    arguments_function: str = ""
    workflow_id_template: str
    overlap: Overlap
    catch_up: timedelta
    jitter: timedelta | None = None
    max_fires: int | None = None
    pause_after: int | None = None
    position: datetime
    last_walls: Mapping[str, datetime] = field(default_factory=dict)
    fires: int = 0
    failures: int = 0
    waiting: int = 0
    paused: SchedulePause | None = None
    gone_since: datetime | None = None
    backfill: Backfill | None = None

    def changed(self, **values: Any) -> ScheduleState:
        """Return a copy of the state in which the named fields have other values."""
        return replace(self, **values)

    def jitter_of(self, at: datetime) -> timedelta:
        """Return the delay with which the schedule fires for the time ``at``: a random fraction of ``jitter``.

        It is computed from that time, so that it is the same in all workers.
        """
        if not self.jitter:
            return timedelta(0)
        # Drawn from the name and the slot, so that all workers agree and a retry does not move the slot.
        digest = blake2s(f"{self.name}|{at.astimezone(UTC).isoformat()}".encode(), digest_size=8).digest()
        return self.jitter * (int.from_bytes(digest) / 2**64)

    def workflow_id_of(self, at: datetime, *, cause: SlotCause = SlotCause.TIME) -> str:
        """Return the business id of the run for the slot (time to fire) ``at``, made from the schedule's template.

        A triggered slot gets a suffix. Raises ``ScheduleInvalid`` for a bad template.
        """
        run_id = render_run_id(self.workflow_id_template, schedule=self.name, instant=at, zone=self.table.zone)
        if cause is SlotCause.TRIGGER:
            # The template may have minutes only, and people may trigger twice in one.
            return f"{run_id}-{at:%S%f}"
        return run_id

    def local_time(self, at: datetime) -> datetime:
        """Return the time ``at`` of a slot (time to fire) as an aware time in the zone of the schedule."""
        return at.astimezone(load_zone(self.table.zone))

    @property
    def is_held(self) -> bool:
        """True if the schedule is paused, or the code no longer declares it: it then skips its times to fire."""
        return self.paused is not None or self.gone_since is not None

    @property
    def has_ended(self) -> bool:
        """True if the schedule has fired ``max_fires`` times, slots that wait for a run included: it has ended."""
        return self.max_fires is not None and self.fires + self.waiting >= self.max_fires

    def next_due(self) -> datetime | None:
        """Return when the schedule has something to do next because of its times or a backfill; None if never."""
        times = []
        # A pause holds a backfill, which must not stay due meanwhile.
        if self.backfill is not None and not self.is_held:
            times.append(self.backfill.next_at)
        if not self.has_ended:
            slot = self.table.next_slot(self.position, self.last_walls)
            if slot is not None:
                times.append(slot.instant + self.jitter_of(slot.instant))
        return min(times, default=None)
