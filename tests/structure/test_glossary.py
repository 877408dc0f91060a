"""The glossary is in order and says each word once, in a sentence; words that it has replaced do not come back."""

from __future__ import annotations

import re
from pathlib import Path

from tests.structure.source import PACKAGE, modules, name

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "explanation" / "glossary.md").read_text(encoding="utf-8")
ENTRIES = re.findall(r"^- \*\*(.+?)\*\*: (.*(?:\n  .*)*)$", PAGE, re.MULTILINE)


def test_every_line_is_an_entry() -> None:
    assert len(ENTRIES) == PAGE.count("\n- ") >= 90


def test_words_are_in_alphabetical_order_and_stand_once() -> None:
    words = [word for word, _ in ENTRIES]

    assert words == sorted(set(words), key=str.lower)


def test_an_entry_is_one_sentence() -> None:
    long = [word for word, text in ENTRIES if not text.endswith(".") or re.search(r"[.!?] [A-Z]", text)]

    assert long == []


def test_words_that_others_replaced_do_not_come_back() -> None:
    replaced = re.compile(r"(?i)(?<![A-Za-z])(?:pumps?|keeper|course|dedupe|live_key|declined?|relatives)(?![A-Za-z])")

    found = {}
    for path in modules(PACKAGE):
        text = (
            path.read_text(encoding="utf-8").replace("Q2_PUMPS", "").replace("of course", "").replace("slots=True", "")
        )
        if hits := replaced.findall(text.replace("__slots__", "")):
            found[name(path)] = hits

    assert found == {}
