"""What a run knows: the data it was started with, and what its steps gave.

Both grow by appending only, so an instance and its successors share one list: a completion copies nothing, whatever was
there before.
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
    """A step that ended: with which event, when, with which data.

    The time is aware, and None where the caller of the engine gave none.
    """

    step: StepRef
    event: str
    timestamp: datetime | None
    context_updates: Any = None


class Log:
    """The entries of an instance and of all that came of it.

    Whoever appends behind the last one appends in place, others copy.
    """

    __slots__ = ("configs", "entries", "position")

    def __init__(self) -> None:
        self.entries: list[ExecutionEntry] = []
        self.position: dict[str, int] = {}  # of a key in the entries
        self.configs: dict[int, Any] = {}  # by number of the step

    def fork(self, count: int) -> Log:
        """The first ``count`` entries, to be continued differently."""
        log = Log()
        log.entries = self.entries[:count]
        log.position = {key: index for key, index in self.position.items() if index < count}
        log.configs = dict(self.configs)
        return log

    def with_entry(self, count: int, key: str, entry: ExecutionEntry) -> Log:
        log = self if len(self.entries) == count and key not in self.position else self.fork(count)
        log.position[key] = count
        log.entries.append(entry)
        return log

    def with_config(self, count: int, number: int, config: Any) -> Log:
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
    """What a context stands on when it was made by hand."""

    def __init__(self, initial: Mapping[str, Any], steps: Mapping[str, Any]) -> None:
        self.initial = freeze(initial)
        self.log = Log()
        for key, data in steps.items():
            self.log.with_entry(
                len(self.log.entries), key, ExecutionEntry(cast("StepRef", key), "", None, freeze(data))
            )
        self.count = len(self.log.entries)


class Context:
    """``initial`` and ``steps``, both readable by attribute or key, both read-only."""

    __slots__ = ("_source",)

    _source: Any  # has initial, log and count: an instance

    def __init__(self, initial: Mapping[str, Any] | None = None, steps: Mapping[str, Any] | None = None) -> None:
        object.__setattr__(self, "_source", _ContextSource(initial or {}, steps or {}))

    @classmethod
    def of(cls, instance: Any) -> Context:
        """That of an instance, which is not asked before somebody reads."""
        context = cls.__new__(cls)
        object.__setattr__(context, "_source", instance)
        return context

    @property
    def initial(self) -> Any:
        """The data that the run was started with."""
        return self._source.initial

    @property
    def steps(self) -> Any:
        """Data by step key; a step that ended without data has an empty entry."""
        return Entries(self._step_keys, self._data_of)

    def _step_keys(self) -> list[str]:
        entries = self._source.log.entries[: self._source.count]
        return [entry.step if isinstance(entry.step, str) else key_of(entry.step) for entry in entries]

    def _data_of(self, key: str) -> Any:
        position = self._source.log.position[key]
        if position >= self._source.count:
            raise KeyError(key)
        return self._source.log.entries[position].context_updates

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {"initial": self.initial, "steps": {key: self._data_of(key) for key in self._step_keys()}}

    def __eq__(self, other: object) -> bool:
        return self.as_dict() == other.as_dict() if isinstance(other, Context) else NotImplemented

    __hash__ = None  # type: ignore[assignment] # it holds dicts

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"the context of a graph is read-only: {name} cannot be set")

    def __repr__(self) -> str:
        return f"Context(initial={self.initial!r}, steps={self.steps!r})"
