"""The state of a project, from which its diagnoses are made."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from temporalex_django.present.human_tasks import Absent
from temporalex_django.present.view_models import Diagnosis, ScheduleProblem, SwitchView


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCheck:
    """A message of a Django system check. ``is_error`` is False for a warning, and ``hint`` is its advice."""

    id: str
    is_error: bool
    text: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """A worker, alive or not, as the diagnoses of a project need it.

    ``skew`` is its clock minus the clock of the database, in seconds. ``drained_id`` is its id if it is drained (it
    takes no new work), and empty otherwise; ``drained_at`` is the time since which it is.
    """

    name: str
    queues: Sequence[str]
    is_alive: bool
    last_seen_at: datetime
    skew: float = 0.0
    drained_id: str = ""
    drained_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LostWorkerView:
    """A worker that was declared dead in the last day. ``held_count`` is the number of activities that it held."""

    name: str
    lost_at: datetime
    held_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DueRuns:
    """Runs of one class, version and queue that are due and that no worker takes.

    ``missing`` says why no live worker can take them; it is None if one could.
    """

    workflow: str
    version: int
    queue: str
    count: int
    oldest: datetime
    missing: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedRuns:
    """Runs of one class that somebody stopped. ``example`` is the business id of one of them.

    ``code`` is ``paused``, or ``switched_off`` for runs that wait for their class. ``since`` is the time at which the
    first of them was stopped, or None if it cannot be read.
    """

    workflow: str
    code: str
    count: int
    example: str
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedMessages:
    """Messages with one name, to runs of one class, that a person has to look at.

    ``kind`` is ``signal`` for failed messages, and ``update`` for updates whose validator raised an unexpected error.
    ``example`` is the business id of a run.
    """

    kind: str
    name: str
    workflow: str
    count: int
    since: datetime
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UndecidableTasks:
    """Human tasks of one workflow class that nobody may decide, because four eyes exclude every candidate.

    ``example`` is the business id of a run, ``task`` the id of one of its human tasks. ``absent`` are those whom the
    tasks ask, if that is the reason: none of them is there.
    """

    workflow: str
    count: int
    since: datetime
    example: str
    task: str
    absent: Sequence[Absent] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OverdueTasks:
    """Human tasks of one workflow class that nobody decided in time, within the last day.

    ``example`` is the business id of a run.
    """

    workflow: str
    count: int
    since: datetime
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingMessages:
    """Outgoing messages to one destination that are late. Dead letters are a ``FailureGroup``.

    ``since`` is the time since which the oldest waits. ``has_failed`` is True if a try to send the oldest has failed.
    Texts of errors may quote the messages, so they are not here. ``example`` is the id of the oldest.
    """

    destination: str
    count: int
    since: datetime
    has_failed: bool
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnclaimedActivities:
    """Activity tasks with one name in one queue that are due and that no live worker can run.

    ``pollers`` is the number of live workers that poll the queue and lack the code.
    """

    activity: str
    queue: str
    count: int
    since: datetime
    pollers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """Failures with one cause in one workflow class: the type of the error, and the function that raised it.

    ``kind`` says what has failed: an activity that is retried ("activity"), a run ("run"), a run that is "blocked", a
    background "task", or an outgoing message ("dead_letter"). ``workflow`` is then the path of the task, or the
    destination. ``cause`` is the text of one of the failures, with its line, and ``fault`` is the key of the group.
    ``code`` is that of the error of a block or a message.

    ``count`` is the number of failures; with ``is_bounded`` there may be more. ``since`` and ``last`` are the times of
    the first and the last failure, and ``next_attempt`` is that of the next attempt. ``example`` is the business id of
    a run, or the id of a task or a message. ``activity`` is the name of an activity that fails. ``waits_for`` names the
    code or the key that workers lack.
    """

    kind: Literal["activity", "run", "blocked", "task", "dead_letter"]
    workflow: str
    cause: str
    fault: str
    count: int
    since: datetime | None
    example: str
    last: datetime | None = None
    next_attempt: datetime | None = None
    is_bounded: bool = False
    activity: str | None = None
    code: str = ""
    waits_for: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildView:
    """The build of the code in this process, as the Temporal cluster knows it.

    ``has_polled`` is True if a worker of the build has polled. ``current`` is the build that gets the tasks of runs, or
    empty. ``is_reused`` is True if the first worker of the build had other code.
    """

    deployment: str
    build: str
    has_polled: bool = False
    current: str = ""
    is_reused: bool = False


#: The limits that a run on a cluster may reach.
FullKind = Literal["history", "signals", "updates"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FullHistory:
    """A run that has nearly reached a limit of the cluster: of its history, or of the messages to it.

    ``share`` is the used part of it, from 0 to 1.
    """

    workflow: str
    id: str
    share: float
    kind: FullKind = "history"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The Temporal cluster of a project. ``error`` says why it does not answer, or is empty.

    ``unpolled_queues`` have open runs and no worker. ``skew`` is the clock of the cluster minus the clock of the
    database, in seconds. ``compared_until`` is the time until which rows need no comparison with the cluster; None:
    they were never compared. ``build`` is that of this process, if the project has a deployment.
    ``full_histories`` are the longest of the open runs, if they are near a limit. ``old_version`` is that of a server
    that is too old, or empty. ``misplaced_id`` is the id on the cluster of an open run that has another prefix than the
    settings, or empty.
    """

    address: str
    error: str = ""
    unpolled_queues: Sequence[str] = ()
    skew: float = 0.0
    compared_until: datetime | None = None
    build: BuildView | None = None
    full_histories: Sequence[FullHistory] = ()
    old_version: str = ""
    misplaced_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableRow:
    """A row of a table with columns that no process can read. ``condition`` is the SQL that finds the row.

    ``id`` is the business id of its run, or empty.
    """

    table: str
    columns: Sequence[str]
    condition: str
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectView:
    """The state of a project from which the diagnoses are made.

    Fields that could not be read are empty; ``wrong_settings``, ``unreachable`` and ``unapplied`` say why. ``skew`` is
    the clock of this process minus the clock of the database, in seconds, and ``at`` is the time of the database when
    it was read. ``cluster`` is None without a Temporal cluster. ``open_tasks`` is the number of human tasks that wait
    for a decision, counted up to 1,000, and ``late_tasks`` of those that are past their due time.
    """

    database: str
    wrong_settings: Sequence[str] = ()
    unreachable: str = ""
    unapplied: Sequence[str] = ()
    checks: Sequence[FailedCheck] = ()
    classes: int = 0
    open_count: int = 0
    workers: Sequence[WorkerView] = ()
    expected_workers: int | None = None
    lost_workers: Sequence[LostWorkerView] = ()
    due_runs: Sequence[DueRuns] = ()
    stopped_runs: Sequence[StoppedRuns] = ()
    unclaimed_activities: Sequence[UnclaimedActivities] = ()
    failures: Sequence[FailureGroup] = ()
    failed_messages: Sequence[FailedMessages] = ()
    undecidable_tasks: Sequence[UndecidableTasks] = ()
    open_tasks: int = 0
    late_tasks: int = 0
    overdue_tasks: Sequence[OverdueTasks] = ()
    outgoing_messages: Sequence[OutgoingMessages] = ()
    switches: Sequence[SwitchView] = ()
    schedule_problems: Sequence[ScheduleProblem] = ()
    unreadable_rows: Sequence[UnreadableRow] = ()
    skew: float = 0.0
    at: datetime | None = None
    cluster: ClusterView | None = None

    @property
    def active_workers(self) -> list[WorkerView]:
        """The workers that are alive and not drained."""
        return [worker for worker in self.workers if worker.is_alive and not worker.drained_id]

    @property
    def drained_workers(self) -> list[WorkerView]:
        """The workers that are alive and drained."""
        return [worker for worker in self.workers if worker.is_alive and worker.drained_id]

    def is_switched_off(self, kind: str, name: str) -> bool:
        """Return True if the queue, activity or workflow class of that name is switched off."""
        return any((switch.kind, switch.name) == (kind, name) for switch in self.switches)


