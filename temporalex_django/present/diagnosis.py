"""Why does nothing happen? What is wrong with a project and its runs, likeliest first, each with the next step."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop, ngettext

from temporalex_django.present.facts import SwitchNow
from temporalex_django.present.troubles import no_code, switched_off
from temporalex_django.present.words import span, when

Severity = Literal["error", "warning", "note"]

#: A clock that is off by more moves timers and leases in a way that people notice.
_SKEW = 2.0
_NAMED = 5
#: Checks that say why a django-q2 cluster is no worker.
_OF_CLUSTERS = ("temporalex_django.W004", "temporalex_django.W006")


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One thing that was found: ``code`` for programs, a sentence, what it is seen by, and the next step."""

    severity: Severity
    code: str
    text: str
    next_step: str
    evidence: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFailed:
    """What a system check says."""

    id: str
    error: bool
    text: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerNow:
    """A worker. ``skew``: its clock minus the database's, in seconds; ``drained``: its id, if somebody drains it."""

    name: str
    queues: Sequence[str]
    alive: bool
    seen: datetime
    skew: float = 0.0
    drained: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsDue:
    """Runs of a class that wait for a turn. ``missing``: why no live worker takes them; None: one could."""

    workflow: str
    version: int
    queue: str
    count: int
    oldest: datetime
    missing: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsStopped:
    """Runs of a class that are blocked for one reason, or paused (``code`` paused)."""

    workflow: str
    code: str
    count: int
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesFailed:
    """Messages of one name and class that somebody has to look at.

    Signals whose handler failed (``kind`` signal), or updates whose validator failed by a fault of the code (update).
    ``example`` is the id of a run.
    """

    kind: str
    name: str
    workflow: str
    count: int
    since: datetime
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksLonely:
    """Human tasks of a class that nobody may decide. ``example`` is the id of a run, ``task`` that of a task of it."""

    workflow: str
    count: int
    since: datetime
    example: str
    task: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivitiesNow:
    """Activities of one name in a queue that are due, and that nobody takes.

    ``pollers`` live workers poll the queue.
    """

    activity: str
    queue: str
    count: int
    since: datetime
    pollers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """Failures of one class with one cause: the type of the error, and the place that raised it.

    ``activity`` is the one that fails and is tried again; None: runs that have failed. ``example`` is the id of a run.
    """

    workflow: str
    cause: str
    count: int
    since: datetime
    example: str
    activity: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectNow:
    """All that is known of a project. What could not be read is empty; ``unreachable`` and ``unapplied`` say why."""

    database: str
    wrong_settings: Sequence[str] = ()
    unreachable: str = ""
    unapplied: Sequence[str] = ()
    checks: Sequence[CheckFailed] = ()
    classes: int = 0
    open: int = 0
    workers: Sequence[WorkerNow] = ()
    due: Sequence[RunsDue] = ()
    stopped: Sequence[RunsStopped] = ()
    activities: Sequence[ActivitiesNow] = ()
    failures: Sequence[FailureGroup] = ()
    messages: Sequence[MessagesFailed] = ()
    lonely: Sequence[TasksLonely] = ()
    off: Sequence[SwitchNow] = ()
    skew: float = 0.0

    @property
    def alive(self) -> list[WorkerNow]:
        """Workers that are, and take work."""
        return [worker for worker in self.workers if worker.alive and not worker.drained]

    @property
    def drained(self) -> list[WorkerNow]:
        """Workers that are alive and take nothing new."""
        return [worker for worker in self.workers if worker.alive and worker.drained]

    def is_off(self, kind: str, name: str) -> bool:
        """Whether somebody has switched that off."""
        return any((one.kind, one.name) == (kind, name) for one in self.off)


def diagnose(project: ProjectNow, *, now: datetime) -> list[Diagnosis]:
    """What is wrong, likeliest first; never empty: where nothing is wrong it says so."""
    found = [*_set_up(project)]
    if not (project.wrong_settings or project.unreachable or project.unapplied):
        found += [*_workers(project, now), *_switches(project, now), *_runs(project, now), *_messages(project, now)]
        found += [*_failures(project, now), *_lonely(project, now), *_clocks(project)]
        told = {one.text for one in found}
        found += [one for one in map(_of_check, project.checks) if one.text not in told]
    if any(one.severity != "note" for one in found):
        return found
    return [*found, _well(project)]


