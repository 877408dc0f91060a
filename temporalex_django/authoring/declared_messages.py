"""Messages that a workflow class declares, with their handlers."""

from __future__ import annotations

import ast
import builtins
import inspect
import operator
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from tokenize import TokenError
from types import FunctionType, ModuleType
from typing import Any, Literal, TypeVar, cast

from temporalex_django.authoring import api
from temporalex_django.authoring.foreign_options import HANDLER, answers_foreign_options
from temporalex_django.authoring.requests import RunRequest
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.core import names
from temporalex_django.core.failures import source_line
from temporalex_django.core.messages.phase import (
    Handler,
    accepts_arguments,
    handler_types,
    require_storable_answer,
    self_problem,
)
from temporalex_django.core.payloads import codec
from temporalex_django.core.payloads.codec import is_exact, resolve_hints
from temporalex_django.core.payloads.external_types import unreadable_reason
from temporalex_django.core.payloads.round_trip import check_reader
from temporalex_django.core.results import answer_type_of
from temporalex_django.errors import PayloadError, WorkflowDefinitionError

# --- declared messages ------------------------------------------------------------------------------------------------
#
# The messages that a workflow class takes, with their types, read from its source without running it.
#
# Handlers are passed where a phase is opened, inside ``run``. A form for a message needs their annotations earlier, in
# a process that may never have run the class. Messages whose names the source does not show are left out. Messages
# whose types it does not show take any JSON.


T = TypeVar("T")

MessageKind = Literal["signal", "update"]
_POSITIONS: tuple[tuple[int, MessageKind], ...] = ((1, "signal"), (2, "update"))
_MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredMessage:
    """A signal or update that a workflow class takes.

    ``args_type`` is the annotation of its payload, and ``answer_type`` the type of the answers to an update; each is
    Any if there is none. ``permission`` is what its sender needs, or None. ``about`` is the docstring of the handler,
    and ``fn`` its function, or None if the source does not show it.
    """

    kind: MessageKind
    name: str
    args_type: Any = Any
    answer_type: Any = Any
    permission: str | None = None
    about: str = ""
    fn: Callable[..., Any] | None = field(default=None, compare=False)


@lru_cache(maxsize=1024)
def messages_of(cls: type[Workflow]) -> Mapping[tuple[MessageKind, str], DeclaredMessage]:
    """Return the signals and updates that a workflow class takes, by ``(kind, name)``, without running it.

    They are read from the source of the class: from the handlers in its calls of ``phase``, and from its calls of
    ``wait_for_signal``. A message whose name the source does not show is left out, and so are the messages of a
    function whose source cannot be read; no error is raised for either. If several phases take an update of that name
    and answer with different types, its ``answer_type`` is Any.
    """
    messages: dict[tuple[MessageKind, str], DeclaredMessage] = {}
    for fn in _functions_of(cls):
        source = _parse_source(fn)
        if source is not None:
            for message in _PhaseReader(cls, fn, source).messages():
                first = messages.setdefault((message.kind, message.name), message)
                if first.answer_type != message.answer_type:
                    messages[message.kind, message.name] = replace(first, answer_type=Any)
    return messages


def name_function(cls: type[Workflow] | None, request: RunRequest[T]) -> RunRequest[T]:
    """Return a request with the name of its message and the type of its answer, as far as the class declares them.

    A request of a handle may have a function in place of the name of an update or query; then the answer has the type
    that the function declares. The type of the answer to an update is also found by name. ``cls`` is the class of the
    run, or None if this process lacks it. Raises ``WorkflowDefinitionError`` for a function that is the handler of no
    message, or of several.
    """
    kind = request.operation
    if kind not in ("update", "query"):
        return request
    message, returns = request.inputs[kind], request.returns
    if isinstance(message, str):
        if returns is None and cls is not None and kind == "update":
            declared = messages_of(cast("Any", cls)).get(("update", message))
            returns = None if declared is None else declared.answer_type
        return replace(request, returns=returns)
    if not callable(message) and not isinstance(message, Handler):
        return request  # the operation refuses it
    fn = message.fn if isinstance(message, Handler) else message
    name = _name_of_function(cls, cast("MessageKind", kind), fn)
    if returns is None:
        if isinstance(message, Handler):
            returns = message.answer_type
        elif kind == "update":
            returns = messages_of(cast("Any", cls))["update", name].answer_type
        else:
            returns = resolve_hints(fn).get("return", Any)
    return replace(request, inputs={**request.inputs, kind: name}, returns=returns)


