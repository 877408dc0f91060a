"""Executors kept in memory between turns. Each entry carries the ``head`` token of the activation that it stands at."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from temporalex_django.core.executor import Executor
from temporalex_django.runtime.storage import RunFacts


@dataclass(slots=True)
class Cached:
    """An executor and where it stands.

    ``head_at`` is the number of the event that carries ``head``; ``length`` how many events the executor has seen. ``shown`` is what the
    row of the run says at present, so that only changes are written; None when not known. ``crashes``: how many the run had when this
    one was built.
    """

    executor: Executor
    facts: RunFacts
    head: int | None
    head_at: int
    length: int
    shown: dict[str, Any] | None = None
    crashes: int = 0


class Cache:
    """Bounded, least recently used goes first. An entry is taken out during its turn, so two threads never share one."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[UUID, Cached] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, run_id: UUID) -> Cached | None:
        with self._lock:
            return self._entries.pop(run_id, None)

    def put(self, run_id: UUID, entry: Cached) -> None:
        if self._size <= 0:
            entry.executor.evict()
            return
        evicted = []
        with self._lock:
            replaced = self._entries.pop(run_id, None)
            self._entries[run_id] = entry
            if replaced is not None and replaced.executor is not entry.executor:
                evicted.append(replaced)
            while len(self._entries) > self._size:
                evicted.append(self._entries.popitem(last=False)[1])
        for old in evicted:
            old.executor.evict()

    def clear(self) -> None:
        with self._lock:
            entries, self._entries = list(self._entries.values()), OrderedDict()
        for entry in entries:
            entry.executor.evict()

    def __len__(self) -> int:
        return len(self._entries)