# --- deploys ----------------------------------------------------------------------------------------------------------
#
# Texts about code that open runs need and that this process does not have, for a check before a deploy.
#
# The command ``doctor --deploy`` prints them.


MismatchKind = Literal["class", "activity", "step", "key", "payload", "replay", "timeout", "input"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeMismatch:
    """Something that open runs need and that the code of this process lacks or cannot read.

    ``kind`` is its sort: a workflow class, an activity, a step of a graph, a key of the codec, a payload, or ("replay",
    "input") code that differs from a history, or ("timeout") a replay that took too long. ``name`` names it. ``count``
    is the number of runs that need it, among those that were read, and ``example`` is the business id of one of them.
    ``reason`` is the text of an error, or empty. ``place`` is where the code of the project stops, as ``file:line``, or
    empty.
    """

    kind: MismatchKind
    name: str
    count: int
    example: str = ""
    reason: str = ""
    place: str = ""


def deploy_diagnoses(mismatches: Sequence[CodeMismatch], *, runs: int, replayed: int) -> list[Diagnosis]:
    """Return an error for each mismatch, or a single note if the code has all that open runs need.

    ``runs`` is the number of open runs, and ``replayed`` the number of histories that were replayed. ``doctor
    --deploy`` prints the result.
    """
    if mismatches:
        return [_mismatch_diagnosis(mismatch) for mismatch in mismatches]
    words = {"count": runs, "replayed": replayed}
    text = ngettext(
        "This code matches %(count)d open run. Histories replayed: %(replayed)d.",
        "This code matches %(count)d open runs. Histories replayed: %(replayed)d.",
        runs,
    )
    return [Diagnosis(severity="note", code="fits", text=text % words, next_step=_("Deploy it."))]


def recorded_mismatch_text(mismatch: CodeMismatch, *, release: str, replayed: int) -> str:
    """Return a sentence about a mismatch of a release that was recorded, without payloads and without a run.

    ``replayed`` is the number of runs that were replayed with the code of the release.
    """
    texts: dict[str, str] = {
        "class": ngettext(
            "%(count)d open run uses %(name)s, which %(release)s does not have.",
            "%(count)d open runs use %(name)s, which %(release)s does not have.",
            mismatch.count,
        ),
        "activity": ngettext(
            "%(count)d unfinished activity needs %(name)s, which %(release)s does not have.",
            "%(count)d unfinished activities need %(name)s, which %(release)s does not have.",
            mismatch.count,
        ),
        "step": ngettext(
            "%(count)d open run is waiting at the step %(name)s, which %(release)s does not have.",
            "%(count)d open runs are waiting at the step %(name)s, which %(release)s does not have.",
            mismatch.count,
        ),
        "replay": ngettext(
            "%(count)d of %(replayed)d replayed run would stop at %(place)s.",
            "%(count)d of %(replayed)d replayed runs would stop at %(place)s.",
            replayed,
        ),
        "timeout": ngettext(
            "%(count)d history of %(name)s was not checked, because its replay took too long.",
            "%(count)d histories of %(name)s were not checked, because their replays took too long.",
            mismatch.count,
        ),
        "input": ngettext(
            "In %(count)d history of %(name)s, an input differs: %(why)s",
            "In %(count)d histories of %(name)s, an input differs: %(why)s",
            mismatch.count,
        ),
    }
    unreadable = ngettext(
        "%(release)s cannot read a payload of %(count)d run of %(name)s.",
        "%(release)s cannot read payloads of %(count)d runs of %(name)s.",
        mismatch.count,
    )
    return texts.get(mismatch.kind, unreadable) % {
        "count": mismatch.count,
        "name": mismatch.name,
        "release": release,
        "replayed": replayed,
        "place": mismatch.place or mismatch.name,
        "why": mismatch.reason,
    }


def cluster_diagnoses(left_out: Mapping[str, int]) -> list[Diagnosis]:
    """Return warnings about runs on a Temporal cluster that could not be replayed, which are counted by the reason."""
    texts = {
        reason: ngettext(
            "%(count)d open run on a Temporal cluster could not be replayed with this code: %(reason)s.",
            "%(count)d open runs on a Temporal cluster could not be replayed with this code: %(reason)s.",
            count,
        )
        % {"count": count, "reason": reason}
        for reason, count in left_out.items()
    }
    next_step = _("Replay them when the cluster answers: temporalex replay --backend temporal.")
    return [
        Diagnosis(severity="warning", code="deploy_cluster", text=text, next_step=next_step) for text in texts.values()
    ]


def input_diagnoses(mismatches: Sequence[CodeMismatch], *, strict: bool) -> list[Diagnosis]:
    """Return a diagnosis for each place in the code that gives other inputs than the histories have.

    Each mismatch has the kind "input". Inputs of activities and children may change on purpose, so these are warnings.
    With ``strict``, they are errors (see decision 16).
    """
    # A recorded input stays valid for open runs: only the code decides whether the difference was intended.
    next_step = _(
        "If the change is intentional, deploy it: open runs keep their recorded input. Give new fields and parameters "
        "defaults, and sort values that come from a set. See: temporalex replay --open"
    )
    return [
        Diagnosis(
            severity="error" if strict else "warning",
            code="deploy_input",
            text=ngettext(
                "In %(count)d history of %(name)s, an input differs from the one that this code produces: %(why)s",
                "In %(count)d histories of %(name)s, an input differs from the one that this code produces: %(why)s",
                mismatch.count,
            )
            % {"count": mismatch.count, "name": mismatch.name, "why": mismatch.reason},
            next_step=next_step,
        )
        for mismatch in mismatches
    ]


def _mismatch_diagnosis(mismatch: CodeMismatch) -> Diagnosis:
    words = {"count": mismatch.count, "name": mismatch.name, "why": mismatch.reason, "run": mismatch.example}
    quoted_run = shlex.quote(mismatch.example)
    # Each text is a whole sentence with its own plural forms, so that translators never join parts.
    if mismatch.kind == "class":
        text = ngettext(
            "%(count)d open run uses %(name)s, which this code does not have.",
            "%(count)d open runs use %(name)s, which this code does not have.",
            mismatch.count,
        )
        next_step = _("Keep the class until its runs have closed, or move them first: manage.py temporalex migrate")
    elif mismatch.kind == "activity":
        text = ngettext(
            "%(count)d unfinished activity needs %(name)s, which this code does not have.",
            "%(count)d unfinished activities need %(name)s, which this code does not have.",
            mismatch.count,
        )
        next_step = _("Keep an activity with that name until its unfinished calls have ended.")
    elif mismatch.kind == "step":
        text = ngettext(
            "%(count)d open run is waiting at the step %(name)s, which this code does not have.",
            "%(count)d open runs are waiting at the step %(name)s, which this code does not have.",
            mismatch.count,
        )
        next_step = _(
            "Release this code as a new version of the class, and move the runs: manage.py temporalex migrate --map "
            "OLD=NEW"
        )
    elif mismatch.kind == "replay":
        text = ngettext(
            "The history of %(name)s %(run)s does not match this code: %(why)s",
            "%(count)d histories of %(name)s do not match this code. That of %(run)s: %(why)s",
            mismatch.count,
        )
        next_step = _(
            "Guard the change with api.patched, or give the class a new version; see: temporalex replay --open"
        )
    elif mismatch.kind == "timeout":
        text = ngettext(
            "The history of %(name)s %(run)s was not checked: %(why)s",
            "%(count)d histories of %(name)s were not checked. That of %(run)s: %(why)s",
            mismatch.count,
        )
        next_step = _("Replay it with more time: temporalex replay --open --timeout 60")
    # The kinds key and payload: both come from a codec that cannot read what another process wrote.
    else:
        text = ngettext(
            "This process cannot read a payload of %(name)s %(run)s: %(why)s",
            "This process cannot read payloads of %(count)d runs of %(name)s. That of %(run)s: %(why)s",
            mismatch.count,
        )
        next_step = _("Add the key to the codec. See: manage.py temporalex describe %(run)s") % {"run": quoted_run}
    return Diagnosis(severity="error", code=f"deploy_{mismatch.kind}", text=text % words, next_step=next_step)
