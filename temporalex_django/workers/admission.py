"""The admission of activities to the pool: capacity, a fair queue, and names of queues."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from uuid import UUID

from django.db import Error as DatabaseError

from temporalex_django.authoring import activity, workflow
from temporalex_django.conf import queue_limits
from temporalex_django.core.limits import NO_LIMITS, interleave
from temporalex_django.db import background_tasks
from temporalex_django.db.claims.limited import Switches
from temporalex_django.engine import policy
from temporalex_django.engine.contracts.records import NewTask, TaskResult, TaskState
from temporalex_django.engine.contracts.storage import WorkerStorage
from temporalex_django.engine.scheduling import Capacity, LimitedClaim
from temporalex_django.errors import WorkflowSwitchedOff
from temporalex_django.workers.attempts import Attempt, PooledCall

# --- admission --------------------------------------------------------------------------------------------------------
#
# Admission: the work that a worker may take now, under the limits and switches of queues and activities.
#
# A limit bounds how many activities run at a time or start within a period (its rate). A switch turns a queue, an
# activity or a workflow class off. Activities that a limit or a switch may hold back wait in partitions of their
# queues. In a project without limits and switches, admission costs a look at two empty mappings in each poll.


class Admission:
    """Decides which activities and runs one worker may claim, under the limits and switches that are in force.

    ``queues`` are the queues that the worker processes. ``switches`` has what is switched off or held, as the
    maintenance of the worker read it last.
    """

    def __init__(self, storage: WorkerStorage, queues: Sequence[str]) -> None:
        self._storage = storage
        self._queues = list(queues)
        # When it is worth looking again at a queue from which nothing could be claimed.
        self._next_look: dict[str, float] = {}
        self._full_queues: set[str] = set()  # those whose limits leave nothing for what is due
        self._rate_limited_queues: set[str] = set()  # those of them in which a rate holds something back
        self._skipped_queue = False  # the last claim left out a queue that it had looked at a moment before
        self.lacks_capacity = False  # something might start, but other activities had all the capacity
        self.switches = Switches()

    @property
    def is_active(self) -> bool:
        """True if any queue or activity may have a limit or be switched off, so that claims have to be checked."""
        return bool(queue_limits()) or self._storage.partitioned or self.switches != Switches()

    @property
    def queues(self) -> Sequence[str]:
        """The queues whose runs the worker may take: all of its queues that are not switched off."""
        off = self.switches.queues
        if off:
            return [queue for queue in self._queues if queue not in off]
        return self._queues

    @property
    def unlimited_queues(self) -> Sequence[str]:
        """The queues whose activities the worker may claim without a check of limits."""
        limits, queues = queue_limits(), self._activity_queues
        if limits:
            return [queue for queue in queues if not limits.get(queue, NO_LIMITS).is_limited]
        return queues

    @property
    def _activity_queues(self) -> Sequence[str]:
        """Return the queues that are neither switched off nor held as a whole by an activity."""
        held_queues = self.switches.held_queues
        if held_queues:
            return [queue for queue in self.queues if queue not in held_queues]
        return self.queues

    @property
    def has_waiting(self) -> bool:
        """True if a limit keeps due activities waiting, or may do so in a queue that the last claim skipped."""
        return bool(self._full_queues) or self._skipped_queue

    @property
    def is_rate_limited(self) -> bool:
        """True if some due activities wait for a rate. Such a wait ends by itself, whatever other workers do."""
        return bool(self._rate_limited_queues)

    @property
    def wait_seconds(self) -> float | None:
        """The seconds until a claim from a queue under limits is worth another try, or None if no queue has to wait."""
        waits = [self._next_look[queue] for queue in self._full_queues if queue in self._next_look]
        if waits:
            return max(0.0, min(waits) - time.monotonic())
        return None

    def is_refused(self, task: NewTask) -> bool:
        """Return True if a new activity has to wait until a claim has checked limits and switches.

        Otherwise the worker may claim the activity in the statement that inserts it.
        """
        if task.activity in self.switches.activities or self._is_held(task):
            return True
        return not task.is_local and task.activity in activity.limits_by_name

    def _is_held(self, task: NewTask | TaskState) -> bool:
        """Return True if another activity keeps back the queue or the concurrency key of this one."""
        if not self.switches.holds:
            return False
        return self.switches.held_until(task.queue, task.options.get("concurrency_key")) is not None

    def _release_held(self, tasks: list[TaskState]) -> list[TaskState]:
        """Return the claimed activities that nothing keeps back, and release the others.

        If their key is held, they move to partitions, where they are not claimed again. An activity outside of
        partitions is stored without its key, so this is known only after the claim.
        """
        held_tasks = [task for task in tasks if self._is_held(task)]
        if not held_tasks:
            return tasks
        self._storage.release_unstarted([(task.id, task.attempt, task.owner or 0) for task in held_tasks])
        keyed = [task for task in held_tasks if task.options.get("concurrency_key")]
        if keyed:
            self._storage.partitioned = True
            self._storage.move_to_partitions(keyed)
        held_ids = {task.id for task in held_tasks}
        return [task for task in tasks if task.id not in held_ids]

    def resolve(self, chain: UUID, name: str, version: int) -> type[workflow.Workflow]:
        """Return the class of a run, from the name of its workflow and its version.

        The engine calls it before it runs code of the run. Raises ``WorkflowSwitchedOff`` if the class is switched off,
        and ``UnknownWorkflow`` if this process does not have it.
        """
        del chain
        if name in self.switches.workflows:
            raise WorkflowSwitchedOff(f"{name} is switched off")
        return workflow.class_for_run(name, version)

    def filter_claimed(self, tasks: list[TaskState]) -> list[TaskState]:
        """Return those of the claimed activities that may start now.

        The others are switched off, held, or have limits of their own. They are released and moved to partitions of
        their queues, where ``claim`` finds them under their limits.
        """
        tasks = self._release_held(tasks)
        limited_names = self.switches.activities | activity.limits_by_name.keys()
        misplaced = [task for task in tasks if task.activity in limited_names]
        if not misplaced:
            return tasks
        self._storage.partitioned = True
        self._storage.release_tasks([(task.id, task.attempt, task.owner or 0) for task in misplaced])
        for queue in {task.queue for task in misplaced}:
            self._storage.repartition(queue, {task.activity for task in misplaced if task.queue == queue})
        return [task for task in tasks if task.activity not in limited_names]

    def claim(self, capacity: Capacity, *, owner: int, suspects: bool = False) -> tuple[list[TaskState], int]:
        """Claim activities that are under limits, each queue in a transaction of its own.

        ``capacity`` is that of the worker, from which each claimed activity is subtracted, and ``owner`` the epoch of
        the worker. With ``suspects`` it claims only activities during which a worker has died, even in queues that it
        has just looked at.

        Returns the activities, and the number of those that were moved to another partition of their queue.
        """
        tasks: list[TaskState] = []
        moved, has_partitions, lacks_capacity = 0, suspects, False
        now = time.monotonic()
        self._skipped_queue = False
        for queue in self._storage.queue_order(self._queues_with_limits(), "limited"):
            is_skipped = self._next_look.get(queue, 0.0) > now
            self._skipped_queue = self._skipped_queue or is_skipped
            if not capacity or (is_skipped and not suspects):
                lacks_capacity = lacks_capacity or not capacity or self.lacks_capacity
                has_partitions = True  # not known, so it may have some
                continue
            limited_claim = self._claim_queue(queue, capacity, owner=owner, suspects=suspects)
            if limited_claim is None:
                has_partitions = True
                continue
            tasks += self._release_held(limited_claim.tasks)
            moved += limited_claim.moved
            has_partitions |= limited_claim.has_partitions
            lacks_capacity |= limited_claim.lacks_capacity
            if not suspects:
                self._schedule_look(queue, limited_claim, now)
        self.lacks_capacity = lacks_capacity and not tasks
        self._storage.partitioned = self._storage.partitioned and has_partitions
        return tasks, moved

    def _queues_with_limits(self) -> Sequence[str]:
        """Return the queues that are claimed under limits; all of them if some activities wait in partitions."""
        if self.switches.has_partitions or self._storage.partitioned:
            return self._activity_queues
        limits = queue_limits()
        return [queue for queue in self._activity_queues if limits.get(queue, NO_LIMITS).is_limited]

    def _claim_queue(self, queue: str, capacity: Capacity, *, owner: int, suspects: bool) -> LimitedClaim | None:
        """Claim under limits, in one transaction. None: another worker has locked a limit, so try next time."""
        try:
            return self._storage.claim_limited(
                queue,
                capacity=capacity,
                owner=owner,
                off=self.switches.activities,
                held_keys={key for held_queue, key in self.switches.holds if held_queue == queue and key},
                unpartitioned=queue_limits().get(queue, NO_LIMITS).is_limited,
                suspects=suspects,
            )
        except DatabaseError as exc:
            if not self._storage.is_transient(exc):
                raise
            return None

    def _schedule_look(self, queue: str, limited_claim: LimitedClaim, now: float) -> None:
        """Set when to look at the queue again: later if limits kept activities waiting. ``now`` is monotonic."""
        self._next_look.pop(queue, None)
        self._full_queues.discard(queue)
        self._rate_limited_queues.discard(queue)
        if limited_claim.retry_after is not None:
            self._full_queues.add(queue)
        if limited_claim.is_rate_limited:
            self._rate_limited_queues.add(queue)
        if limited_claim.retry_after is not None or (
            limited_claim.has_due and not limited_claim.tasks and not limited_claim.moved
        ):
            # Another worker may have finished an activity of the queue, which nothing announces: look again after a
            # moment.
            self._next_look[queue] = now + (limited_claim.retry_after or policy.LIMIT_RETRY_SECONDS)

    def reset_waits(self, queues: Sequence[str]) -> None:
        """Let the next claim look at these queues at once: activities of them have ended, which may free a limit."""
        for queue in queues:
            self._next_look.pop(queue, None)


# --- fair queue -------------------------------------------------------------------------------------------------------
#
# Fair queues, of attempts that wait for a thread and of results: workflow classes take turns in them.


class FairQueue:
    """A queue of attempts and calls in which workflow classes take turns, each in its own order. Thread-safe.

    So a few attempts of one class do not wait for all attempts of another one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_class: dict[str, deque[Attempt | PooledCall]] = {}  # the next class first; none is empty

    def __bool__(self) -> bool:
        return bool(self._by_class)

    def extend(self, attempts: Iterable[Attempt | PooledCall]) -> None:
        with self._lock:
            for attempt in attempts:
                self._by_class.setdefault(attempt.workflow, deque()).append(attempt)

    def pop(self) -> Attempt | PooledCall | None:
        """Remove and return the next attempt, or None if there is none."""
        with self._lock:
            for name in self._by_class:
                attempts = self._by_class.pop(name)
                attempt = attempts.popleft()
                if attempts:
                    self._by_class[name] = attempts  # behind the others
                return attempt
            return None

    def waiting_since(self) -> float | None:
        """Return when the attempt that waits longest was claimed (``time.monotonic``), or None if none waits."""
        with self._lock:
            return min((attempts[0].claimed_at for attempts in self._by_class.values()), default=None)


