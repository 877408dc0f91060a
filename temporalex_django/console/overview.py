"""The overview: seven numbers, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import get_language, ngettext
from django.utils.translation import gettext as _

from temporalex_django.authoring import workflow as workflows
from temporalex_django.console.actions import bulk_action_error
from temporalex_django.console.base import format_time, user_of
from temporalex_django.console.live import MARK, is_poll, is_unchanged, keep, mark_of, unchanged
from temporalex_django.console.mount import ConsoleView
from temporalex_django.operations.base import storage
from temporalex_django.operations.read.overview import MAX_COUNT, Overview, load_overview, scope_of
from temporalex_django.operations.read.project_state import MAX_COUNTED_RUNS
from temporalex_django.operations.registry import STEERING
from temporalex_django.present.formatting import format_duration
from temporalex_django.present.view_models import Diagnosis, Remedy

_BAR_HEIGHT, _BAR_WIDTH = 28, 4
_OPEN = "pending,running,waiting"
_DAY = "-24h"


class OverviewView(ConsoleView):
    """The first page of the console."""

    template = "temporalex_django/console/overview.html"
    section = "overview"

    def respond(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        overview = self._overview(request)
        now = timezone.now()
        facts = [*_number_facts(overview), [(problem.headline, problem.text) for problem in overview.problems]]
        if is_poll(request) and is_unchanged(request, facts, now):
            return unchanged()
        return self.render(
            request,
            {
                "title": _("Overview"),
                "overview": overview,
                "numbers": [*self._numbers(request, overview)],
                "problems": [self._problem_row(request, problem) for problem in overview.problems],
                "poll_address": self.mount.address("overview", query={MARK: mark_of(facts, _next_midnight(now))}),
                "announcement": _announcement(overview),
                "start_address": self.mount.start_address(request),
                "classes": sorted(workflows.registry)[:5],
            },
        )

    def _overview(self, request: HttpRequest) -> Overview:
        """Return the overview, at most five seconds old."""
        user, runs = user_of(request), self.mount.visible_runs(request)
        place = (
            "overview",
            self.mount.namespace,
            storage().alias,
            get_language(),
            timezone.get_current_timezone_name(),
        )
        return keep((*place, *scope_of(user, runs)), lambda: load_overview(user, runs), fresh=not is_poll(request))

    def _numbers(self, request: HttpRequest, overview: Overview) -> Iterator[dict[str, Any]]:
        """Yield the numbers that the user may see, each with the list of what it counts."""
        runs, lists = self._runs_address, self.mount.list_address
        yield _number(_("Open runs"), _bounded(overview.open, MAX_COUNTED_RUNS), runs(status=_OPEN))
        yield _number(
            _("Need attention"),
            _bounded(overview.stuck, MAX_COUNT),
            runs(stuck="true"),
            is_bad=overview.stuck > 0,
        )
        yield {
            **_number(
                _("Failed in 24 h"),
                _bounded(overview.failed, MAX_COUNT),
                runs(status="failed", closed_after=_DAY),
                is_bad=overview.failed > 0,
            ),
            "bars": _bars_of(overview) if overview.failed else [],
            "bars_text": _bars_text(overview),
        }
        yield _number(
            _("Tasks to decide"),
            _bounded(overview.open_tasks, MAX_COUNT),
            lists(request, "tasks"),
            note=_("%(count)d overdue") % {"count": overview.overdue_tasks} if overview.overdue_tasks else "",
            is_bad=overview.overdue_tasks > 0,
        )
        yield _number(
            _("Longest wait for a worker"),
            format_duration(overview.longest_wait) if overview.longest_wait else "–",
            lists(request, "workers"),
            is_bad=overview.longest_wait > 60,
        )
        if overview.workers is not None:
            yield _number(
                _("Workers alive"),
                str(overview.workers),
                lists(request, "workers"),
                note=_("%(count)d lost in 24 h") % {"count": overview.lost_workers} if overview.lost_workers else "",
                is_bad=not overview.workers,
            )
        if overview.schedules is not None:
            yield _number(
                _("Schedules in trouble"),
                _bounded(overview.schedules, MAX_COUNT),
                lists(request, "schedules", state="trouble"),
                is_bad=overview.schedules > 0,
            )

    def _runs_address(self, **filters: str) -> str:
        return self.mount.address("runs", query=filters)

    def _problem_row(self, request: HttpRequest, problem: Diagnosis) -> dict[str, Any]:
        address = "" if problem.remedy is None else self._remedy_address(request, problem.remedy)
        return {
            "problem": problem,
            "headline": problem.headline or problem.text,
            "since": None if problem.since is None else format_time(problem.since),
            "next_attempt": None if problem.next_attempt is None else format_time(problem.next_attempt),
            "address": address,
            "label": problem.remedy.label if problem.remedy is not None and address else "",
            "runs_address": self._group_address(problem),
        }

    def _group_address(self, problem: Diagnosis) -> str:
        """Return the URL of the list of the runs that have the problem, if its remedy names them."""
        remedy = problem.remedy
        if remedy is None or remedy.kind not in ("bulk", "runs"):
            return ""
        return self._runs_address(**remedy.filters)

    def _remedy_address(self, request: HttpRequest, remedy: Remedy) -> str:
        match remedy.kind:
            case "runs":
                return self._runs_address(**remedy.filters)
            case "bulk":
                if bulk_action_error(STEERING[remedy.action], user_of(request)) is not None:
                    return ""
                return self.mount.address("bulk", query={"action": remedy.action, "scope": "all", **remedy.filters})
            case "tasks":
                return self.mount.task_address(remedy.name)
            case "schedules":
                return self.mount.list_address(request, remedy.kind, q=remedy.name)
            case "background_tasks":
                return self.mount.task_bulk_address(request, remedy.action, remedy.filters)
            case _:
                return self.mount.list_address(request, remedy.kind)


def _number(label: str, value: str, address: str, *, note: str = "", is_bad: bool = False) -> dict[str, Any]:
    return {"label": label, "value": value, "address": address, "note": note, "is_bad": is_bad}


def _bounded(count: int, most: int) -> str:
    return f"{most:,}+" if count > most or (most == MAX_COUNTED_RUNS and count == most) else f"{count:,}"


def _bars_of(overview: Overview) -> list[dict[str, int]]:
    """Return the bars of failures per half-hour as rectangles."""
    most = max(overview.failed_bars)
    bars = []
    for number, count in enumerate(overview.failed_bars):
        height = max(2, round(count / most * _BAR_HEIGHT)) if count else 1
        bars.append({"x": number * _BAR_WIDTH, "y": _BAR_HEIGHT - height, "height": height, "count": count})
    return bars


def _bars_text(overview: Overview) -> str:
    """Return what the bars show, for people who do not see them."""
    last_hour = sum(overview.failed_bars[-2:])
    return _("%(count)d failed in the last hour, %(total)d in 24 hours") % {
        "count": last_hour,
        "total": overview.failed,
    }


def _number_facts(overview: Overview) -> list[Any]:
    return [
        overview.open,
        overview.stuck,
        [*overview.failed_bars],
        overview.open_tasks,
        overview.overdue_tasks,
        # The text has this precision.
        format_duration(overview.longest_wait),
        overview.workers,
        overview.lost_workers,
        overview.schedules,
    ]


def _announcement(overview: Overview) -> str:
    count = len(overview.problems) + overview.more_problems
    if not count:
        return _("Nothing is wrong.")
    return ngettext("%(count)d problem", "%(count)d problems", count) % {"count": count}


def _next_midnight(now: Any) -> Any:
    """Return when texts such as "yesterday 14:02" change."""
    local = timezone.localtime(now)
    return local.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
