"""Commands of an activation: those that are pending, and their order."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from temporalex_django.core.failures import activity_failure, child_failure, external_failure
from temporalex_django.core.history.activation import Completion, LostMessage, Refusal
from temporalex_django.core.history.events import DELIVERED, Command, Job, Reader
from temporalex_django.core.messages.sender import Sender
from temporalex_django.core.payloads import codec
from temporalex_django.core.payloads.codec import deep_copy
from temporalex_django.core.run_context import RunContext
from temporalex_django.core.runtime_protocol import WorkflowRuntime
from temporalex_django.core.units.ivar import IVar
from temporalex_django.errors import PayloadError, TemporalexError

# --- pending commands -------------------------------------------------------------------------------------------------
#
# Pending commands: calls of workflow code that the host answers, such as activities, timers, children and messages.


class PendingCommands:
    """The calls that are not resolved yet, each under a number. The event that resolves a call names that number.

    A host may limit how many calls are unresolved (``max_pending``), and how many an activation emits (``max_calls``,
    ``max_bytes``). Calls beyond a limit are deferred, in order. ``emitted`` and ``emitted_bytes`` are the number and
    the JSON size of the calls of the last activation, for a host that limits them.
    """

    __slots__ = (
        "_cancelled_children",
        "_deferred_commands",
        "_journal",
        "_last_number",
        "_max_bytes",
        "_max_calls",
        "_max_pending",
        "_resolvers",
        "_run_context",
        "_timer_heap",
        "_timers",
        "activities",
        "children",
        "emitted",
        "emitted_bytes",
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
        self._max_calls: int | None = None
        self._max_bytes = 0
        self.emitted = self.emitted_bytes = 0
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

    def begin(self, max_pending: int | None, max_calls: int | None, max_bytes: int) -> None:
        """Begin a new activation with its limits; see ``Activation``. None means no limit."""
        self._max_pending, self._max_calls, self._max_bytes = max_pending, max_calls, max_bytes
        self.emitted = self.emitted_bytes = 0

    @property
    def can_emit(self) -> bool:
        """True if calls were deferred that only the limits of one activation keep back."""
        return self._max_calls is not None and bool(self._deferred_commands) and self._capacity() > 0

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
        for number in list(islice(self._deferred_commands, max(self._capacity(), 0))):
            if self._max_calls is not None and not self._fits(self._max_calls, self._deferred_commands[number]):
                break
            self._journal.add(self._deferred_commands.pop(number))

    def _capacity(self) -> int:
        """Return how many of the deferred commands may be emitted by the limit of unresolved calls."""
        count = len(self._deferred_commands)
        return count if self._max_pending is None else min(count, self._max_pending - (self._pending_count() - count))

    def _fits(self, max_calls: int, command: Command) -> bool:
        """Return True if an activation with limits may emit one more command, which then counts."""
        size = len(codec.encode(command.attributes))
        if self.emitted >= max_calls or (self.emitted and self.emitted_bytes + size > self._max_bytes):
            return False
        self.emitted, self.emitted_bytes = self.emitted + 1, self.emitted_bytes + size
        return True

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
        """Defer the command while the limit of unresolved calls is reached."""
        assert command.seq is not None
        is_full = self._max_pending is not None and self._pending_count() > self._max_pending
        # With limits of the activation, no call overtakes a deferred one.
        if self._max_calls is not None and not is_full:
            is_full = bool(self._deferred_commands) or not self._fits(self._max_calls, command)
        if is_full:
            self._deferred_commands[command.seq] = command
        else:
            self._journal.add(command)

    def _pending_count(self) -> int:
        """Count unresolved calls without timers."""
        return len(self._resolvers) - len(self._timers)


# --- journal ----------------------------------------------------------------------------------------------------------
#
# The journal: the record of an activation while its code runs.


class Journal:
    """The record of the current activation, kept in its ``completion``.

    It has the commands in the order of the calls, the jobs that took effect, and the answers that the host must give.
    """

    __slots__ = ("completion",)

    def __init__(self) -> None:
        self.completion = Completion()

    def begin(self, *, changed: bool) -> Completion:
        """Begin the record of a new activation, and return the completion that it fills.

        ``changed`` is True if the host must store something even if nothing takes effect.
        """
        self.completion = Completion(changed=changed)
        return self.completion

    @property
    def is_recording(self) -> bool:
        """True if the current activation has had an effect, so that the history will contain it."""
        completion = self.completion
        return completion.changed or bool(completion.jobs or completion.commands or completion.failed)

    def emit(self, kind: str, number: int | None, attributes: dict[str, Any]) -> None:
        """Record a command of this kind. ``number`` is its command number, or None for a command without one."""
        self.add(Command(kind, number, attributes))

    def add(self, command: Command) -> None:
        self.completion.commands.append(command)

    def record(self, job: Job) -> None:
        """Record a job that took effect, so that it goes into the history."""
        self.completion.jobs.append(job)

    def add_note(self, name: str, facts: dict[str, Any]) -> None:
        """Add a notice for listeners of the run, which the host sends after the commit.

        ``name`` says what happened, and ``facts`` has the details. Do not call this during a replay.
        """
        self.completion.notes.append((name, facts))

    def refuse_signal(self, refusal: Refusal) -> None:
        """Record that a signal was refused because its sender lacks a permission."""
        self.completion.refused.append(refusal)

    def reject_update(self, update_id: str, error: TemporalexError) -> None:
        """Record that an update, or a request, was rejected with ``error``."""
        self.completion.rejected.append((update_id, error))

    def lose(self, kind: str, name: str, sender: Sender | None, error: TemporalexError) -> None:
        """Record that a message which waited after a reset is refused with this error; see ``LostMessage``."""
        self.completion.lost += (LostMessage(kind, name, sender, error.code),)

    def grant_request(self, request_id: str) -> None:
        """Record that the request with this id was accepted."""
        self.completion.granted.append(request_id)


# --- external runs ----------------------------------------------------------------------------------------------------
#
# Other runs: children that this run starts and waits for, and messages to runs that it knows by id.


_MAX_ID_LENGTH = 200


def start_child(
    runtime: WorkflowRuntime, attributes: dict[str, Any], decode_result: Callable[[Any], Any], reader: Reader
) -> IVar:
    """Emit ``StartChild`` and return the IVar (a value to await) of the child.

    ``attributes`` are those of the event ``ChildStarted``; if their ``id`` is None, one is made. The IVar holds the
    result of the child, converted by ``decode_result``, or raises ``ChildWorkflowFailure``. A replay uses ``reader`` to
    read the input as the child does.

    A cancelled wait asks the child to cancel, unless ``parent_close`` is "abandon". When the parent closes, a child
    that is still open gets what ``parent_close`` says.
    """
    number = runtime.pending_commands.next_number()
    if attributes["id"] is None:
        # The run id is used where the business id leaves no space for the number. Both are in the history, so a replay
        # makes the same id.
        generated_id = f"{runtime.run_context.info.id}:{number}"
        attributes = {
            **attributes,
            "id": generated_id
            if len(generated_id) <= _MAX_ID_LENGTH
            else f"{runtime.run_context.info.run_id}:{number}",
        }
    workflow_id = attributes["id"]
    name = f"{attributes['workflow']} {workflow_id}"
    ivar = IVar(f"child {name}")
    since = runtime.run_context.now.isoformat()
    ivar.wait_info = {"kind": "child", "seq": number, "name": attributes["workflow"], "id": workflow_id, "since": since}

    def resolve(job: Job) -> None:
        if job.kind == "ChildCompleted":
            try:
                # A copy, because the job goes into the history and user code may change its result.
                ivar.put(decode_result(deep_copy(job.attributes.get("result"))))
            except PayloadError as exc:
                ivar.fail(exc)
        else:
            ivar.fail(child_failure(job.attributes, name))

    def abandon() -> None:
        if runtime.pending_commands.abandon(number) and attributes["parent_close"] != "abandon":
            runtime.pending_commands.cancel_child(number, workflow_id)

    ivar.abandon = abandon
    runtime.pending_commands.start_child(number, attributes, resolve, reader)
    return ivar


def send_external(runtime: WorkflowRuntime, kind: str, attributes: dict[str, Any]) -> IVar:
    """Emit a message to another run and return its IVar, a value to await.

    ``kind`` is "SignalExternal" or "CancelExternal", and ``attributes`` are those of its event. The IVar is set when
    the message is in the inbox of an open run. If no open run gets the message, it raises the error of
    ``external_failure``.
    """
    label = f"signal {attributes['name']}" if kind == "SignalExternal" else "cancel request"
    ivar = IVar(f"{label} to {attributes['id']}")

    def resolve(job: Job) -> None:
        if job.kind == DELIVERED:
            ivar.put()
        else:
            ivar.fail(external_failure(job.attributes))

    def abandon() -> None:
        runtime.pending_commands.abandon(number)

    ivar.abandon = abandon
    number = runtime.pending_commands.submit(kind, attributes, resolve)
    return ivar
