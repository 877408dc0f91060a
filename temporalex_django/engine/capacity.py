"""How many activities a worker takes: as many as can begin, and of quick ones what it will come to in a moment."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

#: One of so many that are taken ahead is of what the turn itself makes, however many wait.
_KEPT: Final = 16
#: Stands in ``Capacity.ahead`` for plain functions that have not ended here yet.
UNMEASURED: Final = ""


@dataclass(slots=True, kw_only=True)
class Capacity:
    """What a worker takes now; ``takes`` uses it up.

    ``threads``: so many plain functions can begin at once, ``tasks``: so many of the ``async def`` ones, whose names
    are ``asyncs``. ``ahead``: more of these by name, because at their measured rate they begin in a moment,
    ``together`` at most, and ``own`` more of those that the turn itself schedules. What is slow is taken only when it
    can begin: another worker may be idle. So is what is not among the ``measured``, unless many such ones were quick of
    late, as the steps of a large process are: then ``UNMEASURED`` is in ``ahead``. ``runs``: of so many it has an
    activity that is to begin, or the end of one.
    """

    threads: int = 0
    tasks: int = 0
    ahead: dict[str, int] = field(default_factory=dict)
    together: int | None = None
    own: int = 0
    asyncs: Collection[str] = ()
    measured: Collection[str] = ()
    runs: int = 0

    def __post_init__(self) -> None:
        if not self.asyncs:
            self.tasks = 0  # nothing could use them
        every = sum(self.ahead.values())
        self.together = every if self.together is None else min(self.together, every)

    def __bool__(self) -> bool:
        return self.threads > 0 or self.tasks > 0 or bool(self.together)

    def keep_back(self) -> int:
        """Take some of the room ahead away; who has it gives it back to ``together``."""
        kept = (self.together or 0) // _KEPT
        self.together = (self.together or 0) - kept
        return kept

    @property
    def most(self) -> int:
        """The most that it can take."""
        return self.threads + self.tasks + (self.together or 0)

    @property
    def not_ahead(self) -> Collection[str] | None:
        """Names of all that are not taken ahead. None: that are only those in ``ahead``."""
        if UNMEASURED not in self.ahead:
            return None
        return [name for name in {*self.measured, *self.asyncs} if name not in self.ahead]

    def takes(self, activity: str) -> bool:
        """Whether one of these is taken; there is less room then."""
        if activity in self.asyncs:
            if self.tasks > 0:
                self.tasks -= 1
                return True
        elif self.threads > 0:
            self.threads -= 1
            return True
        left = self.ahead.get(activity, 0)
        if not left and activity not in self.measured and activity not in self.asyncs:
            activity, left = UNMEASURED, self.ahead.get(UNMEASURED, 0)
        if not left or not self.together:
            return False
        self.together -= 1
        self.ahead[activity] = left - 1
        if left == 1:
            del self.ahead[activity]
        return True
