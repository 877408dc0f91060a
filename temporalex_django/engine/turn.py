"""The turn: claim runs, run their code as far as it can go (activate them), store everything in one transaction.

That transaction takes many runs together and runs nothing but workflow code. Each run with atomic activities then gets
a transaction of its own (``engine.atomic``). If many such runs locked rows of the project in one transaction, they
would deadlock with those of another worker. See decisions 3 and 4.
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
from temporalex_django.core.failures import error_line
from temporalex_django.core.history.events import Job
from temporalex_django.core.history.replay import replay
from temporalex_django.core.messages.sender import Judge
from temporalex_django.core.payloads import codec
from temporalex_django.engine import policy
from temporalex_django.engine.activation import ActivationStep
from temporalex_django.engine.activity_policy import (
    TurnDecision,
    begins_later,
    decide,
    has_come,
    is_parked,
    is_unstarted,
    may_begin_later,
)
from temporalex_django.engine.atomic import AtomicPhase
from temporalex_django.engine.blocked import BlockLog
from temporalex_django.engine.contracts.records import Inbox, RunRecord, RunState, RunWrite, TaskResult, TaskState
from temporalex_django.engine.contracts.storage import RunStorage, TaskStorage
from temporalex_django.engine.executors import Cache, CachedRun, Executors
from temporalex_django.engine.external_messages import FinishedActivity
from temporalex_django.engine.scheduling import EagerClaim
from temporalex_django.engine.turn_report import ClaimedRuns, TurnReport
from temporalex_django.engine.watchdog import watchdog
from temporalex_django.errors import (
    DeadlockDetected,
    JudgingFailed,
    KeyMissing,
    NondeterminismError,
    UnknownWorkflow,
    WorkflowSwitchedOff,
)

logger = logging.getLogger("temporalex_django.engine")


class WorkflowEngine(Executors):
    """The engine that advances the runs of one storage.

    It is thread-safe when the storage is: an executor leaves the cache while a thread uses it.

    - ``budgeted``: an activation stops taking messages when its budget is spent. A long history is not rebuilt in a
      turn, but by ``rebuild``, if ``rebuilds`` is set. Environments deliver everything at once.
    - ``perform(task)`` runs an atomic activity and returns its result. With ``inline_atomic`` False, turns leave atomic
      activities to the process that claims activities; ``advance_atomic`` runs them all the same.
    - ``limits`` are the arguments ``admit_updates`` and ``max_pending`` of every activation.
    - ``resolve(chain, name, version)`` returns the class of a run, by default the registered one.
    - ``unexpected_error`` ("fail" or "block") is for classes that do not set it.
    - ``on_activate`` is called with the chain whose code is about to run, and with None when the code has returned.
    - ``strict_replay`` blocks runs whose code gives another input than their history has; otherwise a warning is
      logged.
    - ``make_judge()`` makes the object that decides in one turn who may send what; it is not kept beyond the turn.
    """

    def __init__(
        self,
        storage: RunStorage,
        tasks: TaskStorage,
        *,
        cache_size: int = 1000,
        cache_bytes: int | None = None,
        payload_limit: int = codec.MAX_BYTES,
        deadlock_timeout: float | None = None,
        inline_atomic: bool = True,
        perform: Callable[[TaskState], TaskResult] | None = None,
        on_activate: Callable[[UUID | None], None] | None = None,
        resolve: Callable[[UUID, str, int], type[workflow.Workflow]] | None = None,
        limits: Mapping[str, Any] = MappingProxyType({}),
        budgeted: bool = True,
        rebuilds: bool = False,
        strict_replay: bool = False,
        make_judge: Callable[[], Judge] | None = None,
        unexpected_error: str = "fail",
        backend: str | None = None,
    ) -> None:
        super().__init__(
            storage,
            cache=Cache(cache_size, max_bytes=cache_bytes),
            payload_limit=payload_limit,
            deadlock_timeout=deadlock_timeout,
            on_activate=on_activate or (lambda _: None),
            resolve=resolve or (lambda _, name, version: workflow.class_for_run(name, version)),
            budgeted=budgeted,
            rebuilds=rebuilds,
            unexpected_error=unexpected_error,
            strict_replay=strict_replay,
            backend=backend,
        )
        self.tasks = tasks
        self._inline_atomic = inline_atomic
        self._atomic_phase = AtomicPhase(self, perform, inline=inline_atomic) if perform is not None else None
        self._block_log = BlockLog()
        self._limits = limits
        self._deferred_at: dict[UUID, float] = {}  # runs that need what this process lacks, and when that was seen
        #: Chains whose inbox was too long for one turn, with the number of messages that the turn took; the latest ones
        #: last.
        self._long_inboxes: dict[UUID, int] = {}
        self._make_judge = make_judge

    def turn(
        self, *, limit: int, queues: Sequence[str], chains: Collection[UUID] = (), force: bool = False
    ) -> TurnReport:
        """Advance due runs in a transaction, then run their atomic activities, each run in a transaction of its own.

        ``limit`` is the number of runs to claim from ``queues``; with ``chains``, exactly these are claimed. ``force``
        tries blocked runs that are not due. Raises errors of the storage; the runs concerned are due again.
        """
        with self.storage.transaction("alone"):
            report = self.advance(limit=limit, queues=queues, chains=chains, force=force, is_last=True)
        for chain_id in report.atomic_chains:
            report.merge(self.advance_atomic(chain_id, queues=queues))
        return report

    @property
    def runs_atomic(self) -> bool:
        """True if a turn of this engine runs atomic activities; False if the process that claims activities does."""
        return self._inline_atomic

    def advance_atomic(self, chain_id: UUID, *, queues: Sequence[str], lock_timeout: float = 0.0) -> TurnReport:
        """Run the due atomic activities of one run and advance the run; see ``AtomicPhase.advance``."""
        assert self._atomic_phase is not None
        return self._atomic_phase.advance(chain_id, queues=queues, lock_timeout=lock_timeout)

    def advance(
        self,
        *,
        limit: int,
        queues: Sequence[str],
        chains: Collection[UUID] = (),
        force: bool = False,
        eager_claim: EagerClaim | None = None,
        report: TurnReport | None = None,
        finished_activities: Mapping[UUID, Sequence[FinishedActivity]] = MappingProxyType({}),
        locked_runs: Sequence[RunState] = (),
        now: datetime | None = None,
        claim_runs: Callable[[], ClaimedRuns] | None = None,
        is_last: bool = False,
    ) -> TurnReport:
        """Claim and advance runs inside the caller's transaction, without atomic activities; return the report.

        ``limit`` is the number of runs to claim from ``queues``; with ``chains``, exactly these are claimed. ``force``
        tries blocked runs that are not due. ``eager_claim`` claims new activities at once. ``report`` is filled in and
        returned, so that the caller knows what was claimed when this raises. ``finished_activities``, by chain, are
        delivered to the runs that this turn activates; the others become messages. ``locked_runs`` are runs that the
        caller has claimed in this transaction, at the time ``now``; then nothing else is claimed. ``claim_runs``
        returns the runs of a claim that was sent before. ``is_last``: no further statement follows.

        Executors are cached before the commit, under the token of their latest activation. When the caller rolls back,
        the row of the run has another token, and the executor is never used (see decision 5).
        """
        if report is None:
            report = TurnReport()
        claim = ClaimedRuns(locked_runs, now=now)
        if not locked_runs:
            claim_runs = claim_runs or partial(
                self.storage.claim, limit=limit, queues=queues, chains=chains, first=finished_activities.keys()
            )
            claim = claim_runs()
        claimed = self._note_claim(claim, report, alone=bool(chains or locked_runs))
        if claimed:
            steps = self._decide_steps(claim, claimed, finished_activities, report, force=force)
            self._apply_steps(steps, report)
        self._deliver_unread(finished_activities, report)
        if claimed:
            report.claimed_tasks = self.storage.write(report.writes, eager_claim=eager_claim, is_last=is_last)
            report.task_count = sum(len(write.tasks) for write in report.writes)
        return report

    @staticmethod
    def _note_claim(claim: ClaimedRuns, report: TurnReport, *, alone: bool) -> list[RunState]:
        """Return the runs to advance, and report all. Runs that have ended a process go ``alone`` (see decision 22)."""
        claimed = list(claim)
        if not alone:
            report.suspect_chains = [run.chain_id for run in claimed if run.crashes]
            claimed = [run for run in claimed if not run.crashes]
        report.claimed_chains = [run.chain_id for run in claimed]
        return claimed

    def _decide_steps(
        self,
        claim: ClaimedRuns,
        claimed: Sequence[RunState],
        finished_activities: Mapping[UUID, Sequence[FinishedActivity]],
        report: TurnReport,
        *,
        force: bool,
    ) -> dict[ActivationStep, TurnDecision]:
        """Read the inboxes and return the decisions. Runs with a due atomic activity go into the report."""
        now = claim.now or self.storage.now()
        waiting = {run.chain_id for run in claimed if is_parked(run, now, force=force)}
        early = {run.chain_id for run in claimed if may_begin_later(run, now)}
        inbox = self._load_inboxes(claim, claimed, waiting, early, report)
        steps: dict[ActivationStep, TurnDecision] = {}
        for run in claimed:
            step, decision = self._decide_step(
                run,
                inbox[run.chain_id],
                now,
                report.records.get(run.run_id),
                parked=run.chain_id in waiting,
                early=run.chain_id in early,
            )
            if decision is TurnDecision.ATOMIC:
                report.atomic_chains.append(run.chain_id)
                continue
            steps[step] = decision
            if decision is TurnDecision.ACTIVATE and run.chain_id in finished_activities:
                step.finished_activities = [
                    activity for activity in finished_activities[run.chain_id] if activity.run_id == run.run_id
                ]
        return steps

    def _apply_steps(self, steps: dict[ActivationStep, TurnDecision], report: TurnReport) -> None:
        """Carry out decisions until the turn's time is used up, long inboxes last. Unstarted runs stay due."""
        self._load_records(
            [step.run.run_id for step, decision in steps.items() if decision is TurnDecision.END], report
        )
        active = [step.run for step, decision in steps.items() if decision is TurnDecision.ACTIVATE]
        entries, errors = self.load_entries(active, report.records)
        short_steps, long_steps = self._split_long(steps)
        clock = TurnClock(short_count=len(short_steps), limited=self._budgeted)
        for index, step in enumerate(short_steps + long_steps):
            step_started_at = time.monotonic()
            if not clock.may_start(index, step_started_at, has_results=bool(step.finished_activities)):
                report.unstarted_count += 1
                continue
            until = clock.deadline(index, step_started_at)
            write = self._write_step(step, steps[step], entries, errors, report, until=until)
            if write is None:
                continue
            report.writes.append(write)
            report.run_count += 1
            if self._inline_atomic and not write.run.failed_tries and has_come(write.run.atomic_due, step.now):
                report.atomic_chains.append(write.run.chain_id)
        for run_id, entry in entries.items():  # claimed, but not started
            self.cache.put(run_id, entry)

    def _deliver_unread(
        self, finished_activities: Mapping[UUID, Sequence[FinishedActivity]], report: TurnReport
    ) -> None:
        """Send results as messages to the runs that this turn did not activate."""
        if finished_activities:
            activated_chains = {write.run.chain_id for write in report.writes if write.executed}
            self.tasks.deliver(
                [
                    activity
                    for chain, activities in finished_activities.items()
                    if chain not in activated_chains
                    for activity in activities
                ]
            )

    # -- phase 1 ------------------------------------------------------------------------------------------------------

    def _decide_step(
        self, run: RunState, messages: Inbox, now: datetime, record: RunRecord | None, *, parked: bool, early: bool
    ) -> tuple[ActivationStep, TurnDecision]:
        """Return the run with its messages, and the decision. With ``early``, the messages are unread ones.

        A waiting run that is to be closed gets all messages. So does a blocked run that is tried because a sender
        waits. A run that ended processes is not tried for that: it would end another one. Nor is a run whose code
        reached no wait: all others would wait for it, as often as a sender asks.
        """
        starts_at = None
        if record is not None and begins_later(run, record.starts_at, now):
            starts_at = record.starts_at
        elif early:
            messages = self.storage.inbox([run.chain_id])[run.chain_id]
        step = ActivationStep(run, messages, now, inline_atomic=self._inline_atomic, starts_at=starts_at)
        if parked and not run.paused and not run.crashes and step.has_waiting_sender and not self._is_deadlocked(run):
            messages, parked = self.storage.inbox([run.chain_id])[run.chain_id], False
            step = ActivationStep(run, messages, now, inline_atomic=self._inline_atomic)
        decision = decide(
            run,
            closing=step.must_close,
            parked=parked,
            atomic=self._inline_atomic and has_come(run.atomic_due, now),
            early=starts_at is not None,
        )
        if decision is TurnDecision.END and parked:
            step = ActivationStep(
                run, self.storage.inbox([run.chain_id])[run.chain_id], now, inline_atomic=self._inline_atomic
            )
        return step, decision

    def _is_deadlocked(self, run: RunState) -> bool:
        """Return True if the run is blocked because its code did not come to an ``await`` for too long."""
        mark = self.storage.block_reason(run.run_id)
        return mark is not None and mark["code"] == DeadlockDetected.code

    def _write_step(
        self,
        step: ActivationStep,
        decision: TurnDecision,
        entries: dict[UUID, CachedRun],
        errors: Mapping[UUID, BaseException],
        report: TurnReport,
        *,
        until: float,
    ) -> RunWrite | None:
        """Carry out one decision. None leaves the run to another turn or worker."""
        if decision is TurnDecision.ANSWER:
            run_id = step.run.run_id
            return step.answer_closed(self.storage.run_records([run_id])[run_id] if step.has_redelivered else None)
        if decision is TurnDecision.END:
            return step.close(report.records[step.run.run_id])
        if decision is TurnDecision.PARK:
            mark = None
            if step.has_waiting_sender and step.starts_at is None:
                mark = self.storage.block_reason(step.run.run_id)
            return step.park(mark["error"] if mark else "")
        run_id = step.run.run_id
        entry, error = entries.get(run_id), errors.get(run_id)
        if self.defer_if_unavailable(step.run, error, report) or (entry is None and error is None):
            return None  # without either it is being rebuilt, or is left to the next turn
        entries.pop(run_id, None)
        return self.activate(step, entry, error, report, until=until)

    def activate(
        self,
        step: ActivationStep,
        entry: CachedRun | None,
        error: BaseException | None,
        report: TurnReport,
        results: Sequence[Job] = (),
        *,
        until: float,
    ) -> RunWrite:
        """Activate a run and return what to write; without an ``entry``, block it because of ``error``."""
        run = step.run
        if entry is None:
            assert error is not None
            return self.block_run(step, error, report)
        if report.judge is None and self._make_judge is not None:
            report.judge = self._make_judge()
        # The activation writes into the state as it goes. One that fails must leave no trace of that.
        state_before = run.as_values()
        self._on_activate(run.chain_id)
        try:
            activate = partial(
                step.activate,
                entry,
                token=self.storage.new_token(),
                new_run_id=self.storage.new_run_id,
                results=results,
                limits=self._limits,
                enough=partial(_is_budget_spent, until if not run.failed_tries else 0.0) if self._budgeted else None,
                judge=report.judge,
            )
            write = watchdog.run(
                activate, limit=self._deadlock_timeout, label="run ", subject=run.run_id, force=not self._budgeted
            )
        except Exception as exc:  # noqa: BLE001 - whatever it is, it blocks this run alone
            entry.executor.evict()
            self._raise_storage_error(exc)
            # Only an error that escaped ``run``, of a class that blocks on such errors, is unexpected (see decision
            # 48).
            if entry.executor.run_context.blocking_error is exc:
                report.unexpected_errors.append(exc)
            return self.block_run(
                ActivationStep(RunState.from_values(state_before), Inbox(step.messages), step.now), exc, report
            )
        finally:
            self._on_activate(None)
        self._long_inboxes.pop(run.chain_id, None)
        if step.has_more_messages and len(self._long_inboxes) < policy.REMEMBERED_RUNS:
            self._long_inboxes[run.chain_id] = len(write.consumed) + len(write.settled) + len(write.waiting)
        _log_refusals(step, write)
        # A closed run is never activated again, and the next run of its chain has an executor of its own.
        if run.closed or write.next_run is not None:
            entry.executor.evict()
        else:
            self.cache.put(run.run_id, entry)
        return write

    def _raise_storage_error(self, error: Exception) -> None:
        """Raise the storage error behind ``error``: it is that of the judge's queries, no fault of the run."""
        cause = error.__cause__ if isinstance(error, JudgingFailed) else error
        if cause is not None and (
            self.storage.is_connection_lost(cause, is_of_code=True) or self.storage.is_transient(cause)
        ):
            raise cause from cause.__cause__

    def _load_inboxes(
        self,
        claim_result: ClaimedRuns,
        claimed: Sequence[RunState],
        waiting: set[UUID],
        early: set[UUID],
        report: TurnReport,
    ) -> dict[UUID, Inbox]:
        """Return inboxes by chain, and add the records of new runs to the report.

        Records of blocked runs are not loaded, since a record may be unreadable. Inboxes that came with the claim are
        not read again, except long ones and those of ``waiting`` and ``early`` runs, of which only unread messages are
        needed.
        """
        others = {run.chain_id for run in claimed if run.chain_id in waiting or run.chain_id in self._long_inboxes}
        # Messages that wait until a run begins are not read with each new one.
        unread_only = waiting | early
        others |= early
        inbox = claim_result.inbox([run.chain_id for run in claimed if run.chain_id not in others])
        chains = [run.chain_id for run in claimed if run.chain_id not in inbox]
        new = [run.run_id for run in claimed if is_unstarted(run) and run.chain_id not in waiting]
        if chains or new:
            other_inboxes, records = self.storage.load_turn_input(
                chains, waiting=unread_only, page=self._page_size(claimed), runs=new
            )
            inbox |= other_inboxes
            report.records.update(records)
        return inbox

    def _page_size(self, runs: Sequence[RunState]) -> int | None:
        """Return twice what a turn has processed of a long inbox, else None. More is wasted if handlers are slow."""
        message_counts = [self._long_inboxes[run.chain_id] for run in runs if run.chain_id in self._long_inboxes]
        if message_counts:
            return 2 * max(message_counts)
        return None

    def _split_long(self, steps: Collection[ActivationStep]) -> tuple[list[ActivationStep], list[ActivationStep]]:
        """Return the runs with short and with long inboxes. The one that was served last comes last."""
        if not self._long_inboxes:
            return list(steps), []
        by_chain = {step.run.chain_id: step for step in steps}
        long_steps = [by_chain.pop(chain) for chain in self._long_inboxes if chain in by_chain]
        return list(by_chain.values()), long_steps

    def _load_records(self, runs: Collection[UUID], report: TurnReport) -> None:
        """Add records of runs whose code will not run again to the report, and drop their executors."""
        for run_id in runs:
            entry = self.cache.take(run_id)
            if entry is not None:
                report.records[run_id] = entry.record
                entry.executor.evict()
        if missing_runs := [run_id for run_id in runs if run_id not in report.records]:
            report.records.update(self.storage.run_records(missing_runs))

    def defer_if_unavailable(self, run: RunState, error: BaseException | None, report: TurnReport) -> bool:
        """Leave a run to another worker for a while if this process lacks its code or an encryption key.

        ``error`` says if it does. Returns True if the run was deferred: for code, only if a live worker has it; for a
        key, whose workers are not known, only once. See decision 28.
        """
        if isinstance(error, KeyMissing):
            return self.defer_for_key(run.chain_id)
        record = report.records.get(run.run_id)
        if not isinstance(error, UnknownWorkflow) or record is None:
            return False
        if not self.storage.has_live_worker(record.workflow, record.version):
            return False
        self.storage.defer([run.chain_id], seconds=policy.DEFER_SECONDS)
        return True

    def defer_for_key(self, chain_id: UUID) -> bool:
        """Leave a run to another worker for a while, because this process lacks an encryption key of its payloads.

        Returns True the first time. Returns False if the run was deferred before and no worker has taken it: the caller
        then blocks the run, and it is deferred for longer.
        """
        now = time.monotonic()
        self._deferred_at = {
            chain: at for chain, at in self._deferred_at.items() if at > now - policy.DEFER_MEMORY_SECONDS
        }
        is_first = chain_id not in self._deferred_at
        self._deferred_at[chain_id] = now
        self.storage.defer([chain_id], seconds=policy.DEFER_SECONDS if is_first else policy.LONG_DEFER_SECONDS)
        return is_first

    def block_run(self, step: ActivationStep, error: BaseException, report: TurnReport) -> RunWrite:
        """Return the ``RunWrite`` that blocks a run because of ``error``; log the error and add it to the report."""
        run = step.run
        error = self._with_location(run, error, report)
        report.block_errors[run.run_id] = error
        is_switched_off = isinstance(error, WorkflowSwitchedOff)
        waits_for, record = None, report.records.get(run.run_id)
        if isinstance(error, UnknownWorkflow) and record is not None:
            waits_for = f"the class {record.workflow} (version {record.version})"
        elif isinstance(error, KeyMissing):
            waits_for = f"the key {error.key!r}"
        if not run.failed_tries and not is_switched_off:
            names = (record.workflow, record.workflow_id) if record is not None else None
            self._block_log.add(run.run_id, names, error, waits_for)
        # A missing class comes with a worker that has it, and one that is off is switched on. Either sets the run due,
        # and trying by time would only slow the claim (see decision 28).
        previous_mark = self.storage.block_reason(run.run_id) if run.failed_tries else None
        retry = not is_switched_off and not isinstance(error, UnknownWorkflow)
        return step.block(
            error, retry=retry, waits_for=waits_for, since=previous_mark["since"] if previous_mark else None
        )

    def _with_location(self, run: RunState, error: BaseException, report: TurnReport) -> BaseException:
        """Add file and line to a nondeterminism error, if another replay of a short history finds them."""
        record = report.records.get(run.run_id)
        if (
            type(error) is not NondeterminismError
            or error.place is not None
            or record is None
            or run.length > policy.LONG_HISTORY
        ):
            return error
        try:
            code = self._resolve(run.chain_id, record.workflow, record.version)
            label = f"run {run.run_id}"
            history = self.storage.histories({run.run_id: 0})[run.run_id]
            watched_run = partial(watchdog.run, limit=self._deadlock_timeout, label=label)
            replay(code.definition, history, run=watched_run, strict=self._strict_replay)
        except NondeterminismError as found:
            return found
        except Exception as exc:
            if self.storage.is_connection_lost(exc, is_of_code=True) or self.storage.is_transient(exc):
                raise
        return error


