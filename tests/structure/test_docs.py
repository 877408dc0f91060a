"""The Python blocks of tutorial and how-to run, page by page, in the order in which a reader meets them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from temporalex_django.authoring.schedules import functions, schedule

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("docs/tutorial/*.md"), *ROOT.glob("docs/howto/*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+?)(?:#[^)]*)?\)")


@pytest.fixture(autouse=True)
def registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedules and functions of a page are gone afterwards, since other tests look at all that are registered."""
    monkeypatch.setattr(schedule, "_declarations", {})
    monkeypatch.setattr(functions.ARGUMENTS, "_functions", {})
    monkeypatch.setattr(functions.HOLIDAYS, "_functions", {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_run(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    namespace: dict[str, object] = {"__name__": f"docs_{page.stem.replace('-', '_')}"}

    blocks = list(BLOCK.finditer(text))
    ran = 0
    for match in blocks:
        line = text.count("\n", 0, match.start()) + 1
        code = compile("\n" * line + match.group(1), str(page), "exec", dont_inherit=True)
        exec(code, namespace)
        ran += 1

    assert ran == text.count("\n```python\n"), "a block that the pattern does not see"


def test_links_lead_somewhere() -> None:
    assert [
        f"{page.relative_to(ROOT)} links to {target}"
        for page in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"))
        for target in LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ] == []
