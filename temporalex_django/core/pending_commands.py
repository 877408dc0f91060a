"""Pending commands: calls of workflow code that the host answers, such as activities, timers, children and messages."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from temporalex_django.core.failures import activity_failure
from temporalex_django.core.history.events import Command, Job, Reader
from temporalex_django.core.journal import Journal
from temporalex_django.core.payloads import codec
from temporalex_django.core.payloads.codec import deep_copy
from temporalex_django.core.run_context import RunContext
from temporalex_django.core.units.ivar import IVar
from temporalex_django.errors import PayloadError, TemporalexError


class PendingCommands:
    """The calls that are not resolved yet, each under a number. The event that resolves a call names that number.

    A host may limit how many calls are unresolved (``max_pending``). Calls beyond the limit are deferred, in order.
    """

    __slots__ = (
        "_cancelled_children",
        "_deferred_commands",
        "_journal",
        "_last_number",
        "_max_pending",
        "_resolvers",
        "_run_context",
        "_timer_heap",
        "_timers",
        "activities",
        "children",
        "had_children",
        "readers",
    )  # fmt: skip

    def __init__(self, run_context: RunContext, journal: Journal) -> None:
        self._run_context = run_context
        self._journal = journal
        self.activities: dict[int, str] = {}  # scheduled and unresolved: number -> name
        self.children: dict[int, str] = {}  # children that a unit waits for: number -> id
        self.had_children = False
        self.readers: dict[int, Reader] = {}  # for inputs that a replay has still to compare
        self._max_pending: int | None = None
        self._cancelled_children: set[int] = set()  # numbers of ``CancelChild`` that no host has confirmed
        self._deferred_commands: dict[int, Command] = {}
        self._resolvers: dict[int, Callable[[Job], None]] = {}
        self._timers: dict[int, datetime] = {}
        self._timer_heap: list[tuple[datetime, int]] = []
        self._last_number = 0

    # -- called by primitives -----------------------------------------------------------------------------------------

    @property
    def last_number(self) -> int:
        """The number of the command that was issued last; 0 before the first one."""
        return self._last_number

    def next_number(self) -> int:
        """Take and return the next command number of the run, from 1."""
        self._last_number += 1
        return self._last_number

    def submit(
        self, kind: str, attributes: dict[str, Any], resolve: Callable[[Job], None], number: int | None = None
    ) -> int:
        """Emit a command under a number and return the number. Without ``number`` it gets the next one.

        ``resolve(job)`` is called with the job that ends the call.
        """
        number = number or self.next_number()
        self._resolvers[number] = resolve
        self._emit_or_defer(Command(kind, number, attributes))
        return number

    def abandon(self, number: int) -> bool:
        """Discard the call with this command number, because no code waits for its result any more.

        Returns True if its command was emitted, so that the host must be informed.
        """
        self.discard(number)
        return self._deferred_commands.pop(number, None) is None

    def discard(self, number: int) -> None:
        """Forget the call with this command number: a job that still comes for it has no effect."""
        self._resolvers.pop(number, None)
        self._timers.pop(number, None)
        self.activities.pop(number, None)
        self.children.pop(number, None)

    def schedule_activity(self, attributes: dict[str, Any], result_type: Any, reader: Reader | None = None) -> IVar:
        """Emit ``ScheduleActivity`` and return an IVar, whose await gives the result or raises ``ActivityFailure``.

        ``attributes`` are those of the event ``ActivityScheduled``. The result is decoded to ``result_type``.
        ``reader`` decodes the input as the activity would, so that a replay can compare inputs.
        """
        name = attributes["activity"]

        def abandon() -> None:
            if self.abandon(number):
                self._journal.emit("CancelActivity", number, {})

        ivar = IVar(f"activity {name}", abandon)

        def resolve(job: Job) -> None:
            if job.kind != "ActivityCompleted":
                ivar.fail(activity_failure(job.attributes, name))
                return
            try:
                result = job.attributes.get("result")
                ivar.put(codec.convert(deep_copy(result), result_type, label=f"the result of {name}"))
            except PayloadError as exc:
                ivar.fail(exc)

        number = self.submit_activity(attributes, resolve, reader)
        return ivar

    def submit_activity(
        self, attributes: dict[str, Any], resolve: Callable[[Job], None], reader: Reader | None = None
    ) -> int:
        """Emit ``ScheduleActivity`` and return its command number.

        ``resolve(job)`` is called with the job that ends the activity. For the other arguments see
        ``schedule_activity``.
        """
        number = self.next_number()
        if reader is not None and self._run_context.replaying:
            self.readers[number] = reader
        self.activities[number] = attributes["activity"]
        self._resolvers[number] = resolve
        self._emit_or_defer(Command("ScheduleActivity", number, attributes))
        return number

    def start_child(
        self, number: int, attributes: dict[str, Any], resolve: Callable[[Job], None], reader: Reader
    ) -> None:
        """Emit ``StartChild`` under a number that the caller has taken.

        ``resolve(job)`` is called with the job that reports the end of the child. A replay uses ``reader`` to read the
        input as the child does.
        """
        if self._run_context.replaying:
            self.readers[number] = reader

        def on_end(job: Job) -> None:
            self.children.pop(number, None)
            resolve(job)

        self.children[number] = attributes["id"]
        self.had_children = True
        self.submit("StartChild", attributes, on_end, number)

    def cancel_child(self, child: int, workflow_id: str) -> None:
        """Emit ``CancelChild`` for the child that the command number ``child`` started. Nothing waits for an answer."""
        number = self.next_number()
        self._cancelled_children.add(number)
        self._journal.emit("CancelChild", number, {"id": workflow_id, "child": child})

    def start_timer(self, duration: float, fire: Callable[[], None], **purpose: str) -> int:
        """Emit ``StartTimer`` and return its command number. ``fire()`` is called when the timer fires.

        ``duration`` is in seconds. ``purpose`` are attributes that are recorded with the timer.
        """
        number = self.next_number()
        due = self._run_context.now + timedelta(seconds=duration)
        self._timers[number] = due
        heapq.heappush(self._timer_heap, (due, number))

        def resolve(_: Job) -> None:
            self._timers.pop(number, None)
            fire()

        self._resolvers[number] = resolve
        # Timers are not subject to ``max_pending``: their due time counts from this call.
        self._journal.emit("StartTimer", number, {"duration": duration, "due": due.isoformat(), **purpose})
        return number

    def cancel_timer(self, number: int) -> None:
        """Emit ``CancelTimer`` if the timer is still running."""
        if number in self._resolvers:
            self.discard(number)
            self._journal.emit("CancelTimer", number, {})

    # -- called by the executor ---------------------------------------------------------------------------------------

    def set_limit(self, max_pending: int | None) -> None:
        """Set the largest number of unresolved calls for the current activation. None means no limit."""
        self._max_pending = max_pending

    def deliver(self, job: Job) -> None:
        """Deliver the job that resolves a call. Raises ``TemporalexError`` for a call that was never issued."""
        number = job.attributes["seq"]
        resolve = self._resolvers.pop(number, None)
        if resolve is not None:
            self._journal.record(job)
            self.activities.pop(number, None)
            resolve(job)
        elif number in self._cancelled_children:
            # A host may confirm such a command or not. The histories of those that do have always shown it.
            self._cancelled_children.discard(number)
            self._journal.record(job)
        elif number > self._last_number:
            raise TemporalexError(
                f"{self._run_context.info.id}: {job.kind} for command {number}, which was never issued"
            )
        # Otherwise the wait was cancelled before this job came. The job has no effect and is not recorded.

    def release_deferred(self) -> None:
        """Emit deferred commands, oldest first, as far as the limit allows."""
        if not self._deferred_commands:
            return
        capacity = len(self._deferred_commands)
        if self._max_pending is not None:
            capacity = min(capacity, self._max_pending - (self._pending_count() - capacity))
        for number in list(islice(self._deferred_commands, max(capacity, 0))):
            self._journal.add(self._deferred_commands.pop(number))

    def due_timers(self, until: datetime) -> list[tuple[datetime, int]]:
        """Return the timers that are due at ``until`` or before, in order of time.

        Each is a pair of its due time and the number of its command.
        """
        return sorted((due, number) for number, due in self._timers.items() if due <= until)

    def next_timer(self) -> datetime | None:
        """Return the time at which the next timer is due; None if no timer is running."""
        # Cancelled timers stay in the heap until they reach its top: removing one at once would search all of it.
        while self._timer_heap and self._timers.get(self._timer_heap[0][1]) != self._timer_heap[0][0]:
            heapq.heappop(self._timer_heap)
        return self._timer_heap[0][0] if self._timer_heap else None

    def clear(self) -> None:
        """Discard all calls. Call it when the run is evicted."""
        self._resolvers.clear()

    def _emit_or_defer(self, command: Command) -> None:
        """Emit a command, or defer it while the limit of unresolved calls is reached."""
        assert command.seq is not None
        if self._max_pending is not None and self._pending_count() > self._max_pending:
            self._deferred_commands[command.seq] = command
        else:
            self._journal.add(command)

    def _pending_count(self) -> int:
        """Return the number of unresolved calls, timers not counted."""
        return len(self._resolvers) - len(self._timers)
