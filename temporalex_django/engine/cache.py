"""A cache of executors (runs in memory) between turns, with the position of each in the history of its run."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from uuid import UUID

from temporalex_django.core.executor import Executor, VisibleState
from temporalex_django.engine.contracts.records import RunRecord

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
