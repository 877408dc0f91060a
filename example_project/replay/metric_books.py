"""The books of the metrics: counters that the processes of the shop export, compared with the rows of the database."""

from __future__ import annotations

import time
from typing import Final
from urllib.error import URLError
from urllib.request import Request, urlopen

from django.utils import timezone

from example_project.replay.report import Check
from temporalex_django.conf import get_settings
from temporalex_django.models import HistoryEvent, Instance

LOOK_EVERY: Final = 0.2
#: By the name of a figure: the metric and the outcome that it counts.
COUNTERS: Final = {
    "runs that their code ended, by metrics": ("temporalex_activations_total", "closed"),
    "completed activities, by metrics": ("temporalex_activity_attempts_total", "completed"),
}


class MetricBooks:
    """The books of the metrics of one play, opened before it. Without metrics they have no checks."""

    def __init__(self, base_url: str) -> None:
        self._url = f"{base_url}/metrics"
        self._opened_at = timezone.now()
        self._before = self._counters()

    def checks(self, *, patience: float) -> list[Check]:
        """Compare the counters with the rows, after a wait of at most ``patience`` seconds until they are equal.

        A counter is increased after the commit, so it may follow a row by a moment.
        """
        if self._before is None:
            return []
        until = time.monotonic() + patience
        while True:
            checks = self._compare()
            if all(check.ok for check in checks) or time.monotonic() > until:
                return checks
            time.sleep(LOOK_EVERY)

    def _compare(self) -> list[Check]:
        counters, before = self._counters() or {}, self._before or {}
        rows = {
            "closed": Instance.objects.filter(closed_at__gte=self._opened_at).count(),
            "completed": HistoryEvent.objects.filter(kind="ActivityCompleted", at__gte=self._opened_at).count(),
        }
        return [
            Check(name=name, expected=rows[outcome], seen=round(counters.get(name, 0.0) - before.get(name, 0.0)))
            for name, (_, outcome) in COUNTERS.items()
        ]

    def _counters(self) -> dict[str, float] | None:
        """Return the sums of the counters over all processes, or None without metrics."""
        headers = {"Authorization": f"Bearer {get_settings().METRICS_TOKEN}"}
        try:
            with urlopen(Request(self._url, headers=headers), timeout=20) as answer:  # noqa: S310 - the shop's address
                lines = answer.read().decode().splitlines()
        except URLError:
            return None
        return {
            name: sum(
                float(line.rpartition(" ")[2])
                for line in lines
                if line.startswith(f"{metric}{{") and f'outcome="{outcome}"' in line
            )
            for name, (metric, outcome) in COUNTERS.items()
        }
