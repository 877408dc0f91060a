"""The second argument of a run on a cluster: the facts with which it starts, in addition to its input."""

from __future__ import annotations

from typing import Any, Final, TypedDict

from temporalex_django.core.typed_dicts import CarriedMessages


class TaskLimits(TypedDict):
    """The largest number of calls that one workflow task emits, and their largest size as JSON, in bytes."""

    calls: int
    bytes: int


#: The limits of new runs. The server terminates a run whose task has more than 4 MB, or takes too long to store.
TASK_LIMITS: Final[TaskLimits] = {"calls": 500, "bytes": 2_000_000}


class StartFacts(TypedDict, total=False):
    """The facts with which a run starts, as plain data. A fact without a value is absent.

    ``version`` is the version of its class, and ``attempt`` its number in the chain. ``snapshot`` is data that the run
    starts with in addition to its input, such as the person who started it. ``carried`` has the messages that the
    previous run passed on. ``search_attributes`` have their stored form. ``scheduled_for`` is the time of the slot of a
    schedule. ``id`` and ``parent`` are the business ids, if the cluster knows the runs under other ids. ``run`` is the
    run id that the code sees, if it differs from that of the cluster. ``headers`` travel with the run. ``limits``
    splits the calls of the run into workflow tasks. A run without it emits all calls at once.
    """

    id: str
    run: str
    parent: str | None
    version: int
    attempt: int
    snapshot: dict[str, Any]
    carried: CarriedMessages
    search_attributes: dict[str, Any]
    scheduled_for: str
    headers: dict[str, str]
    limits: TaskLimits


class TaskRoom:
    """The number and the size of the calls that the current workflow task may still emit.

    ``calls`` is None for a run without limits. A workflow task may have several activations.
    """

    def __init__(self, limits: TaskLimits | None) -> None:
        self._limits = limits
        self._task: int | None = None
        self.calls: int | None = None
        self.bytes = 0

    def begin(self, history_length: int) -> None:
        """Begin an activation; a new length of the history shows that another task has begun."""
        if self._limits is not None and history_length != self._task:
            self._task, self.calls, self.bytes = history_length, self._limits["calls"], self._limits["bytes"]

    def take(self, calls: int, size: int) -> None:
        """Take away the calls that an activation has emitted, which have ``size`` bytes together."""
        if self.calls is not None and self._limits is not None:
            self.calls, self.bytes = self.calls - calls, self.bytes - size
            if 2 * self.bytes < self._limits["bytes"]:  # another activation may emit one call of any size
                self.calls = 0
