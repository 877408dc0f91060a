"""Checks of the order of statements: what is awaited, which results are dropped, what a saga compensates."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

# --- order ------------------------------------------------------------------------------------------------------------
#
# Detection of values whose order or number differs between processes: iteration of sets, ``hash()``, ``id()``.
#
# The hash of a text depends on the hash seed of the process, which a project may fix for all processes. Classes,
# functions and objects without a hash of their own hash by their address in memory; only a different order helps there.


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
    """Yield the use if ``node``, over which code iterates, is a set. ``local_names`` are no builtins there."""
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
    """Return True if the source shows a set. ``local_names`` are no builtins there."""
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


# --- awaits -----------------------------------------------------------------------------------------------------------
#
# Detection of coroutine calls that nobody awaits: calls that stand alone, or whose coroutine is used as a value.
#
# A coroutine that is kept in a variable, returned or passed on may be awaited elsewhere, so it is not reported.


def unawaited_calls(
    body: ast.AST, functions: Mapping[str, Function], methods: Mapping[str, Function]
) -> Iterator[tuple[int, str]]:
    """Yield ``(line, name)`` of each call of a coroutine function in ``body`` that is used without ``await``.

    ``functions`` are the functions of the module, and ``methods`` are those of the class that ``body`` belongs to, by
    name.
    """
    coroutine_functions = {name for name, node in functions.items() if _returns_coroutine(node)}
    yield from _UnawaitedCalls(
        coroutine_functions, {name for name, node in methods.items() if _returns_coroutine(node)}
    ).read(body)


class _UnawaitedCalls:
    """A search for calls without ``await``.

    ``functions`` and ``methods`` are the names whose calls make a coroutine.
    """

    def __init__(self, functions: set[str], methods: set[str]) -> None:
        self._functions = functions
        self._methods = methods

    def read(self, node: ast.AST) -> Iterator[tuple[int, str]]:
        """Yield ``(line, name)`` of unawaited calls, also in inner functions."""
        inner = self
        if isinstance(node, (Function, ast.Lambda)):
            inner = self._inner_scope(node)
        for part in _used_expressions(node):
            if (call := inner.coroutine_name(part)) is not None:
                yield part.lineno, call
        for child in ast.iter_child_nodes(node):
            yield from inner.read(child)

    def _inner_scope(self, scope: Function | ast.Lambda) -> _UnawaitedCalls:
        """Return a search for the body of ``scope``, whose names hide those of the module."""
        arguments = scope.args
        local_names = {
            arg.arg
            for arg in (
                *arguments.posonlyargs,
                *arguments.args,
                *arguments.kwonlyargs,
                *filter(None, (arguments.vararg, arguments.kwarg)),
            )
        }
        coroutine_names: set[str] = set()
        for child in own_nodes(scope):
            match child:
                case ast.Name(id=name, ctx=ast.Store()):
                    local_names.add(name)
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    local_names.add(name)
                    if _returns_coroutine(child):
                        coroutine_names.add(name)
        return _UnawaitedCalls((self._functions - local_names) | coroutine_names, self._methods)

    def coroutine_name(self, node: ast.expr) -> str | None:
        """Return the name of the called function, if the call makes a coroutine."""
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in self._functions:
                return name
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)) if name in self._methods:
                return f"self.{name}"
        return None


def _used_expressions(node: ast.AST) -> list[ast.expr]:  # noqa: PLR0911 - one for each kind of node
    """Return the expressions whose value is used or dropped at once, so that a coroutine is a mistake."""
    match node:
        case ast.Expr(value=value) | ast.Starred(value=value) | ast.FormattedValue(value=value, conversion=-1 | 115):
            return [value]
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.Assert(test=test):
            return [test]
        # The last operand is the value of the whole expression, and may be awaited there.
        case ast.BoolOp(values=values):
            return values[:-1]
        case ast.UnaryOp(operand=operand):
            return [operand]
        case ast.BinOp(left=left, right=right):
            return [left, right]
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            # `coroutine is None` asks about the object, which is legal; every other comparison takes it for its result.
            by_identity = all(isinstance(op, (ast.Is, ast.IsNot)) for op in ops)
            return [] if by_identity else [left, *comparators]
        case ast.Subscript(value=value) | ast.Attribute(value=value):
            return [value]
        case ast.For(iter=value) | ast.comprehension(iter=value) | ast.YieldFrom(value=value):
            return [value]
        case ast.Match(subject=subject):
            return [subject]
        case ast.Call(func=ast.Name(id="bool" | "int" | "float" | "str" | "len" | "list" | "set" | "sum"), args=args):
            return args
    return []


def _returns_coroutine(node: ast.AST) -> bool:
    """Count a decorated function only if its decorators keep it as it is: others may return anything."""
    if not isinstance(node, ast.AsyncFunctionDef):
        return False
    is_plain = all(
        isinstance(decorator, ast.Name) and decorator.id in ("staticmethod", "classmethod")
        for decorator in node.decorator_list
    )
    return is_plain and not any(isinstance(child, (ast.Yield, ast.YieldFrom)) for child in own_nodes(node))


def own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the syntax nodes inside a function, but not inside functions and classes that are nested in it."""
    pending = [*ast.iter_child_nodes(scope)]
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, (Function, ast.Lambda, ast.ClassDef)):
            pending.extend(ast.iter_child_nodes(node))


