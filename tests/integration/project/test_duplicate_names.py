"""Two definitions of one name in the modules of installed apps: ``check`` reports them (E007)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
from django.core.checks import run_checks
from django.utils.functional import SimpleLazyObject

from temporalex_django import checks
from temporalex_django.authoring import activity, workflow
from temporalex_django.core import names
from temporalex_django.tasks import task

HEAD = "from temporalex_django import Ok, Workflow, VersionedWorkflow, activity\n"
SYNC = """
class Sync(Workflow):
    name = "test.DuplicateSync"
    async def run(self, args):
        return Ok(1)
"""


@pytest.fixture
def module(monkeypatch) -> Iterator:
    """Make modules of source, and forget what they define."""
    kept = [(table, dict(table)) for table in (activity.registry, workflow.registry, names.ACTIVITIES, names.WORKFLOWS)]

    def make(name: str, source: str, **values: object) -> ModuleType:
        made = ModuleType(name)
        vars(made).update(values)
        monkeypatch.setitem(sys.modules, name, made)
        exec(compile(HEAD + source, f"{name}.py", "exec"), vars(made))
        return made

    yield make
    for table, before in kept:
        table.clear()
        table.update(before)


def duplicates() -> list[str]:
    return [one.msg for one in run_checks(tags=[checks.TAG]) if one.id == "temporalex_django.E007"]


@pytest.mark.parametrize(
    ("one", "two", "named"),
    [
        (SYNC, "\n" + SYNC, "workflow 'test.DuplicateSync'"),
        (
            "@activity(name='test.dup')\ndef a(): pass\n",
            "@activity(name='test.dup')\ndef b(): pass\n",
            "activity 'test.dup'",
        ),
        (
            "@activity(name='test.dup_one', aliases=['test.dup_old'])\ndef a(): pass\n",
            "@activity(name='test.dup_two', aliases=['test.dup_old'])\ndef b(): pass\n",
            "activity 'test.dup_old'",
        ),
        (
            SYNC,
            SYNC.replace('"test.DuplicateSync"', '"test.DuplicateNew"; aliases = ["test.DuplicateSync"]'),
            "workflow 'test.DuplicateSync'",
        ),
    ],
)
def test_any_two_modules_of_apps_are_compared(module, one, two, named):
    module("tests.app.flows_one", one)
    module("tests.app.flows_two", two)

    [message] = duplicates()

    assert message.startswith(f"The {named} is defined twice: in tests.app.flows_one, line ")
    assert " and in tests.app.flows_two, line " in message


def test_a_class_imported_from_elsewhere(module):
    first, second = module("elsewhere.one", SYNC), module("elsewhere.two", SYNC)
    assert duplicates() == []  # no app has them
    module("tests.app.flows_one", "", Sync=first.Sync)
    module("tests.app.flows_two", "", Sync=second.Sync)

    [message] = duplicates()

    assert "in elsewhere.one, line 3 and in elsewhere.two, line 3" in message


def test_the_products_of_a_factory(module):
    module(
        "tests.app.flows_one",
        "def scaler(f):\n    @activity\n    def scale(x):\n        return x * f\n    return scale\ndouble, triple = scaler(2), scaler(3)\n",
    )

    [message] = duplicates()

    assert "The activity 'tests.app.flows_one.scale' is defined twice" in message


def test_two_tasks_of_one_path(module):
    module(
        "tests.app.flows_one",
        "TASKS = []\nfor f in (2, 3):\n    @task\n    def scale(x, f=f):\n        return x * f\n    TASKS.append(scale)\nfirst = TASKS[0]\n",
        task=task,
    )

    [message] = duplicates()

    assert "The task 'tests.app.flows_one.scale' is defined twice" in message


def test_what_is_no_duplicate(module):
    lazy = SimpleLazyObject(lambda: pytest.fail("the check evaluates a lazy object"))
    first = module(
        "tests.app.flows_one", SYNC + "@activity\ndef a(): pass\nquick = a.options(start_to_close=1)\n", lazy=lazy
    )
    module("tests.app.flows_two", "", Sync=first.Sync, a=first.a)
    module("tests.app.tests.test_flows", SYNC)
    module("tests.app.test_flows", SYNC)
    module(
        "tests.app.flows_three",
        "class Order(VersionedWorkflow):\n    name = 'test.DuplicateOrder'\n    class First(Workflow):\n"
        "        async def run(self, args):\n            return Ok(1)\n    versions = {1: First}\n    current = 1\n"
        "First = Order.First\n",
    )

    assert duplicates() == []
