"""The checkout as data, for the tests of its structure."""

from __future__ import annotations

import ast
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "temporalex_django"


def modules(folder: Path) -> list[Path]:
    """Every Python file of a folder, in order."""
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


@cache
def parse(path: Path) -> ast.Module:
    """Return the tree of a file. All tests of a process share it, so nobody changes it."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def files_of_the_repository() -> list[Path]:
    """What is or would be committed: tracked files and new ones that are not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    paths = (ROOT / entry.decode() for entry in listed.split(b"\0") if entry)
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def dotted(node: ast.expr) -> str:
    """``a.b.c`` for an attribute chain, the empty string for anything else."""
    match node:
        case ast.Name(id=identifier):
            return identifier
        case ast.Attribute(value=value, attr=attribute):
            head = dotted(value)
            return f"{head}.{attribute}" if head else ""
        case _:
            return ""
