"""One table says which filters of runs there are: every interface has exactly its rows, under their names."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from temporalex_django.authoring.run_filters import (
    CHECKS,
    CODE_FILTERS,
    INTERFACE_FILTERS,
    ORDER_PLACES,
    ORDERS,
    RUN_FILTERS,
    FilterRow,
    FilterType,
)
from temporalex_django.authoring.start_api import Startable
from tests.structure.source import PACKAGE, ROOT, parse

#: The table, and the query of each row.
TABLE, QUERIES = (
    "temporalex_django/authoring/run_filters.py",
    "temporalex_django/operations/read/run_filters.py",
)
#: Modules that are made of the table.
MADE_OF_IT = (
    "temporalex_django/forms/run_filters.py",
    "temporalex_django/rest/lists.py",
    "temporalex_django/management/arguments.py",
    "temporalex_django/testing/memory_backend.py",
    "temporalex_django/testing/environment.py",
    "temporalex_django/testing/database.py",
)
#: Words that are no list of rows: a form reads the types of ``attributes`` from the class in ``workflow``; memory adds
#: the class to the filters; and the kit has options and columns of these names.
NAMED = {
    "temporalex_django/forms/run_filters.py": {"attributes", "workflow"},
    "temporalex_django/testing/environment.py": {"blocked"},
    "temporalex_django/testing/memory_backend.py": {"workflow", "version"},
    "temporalex_django/testing/database.py": {"id"},
}
#: Rows that the admin shows beside its list.


def difference(rows: Collection[str], parts: Collection[str], part: str) -> list[str]:
    """Say which row of the table lacks its part of an interface, and which part has no row."""
    return [f"the filter {row} has no {part}" for row in sorted({*rows} - {*parts})] + [
        f"the {part} {word} has no row" for word in sorted({*parts} - {*rows})
    ]


def test_each_row_has_a_query_and_each_query_a_row() -> None:
    from temporalex_django.operations.read.run_filters import FILTERS

    assert difference(RUN_FILTERS, FILTERS, "query") == []
    assert difference({"id", "seed"}, {"id", "soil"}, "query") == [
        "the filter seed has no query",
        "the query soil has no row",
    ]


def test_each_type_has_a_check_and_a_form_field() -> None:
    from temporalex_django.forms.run_filters import TYPE_CLASSES

    assert {*CHECKS} == {*FilterType} - {FilterType.ATTRIBUTES}
    assert {*TYPE_CLASSES} == {*FilterType}
    assert {row.type for row in RUN_FILTERS.values()} == {*FilterType}, "a type that no row has"


def test_rest_enumerates_the_table() -> None:
    from temporalex_django.forms.run_filters import RunFilter

    assert difference(INTERFACE_FILTERS, RunFilter.base_filters, "parameter") == []
    for row, field in RunFilter.base_filters.items():
        assert (row, str(field.extra["help_text"])) == (row, INTERFACE_FILTERS[row].help)


def test_commands_enumerate_the_table() -> None:
    from django.core.management.base import CommandParser

    from temporalex_django.management import arguments

    parser = CommandParser(add_help=False)
    arguments.RunFilters().add(parser, None, None)
    options = {action.option_strings[0].removeprefix("--").replace("-", "_"): action.help for action in parser._actions}

    assert difference(INTERFACE_FILTERS, options, "option") == []
    assert options == {name: row.help for name, row in INTERFACE_FILTERS.items()}


def test_the_views_of_the_console_name_filters_of_the_table() -> None:
    from temporalex_django.console.runs import VIEWS
    from temporalex_django.forms.run_filters import RunFilter

    assert {name for _view, _label, filters in VIEWS for name in filters} <= {*RunFilter.base_filters}


def test_orders_have_a_column_a_place_in_memory_and_a_name() -> None:
    from temporalex_django.console.runs import _ORDER_LABELS
    from temporalex_django.operations.read import run_filters

    assert {*run_filters._COLUMNS} == {*ORDER_PLACES} == {order.lstrip("-") for order in ORDERS}
    assert {order for order, _label in _ORDER_LABELS} == {*ORDERS}


@pytest.mark.parametrize(
    ("page", "start", "end", "rows"),
    [
        ("howto/search.md", "| filter |", "\n\n", CODE_FILTERS),
        ("reference/rest.md", "## Filters", "\n## ", INTERFACE_FILTERS),
    ],
)
def test_the_documentation_lists_every_row(page: str, start: str, end: str, rows: Mapping[str, FilterRow]) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").partition(start)[2].partition(end)[0]

    assert [f"{page} lacks the filter {row}" for row in rows if f"`{row}`" not in text] == []


def test_the_docstring_of_list_names_every_row() -> None:
    assert [row for row in CODE_FILTERS if f"``{row}``" not in str(Startable._list.__doc__)] == []


def named_rows(source: ast.Module) -> set[str]:
    """Find the rows that a module names in texts, in arguments or in the body of a class."""
    words: set[str] = set()
    for node in ast.walk(source):
        match node:
            case ast.Constant(value=str(text)):
                words.add(text)
            case ast.ClassDef(body=body):
                words |= {ast.unparse(part.targets[0]) for part in body if isinstance(part, ast.Assign)}
    return words & RUN_FILTERS.keys()


@pytest.mark.parametrize("module", MADE_OF_IT)
def test_a_module_that_is_made_of_the_table_names_no_row(module: str) -> None:
    assert named_rows(parse(ROOT / module)) == NAMED.get(module, set())


def test_the_check_sees_a_list_of_names() -> None:
    source = 'class RunFilter:\n    status = Filter()\nPREDICATES = {"blocked": 1}\nif name in ("version", "x"): ...'

    assert named_rows(ast.parse(source)) == {"status", "blocked", "version"}


#: A filter that somebody adds: its row in the table and its query are all that is written.
ROW = """
        FilterRow(
            name="id_suffix",
            type=FilterType.TEXT,
            help="The end of the business id.",
            matches=lambda run, value: run.workflow_id.endswith(value),
        ),"""
QUERY = """
    "id_suffix": lambda runs, value: runs.filter(workflow_id__endswith=value),"""
#: Lists two runs by the new filter in each interface, and prints what each has for it.
TRIAL = """
import argparse, json, os
import django
django.setup()
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.test.runner import DiscoverRunner
from django.test.utils import captured_stdout
from rest_framework.test import APIClient
from temporalex_django import Ok, Workflow
from temporalex_django.management.commands.temporalex import Command
from temporalex_django.rest.openapi import document
from temporalex_django.rest.urls import urlpatterns
from temporalex_django.testing import WorkflowEnvironment

