"""What is to be known of a run for a sentence about it. Titles are for people: see ``formatting.humanize_name``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from temporalex_django.authoring.backend import OpenActivity

#: How long something may be due before somebody asks why: a worker looks at the tables every few seconds.
DUE_GRACE_PERIOD = timedelta(seconds=10)
#: How long a run may be due before somebody should look at it, although live workers could take it.
LATE_PERIOD = timedelta(seconds=60)

WaitKind = Literal["phase", "signal", "timer", "condition", "child", "step", "human_task", "cancel", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitView:
    """One thing that the code of a run waits for; activities apart.

    ``title``: of a phase what it is about, else what is waited for. ``messages`` are titles of what ends the wait, or
    is taken during it; ``role`` is who decides. ``until`` is when a timer is due, or a wait gives up; ``followed_by``
    what follows a timer, where the code says so. ``place`` is where a child stands, in words.
    """

    kind: WaitKind
    title: str = ""
    messages: Sequence[str] = ()
    role: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    followed_by: str | None = None
    key: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchView:
    """A switch that is off: of a queue, an activity or a workflow class; who did it, when and why."""

    kind: str
    name: str
    since: datetime
    actor: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityView:
    """An activity without a result. ``worker`` is the name of who has it.

    ``switch``: the switch, its own or its queue's, that keeps it waiting.

    ``has_worker`` says whether a live worker takes it from its queue; None: it was not asked. ``pollers`` live workers
    poll that queue. ``last_poller`` is the worker that took that queue last, and when it was alive.
    """

    activity: OpenActivity
    title: str
    worker: str = ""
    has_worker: bool | None = None
    pollers: int = 0
    last_poller: tuple[str, datetime] | None = None
    switch: SwitchView | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedView:
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
class PausedView:
    """Who paused a run, when and why; ``messages`` wait."""

    actor: str = ""
    since: datetime | None = None
    reason: str = ""
    messages: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndView:
    """How a run ended.

    ``actor`` and ``reason``: of a person. ``error`` says why it failed, ``failed_title`` the title of the activity or
    step that did, after ``attempts``. ``summary`` are the fields of the result that the class names. ``limit`` is in
    seconds. ``number`` is that of the run which goes on.
    """

    actor: str = ""
    reason: str = ""
    error: str = ""
    failed_title: str = ""
    attempts: int = 0
    summary: Sequence[tuple[str, str]] = ()
    limit: float | None = None
    number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersView:
    """Workers that are alive. ``missing`` says why none of them can take the run; None when one can."""

    alive_count: int
    missing: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run as it stands. ``more_activities``: how many it has beside those that are listed.

    ``workers``, of a run that waits for one: of its first turn, or due since ``due_since``. ``switch``: the switch of
    its class or its queue that it waits for. ``failed_messages``: how many signals failed in their handler.

    ``may_decide``: whether whoever looks at it is one who can decide what it waits for.
    """

    title: str
    workflow: str
    version: int
    status: str
    created_at: datetime
    started_at: datetime | None = None
    closed_at: datetime | None = None
    is_started: bool = True
    waits: Sequence[WaitView] = ()
    activities: Sequence[ActivityView] = ()
    more_activities: int = 0
    blocked: BlockedView | None = None
    paused: PausedView | None = None
    end: EndView = field(default_factory=EndView)
    workers: WorkersView | None = None
    due_since: datetime | None = None
    switch: SwitchView | None = None
    failed_messages: int = 0
    may_decide: bool = False