def _set_up(project: ProjectNow) -> Iterator[Diagnosis]:
    """Without which nothing can work."""
    for problem in project.wrong_settings:
        then = _("Correct TEMPORALEX in the settings: docs/reference/settings.md has all names.")
        yield Diagnosis(severity="error", code="settings", text=problem, next_step=then)
    words = {"database": project.database, "error": project.unreachable, "missing": ", ".join(project.unapplied)}
    if project.unreachable:
        text = _("The database %(database)s cannot be reached: %(error)s.") % words
        then = _("See whether it runs, and what DATABASES says of host, name and password.")
        yield Diagnosis(severity="error", code="unreachable", text=text, next_step=then)
    elif project.unapplied:
        text = _("The tables of workflows are not up to date on %(database)s: %(missing)s is not applied.") % words
        yield Diagnosis(severity="error", code="tables", text=text, next_step="manage.py migrate temporalex_django")
    yield from (_of_check(check) for check in project.checks if check.error)
    if not project.classes and not project.wrong_settings:  # nothing is loaded then
        text = _("No workflow class is registered in this project.")
        then = _("Put them in workflows.py of an installed app, or import them from there.")
        yield Diagnosis(severity="warning", code="no_classes", text=text, next_step=then)


def _of_check(check: CheckFailed) -> Diagnosis:
    return Diagnosis(
        severity="error" if check.error else "warning",
        code=check.id.rpartition(".")[2],
        text=check.text,
        next_step=check.hint or "manage.py check",
        evidence=[check.id],
    )


def _workers(project: ProjectNow, now: datetime) -> Iterator[Diagnosis]:
    """Who is to do it."""
    if not project.alive:
        yield from (_of_check(check) for check in project.checks if check.id in _OF_CLUSTERS)
        last = max(project.workers, key=lambda worker: worker.seen, default=None)
        text = _("No worker is alive: nothing goes on.")
        if last is not None:
            text = _("No worker is alive: nothing goes on. The last one was %(worker)s, at %(at)s.") % {
                "worker": last.name,
                "at": when(last.seen, now),
            }
        then = _("Start one: manage.py temporalex worker")
        if project.drained:
            names = ", ".join(worker.name for worker in project.drained[:_NAMED])
            text = _("No worker takes work: nothing goes on. Those that are alive are drained: %(workers)s.") % {
                "workers": names
            }
            then = f"manage.py temporalex undrain {project.drained[0].drained}"
        waits = sum(one.count for one in project.due)
        counted = ngettext("%(count)d run waits for a turn", "%(count)d runs wait for a turn", waits) % {"count": waits}
        severity: Severity = "error" if project.open or waits else "warning"
        yield Diagnosis(
            severity=severity, code="no_worker", text=text, next_step=then, evidence=[counted] if waits else []
        )
        return
    evidence = [f"{worker.name}: {', '.join(worker.queues)}" for worker in project.alive[:_NAMED]]
    for due in project.due:
        if project.is_off("queue", due.queue):
            continue
        words: dict[str, object] = {
            "count": due.count, "workflow": due.workflow, "version": due.version, "queue": due.queue,
            "since": when(due.oldest, now), "span": span(now - due.oldest), "missing": due.missing,
        }  # fmt: skip
        if due.missing is not None:
            text = ngettext(
                "%(count)d run of %(workflow)s (version %(version)d) is due since %(since)s and waits for %(missing)s.",
                "%(count)d runs of %(workflow)s (version %(version)d) are due since %(since)s and wait for %(missing)s.",
                due.count,
            )
            then = _("manage.py temporalex worker --queues %(queue)s, with the code of that version") % words
            yield Diagnosis(severity="error", code="untaken", text=text % words, next_step=then, evidence=evidence)
        else:
            text = ngettext(
                "%(count)d run of %(workflow)s is due for %(span)s, although a live worker takes it.",
                "%(count)d runs of %(workflow)s are due for %(span)s, although a live worker takes them.",
                due.count,
            )
            then = _("Look at the load and the log of the workers; start another one: manage.py temporalex worker")
            yield Diagnosis(severity="warning", code="late", text=text % words, next_step=then, evidence=evidence)


def _switches(project: ProjectNow, now: datetime) -> Iterator[Diagnosis]:
    """Queues and activities that nobody is to take; of a class its runs say so."""
    for one in project.off:
        if one.kind != "workflow":
            text = switched_off(one, _("the activity %(name)s") % {"name": one.name}, now=now)
            then = f"manage.py temporalex switches on {one.kind} {shlex.quote(one.name)}"
            yield Diagnosis(severity="warning", code="off", text=text, next_step=then)


