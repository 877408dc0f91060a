"""Each number of the scheduling policy says what it serves, and stands in one module."""

from __future__ import annotations

import ast
import re

from benchmarks.rows import ROWS
from temporalex_django.engine import policy
from tests.structure.source import PACKAGE, ROOT, modules, parse

POLICY = PACKAGE / "engine" / "policy.py"
_ROOMS = ("db", "engine", "liveness", "workers")
_FILES = [path for room in _ROOMS for path in modules(PACKAGE / room) if path != POLICY]
_NAMES = [key for key in vars(policy) if key.isupper()]
#: Numbers that say how something is stored or measured, or what an operation may do. None of them schedules anything.
_ELSEWHERE = {
    "db/attempt_scope.py": {"AFTER_TRANSACTION", "_OPEN_STATES", "_LONGEST_CACHED"},
    "db/dialects/libpq.py": {"_PREPARE_AFTER", "_MOST_PREPARED", "_MOST_COUNTED", "TESTED_VERSIONS"},
    "db/dialects/postgres.py": {"_WAIT_LOCK"},
    "db/messages/notify.py": {"_PAYLOAD_IDS"},
    "db/human_tasks.py": {"_EXTRA_HOLDERS"},
    "db/run_reader.py": {"_SIZE"},
    "db/retention.py": {"_UUID7"},
    "db/storage.py": {"_SUMMARIZING"},
    "engine/executors.py": {"_EXECUTOR_BYTES", "_EVENT_BYTES", "_PAYLOAD_FACTOR"},
    "engine/ids.py": {"_POOL_SIZE"},
    "engine/reset.py": {"_MAX_SUCCESSORS"},
    "liveness/crash_markers.py": {"_MAX_SLOTS", "_HEARTBEATS", "_ENDED_AFTER"},
    "liveness/guardian.py": {"_DIE_WITH_PARENT"},
    "liveness/health.py": {"_EXTRA_CONNECTIONS"},
    "workers/app_modules.py": {"_LARGEST"},
}


def served() -> dict[str, list[str]]:
    """By name of a number, what the comment above it, or above the first of its group, says that it serves."""
    found: dict[str, list[str]] = {}
    comment: list[str] = []
    for line in POLICY.read_text(encoding="utf-8").splitlines():
        if line.startswith("#: "):
            comment = [*comment, line[3:]] if comment and found.get("") is not None else [line[3:]]
            found[""] = []
        elif (assignment := re.match(r"([A-Z][A-Z0-9_]*) = ", line)) is not None:
            found.pop("", None)
            bracket = re.search(r"\[([^\]]+)\]$", " ".join(comment))
            found[assignment[1]] = [] if bracket is None else [item.strip() for item in bracket[1].split(",")]
        else:
            found.pop("", None)
            comment = []
    return found


def numbers(tree: ast.Module) -> set[str]:
    """Names of the module's constants whose value is made of numbers alone."""
    found: set[str] = set()
    for node in tree.body:
        targets, value = [], None
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign):
            targets, value = [node.target], node.value
        if value is None or not any(_is_number(leaf) for leaf in ast.walk(value)):
            continue
        if all(isinstance(leaf, _NUMERIC) for leaf in ast.walk(value)) or ast.unparse(value).startswith("timedelta("):
            found |= {leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)}
    return found


_NUMERIC = (ast.Constant, ast.Tuple, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.expr_context)


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool)


def test_a_number_names_a_row_of_the_benchmark_or_a_test():
    purposes = {number: served().get(number, []) for number in _NAMES}
    unknown = {
        number: [item for item in items if item not in ROWS and not (ROOT / item).is_file()]
        for number, items in purposes.items()
    }
    silent = [number for number, items in purposes.items() if not items]
    assert silent == [], "say at the end of the comment of each, in brackets, what it serves"
    assert {number: items for number, items in unknown.items() if items} == {}


def test_each_number_is_read():
    read = {
        node.attr
        for path in modules(PACKAGE)
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "policy"
    }
    own = {node.id for node in ast.walk(parse(POLICY)) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    assert set(_NAMES) - read - own == set()


def test_other_modules_have_no_numbers_of_the_policy():
    constants = {path.relative_to(PACKAGE).as_posix(): numbers(parse(path)) for path in _FILES}
    assert {module: names for module, names in constants.items() if names} == _ELSEWHERE


def test_the_policy_is_pure():
    imported = {node.module for node in ast.walk(parse(POLICY)) if isinstance(node, ast.ImportFrom)}
    assert imported == {"__future__", "datetime"}
    assert numbers(parse(POLICY)) >= {"TURN_SECONDS", "LOCK_TIMEOUT_MS", "REOFFER_DELAY"}
