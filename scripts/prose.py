"""Check the prose of docstrings, comments, pages and templates; print each finding and exit with 1 if there is one.

    python scripts/prose.py

A docstring opens with what the thing is or does. People are "they", the reader is "you". A sentence has at most 40
words. Words that the glossary replaced do not come back.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("temporalex_django", "docs", "example_project", "scripts", "benchmarks", "templates")
#: Generated from the code, or a list of names.
SKIPPED = ("migrations", "__pycache__", "reference/messages.md", "reference/conformance.md", "scripts/prose.py")
LONGEST = 40

OPENING = re.compile(r"(?:What|Of|The same|Those|Whoever|Whether|Who|How|That|Where|Which|Why|Nobody)\b")
PERSON = re.compile(r"\b(?:(?i:whoever)|he|He|him|his|His)\b")
REPLACED = re.compile(
    r"(?i)\b(?:lone (?:activity|activities|tasks?)|(?:takes?|has|gives?) the wheel|bur(?:y|ied)|rings? (?:for|the)|left to others"
    r"|steer(?:s|ed|ing)? (?:a|the) runs?|dead locks|pumps?)\b"
)
CODE = re.compile(r"``[^`]*``|`[^`\n]*`|\[([^\]]*)\]\([^)]*\)|https?://\S+")
MARKUP = re.compile(r"```.*?```|\{[%{#].*?[%}#]\}|<[^>]*>", re.DOTALL)
#: A sentence ends with its sign, a paragraph, a row of a table or an item of a list.
SENTENCE = re.compile(r"[.!?:;·├└](?:\s|$|─)|\n\s*\n|\n\s*(?:[-*|#]|\d+\.)\s?|\|")


def texts_of_module(source: str) -> Iterator[tuple[int, str, bool]]:
    """Yield line and text of each docstring and each line of comments, and whether it is a docstring."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield node.body[0].lineno, docstring, True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#: "), False


def findings(name: str, source: str) -> Iterator[str]:
    """Yield what is wrong with the prose of a file, each with its place and advice."""
    for line, text, is_docstring in texts_of_module(source) if name.endswith(".py") else [(1, source, False)]:
        place = f"{name}:{line}"
        if is_docstring and OPENING.match(text):
            yield f"{place}: begins with {text.split(maxsplit=1)[0]!r}, not with what the thing is or does"
        plain = CODE.sub(lambda code: f" {code[1] or 'x'} ", MARKUP.sub("\n\n", text))
        for pattern, advice in ((PERSON, "a person is 'they', the reader is 'you'"), (REPLACED, "see the glossary")):
            for match in pattern.finditer(plain):
                yield f"{place}: {match[0]!r}: {advice}"
        for sentence in SENTENCE.split(plain):
            if len(sentence.split()) > LONGEST:
                yield f"{place}: a sentence of {len(sentence.split())} words: {' '.join(sentence.split()[:8])} …"


def main() -> int:
    pages = [ROOT / f"{name}.md" for name in ("README", "CODE_OF_CONDUCT", "CONTRIBUTING", "SECURITY")]
    for folder in FOLDERS:
        pages += sorted(p for p in (ROOT / folder).rglob("*") if p.suffix in {".py", ".md", ".html", ".txt"})
    names = [page.relative_to(ROOT).as_posix() for page in pages]
    checked = [name for name in names if not any(part in name for part in SKIPPED)]
    wrong = [text for name in checked for text in findings(name, (ROOT / name).read_text(encoding="utf-8"))]
    print("\n".join(wrong) or "the prose has no findings")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
