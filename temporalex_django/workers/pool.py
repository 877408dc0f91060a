"""The pool in which activities run: threads for plain functions, one event loop for async ones.

Each plain function with ``lane="process"`` runs in a process that belongs to one thread, which waits for it. An attempt
is identified by its key: (task id, attempt, owner), where the owner is the epoch of the worker.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import datetime, timedelta
from typing import Any

from django.db import close_old_connections, connections

from temporalex_django.authoring import activity
from temporalex_django.core.failures import error_line
from temporalex_django.db.connections import keep_open
from temporalex_django.engine import policy
from temporalex_django.engine.contracts.records import TaskResult, TaskState
from temporalex_django.engine.scheduling import UNMEASURED, Capacity
from temporalex_django.liveness.crash_markers import MarkedWork, MarkerSlot
from temporalex_django.liveness.health import LoadMeter
from temporalex_django.workers import processes
from temporalex_django.workers.admission import FairQueue
from temporalex_django.workers.attempts import Attempt, PooledCall

log = logging.getLogger("temporalex_django.workers")


class Pool:
    """A pool that runs attempts, and keeps their results until they are committed.

    ``threads`` is the number of plain activities that can run at once, and ``tasks`` that of async ones. ``now``
    returns the database's time. ``on_result`` is called in the thread of an activity when it ends, and should only wake
    another thread. ``mark_running(id)`` returns a context manager around the activity with that id. ``name`` is part of
    the names of threads. The attribute ``load`` measures the attempts.
    """

    def __init__(
        self,
        *,
        threads: int,
        tasks: int,
        now: Callable[[], datetime],
        on_result: Callable[[], None],
        mark_running: Callable[[int], AbstractContextManager[None]] = lambda _: nullcontext(),
        name: str = "activity",
    ) -> None:
        self._threads = threads
        self._tasks = tasks
        self._now = now
        self._on_result = on_result
        self._mark_running = mark_running
        self._name = name
        self.load = LoadMeter()
        self._lock = threading.Lock()
        # Attempts for the threads, and a wakeup for each thread that is to look for one; False ends a thread.
        self._waiting = FairQueue()
        self._wakeups: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._attempts: dict[tuple[int, int, int], Attempt] = {}
        self._results: list[TaskResult] = []
        self._calls: set[PooledCall] = set()
        self._alive = 0
        # By activity: the seconds from one result to the next, as a moving average, and the time of the last result.
        # The duration of each would not do: threads wait for each other, and then it does not say how many end in a
        # moment. The first ones of each name are also counted together, and count as slow until several were quick. See
        # decision 35.
        self._paces: dict[str, tuple[float, float]] = {UNMEASURED: (policy.SLOW_PACE, 0.0)}
        self._loop_lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._limit = asyncio.Semaphore(tasks)
        self._stopping = self._closed = False

    # --- filling -----------------------------------------------------------------------------------------------------

    def capacity(self) -> Capacity:
        """Return what the pool can take: activities that can start now, and quick ones that can start soon."""
        with self._lock:
            if self._stopping:
                return Capacity()
            now, waiting = time.monotonic(), 0
            runs = {result.task.chain_id for result in self._results}
            free, responsive = [self._threads, self._tasks], [self._threads, self._tasks]
            free[0] -= len(self._calls)
            responsive[0] -= len(self._calls)
            slow_names: set[str] = set()
            for attempt in self._attempts.values():
                free[attempt.is_async] -= 1
                if not attempt.is_started:
                    waiting += 1
                    runs.add(attempt.task.chain_id)
                elif now - attempt.started_at > policy.PREFETCH_SECONDS:
                    responsive[attempt.is_async] -= 1
                    name = attempt.task.activity
                    slow_names.add(name if name in self._paces else UNMEASURED)
            prefetch = {}
            for name, (pace, _) in self._paces.items():
                if pace < policy.PREFETCH_SECONDS and name not in slow_names:
                    lane = name in self._async_names
                    # Threads that are busy with something slow take no part in what starts in a moment.
                    share = max(0, responsive[lane]) / (self._threads, self._tasks)[lane]
                    most = int(share * policy.PREFETCH_SECONDS / max(pace, 1e-5)) - waiting
                    if (extra := min(most, policy.MAX_PENDING - waiting)) > 0:
                        prefetch[name] = extra
            if (
                self._waiting
                and self._wakeups.empty()
                and now - (self._waiting.waiting_since() or now) > policy.HELP_AFTER
            ):
                self._wakeups.put(True)
            prefetch_limit = max(0, policy.MAX_PREFETCH - waiting)
            return Capacity(
                threads=max(0, free[0]),
                tasks=max(0, free[1]),
                prefetch=prefetch,
                prefetch_limit=prefetch_limit,
                eager_limit=max(0, policy.MAX_PENDING - waiting - prefetch_limit),
                async_names=self._async_names,
                measured_names=set(self._paces),
                busy_runs=len(runs),
            )

    def submit(self, tasks: list[TaskState]) -> None:
        """Start attempts: those that may be slow in a thread each, and all quick ones together in one thread.

        Waking a thread costs more than a quick activity does.
        """
        attempts = [Attempt(task, self._now, is_async=task.activity in self._async_names) for task in tasks]
        plain = [attempt for attempt in attempts if not attempt.is_async]
        with self._lock:
            self._attempts.update((attempt.key, attempt) for attempt in attempts)
            quick = sum(
                self._paces.get(attempt.task.activity, (policy.SLOW_PACE,))[0] < policy.QUICK_SECONDS
                for attempt in plain
            )
        self._waiting.extend(plain)
        for _ in range(len(plain) - quick + bool(quick)):
            if self._alive < self._threads:
                self._add_thread()
            if self._wakeups.qsize() < self._threads:  # otherwise every thread has a wakeup already
                self._wakeups.put(True)
        for attempt in attempts:
            if attempt.is_async:
                self._submit_async(attempt)

    def call(self, workflow: str, function: Callable[[], Any]) -> Future[Any]:
        """Run ``function`` in a thread of the pool, in turn with the attempts, and return the future of its result.

        ``workflow`` is the name of the class for whose run it is called.
        """
        call = PooledCall(workflow, function)
        with self._lock:
            self._calls.add(call)
        self._waiting.extend([call])
        if self._alive < self._threads:
            self._add_thread()
        self._wakeups.put(True)
        return call.future

    @property
    def has_free_thread(self) -> bool:
        """True if a plain function can start at once."""
        with self._lock:
            return len(self._calls) + sum(not attempt.is_async for attempt in self._attempts.values()) < self._threads

    @property
    def _async_names(self) -> Collection[str]:
        return activity.async_names

    # --- results -----------------------------------------------------------------------------------------------------

    def results(self) -> list[TaskResult]:
        """Return the results that are not committed yet; the pool keeps them until ``discard_results``."""
        with self._lock:
            return list(self._results)

    @property
    def has_results(self) -> bool:
        """True if some results are not committed yet."""
        return bool(self._results)

    def discard_results(self, results: list[TaskResult]) -> None:
        """Remove results that were committed, or that arrived too late."""
        committed_ids = {id(result.task) for result in results}
        with self._lock:
            self._results = [result for result in self._results if id(result.task) not in committed_ids]

    @property
    def slots(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The numbers of used and of free places: of the threads, and of the tasks in the event loop."""
        with self._lock:
            started = [attempt.is_async for attempt in self._attempts.values() if attempt.is_started]
            calls = sum(call.future.running() for call in self._calls)
        tasks, threads = sum(started), len(started) - sum(started) + calls
        return (threads, max(0, self._threads - threads)), (tasks, max(0, self._tasks - tasks))

    @property
    def busy(self) -> int:
        """The number of attempts in the pool, including those whose result is not committed."""
        with self._lock:
            return len(self._attempts) + len(self._results) + len(self._calls)

    # --- watching ----------------------------------------------------------------------------------------------------

    def heartbeats(self) -> dict[tuple[int, int, int], Any]:
        """Return the heartbeats since the last call: the latest details of each attempt, encoded, by its key."""
        with self._lock:
            return {key: a.pending_details.pop() for key, a in self._attempts.items() if a.pending_details}

    def progress_reports(self) -> dict[tuple[int, int, int], Mapping[str, Any]]:
        """Return the latest progress of each attempt that has reported any, at most once a second each, by its key."""
        with self._lock:
            return {key: report for key, a in self._attempts.items() if (report := a.take_progress()) is not None}

    def mark_cancelled(self, times: Mapping[tuple[int, int, int], datetime]) -> None:
        """Tell attempts of background tasks that somebody has cancelled them; ``times`` says when, by key."""
        with self._lock:
            for key, at in times.items():
                if (attempt := self._attempts.get(key)) is not None:
                    attempt.task.cancelled_at = at

    def started_tasks(self) -> list[TaskState]:
        """Return the running activities whose start is not stored yet, with ``started_at`` set.

        Call ``mark_start_recorded`` once it is stored.
        """
        with self._lock:
            now, moment = self._now(), time.monotonic()
            attempts = [a for a in self._attempts.values() if a.is_started and not a.is_start_recorded]
            for attempt in attempts:
                attempt.task.started_at = now - timedelta(seconds=moment - attempt.started_at)
            return [attempt.task for attempt in attempts]

    def mark_start_recorded(self, tasks: list[TaskState]) -> None:
        """Record that the starts of these activities are stored in their rows."""
        with self._lock:
            for task in tasks:
                if (attempt := self._attempts.get((task.id, task.attempt, task.owner or 0))) is not None:
                    attempt.is_start_recorded = True

    def overdue(self) -> set[tuple[int, int, int]]:
        """Remove attempts that have waited too long to start, and return their keys for ``release_unstarted``."""
        with self._lock:
            late = time.monotonic() - policy.OVERDUE_SECONDS
            return self._cancel_waiting(
                [a for a in self._attempts.values() if not a.is_started and a.claimed_at < late]
            )

    def all_keys(self) -> set[tuple[int, int, int]]:
        """Return the keys of all attempts, including those whose result is not committed.

        A key is (task id, attempt, owner).
        """
        with self._lock:
            return {*self._attempts, *((r.task.id, r.task.attempt, r.task.owner or 0) for r in self._results)}

    def _cancel_waiting(self, waiting: list[Attempt]) -> set[tuple[int, int, int]]:
        """Cancel unstarted attempts, and return their keys. The caller holds the lock of the pool."""
        for attempt in waiting:
            attempt.cancelled = True
            del self._attempts[attempt.key]
        return {attempt.key for attempt in waiting}

    def running_keys(self) -> list[tuple[int, int, int]]:
        """Return the keys of attempts that have started."""
        with self._lock:
            return [key for key, a in self._attempts.items() if a.is_started and not a.cancelled]

    def pending_keys(self) -> set[tuple[int, int, int]]:
        """Return the keys of all attempts that have not ended, started or not."""
        with self._lock:
            return set(self._attempts)

    def cancel(self, keys: set[tuple[int, int, int]]) -> None:
        """Cancel the attempts with these keys, whose results would come too late.

        The pool does not wait for their threads any more.
        """
        with self._lock:
            lost = [a for key, a in self._attempts.items() if key in keys and not a.cancelled]
            for attempt in lost:
                attempt.cancelled = True
                del self._attempts[attempt.key]
                if attempt.is_started and attempt.future is None:
                    self._alive -= 1  # its thread may be stuck for good: another one replaces it
        for attempt in lost:
            if attempt.future is not None:
                attempt.future.cancel()

    # --- ending ------------------------------------------------------------------------------------------------------

    def drain(self, seconds: float) -> set[tuple[int, int, int]]:
        """Start nothing new, and wait at most ``seconds`` for running activities.

        Returns the keys of attempts that have not started, for ``release_unstarted``.
        """
        with self._lock:
            self._stopping = True
            waiting = self._cancel_waiting([a for a in self._attempts.values() if not a.is_started])
        deadline = time.monotonic() + seconds
        while self._attempts and time.monotonic() < deadline:
            time.sleep(policy.DRAIN_POLL_SECONDS)
        return waiting

    def close(self) -> None:
        """Let idle threads and the event loop end. A thread that is stuck ends with the process."""
        self._stopping = self._closed = True
        for _ in range(self._alive):
            self._wakeups.put(False)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    # --- threads -----------------------------------------------------------------------------------------------------

    def _add_thread(self) -> None:
        with self._lock:
            self._alive += 1
        threading.Thread(target=self._run_thread, name=f"temporalex-{self._name}", daemon=True).start()

    def _run_thread(self) -> None:
        keep_open()
        try:
            while (attempt := self._next_attempt()) is not None:
                if isinstance(attempt, PooledCall):
                    self._run_call(attempt)
                    continue
                if not self._start_attempt(attempt):
                    continue
                call_in_process = None
                if attempt.task.activity in activity.process_names:
                    call_in_process = processes.call_in_process
                with self._mark_running(attempt.task.id):
                    result = attempt.run(call_in_process=call_in_process)
                close_old_connections()
                if not self._finish_attempt(attempt, result):
                    return  # another thread has taken its place
        finally:
            processes.close_process()
            connections.close_all()

    def _run_call(self, call: PooledCall) -> None:
        call.run()
        close_old_connections()
        with self._lock:
            self._calls.discard(call)

    def _next_attempt(self) -> Attempt | PooledCall | None:
        """Wait for work; None ends the thread. A thread that finds none for a moment closes its connections."""
        while True:
            if (attempt := self._waiting.pop()) is not None:
                return attempt
            try:
                was_woken = self._wakeups.get(timeout=policy.KEEP_OPEN_SECONDS)
            except queue.Empty:
                connections.close_all()
                was_woken = self._wakeups.get()
            if not was_woken:
                return None
            close_old_connections()

    def _start_attempt(self, attempt: Attempt) -> bool:
        """Mark as started, or return False if cancelled: in one step, so that no running attempt is released."""
        with self._lock:
            attempt.is_started, attempt.started_at = not attempt.cancelled, time.monotonic()
            return attempt.is_started

    def _finish_attempt(self, attempt: Attempt, result: TaskResult) -> bool:
        """Keep the result; return False if the attempt was cancelled, so that its thread is replaced."""
        with self._lock:
            if self._attempts.get(attempt.key) is not attempt:
                return False
            del self._attempts[attempt.key]
            # Even where a heartbeat is on its way: the row may belong to another attempt before it arrives.
            result.details = attempt.last_details
            result.seconds = time.monotonic() - attempt.started_at
            self._results.append(result)
            if attempt.task.activity not in self._paces and not attempt.is_async:
                self._measure(UNMEASURED, attempt)
            self._measure(attempt.task.activity, attempt)
        self.load.add_attempt(
            attempt.task.queue, result.seconds, slots=self._tasks if attempt.is_async else self._threads
        )
        self._on_result()
        return True

    def _measure(self, name: str, attempt: Attempt) -> None:
        """Update the pace, which is the moving average of the seconds from one result to the next."""
        now, previous = time.monotonic(), self._paces.get(name)
        # Seconds since the result before it, without the time in which none ran.
        elapsed = now - max(attempt.started_at, 0.0 if previous is None else previous[1])
        self._paces[name] = (
            elapsed if previous is None else previous[0] + policy.LAST_WEIGHT * (elapsed - previous[0]),
            now,
        )

    # --- the loop ----------------------------------------------------------------------------------------------------

    def _submit_async(self, attempt: Attempt) -> None:
        """Start an attempt in the event loop, and the loop itself at the first one."""
        with self._loop_lock:
            if self._loop is None:
                self._loop, self._limit = asyncio.new_event_loop(), asyncio.Semaphore(self._tasks)
                threading.Thread(target=self._run_loop, args=[self._loop], name="temporalex-loop", daemon=True).start()
            attempt.loop = self._loop
            attempt.future = asyncio.run_coroutine_threadsafe(self._run_in_loop(attempt, self._limit), self._loop)

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Keep an event loop running. Activities are arbitrary code, which may stop it or raise through it."""
        asyncio.set_event_loop(loop)
        while not self._closed:
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as exc:  # the only exceptions that leave a task and its loop
                log.error(
                    "a task created by an activity raised an exception in the event loop; the other tasks continue: %s",
                    error_line(exc),
                )
            except BaseException as exc:  # noqa: BLE001 - as above
                log.error("an activity broke the event loop of its worker; a new loop replaces it: %s", error_line(exc))
                self._replace_loop(loop)
                return
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    def _replace_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Fail the attempts that ran in a broken event loop, and move unstarted ones to a new one."""
        with self._loop_lock:
            self._loop = None
        with self._lock:
            attempts = [attempt for attempt in self._attempts.values() if attempt.loop is loop]
        for attempt in attempts:
            if attempt.is_started:
                self._finish_attempt(
                    attempt, attempt.failure_result(RuntimeError("the event loop of its worker broke while it ran"))
                )
            else:
                self._submit_async(attempt)
        with suppress(Exception):
            loop.close()

    async def _run_in_loop(self, attempt: Attempt, limit: asyncio.Semaphore) -> None:
        """Run an attempt as soon as ``limit``, the places for async activities, leaves one."""
        async with limit:
            if not self._start_attempt(attempt):
                return
            try:
                with self._mark_running(attempt.task.id):
                    result = await attempt.run_async()
            except GeneratorExit as exc:
                result = attempt.failure_result(exc)
            self._finish_attempt(attempt, result)


