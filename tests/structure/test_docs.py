"""The Python blocks of tutorial, how-to and API run, page by page, in the order in which a reader meets them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from temporalex_django.authoring.schedules import functions, schedule
from temporalex_django.core.primitive_table import PRIMITIVES

ROOT = Path(__file__).resolve().parents[2]
API = sorted(ROOT.glob("docs/reference/api/*.md"))
SKILL = ROOT / "temporalex_django" / "SKILL.md"
PAGES = sorted([*ROOT.glob("docs/tutorial/*.md"), *ROOT.glob("docs/howto/*.md"), *API, SKILL])
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


def test_pages_of_the_api_have_examples() -> None:
    assert [page.name for page in API if not BLOCK.search(page.read_text(encoding="utf-8"))] == []


def test_every_primitive_has_an_example() -> None:
    page = ROOT / "docs" / "reference" / "api" / "primitives.md"
    text = page.read_text(encoding="utf-8")
    examples = "".join(re.sub(r"```\{eval-rst\}.*?```", "", text, flags=re.DOTALL))

    assert [row.name for row in PRIMITIVES if f"api.{row.name}(" not in examples] == []


def test_links_lead_somewhere() -> None:
    assert [
        f"{page.relative_to(ROOT)} links to {target}"
        for page in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"))
        for target in LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ] == []
