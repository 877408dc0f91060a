"""The console's files: what comes from elsewhere is what was looked at, and nothing needs more than a strict CSP."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import pytest

from tests.structure.source import PACKAGE

STATIC = PACKAGE / "static" / "temporalex_django"
TEMPLATES = sorted((PACKAGE / "templates" / "temporalex_django" / "console").rglob("*.html"))
#: The file of the package htmx.org on npm, and its digest.
HTMX = {"htmx-4.0.1.min.js": "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130"}
MOST_LINES = 100


def test_htmx_is_the_file_that_was_published() -> None:
    assert {path.name: sha256(path.read_bytes()).hexdigest() for path in STATIC.glob("htmx*.js")} == HTMX
    assert "Zero-Clause BSD" in (STATIC / "htmx-4.0.1.LICENSE").read_text(encoding="utf-8")


def test_the_script_of_the_console_is_short_and_evaluates_nothing() -> None:
    text = (STATIC / "console.js").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_LINES
    assert not re.search(r"\beval\b|\bFunction\(|innerHTML|setAttribute\(\"style", text)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_a_page_has_no_inline_script_or_style_and_a_fragment_no_form(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"\s(style|on[a-z]+|(data-)?hx-on[^=]*|(data-)?hx-vals|(data-)?hx-headers)=", text)
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", text))
    assert set(re.findall(r'data-hx-trigger="([^"]*)"', text)) <= {"every 5s"}
    if path.stem.endswith("_live"):
        assert "<form" not in text
        assert "csrf_token" not in text
        assert 'data-hx-swap="outerMorph"' in text
