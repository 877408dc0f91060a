"""The worker loop, which every host of workflows turns: claim, activate, commit, until it is told to stop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import partial
from math import inf
from typing import TYPE_CHECKING
from uuid import UUID

from django.db import Error as DatabaseError
from django.db import connections

from temporalex_django.authoring import activity, workflow
from temporalex_django.conf import get_settings
from temporalex_django.core import crash_points
from temporalex_django.core.error_text import error_line
from temporalex_django.core.payloads import error_reason
from temporalex_django.db import lone_tasks
from temporalex_django.db.atomic_activities import perform
from temporalex_django.db.connections import worker_session
from temporalex_django.db.limited_claims import give_back
from temporalex_django.db.notify import announce, hint, notices
from temporalex_django.db.permissions import DatabaseJudge
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine import activity_policy
from temporalex_django.engine.capacity import Capacity
from temporalex_django.engine.report import TurnReport
from temporalex_django.engine.storage import TaskResult, TaskState
from temporalex_django.engine.turn import WorkflowEngine
from temporalex_django.engine.watchdog import watchdog
from temporalex_django.errors import KeyMissing, PayloadError
from temporalex_django.liveness.crash_markers import Mark, Marked, open_marker
from temporalex_django.liveness.leases import WorkerRow
from temporalex_django.liveness.recovery import block_alone, release
from temporalex_django.workers.attempts import announce_end
from temporalex_django.workers.gates import Gates
from temporalex_django.workers.health_report import activity_threads, relief_threads
from temporalex_django.workers.line import first_of
from temporalex_django.workers.maintenance import Maintenance
from temporalex_django.workers.patience import once_there, pause_after
from temporalex_django.workers.polled import Polled
from temporalex_django.workers.pool import InlinePool, Pool
from temporalex_django.workers.quarantine import Quarantine
from temporalex_django.workers.relief import Relief
from temporalex_django.workers.turner import FEWEST_RUNS, Turner

if TYPE_CHECKING:
    from temporalex_django.workers.listener import Listener

log = logging.getLogger("temporalex_django.worker")

#: Between two turns where one lock of the database keeps all writers out: web requests want it too.
_WRITERS_PAUSE = 0.003
#: Something is due and could not be had: another worker has it locked, or is the one that has its class.
_CONTENDED = 0.05
#: A turn of few runs has begun activities: so long it waits for the end of one, before it looks for anything else.
_MOMENT = 0.002
_FRUITLESS_POLLS = 10
#: While it listens to hints, an idle worker looks at the tables by itself this many times less often.
_BY_ITSELF = 5
#: How long phase 2 of one poll goes on, and how long it leaves a run alone at most whose business rows others have
#: locked.
_PHASE_TWO = 0.1
_LONGEST_PAUSE = 1.0
#: How long a run is left alone that stands on the row of another worker.
_ANNOUNCED_ELSEWHERE = 0.25
#: How long it stands in line for such rows, from the second try on; the turns of others wait for as long.
_PATIENCE = 0.5


def all_queues() -> list[str]:
    """Every queue that the workflows and activities of this process name."""
    named = {cls.task_queue for cls in workflow.concrete_classes()}
    named |= {act.options_set.queue for act in [*activity.registry.values()] if act.options_set.queue}
    return sorted(named | {"default", *(lone_tasks.queues() or ())})


def unnamed(queues: Iterable[str]) -> dict[str, str | None]:
    """Of these those that nothing in the project names, each with one that may be meant: only calls have work for them.

    None of them where the project's tasks may go to any queue.
    """
    named = all_queues()
    if lone_tasks.queues() is None:
        return {}
    return {name: next(iter(get_close_matches(name, named, n=1)), None) for name in queues if name not in named}


class WorkerLoop:
    """One worker: its row, its executors, its activities.

    ``run`` belongs to one thread, which does the turns; a maintenance thread beats, a listener thread hears hints,
    activities have threads of their own. Nothing is shared with other workers but the tables.
    """

    def __init__(
        self,
        *,
        alias: str | None = None,
        queues: Sequence[str] | None = None,
        kind: str = "worker",
        inline: bool = False,
        on_beat: Callable[[], None] = lambda: None,
    ) -> None:
        settings = get_settings()
        self.storage = DjangoStorage(alias, worker=True)
        self.alias = self.storage.alias
        self.queues = list(queues or all_queues())
        self.storage.prioritised = lone_tasks.prioritised(self.queues)
        self.gates = Gates(self.storage, self.queues)
        self.wake = threading.Event()
        self.marker = open_marker(self.storage.domain)
        self.row = WorkerRow(
            kind=kind,
            queues=self.queues,
            workflows=workflow.registered_versions(),
            crash_marker=self.marker.path,
        )
        self.caution = 0  # set by maintenance: see ``liveness.recovery``
        self._suspects = False  # runs that ended processes are being tried
        self.on_beat = on_beat  # called several times a second while this process lives, by the maintenance thread
        self.pool: Pool = (
            InlinePool(now=self.row.now, noted=partial(self.marker.noted, "task"))
            if inline
            else Pool(
                threads=activity_threads(),
                tasks=settings.ACTIVITY_TASKS,
                now=self.row.now,
                on_result=self._ring,
                noted=partial(self.marker.noted, "task"),
            )
        )
        self.quarantine = Quarantine(self.pool, Mark(self.marker), announce=partial(self.row.announce, self.storage))
        self.engine = WorkflowEngine(
            self.storage,
            self.storage,
            cache_size=settings.CACHE_SIZE,
            cache_bytes=settings.CACHE_BYTES,
            payload_limit=settings.MAX_PAYLOAD_BYTES,
            deadlock_timeout=settings.DEADLOCK_TIMEOUT,
            unexpected_error=settings.UNEXPECTED_ERROR,
            strict_replay=settings.STRICT_REPLAY,
            perform=self._perform,
            resolve=self.gates.resolve,
            on_activate=self.marker.note,
            rebuilds=True,
            judges=partial(DatabaseJudge, self.alias),
        )
        self.turner = Turner(
            storage=self.storage, engine=self.engine, gates=self.gates, row=self.row, quarantine=self.quarantine
        )
        self.turns = 0
        self.polls = 0  # looks at the tables that are over
        self.looked_at = time.monotonic()  # when the loop came by last
        self.leaves_by = 0.0  # when it is gone, once it was told to stop
        # much was done or somebody rang; else a plain read says whether a turn is worth while, as it always does where
        # there is a writer lock: that is for those who have something to write
        self.expectant = not self.storage.sql.writer_lock
        self._pause = float("inf")  # until the next look, where nobody rings
        self._pauses: dict[UUID, float] = {}  # of runs whose business rows others have locked
        self.listener: Listener | None = None  # maintenance's, where there is one
        self._told = threading.Event()  # to stop
        self.relief = Relief(
            self.storage,
            most=relief_threads(),
            turns=lambda relieved: self._loop(self._told, over=lambda: self._told.is_set() or relieved()),
        )

    def _ring(self) -> None:
        """An activity has ended. Who is to wake up already will see it: he looks after he has cleared ``wake``."""
        if not self.wake.is_set():
            self.wake.set()

    # --- one look ----------------------------------------------------------------------------------------------------

    def poll(self) -> Polled:
        """One look at the tables; see ``_poll``.

        When it is over, what was taken in it is known to the pool, or never will be.
        """
        try:
            # first where the last turn left no room: a crowd without limits would have all of it, time and again
            first = self._limited() if self.gates.short and not self.quarantine.wanted else None
            found = self._poll()
            found.tasks += self._limited() if first is None else first
            return found
        finally:
            self.polls += 1

    def _limited(self) -> int:
        """Take activities that are under limits: not in the turn, so that nobody waits for its locks."""
        if not self.gates.in_force or self.quarantine.quiet or self.row.drained_at is not None:
            return 0
        suspects = self.quarantine.ready
        capacity = Capacity(threads=1) if suspects else self._few() if self.caution else self._capacity()
        capacity.ahead.clear()  # what waits in a pool would keep others out that another worker could begin
        capacity.together = 0
        tasks, moved = self.gates.claim(capacity, owner=self.row.epoch, suspects=suspects)
        self._begin(tasks, all_seen=suspects)
        return len(tasks) + moved

    def _poll(self) -> Polled:
        """Commit ends of activities, advance due runs, take due activities.

        One transaction, then one each for atomic work.

        Before that a slice of what is being rebuilt, outside of transactions. Raises when the database is gone. Ends of
        activities leave the memory after the commit, not before.
        """
        if self.quarantine.quiet or self.row.drained_at is not None:
            return self._results_only()
        if self.caution:
            return self._cautiously()
        rebuilding = self.engine.rebuilding if self.engine.rebuild() else 0
        results, capacity = first_of(self.pool.results(), self.turner.room_for_ends), self._capacity()
        if not results and not self.expectant and (due := self._next_due()) != 0.0:
            return Polled(rebuilding=rebuilding, looked=True, due=due)
        report = TurnReport()
        try:
            valid, tasks = self.turner.turn(results, capacity, report)
        except Exception as exc:
            if self.storage.lost(exc):
                raise
            return self._apart(results, report.claimed, exc)
        self._exchanged(results, valid, tasks)
        self._committed(report)
        runs = report.runs + self._phase_two(report.atomic)
        if report.suspects:
            runs += self._announced(report.suspects[:1])
        return Polled(
            runs=runs, tasks=len(tasks), results=len(results), rebuilding=rebuilding or self.engine.rebuilding
        )

    def _capacity(self) -> Capacity:
        return Capacity() if self.quarantine.wanted else self.pool.capacity()

    def _few(self) -> Capacity:
        """The same while somebody died of nobody knows what."""
        threads = min(self._capacity().threads, get_settings().ACTIVITY_THREADS >> min(self.caution, 30))
        return Capacity(threads=threads or (0 if self.pool.busy else 1))

    def _next_due(self) -> float | None:
        """Seconds until something is due that this worker may take."""
        return self.storage.next_due(queues=self.gates.queues, of_activities=self.gates.open_queues)

    def _exchanged(self, results: list[TaskResult], valid: list[int], tasks: list[TaskState]) -> None:
        """After the commit: ends are off our hands, what was taken begins."""
        self.pool.forget(results)
        if results and self.gates.waiting:
            self.gates.ended([result.task.queue for result in results])
        self._begin(tasks, all_seen=not self.gates.in_force)
        self._announce(results, valid)

    def _begin(self, tasks: list[TaskState], *, all_seen: bool) -> None:
        """What was taken begins, but for suspects that have to wait. ``all_seen``: nothing else is to be looked at."""
        tasks, back = self.quarantine.sift(tasks, all_seen=all_seen)
        self.pool.submit(tasks)
        give_back(self.storage, back)

    def _announce(self, results: list[TaskResult], valid: list[int]) -> None:
        ended = set(valid)
        for result in results:
            if result.task.id in ended:
                announce_end(result)

    def _committed(self, report: TurnReport) -> None:
        self.turns += report.runs
        announce(report)
        crash_points.reached("notify: before")
        if self.listener is not None:
            self.listener.tell(notices(report, own_queues=self.queues))
        else:
            hint(report, alias=self.alias, own_queues=self.queues)

    def _phase_two(self, chains: Sequence[UUID]) -> int:
        """Atomic work, run after run, for a moment: what is left stays due. The number of runs that were advanced."""
        if self.relief.spared:
            return 0
        deadline, advanced = time.monotonic() + _PHASE_TWO, 0
        # those whose pause is over stand in line, one a poll: a claim would not find them while their callers take
        # turns
        patient = [chain for chain in self._pauses if not self.storage.is_deferred(chain)][:1]
        for chain in dict.fromkeys([*patient, *chains]):
            if self.relief.runs(chain):  # the server has ended its session, and its code goes on
                self.storage.defer([chain], seconds=_LONGEST_PAUSE)
            elif self._atomic(chain, patience=_PATIENCE if chain in patient else 0.0):
                self._pauses.pop(chain, None)
                advanced += 1
            elif chain not in chains and self._pauses.get(chain, _LONGEST_PAUSE) >= _LONGEST_PAUSE:
                self._pauses.pop(chain, None)  # somebody else has done it, or it is found again
            else:  # somebody has its rows locked: others first, and it a little later each time
                pause = self._pauses[chain] = min(self._pauses.get(chain, _CONTENDED / 2) * 2, _LONGEST_PAUSE)
                self.storage.defer([chain], seconds=pause)
            if time.monotonic() > deadline:
                break
        return advanced

    def _atomic(self, chain: UUID, *, patience: float) -> bool:
        """Whether the run was advanced, or blocked."""
        try:
            report = self.engine.advance_atomic(chain, queues=self.queues, patience=patience)
        except Exception as exc:
            if self.storage.lost(exc):
                raise
            return not self._leaves(chain, exc) and block_alone(self.storage, chain, exc)
        self._committed(report)
        return bool(report.runs)

    def _apart(self, results: list[TaskResult], chains: Sequence[UUID], cause: BaseException) -> Polled:
        """A turn of many failed and was rolled back: whoever is at fault must not hold up the others."""
        if not self.storage.transient(cause):
            log.warning("a turn of %d runs failed, trying each alone: %s", len(chains), error_line(cause))
        results, valid = self._each_stored(results)
        with self.storage.transaction("apart"):
            tasks = self.turner.claim_tasks(self._capacity())
        self._exchanged(results, valid, tasks)
        done = Polled(tasks=len(tasks), results=len(results))
        done.runs += sum(self._alone(chain) for chain in chains)
        return done

    def _each_stored(self, results: list[TaskResult]) -> tuple[list[TaskResult], list[int]]:
        """Store ends one by one: those that are off our hands, and which of them were still valid."""
        stored = [end for result in results if (end := self._stored(result)) is not None]
        return [end for end, _ in stored], [end.task.id for end, valid in stored if valid]

    def _stored(self, result: TaskResult) -> tuple[TaskResult, bool] | None:
        """Store one end by itself, or that it cannot be stored; whether it was still valid.

        None: not now, it stays in memory.
        """
        task = result.task
        try:
            return result, bool(self.storage.finish_tasks([result]))
        except Exception as exc:
            if self.storage.lost(exc):
                raise
            if self.storage.transient(exc):
                return None
            log.error(
                "the end of %s cannot be stored: %s", task.activity, error_line(exc), extra={"run_id": str(task.run_id)}
            )
            why = PayloadError(f"the end of {task.activity} cannot be stored: {error_reason(exc)}")
            result = activity_policy.failed(task, why, self.row.now(), final=True)
        try:
            return result, bool(self.storage.finish_tasks([result]))
        except Exception as exc:
            if self.storage.lost(exc):
                raise
            return None

    def _alone(self, chain: UUID) -> int:
        """A turn of one run: the number of runs that it advanced, or blocked."""
        try:
            report = self.engine.turn(limit=1, queues=self.queues, chains=[chain])
        except Exception as exc:
            if self.storage.lost(exc):
                raise
            if self.storage.transient(exc):
                return 0
            if self._leaves(chain, exc):
                return 0
            block_alone(self.storage, chain, exc)
            return 1
        self._committed(report)
        return report.runs

    def _announced(self, chains: Sequence[UUID], *, deadline: float = inf) -> int:
        """Each alone, and on the row of this worker before its code runs: one may be what ended a process.

        One that stands on the row of another worker is left alone for a while: that one runs it, or died of it.
        """
        advanced = 0
        self._suspects = True
        try:
            for chain in chains:
                if self.row.announce(self.storage, [Marked("chain", chain)]):
                    advanced += self._alone(chain)
                else:
                    self.storage.defer([chain], seconds=_ANNOUNCED_ELSEWHERE)
                if time.monotonic() > deadline:
                    break
        finally:
            self._suspects = False
        self.row.announce(self.storage, ())
        return advanced

    def _results_only(self) -> Polled:
        """While an activity runs that is to be alone, while somebody drains this worker, and when it leaves."""
        results = self.pool.results()
        if results:
            try:
                valid = self.storage.finish_tasks(results)
            except Exception as exc:
                if self.storage.lost(exc):
                    raise
                results, valid = self._each_stored(results)  # one that cannot be stored must not keep the others
            self.pool.forget(results)
            self._announce(results, valid)
        return Polled(results=len(results))

    def _cautiously(self) -> Polled:
        """While somebody elsewhere may have died, or died of nobody knows what.

        Runs are activated one by one, each on the row of this worker before its code runs.
        """
        results, few = self.pool.results(), self._few()
        try:
            with self.storage.transaction("careful ends"):
                valid = self.storage.finish_tasks(results)
                tasks = self.turner.claim_tasks(few)
        except Exception as exc:
            if self.storage.lost(exc):
                raise
            (results, valid), tasks = self._each_stored(results), []  # one that cannot be must not keep the others
        self._exchanged(results, valid, tasks)
        if self.quarantine.quiet:  # an activity on trial has just begun
            return Polled(tasks=len(tasks), results=len(results), rebuilding=self.engine.rebuilding)
        if (waiting := self.engine.put_off[:1]) and self.row.announce(self.storage, [Marked("chain", waiting[0])]):
            self.engine.rebuild()
        with self.storage.transaction("careful claim"):
            claimed = self.storage.claim(limit=self.storage.turn_size, queues=self.gates.queues)
        suspects = [run.chain_id for run in claimed if run.crashes][:1]
        chains = [*suspects, *(run.chain_id for run in claimed if not run.crashes)]
        runs = self._announced(chains, deadline=time.monotonic() + _PHASE_TWO) if chains or waiting else 0
        return Polled(runs=runs, tasks=len(tasks), results=len(results), rebuilding=self.engine.rebuilding)

    def _leaves(self, chain: UUID, error: BaseException) -> bool:
        """Whether the run is left to a worker that may have the key."""
        return isinstance(error, KeyMissing) and self.engine.leaves(chain)

    def _perform(self, task: TaskState) -> TaskResult:
        """An atomic activity. It may be what ends this process: its run is noted like one that is activated."""
        self.marker.note(task.chain_id)  # it has one: atomic activities are of runs
        try:
            # beside what may have ended a process nothing else is to run
            with self.relief.away(task, hands_over=not self.caution and not self._suspects):
                return perform(task)
        finally:
            self.marker.note(None)

    # --- loops -------------------------------------------------------------------------------------------------------

    def run(self, stop: threading.Event, *, until_idle: bool = False, timeout: float | None = None) -> int:
        """Turn until ``stop`` is set, or, with ``until_idle``, until nothing is due.

        The number of runs that were advanced.

        Waits for a database that is away, and survives one that goes away: nothing was committed, and it comes back
        with backoff. On return what has not started is given back with its attempt uncounted, what still runs with its
        attempt counted.
        """
        maintenance = Maintenance(self)
        self._told = stop
        with worker_session(self.alias):
            watchdog.beat_into(self.marker.beat)
            try:
                once_there(maintenance.start, storage=self.storage, stop=stop, timeout=timeout)
                self.relief.begin()
                self._loop(stop, until_idle=until_idle, timeout=timeout)
            finally:
                self._leave(maintenance, hurried=until_idle)
        return self.turns

    def _loop(
        self,
        stop: threading.Event,
        *,
        until_idle: bool = False,
        timeout: float | None = None,
        over: Callable[[], bool] | None = None,
    ) -> None:
        over = over or stop.is_set
        delay = fruitless = 0.0
        deadline = None if timeout is None else time.monotonic() + timeout
        while not over():
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"after {timeout:g} s there is still work: {self.pool.busy} activities are running")
            self.wake.clear()
            try:
                with self.relief.wheel:
                    if over():  # while it waited for the wheel
                        return
                    self.looked_at = time.monotonic()
                    found = self.poll()
                    due = found.due if found or found.looked else self._next_due()
                if found:
                    delay, fruitless = 0, 0
                    self._pause_behind(found, stop)
                    continue
            except DatabaseError as exc:
                if until_idle and not self.storage.lost(exc):
                    raise
                delay = pause_after(delay)
                log.warning("the database does not answer, trying again in %.1f s: %s", delay, error_line(exc))
                connections[self.alias].close()
                stop.wait(delay)
                continue
            except Exception as exc:
                if until_idle:
                    raise
                delay = pause_after(delay)
                log.error("a poll failed, going on in %.1f s: %s", delay, error_line(exc))
                stop.wait(delay)
                continue
            if self.row.drained_at is not None:
                due = None  # for others
            waits = due == 0.0 or bool(self._pauses) or self.gates.waiting
            fruitless = fruitless + 1 if waits else 0
            if (
                until_idle
                and not self.pool.busy
                and not self.relief.busy
                and not self.gates.rated
                and (not waits or fruitless > _FRUITLESS_POLLS)
            ):
                return
            rung = self.wake.wait(_CONTENDED if due == 0.0 else self._until_next(due))
            self.expectant = rung and not self.storage.sql.writer_lock

    def _pause_behind(self, found: Polled, stop: threading.Event) -> None:
        """Behind a look that found something: there may be more at once."""
        self._pause = _WRITERS_PAUSE
        if self.storage.sql.writer_lock:
            stop.wait(_WRITERS_PAUSE)
            return
        self.expectant = found.runs >= FEWEST_RUNS
        if found.tasks and found.runs < FEWEST_RUNS:
            self.wake.wait(_MOMENT)

    def _until_next(self, due: float | None) -> float:
        """Seconds until the next look, where nobody rings before."""
        poll = get_settings().POLL_INTERVAL
        if self.listener is not None:
            poll *= _BY_ITSELF if self.listener.locked else 1
        else:  # what was done just now is often answered at once: growing pauses
            poll, self._pause = min(poll, self._pause), min(self._pause * 2, poll)
        return min(seconds for seconds in (poll, due, self.gates.wait) if seconds is not None)

    def run_inline(self, *, timeout: float | None) -> int:
        """Turn until nothing is due, with everything in this thread and on its connection; see ``run_until_idle``."""
        maintenance = Maintenance(self)
        maintenance.register()
        deadline = None if timeout is None else time.monotonic() + timeout
        fruitless = 0
        try:
            while True:
                maintenance.tend()
                if advanced := self.poll() or self.pool.busy:
                    fruitless = 0
                if (advanced or self.gates.rated) and deadline is not None and time.monotonic() > deadline:
                    raise TimeoutError(f"after {timeout:g} s there is still work that is due")
                if advanced:
                    continue
                waits = self._next_due() == 0.0 or bool(self._pauses) or self.gates.waiting
                fruitless += 1
                if not self.gates.rated and (not waits or fruitless > _FRUITLESS_POLLS):
                    return self.turns
                time.sleep(_CONTENDED)
        finally:
            self._leave(None, hurried=True)

    def _leave(self, maintenance: Maintenance | None, *, hurried: bool) -> None:
        settings = get_settings()
        self.leaves_by = time.monotonic() + settings.DRAIN_SECONDS + settings.LEAVE_SECONDS
        waiting = self.pool.drain(0.0 if hurried else settings.DRAIN_SECONDS)
        if maintenance is not None:
            maintenance.stop()
        self.relief.end(seconds=self.leaves_by - settings.LEAVE_SECONDS / 2 - time.monotonic())
        try:
            with self.relief.wheel:
                self._results_only()
                with self.storage.transaction("leave"):
                    give_back(self.storage, waiting)
                    release(self.storage, self.row.epoch)
                    self.row.remove(self.storage)
        except DatabaseError as exc:
            log.warning("could not give back what is in hand, the lease will run out: %s", error_line(exc))
        finally:
            self.pool.close()
            self.engine.cache.clear()
            watchdog.beat_into(None)
            self.marker.rest()
            self.marker.close()


def run_until_idle(
    *, alias: str | None = None, queues: Sequence[str] | None = None, timeout: float | None = 20.0, kind: str = "burst"
) -> int:
    """Run turns, activities and due timers on committed data in this thread until nothing is due.

    Gives the number of turns. Waits for what a rate holds back. Raises ``TimeoutError`` after ``timeout`` seconds.
    """
    return WorkerLoop(alias=alias, queues=queues, kind=kind, inline=True).run_inline(timeout=timeout)
