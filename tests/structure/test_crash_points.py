"""Every transaction of workers has a name in ``core.process``, and every name is one of a transaction."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from temporalex_django.core import process
from tests.structure.source import PACKAGE, modules, parse

#: Whose transactions are a caller's, one for an operation: they happened or did not. What bulk jobs and updates do is
#: walked through all the same.
CALLERS = {
    "operations",
    "backends",
    "access.py",
    "client.py",
    "rest",
    "admin",
    "forms",
    "pages",
    "testing",
    "migrations",
}
#: Inside of ``db``: what callers do, and what ``transaction`` itself is made of.
OF_CALLERS = {
    *("db/inserts.py", "db/graph_storage.py", "db/human_tasks.py", "db/session.py"),
    *("db/dialects/postgres.py", "db/dialects/sqlite.py"),
}


def sites() -> Iterator[tuple[str, int, str | None]]:
    """File, line and name of each ``….transaction(…)`` and ``transaction.atomic(…)``."""
    for path in modules(PACKAGE):
        where = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(parse(path)):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr == "transaction" or ast.unparse(node.func) == "transaction.atomic":
                first = node.args[0] if node.args else None
                yield where, node.lineno, str(first.value) if isinstance(first, ast.Constant) else None


def test_each_commit_of_a_worker_has_a_crash_point_and_each_point_a_commit() -> None:
    found = [*sites()]
    nameless = [
        f"{where}:{line}"
        for where, line, name in found
        if name is None and where.partition("/")[0] not in CALLERS and where not in OF_CALLERS
    ]
    assert not nameless, f"say transaction(site), with a line in core/process.py: {nameless}"
    named = Counter(name for _, _, name in found if name is not None)
    assert named == Counter([*process.SITES]), "each site is one transaction"


def test_each_other_point_is_reached_somewhere() -> None:
    text = "\n".join(path.read_text() for path in modules(PACKAGE) if path.name != "process.py")
    assert [point for point in process.AROUND if f'reached("{point}")' not in text] == []
