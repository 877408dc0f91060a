"""What is to be known of a run for a sentence about it. Titles are for people: see ``words.spelt``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from temporalex_django.authoring.backend import OpenActivity

#: How long something may be due before somebody asks why: a worker looks at the tables every few seconds.
PATIENCE = timedelta(seconds=10)
#: How long a run may be due before somebody should look at it, although live workers could take it.
LATE = timedelta(seconds=60)

WaitKind = Literal["phase", "signal", "timer", "condition", "child", "step", "human_task", "cancel", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitNow:
    """One thing that the code of a run waits for; activities apart.

    ``title``: of a phase what it is about, else what is waited for. ``messages`` are titles of what ends the wait, or
    is taken during it; ``role`` is who decides. ``until`` is when a timer is due, or a wait gives up; ``then`` what
    follows a timer, where the code says so. ``place`` is where a child stands, in words.
    """

    kind: WaitKind
    title: str = ""
    messages: Sequence[str] = ()
    role: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    then: str | None = None
    key: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchNow:
    """A switch that is off: of a queue, an activity or a workflow class; who did it, when and why."""

    kind: str
    name: str
    since: datetime
    who: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityNow:
    """An activity without a result. ``worker`` is the name of who has it.

    ``off``: the switch, its own or its queue's, that keeps it waiting.

    ``taken`` says whether a live worker takes it from its queue; None: it was not asked. ``pollers`` live workers poll
    that queue. ``last_seen`` is the worker that took that queue last, and when it was alive.
    """

    activity: OpenActivity
    title: str
    worker: str = ""
    taken: bool | None = None
    pollers: int = 0
    last_seen: tuple[str, datetime] | None = None
    off: SwitchNow | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedNow:
    """Why a run is stopped. ``place`` is ``file:line``; ``others`` runs are stopped by the same, at least."""

    code: str
    error: str
    since: datetime | None = None
    tries: int = 0
    next_try: datetime | None = None
    place: str | None = None
    recorded: str | None = None
    produced: str | None = None
    event: int | None = None
    waits_for: str | None = None
    others: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PausedNow:
    """Who paused a run, when and why; ``messages`` wait."""

    who: str = ""
    since: datetime | None = None
    reason: str = ""
    messages: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndNow:
    """How a run ended.

    ``who`` and ``reason``: of a person. ``error`` says why it failed, ``at`` the title of the activity or step that
    did, after ``attempts``. ``summary`` are the fields of the result that the class names. ``limit`` is in seconds.
    ``number`` is that of the run which goes on.
    """

    who: str = ""
    reason: str = ""
    error: str = ""
    at: str = ""
    attempts: int = 0
    summary: Sequence[tuple[str, str]] = ()
    limit: float | None = None
    number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersNow:
    """Workers that are alive. ``missing`` says why none of them can take the run; None when one can."""

    alive: int
    missing: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNow:
    """A run as it stands. ``more_activities``: how many it has beside those that are listed.

    ``workers``, of a run that waits for one: of its first turn, or due since ``due_since``. ``off``: the switch of its
    class or its queue that it waits for. ``failed_messages``: how many signals failed in
    their handler.

    ``may_decide``: whether whoever looks at it is one who can decide what it waits for.
    """

    title: str
    workflow: str
    version: int
    status: str
    created_at: datetime
    started_at: datetime | None = None
    closed_at: datetime | None = None
    taken_up: bool = True
    waits: Sequence[WaitNow] = ()
    activities: Sequence[ActivityNow] = ()
    more_activities: int = 0
    blocked: BlockedNow | None = None
    paused: PausedNow | None = None
    end: EndNow = field(default_factory=EndNow)
    workers: WorkersNow | None = None
    due_since: datetime | None = None
    off: SwitchNow | None = None
    failed_messages: int = 0
    may_decide: bool = False
