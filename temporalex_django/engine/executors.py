"""Executors of claimed runs: from the cache, brought up to date, or rebuilt from their history.

A turn rebuilds what is short. A long history, or one whose code is slow, is replayed outside of transactions, a slice
between two turns: until it is done the run is left alone, its locks with others, and everybody else is served.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from temporalex_django.core.executor import Executor
from temporalex_django.core.history.activation import RunInfo
from temporalex_django.core.signal_failures import HandlerFixed
from temporalex_django.engine.cache import Cache, Cached
from temporalex_django.engine.watchdog import watchdog
from temporalex_django.errors import UnknownWorkflow, WorkflowSwitchedOff

if TYPE_CHECKING:
    from collections.abc import Iterator

    from temporalex_django.authoring import workflow
    from temporalex_django.core.history.events import HistoryEvent
    from temporalex_django.engine.storage import RunFacts, RunState, RunStorage

logger = logging.getLogger("temporalex_django.runtime")

#: Events of the longest history that is rebuilt inside a turn; of all that one turn reads; seconds that it rebuilds.
LONG = 1_000
_READ_AT_ONCE = 5_000
_IN_A_TURN = 0.25
#: Between two turns one run goes on for so many seconds, with so many events in memory; so many runs take turns.
_SLICE = 0.025
_PAGE = 1_000
_AT_ONCE = 4
#: How long a run is left alone that is being rebuilt; it is put off again when that is over too soon.
_PUT_OFF = 5.0


#: So many runs are remembered as told of.
_MOST_WARNED = 10_000


@dataclass(slots=True)
class _Rebuild:
    """A run on its way back into memory. ``steps`` replays ``page``, which comes behind what ``entry`` has seen."""

    run: RunState
    entry: Cached | None = None
    page: Sequence[HistoryEvent] = ()
    steps: Iterator[None] | None = None
    skip_failed: bool = False  # a handler was put right: see core.signal_failures


class Executors:
    """The half of an engine that has an executor for each run.

    ``hurried`` and ``strict_replay``: see ``WorkflowEngine``.
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
        hurried: bool,
        rebuilds: bool,
        unexpected_error: str,
        strict_replay: bool,
    ) -> None:
        self.storage = storage
        self.cache = cache
        self._limit = payload_limit
        self._deadlock_timeout = deadlock_timeout
        self._on_activate = on_activate
        self._resolve = resolve
        self._hurried = hurried
        self._rebuilds = rebuilds
        self._unexpected_error = unexpected_error
        self._strict = strict_replay
        self._warned: dict[UUID, None] = {}  # runs of whose inputs a warning said something, the last ones
        self._rebuilding: dict[UUID, _Rebuild] = {}
        self._failed: dict[UUID, tuple[RunFacts | None, Exception]] = {}  # rebuilds, until the run is claimed again

    @property
    def rebuilding(self) -> int:
        """How many runs ``rebuild`` is to go on with."""
        return len(self._rebuilding)

    @property
    def put_off(self) -> list[UUID]:
        """Their chains, in the order in which ``rebuild`` takes them."""
        return [work.run.chain_id for work in self._rebuilding.values()]

    def rebuild(self) -> bool:
        """Go on with one of the runs that turns put off, for a moment. Whether there was one.

        Not inside a transaction: it holds no lock while user code runs. Raises what reading raises when the database is
        gone.
        """
        if not self._rebuilding:
            return False
        run_id = next(iter(self._rebuilding))
        work = self._rebuilding.pop(run_id)
        try:
            done = self._go_on(work)
        except Exception as exc:  # whatever it is, it is this run's: the turn that claims it next says so
            if self.storage.lost(exc) or self.storage.transient(exc):
                self._rebuilding[run_id] = work
                raise
            if work.entry is not None:
                work.entry.executor.evict()
            self._failed[run_id] = (work.entry.facts if work.entry is not None else None, exc)
            done = True
        else:
            if done and work.entry is not None:
                self.cache.put(run_id, work.entry)
        if done:
            self.storage.defer([work.run.chain_id], seconds=0.0)
        else:
            self._rebuilding[run_id] = work  # behind the others
        return True

    # -- in a turn ----------------------------------------------------------------------------------------------------

    def entries(
        self, runs: Sequence[RunState], facts: dict[UUID, RunFacts]
    ) -> tuple[dict[UUID, Cached], dict[UUID, BaseException]]:
        """An executor for each run, or why there is none; what is missing is read together, ``facts`` are added.

        A run that is in neither is for a later turn: it takes too long, and stays due.
        """
        entries: dict[UUID, Cached] = {}
        errors: dict[UUID, BaseException] = {}
        behind: dict[UUID, int] = {}
        unknown: list[RunState] = []
        for run in runs:
            entry = self.cache.take(run.run_id)
            # one that ended whoever rebuilt it is rebuilt here too: that it goes on where it is in memory proves
            # nothing
            if entry is not None and (entry.crashes < run.crashes or not self._of_present_class(entry, run.chain_id)):
                entry.executor.evict()
                entry = None
            if entry is None:
                unknown.append(run)
            else:
                facts[run.run_id] = entry.facts
                entries[run.run_id] = entry
                if entry.head != run.head_token:
                    behind[run.run_id] = entry.head_at - 1
        if behind:
            newer = self.storage.histories(behind)
            for run in runs:
                if run.run_id in behind and not self._catch_up(
                    entries[run.run_id], run, newer.get(run.run_id, []), errors
                ):
                    entries.pop(run.run_id).executor.evict()
                    if run.run_id not in errors:
                        unknown.append(run)
        if unknown:
            self._build_all(self._for_now(unknown, facts, errors), facts, entries, errors)
        return entries, errors

    def _for_now(
        self, runs: Sequence[RunState], facts: dict[UUID, RunFacts], errors: dict[UUID, BaseException]
    ) -> list[RunState]:
        """Those that this turn rebuilds. Long ones are put off; what has failed meanwhile is an error now."""
        if not self._hurried:
            return list(runs)
        chosen: list[RunState] = []
        read = 0
        for run in runs:
            failed, exc = self._failed.pop(run.run_id, (None, None))
            if exc is not None:
                errors[run.run_id] = exc
                facts.update({} if failed is None else {run.run_id: failed})
            elif run.length > LONG or run.run_id in self._rebuilding:
                self._put_off(_Rebuild(run))
            elif not chosen or read + run.length <= _READ_AT_ONCE:
                chosen.append(run)
                read += run.length
        return chosen

    def _put_off(self, work: _Rebuild) -> None:
        """Leave the run alone until it is rebuilt: here by ``rebuild``, else by whoever does that."""
        if not self._rebuilds:
            if work.entry is not None:
                work.entry.executor.evict()
            return
        if work.run.run_id not in self._rebuilding and (len(self._rebuilding) < _AT_ONCE or work.entry is not None):
            self._rebuilding[work.run.run_id] = work
        self.storage.defer([work.run.chain_id], seconds=_PUT_OFF)

    def _build_all(
        self,
        runs: Sequence[RunState],
        facts: dict[UUID, RunFacts],
        entries: dict[UUID, Cached],
        errors: dict[UUID, BaseException],
    ) -> None:
        facts.update(self.storage.facts([run.run_id for run in runs if run.run_id not in facts]))
        histories = self.storage.histories({run.run_id: 0 for run in runs if run.head_token is not None})
        until = time.monotonic() + _IN_A_TURN if self._hurried else None
        for number, run in enumerate(runs):
            if number and until is not None and time.monotonic() > until:
                return  # still due
            try:
                work = _Rebuild(run, self._new(run, facts[run.run_id]))
                if self._replayed(work, histories.get(run.run_id, []), facts[run.run_id], until):
                    assert work.entry is not None
                    entries[run.run_id] = work.entry
                else:
                    self._put_off(work)
            except Exception as exc:  # noqa: BLE001 - a history or class that cannot be used blocks its own run only
                errors[run.run_id] = exc

    def _of_present_class(self, entry: Cached, chain_id: UUID) -> bool:
        """False when the class was defined again since: the run goes on with the new code, as after a restart."""
        try:
            facts = entry.facts
            present = self._resolve(chain_id, facts.workflow, facts.version)
            return present.definition is entry.executor.definition
        except UnknownWorkflow:
            return True
        except WorkflowSwitchedOff:
            return False

    def _catch_up(
        self, entry: Cached, run: RunState, events: Sequence[HistoryEvent], errors: dict[UUID, BaseException]
    ) -> bool:
        """Feed what others wrote since. False when the entry is no ancestor: its activation was rolled back."""
        if not events or events[0].attributes.get("head") != entry.head:
            return False
        work = _Rebuild(run, entry)
        try:
            self._feed(work, [event for event in events if event.number > entry.length])
            self._advance(work, None)
        except HandlerFixed:
            return False  # it is built anew
        except Exception as exc:  # noqa: BLE001 - see _build_all
            errors[run.run_id] = exc
            return False
        entry.shown = None
        return True

    # -- replaying ----------------------------------------------------------------------------------------------------

    def _replayed(self, work: _Rebuild, events: Sequence[HistoryEvent], facts: RunFacts, until: float | None) -> bool:
        """Replay a whole history, which is empty before the first turn. Whether it came through, see ``_advance``."""
        if not events:
            return True
        self._feed(work, events)
        try:
            return self._advance(work, until)
        except HandlerFixed:
            work.skip_failed, work.entry = True, self._new(work.run, facts, skip_failed=True)
            self._feed(work, events)
            return self._advance(work, until)

    def _new(self, run: RunState, facts: RunFacts, *, skip_failed: bool = False) -> Cached:
        cls = self._resolve(run.chain_id, facts.workflow, facts.version)
        info = RunInfo(
            workflow=facts.workflow,
            id=facts.workflow_id,
            run_id=str(facts.run_id),
            version=facts.version,
            attempt=facts.attempt,
            parent=facts.parent,
        )
        on_wait = watchdog.came_to_a_wait if self._deadlock_timeout is not None else None
        executor = Executor(
            cls.definition,
            info,
            payload_limit=self._limit,
            on_wait=on_wait,
            unexpected_error=self._unexpected_error,
            strict=self._strict,
            skip_failed=skip_failed,
        )
        return Cached(executor, facts, None, 0, 0, crashes=run.crashes)

    def _feed(self, work: _Rebuild, events: Sequence[HistoryEvent]) -> None:
        assert work.entry is not None
        work.page, work.steps = events, work.entry.executor.replay_in_steps(events)

    def _advance(self, work: _Rebuild, until: float | None) -> bool:
        """Replay what was fed.

        False when time was up before it was through; then it can go on. Raises what the replay does.
        """
        entry, steps = work.entry, work.steps
        assert entry is not None
        assert steps is not None
        executor = entry.executor
        self._on_activate(work.run.chain_id)
        try:
            through = watchdog.run(
                partial(_step_through, steps, until),
                limit=self._deadlock_timeout,
                what=f"run {work.run.run_id}",
                insists=not self._hurried,
            )
        except BaseException:
            executor.evict()
            raise
        finally:
            self._on_activate(None)
        if executor.differences:
            self._tell_differences(work.run, entry)
        if through:
            _stand(entry, work.page)
            work.page, work.steps = (), None
        return through

    def _tell_differences(self, run: RunState, entry: Cached) -> None:
        """Inputs that are others now: one line of the log, once a run in this process, without any value."""
        found = [one for one in entry.executor.differences if one.kind == "input"]
        entry.executor.differences.clear()
        if not found or run.run_id in self._warned:
            return
        if len(self._warned) >= _MOST_WARNED:
            del self._warned[next(iter(self._warned))]
        self._warned[run.run_id] = None
        ids = {"workflow": entry.facts.workflow, "workflow_id": entry.facts.workflow_id, "run_id": str(run.run_id)}
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        logger.warning(
            "%s %s: the code gives another input than the history has at %s%s: is it from the iteration of a set, hash() or id()? "
            "Changed on purpose, it is legal. The page of the run compares both values; see temporalex replay",
            entry.facts.workflow,
            entry.facts.workflow_id,
            found[0],
            more,
            extra=ids,
        )

    def _go_on(self, work: _Rebuild) -> bool:
        """A slice. Whether the entry stands where the history ends, as far as it has been committed."""
        until = time.monotonic() + _SLICE
        if work.entry is None:
            run = work.run
            facts = self.storage.facts([run.run_id])[run.run_id]
            work.entry = self._new(run, facts, skip_failed=work.skip_failed)
            work.entry.executor.expect_markers(self.storage.markers(run.run_id))
        while time.monotonic() < until:
            if work.steps is None:
                events = self._next_page(work.run.run_id, after=work.entry.length)
                if not events:
                    return True
                self._feed(work, events)
            try:
                if not self._advance(work, until):
                    return False
            except HandlerFixed:
                work.entry, work.page, work.steps, work.skip_failed = None, (), None, True
                return False
        return False

    def _next_page(self, run_id: UUID, *, after: int) -> Sequence[HistoryEvent]:
        """What comes next, up to the end of an activation."""
        events: list[HistoryEvent] = []
        while True:
            more = self.storage.page(run_id, after=after + len(events), most=_PAGE)
            events += more
            if len(more) < _PAGE:
                return events
            whole = [event for event in events if event.activation != events[-1].activation]
            if whole:
                return whole


def _step_through(steps: Iterator[None], until: float | None) -> bool:
    """Whether it came to the end of ``steps`` before time was up."""
    for _ in steps:
        watchdog.all_blocked()
        if until is not None and time.monotonic() > until:
            return False
    return True


def _stand(entry: Cached, events: Sequence[HistoryEvent]) -> None:
    """Note where the entry stands after ``events``."""
    for event in reversed(events):
        if event.kind == "ActivationStarted":
            entry.head, entry.head_at = event.attributes.get("head"), event.number
            break
    entry.payloads += sum(event.size for event in events)
    if events:
        entry.length = events[-1].number
