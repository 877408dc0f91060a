"""What a row holds is declared by the models, and named by ``db/sql_columns.py`` for every statement."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from temporalex_django.db import sql_columns
from tests.structure.source import PACKAGE, modules, name, parse

TABLES = [
    sql_columns.CHAINS,
    sql_columns.RUNS,
    sql_columns.EVENTS,
    sql_columns.MESSAGES,
    sql_columns.TASKS,
    sql_columns.WORKERS,
]
COLUMNS = {column for table in TABLES for column in table.kinds}
KINDS = {kind for table in TABLES for kind in table.kinds.values()}
#: So many columns in a row are a list that a builder makes.
LIST = 4
LISTED = re.compile(r"(?:\w{1,2}\.)?\w+(?:,\s*(?:\w{1,2}\.)?\w+)+")
SQL = re.compile(r"insert into temporalex_|\bset \w+ = v\.\w+")


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Every text of a module that does not stand by itself, as docstrings do."""
    tree = parse(path)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in alone:
            continue
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(v.value if isinstance(v, ast.Constant) else "{}" for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def is_by_hand(text: str) -> bool:
    if SQL.search(text):
        return True
    lists = ([item.rpartition(".")[2] for item in re.split(r",\s*", m[0])] for m in LISTED.finditer(text))
    return any(len(items) >= LIST and COLUMNS.issuperset(items) for items in lists)


def typed_by_hand(path: Path) -> Iterator[int]:
    """Pairs of a column and its type."""
    for node in ast.walk(parse(path)):
        match node:
            case ast.Tuple(elts=[ast.Constant(value=str(column)), ast.Constant(value=str(kind))]):
                if column in COLUMNS and kind in KINDS:
                    yield node.lineno


def outside() -> list[Path]:
    kept = {PACKAGE / "db" / "sql_columns.py"}
    return [p for p in modules(PACKAGE) if p not in kept and p.parent.name not in ("migrations", "dialects")]


def test_statements_take_their_columns_from_the_builder() -> None:
    assert [f"{name(p)}:{line}" for p in outside() for line, text in texts(p) if is_by_hand(text)] == []


def test_types_of_columns_stand_in_the_models_alone() -> None:
    assert [f"{name(p)}:{line}" for p in outside() for line in typed_by_hand(p)] == []


@pytest.mark.parametrize(
    "text",
    [
        "insert into temporalex_chain (id) select %s",
        "update temporalex_chain set closed = v.closed from v",
        "select c.id, c.run_id, c.queue, c.closed from temporalex_chain c",
    ],
)
def test_what_is_written_by_hand_is_found(text: str) -> None:
    assert is_by_hand(text)


def test_a_column_that_a_table_lacks_is_an_error_at_once() -> None:
    with pytest.raises(LookupError, match="temporalex_chain has no column stamp"):
        sql_columns.CHAINS.pick_columns("id", "stamp")
    with pytest.raises(LookupError, match="temporalex_chain has no column stamp"):
        sql_columns.CHAINS.update({"stamp": "null"}, "")
