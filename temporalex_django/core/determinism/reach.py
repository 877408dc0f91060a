"""Which code workflow code can reach: from a function or class to all that it names.

Followed are global names (and attributes of project modules under such names), closures, defaults, nested functions,
members of classes with their bases, wrappers, and functions in plain collections. Objects are looked at by their exact
type, never through their attributes: nothing of the user's runs, and what is lazy stays so.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from temporalex_django.core.determinism.rules import is_project, is_project_file

_COLLECTIONS: Final = frozenset({dict, list, tuple, set, frozenset})
_LARGEST: Final = 200  # a larger collection is data
_CACHED: Final = type(functools.cache(len))


def reach(root: Any, known: Any) -> Iterator[tuple[CodeType, dict[str, Any]]]:
    """Code objects of the project with their globals.

    Not those whose ``id`` is in ``known``, nor what only they lead to.
    """
    waiting: list[Any] = [root]
    seen: dict[int, Any] = {}
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen[id(thing)] = thing
        if type(thing) is FunctionType and is_project(thing):
            if id(thing.__code__) not in known:
                codes = list(nested(thing.__code__))
                yield from ((code, thing.__globals__) for code in codes)
                waiting.extend(_named(thing, codes))
            waiting.extend(_held(thing))
        else:
            waiting.extend(_parts(thing))


def nested(code: CodeType) -> Iterator[CodeType]:
    """The code of a function and of all functions, comprehensions and classes inside it."""
    yield code
    for constant in code.co_consts:
        if type(constant) is CodeType:
            yield from nested(constant)


def _parts(thing: Any) -> Iterable[Any]:  # noqa: PLR0911 - one for each kind of thing
    kind = type(thing)
    if kind is FunctionType:  # of a library: it may wrap one of the project
        return _held(thing)
    if kind is MethodType:
        return (thing.__func__,)
    if kind is functools.partial:
        return (thing.func, *thing.args, *thing.keywords.values())
    if kind is _CACHED or kind is staticmethod or kind is classmethod:
        return (thing.__wrapped__,)
    if kind is property:
        return (thing.fget, thing.fset, thing.fdel)
    if kind is functools.cached_property:
        return (thing.func,)
    if issubclass(kind, type):
        return _members(thing)
    if kind in _COLLECTIONS:
        if len(thing) > _LARGEST:
            return ()
        return list(thing.values()) if kind is dict else list(thing)
    return (kind,) if _is_project_class(kind) else ()


def _members(cls: type) -> Iterator[Any]:
    for base in cls.__mro__:
        if _is_project_class(base):
            yield from tuple(vars(base).values())


def _is_project_class(cls: type) -> bool:
    """By the file of its module, else by its functions.

    Classes of modules that are not imported (``exec``) have no file.
    """
    for value in tuple(vars(cls).values()):
        function = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        if type(function) is FunctionType and is_project(function):
            return True
    return False


def _held(function: FunctionType) -> Iterator[Any]:
    """What a function carries along."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()


def _named(function: FunctionType, codes: Iterable[CodeType]) -> Iterator[Any]:
    """What its names stand for: globals, and attributes of project modules."""
    names = {name for code in codes for name in code.co_names}
    for name in sorted(names):
        value = function.__globals__.get(name)
        if type(value) is ModuleType:
            if is_project_file(value.__dict__.get("__file__") or "<builtin>"):
                yield from (value.__dict__[attribute] for attribute in sorted(names) if attribute in value.__dict__)
        elif value is not None:
            yield value