def _name_of_function(cls: type[Workflow] | None, kind: str, fn: Callable[..., Any]) -> str:
    """Raise ``WorkflowDefinitionError`` unless the function handles exactly one message of that kind."""
    if cls is None:
        raise WorkflowDefinitionError(f"{kind}: this process lacks the class of the run: pass the name, not {fn!r}")
    if kind == "query":
        functions: dict[str, Any] = dict(cls.queries())
    else:
        functions = {
            name: message.fn for (kind_, name), message in messages_of(cast("Any", cls)).items() if kind_ == kind
        }
    names = [name for name, declared in functions.items() if declared == fn]
    if not names:
        raise WorkflowDefinitionError(
            f"{kind}: {fn!r} is not the handler of any {kind} that the source of {cls.name} shows: pass the name"
        )
    if len(names) > 1:
        raise WorkflowDefinitionError(
            f"{kind}: {fn!r} handles several of them in {cls.name} ({', '.join(names)}): pass the name"
        )
    return names[0]


def read_answer(cls: type[Workflow] | None, request: RunRequest[Any], answer: Any, *, may_be_redacted: bool) -> Any:
    """Return the answer (plain data) to an update or query as its reader gets it; other results are returned as is.

    The arguments ``cls`` and ``request`` are those of ``name_function``. With ``may_be_redacted``, an answer that does
    not fit is returned as plain data, because the user may not see a part of it. Otherwise raises ``PayloadError``.
    """
    kind, returns = request.operation, name_function(cls, request).returns
    if returns is None or returns is Any:
        return answer
    try:
        return codec.convert(answer, returns, label=f"the answer to {kind} {request.inputs[kind]!r}")
    except PayloadError:
        if may_be_redacted:
            return answer
        raise


def handler_problems(cls: type[Workflow]) -> list[str]:
    """Return a sentence for each handler in the source of a class that its phase would refuse, with the line."""
    problems = []
    for fn in _functions_of(cls):
        source = _parse_source(fn)
        if source is not None:
            path, _, first = source_line(fn).rpartition(":")
            problems += [
                f"{path}:{int(first) + line - 1}: {problem}"
                for line, problem in _PhaseReader(cls, fn, source).problems()
            ]
    return problems


def check_payload(
    cls: type[Workflow], kind: MessageKind, name: str, payload: Any, plain_payload: Any, *, aloud: bool = True
) -> None:
    """Raise ``PayloadError`` if the handler of a message declares a type that does not restore the payload.

    ``kind`` is "signal" or "update", and ``plain_payload`` is ``payload`` as plain data. If the handler declares no
    type, and gets a part of the payload as another one, the sender is warned, once for each message of a class. The
    warning is a line in the log; with ``aloud`` it is a ``PayloadWarning``, too. Messages that the class does not
    declare are not checked, because the type that their handlers take is not known.
    """
    if is_exact(payload, plain_payload):
        return
    message = messages_of(cast("Any", cls)).get((kind, name))
    if message is not None:
        reader = f"{kind} {name!r} of {cls.name}"
        label, annotation = f"the payload of {reader}", lambda: message.args_type
        check_reader(payload, plain_payload, annotation, label=label, reader=reader, emit_warning=aloud)


def _functions_of(cls: type[Workflow]) -> Iterator[FunctionType]:
    """Yield the methods, and functions that they name, directly or not, of the modules of the class and its bases."""
    bases = [base for base in cls.__mro__ if issubclass(base, Workflow) and base is not Workflow]
    pending = [fn for base in bases for fn in vars(base).values() if isinstance(fn, FunctionType)]
    modules = {base.__module__ for base in bases}
    # Only functions of the class's own modules: following all names would read the whole project.
    visited: set[FunctionType] = set()
    while pending:
        fn = pending.pop(0)
        if fn in visited:
            continue
        visited.add(fn)
        yield fn
        referenced = (fn.__globals__.get(name) for name in fn.__code__.co_names)
        pending += [other for other in referenced if isinstance(other, FunctionType) and other.__module__ in modules]