def select_fairly(results: list[TaskResult], limit: int) -> list[TaskResult]:
    """Return the results of at most ``limit`` runs, taking one workflow class after the other.

    All results of a chosen run are returned, and all results of background tasks.
    """
    if len(results) <= limit:
        return results
    by_class: defaultdict[str, list[TaskResult]] = defaultdict(list)
    for result in results:
        by_class[result.task.workflow].append(result)
    chains: set[UUID] = set()
    selected = []
    for result in interleave(by_class.values()):
        chain = result.task.chain_id
        if chain is not None and len(chains) < limit:
            chains.add(chain)
        if chain is None or chain in chains:
            selected.append(result)
    return selected


# --- queue names ------------------------------------------------------------------------------------------------------
#
# Names of queues: the ones that the project uses, and others that no code of the project names.


def all_queues() -> list[str]:
    """Return the names of all queues that the workflows, activities and background tasks of this process use."""
    return sorted({"default", *run_queues(), *(background_tasks.backend_queues() or ())})


def run_queues() -> set[str]:
    """Return the names of the queues that the workflows and activities of this process use."""
    names = {cls.task_queue for cls in workflow.concrete_classes()}
    return names | {act.options_set.queue for act in [*activity.registry.values()] if act.options_set.queue}


def unknown_queues(queues: Iterable[str]) -> dict[str, str | None]:
    """Return those of the queues that no code of the project names, each with a similar known name or None.

    Only options of a call could use them. The result is empty if the project's background tasks may go to any queue.
    """
    known_queues = all_queues()
    if background_tasks.backend_queues() is None:
        return {}
    unknown_queues = [name for name in queues if name not in known_queues]
    return {name: next(iter(get_close_matches(name, known_queues, n=1)), None) for name in unknown_queues}
