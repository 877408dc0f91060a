"""The storage contract names all that workers and liveness use of a storage."""

from __future__ import annotations

import ast

from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.contracts.dialect import Dialect
from temporalex_django.engine.contracts.storage import WorkerStorage
from tests.structure.source import PACKAGE, dotted, modules, name, parse

#: Names of variables and attributes that hold a storage, and what each contract declares.
_STORAGES = {"storage", "_storage"}
_FILES = [*modules(PACKAGE / "workers"), *modules(PACKAGE / "liveness")]


def declared(contract: type) -> set[str]:
    return {
        attribute
        for cls in contract.__mro__
        for attribute in (*vars(cls), *vars(cls).get("__annotations__", {}))
        if not attribute.startswith("_")
    }


def reads(tree: ast.Module, owner: set[str]) -> list[ast.Attribute]:
    """Attributes that are read from what one of the attributes or variables ``owner`` holds."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and dotted(node.value).rpartition(".")[2] in owner
    ]


def undeclared(owner: set[str], contract: type) -> list[str]:
    """Places that read from one of the variables ``owner`` what a contract does not declare."""
    names = declared(contract)
    return [
        f"{name(path)}:{node.lineno}: {node.attr}"
        for path in _FILES
        for node in reads(parse(path), owner)
        if node.attr not in names
    ]


def test_what_is_read_from_a_storage_is_in_the_contract():
    assert undeclared(_STORAGES, WorkerStorage) == []


def test_what_is_read_from_a_dialect_is_in_its_contract():
    assert undeclared({"sql"}, Dialect) == []


def test_workers_and_liveness_are_seen_to_use_both():
    """Without this a rename of the variables would leave the other tests with nothing to look at."""
    used = {node.attr for path in _FILES for node in reads(parse(path), _STORAGES)}
    assert len(used) > 25
    assert {"claim_limited", "sql", "submit_claim"} <= used


def test_storages_are_passed_on_as_the_contract():
    """The types do the rest: a parameter that is a ``DjangoStorage`` would let it pass anything of that class."""
    assert [
        f"{name(path)}:{node.lineno}: {argument.arg}"
        for path in _FILES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.FunctionDef)
        for argument in (*node.args.args, *node.args.kwonlyargs)
        if argument.annotation is not None and ast.unparse(argument.annotation) == "DjangoStorage"
    ] == []


def test_the_database_fulfils_the_contract():
    storage = DjangoStorage()
    assert [attribute for attribute in declared(WorkerStorage) if not hasattr(storage, attribute)] == []
