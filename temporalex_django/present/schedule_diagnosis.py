"""Diagnoses of schedules, each with the next step: why one does not fire, or what became of its slots."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from temporalex_django.present.formatting import format_time
from temporalex_django.present.view_models import Diagnosis, Remedy, ScheduleProblem, Severity


class _Sentence(NamedTuple):
    """The texts of the diagnoses of one kind of problem of schedules.

    ``text`` and ``next_step`` have placeholders, such as ``%(schedule)s``, for the facts of a problem.
    """

    severity: Severity
    text: Any
    next_step: Any


_SENTENCES: Mapping[str, _Sentence] = {
    "overdue": _Sentence(
        "error",
        ngettext_lazy(
            "%(count)d schedule has been overdue since %(since)s (%(schedule)s): no worker is firing schedules.",
            "%(count)d schedules are overdue (for example, %(schedule)s since %(since)s): no worker is firing schedules.",
            "count",
        ),
        _("Start a worker, or check the logs of the running workers: manage.py temporalex worker"),
    ),
    "ahead": _Sentence(
        "error",
        _(
            "The schedule %(schedule)s has already fired slots that are in the future, because the clock was set back. "
            "It will not fire until %(since)s."
        ),
        _(
            "Let it fire from now on: manage.py temporalex schedules pause %(name)s, then: manage.py temporalex schedules "
            "unpause %(name)s"
        ),
    ),
    "error": _Sentence(
        "error",
        _("The schedule %(schedule)s cannot compute its slots: %(detail)s."),
        _("Correct the cause; workers try again every minute."),
    ),
    "class": _Sentence(
        "error",
        ngettext_lazy(
            "The class %(workflow)s no longer exists, but %(count)d schedule starts runs of it (%(schedule)s).",
            (
                "The class %(workflow)s no longer exists, but %(count)d schedules start runs of it (such as "
                "%(schedule)s)."
            ),
            "count",
        ),
        _("Restore the class, or: manage.py temporalex schedules pause %(name)s"),
    ),
    "unpolled": _Sentence(
        "warning",
        ngettext_lazy(
            "%(count)d schedule starts runs of %(workflow)s (%(schedule)s), which are waiting for %(detail)s.",
            (
                "%(count)d schedules start runs of %(workflow)s (such as %(schedule)s), which are waiting for "
                "%(detail)s."
            ),
            "count",
        ),
        _("Start a worker that has the class and polls its queue: manage.py temporalex worker"),
    ),
    "missed": _Sentence(
        "warning",
        ngettext_lazy(
            "%(count)d slot of the schedule %(schedule)s was missed in the last day.",
            "%(count)d slots of the schedule %(schedule)s were missed in the last day.",
            "count",
        ),
        _("See which: manage.py temporalex schedules show %(name)s (to start them: schedules backfill)"),
    ),
    "stalled": _Sentence(
        "error",
        _("The schedule %(schedule)s has left out its last %(count)d slots, since %(since)s."),
        _("See which: manage.py temporalex schedules show %(name)s (to start them: schedules backfill)"),
    ),
    "stalled_by_run": _Sentence(
        "error",
        _(
            "The schedule %(schedule)s has left out its last %(count)d slots, since %(since)s: the run %(run)s is in "
            "the way."
        ),
        _("See why it is open: manage.py temporalex doctor %(quoted_run)s"),
    ),
    "stalled_by_block": _Sentence(
        "error",
        _(
            "The schedule %(schedule)s has left out its last %(count)d slots, since %(since)s: the run %(run)s is in "
            "the way, and it is blocked."
        ),
        _("See why it is blocked: manage.py temporalex doctor %(quoted_run)s"),
    ),
    "failures": _Sentence(
        "warning",
        ngettext_lazy(
            "The schedule %(schedule)s was paused automatically after %(count)d failure, at %(since)s.",
            "The schedule %(schedule)s was paused automatically after %(count)d failures in a row, at %(since)s.",
            "count",
        ),
        _("Fix the cause, then: manage.py temporalex schedules unpause %(name)s"),
    ),
    "gone": _Sentence(
        "warning",
        _("The schedule %(schedule)s has been paused since %(since)s, because %(detail)s no longer declares it."),
        _("Declare it again and migrate, or: manage.py temporalex schedules delete %(name)s"),
    ),
    "differs": _Sentence("warning", _("%(detail)s."), _("See all differences: manage.py temporalex schedules diff")),
}


def schedule_diagnoses(problems: Iterable[ScheduleProblem], now: datetime) -> Iterator[Diagnosis]:
    """Yield a diagnosis for each problem of schedules, as it is at the time ``now``."""
    for problem in problems:
        kind: str = problem.kind
        if problem.run:
            kind = f"{kind}_by_block" if problem.is_blocked else f"{kind}_by_run"
        sentence = _SENTENCES[kind]
        words = {
            "schedule": problem.schedule,
            "workflow": problem.workflow,
            "count": problem.count,
            "detail": problem.detail,
            "since": "" if problem.since is None else format_time(problem.since, now),
            "name": shlex.quote(problem.schedule),
            "run": problem.run,
            "quoted_run": shlex.quote(problem.run),
        }
        yield Diagnosis(
            severity=sentence.severity,
            code=f"schedule_{problem.kind}",
            text=str(sentence.text % words),
            next_step=str(sentence.next_step % words),
            about=problem.schedule,
            count=problem.count,
            since=problem.since,
            remedy=Remedy(kind="schedules", name=problem.schedule, label=str(_("Open the schedule"))),
        )
