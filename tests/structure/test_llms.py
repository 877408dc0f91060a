"""Programs find the pages as Markdown: a list of all of them, and each beside its HTML."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from scripts import llms
from tests.structure.source import ROOT

DOCS = ROOT / "docs"


def test_the_list_is_that_of_the_sidebar() -> None:
    assert llms.PAGE.read_text(encoding="utf-8") == llms.text(), "run scripts/llms.py"


def test_each_page_is_in_the_list() -> None:
    listed = set(re.findall(r"\]\(([^)]+\.md)\)", llms.text()))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}

    assert {page for page in pages - listed if not page.startswith("decisions/")} == {"index.md"}
    assert listed - pages == set()


def test_a_title_and_the_first_sentence_describe_a_page() -> None:
    page = "# Reset a run\n\n<!-- made -->\n\nUse [a reset](reset.md) after\na mistake. It is safe.\n"

    assert llms.summary(page) == ("Reset a run", "Use a reset after a mistake.")
    assert llms.summary("# A\n\nThis page lists:\n\n- one\n") == ("A", "This page lists.")


def test_the_build_puts_each_page_beside_its_html(tmp_path: Path) -> None:
    pages = {"index.md": "# Start\n\n```{toctree}\nhowto/ids\n```\n", "howto/ids.md": "# Ids\n\nA page.\n"}
    for name, text in pages.items():
        (tmp_path / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "docs" / name).write_text(text, encoding="utf-8")
    site = tmp_path / "site"
    command = [sys.executable, "-m", "sphinx", "--quiet", "-c", str(DOCS), "-b", "html"]

    done = subprocess.run(
        [*command, str(tmp_path / "docs"), str(site)], capture_output=True, text=True, check=False, cwd=ROOT
    )

    assert done.returncode == 0, done.stderr
    assert (site / "howto" / "ids.html").is_file()
    assert {name: (site / name).read_text(encoding="utf-8") for name in pages} == pages
    assert (site / "llms.txt").read_text(encoding="utf-8") == llms.PAGE.read_text(encoding="utf-8")
