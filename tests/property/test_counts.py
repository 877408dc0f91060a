"""The laws say nothing about what is never generated."""

from __future__ import annotations

import sys

import pytest

from tests.property.counts import CONSTRUCTS, count


@pytest.mark.skipif(
    sys.version_info < (3, 12),
    reason="what is generated does not depend on Python, and of the few examples there each is rare",
)
def test_each_construct_is_run_by_one_program_in_sixty() -> None:
    """TX-191."""
    total, counts = count()
    rare = {name: f"{counts[name] / total:.1%}" for name in CONSTRUCTS if counts[name] * 60 < total}
    assert not rare, f"too rare among {total} programs: {rare}"
