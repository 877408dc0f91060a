"""What a workflow does next is a pure function: time, chance and the world come in as arguments."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from tests.structure.source import PACKAGE, dotted, modules, name, parse

if TYPE_CHECKING:
    from collections.abc import Iterator

PURE_FOLDERS = [folder for folder in ("core", "graph") if (PACKAGE / folder).is_dir()]
#: All side effects of graphs live in these (HE-002): storages and runners, and the engines made of them.
ADAPTERS = ("temporalex_django/graph/local_runner.py", "temporalex_django/graph/standalone_engine.py")
PURE_MODULES = [path for folder in PURE_FOLDERS for path in modules(PACKAGE / folder) if name(path) not in ADAPTERS]

#: Modules that read a clock, chance, the environment or the outside world.
FORBIDDEN_IMPORTS = {
    "asyncio", "django", "django_q", "io", "os", "pathlib", "psycopg", "requests", "rest_framework", "secrets", "select",
    "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "tempfile", "time", "urllib.request",
}  # fmt: skip
FORBIDDEN_NAMES = {
    "datetime.now", "datetime.utcnow", "datetime.today", "date.today", "datetime.datetime.now",
    "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today",
    "uuid.uuid1", "uuid.uuid4", "uuid4", "uuid1", "os.environ", "os.urandom", "input", "open",
    "logging.basicConfig", "logging.config",
}  # fmt: skip
#: Of `random` only a generator with a seed of its own.
ALLOWED_OF_RANDOM = {"random.Random"}


def violations(source: ast.Module) -> list[str]:
    found = []
    type_checking = {
        id(child)
        for node in ast.walk(source)
        if isinstance(node, ast.If) and dotted(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
        for statement in node.body
        for child in ast.walk(statement)
    }
    for node in ast.walk(source):
        match node:
            case ast.Import(names=names) if id(node) not in type_checking:
                imported = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module), names=names, level=0) if id(node) not in type_checking:
                imported = [module, *(f"{module}.{alias.name}" for alias in names)]
            case ast.Call(func=ast.Name(id="Random") | ast.Attribute(attr="Random"), args=[], keywords=[]):
                found.append(f"line {node.lineno}: Random() without a seed")
                continue
            case ast.Attribute() | ast.Name():
                used = dotted(node)
                if used in FORBIDDEN_NAMES or (used.startswith("random.") and used not in ALLOWED_OF_RANDOM):
                    found.append(f"line {node.lineno}: {used}")
                continue
            case _:
                continue
        found.extend(
            f"line {node.lineno}: import {module}"
            for module in imported
            if module in FORBIDDEN_NAMES
            or any(module == banned or module.startswith(f"{banned}.") for banned in FORBIDDEN_IMPORTS)
            or (module.startswith("random.") and module not in ALLOWED_OF_RANDOM)
        )
    return found


def test_a_pure_module_asks_nobody() -> None:
    assert [f"{name(path)}, {violation}" for path in PURE_MODULES for violation in violations(parse(path))] == []


def test_a_pure_module_stands_on_no_adapter() -> None:
    """HE-001 HE-002 HE-004."""
    assert [
        f"{name(path)}, line {node.lineno}: {node.module}"
        for path in PURE_MODULES
        for node in parse(path).body
        if isinstance(node, ast.ImportFrom) and f"{(node.module or '').replace('.', '/')}.py" in ADAPTERS
    ] == []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from time import monotonic",
        "from django.utils import timezone",
        "import random\nrandom.random()",
        "from random import random",
        "import random\nrandom.Random()",
        "from datetime import datetime\ndatetime.now()",
        "import datetime\ndatetime.datetime.now()",
        "from uuid import uuid4",
        "import uuid\nuuid.uuid4()",
        "import os",
        "open('x')",
    ],
)
def test_the_check_sees_what_it_is_for(source: str) -> None:
    assert violations(ast.parse(source))


@pytest.mark.parametrize(
    "source",
    [
        "import random\nrandom.Random(seed).random()",
        "from random import Random\nRandom(7)",
        "from uuid import UUID, uuid5",
        "from datetime import datetime, timedelta",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from django.db import models",
    ],
)
def test_the_check_lets_the_pure_forms_pass(source: str) -> None:
    assert violations(ast.parse(source)) == []


#: A coroutine is suspended by an ``__await__`` that yields or by ``types.coroutine``; an ordinary generator yields to
#: its own caller, and says so in its annotation.
GENERATORS = {"Iterator", "Iterable", "Generator"}
MAY_SUSPEND = {
    "temporalex_django/core/units/ivar.py",
    "temporalex_django/core/units/scheduler.py",  # probes the interpreter with a coroutine of its own
}


def suspends(node: ast.AST) -> bool:
    match node:
        case ast.FunctionDef(name="__await__") | ast.AsyncFunctionDef(name="__await__"):
            return True
        case ast.Attribute(attr="coroutine", value=ast.Name(id="types")):
            return True
        case ast.ImportFrom(module="types", names=names):
            return any(alias.name == "coroutine" for alias in names)
        case ast.FunctionDef(returns=returns) if any(
            isinstance(part, (ast.Yield, ast.YieldFrom)) for part in own(node)
        ):
            annotation = returns.value if isinstance(returns, ast.Subscript) else returns
            return annotation is None or dotted(annotation).rpartition(".")[2] not in GENERATORS
        case _:
            return False


def own(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            waiting.extend(ast.iter_child_nodes(node))


def test_only_ivar_yields_to_the_scheduler() -> None:
    """ST-016."""
    suspending = {name(path) for path in modules(PACKAGE / "core") if any(map(suspends, ast.walk(parse(path))))}

    assert suspending <= MAY_SUSPEND


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("class A:\n    def __await__(self): ...", True),
        ("import types\n@types.coroutine\ndef trap():\n    yield 1", True),
        ("from types import coroutine", True),
        ("def trap():\n    yield 1", True),
        ("def rows() -> Iterator[int]:\n    yield 1", False),
        ("def outer():\n    def rows() -> Iterator[int]:\n        yield 1", False),
    ],
)
def test_the_check_knows_a_suspension(source: str, expected: bool) -> None:
    assert any(map(suspends, ast.walk(ast.parse(source)))) is expected
