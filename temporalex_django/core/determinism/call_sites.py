"""The calls in a code object, and the expression that is called at each of them.

A callee is a dotted global name, a method, or a value that could be anything.

The parts of ``a.b(c)`` that make the callee begin at the same position as the call. That distinguishes them from the
arguments. Without positions (``-X no_debug_ranges``) nothing is known about any call.
"""

from __future__ import annotations

import builtins
import dis
from dataclasses import dataclass, field
from types import CodeType, ModuleType
from typing import Any, Final

_CALLS: Final = frozenset({"CALL", "CALL_KW", "CALL_FUNCTION_EX"})
_NAMES: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_ATTRIBUTES: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
#: Instructions between a callee and its call, at the position of the call. ``GET_ITER`` is there for comprehensions,
#: which Python 3.11 calls with their iterator.
_IGNORED_OPCODES: Final = (
    *("GET_ITER", "GET_AITER"),
    *("PUSH_NULL", "KW_NAMES", "LOAD_CONST", "BUILD_", "LIST_", "DICT_", "COPY_FREE_VARS", "CACHE"),
    *("EXTENDED_ARG", "NOP", "PRECALL", "CALL_INTRINSIC"),
)
MISSING: Final = object()


@dataclass(slots=True)
class CallSite:
    """The callee of one call, as far as the code object tells it.

    ``chain`` is a dotted global name, split at the dots. ``method`` is the name of an attribute of some object. Both
    are None for a value that could be anything. ``is_inline_function`` is True for a function that is defined in place.
    """

    chain: tuple[str, ...] | None = None
    method: str | None = None
    is_inline_function: bool = False


@dataclass(slots=True)
class CallSites:
    """The calls of a code object, by the offset of the instruction, and all dotted global names that it reads."""

    calls: dict[int, CallSite] = field(default_factory=dict)
    names: set[tuple[str, ...]] = field(default_factory=set)


def find_call_sites(code: CodeType) -> CallSites:
    """Return the calls and global names of one code object, not those of functions that are defined in it."""
    call_sites = CallSites()
    # The callee that is under construction, by its position. Each instruction there replaces it.
    open_sites: dict[tuple[int, int], CallSite] = {}
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        start = _start_of(instruction)
        site = open_sites.get(start)
        if name in _NAMES:
            site = CallSite(chain=(str(instruction.argval),))
            call_sites.names.add(site.chain or ())
        elif name in _CALLS:
            call_sites.calls[instruction.offset] = site or CallSite()
            site = CallSite()
        elif name in _ATTRIBUTES:
            chain = (*site.chain, str(instruction.argval)) if site is not None and site.chain else None
            site = CallSite(chain=chain, method=str(instruction.argval))
            if chain:
                call_sites.names.add(chain)
        elif name == "MAKE_FUNCTION":
            site = CallSite(is_inline_function=True)
        elif name.startswith(_IGNORED_OPCODES):
            continue
        else:
            site = CallSite()
        open_sites[start] = site
    return call_sites


def _start_of(instruction: dis.Instruction) -> tuple[int, int]:
    """Return the line and column where the expression of ``instruction`` begins.

    An instruction without a position gets a pair that no other instruction has.
    """
    position = instruction.positions
    if position is None or position.lineno is None or position.col_offset is None:
        return (-1, instruction.offset)
    return position.lineno, position.col_offset


def resolve(chain: tuple[str, ...], names: dict[str, Any]) -> Any:
    """Return the object that a dotted global name (``chain``, split at the dots) refers to, or ``MISSING``.

    ``names`` are the globals of the code. Only attributes of modules and classes are followed.
    """
    first, *rest = chain
    target = names.get(first, vars(builtins).get(first, MISSING))
    for name in rest:
        # ``getattr`` on other objects may run user code.
        if not isinstance(target, (ModuleType, type)):
            return MISSING
        target = getattr(target, name, MISSING)
    return target
