"""What the host of a cluster refuses: by name, under a reason of a closed list, and not more than there is."""

from __future__ import annotations

import ast
import json

import pytest

from tests.structure.source import ROOT
from tests.support.temporal import refusals

#: The most cases of each reason. A number may fall, and does not grow.
MOST = {
    "time beside work": 0,
    "gap": 13,
    "order in a task": 2,
    "closed or unknown": 4,
    "order of several": 2,
    "attempts": 0,
    "fork and edited input": 72,
    "clock": 22,
    "engine tables": 22,
    "operator actions": 76,
    "second part": 49,
}


def test_the_reasons_are_those_of_the_closed_list():
    stored = json.loads(refusals.PAGE.read_text(encoding="utf-8"))
    assert stored.keys() <= refusals.REASONS.keys() == MOST.keys()
    names = [name for cases in stored.values() for name in cases]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("reason", refusals.REASONS)
def test_no_reason_grows(reason):
    stored = json.loads(refusals.PAGE.read_text(encoding="utf-8"))
    assert len(stored.get(reason, [])) <= MOST[reason]


def test_each_refused_case_exists():
    functions = {
        f"{path.name}::{node.name}"
        for path in (ROOT / "tests" / "acceptance").glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    for name in refusals.refused():
        file, *_, function = name.removesuffix(" (evicted)").partition("[")[0].split("::")
        assert f"{file}::{function}" in functions, name
