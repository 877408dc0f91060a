"""The laws say nothing about what is never generated."""

from __future__ import annotations

from tests.property.counts import CONSTRUCTS, count


def test_each_construct_is_run_by_one_program_in_twenty() -> None:
    """TX-191."""
    total, counts = count()
    rare = {name: f"{counts[name] / total:.1%}" for name in CONSTRUCTS if counts[name] * 20 < total}
    assert not rare, f"too rare among {total} programs: {rare}"
