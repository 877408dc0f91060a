"""The modules of apps in which workflows and activities are defined: those that are loaded, and those that are not."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.crypto import salted_hmac

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
    """Return the apps whose code belongs to the project, as far as their paths show it."""
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
    """Yield ``(line, name, module in which it belongs)`` for each workflow class and activity."""
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
    """Return the last part of a name, such as ``activity`` of ``@temporalex_django.activity(...)``."""
    match node:
        case ast.Call(func=func):
            return _last_name(func)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return None


# --- hash seed --------------------------------------------------------------------------------------------------------
#
# One hash seed for all processes of a project, so that a set of strings has one order in all of them.
#
# It is derived from ``SECRET_KEY``. A seed (``PYTHONHASHSEED``) takes effect only when the interpreter starts. So the
# entry point of ``manage.py temporalex worker`` starts its process again with the seed, once. No other process does:
# where you start those, set the variable yourself. ``manage.py check`` names the value.


VARIABLE = "PYTHONHASHSEED"
#: Set in the process that was started again.
MARK = "TEMPORALEX_HASH_SEED_SET"
#: Largest value of ``PYTHONHASHSEED``.
_LARGEST = 2**32 - 1


def project_seed() -> int:
    """Return the hash seed (``PYTHONHASHSEED``) for all processes of the project, from 1 to 4294967295.

    It is not 0, which would turn the randomization of hashes off.
    """
    try:
        secret = settings.SECRET_KEY
    except ImproperlyConfigured:  # it has none: one seed is as good as another
        secret = ""
    digest = salted_hmac("temporalex_django.hash_seed", "", secret, algorithm="sha256").digest()
    return int.from_bytes(digest[:8], "big") % _LARGEST + 1


def different_seed() -> int:
    """Return a hash seed that is neither that of the project nor, if known, that of this process."""
    current_seed = os.environ.get(VARIABLE, "")
    used_seeds = {project_seed(), int(current_seed) if current_seed.isdecimal() else 0}
    return next(seed for seed in (1, 2, 3) if seed not in used_seeds)


def is_set() -> bool:
    """Return True if somebody set the hash seed of this process, so that it is not random."""
    return os.environ.get(VARIABLE, "random") not in ("", "random") and not sys.flags.ignore_environment


def restart(ends_with: Sequence[str]) -> None:
    """Start this process again, in its place, with the hash seed of the project, if possible.

    ``ends_with`` are the last words of the command line by which the command is started; nothing happens for another
    command line. Call it before any thread starts; the process keeps its id. Nothing happens, too, if a seed is set
    already, under ``-E`` and ``-I``, and if the command line cannot be run again.
    """
    if sys.orig_argv[-len(ends_with) :] != [*ends_with]:
        return
    arguments = restart_command(sys.orig_argv, os.environ)
    if arguments is None:
        return
    connections.close_all()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execve(sys.executable, arguments, {**os.environ, VARIABLE: str(project_seed()), MARK: "1"})  # noqa: S606 - no shell


def restart_command(command_line: Sequence[str], environment: Mapping[str, str]) -> list[str] | None:
    """Return the command line that starts this process again with a hash seed; None if there is none or no need.

    There is no need if ``environment`` sets ``PYTHONHASHSEED``, or if the process was started again already. There is
    none outside POSIX, under ``-E`` and ``-I``, for a script on standard input, for an embedded interpreter, and if the
    path of the script no longer exists.
    """
    if os.name != "posix" or not sys.executable or getattr(sys, "frozen", False):
        return None
    if MARK in environment or VARIABLE in environment or sys.flags.ignore_environment:
        return None
    rest = [*command_line[1:]]
    script = _script_path(rest)
    if script is None or (script and not Path(script).exists()):
        return None
    return [sys.executable, *rest]


def _script_path(rest: Sequence[str]) -> str | None:
    """Return the path of a script; empty for ``-m`` and ``-c``, None if it cannot be run again."""
    options = iter(rest)
    for option in options:
        if option in ("-m", "-c"):
            return ""
        if option in ("-W", "-X", "--check-hash-based-pycs"):
            next(options, None)
        elif option == "-" or not option:
            return None
        elif not option.startswith("-"):
            return option
        elif not option.startswith("--") and option[-1] in "mc" and option[1] not in "WX":  # -Im, -bc
            return ""
    return None
