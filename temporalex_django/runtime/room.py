"""How many activities a worker takes: as many as can begin, and of quick ones what it will come to in a moment."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Room:
    """What a worker takes now; ``takes`` uses it up.

    ``threads``: so many plain functions can begin at once, ``tasks``: so many of the ``async def`` ones, whose names are
    ``asyncs``. ``ahead``: more of these by name, because at their measured rate they begin in a moment. What is slow, or was never
    measured, is taken only when it can begin: another worker may be idle.
    """

    threads: int = 0
    tasks: int = 0
    ahead: dict[str, int] = field(default_factory=dict)
    asyncs: Collection[str] = ()

    def __post_init__(self) -> None:
        if not self.asyncs:
            self.tasks = 0  # nothing could use them

    def __bool__(self) -> bool:
        return self.threads > 0 or self.tasks > 0 or bool(self.ahead)

    @property
    def most(self) -> int:
        """The most that it can take."""
        return self.threads + self.tasks + sum(self.ahead.values())

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
        if left > 1:
            self.ahead[activity] = left - 1
        elif left:
            del self.ahead[activity]
        return left > 0
