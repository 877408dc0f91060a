"""Attribution of the death of a process to the runs and activities that it was running.

The decisions here need no I/O. ``liveness.recovery`` asks for them and writes the outcome.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from temporalex_django.engine import policy
from temporalex_django.liveness.crash_markers import MarkedWork


@dataclass(frozen=True, slots=True)
class CrashVerdict:
    """The decision about one run or activity that a process was running when it died.

    ``mark`` names the run or activity. ``crashes`` is the new number of deaths for its row. If ``is_final``, its code
    is no longer run. Otherwise it is due again after ``wait`` seconds, and runs alone then, so that another death shows
    the cause.
    """

    mark: MarkedWork
    crashes: int
    wait: float

    @property
    def is_final(self) -> bool:
        return self.crashes >= policy.MOST_CRASHES


def attribute_crashes(
    marks: Collection[MarkedWork], recorded: Mapping[MarkedWork, int], *, earlier: int = 0
) -> list[CrashVerdict]:
    """Return one decision for each run and activity (``marks``) that a process was running when it ended.

    ``recorded`` has the deaths that the rows count so far, by mark; work that is over has no entry and gets no
    decision. Call this only for processes that are known to have ended: a process that is merely late has killed
    nothing. ``earlier`` is the number of earlier deaths of workers that nothing explained, and 0 unless the row of the
    dead worker explains this death. One of them then counts for a run that was alone at its second death, as the first
    of three.

    - The only run in the process: its death counts, whatever activities ran at the same time. An activation takes a
      moment, so a run that is found there repeatedly is no bystander. Besides, no run is activated while an activity
      runs that may have ended a process (a suspect).
    - An activity that was alone, or on trial (the quarantine of a worker started nothing else while it ran): its death
      counts.
    - Work that ran at the same time as other work becomes a suspect: one death is counted, and never more. Innocent
      work must not be blocked or failed for its neighbours. If an activity was on trial, the other activities are not
      even suspected. Suspects come back one by one, so that the next death identifies the cause.
    """
    run_count = len({mark.key for mark in marks if mark.kind in ("chain", "run")})
    tried = {mark.key for mark in marks if mark.kind == "trial"}
    alone = len([mark for mark in marks if mark.kind != "trial"]) == 1
    verdicts = []
    for mark in marks:
        if mark not in recorded:
            continue
        if mark.kind == "task":
            crashes = _task_crashes(recorded[mark], to_blame=alone or mark.key in tried, is_cleared=bool(tried))
        else:
            crashes = _run_crashes(recorded[mark], alone=run_count == 1, earlier=earlier)
        verdicts.append(CrashVerdict(mark, crashes, wait=float(2 ** min(crashes, policy.MOST_CRASHES))))
    return verdicts


def _task_crashes(before: int, *, to_blame: bool, is_cleared: bool) -> int:
    """Return the new number of deaths of an activity that had ``before``.

    ``to_blame`` is True if it ran alone, or on trial: as a suspect beside which the worker starts nothing.
    ``is_cleared`` is True if another activity that ran at the same time was on trial, so that this one is not
    suspected.
    """
    if to_blame:
        return before + 1
    # Work in company is set to one death, not increased: otherwise an activity that runs often would collect the deaths
    # of its neighbours.
    if is_cleared:
        return min(before, 1)
    return 1


def _run_crashes(before: int, *, alone: bool, earlier: int) -> int:
    """Return the new number of deaths of a run that had ``before``.

    ``alone`` means that the process ran no other run. ``earlier`` is the number of earlier deaths of workers that
    nothing explained; one of them counts as the first death of a run whose second death this is.
    """
    if not alone:
        return max(before, 1)
    crashes = before + 1
    # Second death on the row of a worker, and one before it is unexplained: that one was its first (decision 22).
    if earlier and before and crashes == policy.MOST_CRASHES - 1:
        return policy.MOST_CRASHES
    return crashes
