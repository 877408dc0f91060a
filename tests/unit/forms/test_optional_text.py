"""An optional text that was left empty is null in the payload of a form, and a text that may be empty is empty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import pytest

from temporalex_django.forms.payload_forms import PayloadForm


@dataclass
class Decision:
    """A text that must be given, and optional ones."""

    note: str | None
    code: Annotated[str, msgspec.Meta(max_length=3)] | None
    later: str | None = None


@dataclass
class Text:
    """A text that may be empty."""

    title: str | int | None
    name: str


def payload_of(annotation: Any, **posted: str) -> Any:
    form = PayloadForm(
        {"token": "t", **{f"arg_{name}": value for name, value in posted.items()}}, annotation=annotation
    )
    assert form.is_valid(), form.errors
    return form.payload


@pytest.mark.parametrize(
    ("posted", "payload"),
    [
        ({"note": "", "code": "", "later": ""}, {"note": None, "code": None}),
        ({}, {"note": None, "code": None}),
        ({"note": "late", "code": "a", "later": "b"}, {"note": "late", "code": "a", "later": "b"}),
    ],
)
def test_an_optional_text_that_was_left_empty_is_null(posted: dict[str, str], payload: dict[str, Any]) -> None:
    assert payload_of(Decision, **posted) == payload


def test_json_keeps_an_empty_text() -> None:
    """A box for JSON has a way to write an empty text, so that stays one."""
    assert payload_of(Text, title='""', name="x") == {"title": "", "name": "x"}
    assert payload_of(Text, title="", name="x") == {"title": None, "name": "x"}
    assert payload_of(str | None) is None