class Ended(Workflow):
    async def run(self, args):
        return Ok(args)

def parsers(parser):
    return next(action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))

runner = DiscoverRunner(verbosity=0, interactive=False)
databases = runner.setup_databases()
for name in ("order-1", "order-2"):
    Ended.start(None, id=name)
client = APIClient()
client.force_authenticate(get_user_model().objects.create_superuser("root"))
env = WorkflowEnvironment()
for name in ("order-1", "order-2"):
    env.start(Ended, None, id=name)
with captured_stdout() as printed:
    call_command("temporalex", "list", "--id-suffix", "-2", "--json")
paths = document(urlpatterns)["paths"]
commands = parsers(Command().create_parser("manage.py", "temporalex"))
print(json.dumps({
    "OpenAPI": [path for path, methods in paths.items() for parameter in methods.get("get", {}).get("parameters", ())
                if parameter["name"] == "id_suffix"],
    "REST": [run["id"] for run in client.get(os.environ["RUNS"], {"id_suffix": "-2"}).json()["results"]],
    "help of list": "The end of the business id." in commands["list"].format_help(),
    "help of bulk": "--id-suffix" in parsers(commands["bulk"])["terminate"].format_help(),
    "list": [json.loads(line)["id"] for line in printed.getvalue().splitlines()],
    "code": [handle.id for handle in Ended.list(id_suffix="-2")],
    "memory": [handle.id for handle in env.list(Ended, id_suffix="-2")],
}))
runner.teardown_databases(databases)
"""


def insert(path: Path, before: str, text: str) -> None:
    head, mark, tail = path.read_text(encoding="utf-8").partition(before)
    assert mark, f"{path.name} has no {before!r}"
    path.write_text(f"{head}{mark}{text}{tail}", encoding="utf-8")


def test_a_row_and_its_query_are_all_that_a_new_filter_needs(tmp_path: Path) -> None:
    """In a copy of the package: REST and its description, both commands, code and memory have it."""
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    insert(tmp_path / TABLE, "    for row in (", ROW)
    insert(tmp_path / QUERIES, "FILTERS: Mapping[str, Callable[[Runs, Any], Runs]] = {", QUERY)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "TEST_DB": "sqlite",
        "TX_TEST_FOLDER": str(tmp_path),  # it deletes its test database at the end
        "RUNS": "/api/instances/",
    }
    done = subprocess.run(
        [sys.executable, "-c", TRIAL], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "OpenAPI": ["/instances/"],
        "REST": ["order-2"],
        "help of list": True,
        "help of bulk": True,
        "list": ["order-2"],
        "code": ["order-2"],
        "memory": ["order-2"],
    }
