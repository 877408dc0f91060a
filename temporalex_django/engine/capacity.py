"""How many activities a worker takes: as many as can begin, and of quick ones what it will come to in a moment."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

#: One of so many that are taken ahead is of what the turn itself makes, however many wait.
_RESERVE_SHARE: Final = 16
#: Stands in ``Capacity.prefetch`` for plain functions that have not ended here yet.
UNMEASURED: Final = ""


@dataclass(slots=True, kw_only=True)
class Capacity:
    """What a worker takes now; ``acquire`` uses it up.

    ``threads``: so many plain functions can begin at once, ``tasks``: so many of the ``async def`` ones, whose names
    are ``async_names``. ``prefetch``: more of these by name, because at their measured rate they begin in a moment,
    ``prefetch_limit`` at most, and ``eager_limit`` more of those that the turn itself schedules. What is slow is taken
    only when it can begin: another worker may be idle. So is what is not among the ``measured_names``, unless many such
    ones were quick of late, as the steps of a large process are: then ``UNMEASURED`` is in ``prefetch``. ``busy_runs``:
    of so many it has an activity that is to begin, or the end of one.
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
        """Take some of the room ahead away; who has it gives it back to ``prefetch_limit``."""
        reserved = (self.prefetch_limit or 0) // _RESERVE_SHARE
        self.prefetch_limit = (self.prefetch_limit or 0) - reserved
        return reserved

    @property
    def total(self) -> int:
        """The most that it can take."""
        return self.threads + self.tasks + (self.prefetch_limit or 0)

    @property
    def prefetch_excluded(self) -> Collection[str] | None:
        """Names of all that are not taken ahead. None: that are only those in ``prefetch``."""
        if UNMEASURED not in self.prefetch:
            return None
        return [name for name in {*self.measured_names, *self.async_names} if name not in self.prefetch]

    def acquire(self, activity: str) -> bool:
        """Whether one of these is taken; there is less room then."""
        if activity in self.async_names:
            if self.tasks > 0:
                self.tasks -= 1
                return True
        elif self.threads > 0:
            self.threads -= 1
            return True
        remaining = self.prefetch.get(activity, 0)
        if not remaining and activity not in self.measured_names and activity not in self.async_names:
            activity, remaining = UNMEASURED, self.prefetch.get(UNMEASURED, 0)
        if not remaining or not self.prefetch_limit:
            return False
        self.prefetch_limit -= 1
        self.prefetch[activity] = remaining - 1
        if remaining == 1:
            del self.prefetch[activity]
        return True
