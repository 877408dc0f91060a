"""Which messages the code of a class takes, and what goes with them: read from its source, without running it.

Handlers are given where a phase is opened, inside of ``run``. Who is to write a form for a message needs their
annotations before that, in a process that may never have run one. What the source does not say plainly is left out:
such a message takes any JSON.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import operator
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from types import FunctionType, ModuleType
from typing import Any, Literal, cast

from temporalex_django.authoring import api, handlers
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.core.handing_over import is_unchanged, warn_lossy_value
from temporalex_django.core.payloads import resolve_hints
from temporalex_django.core.phase import Handler, first_annotation

MessageKind = Literal["signal", "update"]
_POSITIONS: tuple[tuple[int, MessageKind], ...] = ((1, "signal"), (2, "update"))
_MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredMessage:
    """A signal or update of a class. ``args_type`` is Any where the code does not say, ``about`` its docstring."""

    kind: MessageKind
    name: str
    args_type: Any = Any
    permission: str | None = None
    about: str = ""


@lru_cache(maxsize=1024)
def declared(cls: type[Workflow]) -> Mapping[tuple[MessageKind, str], DeclaredMessage]:
    """The messages that its phases and waits name, by kind and name. Never raises."""
    found: dict[tuple[MessageKind, str], DeclaredMessage] = {}
    for fn in _functions(cls):
        source = _source(fn)
        if source is not None:
            for message in _Phases(cls, fn, source).messages():
                found.setdefault((message.kind, message.name), message)
    return found


def tell_of_change(
    cls: type[Workflow], kind: MessageKind, name: str, value: Any, made: Any, *, aloud: bool = True
) -> None:
    """Warn, once, of what a message brings as something else: ``made`` is ``value`` as plain data.

    Of one that is not found in the code nothing is known, and nothing said.
    """
    if is_unchanged(made, value):
        return
    said = declared(cast("Any", cls)).get((kind, name))
    if said is not None:
        reader = f"{kind} {name!r} of {cls.name}"
        warn_lossy_value(value, made, lambda: said.args_type, reader=reader, emit_warning=aloud)


def _functions(cls: type[Workflow]) -> Iterator[FunctionType]:
    """The methods of the class, and the functions of its modules that they name."""
    bases = [base for base in cls.__mro__ if issubclass(base, Workflow) and base is not Workflow]
    waiting = [fn for base in bases for fn in vars(base).values() if isinstance(fn, FunctionType)]
    modules = {base.__module__ for base in bases}
    seen: set[FunctionType] = set()
    while waiting:
        fn = waiting.pop(0)
        if fn in seen:
            continue
        seen.add(fn)
        yield fn
        named = (fn.__globals__.get(name) for name in fn.__code__.co_names)
        waiting += [other for other in named if isinstance(other, FunctionType) and other.__module__ in modules]


def _source(fn: FunctionType) -> ast.AST | None:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(fn)))
    except (OSError, TypeError, SyntaxError, ValueError):  # of a console, or of a file that has changed
        return None


class _Phases:
    """One function: what it opens phases with."""

    def __init__(self, cls: type[Workflow], fn: FunctionType, source: ast.AST) -> None:
        self.cls = cls
        self.scope = {**fn.__globals__, **_cells(fn)}
        self.source = source
        self.nested = {
            node.name: node
            for node in ast.walk(source)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name != fn.__name__
        }
        self.assigned: dict[str, ast.expr] = {}
        for node in ast.walk(source):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                self.assigned.setdefault(node.targets[0].id, node.value)

    def messages(self) -> Iterator[DeclaredMessage]:
        for call in ast.walk(self.source):
            if not isinstance(call, ast.Call):
                continue
            called = self.value(call.func)
            if called is api.phase:
                given = {keyword.arg: keyword.value for keyword in call.keywords}
                for position, kind in _POSITIONS:
                    at = call.args[position] if len(call.args) > position else given.get(kind)
                    for name, about in self.entries(at) if at is not None else ():
                        yield self.message(kind, name, about)
            elif called is api.wait_for_signal and call.args and isinstance(call.args[0], ast.Constant):
                yield DeclaredMessage(kind="signal", name=str(call.args[0].value))

    def entries(self, node: ast.expr) -> Iterator[tuple[str, Any]]:
        """Names and what handles them: a part of the source, or a value."""
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if key is None:
                    yield from self.entries(value)
                elif isinstance(name := self.value(key), str):
                    yield name, value
        elif isinstance(node, ast.Name) and node.id in self.assigned:
            yield from self.entries(self.assigned[node.id])
        elif isinstance(found := self.value(node), Mapping):
            yield from ((name, value) for name, value in found.items() if isinstance(name, str))

    def message(self, kind: MessageKind, name: str, handler: Any, permission: str | None = None) -> DeclaredMessage:
        if isinstance(handler, ast.Call) and handler.args:
            called = self.value(handler.func)
            if called in (handlers.update, handlers.signal):
                asked = next((self.value(k.value) for k in handler.keywords if k.arg == "permission"), None)
                return self.message(kind, name, handler.args[0], asked if isinstance(asked, str) else None)
            if called is partial:
                annotation, about = self.of(handler.args[0], bound=len(handler.args) - 1)
                return DeclaredMessage(kind=kind, name=name, args_type=annotation, permission=permission, about=about)
        value = handler if not isinstance(handler, ast.expr) else self.value(handler)
        if isinstance(value, Handler):
            about = inspect.getdoc(value.fn) or ""
            return DeclaredMessage(
                kind=kind, name=name, args_type=value.args_type, permission=value.permission, about=about
            )
        annotation, about = self.of(handler)
        return DeclaredMessage(kind=kind, name=name, args_type=annotation, permission=permission, about=about)

    def of(self, handler: Any, *, bound: int = 0) -> tuple[Any, str]:
        """Annotation of what it is given, behind so many bound arguments, and its docstring."""
        if isinstance(handler, ast.Name) and (inner := self.nested.get(handler.id)) is not None:
            parameters = [*inner.args.posonlyargs, *inner.args.args]
            written = parameters[bound].annotation if len(parameters) > bound else None
            annotation = _MISSING if written is None else self.value(written)
            return Any if annotation is _MISSING else annotation, ast.get_docstring(inner) or ""
        value = self.value(handler) if isinstance(handler, ast.expr) else handler
        if not callable(value):
            return Any, ""
        about = inspect.getdoc(value) or "" if isinstance(value, FunctionType) else ""
        if isinstance(handler, ast.Attribute) and isinstance(handler.value, ast.Name) and handler.value.id == "self":
            bound += not isinstance(inspect.getattr_static(self.cls, handler.attr), (staticmethod, classmethod))
        return (first_annotation(value) if not bound else _annotation(value, bound)), about

    def value(self, node: ast.expr) -> Any:
        """What an expression of names, attributes, texts and annotations stands for; nothing is called."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id="self"):
                return self.cls
            case ast.Name(id=name):
                return self.scope.get(name, getattr(builtins, name, _MISSING))
            case ast.Attribute(value=inner, attr=name):
                owner = self.value(inner)
                return getattr(owner, name, _MISSING) if isinstance(owner, (ModuleType, type)) else _MISSING
        return self.composed(node)

    def composed(self, node: ast.expr) -> Any:
        """An annotation of several parts."""
        match node:
            case ast.Subscript(value=inner, slice=index):
                return _joined(self.value(inner), self.value(index), operator.getitem)
            case ast.Tuple(elts=parts):
                values = tuple(self.value(part) for part in parts)
                return _MISSING if any(value is _MISSING for value in values) else values
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return _joined(self.value(left), self.value(right), operator.or_)
        return _MISSING


def _joined(left: Any, right: Any, join: Callable[[Any, Any], Any]) -> Any:
    """``list[int]`` or ``int | None`` of its parts; an annotation may be nonsense."""
    if (
        left is _MISSING
        or right is _MISSING
        or not (isinstance(left, type) or typing.get_origin(left) or _special(left))
    ):
        return _MISSING
    try:
        return join(left, right)
    except TypeError:
        return _MISSING


def _special(value: Any) -> bool:
    return value is None or type(value).__module__ in ("typing", "typing_extensions")


def _annotation(fn: Any, index: int) -> Any:
    """Of the parameter of that number; Any where there is none."""
    try:
        names = [*inspect.signature(fn).parameters]
    except (TypeError, ValueError):
        return Any
    return resolve_hints(fn).get(names[index], Any) if len(names) > index else Any


def _cells(fn: FunctionType) -> dict[str, Any]:
    """What a function closes over, as far as it is assigned."""
    found = {}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue
    return found
