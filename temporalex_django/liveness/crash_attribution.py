"""Who is blamed for the death of a process: pure decisions. ``liveness.recovery`` asks, and writes what is decided."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from temporalex_django.liveness.crash_markers import MarkedWork

#: At its third death a run is blocked and an external activity fails as ``WorkerLost``.
MOST_CRASHES = 3


@dataclass(frozen=True, slots=True)
class CrashVerdict:
    """``crashes`` as the row is to say from now on.

    Not ``is_final``: it comes back after ``wait`` seconds, and alone.
    """

    mark: MarkedWork
    crashes: int
    wait: float

    @property
    def is_final(self) -> bool:
        return self.crashes >= MOST_CRASHES


def attribute_crashes(
    marks: Collection[MarkedWork], recorded: Mapping[MarkedWork, int], *, earlier: int = 0
) -> list[CrashVerdict]:
    """What becomes of those that a process was running when it ended, by the deaths that their rows count so far.

    ``recorded`` lacks those that are over. For processes that are known to have ended only: one that is merely late has
    killed nobody. ``earlier``: deaths that nobody could explain, before this one, which only the row of the dead worker
    explains. One of them counts for a run that was alone at two deaths: it is the first of its three.

    - A run that was the only run: it counts, whatever activities ran beside it. Activating takes a moment, so one that
      is met there again and again is no bystander; and beside a suspected activity no run is activated.
    - An activity that was alone, or on trial (``workers.quarantine``: nothing else began beside it): it counts.
    - What was in company is suspected (one death), and never more: innocent ones must not be blocked or failed for
      their neighbour. Where somebody was on trial, the others are not even that. Suspects come back one by one, so that
      the next death tells.
    """
    runs = {mark.key for mark in marks if mark.kind in ("chain", "run")}
    tried = {mark.key for mark in marks if mark.kind == "trial"}
    alone = len([mark for mark in marks if mark.kind != "trial"]) == 1
    verdicts = []
    for mark in marks:
        if mark not in recorded:
            continue
        before = recorded[mark]
        if mark.kind == "task":
            crashes = before + 1 if alone or mark.key in tried else min(before, 1) if tried else 1
        else:
            crashes = before + 1 if len(runs) == 1 else max(before, 1)
            if earlier and before and len(runs) == 1 and crashes == MOST_CRASHES - 1:
                crashes = MOST_CRASHES
        verdicts.append(CrashVerdict(mark, crashes, wait=float(2 ** min(crashes, MOST_CRASHES))))
    return verdicts
