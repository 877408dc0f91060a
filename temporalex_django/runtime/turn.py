"""The turn: claim runs, activate them, store everything in one transaction.

Phase 1 takes many runs together and does pure work only. Phase 2 takes, one transaction each, the runs that have atomic
activities to run: business rows locked by many runs in one transaction would deadlock with those of another worker.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any
from uuid import UUID

from temporalex_django.authoring import activity, workflow
from temporalex_django.core import payloads
from temporalex_django.core.events import Job
from temporalex_django.core.senders import Judge
from temporalex_django.core.telling import told
from temporalex_django.errors import DeadlockDetected, JudgingFailed, KeyMissing, UnknownWorkflow
from temporalex_django.runtime import activities
from temporalex_django.runtime.cache import Cache, Cached
from temporalex_django.runtime.executors import Executors
from temporalex_django.runtime.step import Step
from temporalex_django.runtime.storage import (
    Inbox,
    NewTask,
    RunFacts,
    RunState,
    RunWrite,
    Storage,
    TaskResult,
    TaskState,
    TaskStorage,
)
from temporalex_django.runtime.watchdog import watchdog

logger = logging.getLogger("temporalex_django.runtime")

#: Activation time of one turn: what is claimed and not begun by then stays due.
_BUDGET = 0.025
#: How far phase 2 goes on with one run in one transaction.
_ATOMIC_ACTIVATIONS = 20
_ATOMIC_BUDGET = 0.05
_ATOMIC_SLOW = 1.0
#: What the messages of one run may take of a turn that others share; at least, however late it is.
_SHARE = 0.010
_LEAST = 0.005
#: A turn that has taken so long begins nothing more: the server ends sessions that idle in a transaction.
_LATE = 1.0
#: How long a worker leaves a run alone whose class it lacks and another one has.
_LEFT_FOR = 5.0
_REMEMBERED = 120.0
#: Runs of which it is remembered that they left messages.
_MOST_LONG = 1_000


@dataclass(slots=True)
class TurnReport:
    """What a turn did. ``runs`` counts the runs that it took up; ``atomic`` names those that are due for phase 2."""

    runs: int = 0
    tasks: int = 0
    writes: list[RunWrite] = field(default_factory=list)
    facts: dict[UUID, RunFacts] = field(default_factory=dict)
    atomic: list[UUID] = field(default_factory=list)
    blocked: dict[UUID, BaseException] = field(default_factory=dict)
    judge: Judge | None = None

    def add(self, other: TurnReport) -> None:
        """Count in what a further transaction of the same turn did."""
        self.runs += other.runs
        self.tasks += sum(len(write.tasks) for write in other.writes)
        self.writes += other.writes
        self.facts.update(other.facts)
        self.blocked.update(other.blocked)


class Engine(Executors):
    """Advances runs of one storage. Thread-safe when the storage is: entries leave the cache while they are worked on.

    ``hurried``: an activation takes what fits a budget and leaves the other messages, a long history is not rebuilt in a turn, but
    by ``rebuild`` where ``rebuilds`` is set; environments deliver everything at once. ``perform(task)`` runs an atomic activity and gives its value; ``inline_atomic`` False leaves those to whoever claims tasks.
    ``limits`` are ``admit_updates`` and ``max_pending`` of every activation. ``resolve(chain, name, version)`` gives the class of a run: the registered one unless said otherwise. ``on_activate`` hears of which chain
    code is about to be run (None: it came through). ``judges()`` makes the judge of one turn: who may send what; it is not kept beyond.
    """

    def __init__(
        self,
        storage: Storage,
        tasks: TaskStorage,
        *,
        cache_size: int = 1000,
        cache_bytes: int | None = None,
        payload_limit: int = payloads.MAX_BYTES,
        deadlock_timeout: float | None = None,
        inline_atomic: bool = True,
        perform: Callable[[TaskState], Any] | None = None,
        on_activate: Callable[[UUID | None], None] | None = None,
        resolve: Callable[[UUID, str, int], type[workflow.Workflow]] | None = None,
        limits: Mapping[str, Any] = MappingProxyType({}),
        hurried: bool = True,
        rebuilds: bool = False,
        judges: Callable[[], Judge] | None = None,
    ) -> None:
        super().__init__(
            storage,
            cache=Cache(cache_size, most_bytes=cache_bytes),
            payload_limit=payload_limit,
            deadlock_timeout=deadlock_timeout,
            on_activate=on_activate or (lambda _: None),
            resolve=resolve or (lambda _, name, version: workflow.code_of(name, version)),
            hurried=hurried,
            rebuilds=rebuilds,
        )
        self.tasks = tasks
        self._inline_atomic = inline_atomic
        self._perform = perform
        self._limits = limits
        self._left: dict[UUID, float] = {}  # runs that need what this process lacks, and when that was seen
        self._long: dict[UUID, None] = {}  # chains whose inbox was too long for one turn, the last one served last
        self._judges = judges

    def turn(
        self, *, limit: int, queues: Sequence[str], chains: Collection[UUID] = (), force: bool = False
    ) -> TurnReport:
        """Both phases, each transaction committed. Raises what the storage raises; the runs concerned are due again."""
        with self.storage.transaction():
            report = self.advance(limit=limit, queues=queues, chains=chains, force=force)
        for chain_id in report.atomic:
            report.add(self.advance_atomic(chain_id, queues=queues))
        return report

    def advance_atomic(self, chain_id: UUID, *, queues: Sequence[str], patience: float = 0.0) -> TurnReport:
        """Phase 2 of one run, in a transaction of its own. Business rows that others have locked: nothing, still due, uncounted.

        ``patience``: it stands in line so long for what others have locked, instead of giving up after a moment.
        """
        report = TurnReport()
        try:
            with self.storage.transaction():
                if patience:
                    self.storage.queue_for(chain_id, patience=patience)
                self._advance_atomic(chain_id, queues, report)
        except activities.Absent:  # another worker is to run it
            self.storage.decline([chain_id], seconds=_LEFT_FOR)
            return TurnReport()
        except Exception as exc:
            if not self.storage.transient(exc):
                raise
            return TurnReport()
        return report

    def advance(
        self, *, limit: int, queues: Sequence[str], chains: Collection[UUID] = (), force: bool = False
    ) -> TurnReport:
        """Phase 1 inside the caller's transaction. ``force`` tries blocked runs although they are not due.

        What it caches is known by its token: when the caller rolls back, the token is not the one on the row and the entry is
        never used.
        """
        report = TurnReport()
        claimed = self.storage.claim(limit=limit, queues=queues, chains=chains)
        if not claimed:
            return report
        now = self.storage.now()
        waiting = {run.chain_id for run in claimed if _waits(run, now, force=force)}
        inbox = self.storage.inbox([run.chain_id for run in claimed], waiting=waiting)
        steps: list[Step] = []
        idle: set[UUID] = (
            set()
        )  # paused, or blocked and not due: a blocked run is not tried again because a message came
        for run in claimed:
            step = Step(run, inbox[run.chain_id], now, inline_atomic=self._inline_atomic)
            if step.ends:
                if run.chain_id in waiting:  # the parked ones are to be answered too
                    every = self.storage.inbox([run.chain_id])[run.chain_id]
                    step = Step(run, every, now, inline_atomic=self._inline_atomic)
                steps.append(step)
                continue
            waits = _waits(run, now, force=force)
            if self._inline_atomic and not run.closed and not waits and _due(run.atomic_due, now):
                report.atomic.append(run.chain_id)
                continue
            steps.append(step)
            if not run.closed and waits:
                idle.add(run.chain_id)
        ending = {step.run.run_id for step in steps if step.ends}
        self._facts_of(ending, report)
        active = [
            s.run for s in steps if not s.run.closed and s.run.chain_id not in idle and s.run.run_id not in ending
        ]
        entries, errors = self._entries(active, report.facts)
        begun = time.monotonic()
        share = _BUDGET if len(steps) == 1 else _SHARE
        short, long = self._in_order(steps)
        for index, step in enumerate(short + long):
            run = step.run
            late = time.monotonic() - begun
            # of those that have long inboxes the first one goes on whatever the others took
            if index and late > (_LATE if index == len(short) else _BUDGET):
                continue
            if run.closed:
                write = step.closed()
            elif run.run_id in ending:
                write = step.ended(report.facts[run.run_id])
            elif run.chain_id in idle:
                write = step.parked()
            elif self._left_to_others(run, errors.get(run.run_id), report):
                continue
            elif run.run_id not in entries and run.run_id not in errors:
                continue  # it is being rebuilt, or that is for the next turn
            else:
                at = time.monotonic()
                until = max(begun + _BUDGET, at + _LEAST) if index >= len(short) else begun + _BUDGET
                until = min(until, at + share)
                write = self._step(step, entries.pop(run.run_id, None), errors.get(run.run_id), report, until=until)
            report.writes.append(write)
            report.runs += 1
            if self._inline_atomic and not write.run.attempt and _due(write.run.atomic_due, step.now):
                report.atomic.append(run.chain_id)
        for run_id, entry in entries.items():  # claimed and not begun
            self.cache.put(run_id, entry)
        self.storage.write(report.writes)
        report.tasks = sum(len(write.tasks) for write in report.writes)
        return report

    # -- phase 1 ------------------------------------------------------------------------------------------------------

    def _step(
        self,
        step: Step,
        entry: Cached | None,
        error: BaseException | None,
        report: TurnReport,
        results: Sequence[Job] = (),
        *,
        until: float,
    ) -> RunWrite:
        run = step.run
        if entry is None:
            assert error is not None
            return self._blocked(step, error, report)
        if report.judge is None and self._judges is not None:
            report.judge = self._judges()
        before = replace(run)  # an activation that fails after it began to write into the run must not have moved it
        self._on_activate(run.chain_id)
        try:
            activate = partial(
                step.activate,
                entry,
                token=self.storage.new_token(),
                new_run_id=self.storage.new_run_id,
                results=results,
                limits=self._limits,
                enough=partial(_enough, until if not run.attempt else 0.0) if self._hurried else None,
                judge=report.judge,
            )
            write = watchdog.run(activate, limit=self._deadlock_timeout, what=f"run {run.run_id}")
        except Exception as exc:  # noqa: BLE001 - whatever it is, it blocks this run alone
            entry.executor.evict()
            cause = exc.__cause__ if isinstance(exc, JudgingFailed) else exc
            if cause is not None and (self.storage.lost(cause) or self.storage.transient(cause)):
                raise cause from cause.__cause__  # of the judge's queries: nobody's fault
            return self._blocked(Step(before, Inbox(step.messages), step.now), exc, report)
        finally:
            self._on_activate(None)
        self._long.pop(run.chain_id, None)
        if step.left and len(self._long) < _MOST_LONG:
            self._long[run.chain_id] = None
        for refused in write.refused:
            logger.warning(
                "the signal %s to run %s was %s",
                refused.signal,
                run.run_id,
                refused.reason,
                extra={"run_id": str(run.run_id)},
            )
        if run.closed or write.next_run is not None:
            entry.executor.evict()
        else:
            self.cache.put(run.run_id, entry)
        return write

    def _in_order(self, steps: Sequence[Step]) -> tuple[list[Step], list[Step]]:
        """Runs whose inbox was too long for one turn come behind the others, the one that was served last behind all."""
        if not self._long:
            return list(steps), []
        by_chain = {step.run.chain_id: step for step in steps}
        long = [by_chain.pop(chain) for chain in self._long if chain in by_chain]
        return list(by_chain.values()), long

    def _facts_of(self, runs: Collection[UUID], report: TurnReport) -> None:
        """Facts of runs that are not to be activated any more; what the cache has of them goes."""
        for run_id in runs:
            entry = self.cache.take(run_id)
            if entry is not None:
                report.facts[run_id] = entry.facts
                entry.executor.evict()
        if unknown := [run_id for run_id in runs if run_id not in report.facts]:
            report.facts.update(self.storage.facts(unknown))

    def _left_to_others(self, run: RunState, error: BaseException | None, report: TurnReport) -> bool:
        """Whether this process lacks what the run needs and a live worker has it (D-32), or may have: that is seen the next time."""
        if isinstance(error, KeyMissing):
            return self.leaves(run.chain_id)
        facts = report.facts.get(run.run_id)
        if not isinstance(error, UnknownWorkflow) or facts is None:
            return False
        if not self.storage.live_workers_with(facts.workflow, facts.version):
            return False
        self.storage.decline([run.chain_id], seconds=_LEFT_FOR)
        return True

    def leaves(self, chain_id: UUID) -> bool:
        """Whether a run that needs a key which this process lacks was left to others, for a moment.

        False when it was left before and is still there: nobody took it. It is to be blocked then, and left alone for longer.
        """
        now = time.monotonic()
        self._left = {chain: at for chain, at in self._left.items() if at > now - _REMEMBERED}
        first = chain_id not in self._left
        self._left[chain_id] = now
        self.storage.decline([chain_id], seconds=_LEFT_FOR if first else _LEFT_FOR * 6)
        return first

    def _blocked(self, step: Step, error: BaseException, report: TurnReport) -> RunWrite:
        run = step.run
        report.blocked[run.run_id] = error
        if not run.attempt:
            logger.error("run %s is blocked: %s", run.run_id, told(error), extra={"run_id": str(run.run_id)})
        waits_for = None
        if isinstance(error, UnknownWorkflow) and (facts := report.facts.get(run.run_id)) is not None:
            waits_for = f"the class {facts.workflow} (version {facts.version})"
        elif isinstance(error, KeyMissing):
            waits_for = f"the key {error.key!r}"
        # a missing class comes with a worker that has it, which sets the run due: trying would only slow the claim
        return step.blocked(error, retry=not isinstance(error, UnknownWorkflow), waits_for=waits_for)

    # -- phase 2 ------------------------------------------------------------------------------------------------------

    def _advance_atomic(self, chain_id: UUID, queues: Sequence[str], report: TurnReport) -> None:
        """Run due atomic activities of one run, and go on with it while its work is atomic, in one transaction.

        When an activation fails, what the activities wrote before it is undone with it: their results have no place to go.
        """
        done = TurnReport()
        try:
            with self.storage.savepoint():
                self._atomic_rounds(chain_id, queues, done)
        except _ActivationFailed as failed:
            for run in self.storage.claim(limit=1, queues=queues, chains=[chain_id]):
                messages = self.storage.inbox([chain_id])[chain_id]
                report.facts.update(done.facts)
                write = self._blocked(Step(run, messages, self.storage.now()), failed.error, report)
                self.storage.write([write])
                report.writes.append(write)
                report.runs += 1
        else:
            report.add(done)

    def _atomic_rounds(self, chain_id: UUID, queues: Sequence[str], report: TurnReport) -> None:
        claimed = self.storage.claim(limit=1, queues=queues, chains=[chain_id])
        if not claimed or claimed[0].closed or claimed[0].paused:
            return
        run = claimed[0]
        entries, errors = self._entries(claimed, report.facts)
        if self._left_to_others(run, errors.get(run.run_id), report):
            return
        entry = entries.get(run.run_id)
        if entry is None:
            if run.run_id in errors:
                raise _ActivationFailed(errors[run.run_id])
            return  # it is being rebuilt
        now, rows = self.storage.now(), self.tasks.atomic_tasks(chain_id)
        due = [task for task in rows if task.due_at <= now]
        later = {task.seq: task.due_at for task in rows if task.due_at > now}  # failed before, waiting for another try
        messages = self.storage.inbox([chain_id])[chain_id]
        begun = time.monotonic()
        for remaining in reversed(range(_ATOMIC_ACTIVATIONS)):
            results, retries = self._run_atomic(due)
            later.update((again.task.seq, again.retry_at) for again in retries if again.retry_at is not None)
            run.atomic_due = min(later.values(), default=None)
            step = Step(run, messages, self.storage.now())
            messages = Inbox(more=step.left)
            until = time.monotonic() + _SHARE
            write = self._step(step, entry, None, report, results=[job for job, _ in results], until=until)
            if run.run_id in report.blocked:
                raise _ActivationFailed(report.blocked[run.run_id])
            write.cancelled_tasks += [task.seq for _, task in results if task.id]
            for number in write.cancelled_tasks:
                later.pop(number, None)
            for again in retries:
                _keep(write, again)
            new = [task for task in write.tasks if task.atomic and task.attempt == 0]
            more = bool(new and remaining and not retries and time.monotonic() - begun < _ATOMIC_BUDGET)
            more = more and all(task.activity in activity.registry for task in new)
            if more:
                write.tasks = [task for task in write.tasks if not task.atomic]
                due = [_as_state(task) for task in new]
                run.atomic_due = min(later.values(), default=None)
            self.storage.write([write])
            report.writes.append(write)
            report.runs += 1
            taken = self.cache.take(run.run_id) if more else None
            if taken is None:
                return
            entry = taken

    def _run_atomic(self, due: Sequence[TaskState]) -> tuple[list[tuple[Job, TaskState]], list[TaskResult]]:
        """Each in a savepoint of its own. Raises what the database raises about the transaction as a whole."""
        results: list[tuple[Job, TaskState]] = []
        retries: list[TaskResult] = []
        assert self._perform is not None
        for task in due:
            began = time.monotonic()
            try:
                with self.storage.attempt():
                    result = activities.completed(task, self._perform(task), limit=self._limit)
            except activities.Absent:
                raise
            except BaseException as exc:
                if self.storage.transient(exc) and not self.storage.interrupted(exc):
                    raise
                if self.storage.lost(exc):
                    held = time.monotonic() - began
                    if (
                        held > _ATOMIC_SLOW
                    ):  # the server ends sessions that do nothing in a transaction: it would do so each time
                        raise DeadlockDetected(
                            f"atomic activity {task.activity} held its transaction for {held:.1f} s and the database ended the "
                            "session: make it short, or an external activity"
                        ) from exc
                    raise
                result = activities.failed(task, exc, self.storage.now(), final=activities.hopeless(exc))
            if (took := time.monotonic() - began) > _ATOMIC_SLOW:
                logger.warning("atomic activity %s held its transaction for %.1f s", task.activity, took)
            if result.outcome is None:
                retries.append(result)
            else:
                results.append((Job(*result.outcome), task))
        return results, retries


class _ActivationFailed(Exception):
    """Undoes the transaction of phase 2; ``error`` is why the run is blocked."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


