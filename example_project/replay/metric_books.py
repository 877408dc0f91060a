"""The books of the metrics: counters that the processes of the shop export, compared with the rows of the database."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final
from urllib.error import URLError
from urllib.request import Request, urlopen

from example_project.replay.report import Check, NotCompared
from temporalex_django.conf import get_settings
from temporalex_django.models import HistoryEvent, Instance

LOOK_EVERY: Final = 0.2
#: Seconds between two looks that must not differ: one pair if counters and rows agree, else several. On a busy
#: machine, a process may stand still for a second between its commit and its counter.
QUIET: Final = 1.0
QUIET_LOOKS: Final = 5
#: Seconds after which the books are opened in any case.
QUIET_DEADLINE: Final = 30.0
#: By the name of a figure: the metric and the outcome that it counts.
COUNTERS: Final = {
    "runs that their code ended, by metrics": ("temporalex_activations_total", "closed"),
    "completed activities, by metrics": ("temporalex_activity_attempts_total", "completed"),
}
#: The metric and the outcome of results that came when their runs no longer waited for them. They have no rows.
DROPPED: Final = ("temporalex_activity_attempts_total", "dropped")


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals at one moment, by the name of a figure: those of the counters, and those of the rows.

    Neither include runs on a cluster, for which workers count nothing. ``dropped`` counts the results that were
    dropped.
    """

    counters: dict[str, float]
    rows: dict[str, int]
    dropped: float = 0.0


class MetricBooks:
    """The books of the metrics of one play, opened before it. Without metrics they have no checks.

    They are opened at a moment at which nothing happens. Otherwise a row could be there whose counter follows.
    ``gap`` says why counters and rows may differ; then nothing is compared. ``dropped`` is the number of results that
    were dropped until the last comparison.
    """

    def __init__(self, base_url: str, *, gap: str = "") -> None:
        self._url = f"{base_url}/metrics"
        self._gap = gap
        self.dropped = 0
        self._before = None if gap else self._totals()
        until, equal_looks = time.monotonic() + QUIET_DEADLINE, 0
        while self._before is not None and time.monotonic() < until:
            time.sleep(QUIET)
            before, self._before = self._before, self._totals()
            equal_looks = equal_looks + 1 if self._before == before else 0
            if equal_looks == QUIET_LOOKS or (equal_looks and before.counters == before.rows):
                break

    def checks(self, *, patience: float) -> list[Check]:
        """Compare the counters with the rows, after a wait of at most ``patience`` seconds until they are equal.

        A counter is increased after the commit, so it may follow a row by a moment. If the metrics are away now, the
        checks fail.
        """
        if self._before is None:
            return []
        until = time.monotonic() + patience
        while True:
            checks = self._compare(self._before)
            if all(check.ok for check in checks) or time.monotonic() > until:
                return checks
            time.sleep(LOOK_EVERY)

    def not_compared(self) -> list[NotCompared]:
        """Return the figures without a check."""
        if self._before is not None:
            return []
        reason = self._gap or "the shop exports no metrics"
        return [NotCompared(name=name, reason=reason) for name in COUNTERS]

    def _compare(self, before: Totals) -> list[Check]:
        now = self._totals()
        if now is None:
            return [Check(name=name, expected="a number", seen="no answer from the metrics") for name in COUNTERS]
        self.dropped = round(now.dropped - before.dropped)
        return [
            Check(
                name=name,
                expected=now.rows[name] - before.rows[name],
                seen=round(now.counters[name] - before.counters[name]),
            )
            for name in COUNTERS
        ]

    def _totals(self) -> Totals | None:
        """Return the totals of the counters over all processes, and of the rows; None without metrics."""
        headers = {"Authorization": f"Bearer {get_settings().METRICS_TOKEN}"}
        try:
            with urlopen(Request(self._url, headers=headers), timeout=20) as answer:  # noqa: S310 - the shop's address
                lines = answer.read().decode().splitlines()
        except URLError:
            return None

        def total(metric: str, outcome: str) -> float:
            of_metric = (line for line in lines if line.startswith(f"{metric}{{") and f'outcome="{outcome}"' in line)
            return sum(float(line.rpartition(" ")[2]) for line in of_metric)

        rows = (
            Instance.objects.filter(closed_at__isnull=False, mirrored_at=None).count(),
            HistoryEvent.objects.filter(kind="ActivityCompleted").count(),
        )
        counters = {name: total(*counted) for name, counted in COUNTERS.items()}
        return Totals(counters, dict(zip(COUNTERS, rows, strict=True)), dropped=total(*DROPPED))
