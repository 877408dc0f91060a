"""The number of activities that a worker may claim: some that can start now, and some that can start soon.

A plain activity needs a thread, and an ``async def`` one a place in the event loop.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from temporalex_django.engine.scheduling import policy

#: Key in ``Capacity.prefetch`` for plain functions of names that have not finished here yet.
UNMEASURED: Final = ""


@dataclass(slots=True, kw_only=True)
class Capacity:
    """The number of activities that a worker can still claim in one poll; ``acquire`` reduces it.

    - ``threads``: the number of plain activities that can start at once.
    - ``tasks``: the number of ``async def`` activities, whose names are ``async_names``.
    - ``prefetch``: how many further activities of each name may be claimed ahead, because at their measured rate they
      start in a moment.
    - ``prefetch_limit``: the most of these together; None: as many as ``prefetch`` allows.
    - ``eager_limit``: the most new activities that the turn may claim beside these as it schedules them.
    - ``measured_names``: the names of activities that have finished here, so that their rate is known.
    - ``busy_runs``: the number of runs of which the worker holds an unstarted activity or a result.

    Slow activities are claimed only when they can start, since another worker may be idle. The same holds for names
    that were not measured. If many of such names were quick lately, ``prefetch`` has the name ``UNMEASURED``, which
    stands for them. See decision 35.
    """

    threads: int = 0
    tasks: int = 0
    prefetch: dict[str, int] = field(default_factory=dict)
    prefetch_limit: int | None = None
    eager_limit: int = 0
    async_names: Collection[str] = ()
    measured_names: Collection[str] = ()
    busy_runs: int = 0

    def __post_init__(self) -> None:
        if not self.async_names:
            self.tasks = 0  # nothing could use them
        total_prefetch = sum(self.prefetch.values())
        self.prefetch_limit = (
            total_prefetch if self.prefetch_limit is None else min(self.prefetch_limit, total_prefetch)
        )

    def __bool__(self) -> bool:
        return self.threads > 0 or self.tasks > 0 or bool(self.prefetch_limit)

    def reserve(self) -> int:
        """Set aside a part of ``prefetch_limit`` and return it; the caller adds it again later.

        So a claim of waiting activities leaves some capacity for those that the turn itself schedules.
        """
        reserved = (self.prefetch_limit or 0) // policy.RESERVE_SHARE
        self.prefetch_limit = (self.prefetch_limit or 0) - reserved
        return reserved

    @property
    def total(self) -> int:
        """The largest number of activities that can be claimed now."""
        return self.threads + self.tasks + (self.prefetch_limit or 0)

    @property
    def prefetch_excluded(self) -> Collection[str] | None:
        """The names of which no activity may be claimed ahead; None means all names that are not in ``prefetch``."""
        if UNMEASURED not in self.prefetch:
            return None
        return [name for name in {*self.measured_names, *self.async_names} if name not in self.prefetch]

    def acquire(self, activity: str) -> bool:
        """Consume the capacity for one activity of this name, and return False if there is none."""
        if activity in self.async_names:
            if self.tasks > 0:
                self.tasks -= 1
                return True
        elif self.threads > 0:
            self.threads -= 1
            return True
        remaining = self.prefetch.get(activity, 0)
        # A name that has never finished here uses the share of all unmeasured names.
        if not remaining and activity not in self.measured_names and activity not in self.async_names:
            activity, remaining = UNMEASURED, self.prefetch.get(UNMEASURED, 0)
        if not remaining or not self.prefetch_limit:
            return False
        self.prefetch_limit -= 1
        self.prefetch[activity] = remaining - 1
        if remaining == 1:
            del self.prefetch[activity]
        return True
