"""The writes of the storage in memory: starts, messages, turns and activities."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from temporalex_django.authoring.backend import OpenActivity
from temporalex_django.authoring.run_columns import NextRun, names_for_next_run
from temporalex_django.core.failures import AttemptFailure
from temporalex_django.core.history.activation import FailedSignal
from temporalex_django.core.history.prefix import EXTERNAL_KINDS, PendingMessage
from temporalex_django.core.human_tasks import add_starter
from temporalex_django.core.messages.sender import Headers, Sender
from temporalex_django.core.names import all_names
from temporalex_django.core.payloads.codec import JsonCodec, deep_copy
from temporalex_django.core.process import REQUEST
from temporalex_django.engine import activity_policy
from temporalex_django.engine.activity_policy import edited_inputs, is_unstarted
from temporalex_django.engine.contracts.records import (
    Hold,
    HumanTaskWrite,
    InboxMessage,
    NewTask,
    Outcome,
    Retry,
    RunRecord,
    RunState,
    RunWrite,
    TaskResult,
    TaskState,
)
from temporalex_django.engine.external_messages import (
    PARENT_CLOSE_KINDS,
    PARENT_CLOSED,
    Delivery,
    FinishedActivity,
    MessageFingerprint,
    NewChild,
    NewMessage,
)
from temporalex_django.engine.ids import resolve_run, run_id_taken_error, uuid7
from temporalex_django.engine.memory.tables import MemoryMessage, MemoryTables, RunRow, Table, start_labels
from temporalex_django.engine.run_start import RunStart, open_already_error
from temporalex_django.engine.scheduling import Capacity, EagerClaim
from temporalex_django.errors import AmbiguousId, InvalidId

# --- inserts ----------------------------------------------------------------------------------------------------------
#
# The inserts in memory that callers make outside of turns: starts of runs, and messages.


class MemoryInserts(MemoryTables):
    """The part of the storage in memory that starts chains and stores messages."""

    def start(self, start: RunStart) -> UUID:
        """Start a new chain, which is due when its run begins, and return its id.

        Raises ``AlreadyRunning`` when an open run in its scope has the id, and ``InvalidId`` when the id is that of a
        run.
        """
        chain_id = self._new_chain(start)
        if chain_id is None:
            raise open_already_error(start)
        return chain_id

    def _new_chain(self, start: RunStart) -> UUID | None:
        """Create a chain with its first run; return None when its id is taken in its scope.

        Raises ``InvalidId`` when the id is that of a run.
        """
        workflow_id, key = start.workflow_id, start.open_key
        if self._chain_by_run_id(workflow_id) is not None:
            raise run_id_taken_error(workflow_id)
        if key is not None and self._is_key_in_use(key, start):
            return None
        chain_id = uuid7()
        record = RunRecord.from_start(
            replace(start, args=deep_copy(start.args), snapshot=deep_copy(start.snapshot)),
            run_id=uuid7(),
            now=self.clock,
        )
        self._add_run(chain_id, record, labels=start_labels(start))
        self._chains_of[workflow_id] = (*self._chains_of.get(workflow_id, ()), chain_id)
        self.queues.add(start.queue)
        if key is not None:
            self._open_keys[chain_id] = key
        self.chains[chain_id] = RunState(
            chain_id=chain_id,
            run_id=record.run_id,
            queue=start.queue,
            head_token=None,
            length=0,
            activations=0,
            activated_at=None,
            due_at=start.due_at(self.clock),
            deadline=start.deadline(self.clock),
        )
        return chain_id

    def replace_waiting_input(self, start: RunStart, starter: Sender | None) -> UUID | None:
        """Replace the input and the times of a debounced run that has not begun, and return its chain.

        The run is the open one with the id, the class and the version of ``start``. ``starter`` is the person who
        starts, or None. Returns None if there is no such run.
        """
        for chain_id in self._chains_of.get(start.workflow_id, ()):
            state, run = self.chains[chain_id], self.current_run(chain_id)
            record = run.facts
            is_same = (record.workflow, record.version) == (start.workflow, start.version)
            if self._open_keys.get(chain_id) != start.open_key or not is_same:
                continue
            is_debounced = "debounce" in (run.column("start_limit") or {})
            if not is_debounced or not is_unstarted(state):
                continue
            snapshot = record.snapshot if starter is None else add_starter(record.snapshot, starter)
            changed = replace(
                record,
                args=deep_copy(start.args),
                starts_at=start.begins_at(self.clock),
                start_before=start.start_before,
                expires_at=start.expires_at(self.clock),
                snapshot=snapshot,
                headers=start.headers,
            )
            self.runs[record.run_id] = replace(run, facts=changed)
            due_at = state.due_at if state.paused else start.due_at(self.clock)
            self.chains[chain_id] = replace(state, due_at=due_at, deadline=start.deadline(self.clock))
            return chain_id
        return None

    def _is_key_in_use(self, key: str, start: RunStart) -> bool:
        """Return True if an open run prevents the start of another one with the open key ``key``.

        ``key`` contains the business id and the scope in which the id is unique. An open run prevents the start if it
        has the same key, or the same id in a narrower scope that the scope of the start includes.
        """
        for chain_id in self._chains_of.get(start.workflow_id, ()):
            if (existing_key := self._open_keys.get(chain_id)) is None:
                continue
            record, names = self.current_run(chain_id).facts, all_names(start.workflow)
            # A key shows only the scope of its own run. A start in a wider scope has to compare the classes, under all
            # their names.
            renamed = len(names) > 1 and start.scope == "version" and record.version == start.version
            same_workflow = record.workflow in names and (start.scope == "workflow" or renamed)
            if existing_key == key or start.scope == "global" or same_workflow:
                return True
        return False

    def reopen(self, chain_id: UUID, start: RunStart) -> bool:
        """Reserve the business id for a closed chain again; return False when another open run has the id in its scope.

        ``start`` has the id and the scope.
        """
        key = start.open_key
        if key is not None and self._is_key_in_use(key, start):
            return False
        if key is not None:
            self._open_keys[chain_id] = key
        return True

    def message_number(self, chain_id: UUID, message_id: str) -> int | None:
        """Return the number of the message that has this message id in a chain, or None.

        The number is the key of its row.
        """
        return self._message_numbers[chain_id].get(message_id)

    def prepend_messages(self, chain: UUID, messages: Sequence[PendingMessage], *, received: int) -> None:
        """Put messages at the head of the inbox of a chain, before its unread messages.

        A message replaces the one that has its id, unless that one is unread. ``received`` is the number of signals in
        the history of the run.
        """
        unread_messages = [message for message in self._messages_of(chain) if message.kind in EXTERNAL_KINDS]
        unread_ids = {message.message_id for message in unread_messages} - {None}
        messages = [message for message in messages if message.message_id not in unread_ids]
        replaced = [self._message_numbers[chain].get(message.message_id or "", 0) for message in messages]
        for number in {message.id for message in unread_messages} | {*replaced}:
            self._delete_message(number)  # no message has the number 0
        for pending in messages:
            message_id = str(uuid4()) if pending.kind == REQUEST else pending.message_id
            # Signals wait in any case.
            message = replace(_inbox_message(pending), message_id=message_id, redelivered=pending.kind != "signal")
            self._store_message(chain, message)
        # Numbers give the order, so unread messages are stored again behind the others.
        for message in unread_messages:
            is_behind = message.after is None or message.after > received
            self._store_message(chain, replace(message, after=None if is_behind else message.after))

    def message_statuses(self, chain: UUID, ids: Collection[str]) -> dict[str, str]:
        """Return the statuses of messages of a chain by message id: "unread", or the status of the outcome.

        Unknown ids are left out.
        """
        numbers, inbox, statuses = self._message_numbers[chain], self._inboxes[chain], {}
        for message_id in ids:
            if (number := numbers.get(message_id)) is not None:
                outcome = self.messages[number].outcome
                statuses[message_id] = "unread" if number in inbox else outcome.status if outcome is not None else ""
        return statuses

    def copy_failed_messages(self, source_chain: UUID, target_chain: UUID, ids: Collection[str]) -> None:
        """Copy the failed messages with these message ids from one chain to another."""
        numbers = sorted(
            number for message in ids if (number := self._message_numbers[source_chain].get(message)) is not None
        )
        for row in [self.messages[number] for number in numbers if self.messages[number].is_failed]:
            self._store_message(target_chain, row.message, row.outcome)

    def store_settled_messages(self, chain: UUID, messages: Sequence[tuple[PendingMessage, Outcome]]) -> None:
        """Store messages from the history of a run, with their outcomes, in a chain that has none of them.

        So a message that is sent again does not count twice.
        """
        for message, outcome in messages:
            self._store_message(chain, _inbox_message(message), outcome)

    def send(
        self,
        chain_id: UUID,
        kind: str,
        name: str,
        payload: Any,
        *,
        message_id: str | None = None,
        sender: Sender | None = None,
        headers: Headers | None = None,
    ) -> int:
        """Put a message into the inbox of a chain and return its number; a message sent before keeps its number.

        ``kind``, ``name`` and ``payload`` have the meaning of these fields of ``InboxMessage``. ``sender`` None means
        that code sent it. A signal that has become a failed message is delivered again, with its new payload. Raises
        ``MessageIdTaken`` if a different message has the message id.
        """
        if message_id is not None and (existing_number := self._message_numbers[chain_id].get(message_id)) is not None:
            message_row = self.messages[existing_number]
            existing = message_row.message
            is_same = (existing.kind, existing.name, existing.sender and existing.sender.key) == (
                kind,
                name,
                sender and sender.key,
            )
            if message_row.is_id_free or (message_row.is_failed and is_same):
                self._delete_message(existing_number)
            else:
                MessageFingerprint(existing.kind, existing.name, existing.payload, existing.sender).require_same(
                    message_id, MessageFingerprint(kind, name, payload, sender), exact=False
                )
        return self._add_message(chain_id, kind, name, payload, message_id=message_id, sender=sender, headers=headers)


# --- activity tasks ---------------------------------------------------------------------------------------------------
#
# Scheduled activities in memory, for test environments.
#
# As in the database, the report of an attempt that is no longer the present one changes nothing.


#: When an activity is due, and its number.
Due = tuple[datetime, int]


class MemoryTasks(MemoryTables):
    """The storage of scheduled activities in memory. It implements the protocol ``TaskStorage``."""

    def __init__(self, now: datetime) -> None:
        super().__init__(now)
        self.open_tasks: Table[int, TaskState] = Table(self.undo_log)
        self._failures: Table[int, AttemptFailure] = Table(self.undo_log)
        self._holds: Table[tuple[str, str], datetime] = Table(self.undo_log)  # their ends, by queue and key
        # By run and command number: the numbers of open activities.
        self._task_ids_by_run: defaultdict[UUID, Table[int, int]] = defaultdict(lambda: Table(self.undo_log))
        # Heaps by queue and by whether the activities are atomic. They hold all that have no owner, and entries of some
        # that are gone or due at another time, which a claim skips.
        self._due_tasks: defaultdict[tuple[str, bool], list[Due]] = defaultdict(list)

    # -- what a turn writes -------------------------------------------------------------------------------------------

    def _schedule(self, task: NewTask) -> None:
        """Store a new activity as a row under the next number."""
        number = next(self._ids)
        self.queues.add(task.queue)
        self._task_ids_by_run[task.run_id][task.seq] = number
        call: dict[str, Any] = {"args": deep_copy(list(task.args)), "kwargs": deep_copy(dict(task.kwargs))}
        due_at = task.due_at or task.scheduled_at
        self._record_failure(number, task.failure)
        self._make_available(
            task.as_state(number, attempt=task.attempt, due_at=due_at, options=deep_copy(dict(task.options)), **call)
        )

    def _retry(self, run_id: UUID, seq: int, retry: Retry) -> None:
        """Schedule another try of the atomic activity of command ``seq``, which failed in a turn of its run."""
        if (number := self._task_ids_by_run[run_id].get(seq)) is not None:
            self._record_failure(number, retry.failure)
            self._make_available(replace(self.open_tasks[number], attempt=retry.attempt, due_at=retry.due_at))

    def _record_failure(self, number: int, failure: AttemptFailure | None) -> None:
        """Store the failure for which the activity ``number`` is tried again, with the time of its first failure."""
        if failure is not None:
            previous_failure = self._failures.get(number)
            since = failure.at if previous_failure is None else previous_failure.since
            self._failures[number] = replace(failure, since=since)

    def _failure_payload(self, number: int) -> dict[str, Any] | None:
        """Return the stored failure of the last attempt of the activity ``number``, or None."""
        failure = self._failures.get(number)
        return None if failure is None else failure.payload()

    def _drop_tasks(self, run_id: UUID, seqs: Iterable[int] | None = None) -> None:
        """Delete the activities of a run with these command numbers, or all of them (None)."""
        of_run = self._task_ids_by_run[run_id]
        for seq in list(of_run) if seqs is None else seqs:
            if (number := of_run.discard(seq)) is not None:
                del self.open_tasks[number]
                self._failures.discard(number)

    def _make_available(self, task: TaskState) -> None:
        """Add an activity to the heap of its queue, so that a claim gets it once it is due."""
        self.open_tasks[task.id] = task
        heapq.heappush(self._due_tasks[task.queue, task.atomic], (task.due_at, task.id))

    # -- TaskStorage --------------------------------------------------------------------------------------------------

    def claim_tasks(
        self, *, capacity: Capacity, queues: Sequence[str], owner: int, atomic: bool = False
    ) -> list[TaskState]:
        heaps = [self._due_tasks[queue, kind] for queue in dict.fromkeys(queues) for kind in {False, atomic}]
        claimed_tasks: list[TaskState] = []
        skipped_tasks: list[TaskState] = []
        while capacity and (heap := min((heap for heap in heaps if heap), default=None)) and heap[0][0] <= self.clock:
            due_at, number = entry = heapq.heappop(heap)
            # A heap is no table, so a rollback has to put the entry back; a second one for the same activity does no
            # harm.
            self.undo_log.add_undo(partial(heapq.heappush, heap, entry))
            task = self.open_tasks.get(number)
            if task is None or task.owner is not None or task.due_at != due_at:
                continue
            if not capacity.acquire(task.activity):
                skipped_tasks.append(task)
                continue
            failure = self._failure_payload(number)
            task = replace(task, owner=owner, attempt=task.attempt + 1, beat_at=None, previous_failure=failure)
            self.open_tasks[number] = task
            claimed_tasks.append(_copy_task(task))
        for task in skipped_tasks:
            self._make_available(task)
        return claimed_tasks

    def _fenced_task(self, number: int, attempt: int, owner: int | None) -> TaskState | None:
        """Return the activity ``number`` if its present attempt has the number ``attempt`` and the worker ``owner``.

        Else return None: the attempt was lost, and its result must not change anything.
        """
        task = self.open_tasks.get(number)
        if task is not None and (task.attempt, task.owner) == (attempt, owner):
            return task
        return None

    def finish_tasks(self, results: Sequence[TaskResult]) -> list[int]:
        with self.undo_log.block():
            valid, activities = self.finish_undelivered(results)
            self.deliver(activities)
        return valid

    def deliver(self, activities: Sequence[FinishedActivity]) -> None:
        for activity in activities:
            self._add_message(
                *(activity.chain_id, "activity", activity.kind, activity.attributes),
                run_id=activity.run_id,
                headers=activity.headers,
            )

    def finish_undelivered(self, results: Sequence[TaskResult]) -> tuple[list[int], list[FinishedActivity]]:
        valid, activities = [], []
        with self.undo_log.block():
            for result in results:
                task = self._fenced_task(*result.task.fence)
                if task is None:
                    continue
                valid.append(task.id)
                self._store_hold(result.hold)
                if result.outcome is not None:
                    assert task.chain_id is not None  # there are no background tasks here
                    self._drop_tasks(task.run_id, [task.seq])
                    kind, attributes = result.outcome
                    shared: dict[str, Any] = {n: getattr(task, n) for n in ("id", "chain_id", "run_id", "headers")}
                    queue, copied = self.chains[task.chain_id].queue, deep_copy(attributes)
                    activities.append(FinishedActivity(kind=kind, attributes=copied, queue=queue, **shared))
                elif result.retry_at is not None:
                    attempt = result.task.attempt - (not result.count)
                    self._record_failure(task.id, result.failure)
                    released_task = replace(task, owner=None, started_at=None, beat_at=None, attempt=attempt)
                    self._make_available(replace(released_task, due_at=result.retry_at))
        return valid, activities

    def _store_hold(self, hold: Hold | None) -> None:
        if hold is not None:
            name = (hold.queue, hold.key or "")
            self._holds[name] = max(hold.until, self._holds.get(name) or hold.until)

    def held_until(self, task: TaskState) -> datetime | None:
        """Return when the hold on the activity's queue or concurrency key ends, or None if there is none.

        A hold keeps activities back after an attempt has raised ``RetryLater`` with ``hold``.
        """
        names = ((task.queue, ""), (task.queue, task.options.get("concurrency_key") or ""))
        ends = [end for name in names if (end := self._holds.get(name)) is not None and end > self.clock]
        return None if task.atomic else max(ends, default=None)

    def expired_tasks(self, *, limit: int) -> list[TaskState]:
        expired = []
        for task in self.open_tasks.values():
            timeout = self.next_timeout(task)
            if timeout is not None and timeout <= self.clock:
                expired.append((timeout, task.id))
        return [_copy_task(self.open_tasks[number]) for _, number in sorted(expired)[:limit]]

    def next_timeout(self, task: TaskState) -> datetime | None:
        """Return when the next timeout of the activity passes, or None.

        Atomic activities have no timeouts, since they run inside a turn of their run.
        """
        if task.atomic:
            return None
        timeout = activity_policy.next_timeout(task, started_at=task.started_at, heartbeat_at=task.beat_at)
        if timeout is None:
            return None
        return timeout[0]

    def atomic_tasks(self, chain_id: UUID) -> list[TaskState]:
        run = self.chains.get(chain_id)
        of_run = {} if run is None else self._task_ids_by_run[run.run_id]
        tasks = [self.open_tasks[number] for _, number in sorted(of_run.items())]
        return [
            _copy_task(replace(task, attempt=task.attempt + 1, previous_failure=self._failure_payload(task.id)))
            for task in tasks
            if task.atomic
        ]

    def open_activities(self, run_id: UUID, *, limit: int) -> list[OpenActivity]:
        numbers = [number for _, number in sorted(self._task_ids_by_run[run_id].items())[:limit]]
        return [
            OpenActivity(
                seq=task.seq,
                activity=task.activity,
                queue=task.queue,
                owner=task.owner,
                attempt=task.attempt,
                max_attempts=int((task.options.get("retry") or {}).get("max_attempts") or 0),
                scheduled_at=task.scheduled_at,
                due_at=task.due_at,
                started_at=task.started_at,
                beat_at=task.beat_at,
                expires_at=self.next_timeout(task),
                heartbeat_timeout=task.options.get("heartbeat"),
                last_failure=self._failures.get(task.id),
            )
            for task in map(self.open_tasks.__getitem__, numbers)
        ]

    def find_task(self, run_id: UUID, seq: int) -> TaskState | None:
        return next((task for task in self.tasks_of_run(run_id) if task.seq == seq), None)

    def tasks_of_run(self, run_id: UUID) -> list[TaskState]:
        tasks = [self.open_tasks[number] for _, number in sorted(self._task_ids_by_run[run_id].items())]
        return [_copy_task(replace(t, attempt=t.attempt + (t.atomic and t.owner is None))) for t in tasks]

    def edit_task(self, task: TaskState) -> None:
        existing_task = self._fenced_task(*task.fence)
        if existing_task is not None and existing_task.owner is None:
            call: dict[str, Any] = {"args": deep_copy(list(task.args)), "kwargs": deep_copy(dict(task.kwargs))}
            self.open_tasks[task.id] = replace(existing_task, options=deep_copy(dict(task.options)), **call)

    def record_heartbeats(self, heartbeats: Mapping[tuple[int, int, int], Any]) -> set[tuple[int, int, int]]:
        valid = set()
        for key, details in heartbeats.items():
            if (task := self._fenced_task(*key)) is None:
                continue
            plain = JsonCodec().decode(details) if isinstance(details, bytes) else deep_copy(details)
            latest_details = task.heartbeat_details if plain is None else plain
            self.open_tasks[task.id] = replace(task, beat_at=self.clock, heartbeat_details=latest_details)
            valid.add(key)
        return valid

    def record_progress(self, progress: Mapping[tuple[int, int, int], Mapping[str, Any]]) -> None:
        """Drop it: attempts in memory run at once, so nobody can look at their progress."""


def _copy_task(task: TaskState) -> TaskState:
    """Return a copy of the activity, which the caller may change."""
    return replace(task, args=deep_copy(task.args), kwargs=deep_copy(task.kwargs))


# --- turn writes ------------------------------------------------------------------------------------------------------
#
# The storage of what a turn has produced, in memory. Messages to other runs are stored first.


_CONTINUED = names_for_next_run(NextRun.CONTINUED)


class MemoryWrites(MemoryInserts, MemoryTasks):
    """The part of the storage in memory that stores what a turn has produced (``write``)."""

    def write(
        self, writes: Sequence[RunWrite], *, eager_claim: EagerClaim | None = None, is_last: bool = False
    ) -> Callable[[], list[TaskState]]:
        """Store what a turn produced for its runs: events, messages, children, activities and changed columns.

        There are no workers, so ``eager_claim`` claims nothing, and the returned function returns an empty list.
        """
        del eager_claim, is_last
        for write in writes:
            # Children come first, so that a message of the same turn finds them.
            for child in write.children:
                self._start_child(child)
        for write in writes:
            for message in write.messages:
                self._send_message(message)
        for write in writes:
            if write.close_children:
                self._close_children(write.run)
        for write in writes:
            self._write_run(write)
        return list

    # -- other runs ---------------------------------------------------------------------------------------------------

    def _start_child(self, child: NewChild) -> None:
        """Start a child, or send its parent the reason why it cannot start."""
        try:
            chain_id = self._new_chain(child)
        except InvalidId as exc:
            self._send_message(child.refusal_message(exc))
            return
        if chain_id is None:
            self._send_message(child.refusal_message())
        else:
            self._children[child.parent_run][child.parent_seq] = chain_id

    def _send_message(self, message: NewMessage) -> None:
        """Put a message into the inbox of its receiver, and tell a sender that waits for it whether that worked."""
        delivery = message.check_delivery(self._resolve_delivery(message))
        if delivery.chain_id is not None:
            self._add_message(
                delivery.chain_id,
                message.kind,
                message.name,
                message.payload,
                run_id=message.run_id,
                message_id=message.message_id,
                headers=message.headers,
            )
        if message.ask is not None:
            name, payload = message.answer(delivery)
            self._add_message(message.ask[0], "external", name, payload, run_id=message.ask[1], headers=message.headers)

    def _resolve_delivery(self, message: NewMessage) -> Delivery:
        """Return where a message goes: to the chain that it names, to an open child, or to the open run of an id."""
        if message.child is not None:
            run_id, seq = message.child
            return self._open_delivery(self._children[run_id].get(seq))
        # The chain may be that of a parent which somebody has deleted.
        if message.chain_id is not None or message.workflow_id is None:
            return Delivery(message.chain_id if message.chain_id in self.chains else None)
        if (chain_id := self._chain_by_run_id(message.workflow_id)) is not None:
            return self._open_delivery(chain_id)
        run_refs = self._run_refs(message.workflow_id)
        try:
            run_ref = resolve_run(message.workflow_id, [run for run in run_refs if not run.closed])
        except AmbiguousId as exc:
            return Delivery(None, error=exc)
        if run_ref is not None:
            return self._open_delivery(run_ref.chain_id)
        return Delivery(None, exists=bool(run_refs))

    def _open_delivery(self, chain_id: UUID | None) -> Delivery:
        """Return the ``Delivery`` of a message to this chain; it names no chain if the chain is closed or deleted."""
        if chain_id is None or chain_id not in self.chains or self.chains[chain_id].closed:
            return Delivery(None)
        record = self.current_run(chain_id).facts
        return Delivery(chain_id, workflow=record.workflow, version=record.version)

    def _close_children(self, parent: RunState) -> None:
        """Ask the open children of a run that closes to cancel, or to terminate, as their ``parent_close`` says."""
        for chain_id in self._children[parent.run_id].values():
            if chain_id in self.chains and not self.chains[chain_id].closed:
                kind = PARENT_CLOSE_KINDS.get(self.current_run(chain_id).facts.parent_close or "")
                if kind is not None:
                    self._add_message(chain_id, kind, "", dict(PARENT_CLOSED))

    # -- the run itself -----------------------------------------------------------------------------------------------

    def _write_run(self, write: RunWrite) -> None:
        state, run = write.run, self.runs[write.run.run_id]
        self._record_leftovers(write)
        self._append_events(run, write.events)
        self._change_run(run, write)
        for task in write.tasks:
            self._schedule(task)
        for seq, retry in write.retried_tasks.items():
            self._retry(state.run_id, seq, retry)
        self._drop_tasks(state.run_id, None if write.drop_tasks else write.cancelled_tasks)
        self._settle_messages(write)
        if write.is_closed_externally:
            write.human_tasks += self._closed_tasks(state.run_id, write.events[-1].at)
        for human_task in write.human_tasks:
            self.human_tasks[human_task.id] = human_task
        if state.closed:
            self._open_keys.discard(state.chain_id)
        if write.next_run is not None:
            self._add_next_run(state, write.next_run, write.reset_run_id)
        self.chains[state.chain_id] = replace(write.next_state())

    def _change_run(self, run: RunRow, write: RunWrite) -> None:
        """Store the columns of a run's row that ``write`` changes; some of them are fields of its record, too."""
        if changes := deep_copy(write.instance):
            record_changes = {name: changes[name] for name in ("started_at", "search_attributes") if name in changes}
            if record_changes:
                changes.pop("search_attributes", None)
                changes["facts"] = replace(run.facts, **record_changes)
            self.runs[write.run.run_id] = replace(run, **changes)

    def _closed_tasks(self, run_id: UUID, at: datetime) -> list[HumanTaskWrite]:
        """Return the open human tasks of a run as closed ones, because the run was closed at the time ``at``.

        The run was closed without running its code, which would have closed them itself.
        """
        open_tasks = [t for t in self.human_tasks.values() if t.run_id == run_id and not t.task.ending]
        return [
            replace(human_task, changes=("closed",), task=human_task.task.as_closed("run_closed", at))
            for human_task in open_tasks
        ]

    def _add_next_run(self, state: RunState, next_run: RunRecord, reset_run_id: UUID | None) -> None:
        """Add the next run of the chain ``state``, with the columns that it takes from the run before."""
        like, new = self.runs[reset_run_id or state.run_id], next_run.run_id
        self._add_run(state.chain_id, deep_copy(next_run), labels={**like.labels, **_NO_LABELS})
        if reset_run_id is None:
            self.runs[new] = replace(self.runs[new], **{name: like.column(name) for name in _CONTINUED})

    def _record_leftovers(self, write: RunWrite) -> None:
        """Add to the events of ``write`` what is lost when activities are dropped or cancelled.

        What would be lost are the inputs that people have edited, and the results that the run has not read. A reset
        needs both.
        """
        if write.loses_activities:
            write.add_lost_inputs(edited_inputs(self.tasks_of_run(write.run.run_id)))
        if write.is_closed_externally:
            write.add_unread_results(self._messages_of(write.run.chain_id))

    def _settle_messages(self, write: RunWrite) -> None:
        """Store what a turn did with the messages of the inbox: consumed, answered, left to wait, or failed."""
        chain_id = write.run.chain_id
        inbox, ids = self._inboxes[chain_id], self._message_numbers[chain_id]
        for number in write.consumed:
            self._delete_message(number)
        for number in write.parked:
            self._update_message(number, fresh=False)
        for number, outcome in write.settled.items():
            inbox.discard(number)
            self._update_message(number, fresh=False, outcome=deep_copy(outcome))
        for update_id, outcome in write.outcomes.items():
            if (existing_number := ids.get(update_id)) is not None:
                self._update_message(existing_number, outcome=deep_copy(outcome))
        if write.closing is not None:
            self._answer_updates(write, write.closing)
        for number, after in write.waiting.items():
            if (row := self.messages.get(number)) is not None:
                self._update_message(number, fresh=False, message=replace(row.message, after=after))
        for failed in write.failed_signals:
            self._store_failed(chain_id, write.run.run_id, failed)
        fresh = next((number for number in inbox if self.messages[number].fresh), None)
        if fresh is None:
            self._fresh.discard(chain_id)
        else:
            self._mark_fresh(chain_id, fresh)

    def _store_failed(self, chain_id: UUID, run_id: UUID, failed: FailedSignal) -> None:
        """Store a signal whose handler failed as a failed message of the chain; ``run_id`` is the run that had it."""
        outcome = Outcome(status="failed", value={**failed.failure, "run": str(run_id), "number": failed.number})
        existing_number = self._message_numbers[chain_id].get(failed.id)
        if existing_number is not None:
            self._update_message(existing_number, fresh=False, outcome=outcome)
            return
        signal = PendingMessage(
            kind="signal",
            name=failed.name,
            payload=failed.payload,
            message_id=failed.id,
            sender=failed.sender,
            headers=failed.headers,
        )
        self._store_message(chain_id, _inbox_message(signal), outcome)

    def redeliver(self, chain_id: UUID, message_id: str) -> bool:
        """Put a failed message at the end of its inbox, as new.

        Returns False if the chain has no failed message with that message id.
        """
        number = self._failed_number(chain_id, message_id)
        if number is None:
            return False
        message = self.messages[number].message
        self._delete_message(number)
        self._store_message(chain_id, replace(message, after=None))
        return True

    def discard(self, chain_id: UUID, message_id: str) -> bool:
        """Mark a failed message as discarded, so that it is not delivered again.

        Returns False if the chain has no failed message with that message id.
        """
        number = self._failed_number(chain_id, message_id)
        if number is None:
            return False
        outcome = self.messages[number].outcome
        assert outcome is not None
        self._update_message(number, outcome=replace(outcome, status="discarded"))
        return True

    def failed_messages(self, chain_id: UUID) -> list[MemoryMessage]:
        """Return the failed messages (signals whose handler failed) of a chain, oldest first."""
        return [row for _, row in sorted(self.messages.items()) if row.chain_id == chain_id and row.is_failed]

    def _failed_number(self, chain_id: UUID, message_id: str) -> int | None:
        """Return the number of the failed message with this message id, or None."""
        number = self._message_numbers[chain_id].get(message_id)
        if number is not None and self.messages[number].is_failed:
            return number
        return None

    def _answer_updates(self, write: RunWrite, answer: Outcome) -> None:
        """Give ``answer`` to the accepted updates of a chain that has closed, and mark its other messages as unread.

        The next turn answers these, since it finds the run closed.
        """
        chain_id, update_names = write.run.chain_id, []
        for number in self._message_numbers[chain_id].values():
            row = self.messages[number]
            if row.outcome is not None and row.outcome.status == "accepted":
                update_names.append(row.message.name)
                self._update_message(number, outcome=deep_copy(answer))
        for number in self._inboxes[chain_id]:
            self._update_message(number, fresh=True)
        if write.is_closed_externally:
            write.warn_unfinished(update_names)


#: Labels of its start that the next run of a chain does not have.
_NO_LABELS = {"start_limit": None}


def _inbox_message(message: PendingMessage) -> InboxMessage:
    """Return a message of a history as a message for an inbox, without a number."""
    return InboxMessage(
        id=0,
        kind=message.kind,
        name=message.name,
        payload=message.payload,
        message_id=message.message_id,
        sender=message.sender,
        headers=message.headers,
    )
