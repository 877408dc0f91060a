"""The recorder of a process: code records values of the metrics in ``telemetry.definitions``, exporters receive them.

    if recorder.is_active:
        recorder.record(definitions.CONFLICTS, place="turn")

Without an exporter, a place in the code costs that one test. An exporter must return at once: it adds to a sum in
memory, and something else sends or serves it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

from temporalex_django.telemetry import definitions
from temporalex_django.telemetry.definitions import FACTS_MAX_AGE, MAX_NAMES, OTHER, Metric

logger = logging.getLogger("temporalex_django.telemetry")

#: Values by label set: the values of the labels of a metric, in the order of its definition.
Values = Mapping[tuple[str, ...], float]
#: Sampled facts of the database.
Facts = Mapping[Metric, Values]


class Exporter(Protocol):
    """An exporter of metrics. Threads call it at the same time, and it must not wait for anything."""

    def record(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        """Add ``value`` to a counter, observe it in a histogram, or set a gauge to it."""

    def publish_facts(self, facts: Facts | None) -> None:
        """Replace all facts of the database by a new sample; None: another process samples them now."""


class Recorder:
    """Passes values to the exporters of a process, with a bounded number of names in each metric.

    ``is_active`` is True while there is an exporter. ``samples_facts`` is True in the one process that samples the
    facts of the database; maintenance sets it.
    """

    def __init__(self) -> None:
        self._exporters: list[Exporter] = []
        self._forget()

    def _forget(self) -> None:
        """Set the state of a recorder that has recorded nothing."""
        self.is_active = False
        self.samples_facts = False
        self._names: dict[Metric, set[tuple[str, ...]]] = {}
        #: Label values that are within the limit of names.
        self._admitted: dict[Metric, set[tuple[str, ...]]] = {}
        self._lock = threading.Lock()
        self._warned: set[object] = set()
        self._facts: Facts = {}
        self._facts_at = float("-inf")
        self._gauges: dict[Metric, dict[tuple[str, ...], float]] = {}

    def install(self, exporter: Exporter) -> None:
        """Pass what is recorded from now on to ``exporter``, too."""
        self._exporters = [*self._exporters, exporter]
        self.is_active = True

    def remove(self, exporter: Exporter) -> None:
        """Pass nothing to ``exporter`` any more. Without exporters, the names that were recorded are forgotten."""
        self._exporters = [other for other in self._exporters if other is not exporter]
        self.is_active = bool(self._exporters)
        if not self.is_active:
            self._forget()

    def record(self, metric: Metric, value: float = 1.0, /, **labels: str) -> None:
        """Record a value of a metric that is not a fact of the database; ``labels`` are all of its labels.

        An exporter that raises loses the value, which is counted; the caller notices nothing.
        """
        label_values = tuple([labels[label.name] for label in metric.labels])
        if label_values not in self._admitted.get(metric, ()):
            label_values = self._limit_names(metric, label_values)
        if metric.kind is definitions.Kind.GAUGE:
            self._gauges.setdefault(metric, {})[label_values] = value
        self._export(metric, label_values, value)

    def gauge_values(self, metric: Metric) -> Values:
        """Return the last values of a gauge, by label values; a gauge that is a fact has none if they are old."""
        if metric.is_fact:
            return self.facts().get(metric, {})
        return dict(self._gauges.get(metric, {}))

    # --- facts of the database ---------------------------------------------------------------------------------------

    def publish_facts(self, facts: Facts) -> None:
        """Replace all facts by a new sample, with at most ``MAX_NAMES`` names for each (see ``limit_facts``)."""
        limited = {metric: limit_facts(metric, values) for metric, values in facts.items()}
        self._facts, self._facts_at = limited, time.monotonic()
        self._publish(limited)

    def set_sampler(self, *, samples: bool) -> None:
        """Set whether this process samples the facts of the database; if it no longer does, it exports none."""
        previously, self.samples_facts = self.samples_facts, samples
        if previously and not samples:
            self._facts, self._facts_at = {}, float("-inf")
            self._publish(None)

    def facts(self) -> Facts:
        """Return the facts of the last sample; none if this process took none in the last ``FACTS_MAX_AGE`` seconds."""
        return self._facts if time.monotonic() - self._facts_at <= FACTS_MAX_AGE else {}

    # --- limits and errors -------------------------------------------------------------------------------------------

    def _limit_names(self, metric: Metric, label_values: tuple[str, ...]) -> tuple[str, ...]:
        """Return ``OTHER`` for new names after ``MAX_NAMES`` sets. Count that, and log it once for each metric."""
        names = tuple([value for label, value in zip(metric.labels, label_values, strict=True) if not label.values])
        with self._lock:
            known_names = self._names.setdefault(metric, set())
            if not names or names in known_names or len(known_names) < MAX_NAMES:
                known_names.add(names)
                self._admitted.setdefault(metric, set()).add(label_values)
                return label_values
        self._warn_once(
            metric, f"the metric {metric.name} has {MAX_NAMES} names: further ones are recorded as {OTHER!r}"
        )
        self._export(definitions.LABELS_LIMITED, (metric.name,), 1.0)
        return without_names(metric, label_values)

    def _export(self, metric: Metric, label_values: tuple[str, ...], value: float) -> None:
        for exporter in self._exporters:
            try:
                exporter.record(metric, label_values, value)
            except Exception as exc:  # noqa: BLE001 - the work that is measured must not suffer
                self._note_drop(exporter, exc)

    def _publish(self, facts: Facts | None) -> None:
        for exporter in self._exporters:
            try:
                exporter.publish_facts(facts)
            except Exception as exc:  # noqa: BLE001 - as above
                self._note_drop(exporter, exc)

    def _note_drop(self, exporter: Exporter, error: Exception) -> None:
        """Tell the other exporters that ``exporter`` has lost a value, and log that once."""
        name = type(exporter).__name__
        self._warn_once(exporter, f"{name} does not take metrics, so they are dropped: {type(error).__name__}")
        for other in self._exporters:
            if other is not exporter:
                with suppress(Exception):
                    other.record(definitions.VALUES_DROPPED, (), 1.0)

    def _warn_once(self, subject: object, text: str) -> None:
        with self._lock:
            if subject in self._warned:
                return
            self._warned.add(subject)
        logger.warning("%s", text)


def without_names(metric: Metric, label_values: tuple[str, ...]) -> tuple[str, ...]:
    """Return the label values with ``OTHER`` in place of each name."""
    return tuple([value if label.values else OTHER for label, value in zip(metric.labels, label_values, strict=True)])


def limit_facts(metric: Metric, values: Values) -> dict[tuple[str, ...], float]:
    """Return the values of a fact with at most ``MAX_NAMES`` names; the others become one, ``OTHER``.

    The names with the largest values are kept. The value of ``OTHER`` is the longest of the other times, or the sum of
    the other numbers.
    """
    by_names: dict[tuple[str, ...], dict[tuple[str, ...], float]] = {}
    for label_values, value in values.items():
        names = tuple([text for label, text in zip(metric.labels, label_values, strict=True) if not label.values])
        by_names.setdefault(names, {})[label_values] = value
    ordered_names = sorted(by_names, key=lambda names: (-max(by_names[names].values()), names))
    limited = {key: value for names in ordered_names[:MAX_NAMES] for key, value in by_names[names].items()}
    join = max if metric.name.endswith("_seconds") else sum
    rest: dict[tuple[str, ...], list[float]] = {}
    for names in ordered_names[MAX_NAMES:]:
        for label_values, value in by_names[names].items():
            rest.setdefault(without_names(metric, label_values), []).append(value)
    return limited | {key: float(join(joined)) for key, joined in rest.items()}


#: The recorder of this process.
recorder = Recorder()
