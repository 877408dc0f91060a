"""Payloads as pages show them."""

from __future__ import annotations

from typing import Any

import pytest

from temporalex_django.console.base import format_call
from temporalex_django.models.fields import UnreadablePayload

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ([["c22", 56929], {}], '"c22", 56929'),
        ([[{"a": 1}], {"force": True}], '{"a": 1}, force=true'),
        ([[], {}], "–"),
        # Neither a placeholder nor something that another program has stored is a call.
        ("***", '"***"'),
        ([1, 2], "[1, 2]"),
    ],
)
def test_arguments_are_written_as_in_a_call(call: Any, text: str) -> None:
    assert format_call(call).text == text


def test_long_arguments_fold_and_are_cut() -> None:
    call = format_call([["x" * 30_000], {"n": 1}])
    assert not call.is_short
    assert call.preview.endswith("…")
    assert call.left_out > 0


def test_arguments_that_nobody_can_read_are_a_placeholder() -> None:
    assert "cannot be read" in format_call(UnreadablePayload("cannot be read")).text
