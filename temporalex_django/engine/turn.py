"""The turn: claim runs, activate them, store everything in one transaction.

Phase 1 takes many runs together and does pure work only. Phase 2 takes, one transaction each, the runs that have atomic
activities to run: business rows locked by many runs in one transaction would deadlock with those of another worker.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any
from uuid import UUID

from temporalex_django.authoring import workflow
from temporalex_django.core import payloads
from temporalex_django.core.error_text import error_line
from temporalex_django.core.history.events import Job
from temporalex_django.core.history.replay import replay
from temporalex_django.core.senders import Judge
from temporalex_django.engine.advance import Advance
from temporalex_django.engine.atomic import AtomicPhase
from temporalex_django.engine.cache import Cache, Cached
from temporalex_django.engine.claimed import Claimed
from temporalex_django.engine.executors import LONG, Executors
from temporalex_django.engine.fates import LEFT_FOR, SHARE, Fate, due, fate_of, waits
from temporalex_django.engine.in_hand import TaskInHand
from temporalex_django.engine.report import TurnReport
from temporalex_django.engine.storage import (
    Inbox,
    RunState,
    RunStorage,
    RunWrite,
    TaskResult,
    TaskState,
    TaskStorage,
)
from temporalex_django.engine.taker import Taker
from temporalex_django.engine.watchdog import watchdog
from temporalex_django.errors import (
    DeadlockDetected,
    JudgingFailed,
    KeyMissing,
    NondeterminismError,
    UnknownWorkflow,
    WorkflowSwitchedOff,
)

logger = logging.getLogger("temporalex_django.runtime")

#: Activation time of one turn: what is claimed and not begun by then stays due.
_BUDGET = 0.025
#: The same where the end of an activity is in hand: not delivered now it becomes a row.
_HELD = 2 * _BUDGET
#: What the messages of one run get at least, however late it is.
_LEAST = 0.005
#: A turn that has taken so long begins nothing more: the server ends sessions that idle in a transaction.
_LATE = 1.0
#: How long it is remembered that a run was left to others.
_REMEMBERED = 120.0
#: Runs of which it is remembered that they left messages.
_MOST_LONG = 1_000


class WorkflowEngine(Executors):
    """Advances runs of one storage. Thread-safe when the storage is: entries leave the cache while they are worked on.

    ``hurried``: an activation takes what fits a budget and leaves the other messages, a long history is not rebuilt in
    a turn, but by ``rebuild`` where ``rebuilds`` is set; environments deliver everything at once. ``perform(task)``
    runs an atomic activity and gives its end; ``inline_atomic`` False leaves those to whoever claims tasks. ``limits``
    are ``admit_updates`` and ``max_pending`` of every activation. ``resolve(chain, name, version)`` gives the class of
    a run: the registered one unless said otherwise. ``unexpected_error`` ("fail" or "block") is for classes that have
    none of their own. ``on_activate`` hears of which chain code is about to be run (None: it came through).
    ``strict_replay`` blocks runs whose code gives another input than their history has; otherwise a warning says so.
    ``judges()`` makes the judge of one turn: who may send what; it is not kept beyond.
    """

    def __init__(
        self,
        storage: RunStorage,
        tasks: TaskStorage,
        *,
        cache_size: int = 1000,
        cache_bytes: int | None = None,
        payload_limit: int = payloads.MAX_BYTES,
        deadlock_timeout: float | None = None,
        inline_atomic: bool = True,
        perform: Callable[[TaskState], TaskResult] | None = None,
        on_activate: Callable[[UUID | None], None] | None = None,
        resolve: Callable[[UUID, str, int], type[workflow.Workflow]] | None = None,
        limits: Mapping[str, Any] = MappingProxyType({}),
        hurried: bool = True,
        rebuilds: bool = False,
        strict_replay: bool = False,
        judges: Callable[[], Judge] | None = None,
        unexpected_error: str = "fail",
    ) -> None:
        super().__init__(
            storage,
            cache=Cache(cache_size, most_bytes=cache_bytes),
            payload_limit=payload_limit,
            deadlock_timeout=deadlock_timeout,
            on_activate=on_activate or (lambda _: None),
            resolve=resolve or (lambda _, name, version: workflow.class_for_run(name, version)),
            hurried=hurried,
            rebuilds=rebuilds,
            unexpected_error=unexpected_error,
            strict_replay=strict_replay,
        )
        self.tasks = tasks
        self._inline_atomic = inline_atomic
        self._atomic = AtomicPhase(self, perform) if perform is not None else None
        self._limits = limits
        self._left: dict[UUID, float] = {}  # runs that need what this process lacks, and when that was seen
        #: chains whose inbox was too long for one turn, and how many messages went into it; the last one served last
        self._long: dict[UUID, int] = {}
        self._judges = judges

    def turn(
        self, *, limit: int, queues: Sequence[str], chains: Collection[UUID] = (), force: bool = False
    ) -> TurnReport:
        """Both phases, each transaction committed. Raises what the storage raises; the runs concerned are due again."""
        with self.storage.transaction("alone"):
            report = self.advance(limit=limit, queues=queues, chains=chains, force=force, last=True)
        for chain_id in report.atomic:
            report.add(self.advance_atomic(chain_id, queues=queues))
        return report

    @property
    def runs_atomic(self) -> bool:
        """Whether it runs atomic activities itself; those of an environment are run by the environment."""
        return self._atomic is not None

    def advance_atomic(self, chain_id: UUID, *, queues: Sequence[str], patience: float = 0.0) -> TurnReport:
        """Phase 2 of one run, in a transaction of its own: see ``AtomicPhase.advance``."""
        assert self._atomic is not None
        return self._atomic.advance(chain_id, queues=queues, patience=patience)

    def advance(
        self,
        *,
        limit: int,
        queues: Sequence[str],
        chains: Collection[UUID] = (),
        force: bool = False,
        taker: Taker | None = None,
        report: TurnReport | None = None,
        ended: Mapping[UUID, Sequence[TaskInHand]] = MappingProxyType({}),
        locked: Sequence[RunState] = (),
        now: datetime | None = None,
        claim: Callable[[], Claimed] | None = None,
        last: bool = False,
    ) -> TurnReport:
        """Phase 1 inside the caller's transaction. ``force`` tries blocked runs although they are not due.

        ``taker`` takes new activities at once. ``report`` is filled in and given back: whoever has it knows what was
        claimed when this raises. ``ended``, by chain, goes to those runs without a row of the inbox; what cannot be
        delivered now is told. ``locked`` are runs as a claim of the same transaction gave them, instead of a claim;
        ``now`` is the storage's time after that, where it is known. ``claim`` gives what the storage was asked for
        before. ``last``: nothing comes behind this in the transaction.

        What it caches is known by its token: when the caller rolls back, the token is not the one on the row and the
        entry is never used.
        """
        report = TurnReport() if report is None else report
        found = Claimed(locked, now=now)
        if not locked:
            claim = claim or partial(self.storage.claim, limit=limit, queues=queues, chains=chains, first=ended.keys())
            found = claim()
        claimed = list(found)
        if not chains and not locked:
            report.suspects = [run.chain_id for run in claimed if run.crashes]
            claimed = [run for run in claimed if not run.crashes]
        report.claimed = [run.chain_id for run in claimed]
        if not claimed:
            self._tell(ended, report)
            return report
        now = found.now or self.storage.now()
        waiting = {run.chain_id for run in claimed if waits(run, now, force=force)}
        inbox = self._begun(found, claimed, waiting, report)
        steps: dict[Advance, Fate] = {}
        for run in claimed:
            step, fate = self._judged(run, inbox[run.chain_id], now, waits=run.chain_id in waiting)
            if fate is Fate.ATOMIC:
                report.atomic.append(run.chain_id)
                continue
            steps[step] = fate
            if fate is Fate.ACTIVATE and run.chain_id in ended:
                step.in_hand = [one for one in ended[run.chain_id] if one.run_id == run.run_id]
        self._facts_of([step.run.run_id for step, fate in steps.items() if fate is Fate.END], report)
        active = [step.run for step, fate in steps.items() if fate is Fate.ACTIVATE]
        entries, errors = self.entries(active, report.facts)
        begun = time.monotonic()
        short, long = self._in_order(steps)
        for index, step in enumerate(short + long):
            at = time.monotonic()
            # of those that have long inboxes the first one goes on whatever the others took
            if index and at - begun > (_LATE if index == len(short) else _HELD if step.in_hand else _BUDGET):
                report.unbegun += 1
                continue
            until = max(begun + _BUDGET, at + _LEAST) if index >= len(short) else begun + _BUDGET
            write = self._written(step, steps[step], entries, errors, report, until=min(until, at + SHARE))
            if write is None:
                continue
            report.writes.append(write)
            report.runs += 1
            if self._inline_atomic and not write.run.failed_tries and due(write.run.atomic_due, step.now):
                report.atomic.append(write.run.chain_id)
        for run_id, entry in entries.items():  # claimed and not begun
            self.cache.put(run_id, entry)
        self._tell(ended, report)
        report.taken = self.storage.write(report.writes, taker=taker, last=last)
        report.tasks = sum(len(write.tasks) for write in report.writes)
        return report

    def _tell(self, ended: Mapping[UUID, Sequence[TaskInHand]], report: TurnReport) -> None:
        """What had ended of runs that were not activated becomes messages: they hear of it another time."""
        if ended:
            heard = {write.run.chain_id for write in report.writes if write.executed}
            self.tasks.tell([one for chain, ends in ended.items() if chain not in heard for one in ends])

    # -- phase 1 ------------------------------------------------------------------------------------------------------

    def _judged(self, run: RunState, messages: Inbox, now: datetime, *, waits: bool) -> tuple[Advance, Fate]:
        """The step of one claimed run, and what becomes of it.

        One that ends while it waits has its parked messages, too, and so has one that is blocked and is tried because
        somebody waits for an answer. One that ended processes is not tried for that: it would end another one; nor is
        one whose code did not come to a wait: all others of the turn would wait for it, as often as anybody asks.
        """
        step = Advance(run, messages, now, inline_atomic=self._inline_atomic)
        if waits and not run.paused and not run.crashes and step.asked and not self._hangs(run):
            messages, waits = self.storage.inbox([run.chain_id])[run.chain_id], False
            step = Advance(run, messages, now, inline_atomic=self._inline_atomic)
        fate = fate_of(run, ends=step.ends, waits=waits, atomic=self._inline_atomic and due(run.atomic_due, now))
        if fate is Fate.END and waits:
            step = Advance(
                run, self.storage.inbox([run.chain_id])[run.chain_id], now, inline_atomic=self._inline_atomic
            )
        return step, fate

    def _hangs(self, run: RunState) -> bool:
        """Whether what blocks it is that its code did not come to a wait."""
        mark = self.storage.blocked_by(run.run_id)
        return mark is not None and mark["code"] == DeadlockDetected.code

    def _written(
        self,
        step: Advance,
        fate: Fate,
        entries: dict[UUID, Cached],
        errors: Mapping[UUID, BaseException],
        report: TurnReport,
        *,
        until: float,
    ) -> RunWrite | None:
        """What is to be written of one run; None: it is left to another worker, or for later."""
        if fate is Fate.ANSWER:
            run_id = step.run.run_id
            return step.closed(self.storage.facts([run_id])[run_id] if step.redelivered else None)
        if fate is Fate.END:
            return step.ended(report.facts[step.run.run_id])
        if fate is Fate.PARK:
            mark = self.storage.blocked_by(step.run.run_id) if step.asked else None
            return step.parked(mark["error"] if mark else "")
        run_id = step.run.run_id
        entry, error = entries.get(run_id), errors.get(run_id)
        if self.left_to_others(step.run, error, report) or (entry is None and error is None):
            return None  # without either it is being rebuilt, or that is for the next turn
        entries.pop(run_id, None)
        return self.activate(step, entry, error, report, until=until)

    def activate(
        self,
        step: Advance,
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
            return self.blocked(step, error, report)
        if report.judge is None and self._judges is not None:
            report.judge = self._judges()
        before = run.values()  # an activation that fails after it began to write into the run must not have moved it
        self._on_activate(run.chain_id)
        try:
            activate = partial(
                step.activate,
                entry,
                token=self.storage.new_token(),
                new_run_id=self.storage.new_run_id,
                results=results,
                limits=self._limits,
                enough=partial(_enough, until if not run.failed_tries else 0.0) if self._hurried else None,
                judge=report.judge,
            )
            write = watchdog.run(
                activate, limit=self._deadlock_timeout, what="run ", of=run.run_id, insists=not self._hurried
            )
        except Exception as exc:  # noqa: BLE001 - whatever it is, it blocks this run alone
            entry.executor.evict()
            cause = exc.__cause__ if isinstance(exc, JudgingFailed) else exc
            if cause is not None and (self.storage.lost(cause) or self.storage.transient(cause)):
                raise cause from cause.__cause__  # of the judge's queries: nobody's fault
            if entry.executor.run_context.blocking_error is exc:
                report.unexpected.append(exc)
            return self.blocked(Advance(RunState.of(before), Inbox(step.messages), step.now), exc, report)
        finally:
            self._on_activate(None)
        self._long.pop(run.chain_id, None)
        if step.left and len(self._long) < _MOST_LONG:
            self._long[run.chain_id] = len(write.consumed) + len(write.settled) + len(write.waiting)
        for refused in write.refused:
            logger.warning(
                "the signal %s to run %s was %s",
                refused.signal,
                run.run_id,
                refused.reason,
                extra={"run_id": str(run.run_id)},
            )
        for message in write.not_taken:
            logger.warning(
                "the %s %s, which was delivered again to run %s, was refused: %s",
                message.kind,
                message.name,
                run.run_id,
                message.code,
                extra={"run_id": str(run.run_id)},
            )
        for reference, fault in step.faults:
            logger.error(
                "run %s: the validator of the update %s failed (reference %s): %s",
                run.run_id,
                fault.name,
                reference,
                error_line(fault.error),
                extra={"run_id": str(run.run_id), "reference": reference},
            )
        if run.closed or write.next_run is not None:
            entry.executor.evict()
        else:
            self.cache.put(run.run_id, entry)
        return write

    def _begun(
        self, found: Claimed, claimed: Sequence[RunState], waiting: set[UUID], report: TurnReport
    ) -> dict[UUID, Inbox]:
        """Inboxes of runs that are claimed, and facts of those that have no history yet: they will be needed.

        Not of those that are blocked for what they cannot read. What came with the claim is not asked again, but of
        runs that wait, which want less of it, and of long inboxes.
        """
        others = {run.chain_id for run in claimed if run.chain_id in waiting or run.chain_id in self._long}
        inbox = found.inbox([run.chain_id for run in claimed if run.chain_id not in others])
        chains = [run.chain_id for run in claimed if run.chain_id not in inbox]
        new = [run.run_id for run in claimed if _is_new(run) and run.chain_id not in waiting]
        if chains or new:
            further, facts = self.storage.begin(chains, waiting=waiting, page=self._page(claimed), runs=new)
            inbox |= further
            report.facts.update(facts)
        return inbox

    def _page(self, runs: Sequence[RunState]) -> int | None:
        """How many messages of a run to read: where handlers take long, not many times what a turn gets done."""
        taken = [self._long[run.chain_id] for run in runs if run.chain_id in self._long]
        return 2 * max(taken) if taken else None

    def _in_order(self, steps: Collection[Advance]) -> tuple[list[Advance], list[Advance]]:
        """Runs whose inbox was too long for one turn come behind the others, who was served last behind all."""
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

    def left_to_others(self, run: RunState, error: BaseException | None, report: TurnReport) -> bool:
        """Whether this process lacks what the run needs and a live worker has it, or may have.

        That is seen the next time.
        """
        if isinstance(error, KeyMissing):
            return self.leaves(run.chain_id)
        facts = report.facts.get(run.run_id)
        if not isinstance(error, UnknownWorkflow) or facts is None:
            return False
        if not self.storage.live_workers_with(facts.workflow, facts.version):
            return False
        self.storage.defer([run.chain_id], seconds=LEFT_FOR)
        return True

    def leaves(self, chain_id: UUID) -> bool:
        """Whether a run that needs a key which this process lacks was left to others, for a moment.

        False when it was left before and is still there: nobody took it. It is to be blocked then, and left alone for
        longer.
        """
        now = time.monotonic()
        self._left = {chain: at for chain, at in self._left.items() if at > now - _REMEMBERED}
        first = chain_id not in self._left
        self._left[chain_id] = now
        self.storage.defer([chain_id], seconds=LEFT_FOR if first else LEFT_FOR * 6)
        return first

    def blocked(self, step: Advance, error: BaseException, report: TurnReport) -> RunWrite:
        run = step.run
        error = self._located(run, error, report)
        report.blocked[run.run_id] = error
        off = isinstance(error, WorkflowSwitchedOff)
        if not run.failed_tries and not off:
            logger.error("run %s is blocked: %s", run.run_id, error_line(error), extra={"run_id": str(run.run_id)})
        waits_for = None
        if isinstance(error, UnknownWorkflow) and (facts := report.facts.get(run.run_id)) is not None:
            waits_for = f"the class {facts.workflow} (version {facts.version})"
        elif isinstance(error, KeyMissing):
            waits_for = f"the key {error.key!r}"
        # a missing class comes with a worker that has it, one that is off is switched on: either sets the run due, and
        # trying would only slow the claim
        before = self.storage.blocked_by(run.run_id) if run.failed_tries else None
        retry = not off and not isinstance(error, UnknownWorkflow)
        return step.blocked(error, retry=retry, waits_for=waits_for, since=before["since"] if before else None)

    def _located(self, run: RunState, error: BaseException, report: TurnReport) -> BaseException:
        """The same where code and history part, with the file and the line: from another replay, of a short history."""
        facts = report.facts.get(run.run_id)
        if type(error) is not NondeterminismError or error.place is not None or facts is None or run.length > LONG:
            return error
        try:
            code = self._resolve(run.chain_id, facts.workflow, facts.version)
            what = f"run {run.run_id}"
            history = self.storage.histories({run.run_id: 0})[run.run_id]
            within = partial(watchdog.run, limit=self._deadlock_timeout, what=what)
            replay(code.definition, history, run=within, strict=self._strict)
        except NondeterminismError as found:
            return found
        except Exception as exc:
            if self.storage.lost(exc) or self.storage.transient(exc):
                raise
        return error


def _is_new(run: RunState) -> bool:
    return run.head_token is None and not run.closed and not run.failed_tries


def _enough(until: float) -> bool:
    """Asked between two messages of an activation, when all its units wait."""
    watchdog.all_blocked()
    return time.monotonic() >= until
