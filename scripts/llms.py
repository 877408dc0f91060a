"""Write the lists of pages in ``docs/llms.txt``: their titles and first sentences, in the order of the sidebar.

    python scripts/llms.py

The part before the first list is written by hand and stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "llms.txt"
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def lists(docs: Path) -> Iterator[str]:
    """Yield the lines: a heading for each part of the sidebar, and below it a link to each page."""
    for block in TOCTREE.findall((docs / "index.md").read_text(encoding="utf-8")):
        caption = re.search(r"^:caption: (.+)$", block, re.MULTILINE)
        yield f"## {caption[1] if caption else 'Pages'}\n"
        for name in re.findall(r"^[\w/-]+$", block, re.MULTILINE):
            title, sentence = summary((docs / f"{name}.md").read_text(encoding="utf-8"))
            yield f"- [{title}]({name}.md): {sentence}"
        yield ""


def summary(page: str) -> tuple[str, str]:
    """Return the title of a page and its first sentence."""
    title, _, rest = page.partition("\n\n")
    paragraphs = (" ".join(text.split()) for text in rest.split("\n\n"))
    opening = next(text for text in paragraphs if text[:1].isalnum() or text.startswith(("`", "[")))
    sentence = re.split(r"(?<=[.:])\s", LINK.sub(r"\1", opening), maxsplit=1)[0]
    return title.removeprefix("# ").strip(), re.sub(r":$", ".", sentence)


def text() -> str:
    """Return the file as it must be."""
    by_hand = PAGE.read_text(encoding="utf-8").partition("\n## ")[0].rstrip()
    return "\n".join([by_hand, "", *lists(DOCS)]).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
