"""The static check of workflow modules for calls that the determinism guard would refuse.

It also finds coroutines that nobody awaits and results of sagas that compensate nothing, which nothing can see at run
time, and uses whose order or number differs between processes. The source is read and not run (see decision 18).

The workflow code of a module is every method of its workflow classes, with everything of the same module that they
name, directly or not: functions, classes and module-level collections. Activities, steps of graphs and module-level
code are excluded. Names are followed through imports and aliases. The value of a variable is not known here; the guard
sees it when it is called.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from temporalex_django.authoring import activity as activities
from temporalex_django.authoring.activity import Activity, is_nameless
from temporalex_django.authoring.authorization import candidate_of_role
from temporalex_django.authoring.definition import DefinitionPlace, is_same_activity, is_same_code, place_of_activity
from temporalex_django.authoring.django_tasks import DjangoTask, is_task
from temporalex_django.authoring.lint.statements import unawaited_calls, uncompensated_returns, unordered_uses
from temporalex_django.authoring.start_api import Startable
from temporalex_django.authoring.workflow import Workflow, concrete_classes
from temporalex_django.core import names
from temporalex_django.core.determinism import rules
from temporalex_django.core.determinism.rules import reachable_code
from temporalex_django.core.failures import source_line
from temporalex_django.core.payloads.codec import resolve_hints

_PACKAGE: Final = "temporalex_django"
_WORKFLOWS: Final = frozenset(f"{_PACKAGE}.{name}" for name in ("Workflow", "GraphWorkflow", "VersionedWorkflow"))
_STEPS: Final = frozenset(
    f"{_PACKAGE}.{name}" for name in ("Step", "Wait", "WaitForEvent", "Debug", "Approval", "Done")
)
_APPROVALS: Final = frozenset(f"{_PACKAGE}.{name}" for name in ("api.approval", "Approval", "Escalation"))
_ACTIVITY: Final = f"{_PACKAGE}.activity"
_BUILTINS: Final = frozenset({"open", "input"})
Function = ast.FunctionDef | ast.AsyncFunctionDef
_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """A finding of the check: its line and function, the call, the problem, and what to write instead."""

    line: int
    call: str
    function: str
    advice: str
    problem: str = "its result can differ on replay"
    #: True if the finding does not matter once all processes share one hash seed.
    seeded: bool = False


def findings_in(path: str, workflows: Iterable[str] = ()) -> Sequence[Finding]:
    """Return the findings in the source file ``path``, as ``lint`` does; none if it cannot be read."""
    return _lint_once(_read(path), frozenset(workflows))


def roles_in(path: str) -> Sequence[tuple[int, str]]:
    """Return the roles and groups that approvals in the source file ``path`` name as texts, with their lines.

    They are candidates: ``group:managers``, ``perm:shop.approve``. None are returned if the file cannot be read.
    """
    return _find_roles_once(_read(path))


def _read(path: str) -> str:
    """Return the source of a file; empty without one, as for a module that is compiled or in an archive."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


# Two checks ask for the findings of the same files, and a test suite runs the checks with each command. A file that was
# changed since it was imported may have no valid source: the guard checks its code at run time.
@lru_cache(maxsize=256)
def _lint_once(source: str, workflows: frozenset[str]) -> Sequence[Finding]:
    try:
        return lint(source, workflows=workflows)
    except (ValueError, SyntaxError):
        return ()


@lru_cache(maxsize=256)
def _find_roles_once(source: str) -> Sequence[tuple[int, str]]:
    try:
        module = _Module(ast.parse(source), frozenset())
    except (ValueError, SyntaxError):
        return ()
    return sorted({(line, candidate) for line, candidate in module.roles() if names.is_name(candidate)})


def lint(source: str, *, workflows: Iterable[str] = ()) -> list[Finding]:
    """Return the findings in the source of a module, ordered by line.

    ``workflows`` names classes of the module that are workflows although their bases do not show it. Raises
    ``SyntaxError``.
    """
    tree = ast.parse(source)
    module = _Module(tree, frozenset(workflows))
    findings = {
        finding for body, function_name in module.workflow_code() for finding in module.findings(body, function_name)
    }
    return sorted(findings | ({*_star_import_findings(tree.body)} if module.has_workflows else set()))


