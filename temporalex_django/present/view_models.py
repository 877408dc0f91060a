"""View models: the facts about runs and schedules from which the sentences about them are built.

Titles are texts for people; see ``formatting.display_title``. ``operations/read/run_summary.py`` builds the view
models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from temporalex_django.authoring.backend import OpenActivity

#: Time for which something may be due before that needs an explanation: workers look at the tables every few seconds.
DUE_GRACE_PERIOD = timedelta(seconds=10)
#: Time for which a run may be due before a person should look at it, although live workers could take it.
LATE_PERIOD = timedelta(seconds=60)

Severity = Literal["error", "warning", "note"]
WaitKind = Literal["phase", "signal", "timer", "condition", "child", "step", "human_task", "cancel", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitView:
    """One thing that the code of a run waits for, except activities.

    - ``title``: the title of a phase, or the name of what the code waits for.
    - ``noun``: the name under which sentences mention it; without one, they mention ``title``.
    - ``messages``: the titles of the messages or events that are consumed during the wait, or end it.
    - ``role``: the role of the people who may decide, or None.
    - ``is_event``: True for a step that waits for an event and asks nobody to decide.
    - ``since``: the time at which the wait began.
    - ``until``: the time at which a timer is due, or a wait with a timeout ends.
    - ``followed_by``: what the code does after a timer, if it declares that.
    - ``key``: the business id of a child.
    - ``place``: the state of a child, in words.
    """

    kind: WaitKind
    title: str = ""
    noun: str = ""
    messages: Sequence[str] = ()
    role: str | None = None
    is_event: bool = False
    since: datetime | None = None
    until: datetime | None = None
    followed_by: str | None = None
    key: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchView:
    """A switch that is off: who (``actor``) turned it off, when and why.

    ``kind`` is "queue", "activity" or "workflow", and ``name`` the name of the queue, activity or workflow class. A
    hold is a switch that an activity turned off for a while, to keep back other activities of its queue. Its ``kind``
    is "hold", ``name`` the queue, ``key`` the concurrency key or empty, ``until`` its end, and ``actor`` the name of
    the activity.
    """

    kind: str
    name: str
    since: datetime
    actor: str = ""
    reason: str = ""
    key: str = ""
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityView:
    """An activity that has no result yet.

    - ``noun``: the name under which sentences mention it; without one, they mention ``title``.
    - ``worker``: the name of the worker that runs it.
    - ``has_worker``: True if a live worker can claim it; None if this does not matter, because it runs or is atomic.
    - ``pollers``: the number of live workers that poll its queue, if none of them can claim it.
    - ``last_poller``: the name and the last heartbeat of the worker that polled the queue last, or None.
    - ``switch``: the switch that keeps it from starting, its own or that of its queue, or None.
    """

    activity: OpenActivity
    title: str
    noun: str = ""
    worker: str = ""
    has_worker: bool | None = None
    pollers: int = 0
    last_poller: tuple[str, datetime] | None = None
    switch: SwitchView | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedView:
    """The reason why a run is blocked.

    ``code`` and ``error`` are the code and the text of the error. ``since`` and ``last`` are the times of the first and
    the last failed attempt; ``tries`` counts them, and ``next_try`` is the time of the next one. ``place`` is
    ``file:line`` of the code, and ``event`` the number of the history event. ``recorded`` and ``produced`` are the
    commands that differ. ``waits_for`` names what the workers lack, or is None. ``others`` is the number of other runs
    that are blocked for the same reason, counted up to a limit.
    """

    code: str
    error: str
    since: datetime | None = None
    last: datetime | None = None
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
    """The pause of a run: who paused it (``actor``), when and why.

    ``messages`` is the number of messages without an outcome, which wait until it is unpaused.
    """

    actor: str = ""
    since: datetime | None = None
    reason: str = ""
    messages: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndView:
    """The end of a run, or an empty view for an open one.

    - ``actor`` and ``reason``: the person who cancelled or terminated it, and the reason.
    - ``error``: the text of the error with which it failed.
    - ``failed_title`` and ``attempts``: the title of the activity or step that failed it, and its number of attempts.
    - ``summary``: pairs of a title and a text for the fields of the result that the class declares.
    - ``limit``: the timeout that ended it, in seconds.
    - ``number``: the number, in the chain, of the run that continues it.
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
    """The live workers, for a run that waits for one.

    ``missing`` says why none of them can take the run; it is None if one can.
    """

    alive_count: int
    missing: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """The facts about a run at one moment from which its summary is built.

    - ``title`` and ``workflow``: the title and the name of its class.
    - ``noun``: the name under which sentences mention it; without one, they mention ``title``.
    - ``starts_at`` and ``start_before``: the times of its start, if its caller named them.
    - ``start_limit``: the throttle that delays its begin, as a count and seconds.
    - ``is_started``: False until a worker has run its code for the first time.
    - ``activities`` and ``more_activities``: the first open activities, and the number of the others.
    - ``workers``: set if the run waits for a worker, to begin or since ``due_since``.
    - ``switch``: the switch of its class or its queue that keeps it from continuing, or None.
    - ``failed_messages``: the number of signals of its chain whose handler failed and that are kept.
    - ``may_decide``: True if the reader may decide what the run is waiting for.
    """

    title: str
    workflow: str
    version: int
    status: str
    created_at: datetime
    started_at: datetime | None = None
    closed_at: datetime | None = None
    starts_at: datetime | None = None
    start_before: datetime | None = None
    noun: str = ""
    start_limit: tuple[int, float] | None = None
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """The one action that helps against a problem, as a page offers it.

    ``kind`` says where it is done: "bulk" (the operation ``action`` on the runs that match ``filters``), "runs" (the
    list of these runs), or a list of other things, such as "workers". ``name`` is that of the thing, such as a
    schedule, or empty. ``label`` is the text of the link.
    """

    kind: Literal["bulk", "runs", "workers", "switches", "schedules", "tasks", "outbox", "background_tasks", "deploy"]
    label: str
    action: str = ""
    filters: Mapping[str, str] = field(default_factory=dict)
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One finding about a project or a run.

    ``code`` is for programs, ``text`` is a sentence, ``evidence`` lists what shows the problem, and ``next_step`` says
    what to do. ``about`` names what the finding is about, such as a workflow class or a schedule. ``count`` is the
    number of runs, messages or slots that have the problem.

    ``headline`` is a short text for a list of many findings, or empty: then ``text`` is short. ``since`` and
    ``next_attempt`` are the times of the first failure and of the next attempt, where they are known. ``remedy`` is the
    action that helps, or None.
    """

    severity: Severity
    code: str
    text: str
    next_step: str
    evidence: Sequence[str] = ()
    about: str = ""
    count: int = 1
    headline: str = ""
    since: datetime | None = None
    next_attempt: datetime | None = None
    remedy: Remedy | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleProblem:
    """A problem of a schedule, or of many with one cause. ``schedule`` is the name of it, or of one of them.

    ``kind`` says what it is:

    - ``overdue``: ``count`` schedules have been due since ``since``.
    - ``ahead``: its position ``since`` is in the future.
    - ``error``: its slots cannot be computed; ``detail`` says why.
    - ``class``: this process does not have the class ``workflow``, of which ``count`` schedules start runs.
    - ``unpolled``: its runs wait for ``detail``, a worker that can take them.
    - ``missed``: ``count`` of its slots were missed in the last day.
    - ``stalled``: it left out its last ``count`` slots, since ``since``. ``run`` is the business id of the open run in
      the way, or empty, and ``is_blocked`` says if that run is blocked.
    - ``failures``: it paused itself at ``since``, after ``count`` failures.
    - ``gone``: the module ``detail`` no longer declares it since ``since``.
    - ``differs``: its row differs from the code; ``detail`` is a sentence about that.
    """

    kind: Literal["overdue", "ahead", "error", "class", "unpolled", "missed", "stalled", "failures", "gone", "differs"]
    schedule: str
    workflow: str = ""
    run: str = ""
    is_blocked: bool = False
    count: int = 1
    since: datetime | None = None
    detail: str = ""