def _messages(project: ProjectNow, now: datetime) -> Iterator[Diagnosis]:
    """Messages that failed in code of the project."""
    for one in project.messages:
        words: dict[str, object] = {
            "count": one.count, "workflow": one.workflow, "name": one.name, "since": when(one.since, now),
        }  # fmt: skip
        run = shlex.quote(one.example)
        if one.kind == "signal":
            text = ngettext(
                "%(count)d signal %(name)s of %(workflow)s failed in its handler since %(since)s: it is kept, and the run "
                "has not taken it.",
                "%(count)d signals %(name)s of %(workflow)s failed in their handler since %(since)s: they are kept, and "
                "the runs have not taken them.",
                one.count,
            )
            then = _("Put the handler right, then: manage.py temporalex redeliver %(run)s") % {"run": run}
            yield Diagnosis(
                severity="error", code="failed_message", text=text % words, next_step=then, evidence=[one.example]
            )
            continue
        text = ngettext(
            "The validator of the update %(name)s of %(workflow)s failed %(count)d time since %(since)s: nobody was answered.",
            "The validator of the update %(name)s of %(workflow)s failed %(count)d times since %(since)s: nobody was answered.",
            one.count,
        )
        then = _("Put the validator right: the log has each failure under its reference.")
        yield Diagnosis(
            severity="error", code="validator_fault", text=text % words, next_step=then, evidence=[one.example]
        )


def _lonely(project: ProjectNow, now: datetime) -> Iterator[Diagnosis]:
    """Human tasks that nobody may decide."""
    for one in project.lonely:
        text = ngettext(
            "%(count)d human task of %(workflow)s waits since %(since)s, and nobody may decide it: four eyes shut out "
            "everybody whom it asks.",
            "%(count)d human tasks of %(workflow)s wait since %(since)s, and nobody may decide them: four eyes shut out "
            "everybody whom they ask.",
            one.count,
        )
        words: dict[str, object] = {"count": one.count, "workflow": one.workflow, "since": when(one.since, now)}
        then = _(
            "Give the role that it asks for to somebody who had no part in the run: manage.py temporalex tasks show %(task)s"
        )
        yield Diagnosis(
            severity="error",
            code="nobody_left",
            text=text % words,
            next_step=then % {"task": one.task},
            evidence=[one.example],
        )


def _runs(project: ProjectNow, now: datetime) -> Iterator[Diagnosis]:
    """What stands still, and what fails."""
    for one in project.stopped:
        words: dict[str, object] = {"count": one.count, "workflow": one.workflow, "code": one.code}
        if one.code == "paused":
            text = ngettext(
                "%(count)d run of %(workflow)s is paused.", "%(count)d runs of %(workflow)s are paused.", one.count
            )
            then = f"manage.py temporalex unpause {shlex.quote(one.example)}"
            yield Diagnosis(
                severity="warning", code="paused", text=text % words, next_step=then, evidence=[one.example]
            )
            continue
        if one.code == "switched_off":
            text = ngettext(
                "%(count)d run of %(workflow)s waits: its class is switched off.",
                "%(count)d runs of %(workflow)s wait: their class is switched off.",
                one.count,
            )
            then = f"manage.py temporalex switches on workflow {shlex.quote(one.workflow)}"
            yield Diagnosis(severity="warning", code="off", text=text % words, next_step=then, evidence=[one.example])
            continue
        text = ngettext(
            "%(count)d run of %(workflow)s is stopped safely (%(code)s): nothing is lost, and it does not go on.",
            "%(count)d runs of %(workflow)s are stopped safely (%(code)s): nothing is lost, and they do not go on.",
            one.count,
        )
        then = _("See why: manage.py temporalex doctor %(run)s") % {"run": shlex.quote(one.example)}
        yield Diagnosis(severity="error", code="blocked", text=text % words, next_step=then, evidence=[one.example])
    for task in project.activities:
        if project.is_off("queue", task.queue) or project.is_off("activity", task.activity):
            continue
        words = {"count": task.count, "activity": task.activity, "queue": task.queue, "since": when(task.since, now)}
        if task.pollers:
            text = ngettext(
                "The activity %(activity)s is ready in %(count)d run since %(since)s. %(polled)s.",
                "The activity %(activity)s is ready in %(count)d runs since %(since)s. %(polled)s.",
                task.count,
            )
            polled = no_code(task.activity, queue=task.queue, pollers=task.pollers)
            then = _("Deploy the code of the activity to the workers of the queue %(queue)s") % words
            yield Diagnosis(
                severity="error", code="untaken_activity", text=text % {**words, "polled": polled}, next_step=then
            )
            continue
        text = ngettext(
            "The activity %(activity)s is ready in %(count)d run since %(since)s, and no live worker takes it from the "
            "queue %(queue)s.",
            "The activity %(activity)s is ready in %(count)d runs since %(since)s, and no live worker takes it from the "
            "queue %(queue)s.",
            task.count,
        )
        then = _("manage.py temporalex worker --queues %(queue)s, with the code of the activity") % words
        yield Diagnosis(severity="error", code="untaken_activity", text=text % words, next_step=then)


