"""Workflow classes of tests have names of their own: runs find their class by its name in the process."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.structure.source import ROOT, parse


def test_no_two_classes_of_a_process_have_a_name():
    """A run of one would be executed by the code of the other, in a process that has imported both."""
    found: dict[str, set[str]] = defaultdict(set)
    for folder in sorted((ROOT / "tests").iterdir()):
        if folder.name == "typing":  # only type checkers read these files
            continue
        for path in sorted(folder.rglob("*.py")):
            for node in parse(path).body:
                if not isinstance(node, ast.ClassDef) or not node.bases:
                    continue
                if ast.unparse(node.bases[0]) not in ("Workflow", "GraphWorkflow"):
                    continue
                names = [
                    part.value.value
                    for part in node.body
                    if isinstance(part, ast.Assign)
                    and ast.unparse(part.targets[0]) == "name"
                    and isinstance(part.value, ast.Constant)
                ]
                found[names[0] if names else node.name].add(str(path.relative_to(ROOT)))
    assert {name: sorted(paths) for name, paths in found.items() if len(paths) > 1} == {}
