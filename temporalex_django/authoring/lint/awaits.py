"""Detection of coroutine calls that nobody awaits: calls that stand alone, or whose coroutine is used as a value.

A coroutine that is kept in a variable, returned or passed on may be awaited elsewhere, so it is not reported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

Function = ast.FunctionDef | ast.AsyncFunctionDef


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
        """Yield ``(line, name)`` of each unawaited call in a function and in the functions inside it."""
        inner = self
        if isinstance(node, (Function, ast.Lambda)):
            inner = self._inner_scope(node)
        for part in _used_expressions(node):
            if (call := inner.coroutine_name(part)) is not None:
                yield part.lineno, call
        for child in ast.iter_child_nodes(node):
            yield from inner.read(child)

    def _inner_scope(self, scope: Function | ast.Lambda) -> _UnawaitedCalls:
        """Return a search for the body of the function ``scope``, with the names that are valid in it.

        Names that the function defines hide the same names of the module, and it may define coroutine functions itself.
        """
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
        """Return the name of the function that ``node`` calls if the call makes a coroutine, else None."""
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in self._functions:
                return name
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)) if name in self._methods:
                return f"self.{name}"
        return None


def _used_expressions(node: ast.AST) -> list[ast.expr]:  # noqa: PLR0911 - one for each kind of node
    """Return the expressions in ``node`` whose value is used or dropped at once, so that a coroutine is a mistake."""
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
    """Return True for an ``async def`` without ``yield``, if a call of it returns a coroutine.

    A decorator may return anything. So a decorated function counts only if its decorators keep it as it is.
    """
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
