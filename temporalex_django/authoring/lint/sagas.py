"""Detection of ``return Err(…)`` inside ``async with api.saga()``: it fails the run, and no compensation runs.

Python does not tell a block which value is returned in it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from temporalex_django.authoring.lint.awaits import Function, own_nodes

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
        """Yield the lines of the returns among ``nodes`` and below them; ``inside`` is True in the block of a saga."""
        for node in nodes:
            if inside and isinstance(node, ast.Return) and node.value is not None and self._is(node.value, _ERR):
                yield node.lineno
            if isinstance(node, ast.AsyncWith):
                is_saga = any(self._is(item.context_expr, _SAGA) for item in node.items)
                yield from self.read(node.body, inside=inside or is_saga)
            else:
                yield from self.read(_nested_statements(node), inside=inside)

    def _is(self, node: ast.expr, called: str, depth: int = 5) -> bool:
        """Return True if the value of ``node`` can be that of a call of ``called``, a dotted name.

        ``depth`` is the number of local names to follow at most: assignments can form a cycle.
        """
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
    """Return the statements directly below a statement, but none of a function or class that it defines."""
    if isinstance(node, Function | ast.ClassDef):
        return []
    nested: list[ast.stmt] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            nested.append(child)
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            nested += child.body
    return nested
