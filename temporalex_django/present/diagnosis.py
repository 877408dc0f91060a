"""Diagnoses of a project and of its runs, each with the next step. The likeliest cause comes first.

The command ``doctor`` prints them, and alerts send them. Nothing is read here: ``operations/read/project_state.py``
reads the state.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop, ngettext

from temporalex_django.present.formatting import format_duration, format_time
from temporalex_django.present.human_tasks import absent_sentence
from temporalex_django.present.problems import (
    failure_diagnoses,
    missing_step,
    no_code_text,
    runs_remedy,
    switched_off_sentence,
    unstopped_text,
)
from temporalex_django.present.project_view import BuildView, FailedCheck, ProjectView
from temporalex_django.present.schedule_diagnosis import schedule_diagnoses
from temporalex_django.present.timeline import unreadable_diagnoses
from temporalex_django.present.view_models import Diagnosis, Remedy, Severity

#: A clock that is off by more moves timers and leases in a way that people notice.
_MAX_SKEW_SECONDS = 2.0
#: The rows of runs on a cluster are compared every few seconds.
_MAX_UNCOMPARED_SECONDS = 60.0
_MAX_NAMES = 5
#: Checks that say why a django-q2 cluster is no worker.
_CLUSTER_CHECKS = ("temporalex_django.W004", "temporalex_django.W006")


def diagnose(project: ProjectView, *, now: datetime) -> list[Diagnosis]:
    """Return what is wrong with a project at the time ``now``, the likeliest cause first.

    If nothing is wrong, the list has one note that says so.
    """
    # Causes come before their effects: a project without tables has no workers either, and a missing worker explains
    # every due run.
    diagnoses = [*_setup_diagnoses(project)]
    if not (project.wrong_settings or project.unreachable or project.unapplied):
        diagnoses += [
            *unreadable_diagnoses(project.unreadable_rows),
            *_worker_diagnoses(project, now),
            *_switch_diagnoses(project, now),
            *_stopped_diagnoses(project),
            *failure_diagnoses(project.failures, now, kinds=("blocked",)),
            *_unclaimed_diagnoses(project, now),
            *_message_diagnoses(project, now),
            *failure_diagnoses(project.failures, now, kinds=("dead_letter",)),
            *_outgoing_diagnoses(project, now),
            *_cluster_diagnoses(project, now),
            *schedule_diagnoses(project.schedule_problems, now),
        ]
        diagnoses += [
            *failure_diagnoses(project.failures, now, kinds=("activity", "run", "task")),
            *_undecidable_diagnoses(project, now),
            *_overdue_diagnoses(project, now),
            *_clock_diagnoses(project),
        ]
        # A failed check may have been reported above already, with better context: report each text once.
        texts = {diagnosis.text for diagnosis in diagnoses}
        diagnoses += [diagnosis for diagnosis in map(_check_diagnosis, project.checks) if diagnosis.text not in texts]
    if any(diagnosis.severity != "note" for diagnosis in diagnoses):
        return diagnoses
    return [*diagnoses, _healthy_diagnosis(project)]


def _setup_diagnoses(project: ProjectView) -> Iterator[Diagnosis]:
    """Yield problems of settings, database, tables and checks. Nothing works until they are solved."""
    for problem in project.wrong_settings:
        next_step = _("Correct TEMPORALEX in the settings: docs/reference/settings.md lists all names.")
        yield Diagnosis(severity="error", code="settings", text=problem, next_step=next_step)
    words = {"database": project.database, "error": project.unreachable, "missing": ", ".join(project.unapplied)}
    if project.unreachable:
        text = _("The database %(database)s cannot be reached: %(error)s.") % words
        next_step = _("Check that it is running, and check its host, name and password in DATABASES.")
        yield Diagnosis(severity="error", code="unreachable", text=text, next_step=next_step)
    elif project.unapplied:
        text = _("The workflow tables on %(database)s are not up to date. Unapplied migrations: %(missing)s.") % words
        yield Diagnosis(severity="error", code="tables", text=text, next_step="manage.py migrate temporalex_django")
    yield from (_check_diagnosis(check) for check in project.checks if check.is_error)
    if not project.classes and not project.wrong_settings:  # nothing is loaded then
        text = _("No workflow class is registered in this project.")
        next_step = _("Define one in workflows.py of an installed app, or import it from there.")
        yield Diagnosis(severity="warning", code="no_classes", text=text, next_step=next_step)


def _check_diagnosis(check: FailedCheck) -> Diagnosis:
    return Diagnosis(
        severity="error" if check.is_error else "warning",
        code=check.id.rpartition(".")[2],
        text=check.text,
        next_step=check.hint or "manage.py check",
        evidence=[check.id],
    )


def _no_worker_diagnosis(project: ProjectView, now: datetime) -> Diagnosis:
    """Return the problem that no worker takes work: none is alive, or all of them are drained."""
    last_worker = max(project.workers, key=lambda worker: worker.last_seen_at, default=None)
    text = _("No live workers: runs cannot make progress.")
    if last_worker is not None:
        text = _("No live workers: runs cannot make progress. Last seen: %(worker)s, %(at)s.") % {
            "worker": last_worker.name,
            "at": format_time(last_worker.last_seen_at, now),
        }
    next_step = _("Start one: manage.py temporalex worker")
    since = None if last_worker is None else last_worker.last_seen_at
    remedy = Remedy(kind="workers", label=_("Start a worker"))
    # Drained workers are alive: undraining one is quicker than starting another, so it replaces the text above.
    if project.drained_workers:
        names = ", ".join(worker.name for worker in project.drained_workers[:_MAX_NAMES])
        text = _("All live workers are drained: runs cannot make progress. Drained: %(workers)s.") % {"workers": names}
        next_step = f"manage.py temporalex undrain {project.drained_workers[0].drained_id}"
        # Since the last of them was drained, no work has been taken.
        since = max((worker.drained_at for worker in project.drained_workers if worker.drained_at), default=None)
        remedy = Remedy(kind="workers", label=_("Undrain…"))
    due_count = sum(due_group.count for due_group in project.due_runs)
    count_text = ngettext(
        "%(count)d run is waiting for a worker", "%(count)d runs are waiting for a worker", due_count
    ) % {"count": due_count}
    # Without open runs, nobody is harmed yet.
    severity: Severity = "error" if project.open_count or due_count else "warning"
    return Diagnosis(
        severity=severity,
        code="no_worker",
        text=text,
        next_step=next_step,
        evidence=[count_text] if due_count else [],
        count=max(due_count, 1),
        since=since,
        remedy=remedy,
    )


def _worker_diagnoses(project: ProjectView, now: datetime) -> Iterator[Diagnosis]:
    """Yield problems of workers, and due runs that nobody takes. If no worker is active, only that is reported."""
    if not project.active_workers:
        # The project may run a django-q2 cluster and believe that it is a worker: say first why it is none.
        yield from (_check_diagnosis(check) for check in project.checks if check.id in _CLUSTER_CHECKS)
        yield _no_worker_diagnosis(project, now)
        return
    yield from _count_diagnoses(project, now)
    evidence = [f"{worker.name}: {', '.join(worker.queues)}" for worker in project.active_workers[:_MAX_NAMES]]
    for due in project.due_runs:
        # The switch explains why the runs wait, and has a diagnosis of its own.
        if project.is_switched_off("queue", due.queue):
            continue
        words: dict[str, object] = {
            "count": due.count, "workflow": due.workflow, "version": due.version, "queue": due.queue,
            "since": format_time(due.oldest, now), "span": format_duration(now - due.oldest), "missing": due.missing,
        }  # fmt: skip
        if due.missing is not None:
            text = ngettext(
                "%(count)d run of %(workflow)s (version %(version)d) has been due since %(since)s and is waiting for "
                "%(missing)s.",
                "%(count)d runs of %(workflow)s (version %(version)d) have been due since %(since)s and are waiting for "
                "%(missing)s.",
                due.count,
            )
            next_step = (
                _("Start a worker with the code of that version: manage.py temporalex worker --queues %(queue)s")
                % words
            )
            yield Diagnosis(
                severity="error",
                code="untaken",
                text=text % words,
                next_step=next_step,
                evidence=evidence,
                about=due.workflow,
                count=due.count,
                since=due.oldest,
                remedy=_worker_remedy(due.queue),
            )
        else:
            text = ngettext(
                "%(count)d run of %(workflow)s has been due for %(span)s, although a live worker can run it.",
                "%(count)d runs of %(workflow)s have been due for %(span)s, although a live worker can run them.",
                due.count,
            )
            next_step = _(
                "Check the load and the log of the workers, or start another one: manage.py temporalex worker"
            )
            yield Diagnosis(
                severity="warning",
                code="late",
                text=text % words,
                next_step=next_step,
                evidence=evidence,
                about=due.workflow,
                count=due.count,
                since=due.oldest,
                remedy=runs_remedy({"workflow": due.workflow, "stuck": "true"}, due.count),
            )


def _worker_remedy(queue: str) -> Remedy:
    return Remedy(kind="workers", name=queue, label=_("Start a worker for %(queue)s") % {"queue": queue})


def _count_diagnoses(project: ProjectView, now: datetime) -> Iterator[Diagnosis]:
    """Yield a diagnosis if fewer workers live than the project expects; it names lost ones."""
    count, expected = len(project.active_workers), project.expected_workers
    if expected is None or count >= expected:
        return
    text = ngettext(
        "%(count)d worker is alive, but the project expects %(expected)d.",
        "%(count)d workers are alive, but the project expects %(expected)d.",
        count,
    ) % {"count": count, "expected": expected}
    if project.lost_workers:
        last = project.lost_workers[0]
        words = {"name": last.name, "at": format_time(last.lost_at, now)}
        text = f"{text} {_('Last lost: %(name)s, %(at)s.') % words}"
    yield Diagnosis(
        severity="error",
        code="few_workers",
        text=text,
        next_step=_("Start more: manage.py temporalex worker; or correct TEMPORALEX['EXPECTED_WORKERS']"),
        evidence=[worker.name for worker in project.lost_workers[:_MAX_NAMES]],
        count=expected - count,
        remedy=Remedy(kind="workers", label=_("Start a worker")),
    )


def _switch_diagnoses(project: ProjectView, now: datetime) -> Iterator[Diagnosis]:
    """Yield queues and activities that are switched off; ``_stopped_diagnoses`` reports classes."""
    for switch in project.switches:
        # A class that is off matters only if it has runs, and they are reported as blocked with the code switched_off.
        if switch.kind != "workflow":
            text = switched_off_sentence(switch, _("the activity %(name)s") % {"name": switch.name}, now=now)
            if project.cluster is not None:
                text = f"{text} {unstopped_text(switch.kind)}".strip()
            key = f" --key {shlex.quote(switch.key)}" if switch.key else ""
            next_step = f"manage.py temporalex switches on {switch.kind} {shlex.quote(switch.name)}{key}"
            yield Diagnosis(
                severity="warning",
                code="off",
                text=text,
                next_step=next_step,
                about=switch.name,
                since=switch.since,
                remedy=Remedy(kind="switches", name=switch.name, label=_("Switch it on…")),
            )


def _message_diagnoses(project: ProjectView, now: datetime) -> Iterator[Diagnosis]:
    """Yield diagnoses of messages that failed because code of the project raised an error."""
    for group in project.failed_messages:
        words: dict[str, object] = {
            "count": group.count, "workflow": group.workflow, "name": group.name, "since": format_time(group.since, now),
        }  # fmt: skip
        run = shlex.quote(group.example)
        if group.kind == "signal":
            text = ngettext(
                "The handler of the signal “%(name)s” of %(workflow)s has failed for %(count)d signal since "
                "%(since)s. The signal is kept, but the run has not consumed it.",
                "The handler of the signal “%(name)s” of %(workflow)s has failed for %(count)d signals since "
                "%(since)s. The signals are kept, but the runs have not consumed them.",
                group.count,
            )
            next_step = _("Fix the handler, then: manage.py temporalex redeliver %(run)s") % {"run": run}
            yield Diagnosis(
                severity="error",
                code="failed_message",
                text=text % words,
                next_step=next_step,
                evidence=[group.example],
                about=f"{group.workflow} {group.name}",
                count=group.count,
                since=group.since,
                remedy=runs_remedy({"workflow": group.workflow, "stuck": "true"}, group.count),
            )
            continue
        text = ngettext(
            "The validator of the update %(name)s of %(workflow)s has failed %(count)d time since %(since)s. The "
            "sender got an error.",
            "The validator of the update %(name)s of %(workflow)s has failed %(count)d times since %(since)s. The "
            "senders got an error.",
            group.count,
        )
        next_step = _("Fix the validator. The log contains each failure with its reference.")
        yield Diagnosis(
            severity="error",
            code="validator_fault",
            text=text % words,
            next_step=next_step,
            evidence=[group.example],
            about=f"{group.workflow} {group.name}",
            count=group.count,
            since=group.since,
            remedy=runs_remedy({"workflow": group.workflow, "id_prefix": group.example}, 1),
        )


def _undecidable_diagnoses(project: ProjectView, now: datetime) -> Iterator[Diagnosis]:
    for group in project.undecidable_tasks:
        text = ngettext(
            "%(count)d human task of %(workflow)s has been waiting since %(since)s, but nobody may decide it, "
            "because every candidate took part in the run.",
            "%(count)d human tasks of %(workflow)s have been waiting since %(since)s, but nobody may decide "
            "them, because every candidate took part in the run.",
            group.count,
        )
        words: dict[str, object] = {
            "count": group.count,
            "workflow": group.workflow,
            "since": format_time(group.since, now),
        }
        next_step = _(
            "Give the required role to a user who took no part in the run: manage.py temporalex tasks show %(task)s"
        )
        if group.absent:
            text = ngettext(
                "%(count)d human task of %(workflow)s has been waiting since %(since)s. %(absent)s",
                "%(count)d human tasks of %(workflow)s have been waiting since %(since)s. %(absent)s",
                group.count,
            )
            words["absent"] = absent_sentence(group.absent)
            next_step = _("Delegate it, or give somebody the role: manage.py temporalex tasks show %(task)s")
        yield Diagnosis(
            severity="error",
            code="nobody_asked" if group.absent else "nobody_left",
            text=text % words,
            next_step=next_step % {"task": group.task},
            evidence=[group.example],
            about=" ".join([group.workflow, *(entry.name for entry in group.absent)]),
            count=group.count,
            since=group.since,
            remedy=Remedy(kind="tasks", name=group.task, label=_("Open the task")),
        )


def _outgoing_diagnoses(project: ProjectView, now: datetime) -> Iterator[Diagnosis]:
    """Yield a diagnosis for each destination that does not get its messages, or has refused some."""
    for group in project.outgoing_messages:
        words: dict[str, object] = {
            "count": group.count,
            "destination": group.destination,
            "since": format_time(group.since, now),
            "error": _("the last try failed") if group.has_failed else _("no worker has sent it"),
        }
        text = ngettext(
            "%(count)d message to %(destination)s has been waiting since %(since)s: %(error)s.",
            "%(count)d messages to %(destination)s have been waiting since %(since)s. The oldest: %(error)s.",
            group.count,
        )
        step = _("Check that a worker is running and can reach the destination: manage.py temporalex outbox show")
        yield Diagnosis(
            severity="warning",
            code="outbox_late",
            text=text % words,
            next_step=step,
            evidence=[group.example],
            about=group.destination,
            count=group.count,
            since=group.since,
            remedy=Remedy(kind="outbox", label=_("See the messages")),
        )


#: The texts about a run that has nearly reached a limit of the cluster, by its kind.
_FULL_TEXTS: Final = {
    "history": (
        gettext_noop("The history of %(workflow)s %(id)s has reached %(share)d %% of a limit of the Temporal cluster."),
        gettext_noop("Let its code continue as new: at the limit, the cluster terminates the run."),
    ),
    "signals": (
        gettext_noop("%(workflow)s %(id)s has received %(share)d %% of the signals that the Temporal cluster accepts."),
        gettext_noop("Let its code continue as new: at the limit, the cluster refuses further signals to the run."),
    ),
    "updates": (
        gettext_noop("%(workflow)s %(id)s has received %(share)d %% of the updates that the Temporal cluster accepts."),
        gettext_noop("Let its code continue as new: at the limit, the cluster refuses further updates of the run."),
    ),
}


def _cluster_diagnoses(project: ProjectView, now: datetime) -> Iterator[Diagnosis]:
    """Yield that a cluster does not answer, nobody polls it or compares its runs, or its clock is wrong."""
    cluster = project.cluster
    if cluster is None:
        return
    if cluster.error:
        text = _("The Temporal cluster at %(address)s does not answer: %(error)s.") % {
            "address": cluster.address,
            "error": cluster.error.rstrip("."),
        }
        next_step = _("Check that it is running, and TEMPORALEX['CLUSTER']. Runs there continue when it answers again.")
        yield Diagnosis(severity="error", code="cluster_away", text=text, next_step=next_step)
        return
    if cluster.old_version:
        text = _("The Temporal cluster has the version %(version)s, which is too old.") % {
            "version": cluster.old_version
        }
        next_step = _("Update it to 1.32 or later: older versions lack requests that operators and pauses need.")
        yield Diagnosis(severity="warning", code="cluster_old", text=text, next_step=next_step)
    if cluster.misplaced_id:
        text = _("The run %(id)s on the Temporal cluster is open and has another PREFIX: no worker polls its queue.")
        next_step = _("Set the earlier PREFIX in TEMPORALEX['CLUSTER'] until the runs that have it have ended.")
        yield Diagnosis(
            severity="error",
            code="cluster_prefix",
            text=text % {"id": cluster.misplaced_id},
            next_step=next_step,
            evidence=[cluster.misplaced_id],
        )
    for queue in cluster.unpolled_queues:
        text = _("No worker polls the queue %(queue)s on the Temporal cluster, where runs are open.") % {"queue": queue}
        next_step = _("Start one: manage.py temporalex worker --queues %(queue)s") % {"queue": queue}
        yield Diagnosis(
            severity="error",
            code="cluster_unpolled",
            text=text,
            next_step=next_step,
            about=queue,
            remedy=_worker_remedy(queue),
        )
    since = cluster.compared_until
    if project.active_workers and (since is None or (now - since).total_seconds() > _MAX_UNCOMPARED_SECONDS):
        text = _("No worker compares the rows of runs with the Temporal cluster: closed runs may still appear as open.")
        next_step = _("Look for errors in the log of the workers, or compare the rows now: manage.py temporalex sync")
        yield Diagnosis(severity="warning", code="mirror_behind", text=text, next_step=next_step)
    if abs(cluster.skew) >= _MAX_SKEW_SECONDS:
        words = {"skew": format_duration(abs(cluster.skew))}
        if cluster.skew > 0:
            text = _("The clock of the Temporal cluster is %(skew)s ahead of the database's.") % words
        else:
            text = _("The clock of the Temporal cluster is at least %(skew)s behind the database's.") % words
        next_step = _("Synchronize the clocks of all machines with NTP.")
        yield Diagnosis(severity="warning", code="cluster_clock", text=text, next_step=next_step)
    for run in cluster.full_histories:
        text, next_step = _FULL_TEXTS[run.kind]
        facts: dict[str, object] = {"workflow": run.workflow, "id": run.id, "share": int(100 * run.share)}
        yield Diagnosis(
            severity="warning",
            code="history_full",
            text=_(text) % facts,
            next_step=_(next_step),
            evidence=[run.id],
        )
    if cluster.build is not None:
        yield from _build_diagnoses(cluster.build)


def _build_diagnoses(build: BuildView) -> Iterator[Diagnosis]:
    """Yield that other code has the build of this process, or that the build gets no runs of a cluster."""
    words = {"build": build.build, "deployment": build.deployment}
    if build.is_reused:
        text = _("The build %(build)s of the deployment %(deployment)s was deployed before with other code.") % words
        next_step = _("Give each deploy its own BUILD_ID in TEMPORALEX['CLUSTER'].")
        yield Diagnosis(severity="error", code="build_reused", text=text, next_step=next_step)
    elif build.current != build.build:
        text = _("The build %(build)s of the deployment %(deployment)s is not current: its workers get no new runs.")
        next_step = _("Check it and make it current: manage.py temporalex replay --open --make-current")
        yield Diagnosis(severity="warning", code="build_waits", text=text % words, next_step=next_step)


def _overdue_diagnoses(project: ProjectView, now: datetime) -> Iterator[Diagnosis]:
    for group in project.overdue_tasks:
        text = ngettext(
            "%(count)d human task of %(workflow)s has been overdue since %(since)s.",
            "%(count)d human tasks of %(workflow)s have been overdue since %(since)s.",
            group.count,
        )
        words: dict[str, object] = {
            "count": group.count,
            "workflow": group.workflow,
            "since": format_time(group.since, now),
        }
        yield Diagnosis(
            severity="warning",
            code="overdue",
            text=text % words,
            next_step=_("See who may decide: manage.py temporalex describe %(run)s")
            % {"run": shlex.quote(group.example)},
            evidence=[group.example],
            about=group.workflow,
            count=group.count,
            since=group.since,
            remedy=runs_remedy({"workflow": group.workflow, "id_prefix": group.example}, 1),
        )


def _stopped_diagnoses(project: ProjectView) -> Iterator[Diagnosis]:
    """Yield diagnoses of runs that are paused, or wait because their class is switched off."""
    for group in project.stopped_runs:
        words: dict[str, object] = {"count": group.count, "workflow": group.workflow, "code": group.code}
        if group.code == "paused":
            text = ngettext(
                "%(count)d run of %(workflow)s is paused.", "%(count)d runs of %(workflow)s are paused.", group.count
            )
            next_step = f"manage.py temporalex unpause {shlex.quote(group.example)}"
            yield Diagnosis(
                severity="warning",
                code="paused",
                text=text % words,
                next_step=next_step,
                evidence=[group.example],
                about=group.workflow,
                count=group.count,
                since=group.since,
                remedy=Remedy(
                    kind="bulk",
                    action="unpause",
                    filters={"workflow": group.workflow, "paused": "true"},
                    label=ngettext("Unpause it…", "Unpause all %(count)d…", group.count) % words,
                ),
            )
            continue
        if group.code == "switched_off":
            text = ngettext(
                "%(count)d run of %(workflow)s is waiting: its class is switched off.",
                "%(count)d runs of %(workflow)s are waiting: their class is switched off.",
                group.count,
            )
            next_step = f"manage.py temporalex switches on workflow {shlex.quote(group.workflow)}"
            yield Diagnosis(
                severity="warning",
                code="off",
                text=text % words,
                next_step=next_step,
                evidence=[group.example],
                about=group.workflow,
                count=group.count,
                since=group.since,
                remedy=Remedy(kind="switches", name=group.workflow, label=_("Switch it on…")),
            )


def _unclaimed_diagnoses(project: ProjectView, now: datetime) -> Iterator[Diagnosis]:
    for task in project.unclaimed_activities:
        # A switch is the cause here, not a missing worker.
        if project.is_switched_off("queue", task.queue) or project.is_switched_off("activity", task.activity):
            continue
        words: dict[str, object] = {
            "count": task.count,
            "activity": task.activity,
            "queue": task.queue,
            "since": format_time(task.since, now),
        }
        # A worker polls the queue: starting another with the same code would not help.
        if task.pollers:
            text = ngettext(
                "In %(count)d run, the activity %(activity)s has been waiting for a worker since %(since)s. %(polled)s.",
                "In %(count)d runs, the activity %(activity)s has been waiting for a worker since %(since)s. "
                "%(polled)s.",
                task.count,
            )
            poller_text = no_code_text(task.activity, queue=task.queue, pollers=task.pollers)
            next_step = _("Deploy the code of the activity to the workers of the queue %(queue)s") % words
            yield Diagnosis(
                severity="error",
                code="untaken_activity",
                text=text % {**words, "polled": poller_text},
                next_step=next_step,
                about=task.activity,
                count=task.count,
                since=task.since,
                remedy=Remedy(kind="workers", name=task.queue, label=_("See the workers")),
            )
            continue
        text = ngettext(
            "In %(count)d run, the activity %(activity)s has been waiting for a worker since %(since)s. No live worker "
            "polls the queue %(queue)s.",
            "In %(count)d runs, the activity %(activity)s has been waiting for a worker since %(since)s. No live "
            "worker polls the queue %(queue)s.",
            task.count,
        )
        next_step = _("manage.py temporalex worker --queues %(queue)s, with the code of the activity") % words
        yield Diagnosis(
            severity="error",
            code="untaken_activity",
            text=text % words,
            next_step=next_step,
            about=task.activity,
            count=task.count,
            since=task.since,
            remedy=_worker_remedy(task.queue),
        )


def _clock_diagnoses(project: ProjectView) -> Iterator[Diagnosis]:
    worker_skews = [(worker.name, worker.skew) for worker in project.active_workers]
    for name, skew in [(_("this process"), project.skew), *worker_skews]:
        if abs(skew) < _MAX_SKEW_SECONDS:
            continue
        words = {"name": name, "skew": format_duration(abs(skew))}
        # Due times are written by one clock and compared with another, so both directions do harm.
        if skew > 0:
            text = (
                _("The clock of %(name)s is %(skew)s ahead of the database's: timers fire and leases expire too early.")
                % words
            )
        else:
            text = (
                _("The clock of %(name)s is %(skew)s behind the database's: timers fire and leases expire too late.")
                % words
            )
        next_step = _("Synchronize the clocks of all machines with NTP.")
        yield Diagnosis(severity="warning", code="clock", text=text, next_step=next_step, evidence=[f"{skew:+.1f} s"])


def _healthy_diagnosis(project: ProjectView) -> Diagnosis:
    if not project.open_count:
        text = _("No runs are open: there is nothing to do.")
        next_step = _("Start one: manage.py temporalex start FLOW")
    else:
        text = ngettext(
            (
                "No problems found: %(count)d run is open and will continue when the event that it is waiting for "
                "arrives."
            ),
            (
                "No problems found: %(count)d runs are open and will continue when the events that they are waiting "
                "for arrive."
            ),
            project.open_count,
        ) % {"count": project.open_count}
        next_step = _("See what a run is waiting for: manage.py temporalex doctor RUN")
    return Diagnosis(severity="note", code="well", text=text, next_step=next_step)


#: What to do about a run, by the state of its summary; of a blocked one by the code of what stopped it.
_NEXT_STEPS = {
    "nondeterminism": gettext_noop("Fix the code, or: manage.py temporalex reset {run}"),
    "crash": gettext_noop(
        "Fix the code, then: manage.py temporalex try-again {run} (one worker runs it, alone); or terminate it"
    ),
    "blocked": gettext_noop(
        "Fix the code: the run is then retried. To retry it now: manage.py temporalex try-again {run}; or: manage.py "
        "temporalex reset {run}"
    ),
    "failing": gettext_noop("Fix the cause, then: manage.py temporalex retry {run} SEQ (or complete, or fail)"),
    "several": gettext_noop("See which: manage.py temporalex describe {run}"),
    "silent": gettext_noop("Check the machine on which its worker runs"),
    "no_worker": gettext_noop("Start a worker that polls its queue and has its code: manage.py temporalex worker"),
    "late": gettext_noop(
        "Check the load and the log of the workers, or start another one: manage.py temporalex worker"
    ),
    "not_begun": gettext_noop("Wait, or: manage.py temporalex cancel {run}"),
    "not_taken_up": gettext_noop("Start a worker that has its class: manage.py temporalex worker"),
    "paused": gettext_noop("manage.py temporalex unpause {run}"),
    "off": gettext_noop("See what is switched off: manage.py temporalex switches show"),
    "failed": gettext_noop(
        "See why: manage.py temporalex history {run}; go back to an earlier point: manage.py temporalex reset {run}"
    ),
    "timed_out": gettext_noop(
        "See why: manage.py temporalex history {run}; copy it from an earlier point: manage.py temporalex fork {run}"
    ),
    "decision": gettext_noop("manage.py temporalex resume {run} EVENT"),
    "timer": gettext_noop("Wait, or: manage.py temporalex skip {run} SEQ"),
}


def diagnose_run(
    state: str, text: str, *, run: str, trouble: bool, closed: bool, code: str = "", lacks: str | None = None
) -> Diagnosis:
    """Return a diagnosis of one run with the next step, for ``doctor RUN``.

    ``state`` and ``text`` describe the run: a word and sentences, as ``sentences.Summary`` has them. ``run`` is its id,
    quoted for the shell. ``trouble`` is True if a person should look at it. ``code`` is the code of the error that
    blocks it, or empty, and ``lacks`` names the code or the key that no worker has.
    """
    severity: Severity = "error" if trouble else "warning" if state == "paused" else "note"
    if state == "blocked" and lacks is not None:
        return Diagnosis(severity=severity, code=state, text=text, next_step=missing_step(code, lacks))
    next_step = _NEXT_STEPS.get(code) or _NEXT_STEPS.get(state)
    if next_step is None:
        next_step = gettext_noop("Send what it is waiting for: manage.py temporalex describe {run}")
        if closed:
            next_step = gettext_noop("There is nothing to do.")
    return Diagnosis(severity=severity, code=state, text=text, next_step=_(next_step).format(run=run))
