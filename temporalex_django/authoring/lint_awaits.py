"""Finds calls of coroutine functions that nobody awaits: as a statement of their own, or used as a value.

A coroutine that is kept in a variable, returned or passed on may be awaited elsewhere, so it is left alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

Function = ast.FunctionDef | ast.AsyncFunctionDef


def forgotten(
    body: ast.AST, functions: Mapping[str, Function], methods: Mapping[str, Function]
) -> Iterator[tuple[int, str]]:
    """Line and name of each call in ``body`` of a coroutine function that is used without ``await``.

    ``functions`` are those of the module, ``methods`` those of the class that ``body`` belongs to.
    """
    known = {name for name, node in functions.items() if _gives_coroutine(node)}
    yield from _Calls(known, {name for name, node in methods.items() if _gives_coroutine(node)}).read(body)


class _Calls:
    def __init__(self, functions: set[str], methods: set[str]) -> None:
        self._functions = functions
        self._methods = methods

    def read(self, node: ast.AST) -> Iterator[tuple[int, str]]:
        """In one function, with those that are defined inside it."""
        inner = self
        if isinstance(node, (Function, ast.Lambda)):
            inner = self._inside(node)
        for part in _used(node):
            if (call := inner.coroutine(part)) is not None:
                yield part.lineno, call
        for child in ast.iter_child_nodes(node):
            yield from inner.read(child)

    def _inside(self, scope: Function | ast.Lambda) -> _Calls:
        """A function gives names a meaning of its own, and may define coroutine functions itself."""
        a = scope.args
        own = {arg.arg for arg in (*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg)))}
        defined: set[str] = set()
        for child in _own_nodes(scope):
            match child:
                case ast.Name(id=name, ctx=ast.Store()):
                    own.add(name)
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    own.add(name)
                    if _gives_coroutine(child):
                        defined.add(name)
        return _Calls((self._functions - own) | defined, self._methods)

    def coroutine(self, node: ast.expr) -> str | None:
        """Name of the function whose call ``node`` is, if that gives a coroutine."""
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in self._functions:
                return name
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)) if name in self._methods:
                return f"self.{name}"
        return None


def _used(node: ast.AST) -> list[ast.expr]:  # noqa: PLR0911 - one for each kind of node
    """Expressions of ``node`` whose value it looks at, or throws away."""
    match node:
        case ast.Expr(value=value) | ast.Starred(value=value) | ast.FormattedValue(value=value, conversion=-1 | 115):
            return [value]
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.Assert(test=test):
            return [test]
        case ast.BoolOp(values=values):
            return values[:-1]
        case ast.UnaryOp(operand=operand):
            return [operand]
        case ast.BinOp(left=left, right=right):
            return [left, right]
        case ast.Compare(left=left, ops=ops, comparators=comparators):
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


def _gives_coroutine(node: ast.AST) -> bool:
    """An ``async def`` without ``yield``. A decorator may make anything of it, but for those that keep it as it is."""
    if not isinstance(node, ast.AsyncFunctionDef):
        return False
    kept = all(isinstance(one, ast.Name) and one.id in ("staticmethod", "classmethod") for one in node.decorator_list)
    return kept and not any(isinstance(child, (ast.Yield, ast.YieldFrom)) for child in _own_nodes(node))


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Nodes inside a function, without those of functions and classes in it."""
    waiting = [*ast.iter_child_nodes(scope)]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (Function, ast.Lambda, ast.ClassDef)):
            waiting.extend(ast.iter_child_nodes(node))