class InlinePool(Pool):
    """A pool that runs each attempt in the thread that submits it: for ``run_until_idle`` and tests.

    ``now`` returns the database's time. ``mark_running(id)`` returns a context manager around the activity with that
    id.
    """

    def __init__(
        self,
        *,
        now: Callable[[], datetime],
        mark_running: Callable[[int], AbstractContextManager[None]] = lambda _: nullcontext(),
    ) -> None:
        super().__init__(threads=1, tasks=1, now=now, on_result=lambda: None, mark_running=mark_running)

    def submit(self, tasks: list[TaskState]) -> None:
        for task in tasks:
            attempt = Attempt(task, self._now)
            self._attempts[attempt.key] = attempt
            self._start_attempt(attempt)
            with self._mark_running(task.id):
                result = attempt.run()
            self._finish_attempt(attempt, result)


# --- quarantine -------------------------------------------------------------------------------------------------------
#
# The quarantine: activities that may have ended a worker start one by one, so that the next death shows the cause.
#
# Such an activity is a suspect. It is on *trial* for a moment after it has started. Its worker starts nothing else
# then, and runs no turn, and the marker and the row of the worker name the suspect. It starts in an empty pool or,
# after a while, beside activities that have been running since before that. See decision 22.


class Quarantine:
    """The quarantine of one worker, which decides what the worker may claim and start.

    It costs nothing while there is no suspect: an activity during which a worker has died (``TaskState.crashes``).
    ``mark`` is a slot in the crash marker of this process. ``announce`` commits to the row of the worker the work that
    is about to run; an empty list clears it.
    """

    def __init__(self, pool: Pool, mark: MarkerSlot, *, announce: Callable[[Sequence[MarkedWork]], object]) -> None:
        self._pool = pool
        self._announce = announce
        self._mark = mark
        self._waiting_since: float | None = None  # when suspects became due, as far as is known
        self._trial_key: tuple[int, int, int] | None = None
        self._trial_until = 0.0

    @property
    def is_on_trial(self) -> bool:
        """True while a suspect is on trial: no turn runs, and nothing new starts."""
        if self._trial_key is None:
            return False
        if time.monotonic() < self._trial_until and self._trial_key in self._pool.pending_keys():
            return True
        self._announce(())  # first: where it fails, the trial continues
        self._trial_key = None
        self._mark.clear()
        return False

    @property
    def has_suspects(self) -> bool:
        """True if suspects wait for this pool to be empty, so that the worker should claim nothing else."""
        return self._waiting_since is not None

    @property
    def is_ready(self) -> bool:
        """True if a suspect waits and may be claimed now: the pool is empty, or the suspect has waited for a while."""
        if self._waiting_since is None:
            return False
        return not self._pool.busy or time.monotonic() - self._waiting_since > policy.EMPTY_POOL_SECONDS

    def filter_claimed(
        self, tasks: list[TaskState], *, all_seen: bool = True
    ) -> tuple[list[TaskState], list[tuple[int, int, int]]]:
        """Return the claimed activities that may start now, and the keys (task id, attempt, owner) of those to release.

        The attempts of the latter do not count. A suspect (an activity during which a worker has died) that may start
        is put on trial: nothing else starts beside it. ``all_seen`` False means that others may wait under limits, so
        that ``tasks`` without a suspect do not prove that there is none.
        """
        suspects = [task for task in tasks if task.crashes]
        if not suspects:
            if all_seen and self.is_ready and not tasks:
                self._waiting_since = None  # another worker has claimed them
            return tasks, []
        safe_tasks = [task for task in tasks if not task.crashes]
        if safe_tasks or (self._pool.busy and not self.is_ready):
            if self._waiting_since is None:
                self._waiting_since = time.monotonic()
            return safe_tasks, [_task_key(task) for task in suspects]
        first, *others = suspects
        # The row is written before the activity starts, so that others know the suspect even if no marker survives.
        self._announce([MarkedWork("trial", first.id)])
        self._trial_key = _task_key(first)
        self._trial_until = time.monotonic() + min(
            policy.FIRST_TRIAL * 2 ** max(0, first.attempt - 2), policy.LONGEST_TRIAL
        )
        self._mark.record("trial", first.id)
        self._waiting_since = time.monotonic()  # there may be more of them
        return [first], [_task_key(task) for task in others]


def _task_key(task: TaskState) -> tuple[int, int, int]:
    return (task.id, task.attempt, task.owner or 0)
