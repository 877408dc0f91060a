"""Who is blamed for the death of a process: pure decisions. ``runtime.recovery`` asks, and writes what is decided."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from temporalex_django.runtime.slots import Marked

#: At its third death a run is blocked and an external activity fails as ``WorkerLost``.
MOST_CRASHES = 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """``crashes`` as the row is to say from now on; not ``final``: it comes back after ``wait`` seconds, and alone."""

    what: Marked
    crashes: int
    wait: float

    @property
    def final(self) -> bool:
        return self.crashes >= MOST_CRASHES


def judge(marked: Collection[Marked], recorded: Mapping[Marked, int]) -> list[Verdict]:
    """What becomes of those that a process was running when it ended, by the deaths that their rows count so far.

    ``recorded`` lacks those that are over. For processes that are known to have ended only: one that is merely late has killed nobody.

    - A run that was the only run: it counts, whatever activities ran beside it. Activating takes a moment, so one that is
      met there again and again is no bystander; and beside a suspected activity no run is activated.
    - An activity that was alone: it counts.
    - What was in company is suspected (one death), and never more: innocent ones must not be blocked or failed for their neighbour.
      Suspects come back alone, so that the next death tells.
    """
    runs = {mark.key for mark in marked if mark.kind != "task"}
    found = []
    for mark in marked:
        if mark not in recorded:
            continue
        before = recorded[mark]
        alone = len(marked) == 1 if mark.kind == "task" else len(runs) == 1
        crashes = before + 1 if alone else max(before, 1)
        found.append(Verdict(mark, crashes, wait=float(2 ** min(crashes, MOST_CRASHES))))
    return found