class _Module:
    """The functions, classes, values and imports of a module, read from its syntax tree.

    ``workflows`` names classes that are workflows although their bases do not show it.
    """

    def __init__(self, tree: ast.Module, workflows: frozenset[str]) -> None:
        self._tree = tree
        self._imports = dict(_imports_of(tree.body))
        self._workflows = workflows
        self._functions: dict[str, Function] = {}
        self._classes: dict[str, ast.ClassDef] = {}
        self._values: dict[str, ast.expr] = {}
        for node in _statements(tree.body):
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self._functions[node.name] = node
                case ast.ClassDef():
                    self._classes[node.name] = node
                case ast.Assign(targets=targets, value=value):
                    self._values.update((target.id, value) for target in targets if isinstance(target, ast.Name))
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    self._values[name] = value

    @property
    def has_workflows(self) -> bool:
        return next(self.workflow_code(), None) is not None

    def workflow_code(self) -> Iterator[tuple[ast.AST, str]]:
        """Yield ``(syntax node, name)``, each once, of functions, and of values that hold lambdas or name functions."""
        pending = [name for name in self._classes if self._is_kind(name, _WORKFLOWS) or name in self._workflows]
        visited: set[str] = set()
        while pending:
            name = pending.pop()
            if name in visited:
                continue
            visited.add(name)
            if name in self._classes:
                pending.extend(base.id for base in self._classes[name].bases if isinstance(base, ast.Name))
            for body, function_name in self._bodies(name):
                yield body, function_name
                pending.extend(sorted(self._names_in(body)))

    def roles(self) -> Iterator[tuple[int, str]]:
        """Yield ``(line, candidate)`` of approvals, as far as the module shows the texts."""
        for node in ast.walk(self._tree):
            if not (isinstance(node, ast.Call) and _dotted_name(node.func, self._imports) in _APPROVALS):
                continue
            for keyword in node.keywords:
                if keyword.arg in ("role", "groups"):
                    for text in self._texts(keyword.value):
                        yield node.lineno, candidate_of_role(text) if keyword.arg == "role" else f"group:{text}"

    def _texts(self, node: ast.expr) -> Iterator[str]:
        """Yield the texts, as far as the module shows them."""
        if isinstance(node, ast.Name):
            node = self._values.get(node.id, node)
        for entry in node.elts if isinstance(node, (ast.List, ast.Tuple)) else (node,):
            if isinstance(entry, ast.Constant) and isinstance(entry.value, str):
                yield entry.value

    def _bodies(self, name: str) -> Iterator[tuple[ast.AST, str]]:
        """Yield ``(syntax node, name for findings)``: a function, the methods of a class, or the lambdas of a value."""
        if (function := self._functions.get(name)) is not None:
            if not self._is_activity(function):
                yield function, name
        elif (cls := self._classes.get(name)) is not None:
            # The engine runs steps as activities, so they may do what workflow code may not.
            if self._is_kind(name, _STEPS):
                return
            for node in _statements(cls.body):
                if isinstance(node, Function) and not self._is_activity(node):
                    yield node, f"{name}.{node.name}"
                elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                    yield _DeferredLambdas(node.value), name
        elif (value := self._values.get(name)) is not None:
            yield _DeferredLambdas(value), name

    def _names_in(self, body: ast.AST) -> set[str]:
        """Return the names that ``body`` reads and does not bind itself."""
        local_names = _local_names(body)
        return {
            node.id
            for node in ast.walk(body)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in local_names
        }

    def _is_kind(self, name: str, kinds: frozenset[str], depth: int = 20) -> bool:
        """Follow bases inside the module, at most ``depth`` of them: in wrong source, they form a cycle."""
        cls = self._classes.get(name)
        if cls is None or depth == 0:
            return False
        return any(
            _dotted_name(base, self._imports) in kinds
            or (isinstance(base, ast.Name) and base.id != name and self._is_kind(base.id, kinds, depth - 1))
            for base in cls.bases
        )

    def _is_activity(self, function: Function) -> bool:
        decorators = [node.func if isinstance(node, ast.Call) else node for node in function.decorator_list]
        return any(_dotted_name(node, self._imports) == _ACTIVITY for node in decorators)

    def findings(self, body: ast.AST, function_name: str) -> Iterator[Finding]:
        """Yield the findings in a function or a module-level value, and in everything nested in it."""
        yield from _CallReader(function_name).read(body, self._imports, outermost=True)
        for line, call in unawaited_calls(body, self._functions, self._methods(function_name)):
            yield Finding(
                line, call, function_name, f"write `await {call}(...)`", "it is not awaited, so it never runs"
            )
        names = {**self._imports, **dict(_imports_of(body.body))} if isinstance(body, Function) else self._imports
        for line in uncompensated_returns(body, partial(_dotted_name, names=names)):
            yield Finding(
                line,
                "return Err(...)",
                function_name,
                "write `raise ApplicationError(...)`, which fails the run and compensates",
                "it leaves the block of api.saga() without an exception, so nothing is compensated",
            )
        for line in _dropped_results(body, names):
            yield Finding(
                line,
                "api.parallel(...)",
                function_name,
                "use its result, or write `raise_errors=True`",
                "its result is dropped, and with it the failures of its branches",
            )
        # Sets of these are ordered by addresses, which no hash seed fixes.
        definitions = frozenset({*self._functions, *self._classes})
        for issue in unordered_uses(body, frozenset(_local_names(body)), definitions):
            yield Finding(
                issue.line,
                issue.call,
                function_name,
                issue.advice,
                "it differs from one process to the next",
                issue.seeded,
            )

    def _methods(self, function_name: str) -> Mapping[str, Function]:
        """Return the methods of the class that ``function_name`` is in, and of its bases in this module."""
        methods: dict[str, Function] = {}
        pending, visited = [function_name.partition(".")[0]], set[str]()
        while pending:
            name = pending.pop(0)
            if name in visited or (cls := self._classes.get(name)) is None:
                continue
            visited.add(name)
            for node in _statements(cls.body):
                if isinstance(node, Function):
                    methods.setdefault(node.name, node)
            pending.extend(base.id for base in cls.bases if isinstance(base, ast.Name))
        return methods


