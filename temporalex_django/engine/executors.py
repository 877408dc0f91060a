"""Executors of runs: how they are built from histories, and the cache in which they stay."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from temporalex_django.core.executor import Executor, VisibleState
from temporalex_django.core.failures import exception_name
from temporalex_django.core.history import events as kinds
from temporalex_django.core.messages.phase import HandlerFixed
from temporalex_django.engine import policy
from temporalex_django.engine.contracts.records import RunRecord, TaskResult, TaskState
from temporalex_django.engine.turn_report import TurnReport
from temporalex_django.engine.watchdog import watchdog
from temporalex_django.errors import PayloadError, UnknownWorkflow, WorkflowSwitchedOff
from temporalex_django.interceptors import AttemptCall, Problem
from temporalex_django.interceptors.chain import around, chain
from temporalex_django.telemetry import definitions
from temporalex_django.telemetry.recording import recorder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from temporalex_django.authoring import workflow
    from temporalex_django.core.history.events import HistoryEvent
    from temporalex_django.engine.contracts.records import RunState
    from temporalex_django.engine.contracts.storage import RunStorage


# --- executors --------------------------------------------------------------------------------------------------------
#
# Executors of claimed runs: from the cache, brought up to date, or rebuilt from their history.
#
# An executor is a run in memory. A turn rebuilds short histories. A long history, or one whose code is slow, is
# replayed in slices between turns, outside of transactions. Until that is done the worker leaves the run alone and
# holds no lock on it, and serves all others. See decision 20.


logger = logging.getLogger("temporalex_django.engine")


@dataclass(slots=True)
class _Rebuild:
    """A run whose executor is being rebuilt from its history, page by page and between turns.

    ``entry`` has the executor, or None before its first part is replayed. ``page`` holds the events that the executor
    is replaying, and ``steps`` is the iterator that replays them bit by bit.
    """

    run: RunState
    entry: CachedRun | None = None
    page: Sequence[HistoryEvent] = ()
    steps: Iterator[None] | None = None
    # True once a failed handler has been corrected: see core.signal_failures and decision 46.
    skip_failed: bool = False


def _unreadable_error(run: RunState) -> PayloadError | None:
    """Return the error of a run whose chain has a time that cannot be read, or None."""
    if (column := run.unreadable_time()) is None:
        return None
    return PayloadError(
        f"the chain {run.chain_id} cannot be read: its {column} (column of temporalex_chain) is not a time in the years "
        "2 to 9998"
    )


class Executors:
    """The part of an engine that provides an executor (a run in memory) for each claimed run.

    ``payload_limit`` is in bytes. ``deadlock_timeout`` is the number of seconds between two waits of workflow code;
    None sets no limit. The other options are those of ``WorkflowEngine``.
    """

    def __init__(
        self,
        storage: RunStorage,
        *,
        cache: Cache,
        payload_limit: int,
        deadlock_timeout: float | None,
        on_activate: Callable[[UUID | None], None],
        resolve: Callable[[UUID, str, int], type[workflow.Workflow]],
        budgeted: bool,
        rebuilds: bool,
        unexpected_error: str,
        strict_replay: bool,
        backend: str | None,
    ) -> None:
        self.storage = storage
        self.cache = cache
        self._limit = payload_limit
        self._deadlock_timeout = deadlock_timeout
        self._on_activate = on_activate
        self._resolve = resolve
        self._budgeted = budgeted
        self._rebuilds = rebuilds
        self._unexpected_error = unexpected_error
        self._strict_replay = strict_replay
        self._backend = backend
        self._warned_runs: dict[UUID, None] = {}  # latest runs with a warning about their inputs
        self._rebuilding: dict[UUID, _Rebuild] = {}
        #: Seconds that replays took in this process, while metrics are recorded.
        self.replay_seconds = 0.0
        # Failed rebuilds, until the turn that claims the run next reports them.
        self._failed_rebuilds: dict[UUID, tuple[RunRecord | None, Exception]] = {}

    @property
    def rebuild_count(self) -> int:
        """The number of runs that ``rebuild`` has yet to finish."""
        return len(self._rebuilding)

    @property
    def deferred_chains(self) -> list[UUID]:
        """The chains of the runs that ``rebuild`` has yet to finish, in the order in which it takes them."""
        return [work.run.chain_id for work in self._rebuilding.values()]

    def rebuild(self) -> bool:
        """Replay a part of one run whose rebuild a turn deferred; return False if there is none.

        Call it outside of transactions: no lock is held while user code runs. Raises the errors of a lost connection
        and transient ones of the storage.
        """
        if not self._rebuilding:
            return False
        run_id = next(iter(self._rebuilding))
        work = self._rebuilding.pop(run_id)
        try:
            is_done = self._rebuild_slice(work)
        except Exception as exc:
            # Any other error is one of this run, and the turn that claims the run next reports it.
            if self.storage.is_connection_lost(exc, is_of_code=True) or self.storage.is_transient(exc):
                self._rebuilding[run_id] = work
                raise
            if work.entry is not None:
                work.entry.executor.evict()
            self._failed_rebuilds[run_id] = (work.entry.record if work.entry is not None else None, exc)
            is_done = True
        else:
            if is_done and work.entry is not None:
                self.cache.put(run_id, work.entry)
                if recorder.is_active:
                    recorder.record(definitions.REBUILDS)
        if is_done:
            self.storage.defer([work.run.chain_id], seconds=0.0)
        else:
            # Behind the others, so that several long rebuilds take turns.
            self._rebuilding[run_id] = work
        return True

    # -- in a turn ----------------------------------------------------------------------------------------------------

    def load_entries(
        self, runs: Sequence[RunState], records: dict[UUID, RunRecord]
    ) -> tuple[dict[UUID, CachedRun], dict[UUID, BaseException]]:
        """Return ``(cache entries, errors)``, both by run id: the executors of runs, or why they cannot have one.

        The records of the runs are added to ``records``. All that has to be read is read together. A run that is in
        neither dictionary takes too long to rebuild now; it stays due for a later turn.
        """
        entries: dict[UUID, CachedRun] = {}
        errors: dict[UUID, BaseException] = {}
        outdated: dict[UUID, int] = {}
        uncached_runs: list[RunState] = []
        for run in runs:
            if (unreadable := _unreadable_error(run)) is not None:
                errors[run.run_id] = unreadable
                continue
            entry = self.cache.take(run.run_id)
            # A run that ended the process which rebuilt it is rebuilt here, too: that its executor in memory works
            # proves nothing (see decision 22).
            if entry is not None and (entry.crashes < run.crashes or not self._has_current_class(entry, run.chain_id)):
                entry.executor.evict()
                entry = None
            if entry is None:
                uncached_runs.append(run)
            else:
                records[run.run_id] = entry.record
                entries[run.run_id] = entry
                if entry.head != run.head_token:
                    outdated[run.run_id] = entry.head_number - 1
        uncached_runs += self._catch_up_all([run for run in runs if run.run_id in outdated], outdated, entries, errors)
        if recorder.is_active and entries:
            recorder.record(definitions.CACHE_HITS, len(entries))
        if uncached_runs:
            self._build_all(self._select_for_turn(uncached_runs, records, errors), records, entries, errors)
        return entries, errors

    def _catch_up_all(
        self,
        runs: Sequence[RunState],
        positions: Mapping[UUID, int],
        entries: dict[UUID, CachedRun],
        errors: dict[UUID, BaseException],
    ) -> list[RunState]:
        """Bring executors up to date, and return the runs to rebuild instead. One read, if there are any runs."""
        rebuilt_runs: list[RunState] = []
        newer_events = self.storage.histories(positions) if runs else {}
        for run in runs:
            if not self._catch_up(entries[run.run_id], run, newer_events.get(run.run_id, []), errors):
                entries.pop(run.run_id).executor.evict()
                if run.run_id not in errors:
                    rebuilt_runs.append(run)
        return rebuilt_runs

    def _select_for_turn(
        self, runs: Sequence[RunState], records: dict[UUID, RunRecord], errors: dict[UUID, BaseException]
    ) -> list[RunState]:
        """Return the runs that this turn rebuilds; long ones are deferred. Add failed rebuilds to ``errors``."""
        if not self._budgeted:
            return list(runs)
        selected: list[RunState] = []
        event_count = 0
        for run in runs:
            failed_record, exc = self._failed_rebuilds.pop(run.run_id, (None, None))
            if exc is not None:
                errors[run.run_id] = exc
                records.update({} if failed_record is None else {run.run_id: failed_record})
            elif run.length > policy.LONG_HISTORY or run.run_id in self._rebuilding:
                self._defer_rebuild(_Rebuild(run))
            elif not selected or event_count + run.length <= policy.MAX_READ_EVENTS:
                selected.append(run)
                event_count += run.length
        return selected

    def _defer_rebuild(self, work: _Rebuild) -> None:
        """Leave the run to later calls of ``rebuild``, unclaimed until then. Without rebuilds, it stays due."""
        if not self._rebuilds:
            if work.entry is not None:
                work.entry.executor.evict()
            return
        if work.run.run_id not in self._rebuilding and (
            len(self._rebuilding) < policy.MAX_REBUILDS or work.entry is not None
        ):
            self._rebuilding[work.run.run_id] = work
        self.storage.defer([work.run.chain_id], seconds=policy.REBUILD_DEFER_SECONDS)

    def _build_all(
        self,
        runs: Sequence[RunState],
        records: dict[UUID, RunRecord],
        entries: dict[UUID, CachedRun],
        errors: dict[UUID, BaseException],
    ) -> None:
        """Build executors from histories. A run for which the turn has no time gets neither entry nor error."""
        records.update(self.storage.run_records([run.run_id for run in runs if run.run_id not in records]))
        histories = self.storage.histories({run.run_id: 0 for run in runs if run.head_token is not None})
        until = None
        if self._budgeted:
            until = time.monotonic() + policy.REBUILD_IN_TURN_SECONDS
        for number, run in enumerate(runs):
            if number and until is not None and time.monotonic() > until:
                return  # the others stay due
            try:
                work = _Rebuild(run, self._new_entry(run, records[run.run_id]))
                if self._replay_history(work, histories.get(run.run_id, []), records[run.run_id], until):
                    assert work.entry is not None
                    entries[run.run_id] = work.entry
                    if recorder.is_active and run.head_token is not None:
                        recorder.record(definitions.REBUILDS)
                else:
                    self._defer_rebuild(work)
            except Exception as exc:  # noqa: BLE001 - a history or class that cannot be used blocks its own run only
                errors[run.run_id] = exc

    def _has_current_class(self, entry: CachedRun, chain_id: UUID) -> bool:
        """Return False if the class was defined again, so that the executor runs the old code."""
        try:
            record = entry.record
            current_class = self._resolve(chain_id, record.workflow, record.version)
            return current_class.definition is entry.executor.definition
        except UnknownWorkflow:
            return True
        except WorkflowSwitchedOff:
            return False

    def _catch_up(
        self, entry: CachedRun, run: RunState, events: Sequence[HistoryEvent], errors: dict[UUID, BaseException]
    ) -> bool:
        """Replay events of other processes. False: it failed, or the latest activation was rolled back."""
        # The first event read is the one that opened the entry's latest activation. Another token there means that this
        # activation was rolled back (see decision 5).
        if not events or events[0].attributes.get("head") != entry.head:
            return False
        work = _Rebuild(run, entry)
        try:
            self._feed_events(work, [event for event in events if event.number > entry.length])
            self._replay_steps(work, None)
        except HandlerFixed:
            return False  # it is built anew
        except Exception as exc:  # noqa: BLE001 - see _build_all
            errors[run.run_id] = exc
            return False
        # Others may have changed the row, so its content is not known any more.
        entry.row = None
        return True

    # -- replaying ----------------------------------------------------------------------------------------------------

    def _replay_history(
        self, work: _Rebuild, events: Sequence[HistoryEvent], record: RunRecord, until: float | None
    ) -> bool:
        """Return True if the replay was completed before ``until`` (``time.monotonic``; None: no limit)."""
        if not events:
            return True
        self._feed_events(work, events)
        try:
            return self._replay_steps(work, until)
        except HandlerFixed:
            work.skip_failed, work.entry = True, self._new_entry(work.run, record, skip_failed=True)
            self._feed_events(work, events)
            return self._replay_steps(work, until)

    def _new_entry(self, run: RunState, record: RunRecord, *, skip_failed: bool = False) -> CachedRun:
        """Return an entry that has seen no event yet. ``skip_failed``: see decision 46."""
        cls = self._resolve(run.chain_id, record.workflow, record.version)
        on_wait = None
        if self._deadlock_timeout is not None:
            on_wait = watchdog.note_unit_blocked
        executor = Executor(
            cls.definition,
            record.info,
            payload_limit=self._limit,
            on_wait=on_wait,
            unexpected_error=self._unexpected_error,
            strict=self._strict_replay,
            skip_failed=skip_failed,
            backend=self._backend,
        )
        return CachedRun(executor, record, None, 0, 0, crashes=run.crashes)

    def _feed_events(self, work: _Rebuild, events: Sequence[HistoryEvent]) -> None:
        """Pass ``events`` to the executor of a rebuild; ``_replay_steps`` then replays them."""
        assert work.entry is not None
        work.page, work.steps = events, work.entry.executor.replay_in_steps(events)

    def _replay_steps(self, work: _Rebuild, until: float | None) -> bool:
        """Return False if ``until`` came before the end; another call continues. Raises errors of the replay."""
        entry, steps = work.entry, work.steps
        assert entry is not None
        assert steps is not None
        executor = entry.executor
        started_at = time.monotonic() if recorder.is_active else None
        self._on_activate(work.run.chain_id)
        try:
            is_complete = watchdog.run(
                partial(_run_steps, steps, until),
                limit=self._deadlock_timeout,
                label=f"run {work.run.run_id}",
                force=not self._budgeted,
            )
        except BaseException:
            executor.evict()
            raise
        finally:
            self._on_activate(None)
            if started_at is not None:
                self.replay_seconds += time.monotonic() - started_at
        if executor.differences:
            self._warn_differences(work.run, entry)
        if is_complete:
            _update_position(entry, work.page)
            work.page, work.steps = (), None
        return is_complete

    def _warn_differences(self, run: RunState, entry: CachedRun) -> None:
        """Log, once per run and process, that the code computes other inputs. The log shows no value."""
        differences = [difference for difference in entry.executor.differences if difference.kind == "input"]
        entry.executor.differences.clear()
        if not differences or run.run_id in self._warned_runs:
            return
        if len(self._warned_runs) >= policy.REMEMBERED_RUNS:
            del self._warned_runs[next(iter(self._warned_runs))]
        self._warned_runs[run.run_id] = None
        ids = {"workflow": entry.record.workflow, "workflow_id": entry.record.workflow_id, "run_id": str(run.run_id)}
        suffix = ""
        if len(differences) > 1:
            suffix = f" (and {len(differences) - 1} more)"
        logger.warning(
            "%s %s: the code produces a different input from the one in the history at %s%s. Does it depend on the "
            "order of a set, hash() or id()? An intended change is allowed. "
            "The page of the run compares both values; see also temporalex replay",
            entry.record.workflow,
            entry.record.workflow_id,
            differences[0],
            suffix,
            extra=ids,
        )

    def _rebuild_slice(self, work: _Rebuild) -> bool:
        """Replay for a moment; return True if the executor has seen all committed events."""
        until = time.monotonic() + policy.REBUILD_SLICE_SECONDS
        if work.entry is None:
            run = work.run
            record = self.storage.run_records([run.run_id])[run.run_id]
            work.entry = self._new_entry(run, record, skip_failed=work.skip_failed)
            # Pages are read one by one, and a patch may be marked on a later page than the code that asks for it.
            work.entry.executor.expect_markers(self.storage.patch_markers(run.run_id))
        while time.monotonic() < until:
            if work.steps is None:
                events = self._next_page(work.run.run_id, after=work.entry.length)
                if not events:
                    return True
                self._feed_events(work, events)
            try:
                if not self._replay_steps(work, until):
                    return False
            except HandlerFixed:
                # The next slice starts again, without the handlers that have been corrected.
                work.entry, work.page, work.steps, work.skip_failed = None, (), None, True
                return False
        return False

    def _next_page(self, run_id: UUID, *, after: int) -> Sequence[HistoryEvent]:
        """Return the next events, which end with the end of an activation."""
        events: list[HistoryEvent] = []
        while True:
            page = self.storage.history_page(run_id, after=after + len(events), limit=policy.HISTORY_PAGE)
            events += page
            if len(page) < policy.HISTORY_PAGE:
                return events
            # The last activation of a full page may continue on the next one, and a replay needs it whole.
            complete_events = [event for event in events if event.activation != events[-1].activation]
            if complete_events:
                return complete_events


def _run_steps(steps: Iterator[None], until: float | None) -> bool:
    """Return True if the replay ended before ``until`` (``time.monotonic``; None: no limit)."""
    for _ in steps:
        watchdog.note_all_blocked()
        if until is not None and time.monotonic() > until:
            return False
    return True


def _update_position(entry: CachedRun, events: Sequence[HistoryEvent]) -> None:
    for event in reversed(events):
        if event.kind == "ActivationStarted":
            entry.head, entry.head_number = kinds.ACTIVATION_STARTED.read(event).get("head"), event.number
            break
    entry.payload_bytes += sum(event.size for event in events)
    if events:
        entry.length = events[-1].number


# --- cache ------------------------------------------------------------------------------------------------------------
#
# A cache of executors (runs in memory) between turns, with the position of each in the history of its run.


#: Bytes of an executor that does next to nothing, of each event that it has seen, and of a byte of payload as Python
#: objects. They were measured on CPython 3.13 and are good enough for a limit.
_EXECUTOR_BYTES = 25_000
_EVENT_BYTES = 50
_PAYLOAD_FACTOR = 4


@dataclass(slots=True)
class CachedRun:
    """A cache entry: the executor of a run, and its position in the history of the run.

    ``head`` is the random token of the latest activation that the executor has seen: the entry is valid only while the
    row of the run has the same one. ``head_number`` is the number of the event that carries it. ``length`` is the
    number of events that the executor has seen. ``row`` is the state that the row of the run shows, or None if it is
    not known; only changes to it are written. ``payload_bytes`` is the size of all payloads that the run received.
    ``crashes`` is the number of deaths counted against the run when the executor was built.
    """

    executor: Executor
    record: RunRecord
    head: int | None
    head_number: int
    length: int
    row: VisibleState | None = None
    payload_bytes: int = 0
    crashes: int = 0

    @property
    def size(self) -> int:
        """The approximate memory of the executor in bytes.

        Every payload that the run received counts, even if the code did not keep it.
        """
        return _EXECUTOR_BYTES + _EVENT_BYTES * self.length + _PAYLOAD_FACTOR * self.payload_bytes


class Cache:
    """A cache of executors, bounded by a number of entries and by their total ``size``.

    The least recently used entry is evicted first. One entry always stays, however large it is. An entry is taken out
    during the turn of its run, so two threads never share one. See decisions 5 and 29.
    """

    def __init__(self, size: int, *, max_bytes: int | None = None) -> None:
        self._size = size
        self._max_bytes = max_bytes
        self._entries: OrderedDict[UUID, tuple[CachedRun, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def take(self, run_id: UUID) -> CachedRun | None:
        """Remove the entry of a run from the cache and return it, or None if there is none."""
        with self._lock:
            return self._pop(run_id)

    def put(self, run_id: UUID, entry: CachedRun) -> None:
        """Add the entry of a run, and evict others if the cache is too large then."""
        if self._size <= 0:
            entry.executor.evict()
            return
        evicted: list[CachedRun | None] = []
        with self._lock:
            replaced = self._pop(run_id)
            size = entry.size
            self._entries[run_id] = entry, size
            self._bytes += size
            if replaced is not None and replaced.executor is not entry.executor:
                evicted.append(replaced)
            while len(self._entries) > self._size or self._is_too_large():
                evicted.append(self._pop(next(iter(self._entries))))
        # Outside of the lock, since an eviction may have to close the coroutines of a run.
        for old in evicted:
            if old is not None:
                old.executor.evict()

    def _is_too_large(self) -> bool:
        return self._max_bytes is not None and self._bytes > self._max_bytes and len(self._entries) > 1

    def _pop(self, run_id: UUID) -> CachedRun | None:
        entry, size = self._entries.pop(run_id, (None, 0))
        self._bytes -= size
        return entry

    def clear(self) -> None:
        with self._lock:
            entries, self._entries = [entry for entry, _ in self._entries.values()], OrderedDict()
            self._bytes = 0
        for entry in entries:
            entry.executor.evict()

    def __len__(self) -> int:
        return len(self._entries)


# --- attempt hooks ----------------------------------------------------------------------------------------------------
#
# The hooks of interceptors around attempts of activities, and their reports of problems. No I/O of its own.


def attempt_hooks(task: TaskState) -> AbstractContextManager[None]:
    """Return the context manager in which an attempt of the activity runs."""
    if not chain.activity_attempt:
        return nullcontext()
    attempt = AttemptCall(
        activity=task.activity,
        workflow=task.workflow,
        workflow_id=task.workflow_id,
        run_id=str(task.run_id),
        seq=task.seq,
        queue=task.queue,
        attempt=task.attempt,
        is_atomic=task.atomic,
        headers=task.headers or {},
    )
    return around(chain.activity_attempt, attempt)


def report_failure(result: TaskResult) -> None:
    """Report an activity that failed for good, after its result was committed. Ask ``chain.problem`` first."""
    if result.outcome is None or result.outcome[0] == "ActivityCompleted":
        return
    task, attributes = result.task, result.outcome[1]
    chain.report(
        Problem(
            kind="activity_failed",
            workflow=task.workflow,
            workflow_id=task.workflow_id,
            run_id=str(task.run_id),
            type=str(attributes.get("type") or attributes.get("timeout") or result.outcome[0]),
            error=result.error,
            queue=task.queue,
            activity=task.activity,
            attempt=task.attempt,
        )
    )


def report_turn(report: TurnReport) -> None:
    """Report the runs that a committed turn has blocked, and its atomic activities that failed for good.

    A blocked run is reported once, and not for each time that it is tried. Ask ``chain.problem`` first.
    """
    for result in report.atomic_results:
        report_failure(result)
    for write in report.writes:
        error, record = report.block_errors.get(write.run.run_id), report.records.get(write.run.run_id)
        if error is None or write.run.failed_tries != 1:
            continue
        names: dict[str, Any] = {"workflow": "", "workflow_id": ""}
        if record is not None:
            names = {"workflow": record.workflow, "workflow_id": record.workflow_id}
        chain.report(
            Problem(
                kind="run_blocked",
                run_id=str(write.run.run_id),
                type=exception_name(type(error)),
                error=error,
                queue=write.run.queue,
                **names,
            )
        )
