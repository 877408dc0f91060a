"""What differs between databases is said by their dialects."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest

from temporalex_django.db import dialects
from temporalex_django.engine.contracts.dialect import Dialect
from tests.structure.source import PACKAGE, modules, name, parse


def test_only_dialects_ask_which_database_it_is() -> None:
    """Everybody else asks for a capability: a third database is a dialect, not a search through the package."""
    asking = [
        f"{name(path)}:{node.lineno}"
        for path in modules(PACKAGE)
        if path.parent != PACKAGE / "db" / "dialects"
        for node in ast.walk(parse(path))
        if (isinstance(node, ast.Attribute) and node.attr == "vendor")
        or (isinstance(node, ast.Constant) and node.value in ("vendor", "postgresql", "sqlite"))
    ]
    assert asking == []


def dialect_classes() -> list[type[Any]]:
    """Return the classes of the modules of ``db/dialects`` that are named as dialects."""
    found = []
    for module in iter_modules(dialects.__path__, f"{dialects.__name__}."):
        members = vars(import_module(module.name)).items()
        found += [cls for key, cls in members if key.endswith("Dialect") and cls.__module__ == module.name]
    return [cls for cls in found if cls is not Dialect]


def lacks(cls: type[Any]) -> list[str]:
    """Name what the contract asks for and the class neither has nor assigns in ``__init__``."""
    wanted = [*Dialect.__annotations__, *(key for key in vars(Dialect) if not key.startswith("_"))]
    assigned = inspect.getsource(cls)
    return [
        f"{cls.__name__} lacks {key}" for key in wanted if not hasattr(cls, key) and f"self.{key} =" not in assigned
    ]


@pytest.mark.parametrize("cls", dialect_classes(), ids=lambda cls: cls.__name__)
def test_each_dialect_has_all_that_the_engine_asks_for(cls: type[Any]) -> None:
    assert lacks(cls) == []


def test_what_a_dialect_lacks_is_named() -> None:
    class Bare:
        alias = name = "bare"

    assert "Bare lacks is_transient" in lacks(Bare)
    assert "Bare lacks writer_lock" in lacks(Bare)
    assert "Bare lacks alias" not in lacks(Bare)