class _DeferredLambdas(ast.AST):
    """A module-level value, such as a table of handlers, reduced to its lambdas and names.

    Only these are workflow code; the rest of the value was evaluated when the module was imported.
    """

    _fields = ("parts",)

    def __init__(self, value: ast.expr) -> None:
        super().__init__()
        names = [node for node in ast.walk(value) if isinstance(node, (ast.Lambda, ast.Name))]
        self.parts: list[ast.AST] = list(names)


class _CallReader:
    """A search for calls that workflow code may not make, in one function.

    ``function_name`` is the name of the function in findings.
    """

    def __init__(self, function_name: str) -> None:
        self._function_name = function_name

    def read(self, node: ast.AST, names: Mapping[str, str], *, outermost: bool = False) -> Iterator[Finding]:
        """Skip the defaults of the outermost function, which are evaluated at import."""
        if isinstance(node, _Scope):
            if not outermost:
                for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
                    yield from self.read(default, names)
            body: list[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else list(node.body)
            # A local name hides an import of the same name; after that its value is not known here.
            local_names = _local_names(node)
            names = {name: dotted for name, dotted in names.items() if name not in local_names}
            if not isinstance(node, ast.Lambda):
                names = {**names, **dict(_imports_of(node.body))}
            for part in body:
                yield from self.read(part, _without_builtins(names, local_names))
            return
        if (forbidden_use := _forbidden_use(node, names)) is not None:
            call, advice = forbidden_use
            yield Finding(getattr(node, "lineno", 0), call, self._function_name, advice)
        for child in ast.iter_child_nodes(node):
            yield from self.read(child, names)


def _forbidden_use(node: ast.AST, names: Mapping[str, str]) -> tuple[str, str] | None:
    """Return ``(name, advice what to write instead)``, or None."""
    match node:
        case ast.Call(func=func, args=args, keywords=keywords):
            arguments = [arg for arg in args if not (isinstance(arg, ast.Constant) and arg.value is None)]
            return _forbidden_call(func, names, argument=bool(arguments or keywords))
        case ast.Subscript(value=value) if _dotted_name(value, names) in ("os.environ", "os.environb"):
            return "os.environ[...]", rules.ENVIRONMENT
        case ast.Compare(comparators=[right]) if _dotted_name(right, names) == "os.environ":
            return "... in os.environ", rules.ENVIRONMENT
    return None


def _forbidden_call(func: ast.expr, names: Mapping[str, str], *, argument: bool) -> tuple[str, str] | None:
    """Return ``(dotted name, advice what to write instead)``, or None."""
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Call):
        constructor = _dotted_name(func.value.func, names)
        # Making a path is harmless; only methods that touch the file system count.
        if constructor == "pathlib.Path" and func.attr in rules.PATH_METHODS:
            return f"pathlib.Path.{func.attr}", rules.FILES
        if constructor == "threading.Thread" and func.attr == "start":
            return "threading.Thread.start", rules.THREADS
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Attribute) and func.value.attr == "objects":
        # Models are not imported here; a capital letter before `.objects` is the sign of one.
        model = func.value.value
        if isinstance(model, ast.Name) and model.id[:1].isupper():
            return f"{model.id}.objects.{func.attr}", rules.DATABASE
    dotted = _dotted_name(func, names)
    if dotted is None:
        return None
    advice = rules.advice(dotted, argument=argument)
    return None if advice is None else (dotted, advice)


