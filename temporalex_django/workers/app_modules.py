"""The modules of apps in which workflows and activities are defined: those that are loaded, and those that are not."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from django.apps import AppConfig, apps

from temporalex_django.authoring import workflow
from temporalex_django.core.determinism.rules import is_project_file
from temporalex_django.core.names import counted

_BASES = frozenset({"Workflow", "GraphWorkflow", "VersionedWorkflow"})
_MENTION = "temporalex_django"


@dataclass(frozen=True, slots=True)
class UnloadedDefinition:
    """A workflow class or an activity in a file of the app ``app`` whose module no process has loaded.

    ``home`` is the module of the app in which it would be found.
    """

    app: str
    module: str
    path: str
    line: int
    name: str
    home: str


def describe_classes(singular: str = "workflow", plural: str = "workflows") -> str:
    """Return how many workflow classes this process has; if it has none, also the modules in which it looked for them.

    ``singular`` and ``plural`` are the word for a class.
    """
    if count := len(workflow.registry):
        return counted(count, singular, plural)
    looked_at = ", ".join(
        f"{app.name}.{name}{'' if f'{app.name}.{name}' in sys.modules else _absence(app, name)}"
        for app in _project_apps()
        for name in ("workflows", "activities")
    )
    unloaded = ", ".join(sorted({definition.module for definition in unloaded_definitions()}))
    return (
        f"0 {plural} (looked at: {looked_at or 'no app of this project'}"
        f"{f'; not loaded: {unloaded}: import it from workflows.py' if unloaded else ''})"
    )


def _absence(app: AppConfig, name: str) -> str:
    """Return why a module of an app is not loaded."""
    home = Path(app.path, name)
    return " (it was refused)" if home.is_dir() or home.with_suffix(".py").is_file() else " (there is none)"


def unloaded_definitions() -> Iterator[UnloadedDefinition]:
    """Yield the workflows and activities in modules of this project that are not loaded, read from their source.

    Modules of tests, and those that cannot be read, are left out.
    """
    for app in _project_apps():
        root = Path(app.path)
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            module = ".".join((app.name, *(parts[:-1] if parts[-1] == "__init__" else parts)))
            if module in sys.modules or _is_left_out(parts):
                continue
            for line, name, home in _definitions(path):
                yield UnloadedDefinition(app.name, module, str(path), line, name, home)


def _project_apps() -> list[AppConfig]:
    """Return the installed apps whose code belongs to the project, as far as their paths show it."""
    return [
        app
        for app in apps.get_app_configs()
        if app.module is not None and app.name != _MENTION and is_project_file(f"{app.path}/workflows.py")
    ]


def _is_left_out(parts: tuple[str, ...]) -> bool:
    return any(
        part in ("tests", "test", "conftest", "migrations", "management", "node_modules")
        or part.startswith(("test_", "."))
        for part in parts
    )


def _definitions(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield ``(line, name, module in which it belongs)`` for each workflow class and activity in a source file."""
    try:
        source = path.read_text(encoding="utf-8")
        if _MENTION not in source:
            return
        tree = ast.parse(source)
    except (OSError, ValueError, SyntaxError):
        return
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and any(_last_name(base) in _BASES for base in node.bases):
            yield node.lineno, f"the workflow {node.name}", "workflows"
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and any(
            _last_name(decorator) == "activity" for decorator in node.decorator_list
        ):
            yield node.lineno, f"the activity {node.name}", "activities"


def _last_name(node: ast.expr) -> str | None:
    """Return the last part of a name, such as ``activity`` of ``@temporalex_django.activity(...)``, or None."""
    match node:
        case ast.Call(func=func):
            return _last_name(func)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return None
