"""The table of kinds of events: each kind that the package writes or asks for has a row."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable

from temporalex_django.core.history import events
from temporalex_django.core.history.events import DELIVERED, KINDS, OUTPUT_OF, EventKind
from temporalex_django.core.process import REQUESTED
from temporalex_django.db.messages import notify
from tests.structure.source import PACKAGE, modules, name, parse
from tests.support.event_attributes import keys_of

#: Kinds of jobs that become events of other kinds, or of none.
JOBS = {DELIVERED, REQUESTED, "UpdateRequested"}
#: Calls that write an event, a command or a job, with the place of the kind among their arguments.
WRITERS = {
    "Job": 0,
    "Command": 0,
    "emit": 0,
    "submit": 0,
    "_append_event": 0,
    "final_result": 1,
    "send_external": 1,
    "_close_externally": 1,
    "result_row": 3,
}
_KIND = re.compile(r"(?:[A-Z][a-z]+){2,}")


def text(node: ast.AST | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def written_kinds(tree: ast.AST) -> Iterable[str]:
    """Kinds that the module writes: in calls, and as the first of a pair with attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=called) | ast.Name(id=called), args=args, keywords=keywords):
                place = WRITERS.get(called)
                if place is not None and len(args) > place and (kind := text(args[place])) and _KIND.fullmatch(kind):
                    yield kind
                if called == "NewEvent":
                    yield from (kind for word in keywords if word.arg == "kind" and (kind := text(word.value)))
                if called == "NewMessage":
                    words = {word.arg: text(word.value) for word in keywords}
                    if words.get("kind") not in ("signal", "cancel") and words.get("name"):
                        yield str(words["name"])
            case ast.Tuple(elts=[first, ast.Dict() | ast.Call() | ast.Attribute() | ast.Name()]) if (
                (kind := text(first)) and _KIND.fullmatch(kind) and not kind.endswith("Error")
            ):
                yield kind


def asked_kinds(tree: ast.AST) -> Iterable[str]:
    """Kinds that the module compares with: ``event.kind == …``, ``case …`` of a match on a kind."""

    def is_kind(node: ast.AST) -> bool:
        return isinstance(node, ast.Attribute) and node.attr in ("kind", "event_kind", "closed")

    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, comparators=[right]) if is_kind(left):
                parts = right.elts if isinstance(right, (ast.Tuple, ast.Set)) else [right]
                yield from (kind for part in parts if (kind := text(part)) and _KIND.fullmatch(kind))
            case ast.Match(subject=subject, cases=cases) if is_kind(subject):
                values = (part for case in cases for part in ast.walk(case.pattern) if isinstance(part, ast.MatchValue))
                yield from (kind for value in values if (kind := text(value.value)) and _KIND.fullmatch(kind))


def unknown_kinds(sources: Iterable[tuple[str, ast.AST]]) -> dict[str, set[str]]:
    """Kinds without a row, with the modules that use them."""
    known = KINDS.keys() | OUTPUT_OF.keys() | JOBS
    unknown: dict[str, set[str]] = defaultdict(set)
    for path, tree in sources:
        for kind in (*written_kinds(tree), *asked_kinds(tree)):
            if kind not in known:
                unknown[kind].add(path)
    return dict(unknown)


def sources() -> list[tuple[str, ast.AST]]:
    return [(name(path), parse(path)) for path in modules(PACKAGE)]


def test_each_kind_that_is_written_or_asked_for_has_a_row() -> None:
    assert unknown_kinds(sources()) == {}


def test_each_row_is_written_somewhere() -> None:
    """So the search above sees the places that write, and no row is left over."""
    written = {kind for _, tree in sources() for kind in written_kinds(tree)}
    assert {kind.name for kind in KINDS.values() if not written & {kind.name, kind.command}} == set()


def test_signals_of_django_are_sent_about_kinds_with_a_row() -> None:
    assert notify._BY_KIND.keys() - KINDS.keys() == set()


def test_a_kind_without_a_row_is_named() -> None:
    lines = (
        "self._append_event('RunRenamed', attributes)",
        "journal.emit('RenameRun', None, {})",
        "NewEvent(kind='RunRenamed', number=1)",
        "kind, attributes = 'RunRenamed', {'to': name}",
        "if event.kind in ('RunRenamed', 'TimerFired'): pass",
        "match event.kind:\n    case 'RunRenamed' | 'TimerFired': pass",
    )
    for line in lines:
        (kind,) = unknown_kinds([("x.py", ast.parse(line))])
        assert kind in ("RunRenamed", "RenameRun")


def test_each_row_of_the_module_is_in_the_table_under_its_own_name() -> None:
    rows = {key: row for key, row in vars(events).items() if isinstance(row, EventKind)}
    assert {*rows.values()} == {*KINDS.values()}
    assert [key for key, row in rows.items() if key != re.sub(r"(?<=[a-z])(?=[A-Z])", "_", row.name).upper()] == []


def test_traits_agree_with_the_attributes() -> None:
    """Whoever answers, begins or ends a thing names it; what a replay compares is there."""
    for kind in KINDS.values():
        required, optional = keys_of(kind.attributes)
        if kind.thing == "update":
            assert "id" in required, kind.name
        elif kind.thing is not None or kind.resolves:
            assert "seq" in required, kind.name
        compared = {*kind.inputs, kind.name_attribute, kind.duration} - {None}
        assert compared <= required | optional, kind.name
        assert not (kind.from_outside and kind.command), kind.name