def _dotted_name(node: ast.expr, names: Mapping[str, str]) -> str | None:
    """Return the public dotted name, or None if it is not known. ``names`` maps local names to dotted ones."""
    match node:
        case ast.Name(id=name):
            if name in names:
                return names[name] or None
            return name if name in _BUILTINS else None
        case ast.Attribute(value=value, attr=attr):
            base = _dotted_name(value, names)
            return None if base is None else f"{base}.{attr}"
    return None


def _dropped_results(body: ast.AST, names: Mapping[str, str]) -> Iterator[int]:
    """Yield the lines of statements that await ``api.parallel`` and drop its result."""
    for node in ast.walk(body):
        match node:
            case ast.Expr(value=ast.Await(value=ast.Call(func=func, keywords=keywords))) if (
                _dotted_name(func, names) == f"{_PACKAGE}.api.parallel"
            ):
                if not any(keyword.arg in (None, "raise_errors") for keyword in keywords):
                    yield node.lineno


def _imports_of(body: Iterable[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Yield ``(local name, dotted name)``, without imports inside functions."""
    for node in _statements(body):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield (alias.asname, alias.name) if alias.asname else (alias.name.split(".")[0],) * 2
            case ast.ImportFrom(module=str(module), names=names, level=0):
                for alias in names:
                    if alias.name != "*":
                        yield alias.asname or alias.name, f"{module}.{alias.name}"
                    else:
                        yield from ((name, f"{module}.{name}") for name in _public_names(module))


def _public_names(module: str) -> Iterable[str]:
    """Return no names if the module is not loaded."""
    loaded = sys.modules.get(module)
    if loaded is None:
        return ()
    return getattr(loaded, "__all__", None) or [name for name in vars(loaded) if not name.startswith("_")]


def _star_import_findings(body: Iterable[ast.stmt]) -> Iterator[Finding]:
    """Yield the star imports that hide from this check what workflow code calls."""
    for node in _statements(body):
        match node:
            case ast.ImportFrom(module=module, names=[ast.alias(name="*")], level=level):
                # Its names are known if the module is loaded, which is the case in `manage.py check`.
                if level or module not in sys.modules:
                    source = "." * level + (module or "")
                    call = f"from {source} import *"
                    problem = "the names that it imports cannot be checked"
                    yield Finding(node.lineno, call, "<module>", "import the names explicitly", problem)


def _statements(nodes: Iterable[ast.AST]) -> Iterator[ast.stmt]:
    """Yield statements and those nested in them, but not the bodies of functions and classes."""
    for node in nodes:
        if isinstance(node, ast.stmt):
            yield node
        if isinstance(node, (ast.stmt, ast.ExceptHandler, ast.match_case)) and not isinstance(
            node, (Function, ast.ClassDef)
        ):
            yield from _statements(ast.iter_child_nodes(node))


def _local_names(node: ast.AST) -> set[str]:
    """Return the names that a function binds itself, except by imports."""
    names: set[str] = set()
    if isinstance(node, _Scope):
        arguments = node.args
        names = {
            arg.arg
            for arg in (
                *arguments.posonlyargs,
                *arguments.args,
                *arguments.kwonlyargs,
                *filter(None, (arguments.vararg, arguments.kwarg)),
            )
        }
    for child in ast.walk(node):
        match child:
            case ast.Name(id=name, ctx=ast.Store()) | ast.ExceptHandler(name=str(name)):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name) if (
                child is not node
            ):
                names.add(name)
    return names


def _without_builtins(names: Mapping[str, str], local: set[str]) -> Mapping[str, str]:
    """Drop the builtins that a function shadows, such as a local ``open``."""
    return {**names, **dict.fromkeys(local & _BUILTINS, "")}


# --- names ------------------------------------------------------------------------------------------------------------
#
# Definitions that share a name: of two, the later replaces the earlier, and runs continue with the wrong code.


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A name that several definitions have, as a name or as an alias. ``kind`` is "workflow", "activity" or "task"."""

    kind: str
    name: str
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Definition:
    """A workflow class, an activity or a Django task that a module has, with the names that runs may hold for it."""

    kind: str
    value: Any
    place: DefinitionPlace
    names: tuple[str, ...]

    def is_same(self, other: _Definition) -> bool:
        if isinstance(self.value, Activity) and isinstance(other.value, Activity):
            return is_same_activity(self.value, other.value)
        return self.value is other.value or is_same_code(self.place, self.value, other.place, other.value)


def duplicate_names(modules: Iterable[ModuleType]) -> Iterator[Duplicate]:
    """Yield each name that two definitions in ``modules`` share, sorted. It may be an alias of one or of both."""
    by_name: dict[tuple[str, str], list[_Definition]] = {}
    for module in modules:
        for value in [*vars(module).values()]:
            if (definition := _definition(value)) is not None:
                for name in definition.names:
                    group = by_name.setdefault((definition.kind, name), [])
                    if not any(definition.is_same(other) for other in group):
                        group.append(definition)
    for (kind, name), group in sorted(by_name.items()):
        if len(group) > 1:
            # In one module, or at one place that a function executes twice, the line is part of the answer.
            yield Duplicate(kind, name, tuple(sorted(str(definition.place) for definition in group)))


def _definition(value: Any) -> _Definition | None:
    cls = type(value)  # `isinstance` would ask a lazy object of Django for its class, and so make its value
    if issubclass(cls, type):
        if not issubclass(value, Startable) or "definition_place" not in vars(value):
            return None
        startable: Any = value.dispatched_by or value
        aliases = getattr(startable, "aliases", ())
        return _Definition("workflow", startable, startable.definition_place, (startable.name, *aliases))
    if issubclass(cls, Activity):
        return _Definition("activity", value, place_of_activity(value), (value.name, *value.aliases))
    if hasattr(cls, "enqueue") and is_task(value):
        task = DjangoTask(value)
        return _Definition("task", task, place_of_activity(task), (value.module_path,))
    return None


# --- activities -------------------------------------------------------------------------------------------------------
#
# The activities that the code of a workflow class names, and annotations that name nothing.


def named_activities(workflow: type[Workflow]) -> dict[str, Activity[Any, Any]]:
    """Return the activities that the code of a class names as globals or attributes of modules, by their names.

    Activities that code looks up otherwise are not found.
    """
    by_name: dict[str, Activity[Any, Any]] = {}
    for code, namespace in reachable_code(workflow, ()):
        by_name |= {value.name: value for value in _values(code.co_names, namespace) if isinstance(value, Activity)}
    return by_name


def unresolved_annotations(is_in_app: Callable[[str], bool]) -> Iterator[tuple[str, str, Any]]:
    """Yield the annotations of runs and activities that name nothing when the process runs.

    An example is a class that is defined inside a function. Each result is ``(file:line, the parameter or result,
    annotation)``. Values that they describe stay plain data. ``is_in_app`` takes the name of a module, and returns True
    for those that are checked.
    """
    functions = [(f"{cls.name}.run", cls.run) for cls in concrete_classes() if issubclass(cls, Workflow)]
    # The arguments of a step come from the engine and not from a payload.
    functions += [
        (act.name, act.__wrapped__)
        for act in activities.registry.values()
        if type(act) in (Activity, DjangoTask) and not is_nameless(act)
    ]
    for name, fn in functions:
        annotations = getattr(fn, "__annotations__", {})
        if not annotations or not is_in_app(fn.__module__):
            continue
        resolved = resolve_hints(fn)
        for parameter, annotation in annotations.items():
            if parameter not in resolved:
                part = f"the result of {name}" if parameter == "return" else f"{parameter!r} of {name}"
                yield source_line(fn), part, annotation


def _values(names: tuple[str, ...], namespace: dict[str, Any]) -> Iterator[Any]:
    for name in names:
        value = namespace.get(name)
        yield value
        if type(value) is ModuleType:
            yield from (vars(value)[attribute] for attribute in names if attribute in vars(value))