def _parse_source(fn: FunctionType) -> ast.AST | None:
    """Return None if the source cannot be read."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(fn)))
    except (OSError, TypeError, SyntaxError, ValueError, TokenError):
        # The function was typed in a console, or its file has changed since it was imported.
        return None


class _PhaseReader:
    """A reader of the messages that one function of a workflow class takes, from the source of the function.

    It finds the phases that the function opens and the signals that it waits for. It evaluates names of the source
    without calling anything.
    """

    def __init__(self, cls: type[Workflow], fn: FunctionType, source: ast.AST) -> None:
        self.cls = cls
        self.scope = {**fn.__globals__, **_closure_variables(fn)}
        self.source = source
        self.nested = {
            node.name: node
            for node in ast.walk(source)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name != fn.__name__
        }
        self.assigned: dict[str, ast.expr] = {}
        for node in ast.walk(source):
            # The first assignment wins: a later one cannot be followed without running the code.
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                self.assigned.setdefault(node.targets[0].id, node.value)

    def messages(self) -> Iterator[DeclaredMessage]:
        for kind, name, handler in self.declarations():
            yield (
                DeclaredMessage(kind=kind, name=name) if handler is None else self.build_message(kind, name, handler)
            )

    def declarations(self) -> Iterator[tuple[MessageKind, str, Any]]:
        """Yield ``(kind, message name, handler)``: a node or a function, or None for a signal that code waits for."""
        for call in ast.walk(self.source):
            if not isinstance(call, ast.Call):
                continue
            callee = self.evaluate(call.func)
            if callee is api.phase:
                keywords = {keyword.arg: keyword.value for keyword in call.keywords}
                for position, kind in _POSITIONS:
                    mapping = call.args[position] if len(call.args) > position else keywords.get(kind)
                    for name, handler in self.entries(mapping) if mapping is not None else ():
                        yield kind, name, handler
            elif callee is api.wait_for_signal and call.args and isinstance(call.args[0], ast.Constant):
                yield "signal", str(call.args[0].value), None

    def problems(self) -> Iterator[tuple[int, str]]:
        """Yield ``(line in the function, sentence)``: a handler refuses two arguments, or nothing fits its type."""
        for kind, name, handler in self.declarations():
            if handler is None:
                continue
            message, functions, line = f"{kind} {name!r}", {"handler": handler}, getattr(handler, "lineno", 1)
            if isinstance(handler, ast.Call) and self.evaluate(handler.func) in (update, signal):
                functions = {keyword.arg or "": keyword.value for keyword in handler.keywords}
                functions = {"handler": next(iter(handler.args), functions.get("handler")), **functions}
            for role in ("handler", "validator"):
                if not self.accepts_two(functions.get(role)):
                    yield line, f"the {role} of {message} cannot be called as (args, state)"
            if (reason := unreadable_reason(self.build_message(kind, name, handler).args_type)) is not None:
                yield line, f"nothing can be read back from JSON as the annotation of {message}: {reason}"

    def accepts_two(self, handler: Any) -> bool:
        """Return False if the source shows that the handler, a node or a function, refuses two arguments."""
        bound = 0
        if isinstance(handler, ast.Lambda):
            return _accepts(handler.args, 2)
        if isinstance(handler, ast.Name) and (inner := self.nested.get(handler.id)) is not None:
            return bool(inner.decorator_list) or _accepts(inner.args, 2)
        if isinstance(handler, ast.Attribute) and isinstance(handler.value, ast.Name) and handler.value.id == "self":
            method = inspect.getattr_static(self.cls, handler.attr, None)
            bound = int(isinstance(method, FunctionType))
        value = self.evaluate(handler) if isinstance(handler, ast.expr) else handler
        return not callable(value) or accepts_arguments(value, 2 + bound)

    def entries(self, node: ast.expr) -> Iterator[tuple[str, Any]]:
        """Yield ``(message name, handler)``. ``node`` is a dictionary or its name, a handler a node or a function."""
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if key is None:
                    yield from self.entries(value)
                elif isinstance(name := self.evaluate(key), str):
                    yield name, value
        elif isinstance(node, ast.Name) and node.id in self.assigned:
            yield from self.entries(self.assigned[node.id])
        elif isinstance(table := self.evaluate(node), Mapping):
            yield from ((name, value) for name, value in table.items() if isinstance(name, str))

    def build_message(self, kind: MessageKind, name: str, handler: Any) -> DeclaredMessage:
        """Describe the message by its handler, a node or a function. Calls that wrap the handler are unpacked."""
        message = DeclaredMessage(kind=kind, name=name)
        bound = 0
        returns: Any = _MISSING
        while isinstance(handler, ast.Call) and handler.args:
            callee = self.evaluate(handler.func)
            if callee in (update, signal):
                options = {keyword.arg: self.evaluate(keyword.value) for keyword in handler.keywords}
                if isinstance(permission := options.get("permission"), str):
                    message = replace(message, permission=permission)
                returns = options.get("returns", _MISSING)
            elif callee is partial:
                bound += len(handler.args) - 1
            else:
                break
            # The handler is the first argument of the call.
            handler = handler.args[0]
        value = handler if not isinstance(handler, ast.expr) else self.evaluate(handler)
        if isinstance(value, Handler):
            message = replace(message, permission=value.permission, fn=value.fn)
            message = replace(message, args_type=value.args_type, answer_type=value.answer_type)
            return replace(message, about=inspect.getdoc(value.fn) or "")
        message = self.with_types(message, handler, bound=bound)
        if returns is not _MISSING and returns is not None:
            message = replace(message, answer_type=returns)
        return message if kind == "update" else replace(message, answer_type=Any)

    def with_types(self, message: DeclaredMessage, handler: Any, *, bound: int) -> DeclaredMessage:
        """Add types, docstring and function. ``bound`` counts the parameters before the payload, besides ``self``."""
        if isinstance(handler, ast.Name) and (inner := self.nested.get(handler.id)) is not None:
            parameters = [*inner.args.posonlyargs, *inner.args.args]
            annotation = self.annotation(parameters[bound].annotation if len(parameters) > bound else None)
            answer_type = answer_type_of(self.annotation(inner.returns))
            about = ast.get_docstring(inner) or ""
            return replace(message, args_type=annotation, answer_type=answer_type, about=about)
        value = self.evaluate(handler) if isinstance(handler, ast.expr) else handler
        if not callable(value):
            return message
        about = inspect.getdoc(value) or "" if isinstance(value, FunctionType) else ""
        # `self.method` is bound at run time, so its first parameter does not count; static methods have no `self`.
        if isinstance(handler, ast.Attribute) and isinstance(handler.value, ast.Name) and handler.value.id == "self":
            bound += not isinstance(inspect.getattr_static(self.cls, handler.attr), (staticmethod, classmethod))
        annotation, answer_type = handler_types(value)
        if bound:
            annotation = _parameter_annotation(value, bound)
        return replace(message, args_type=annotation, answer_type=answer_type, about=about, fn=value)

    def annotation(self, node: ast.expr | None) -> Any:
        """Return Any if there is no annotation or it is not known."""
        annotation = _MISSING if node is None else self.evaluate(node)
        return Any if annotation is _MISSING else annotation

    def evaluate(self, node: ast.expr) -> Any:
        """Return the value without calling anything, or ``_MISSING`` if it is not known."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id="self"):
                return self.cls
            case ast.Name(id=name):
                return self.scope.get(name, getattr(builtins, name, _MISSING))
            case ast.Attribute(value=inner, attr=name):
                owner = self.evaluate(inner)
                return getattr(owner, name, _MISSING) if isinstance(owner, (ModuleType, type)) else _MISSING
        return self.evaluate_composite(node)

    def evaluate_composite(self, node: ast.expr) -> Any:
        """Return the value of ``list[int]`` or ``int | None``, for example; ``_MISSING`` for other expressions."""
        match node:
            case ast.Subscript(value=inner, slice=index):
                return _join_annotations(self.evaluate(inner), self.evaluate(index), operator.getitem)
            case ast.Tuple(elts=parts):
                values = tuple(self.evaluate(part) for part in parts)
                return _MISSING if any(value is _MISSING for value in values) else values
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return _join_annotations(self.evaluate(left), self.evaluate(right), operator.or_)
        return _MISSING