def _due(moment: datetime | None, now: datetime) -> bool:
    return moment is not None and moment <= now


def _enough(until: float) -> bool:
    """Asked between two messages of an activation, when all its units wait."""
    watchdog.all_blocked()
    return time.monotonic() >= until


def _waits(run: RunState, now: datetime, *, force: bool) -> bool:
    """Whether it is paused, or blocked and not due: all that a turn does with it is to park its messages."""
    return not run.closed and bool(run.paused or (run.attempt and not force and not _due(run.due_at, now)))


def _keep(write: RunWrite, again: TaskResult) -> None:
    """An atomic activity that failed is tried later; one that never was a row becomes one now."""
    task = again.task
    assert again.retry_at is not None
    if task.id:
        write.retried_tasks[task.seq] = (task.attempt, again.retry_at)
        return
    write.tasks.append(
        NewTask(
            **{name: getattr(task, name) for name in _SHARED}, atomic=True, attempt=task.attempt, due_at=again.retry_at
        )
    )


_SHARED = (
    "run_id", "chain_id", "workflow_id", "workflow", "seq", "activity", "args", "kwargs", "options", "queue", "scheduled_at",
)  # fmt: skip


def _as_state(task: NewTask) -> TaskState:
    """An atomic activity that is run in the transaction that scheduled it: it never becomes a row."""
    shared = {name: getattr(task, name) for name in _SHARED}
    return TaskState(**shared, id=0, atomic=True, attempt=1, due_at=task.scheduled_at)
