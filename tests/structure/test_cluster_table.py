"""The page of operations on a cluster has each operation once, and refuses those that the code refuses."""

from __future__ import annotations

import re
from typing import Final

from temporalex_django.backends.protocol import CLUSTER_REFUSALS
from temporalex_django.operations.registry import ACTIONS, STEERING
from tests.structure.source import ROOT
from tests.support.both_backends import REASONS, exceptions

#: Operations on a run that are not those of an operator.
ON_RUNS: Final = {"start", "signal", "signal_with_start", "update", "resume", "decide", "query", "move"}
HOW: Final = {"outbox", "at once", "at once, also inside a transaction", "refused"}


def rows() -> dict[str, str]:
    page = (ROOT / "docs" / "reference" / "cluster.md").read_text(encoding="utf-8")
    table = page.partition("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", table, flags=re.MULTILINE))


def test_each_operation_on_a_run_has_a_row() -> None:
    assert set(rows()) == set(STEERING) | ON_RUNS
    assert set(ACTIONS) >= ON_RUNS
    assert set(rows().values()) <= HOW


def test_the_page_refuses_what_the_code_refuses() -> None:
    assert {name for name, how in rows().items() if how == "refused"} == set(CLUSTER_REFUSALS)


def test_the_page_has_each_reason_for_which_a_test_does_not_pass_there() -> None:
    page = (ROOT / "docs" / "reference" / "cluster.md").read_text(encoding="utf-8")
    assert set(exceptions().values()) == set(REASONS)
    for name, reason in REASONS.items():
        assert name.startswith("tables") or f"| {reason} |" in page
