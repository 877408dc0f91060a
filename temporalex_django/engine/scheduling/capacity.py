"""The number of activities that a worker may claim: some that can start now, and some that can start soon."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from temporalex_django.engine.scheduling import policy

#: Key in ``Capacity.prefetch`` for plain functions of names that have not finished here yet.
UNMEASURED: Final = ""


@dataclass(slots=True, kw_only=True)
class Capacity:
    """The remaining capacity of a worker in one poll; ``acquire`` consumes it.

    ``threads`` is the number of plain functions that can start at once. ``tasks`` is that of ``async def`` activities,
    whose names are ``async_names``. ``prefetch`` has the number of further activities of each name that may be claimed
    ahead, because at their measured rate they start in a moment. ``prefetch_limit`` is the most of them together, and
    ``eager_limit`` the most new activities that the turn may claim beside these.

    Slow activities are claimed only when they can start, since another worker may be idle. The same holds for names
    that are not in ``measured_names``. If many of such names were quick lately, ``prefetch`` has the name
    ``UNMEASURED``, which stands for them. ``busy_runs`` is the number of runs of which the worker holds an unstarted
    activity or a result. See decision 35.
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
        """Subtract a share from ``prefetch_limit`` and return it; the caller adds it again later."""
        reserved = (self.prefetch_limit or 0) // policy.RESERVE_SHARE
        self.prefetch_limit = (self.prefetch_limit or 0) - reserved
        return reserved

    @property
    def total(self) -> int:
        """The largest number of activities that can be claimed."""
        return self.threads + self.tasks + (self.prefetch_limit or 0)

    @property
    def prefetch_excluded(self) -> Collection[str] | None:
        """The names of which no activity may be claimed ahead; None means all names that are not in ``prefetch``."""
        if UNMEASURED not in self.prefetch:
            return None
        return [name for name in {*self.measured_names, *self.async_names} if name not in self.prefetch]

    def acquire(self, activity: str) -> bool:
        """Consume the capacity for one activity, and return False if there is none."""
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
