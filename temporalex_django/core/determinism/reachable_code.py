"""The code that workflow code can reach, from a function or class to everything that it names.

The search follows global names (and attributes of project modules under such names), closures, defaults, nested
functions, members of classes with their bases, wrappers, and functions in plain collections. It decides by the exact
type of an object and never reads its attributes. So no user code runs, and lazy objects stay lazy.
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


def reachable_code(root: Any, excluded_ids: Any) -> Iterator[tuple[CodeType, dict[str, Any]]]:
    """Yield ``(code object, its globals)`` for all project code that a function or class ``root`` reaches.

    ``excluded_ids`` has the ``id`` of code objects to leave out, together with the code that only they lead to.
    """
    waiting: list[Any] = [root]
    # The values keep the objects alive, so that no id is reused during the search.
    seen: dict[int, Any] = {}
    while waiting:
        target = waiting.pop()
        if id(target) in seen:
            continue
        seen[id(target)] = target
        if type(target) is FunctionType and is_project(target):
            if id(target.__code__) not in excluded_ids:
                codes = list(nested_code(target.__code__))
                yield from ((code, target.__globals__) for code in codes)
                waiting.extend(_named_objects(target, codes))
            waiting.extend(_captured_objects(target))
        else:
            waiting.extend(_parts(target))


def nested_code(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function and of all functions, comprehensions and classes inside it."""
    yield code
    for constant in code.co_consts:
        if type(constant) is CodeType:
            yield from nested_code(constant)


def _parts(target: Any) -> Iterable[Any]:  # noqa: PLR0911 - one for each kind of thing
    kind = type(target)
    if kind is FunctionType:  # of a library: it may wrap one of the project
        return _captured_objects(target)
    if kind is MethodType:
        return (target.__func__,)
    if kind is functools.partial:
        return (target.func, *target.args, *target.keywords.values())
    if kind is _CACHED or kind is staticmethod or kind is classmethod:
        return (target.__wrapped__,)
    if kind is property:
        return (target.fget, target.fset, target.fdel)
    if kind is functools.cached_property:
        return (target.func,)
    if issubclass(kind, type):
        return _members(target)
    if kind in _COLLECTIONS:
        if len(target) > _LARGEST:
            return ()
        return list(target.values()) if kind is dict else list(target)
    return (kind,) if _is_project_class(kind) else ()


def _members(cls: type) -> Iterator[Any]:
    for base in cls.__mro__:
        if _is_project_class(base):
            yield from tuple(vars(base).values())


def _is_project_class(cls: type) -> bool:
    """Return True if one of the functions of ``cls`` is code of the project.

    A class of a module that is not imported (``exec``) has no file, so its functions decide.
    """
    for value in tuple(vars(cls).values()):
        function = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        if type(function) is FunctionType and is_project(function):
            return True
    return False


def _captured_objects(function: FunctionType) -> Iterator[Any]:
    """Yield the objects that a function holds: its closure and its defaults."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()


def _named_objects(function: FunctionType, codes: Iterable[CodeType]) -> Iterator[Any]:
    """Yield the objects that the names in ``codes`` refer to: globals, and attributes of project modules.

    ``codes`` are the code objects of ``function`` and of the functions inside it.
    """
    # Sorted below, so that the order of the search does not depend on the hash seed.
    names = {name for code in codes for name in code.co_names}
    for name in sorted(names):
        value = function.__globals__.get(name)
        if type(value) is ModuleType:
            if is_project_file(value.__dict__.get("__file__") or "<builtin>"):
                yield from (value.__dict__[attribute] for attribute in sorted(names) if attribute in value.__dict__)
        elif value is not None:
            yield value
