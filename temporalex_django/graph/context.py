"""The context of a graph: the data that the run was started with, and the results of its steps.

The results are only ever appended. An instance and the instances that follow from it therefore share one list, and
completing a step copies nothing, however long the list is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from temporalex_django.graph.frozen_data import Entries, freeze
from temporalex_django.graph.steps import StepRef, key_of


@dataclass(frozen=True, slots=True)
class ExecutionEntry:
    """The record of a step that ended: its event, the time, and the data that it added to the context.

    ``timestamp`` has a time zone. It is None where the caller of the engine passed no time.
    """

    step: StepRef
    event: str
    timestamp: datetime | None
    context_updates: Any = None


class Log:
    """The list of execution entries (ended steps) that an instance shares with the instances derived from it.

    An instance uses only the first ``count`` entries. The instance at the end of the list appends to it in place; any
    other one copies the list first. ``position`` maps step keys to indexes in the list, and ``configs`` maps step
    numbers to configs.
    """

    __slots__ = ("configs", "entries", "position")

    def __init__(self) -> None:
        self.entries: list[ExecutionEntry] = []
        self.position: dict[str, int] = {}  # index of the entry, by key of the step
        self.configs: dict[int, Any] = {}  # by step number

    def fork(self, count: int) -> Log:
        """Return a copy of the first ``count`` entries, to which other entries can be appended."""
        log = Log()
        log.entries = self.entries[:count]
        log.position = {key: index for key, index in self.position.items() if index < count}
        log.configs = dict(self.configs)
        return log

    def with_entry(self, count: int, key: str, entry: ExecutionEntry) -> Log:
        """Return a log with ``entry`` after its first ``count`` entries. ``key`` is the key of the step that ended.

        The result is this log, changed in place, if it has no further entries; otherwise it is a changed copy.
        """
        # Copy if another successor of this instance has appended already, or if the entries behind have this key.
        log = self if len(self.entries) == count and key not in self.position else self.fork(count)
        log.position[key] = count
        log.entries.append(entry)
        return log

    def with_config(self, count: int, number: int, config: Any) -> Log:
        """Return a log whose first ``count`` entries stay and in which step number ``number`` has this ``config``.

        The result is this log, unless the step has another config here already. Then it is a copy with the first
        ``count`` entries.
        """
        # A config may be shared with other instances of this log, so a different one must not overwrite it.
        if number in self.configs:
            if self.configs[number] == config:
                return self
            log = self.fork(count)
        elif config is None:
            return self
        else:
            log = self
        log.configs[number] = config
        return log


class _ContextSource:
    """The data of a ``Context`` that has no instance: it was made from plain values."""

    def __init__(self, initial: Mapping[str, Any], steps: Mapping[str, Any]) -> None:
        self.initial = freeze(initial)
        self.log = Log()
        for key, data in steps.items():
            self.log.with_entry(
                len(self.log.entries), key, ExecutionEntry(cast("StepRef", key), "", None, freeze(data))
            )
        self.count = len(self.log.entries)


class Context:
    """The context of a graph: the data that it started with (``initial``), and the data of its steps (``steps``).

    It is read-only. Read a part of either by attribute or by key.
    """

    __slots__ = ("_source",)

    _source: Any  # has initial, log and count: an instance

    def __init__(self, initial: Mapping[str, Any] | None = None, steps: Mapping[str, Any] | None = None) -> None:
        object.__setattr__(self, "_source", _ContextSource(initial or {}, steps or {}))

    @classmethod
    def of(cls, instance: Any) -> Context:
        """Return the context of ``instance``. The instance is read only when ``initial`` or ``steps`` is read."""
        context = cls.__new__(cls)
        object.__setattr__(context, "_source", instance)
        return context

    @property
    def initial(self) -> Any:
        """The data that the run was started with."""
        return self._source.initial

    @property
    def steps(self) -> Any:
        """The data of the steps that have ended, by step key. A step that ended without data has an empty entry."""
        return Entries(self._step_keys, self._data_of)

    def _step_keys(self) -> list[str]:
        entries = self._source.log.entries[: self._source.count]
        return [entry.step if isinstance(entry.step, str) else key_of(entry.step) for entry in entries]

    def _data_of(self, key: str) -> Any:
        position = self._source.log.position[key]
        # The entry belongs to a successor that shares the log.
        if position >= self._source.count:
            raise KeyError(key)
        return self._source.log.entries[position].context_updates

    def as_dict(self) -> dict[str, Any]:
        """Return the whole context as a dict with the keys ``initial`` and ``steps``, each of them plain data."""
        return {"initial": self.initial, "steps": {key: self._data_of(key) for key in self._step_keys()}}

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Context):
            return self.as_dict() == other.as_dict()
        return NotImplemented

    __hash__ = None  # type: ignore[assignment] # it holds dicts

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"the context of a graph is read-only: {name} cannot be set")

    def __repr__(self) -> str:
        return f"Context(initial={self.initial!r}, steps={self.steps!r})"
