"""The adapter to a cluster stays small: it translates, and decides little."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

from tests.structure.source import PACKAGE, modules, name

#: Most lines of code of a module of the adapter: without comments, blank lines and docstrings.
OF_ONE = 250
#: Most of all. Lower this number when the adapter shrinks.
OF_ALL = 1_280
ADAPTER = PACKAGE / "temporal"
_NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def code_lines(text: str) -> int:
    """The number of lines on which code stands."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node
        ):
            lines.difference_update(range(body[0].lineno, body[0].end_lineno + 1))
    return len(lines)


def counted(folder: Path) -> dict[str, int]:
    return {name(path): code_lines(path.read_text()) for path in modules(folder)}


def test_the_adapter_has_few_lines():
    assert sum(counted(ADAPTER).values()) <= OF_ALL


def test_no_module_of_the_adapter_is_long():
    assert {module: lines for module, lines in counted(ADAPTER).items() if lines > OF_ONE} == {}


def test_only_code_is_counted():
    text = '"""A docstring\nof two lines."""\n\n# a comment\nx = [\n    1,  # behind code\n]\n\n\ndef f():\n    """Another."""\n    return """a\nb"""\n'
    assert code_lines(text) == 6