def _failures(project: ProjectNow, now: datetime) -> Iterator[Diagnosis]:
    for group in project.failures:
        filters = f"--workflow {shlex.quote(group.workflow)} --cause {shlex.quote(group.cause)}"
        words = {
            "count": group.count,
            "workflow": group.workflow,
            "cause": group.cause,
            "since": when(group.since, now),
            "filters": filters,
        }
        if group.activity is not None:
            code, text = (
                "failing",
                ngettext(
                    "%(count)d activity of %(workflow)s fails since %(since)s, and is tried again: %(cause)s.",
                    "%(count)d activities of %(workflow)s fail since %(since)s, and are tried again: %(cause)s.",
                    group.count,
                ),
            )
            then = _("Put right what it calls, then: manage.py temporalex bulk retry_activity %(filters)s")
        else:
            code, text = (
                "failed",
                ngettext(
                    "%(count)d run of %(workflow)s has failed since %(since)s: %(cause)s.",
                    "%(count)d runs of %(workflow)s have failed since %(since)s: %(cause)s.",
                    group.count,
                ),
            )
            then = _("See which: manage.py temporalex list %(filters)s")
        yield Diagnosis(
            severity="warning", code=code, text=text % words, next_step=then % words, evidence=[group.example]
        )


def _clocks(project: ProjectNow) -> Iterator[Diagnosis]:
    off = [(worker.name, worker.skew) for worker in project.alive]
    for name, skew in [(_("this process"), project.skew), *off]:
        if abs(skew) < _SKEW:
            continue
        words = {"name": name, "skew": span(abs(skew))}
        if skew > 0:
            text = (
                _("The clock of %(name)s is %(skew)s ahead of the database's: timers and leases end too early.") % words
            )
        else:
            text = _("The clock of %(name)s is %(skew)s behind the database's: timers and leases end too late.") % words
        then = _("Let NTP set the clocks of all machines.")
        yield Diagnosis(severity="warning", code="clock", text=text, next_step=then, evidence=[f"{skew:+.1f} s"])


def _well(project: ProjectNow) -> Diagnosis:
    if not project.open:
        text = _("No run is open: there is nothing to do.")
        then = _("Start one: manage.py temporalex start FLOW")
    else:
        text = ngettext(
            "Nothing is wrong: %(count)d run is open, and goes on when what it waits for comes.",
            "Nothing is wrong: %(count)d runs are open, and go on when what they wait for comes.",
            project.open,
        ) % {"count": project.open}
        then = _("See what one waits for: manage.py temporalex doctor RUN")
    return Diagnosis(severity="note", code="well", text=text, next_step=then)


#: What to do about a run, by the state of its summary; of a blocked one by the code of what stopped it.
_STEPS = {
    "nondeterminism": gettext_noop("Put the code right, or: manage.py temporalex reset {run}"),
    "crash": gettext_noop(
        "Put the code right, then: manage.py temporalex try-again {run} (on one worker, alone); or terminate it"
    ),
    "key_missing": gettext_noop("Start a worker that has the key"),
    "blocked": gettext_noop(
        "Put the code right: it is tried again, now with: manage.py temporalex try-again {run}; or: manage.py temporalex "
        "reset {run}"
    ),
    "failing": gettext_noop(
        "Put right what it calls; then: manage.py temporalex retry {run} SEQ (or complete, or fail)"
    ),
    "several": gettext_noop("See which: manage.py temporalex describe {run}"),
    "silent": gettext_noop("Look at the machine of its worker"),
    "no_worker": gettext_noop("Start a worker that takes its queue and has its code: manage.py temporalex worker"),
    "late": gettext_noop("Look at the load and the log of the workers; start another one: manage.py temporalex worker"),
    "not_taken_up": gettext_noop("Start a worker that has its class: manage.py temporalex worker"),
    "paused": gettext_noop("manage.py temporalex unpause {run}"),
    "off": gettext_noop("See what is off: manage.py temporalex switches show"),
    "failed": gettext_noop(
        "See how: manage.py temporalex history {run}; take it back: manage.py temporalex reset {run}"
    ),
    "timed_out": gettext_noop(
        "See how: manage.py temporalex history {run}; take it back: manage.py temporalex fork {run}"
    ),
    "decision": gettext_noop("manage.py temporalex resume {run} EVENT"),
    "timer": gettext_noop("Wait, or: manage.py temporalex skip {run} SEQ"),
}


def of_run(state: str, text: str, *, run: str, trouble: bool, closed: bool, code: str = "") -> Diagnosis:
    """What is to be done about one run, from the sentence about it; ``run`` as a shell takes it.

    ``code`` is what stopped a blocked one.
    """
    step = _STEPS.get(code) or _STEPS.get(state)
    if step is None:
        step = gettext_noop("Send what it waits for: manage.py temporalex describe {run}")
        step = gettext_noop("Nothing is to be done.") if closed else step
    severity: Severity = "error" if trouble else "warning" if state == "paused" else "note"
    return Diagnosis(severity=severity, code=state, text=text, next_step=_(step).format(run=run))