def _accepts(parameters: ast.arguments, count: int) -> bool:
    positional = len(parameters.posonlyargs) + len(parameters.args)
    if any(default is None for default in parameters.kw_defaults) or positional - len(parameters.defaults) > count:
        return False
    return positional >= count or parameters.vararg is not None


def _join_annotations(left: Any, right: Any, join: Callable[[Any, Any], Any]) -> Any:
    """Return an annotation such as ``list[int]`` or ``int | None``, or ``_MISSING`` if the parts form none."""
    if (
        left is _MISSING
        or right is _MISSING
        or not (isinstance(left, type) or typing.get_origin(left) or _is_special_form(left))
    ):
        return _MISSING
    try:
        return join(left, right)
    except TypeError:
        return _MISSING


def _is_special_form(value: Any) -> bool:
    return value is None or type(value).__module__ in ("typing", "typing_extensions")


def _parameter_annotation(fn: Any, index: int) -> Any:
    """Return Any if there is no annotation."""
    try:
        names = [*inspect.signature(fn).parameters]
    except (TypeError, ValueError):
        return Any
    return resolve_hints(fn).get(names[index], Any) if len(names) > index else Any


def _closure_variables(fn: FunctionType) -> dict[str, Any]:
    """Return the variables by name, without those that have no value yet."""
    variables = {}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            variables[name] = cell.cell_contents
        except ValueError:
            continue
    return variables


