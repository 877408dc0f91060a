"""Detection of values whose order or number differs between processes: iteration of sets, ``hash()``, ``id()``.

The hash of a text depends on the hash seed of the process, which a project may fix for all processes. Classes,
functions and objects without a hash of their own hash by their address in memory; only a different order helps there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

Function = ast.FunctionDef | ast.AsyncFunctionDef
#: Functions whose result depends on the order of their argument.
_ORDER_DEPENDENT: Final = frozenset(
    {"list", "tuple", "iter", "enumerate", "zip", "map", "filter", "dict", "reversed", "next"}
)
_SET_TYPES: Final = frozenset({"set", "frozenset"})
_BY_ADDRESS: Final = frozenset({"hash", "id"})
SORT: Final = "sort it by something that is recorded, or use a list or dict"
SEED: Final = "sort it, or give all processes the same hash seed"


@dataclass(frozen=True, slots=True)
class UnorderedUse:
    """A use of a value whose order or number differs between processes, such as a loop over a set.

    ``call`` names the use, and ``advice`` says what to write instead.

    ``seeded`` is True if a common hash seed makes the result equal in all processes.
    """

    line: int
    call: str
    advice: str
    seeded: bool


def unordered_uses(body: ast.AST, local_names: frozenset[str], definitions: frozenset[str]) -> Iterator[UnorderedUse]:
    """Yield the uses in one function, ``body``, whose result differs between processes.

    ``local_names`` are names that are no builtins there, and ``definitions`` are the classes and functions of the
    module.
    """
    sets = _set_names(body)
    for node in ast.walk(body):
        match node:
            case ast.Call(func=ast.Name(id=name), args=[_]) if name in _BY_ADDRESS - local_names:
                yield UnorderedUse(
                    node.lineno, name, "use a key that is recorded, such as an id of your own", seeded=False
                )
            case ast.For(iter=iterated) | ast.comprehension(iter=iterated) | ast.Starred(value=iterated):
                yield from _iteration_uses(iterated, sets, local_names, definitions)
            case ast.Call(func=ast.Name(id=name), args=args) if name in _ORDER_DEPENDENT - local_names:
                for argument in args:
                    yield from _iteration_uses(argument, sets, local_names, definitions)
            case ast.Call(func=ast.Attribute(attr="join" | "extend"), args=[argument]):
                yield from _iteration_uses(argument, sets, local_names, definitions)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="pop"), args=[]) if name in sets:
                yield UnorderedUse(node.lineno, "iteration of a set", SEED, seeded=True)


def _iteration_uses(
    node: ast.expr, sets: frozenset[str], local_names: frozenset[str], definitions: frozenset[str]
) -> Iterator[UnorderedUse]:
    """Yield the use if the expression ``node``, over which code iterates, is a set.

    ``sets`` are local names that hold only sets. ``local_names`` are names that are no builtins there, and
    ``definitions`` are the classes and functions of the module.
    """
    if not (_is_set(node, local_names) or (isinstance(node, ast.Name) and node.id in sets)):
        return
    elements = node.elts if isinstance(node, ast.Set) else ()
    if any(
        isinstance(element, ast.Lambda) or (isinstance(element, ast.Name) and element.id in definitions)
        for element in elements
    ):
        yield UnorderedUse(node.lineno, "iteration of a set of classes or functions", SORT, seeded=False)
    # Small integers hash to themselves, so a set of integer literals has the same order everywhere.
    elif not elements or not all(
        isinstance(element, ast.Constant) and isinstance(element.value, int) for element in elements
    ):
        yield UnorderedUse(node.lineno, "iteration of a set", SEED, seeded=True)


def _is_set(node: ast.expr, local_names: frozenset[str]) -> bool:
    """Return True if the source shows that the value of ``node`` is a set.

    ``local_names`` are names that are no builtins there.
    """
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id=name)):
            return name in _SET_TYPES - local_names
        case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), right=right):
            return _is_set(left, local_names) or _is_set(right, local_names)
    return False


def _set_names(body: ast.AST) -> frozenset[str]:
    """Return the names to which a function assigns nothing but sets."""
    set_names: set[str] = set()
    other_names: set[str] = set()
    for node in ast.walk(body):
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                (set_names if _is_set(value, frozenset()) else other_names).add(name)
    return frozenset(set_names - other_names)
