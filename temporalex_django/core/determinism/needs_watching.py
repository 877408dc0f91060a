"""The test whether code of the project needs the determinism guard at all.

It exists for Python 3.11, where the guard is slow. Code that calls only functions that are known to be harmless does
not need the guard. Code is suspect in these cases:

- it names something that the guard refuses;
- it calls a value that could be anything (``fn()``);
- it calls a method whose name belongs neither to a built-in type nor to a function that is tested with it.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Iterable
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any, Final

from temporalex_django.core.determinism.call_sites import MISSING, find_call_sites, resolve
from temporalex_django.core.determinism.rules import (
    READS_CLOCK,
    is_environment,
    is_project,
    rule_of_builtin,
    rule_of_class,
    rule_of_code,
)

_PLAIN: Final = (str, bytes, int, float, list, dict, tuple, set, frozenset, decimal.Decimal)
_PLAIN_METHODS: Final = (
    frozenset(name for kind in (*_PLAIN, dt.datetime, dt.timedelta) for name in dir(kind) if not name.startswith("_"))
    - READS_CLOCK
)


def needs_watching(codes: Iterable[tuple[CodeType, dict[str, Any]]]) -> bool:
    """Return True if one of the code objects is suspect, so that the guard must watch them.

    ``codes`` are pairs of a code object and its globals. Pass all code that one function or class reaches. A call of a
    method that is defined in this code is then known to be harmless by its name.
    """
    codes = list(codes)
    # A method of the project's own classes is safe by its name, because its code is tested in the same call.
    methods = _PLAIN_METHODS | {code.co_name for code, _ in codes} - READS_CLOCK
    return any(_is_suspect(code, names, methods) for code, names in codes)


def _is_suspect(code: CodeType, names: dict[str, Any], methods: frozenset[str]) -> bool:
    """Return True if ``code`` names something refused, or calls something that is not known to be harmless.

    ``names`` are its globals, and ``methods`` the names of methods that are harmless.
    """
    call_sites = find_call_sites(code)
    if any(_is_refused(resolve(chain, names)) for chain in call_sites.names):
        return True
    for site in call_sites.calls.values():
        if site.is_inline_function or (site.chain and resolve(site.chain, names) is not MISSING):
            continue
        if site.method is None or site.method not in methods:
            return True
    return False


def _is_refused(value: Any) -> bool:
    kind = type(value)
    if kind is MethodType:
        value, kind = value.__func__, type(value.__func__)
    if kind is FunctionType:
        return not is_project(value) and rule_of_code(value.__code__, value.__globals__.get("__name__", "")) is not None
    if kind is BuiltinFunctionType:
        return rule_of_builtin(value) is not None
    if issubclass(kind, type):
        return rule_of_class(value) is not None or value.__module__.partition(".")[0] == "pathlib"
    return is_environment(value)
