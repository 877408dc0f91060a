"""``WorkflowEnvironment``, which runs workflows in memory: no database, no Django."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from temporalex_django.conf import get_settings
from temporalex_django.engine import run_closing
from temporalex_django.engine.memory.storage import MemoryRunStorage
from temporalex_django.engine.turn import WorkflowEngine
from temporalex_django.testing.engine_environment import EngineEnvironment
from temporalex_django.testing.environment_base import EPOCH
from temporalex_django.testing.memory_backend import MemoryBackend
from temporalex_django.testing.memory_reads import MemoryReads
from temporalex_django.testing.memory_schedules import MemorySchedules


class WorkflowEnvironment(EngineEnvironment, MemoryReads):
    """A test environment that runs workflows in memory, with a virtual clock that moves by ``advance`` alone.

    The clock starts at ``now`` (aware; by default 2026-01-01T00:00Z).

    ``evict=True`` rebuilds each run from its history before every activation. ``deadlock_timeout`` (real seconds)
    blocks a run whose code does not reach a wait in time; None means no limit.

    ``admit_updates`` and ``max_pending`` drive runs as a Temporal cluster would. With ``admit_updates``, an update that
    arrives while a handler is busy is accepted at once and queued. With ``max_pending``, calls beyond that number of
    unresolved calls are held back.
    """

    def __init__(
        self,
        *,
        evict: bool = False,
        deadlock_timeout: float | None = None,
        admit_updates: bool = False,
        max_pending: int | None = None,
        now: datetime | None = None,
    ) -> None:
        super().__init__()
        limits = {"admit_updates": admit_updates, "max_pending": max_pending}
        self.clock = EPOCH if now is None else now
        self.storage = MemoryRunStorage(self.clock)
        self.backend = backend = MemoryBackend(self)
        self.schedules = MemorySchedules(self, backend)
        self.engine = WorkflowEngine(
            self.storage,
            self.storage,
            cache_size=0 if evict else 1_000_000,
            inline_atomic=False,
            resolve=self.class_of,
            strict_replay=get_settings().STRICT_REPLAY,
            deadlock_timeout=deadlock_timeout,
            limits={name: value for name, value in limits.items() if value},
            budgeted=False,
            make_judge=lambda: self._judge,
        )

    def close(self, chain_id: UUID, status: str, reason: str) -> None:
        """Close the open run of a chain at once with ``status``, and do the work that is due.

        ``status`` is "terminated", or "cancelled" for a graph.
        """
        with self.storage.transaction():
            run = self.storage.claim(limit=1, queues=(), chains=[chain_id])[0]
            # The run is closed without running any of its code, so its executor must not be activated again.
            self.engine.cache.take(run.run_id)
            record = self.storage.run_records([run.run_id])[run.run_id]
            self.storage.write([run_closing.CLOSERS[status](run, reason=reason, now=self.clock, record=record)])
        self.errors.pop(run.run_id, None)
        self._drive()
