"""The page of operations on a cluster has each operation once, and says what its class declares."""

from __future__ import annotations

import re
from typing import Any, Final

from temporalex_django.operations.registry import ACTIONS, STEERING
from temporalex_django.operations.run_lookup import CLUSTER_PROMISES, RunAction
from temporalex_django.operations.runs.operator_action import OperatorRunAction
from tests.structure.source import ROOT
from tests.support.both_backends import REASONS, exceptions

#: Operations on a run that are not those of an operator.
ON_RUNS: Final = {"start", "signal", "signal_with_start", "update", "resume", "decide", "query", "move"}
HOW: Final = {"outbox", "at once", "at once, also inside a transaction", "rows", "refused"}


def rows() -> dict[str, str]:
    page = (ROOT / "docs" / "reference" / "cluster.md").read_text(encoding="utf-8")
    table = page.partition("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", table, flags=re.MULTILINE))


def test_each_operation_on_a_run_has_a_row() -> None:
    assert set(rows()) == set(STEERING) | ON_RUNS
    assert set(ACTIONS) >= ON_RUNS
    assert set(rows().values()) <= HOW


def promise(action: type[RunAction[Any]]) -> str:
    """How the page describes an operation that declares this."""
    words = {"asks": "outbox", "at once": "at once", "rows only": "rows"}
    return words.get(str(action.cluster), "refused")


def test_the_page_says_what_each_class_declares() -> None:
    steered = {**STEERING, "move": ACTIONS["move"]}
    declared = {name: promise(action) for name, action in steered.items() if issubclass(action, RunAction)}

    assert declared == {name: how for name, how in rows().items() if name in steered}


def test_each_operation_on_a_run_declares_it() -> None:
    """Those on a run that say nothing are refused, which is no choice that somebody made."""
    actions = [action for action in ACTIONS.values() if issubclass(action, RunAction)]

    assert [action.name for action in actions if action.cluster is RunAction.cluster] == []
    assert {str(action.cluster) for action in actions if action.cluster_refusal() is None} == set(CLUSTER_PROMISES)


def test_an_operation_that_declares_nothing_is_refused() -> None:
    class Repaint(OperatorRunAction[None]):
        def perform(self) -> None: ...

    assert Repaint.cluster_refusal() == RunAction.cluster


def test_the_page_has_each_reason_for_which_a_test_does_not_pass_there() -> None:
    page = (ROOT / "docs" / "reference" / "cluster.md").read_text(encoding="utf-8")
    assert set(exceptions().values()) == set(REASONS)
    for name, reason in REASONS.items():
        assert name.startswith("tables") or f"| {reason} |" in page
