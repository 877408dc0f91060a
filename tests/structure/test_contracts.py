"""Who may import whom: each contract in pyproject.toml is kept, and each sees a module that breaks it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import grimp
import pytest

from tests.structure.source import PACKAGE, ROOT

CONTRACTS: list[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
    "importlinter"
]["contracts"]


def violation(contract: dict[str, Any]) -> Any:
    """A module and what it must not import: the lowest layer takes the highest, a source what is forbidden to it."""
    if contract["type"] == "layers":
        (container,) = contract["containers"]
        imported, *_, module = (f"{container}.{layer.split('|')[0].strip()}" for layer in contract["layers"])
    else:
        module, imported = contract["source_modules"][-1], contract["forbidden_modules"][0]
    return pytest.param(contract["name"], module, imported, id=f"{module} takes {imported}")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package and its contracts, where a test may break them."""
    folder = tmp_path_factory.mktemp("contracts")
    shutil.copytree(PACKAGE, folder / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def lint(folder: Path) -> tuple[int, str]:
    """The end and the words of import-linter in a folder."""
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"],
        cwd=folder,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(("contract", "module", "imported"), [violation(contract) for contract in CONTRACTS])
def test_a_contract_sees_who_breaks_it(copy: Path, contract: str, module: str, imported: str) -> None:
    path = copy.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    kept = path.read_text(encoding="utf-8")
    try:
        path.write_text(f"{kept}\nimport {imported}\n", encoding="utf-8")
        code, said = lint(copy)
    finally:
        path.write_text(kept, encoding="utf-8")

    assert code
    assert f"{contract} BROKEN" in said


def test_a_room_that_no_layer_names_is_seen(copy: Path) -> None:
    path = copy / PACKAGE.name / "nobodys.py"
    path.touch()
    try:
        code, said = lint(copy)
    finally:
        path.unlink()

    assert code
    assert "nobodys" in said


def test_they_are_kept(copy: Path) -> None:
    code, said = lint(copy)

    assert not code, said
    assert said.count(" KEPT") == len(CONTRACTS)


def test_no_room_needs_one_above_it_for_types_either() -> None:
    """The contracts of the rooms hold with what is imported for type checkers alone.

    Inside a room two modules may name each other's types.
    """
    graph = grimp.build_graph(PACKAGE.name, exclude_type_checking_imports=False)
    rooms = CONTRACTS[0]
    layers = [grimp.Layer(*layer.split(" | "), independent=True) for layer in rooms["layers"]]

    found = graph.find_illegal_dependencies_for_layers(layers=layers, containers=rooms["containers"])

    assert {(one.importer, one.imported) for one in found} == set()
