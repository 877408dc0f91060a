"""Where activities run: threads for plain functions, one event loop for async ones.

A plain function of the lane ``process`` has a process of its thread, which waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import datetime, timedelta
from typing import Any

from django.db import close_old_connections, connections

from temporalex_django.authoring import activity
from temporalex_django.core.error_text import error_line
from temporalex_django.db.connections import KEPT_FOR, keep_open
from temporalex_django.engine.capacity import UNMEASURED, Capacity
from temporalex_django.engine.storage import TaskResult, TaskState
from temporalex_django.workers import processes
from temporalex_django.workers.attempts import Attempt
from temporalex_django.workers.line import ThreadLine

log = logging.getLogger("temporalex_django.activity")

#: The most attempts in hand that have not begun: those that take no time are limited by how often the tables are looked
#: at.
_MOST_AHEAD = 400
#: With those that were taken as its own turn scheduled them: they cost no claim, and do not keep others from theirs.
_MOST_IN_HAND = 1_000
#: What is taken ahead is to begin within so many seconds.
_MOMENT = 0.1
#: It is given back when it has not begun within so many: long ones have all the threads.
_OVERDUE = 0.5
#: How much the last end of an activity counts in its pace.
_LAST = 0.2
#: What takes less is quick: one thread has begun the next one before another has woken up. It gets help when something
#: waits for so many seconds all the same.
_QUICK = 0.001
_HELPED = 0.01
#: The pace of what is not known: of a dozen quick ones of different names the last are taken ahead.
_SLOW = 1.0


class Pool:
    """Runs attempts and keeps their ends until somebody has committed them.

    ``on_result`` is called in the thread of the activity when one ends: it should only wake somebody. ``noted(id of a
    task)`` is held while that one runs.
    """

    def __init__(
        self,
        *,
        threads: int,
        tasks: int,
        now: Callable[[], datetime],
        on_result: Callable[[], None],
        noted: Callable[[int], AbstractContextManager[None]] = lambda _: nullcontext(),
        name: str = "activity",
    ) -> None:
        self._threads = threads
        self._tasks = tasks
        self._now = now
        self._on_result = on_result
        self._noted = noted
        self._name = name
        self._lock = threading.Lock()
        # What threads take, one after the other, and a bell for each thread that is to look; False ends one.
        self._waiting = ThreadLine()
        self._bells: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._held: dict[tuple[int, int, int], Attempt] = {}
        self._results: list[TaskResult] = []
        self._alive = 0
        # Of activities that ended here the seconds from one end to the next, a moving average, and when the last one
        # was. Not how long each takes: threads wait for each other, and then that says nothing of how many end in a
        # moment. Those that are the first of their name are counted together, too, and as slow until several were
        # quick.
        self._paces: dict[str, tuple[float, float]] = {UNMEASURED: (_SLOW, 0.0)}
        self._loop_lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._limit = asyncio.Semaphore(tasks)
        self._stopping = self._closed = False

    # --- filling -----------------------------------------------------------------------------------------------------

    def capacity(self) -> Capacity:
        """What it takes now: as many as can begin, and of measured quick activities what begins in a moment."""
        with self._lock:
            if self._stopping:
                return Capacity()
            now, waiting = time.monotonic(), 0
            runs = {result.task.chain_id for result in self._results}
            free, moving = [self._threads, self._tasks], [self._threads, self._tasks]
            slow: set[str] = set()
            for attempt in self._held.values():
                free[attempt.is_async] -= 1
                if not attempt.began:
                    waiting += 1
                    runs.add(attempt.task.chain_id)
                elif now - attempt.began_at > _MOMENT:
                    moving[attempt.is_async] -= 1
                    name = attempt.task.activity
                    slow.add(name if name in self._paces else UNMEASURED)
            ahead = {}
            for name, (pace, _) in self._paces.items():
                if pace < _MOMENT and name not in slow:
                    lane = name in self._asyncs
                    share = max(0, moving[lane]) / (self._threads, self._tasks)[lane]
                    most = int(share * _MOMENT / max(pace, 1e-5)) - waiting
                    if (more := min(most, _MOST_IN_HAND - waiting)) > 0:
                        ahead[name] = more
            if self._waiting and self._bells.empty() and now - (self._waiting.waits_since() or now) > _HELPED:
                self._bells.put(True)
            together = max(0, _MOST_AHEAD - waiting)
            return Capacity(
                threads=max(0, free[0]),
                tasks=max(0, free[1]),
                ahead=ahead,
                together=together,
                own=max(0, _MOST_IN_HAND - waiting - together),
                asyncs=self._asyncs,
                measured=set(self._paces),
                runs=len(runs),
            )

    def submit(self, tasks: list[TaskState]) -> None:
        """A thread for each that may take long, and one for all that are quick: waking one costs more than those do."""
        attempts = [Attempt(task, self._now, is_async=task.activity in self._asyncs) for task in tasks]
        plain = [attempt for attempt in attempts if not attempt.is_async]
        with self._lock:
            self._held.update((attempt.key, attempt) for attempt in attempts)
            quick = sum(self._paces.get(attempt.task.activity, (_SLOW,))[0] < _QUICK for attempt in plain)
        self._waiting.extend(plain)
        for _ in range(len(plain) - quick + bool(quick)):
            if self._alive < self._threads:
                self._add_thread()
            if self._bells.qsize() < self._threads:  # else nobody sleeps who has not been rung for
                self._bells.put(True)
        for attempt in attempts:
            if attempt.is_async:
                self._submit_async(attempt)

    @property
    def _asyncs(self) -> Collection[str]:
        """Names of the activities that run in the event loop."""
        return activity.async_names

    # --- results -----------------------------------------------------------------------------------------------------

    def results(self) -> list[TaskResult]:
        """Ends that nobody has committed yet; they stay until ``forget``."""
        with self._lock:
            return list(self._results)

    def forget(self, results: list[TaskResult]) -> None:
        """These are committed (or were too late)."""
        told = {id(result.task) for result in results}
        with self._lock:
            self._results = [result for result in self._results if id(result.task) not in told]

    @property
    def busy(self) -> int:
        """Attempts in hand, those included whose end is not committed."""
        with self._lock:
            return len(self._held) + len(self._results)

    # --- watching ----------------------------------------------------------------------------------------------------

    def beats(self) -> dict[tuple[int, int, int], Any]:
        """Heartbeats since the last call: the latest details of each attempt."""
        with self._lock:
            return {key: a.details.pop() for key, a in self._held.items() if a.details}

    def begun(self) -> list[TaskState]:
        """Attempts under way of which nobody has ``noted_as_begun`` yet when they began (``started_at``)."""
        with self._lock:
            now, moment = self._now(), time.monotonic()
            found = [a for a in self._held.values() if a.began and not a.recorded]
            for attempt in found:
                attempt.task.started_at = now - timedelta(seconds=moment - attempt.began_at)
            return [attempt.task for attempt in found]

    def noted_as_begun(self, tasks: list[TaskState]) -> None:
        """The rows of these say so now."""
        with self._lock:
            for task in tasks:
                if (attempt := self._held.get((task.id, task.attempt, task.owner or 0))) is not None:
                    attempt.recorded = True

    def overdue(self) -> set[tuple[int, int, int]]:
        """Attempts that could not begin in time: they are let go of here, to be given back uncounted."""
        with self._lock:
            late = time.monotonic() - _OVERDUE
            return self._let_go([a for a in self._held.values() if not a.began and a.taken_at < late])

    def known(self) -> set[tuple[int, int, int]]:
        """All attempts in hand, those included whose end is not committed."""
        with self._lock:
            return {*self._held, *((r.task.id, r.task.attempt, r.task.owner or 0) for r in self._results)}

    def _let_go(self, waiting: list[Attempt]) -> set[tuple[int, int, int]]:
        for attempt in waiting:
            attempt.cancelled = True
            del self._held[attempt.key]
        return {attempt.key for attempt in waiting}

    def keys(self) -> list[tuple[int, int, int]]:
        """The attempts that have begun."""
        with self._lock:
            return [key for key, a in self._held.items() if a.began and not a.cancelled]

    def held(self) -> set[tuple[int, int, int]]:
        """All attempts in hand, begun or not."""
        with self._lock:
            return set(self._held)

    def cancel(self, keys: set[tuple[int, int, int]]) -> None:
        """The result of these would come too late: tell them, and do not wait for their threads any more."""
        with self._lock:
            lost = [a for key, a in self._held.items() if key in keys and not a.cancelled]
            for attempt in lost:
                attempt.cancelled = True
                del self._held[attempt.key]
                if attempt.began and attempt.future is None:
                    self._alive -= 1  # its thread may be stuck for good: another one takes its place
        for attempt in lost:
            if attempt.future is not None:
                attempt.future.cancel()

    # --- ending ------------------------------------------------------------------------------------------------------

    def drain(self, seconds: float) -> set[tuple[int, int, int]]:
        """Take nothing new, wait for what runs at most so long.

        Gives those that have not started, to be given back uncounted.
        """
        with self._lock:
            self._stopping = True
            waiting = self._let_go([a for a in self._held.values() if not a.began])
        deadline = time.monotonic() + seconds
        while self._held and time.monotonic() < deadline:
            time.sleep(0.02)
        return waiting

    def close(self) -> None:
        """Let idle threads and the loop end; stuck ones are daemons."""
        self._stopping = self._closed = True
        for _ in range(self._alive):
            self._bells.put(False)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    # --- threads -----------------------------------------------------------------------------------------------------

    def _add_thread(self) -> None:
        with self._lock:
            self._alive += 1
        threading.Thread(target=self._work, name=f"temporalex-{self._name}", daemon=True).start()

    def _work(self) -> None:
        keep_open()
        try:
            while (attempt := self._next()) is not None:
                if not self._begins(attempt):
                    continue
                apart = processes.call if attempt.task.activity in activity.process_names else None
                with self._noted(attempt.task.id):
                    result = attempt.run(apart=apart)
                close_old_connections()
                if not self._finished(attempt, result):
                    return  # somebody else took this thread's place
        finally:
            processes.close()
            connections.close_all()

    def _next(self) -> Attempt | None:
        """The next attempt for this thread; None ends it. One that has nothing to do holds no connection for long."""
        while True:
            if (attempt := self._waiting.next()) is not None:
                return attempt
            try:
                rung = self._bells.get(timeout=KEPT_FOR)
            except queue.Empty:
                connections.close_all()
                rung = self._bells.get()
            if not rung:
                return None
            close_old_connections()

    def _begins(self, attempt: Attempt) -> bool:
        """Whether it may begin; from then on it has. One step: nobody can give back in between what runs."""
        with self._lock:
            attempt.began, attempt.began_at = not attempt.cancelled, time.monotonic()
            return attempt.began

    def _finished(self, attempt: Attempt, result: TaskResult) -> bool:
        with self._lock:
            if self._held.get(attempt.key) is not attempt:
                return False
            del self._held[attempt.key]
            # also where a heartbeat is on its way: the row may be another attempt's before it comes there
            result.details = attempt.last_details
            self._results.append(result)
            if attempt.task.activity not in self._paces and not attempt.is_async:
                self._measure(UNMEASURED, attempt)
            self._measure(attempt.task.activity, attempt)
        self._on_result()
        return True

    def _measure(self, name: str, attempt: Attempt) -> None:
        now, before = time.monotonic(), self._paces.get(name)
        # since the end before it, but not the time in which none ran
        took = now - max(attempt.began_at, 0.0 if before is None else before[1])
        self._paces[name] = (took if before is None else before[0] + _LAST * (took - before[0]), now)

    # --- the loop ----------------------------------------------------------------------------------------------------

    def _submit_async(self, attempt: Attempt) -> None:
        with self._loop_lock:
            if self._loop is None:
                self._loop, self._limit = asyncio.new_event_loop(), asyncio.Semaphore(self._tasks)
                threading.Thread(target=self._run_loop, args=[self._loop], name="temporalex-loop", daemon=True).start()
            attempt.loop = self._loop
            attempt.future = asyncio.run_coroutine_threadsafe(self._one(attempt, self._limit), self._loop)

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Keep a loop going until the pool closes.

        Activities are arbitrary code, which may stop it or raise through it.
        """
        asyncio.set_event_loop(loop)
        while not self._closed:
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as exc:  # alone of all exceptions these leave a task and its loop
                log.error(
                    "a task that an activity made raised through the event loop; the others go on: %s", error_line(exc)
                )
            except BaseException as exc:  # noqa: BLE001 - as above
                log.error(
                    "an activity broke the event loop of its worker; another one takes its place: %s", error_line(exc)
                )
                self._move_from(loop)
                return
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    def _move_from(self, loop: asyncio.AbstractEventLoop) -> None:
        """What was under way in this loop has failed, what had not begun goes to another one."""
        with self._loop_lock:
            self._loop = None
        with self._lock:
            left = [attempt for attempt in self._held.values() if attempt.loop is loop]
        for attempt in left:
            if attempt.began:
                self._finished(attempt, attempt.failed(RuntimeError("the event loop of its worker broke while it ran")))
            else:
                self._submit_async(attempt)
        with suppress(Exception):
            loop.close()

    async def _one(self, attempt: Attempt, limit: asyncio.Semaphore) -> None:
        async with limit:
            if not self._begins(attempt):
                return
            try:
                with self._noted(attempt.task.id):
                    result = await attempt.run_async()
            except GeneratorExit as exc:
                result = attempt.failed(exc)
            self._finished(attempt, result)


class InlinePool(Pool):
    """Runs each attempt in the thread that submits it: for ``drain`` in tests."""

    def __init__(
        self,
        *,
        now: Callable[[], datetime],
        noted: Callable[[int], AbstractContextManager[None]] = lambda _: nullcontext(),
    ) -> None:
        super().__init__(threads=1, tasks=1, now=now, on_result=lambda: None, noted=noted)

    def submit(self, tasks: list[TaskState]) -> None:
        for task in tasks:
            attempt = Attempt(task, self._now)
            self._held[attempt.key] = attempt
            self._begins(attempt)
            with self._noted(task.id):
                result = attempt.run()
            self._finished(attempt, result)
