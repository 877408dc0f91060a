"""The context of an instance, and the frozen data that it contains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn, cast

from temporalex_django.graph.steps import StepRef, key_of

# --- context ----------------------------------------------------------------------------------------------------------
#
# The context of a graph: the data that the run was started with, and the results of its steps.
#
# The results are only ever appended. An instance and the instances that follow from it therefore share one list, and
# completing a step copies nothing, however long the list is.


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


# --- frozen data ------------------------------------------------------------------------------------------------------
#
# Read-only JSON data: the context that steps read and that an instance keeps.
#
# Values go in as plain JSON data and come out equal and frozen at every level: ``data["sku"]`` and ``data.sku`` both
# work. A key never hides a method, because data come from anywhere and code calls ``data.get("sku")``. Such a name is
# the method as an attribute, and the data as a key. An array or an object is both: ``context.initial.items`` is the
# list of the order's items, and can also be called.


def _refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
    """Raise ``TypeError``, in place of every method of ``dict`` and ``list`` that would change the data."""
    raise TypeError("the context of a graph is read-only: return changes with the step's Event")


class Data(dict[str, Any]):
    """A read-only JSON object (a dict). Read a value by attribute or by key: ``data.sku`` or ``data["sku"]``."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        # Python itself looks up dunder names, which data must not answer.
        if not name.startswith("__") and dict.__contains__(self, name):
            return _read_attribute(dict.__getitem__(self, name), self, name, _METHODS)
        return dict.__getattribute__(self, name)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"there is no {name!r} here, only: {', '.join(sorted(dict.keys(self))) or 'nothing'}")

    # A copy is meant to be changed, so it is an ordinary dict.
    def __deepcopy__(self, memo: Any) -> dict[str, Any]:
        return thaw(self)  # type: ignore[no-any-return] # a mapping becomes a dict

    def __reduce__(self) -> Any:
        # Pickles hold plain data, so that they do not depend on this module.
        return dict, (thaw(self),)

    __setattr__ = __delattr__ = __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse


class Items(list[Any]):
    """A read-only JSON array (a list), whose items are read-only, too."""

    __slots__ = ()

    def __deepcopy__(self, memo: Any) -> list[Any]:
        return thaw(self)  # type: ignore[no-any-return] # a sequence becomes a list

    def __reduce__(self) -> Any:
        return list, (thaw(self),)

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse


class _CallableMixin:
    """A base of frozen arrays and objects whose key is also the name of a method, such as ``items``.

    ``context.initial.items`` is the data under the key ``items``; a call of it calls the method ``items``.
    """

    _method: Any

    def __init__(self, value: Any, method: Any) -> None:
        super().__init__(value)  # type: ignore[call-arg] # that of the other base
        # The class refuses ordinary assignment.
        object.__setattr__(self, "_method", method)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return object.__getattribute__(self, "_method")(*args, **kwargs)


class _CallableItems(_CallableMixin, Items):
    pass


class _CallableData(_CallableMixin, Data):
    pass


_METHODS = frozenset(name for name in dir(dict) if not name.startswith("__"))
_METHODS_OF_ENTRIES = frozenset(name for name in dir(Mapping) if not name.startswith("_"))
_CALLABLE_TYPES: dict[type, Any] = {Items: _CallableItems, Data: _CallableData}


def _read_attribute(value: Any, owner: Any, name: str, methods: frozenset[str]) -> Any:
    """Return the value; for one of ``methods`` the method, or an array or object that can be called as it."""
    if name not in methods:
        return value
    method = object.__getattribute__(owner, name)
    callable_type = _CALLABLE_TYPES.get(type(value))
    if callable_type is None:
        return method
    return callable_type(value, method)


def freeze(value: Any) -> Any:
    """Return ``value`` (plain JSON data) as read-only data: a copy, unless it is frozen already."""
    if isinstance(value, (Data, Items)):
        return value
    if isinstance(value, Mapping):
        return Data({key: freeze(part) for key, part in value.items()})
    if isinstance(value, (list, tuple)):
        return Items(freeze(part) for part in value)
    return value


def thaw(value: Any) -> Any:
    """Return frozen data as ordinary dicts and lists."""
    if isinstance(value, dict):
        return {key: thaw(part) for key, part in dict.items(value)}
    if isinstance(value, list):
        return [thaw(part) for part in value]
    return value


class Entries(Mapping[str, Any]):
    """The data of the steps that have ended, as a read-only mapping by step key. Read an entry by attribute or by key.

    ``keys()`` returns the step keys, and ``data_of(key)`` the data of a step. They are called at each access.
    """

    __slots__ = ("_data_of", "_keys")

    def __init__(self, keys: Any, data_of: Any) -> None:
        object.__setattr__(self, "_keys", keys)  # returns the keys in the order in which the steps ended
        object.__setattr__(self, "_data_of", data_of)  # returns the data of a key, or raises KeyError

    def __getitem__(self, key: str) -> Any:
        return object.__getattribute__(self, "_data_of")(key)

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_"):
            try:
                value = object.__getattribute__(self, "_data_of")(name)
            except KeyError:
                pass
            else:
                return _read_attribute(value, self, name, _METHODS_OF_ENTRIES)
        return object.__getattribute__(self, name)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no step with the key {name!r} has ended yet, only: {', '.join(self) or 'none'}")

    def __iter__(self) -> Iterator[str]:
        return iter(object.__getattribute__(self, "_keys")())

    def __len__(self) -> int:
        return len(object.__getattribute__(self, "_keys")())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Mapping):
            return {key: self[key] for key in self} == other
        return NotImplemented

    __hash__ = None  # type: ignore[assignment] # as a dict
    __setattr__ = __delattr__ = _refuse

    def __repr__(self) -> str:
        return repr({key: self[key] for key in self})
