"""View models: the facts about a run that its sentence needs.

Titles are for people, see ``formatting.display_title``. ``operations/read/run_summary.py`` fills these models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from temporalex_django.authoring.backend import OpenActivity

#: Time for which something may be due before that needs an explanation: workers look at the tables every few seconds.
DUE_GRACE_PERIOD = timedelta(seconds=10)
#: Time for which a run may be due before a person should look at it, although live workers could take it.
LATE_PERIOD = timedelta(seconds=60)

WaitKind = Literal["phase", "signal", "timer", "condition", "child", "step", "human_task", "cancel", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitView:
    """One thing that the code of a run waits for, apart from activities.

    - ``title``: the subject of a phase, or else the name of what is waited for.
    - ``messages``: titles of what ends the wait, or is consumed during it.
    - ``role``: the role that may decide.
    - ``until``: the time at which a timer is due, or the wait gives up.
    - ``followed_by``: what follows a timer, if the code declares it.
    - ``key``: the id of a child.
    - ``place``: the state of a child, in words.
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
    """A switch that is off, of a queue, an activity or a workflow class: who turned it off, when and why."""

    kind: str
    name: str
    since: datetime
    actor: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityView:
    """An activity without a result.

    - ``worker``: the name of the worker that runs it.
    - ``has_worker``: True if a live worker takes it from its queue; None if this was not looked up.
    - ``pollers``: the number of live workers that poll its queue.
    - ``last_poller``: the worker that polled the queue last, and when it was last alive.
    - ``switch``: the switch that holds it back, its own or that of its queue.
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
    """The reason why a run is blocked.

    ``place`` is ``file:line`` of the code, ``event`` the number of the history event, and ``recorded`` and ``produced``
    are the commands that differ. ``others`` is the number of other runs that are blocked for the same reason, counted
    up to a limit.
    """

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
    """The pause of a run: who paused it, when and why.

    ``messages`` is the number of messages that wait.
    """

    actor: str = ""
    since: datetime | None = None
    reason: str = ""
    messages: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndView:
    """The end of a run.

    - ``actor`` and ``reason``: the person who ended it, and their reason.
    - ``error``: the text of the error that failed it.
    - ``failed_title`` and ``attempts``: the title of the activity or step that failed it, and its attempts.
    - ``summary``: the fields of the result that the class names.
    - ``limit``: its timeout, in seconds.
    - ``number``: the number of the run that continues it.
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
    """The workers that are alive.

    ``missing`` says why none of them can take the run; it is None when one can.
    """

    alive_count: int
    missing: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run at one moment.

    - ``activities`` and ``more_activities``: the activities that are listed, and the number of the others.
    - ``workers``: set for a run that waits for a worker, before its first turn or since ``due_since``.
    - ``switch``: the switch of its class or its queue that it waits for.
    - ``failed_messages``: the number of signals whose handler failed.
    - ``may_decide``: True if the person who looks at it may decide what it waits for.
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
