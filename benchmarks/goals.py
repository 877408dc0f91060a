"""The goals of the figures, and the ratios between ours and those of peers. Pure: from JSON to JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

#: The figure that compares a row with peers that do the same work: a rate, or (``_ms``) a time.
FIGURES: Final = {
    "one": "workflows_per_s",
    "ten": "steps_per_s",
    "atomic": "steps_per_s",
    "fan": "steps_per_s",
    "starts": "starts_per_s",
    "tasks": "tasks_per_s",
    "latency": "p50_ms",
    "update": "in_request.p50_ms",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A bound of one figure, by its path in the figures."""

    path: str
    at_least: float | None = None
    at_most: float | None = None
    where: str = ""  # only on that database


GOALS: Final = (
    Goal(path="ratios.one_vs_dbos", at_least=10, where="postgres"),
    Goal(path="ratios.one_vs_absurd", at_least=8),
    Goal(path="one.ours.slower_at_most", at_most=1.1, where="postgres"),
    Goal(path="ratios.ten_vs_dbos", at_least=20, where="postgres"),
    Goal(path="ratios.ten_vs_absurd", at_least=6),
    Goal(path="ten.ours.slower_at_most", at_most=1.2, where="postgres"),
    Goal(path="ratios.starts_vs_absurd", at_least=1.5),
    Goal(path="ratios.tasks_vs_django_tasks_db", at_least=1),
    Goal(path="two.ours.ratio", at_least=1.6, where="postgres"),
    Goal(path="fan.ours.growth", at_most=1.2, where="postgres"),
    Goal(path="long.ours.growth", at_most=1.2, where="postgres"),
    Goal(path="graph.ours.ratio_1000_to_10.chain", at_most=1.2, where="postgres"),
    Goal(path="graph.ours.ratio_1000_to_10.fan", at_most=1.2, where="postgres"),
    Goal(path="replay.ours.steps_events_per_s", at_least=100_000),
    Goal(path="latency.above_dbos_and_a_notify_ms", at_most=0),
    Goal(path="latency.ours.through_django_q2.p50_ms", at_most=10, where="postgres"),
    Goal(path="update.ours.in_request.p50_ms", at_most=3, where="postgres"),
    Goal(path="update.ours.round_trips", at_most=8),
    Goal(path="ratios.update_vs_temporal", at_least=1),
    Goal(path="parked.ours.bytes_per_run", at_most=2_048),
    Goal(path="parked.ours.memory_growth", at_most=1.2),
    Goal(path="parked.ours.idle_cpu_percent", at_most=1),
    Goal(path="wake.ours.seconds", at_most=5),
    Goal(path="wake.ours.lost", at_most=0),
    Goal(path="naps.ours.seconds", at_most=5),
    Goal(path="chain.ours.growth", at_most=1.2),
    Goal(path="switched.ours.heard_within_s", at_most=1),
    Goal(path="kit.ours.statements", at_most=35),
    Goal(path="kit.ours.ms", at_most=10),
    Goal(path="recover.ours.runs_lost", at_most=0),
    Goal(path="recover.ours.effects_never", at_most=0),
    Goal(path="grown.ours.slower.one", at_most=1.3),
    Goal(path="grown.ours.slower.starts", at_most=1.3),
    Goal(path="grown.ours.slower.update", at_most=1.3),
    Goal(path="console.ours.growth.overview", at_most=1.2),
    Goal(path="console.ours.growth.list", at_most=1.2),
    Goal(path="console.ours.growth.run", at_most=1.2),
    Goal(path="console.ours.timeline.growth", at_most=2),
    Goal(path="console.ours.list_to_rest", at_most=2),
    Goal(path="console.ours.core_share_unchanged", at_most=0.05),
    Goal(path="console.ours.core_share_changing", at_most=0.5),
    *(Goal(path=f"clustered.ours.{work}.ratios.rate", at_least=0.9) for work in ("one", "ten", "signals", "updates")),
    *(Goal(path=f"clustered.ours.{work}.ratios.worker_and_client", at_most=1.2) for work in ("one", "ten")),
    *(Goal(path=f"clustered.ours.{work}.ratios.worker_and_client", at_most=2) for work in ("signals", "updates")),
    Goal(path="clustered.ours.updates.ratios.update_p50", at_most=1.2),
    *(Goal(path=f"clustered.ours.{work}.ratios.postgres", at_most=1) for work in ("one", "ten", "signals", "updates")),
    Goal(path="one.ours.workflows_per_s", at_least=1_000, where="sqlite"),
    Goal(path="ratios.one_vs_dbos", at_least=3, where="sqlite"),
    Goal(path="beside.ours.update.p99_ms", at_most=20, where="sqlite"),
    Goal(path="day.ours.carts_per_s", at_least=5 * 3.7, where="sqlite"),
)


def compared(figures: Mapping[str, Any]) -> dict[str, float]:
    """Return ratios such as ``one_vs_dbos``: how many times as good ours is, in one run on one machine.

    A peer that is absent, or does not do the same work, has no ratio.
    """
    found = {}
    for row, figure in FIGURES.items():
        ours = _at(figures, f"{row}.ours.{figure}")
        for peer, values in _peers(figures.get(row, {})):
            theirs = _at(values, figure)
            if ours and theirs:
                ratio = theirs / ours if figure.endswith("_ms") else ours / theirs
                found[f"{row}_vs_{peer.replace('-', '_')}"] = round(ratio, 2)
    return found


def judged(figures: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the goals that have a figure, each with its bound, its value and whether it is met."""
    database = figures.get("machine", {}).get("database", "postgres")
    found = []
    for goal in GOALS:
        value = _at(figures, goal.path)
        if value is None or goal.where not in ("", database):
            continue
        low, high = goal.at_least, goal.at_most
        wanted = f"≥ {low:g}" if low is not None else f"≤ {high:g}"
        met = value >= low if low is not None else value <= (high or 0)
        found.append({"goal": goal.path, "wanted": wanted, "is": value, "met": met})
    return found


def latency_above(row: Mapping[str, Any]) -> float | None:
    """Return the ms by which start to result exceeds that of DBOS within a process plus a NOTIFY."""
    parts = [_at(row, path) for path in ("ours.p50_ms", "dbos.p50_ms", "ours.notify.p50_ms")]
    ours, theirs, notify = parts
    return None if ours is None or theirs is None or notify is None else round(ours - theirs - notify, 3)


def _peers(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((name, values) for name, values in row.items() if name != "ours" and isinstance(values, Mapping))


def _at(figures: Any, path: str) -> float | None:
    for part in path.split("."):
        figures = figures.get(part) if isinstance(figures, Mapping) else None
    return figures if isinstance(figures, (int, float)) else None
