"""Names say what they name: the share of names without a noun, and of empty ones, only falls."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.structure.source import PACKAGE, modules, name, parse

#: Words that name nothing. Ordinary uses of `other`, `part`, `rest`, `left`, `seen` and `before` are fine.
WORDS_WITHOUT_NOUN = (
    "found one ones given said known there wanted made asked who told kept held shown came whole more began begun "
    "ended again here why what behind beside aside away gone over meant taken heard"
)
WITHOUT_NOUN = set(WORDS_WITHOUT_NOUN.split())
#: Words that say nothing either: to replace `found` by one of these is no gain.
EMPTY = {"data", "value", "item", "obj", "res", "tmp", "thing", "info", "x", "it"}

#: Names of columns, of keys of JSON or of what users import, with the number of places that bind each.
ALLOWED: dict[tuple[str, str], tuple[int, str]] = {
    ("temporalex_django/operations/runs/control.py", "why"): (1, "a key of the JSON of the migrate command"),
    ("temporalex_django/console/run/start.py", "made"): (1, "the column of KeptAnswer"),
    ("temporalex_django/console/run/views.py", "made"): (1, "the column of KeptAnswer"),
    ("temporalex_django/console/schedules.py", "made"): (1, "the column of KeptAnswer"),
    ("temporalex_django/admin/schedules/schedule.py", "made"): (1, "the column of KeptAnswer"),
    ("temporalex_django/authoring/human_tasks.py", "asked"): (1, "a key of the JSON of an open human task"),
    ("temporalex_django/core/history/attributes.py", "known"): (1, "a key of the JSON of histories"),
    ("temporalex_django/core/history/attributes.py", "shown"): (1, "a key of the JSON of histories"),
    ("temporalex_django/core/human_tasks.py", "shown"): (1, "a field of the public class Decision"),
    ("temporalex_django/errors/requests.py", "known"): (2, "an attribute of the public error UnknownSignal"),
    ("temporalex_django/forms/human_task_form.py", "shown"): (1, "the name of a field in HTML forms"),
    ("temporalex_django/management/doctor.py", "found"): (1, "a key of the JSON of the command"),
    ("temporalex_django/management/worker.py", "why"): (1, "a key of the JSON of the command"),
    ("temporalex_django/management/run_commands.py", "made"): (1, "a key of the JSON of the commands"),
    ("temporalex_django/management/read_commands.py", "here"): (1, "a key of the JSON of the command"),
    ("temporalex_django/models/fleet.py", "asked"): (1, "a column"),
    ("temporalex_django/models/fleet.py", "given"): (1, "a column"),
    ("temporalex_django/models/human_tasks.py", "asked"): (1, "a column and a key of JSON"),
    ("temporalex_django/models/human_tasks.py", "who"): (1, "a column"),
    ("temporalex_django/models/messages.py", "made"): (1, "a column"),
    ("temporalex_django/models/runs.py", "ended"): (1, "a column"),
    ("temporalex_django/present/timeline.py", "began"): (1, "a key of the JSON of REST"),
    ("temporalex_django/present/timeline.py", "ended"): (1, "a key of the JSON of REST"),
    ("temporalex_django/present/timeline.py", "who"): (1, "a key of the JSON of REST"),
    ("temporalex_django/rest/base.py", "made"): (1, "the column of KeptAnswer"),
    ("temporalex_django/rest/serializers.py", "asked"): (1, "a key of the JSON of REST"),
    ("temporalex_django/rest/serializers.py", "known"): (1, "a member of a problem in REST"),
}
#: Percent of all bindings. Lower it when the measure falls; never raise it.
CEILING_WITHOUT_NOUN = 0.14
CEILING_EMPTY = 2.25

Binding = tuple[str, str]


def bindings(sources: Iterable[tuple[str, ast.Module]]) -> Iterator[Binding]:
    """Yield path and name, without underscores around it, of each assignment, argument and assigned attribute."""
    for path, source in sources:
        for node in ast.walk(source):
            bound = ""
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                bound = node.id
            elif isinstance(node, ast.arg):
                bound = node.arg
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                bound = node.attr
            if bound.strip("_") not in ("", "self", "cls"):
                yield path, bound.strip("_")


def functions(sources: Iterable[tuple[str, ast.Module]]) -> Iterator[Binding]:
    for path, source in sources:
        for node in ast.walk(source):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield path, node.name


def package() -> list[tuple[str, ast.Module]]:
    return [(name(path), parse(path)) for path in modules(PACKAGE) if path.parent.name != "migrations"]


def share(words: set[str], counts: Counter[Binding]) -> float:
    return 100 * sum(n for (_, word), n in counts.items() if word in words) / counts.total()


@pytest.fixture(scope="module")
def counts() -> Counter[Binding]:
    return Counter(bindings(package()))


def test_names_have_a_noun(counts: Counter[Binding]) -> None:
    bare = {binding: n for binding, n in counts.items() if binding[1] in WITHOUT_NOUN}

    assert bare == {binding: n for binding, (n, _) in ALLOWED.items()}
    assert share(WITHOUT_NOUN, counts) <= CEILING_WITHOUT_NOUN


def test_empty_names_do_not_increase(counts: Counter[Binding]) -> None:
    assert share(EMPTY, counts) <= CEILING_EMPTY


def test_functions_and_modules_have_a_noun_or_a_verb() -> None:
    assert [(path, word) for path, word in functions(package()) if word.strip("_") in WITHOUT_NOUN] == []
    assert [name(path) for path in modules(PACKAGE) if path.stem.strip("_") in WITHOUT_NOUN] == []


def test_the_measure_sees_each_kind_of_name() -> None:
    source = ast.parse("def f(one, *, x=0):\n    self._found = [given for given in one]\n    return lambda what: what")

    assert sorted(word for _, word in bindings([("x.py", source)])) == ["found", "given", "one", "what", "x"]
    assert [*functions([("x.py", source)])] == [("x.py", "f")]


def test_loggers_are_named_after_the_package_of_their_module() -> None:
    """Except the logger of users' workflow code, and of the package itself."""
    wrong = defaultdict(list)
    for path, source in package():
        room = Path(path).parts[1].removesuffix(".py")
        for node in ast.walk(source):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("getLogger"):
                logger = ast.literal_eval(node.args[0]) if isinstance(node.args[0], ast.Constant) else None
                if logger not in (None, "temporalex_django", "temporalex_django.workflow", f"temporalex_django.{room}"):
                    wrong[path].append(logger)

    assert wrong == {}
