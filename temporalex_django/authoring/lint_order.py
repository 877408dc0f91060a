"""Finds what has another order or number in another process: iteration of sets, ``hash()`` and ``id()``.

Texts hash by the hash seed of the process, which a project may set once for all. Classes, functions and objects without
a hash of their own hash by their place in memory, for which there is no cure but another order.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

Function = ast.FunctionDef | ast.AsyncFunctionDef
#: Functions whose result depends on the order of their argument.
_ORDERED: Final = frozenset({"list", "tuple", "iter", "enumerate", "zip", "map", "filter", "dict", "reversed", "next"})
_SETS: Final = frozenset({"set", "frozenset"})
_BY_PLACE: Final = frozenset({"hash", "id"})
SORT: Final = "sort it by something that is recorded, or use a list or dict"
SEED: Final = "sort it, or give all processes one hash seed"


@dataclass(frozen=True, slots=True)
class Unordered:
    """``seeded``: one hash seed for all processes makes it the same in all of them."""

    line: int
    what: str
    advice: str
    seeded: bool


def unordered(body: ast.AST, local: frozenset[str], places: frozenset[str]) -> Iterator[Unordered]:
    """In one function.

    ``local`` are names that are no builtins there, ``places`` classes and functions of the module.
    """
    sets = _names_of_sets(body)
    for node in ast.walk(body):
        match node:
            case ast.Call(func=ast.Name(id=name), args=[_]) if name in _BY_PLACE - local:
                yield Unordered(
                    node.lineno, name, "use a key that is recorded, such as an id of your own", seeded=False
                )
            case ast.For(iter=iterated) | ast.comprehension(iter=iterated) | ast.Starred(value=iterated):
                yield from _iterated(iterated, sets, local, places)
            case ast.Call(func=ast.Name(id=name), args=args) if name in _ORDERED - local:
                for one in args:
                    yield from _iterated(one, sets, local, places)
            case ast.Call(func=ast.Attribute(attr="join" | "extend"), args=[one]):
                yield from _iterated(one, sets, local, places)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="pop"), args=[]) if name in sets:
                yield Unordered(node.lineno, "iteration of a set", SEED, seeded=True)


def _iterated(
    node: ast.expr, sets: frozenset[str], local: frozenset[str], places: frozenset[str]
) -> Iterator[Unordered]:
    if not (_is_set(node, local) or (isinstance(node, ast.Name) and node.id in sets)):
        return
    elements = node.elts if isinstance(node, ast.Set) else ()
    if any(isinstance(one, ast.Lambda) or (isinstance(one, ast.Name) and one.id in places) for one in elements):
        yield Unordered(node.lineno, "iteration of a set of classes or functions", SORT, seeded=False)
    elif not elements or not all(isinstance(one, ast.Constant) and isinstance(one.value, int) for one in elements):
        yield Unordered(node.lineno, "iteration of a set", SEED, seeded=True)


def _is_set(node: ast.expr, local: frozenset[str]) -> bool:
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id=name)):
            return name in _SETS - local
        case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), right=right):
            return _is_set(left, local) or _is_set(right, local)
    return False


def _names_of_sets(body: ast.AST) -> frozenset[str]:
    """Names that a function gives nothing but sets."""
    found: set[str] = set()
    others: set[str] = set()
    for node in ast.walk(body):
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                (found if _is_set(value, frozenset()) else others).add(name)
    return frozenset(found - others)
