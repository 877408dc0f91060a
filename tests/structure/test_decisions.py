"""Records of decisions: numbered, of one shape, listed, and readable without any other document."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "decisions"
RECORDS = sorted(FOLDER.glob("0*.md"))
SECTIONS = ["Context", "Decision", "Alternatives", "Consequences"]


def title(record: Path) -> str:
    return record.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def test_numbers_have_no_gaps() -> None:
    assert [int(record.name[:4]) for record in RECORDS] == list(range(1, len(RECORDS) + 1))


def test_each_record_has_its_four_sections() -> None:
    for record in RECORDS:
        text = record.read_text(encoding="utf-8")

        assert title(record).startswith(f"{int(record.name[:4])}. "), record.name
        assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS, record.name
        assert re.search(r"^- \*.+?\*", text.partition("## Alternatives")[2], re.MULTILINE), (
            f"{record.name} has no alternative that has a name"
        )


def test_the_index_lists_each_record_once_by_its_title() -> None:
    index = (FOLDER / "index.md").read_text(encoding="utf-8")

    listed = re.findall(r"^- \[(.*)\]\((0\d{3}-.*\.md)\)$", index, re.MULTILINE)

    assert sorted(listed, key=lambda entry: entry[1]) == [(title(record), record.name) for record in RECORDS]