# --- handlers ---------------------------------------------------------------------------------------------------------
#
# ``update(...)`` and ``signal(...)``: they add options to a handler of a phase.


@answers_foreign_options("update", HANDLER)
def update(
    handler: Callable[[Any, Any], Any],
    *,
    validator: Callable[[Any, Any], Any] | None = None,
    permission: str | None = None,
    label: str | None = None,
    returns: Any = None,
) -> Handler:
    """Return an update handler with options. ``handler`` is a function ``(args, state)``.

    ``validator`` is a function ``(args, state)`` that runs before the update is accepted.

    A user who sends the update (``by=``) needs the ``permission`` (``app.codename``). Without it they get
    ``ActionNotPermitted``, and nothing is written. The permission is checked before the validator, when the update is
    first dispatched; updates from code are not checked (see decision 37). ``label`` is the name that people see.

    ``returns`` is the type as which the answer is stored and read, for a handler without the annotation
    ``-> Reply[Answer, State]``. Raises ``WorkflowDefinitionError`` for a type that cannot be stored.
    """
    _check_function("update", handler)
    if validator is not None and not callable(validator):
        raise WorkflowDefinitionError(f"update: the validator is not callable: {validator!r}")
    # Options are checked here, and not by the phase, so that the error names the line that made the handler.
    _check_permission("update", permission)
    args_type, answer_type = handler_types(handler)
    if returns is not None:
        # A text would name the type at the first answer, after the handler has acted.
        if isinstance(returns, str) or answer_type_of(returns) is not Any:
            raise WorkflowDefinitionError(f"update: returns is the type of the answer alone, not {returns!r}")
        answer_type = returns
    require_storable_answer(answer_type, label=f"update: {handler!r}")
    return Handler(
        handler,
        validator=validator,
        permission=permission,
        args_type=args_type,
        answer_type=answer_type,
        label=names.fit_optional_label(label, owner="update"),
    )


@answers_foreign_options("signal", HANDLER)
def signal(
    handler: Callable[[Any, Any], Any],
    *,
    permission: str | None = None,
    label: str | None = None,
    on_error: Literal["keep", "block"] = "keep",
) -> Handler:
    """Return a signal handler with options. ``handler`` is a function ``(payload, state)``.

    If the handler raises, or the payload does not fit its annotation, the state stays as it was and the signal becomes
    a failed message. People see it, and deliver it again or discard it. With ``on_error="block"`` the run is blocked
    instead, with the signal first in its inbox, and continues by itself once the code is corrected.

    A user who sends the signal (``by=``) needs the ``permission`` (``app.codename``). Without it the signal has no
    effect and leaves an audit row. The permission is checked when the signal arrives. For a signal that arrived before
    its phase was open, it is checked when the phase takes it. ``label`` is the name that people see.
    """
    _check_function("signal", handler)
    _check_permission("signal", permission)
    # "keep" is the default, so that a sender of bad payloads cannot stop a run (see decision 46).
    if on_error not in ("keep", "block"):
        raise WorkflowDefinitionError(f'signal: on_error is "keep" or "block", not {on_error!r}')
    label = names.fit_optional_label(label, owner="signal")
    args_type, _ = handler_types(handler)
    return Handler(handler, permission=permission, args_type=args_type, label=label, on_error=on_error)


def _check_function(kind: str, handler: object) -> None:
    """Raise ``WorkflowDefinitionError`` if no phase can call ``handler``. ``kind`` is "signal" or "update"."""
    if not callable(handler):
        raise WorkflowDefinitionError(
            f"{kind}: not callable: {handler!r}: its first argument is the handler, a function (args, state); "
            f'the phase names it: api.phase(state, {kind}={{"name": handler}})'
        )
    if (problem := self_problem(handler)) is not None:
        raise WorkflowDefinitionError(f"{kind}: {problem}")


def _check_permission(label: str, permission: object) -> None:
    if permission is not None and not names.is_permission(permission):
        raise WorkflowDefinitionError(f"{label}: permission must be of the form app.codename, not {permission!r}")