# --- sagas ------------------------------------------------------------------------------------------------------------
#
# Detection of ``return Err(…)`` inside ``async with api.saga()``: it fails the run, and no compensation runs.
#
# Python does not tell a block which value is returned in it.


#: The function that returns the dotted name of an expression, or None.
Resolve = Callable[[ast.expr], str | None]

_SAGA = "temporalex_django.api.saga"
_ERR = "temporalex_django.Err"


def uncompensated_returns(body: ast.AST, resolve: Resolve) -> Iterator[int]:
    """Yield the line of each ``return`` of an ``Err`` in ``body`` that leaves the block of a saga.

    ``resolve`` returns the dotted name of an expression of the module.
    """
    for function in ast.walk(body):
        if isinstance(function, Function):
            yield from _Returns(function, resolve).read(function.body, inside=False)


class _Returns:
    """A search in one function, without the functions inside it, whose returns do not leave its blocks."""

    def __init__(self, function: Function, resolve: Resolve) -> None:
        self._resolve = resolve
        # The values of local names, as far as assignments show them.
        self._values: dict[str, list[ast.expr]] = {}
        for node in own_nodes(function):
            match node:
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        if isinstance(target, ast.Name):
                            self._values.setdefault(target.id, []).append(value)
                case (
                    ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                    | ast.NamedExpr(target=ast.Name(id=name), value=value)
                ):
                    self._values.setdefault(name, []).append(value)

    def read(self, nodes: list[ast.stmt], *, inside: bool) -> Iterator[int]:
        """Yield the lines of returns. ``inside`` is True in the block of a saga."""
        for node in nodes:
            if inside and isinstance(node, ast.Return) and node.value is not None and self._is(node.value, _ERR):
                yield node.lineno
            if isinstance(node, ast.AsyncWith):
                is_saga = any(self._is(item.context_expr, _SAGA) for item in node.items)
                yield from self.read(node.body, inside=inside or is_saga)
            else:
                yield from self.read(_nested_statements(node), inside=inside)

    def _is(self, node: ast.expr, called: str, depth: int = 5) -> bool:
        """Return True if the value can be that of a call of ``called``. ``depth`` limits cycles of assignments."""
        match node:
            case ast.Call(func=func):
                return self._resolve(func) == called
            case ast.IfExp(body=body, orelse=orelse):
                return self._is(body, called, depth) or self._is(orelse, called, depth)
            case ast.BoolOp(values=values):
                return any(self._is(value, called, depth) for value in values)
            case ast.NamedExpr(value=value):
                return self._is(value, called, depth)
            case ast.Name(id=name) if depth:
                return any(self._is(value, called, depth - 1) for value in self._values.get(name, ()))
        return False


def _nested_statements(node: ast.AST) -> list[ast.stmt]:
    """Return the statements directly below, but none of a function or class that ``node`` defines."""
    if isinstance(node, Function | ast.ClassDef):
        return []
    nested: list[ast.stmt] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            nested.append(child)
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            nested += child.body
    return nested