def _log_refusals(step: ActivationStep, write: RunWrite) -> None:
    run_id = step.run.run_id
    for refused_signal in write.refused_signals:
        logger.warning(
            "the signal %s to run %s was %s",
            refused_signal.signal,
            run_id,
            refused_signal.reason,
            extra={"run_id": str(run_id)},
        )
    for message in write.refused_redeliveries:
        logger.warning(
            "the %s %s, which was delivered again to run %s, was refused: %s",
            message.kind,
            message.name,
            run_id,
            message.code,
            extra={"run_id": str(run_id)},
        )
    for reference, fault in step.validator_faults:
        logger.error(
            "run %s: the validator of the update %s failed (reference %s): %s",
            run_id,
            fault.name,
            reference,
            error_line(fault.error),
            extra={"run_id": str(run_id), "reference": reference},
        )


def _is_budget_spent(until: float) -> bool:
    """Return True if ``until`` (``time.monotonic``) has come. An activation asks it between two messages."""
    watchdog.note_all_blocked()
    return time.monotonic() >= until


# --- turn clock -------------------------------------------------------------------------------------------------------
#
# The time budget of one turn.


class TurnClock:
    """The time budget of one turn: whether its next run may start, and until when that run may take messages.

    Runs with short inboxes come first. There are ``short_count`` of them. A turn that is not ``limited`` starts all
    runs: in a test environment, the order of runs must not depend on how fast the machine is.
    """

    __slots__ = ("_limited", "_short_count", "_started_at")

    def __init__(self, *, short_count: int, limited: bool) -> None:
        self._limited = limited
        self._short_count = short_count
        self._started_at = time.monotonic()

    def may_start(self, index: int, now: float, *, has_results: bool) -> bool:
        """Return True if the run at ``index`` of the turn may start at ``now`` (``time.monotonic``).

        The first run always may. A run to which results of activities are delivered (``has_results``) may start after
        more of the budget is spent than others. So may the first run with a long inbox: such runs come last, so
        otherwise it might never start.
        """
        if has_results:
            budget = policy.TURN_SECONDS_WITH_RESULTS
        else:
            budget = policy.TURN_SECONDS
        if index == self._short_count:
            budget = policy.LATE_SECONDS
        return not index or not self._limited or now - self._started_at <= budget

    def deadline(self, index: int, now: float) -> float:
        """Return the time until which the run at ``index``, which starts at ``now``, may take messages.

        Both are times of ``time.monotonic``.
        """
        until = self._started_at + policy.TURN_SECONDS
        if index >= self._short_count:
            until = max(until, now + policy.MIN_RUN_SECONDS)
        return min(until, now + policy.RUN_SECONDS)
