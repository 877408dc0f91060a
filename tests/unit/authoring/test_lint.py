"""The lint of workflow modules: the guard's calls, found without running them."""

from __future__ import annotations

from textwrap import dedent

import pytest

from temporalex_django.authoring.lint.checks import lint

HEAD = "from temporalex_django import Workflow, Step, activity, api, Ok, query\nimport temporalex_django as tx\n"


def found(text: str, workflows: tuple[str, ...] = ()) -> list[tuple[int, str, str]]:
    """Line (after the head), call, and function."""
    findings = lint(HEAD + dedent(text), workflows=workflows)
    return [(finding.line - 2, finding.call, finding.function) for finding in findings]


def in_run(imports: str, expression: str) -> list[tuple[str, str]]:
    text = f"{imports}\nclass Flow(Workflow):\n    async def run(self, args):\n        {expression}\n"
    return [(finding.call, finding.advice) for finding in lint(HEAD + text)]


@pytest.mark.parametrize(
    ("imports", "expression", "call", "replacement"),
    [
        ("import time", "time.time()", "time.time", "api.now"),
        ("import time as t", "t.monotonic()", "time.monotonic", "api.now"),
        ("from time import time", "time()", "time.time", "api.now"),
        ("from time import time as clock", "clock()", "time.time", "api.now"),
        ("import time", "x = [time.time() for _ in args]", "time.time", "api.now"),
        ("import time", "return lambda: time.time()", "time.time", "api.now"),
        ("", "import time; time.sleep(1)", "time.sleep", "api.sleep"),
        ("import datetime", "datetime.datetime.now()", "datetime.datetime.now", "api.now"),
        ("from datetime import datetime as dt", "dt.utcnow()", "datetime.datetime.utcnow", "api.now"),
        ("from datetime import date", "date.today()", "datetime.date.today", "api.now"),
        ("from django.utils import timezone", "timezone.now()", "django.utils.timezone.now", "api.now"),
        ("from django.utils import timezone", "timezone.localdate()", "django.utils.timezone.localdate", "api.now"),
        ("import random", "random.choice(args)", "random.choice", "api.random"),
        ("import random", "random.Random()", "random.Random", "api.random"),
        ("from random import Random", "Random(None)", "random.Random", "api.random"),
        ("import secrets", "secrets.token_hex()", "secrets.token_hex", "activity"),
        ("import uuid", "uuid.uuid4()", "uuid.uuid4", "api.uuid4"),
        ("from uuid import uuid1", "uuid1()", "uuid.uuid1", "api.uuid4"),
        ("import os", "os.urandom(4)", "os.urandom", "activity"),
        ("import os", "os.getenv('X')", "os.getenv", "activity"),
        ("import os", "os.environ['X']", "os.environ[...]", "activity"),
        ("from os import environ", "environ.get('X')", "os.environ.get", "activity"),
        ("import os", "'X' in os.environ", "... in os.environ", "activity"),
        ("import os.path", "os.path.exists('x')", "os.path.exists", "activity"),
        ("", "open('x')", "open", "activity"),
        ("from pathlib import Path", "Path('x').read_text()", "pathlib.Path.read_text", "activity"),
        ("import subprocess", "subprocess.run(['x'])", "subprocess.run", "activity"),
        ("import socket", "socket.socket()", "socket.socket", "activity"),
        ("import requests", "requests.get('x')", "requests.get", "activity"),
        ("import urllib.request", "urllib.request.urlopen('x')", "urllib.request.urlopen", "activity"),
        ("import threading", "threading.Thread(target=x).start()", "threading.Thread.start", "activity"),
        ("from concurrent.futures import ThreadPoolExecutor", "ThreadPoolExecutor()", "concurrent.futures.ThreadPoolExecutor", "activity"),
        ("import asyncio", "await asyncio.sleep(1)", "asyncio.sleep", "api.sleep"),
        ("import asyncio", "await asyncio.gather()", "asyncio.gather", "activity"),
        ("from shop.models import Order", "Order.objects.get(pk=1)", "Order.objects.get", "activity"),
    ],
)  # fmt: skip
def test_each_call_has_its_replacement(imports: str, expression: str, call: str, replacement: str) -> None:
    """TX-189."""
    [(seen, advice)] = in_run(imports, expression)

    assert seen == call
    assert replacement in advice


@pytest.mark.parametrize(
    ("imports", "expression"),
    [
        ("import datetime", "datetime.datetime(2026, 1, 1)"),
        ("from datetime import datetime", "datetime.fromisoformat(args)"),
        ("from random import Random", "Random(7).random()"),
        ("import uuid", "uuid.UUID(args)"),
        ("import os", "os.path.join('a', 'b')"),
        ("from pathlib import Path", "Path('x').name"),
        ("from django.utils import timezone", "timezone.localtime(api.now())"),
        ("import asyncio", "except_this = asyncio.TimeoutError"),
        ("", "api.now(); api.random(); api.uuid4()"),
        ("import time", "time = args; time.time()"),
        ("", "open = args.open; open('x')"),
        ("", "args.objects.get(pk=1)"),
        ("", "args.now()"),
    ],
)
def test_what_is_harmless_is_left_alone(imports: str, expression: str) -> None:
    """TX-189."""
    assert in_run(imports, expression) == []


def test_only_workflow_code_is_read() -> None:
    """TX-189: activities, steps, and what workflow code does not name, may do what they like."""
    text = """
    import time
    STARTED = time.time()
    @activity
    def charge(x): return time.time()
    @tx.activity(name="other")
    async def other(x): return time.time()
    class Ship(Step):
        def execute(self, context): return time.time()
    def unreached(): return time.time()
    class Plain:
        def run(self): return time.time()
    class Flow(Workflow):
        @activity
        def inner(x): return time.time()
        async def run(self, args):
            await charge(STARTED); await other(Ship)
    """
    assert found(text) == []


def test_helpers_handlers_and_bases_are_read_when_workflow_code_names_them() -> None:
    """TX-189."""
    text = """
    import time
    def deep(): return time.time()
    def helper(): return deep()
    def add(args, state): return time.monotonic()
    def check(args, state): return time.perf_counter()
    HANDLERS = {"add": add, "x": lambda a, s: time.time_ns()}
    class Tool:
        def use(self): return time.sleep(1)
    class Base(Workflow):
        def shared(self): return time.time()
    class Flow(Base):
        extra = {"y": check}
        @query("q")
        @staticmethod
        def q(state): return time.process_time()
        async def run(self, args):
            helper(); Tool().use()
            await api.phase(0, update=HANDLERS)
    """
    assert found(text) == [
        (3, "time.time", "deep"),
        (5, "time.monotonic", "add"),
        (6, "time.perf_counter", "check"),
        (7, "time.time_ns", "HANDLERS"),
        (9, "time.sleep", "Tool.use"),
        (11, "time.time", "Base.shared"),
        (16, "time.process_time", "Flow.q"),
    ]


def test_names_are_those_of_the_place() -> None:
    """TX-189: a parameter hides an import; an import in a function counts there only."""
    text = """
    import time
    class Flow(Workflow):
        def hidden(self, time): return time.time()
        def own(self):
            from uuid import uuid4
            return uuid4()
        def other(self): return uuid4()
        def nested(self):
            def inner(at=time.time()): return at
            return inner
    """
    assert found(text) == [(7, "uuid.uuid4", "Flow.own"), (10, "time.time", "Flow.nested")]


def test_classes_that_are_workflows_by_a_base_from_elsewhere() -> None:
    """TX-189: those that are registered are named by the caller."""
    text = """
    import time
    from elsewhere import Base
    class Flow(Base):
        async def run(self, args): return time.time()
    """
    assert found(text) == []
    assert found(text, workflows=("Flow",)) == [(5, "time.time", "Flow.run")]


def test_classes_that_are_defined_twice_are_read_once() -> None:
    text = """
    import time
    class A(Workflow):
        async def run(self, args): return time.time()
    class A(A):
        async def run(self, args): return time.time()
    """
    assert found(text, workflows=("A",)) == [(6, "time.time", "A.run")]


FORGOTTEN = """
async def helper(x):
    return x

async def stream(x):
    yield x

def plain(x):
    return x

class Base(Workflow):
    async def inherited(self):
        pass

class Flow(Base):
    async def method(self, x):
        pass

    async def run(self, args):
        async def inner():
            pass
        {statement}
"""


@pytest.mark.parametrize(
    ("statement", "call"),
    [
        ("helper(1)", "helper"),
        ("if helper(1): pass", "helper"),
        ("if not helper(1): pass", "helper"),
        ("while self.method(1): pass", "self.method"),
        ("x = 1 if helper(1) else 2", "helper"),
        ("x = helper(1) and 2", "helper"),
        ("x = helper(1) == 2", "helper"),
        ("x = helper(1) + 2", "helper"),
        ("x = helper(1)['key']", "helper"),
        ("x = helper(1).total", "helper"),
        ("x = f'{helper(1)}'", "helper"),
        ("for x in helper(1): pass", "helper"),
        ("x = [y for y in helper(1)]", "helper"),
        ("x = bool(helper(1))", "helper"),
        ("assert helper(1)", "helper"),
        ("self.method(1)", "self.method"),
        ("self.inherited()", "self.inherited"),
        ("inner()", "inner"),
        ("x = lambda: helper(1) or 2", "helper"),
    ],
)
def test_a_coroutine_that_nobody_awaits_is_found(statement: str, call: str) -> None:

    [finding] = lint(HEAD + FORGOTTEN.replace("{statement}", statement))

    assert (finding.call, finding.function) == (call, "Flow.run")
    assert (finding.advice, finding.problem) == (f"write `await {call}(...)`", "it is not awaited, so it never runs")


@pytest.mark.parametrize(
    "statement",
    [
        "await helper(1)",
        "if await helper(1): pass",
        "x = helper(1)",
        "return helper(1)",
        "x = await api.parallel([helper(1), self.method(2)])",
        "x = helper(1) is None",
        "x = [y async for y in stream(1)]",
        "stream(1)",
        "plain(1)",
        "if plain(1): pass",
        "helper = plain; helper(1)",
        "x = lambda helper: helper(1) or 2",
        "x = f'{helper(1)!r}'",
        "self.other(1)",
        "other.method(1)",
        "x = None or helper(1)",
    ],
)
def test_what_may_be_awaited_elsewhere_is_no_finding(statement: str) -> None:
    assert lint(HEAD + FORGOTTEN.replace("{statement}", statement)) == []


@pytest.mark.parametrize(
    ("statement", "what", "seeded"),
    [
        ("x = {sku: 1 for sku in set(args)}", "iteration of a set", True),
        ("for sku in {'a', 'b'}: pass", "iteration of a set", True),
        ("x = [y for y in frozenset(args)]", "iteration of a set", True),
        ("x = list(set(args))", "iteration of a set", True),
        ("x = [*{y for y in args}]", "iteration of a set", True),
        ("x = ','.join(set(args))", "iteration of a set", True),
        ("seen = set(args)\n        for y in seen: pass", "iteration of a set", True),
        ("seen = set(args)\n        seen.pop()", "iteration of a set", True),
        ("for y in set(args) - {'a'}: pass", "iteration of a set", True),
        ("for cls in {Flow, Base}: pass", "iteration of a set of classes or functions", False),
        ("x = hash(args)", "hash", False),
        ("x = {id(args): 1}", "id", False),
    ],
)
def test_what_differs_by_process_is_found(statement: str, what: str, seeded: bool) -> None:
    [finding] = lint(HEAD + FORGOTTEN.replace("{statement}", statement))
    assert (finding.call, finding.seeded, finding.function) == (what, seeded, "Flow.run")
    assert finding.problem == "it differs from one process to the next"


@pytest.mark.parametrize(
    "statement",
    [
        "for sku in sorted(set(args)): pass",
        "x = len(set(args)), min(set(args)), sum({1, 2}), 'a' in {'a', 'b'}",
        "for n in {1, 2, 3}: pass",
        "x = {y for y in args}",
        "x = set(args) == {1}",
        "hash = len; x = hash(args)",
        "id = 1",
        "seen = set(args)\n        seen = sorted(seen)\n        for y in seen: pass",
        "for y in list(args): pass",
    ],
)
def test_order_that_is_the_same_everywhere_is_no_finding(statement: str) -> None:
    assert lint(HEAD + FORGOTTEN.replace("{statement}", statement)) == []


STAR = """
{star}
from temporalex_django import Ok, Workflow


class Order(Workflow):
    async def run(self, args):
        return Ok({call})
"""


@pytest.mark.parametrize(
    ("star", "call", "named"),
    [
        ("from random import *", "random()", "random.random"),
        ("from datetime import *", "datetime.now()", "datetime.datetime.now"),
        ("from shop.helpers import *", "price()", "from shop.helpers import *"),
        ("from .helpers import *", "price()", "from .helpers import *"),
    ],
)
def test_star_imports_hide_nothing(star, call, named):
    assert [finding.call for finding in lint(STAR.format(star=star, call=call))] == [named]


def test_a_star_import_of_this_package_shows_its_workflows():
    source = "import random\nfrom temporalex_django import *\nclass A(Workflow):\n    async def run(self, args):\n"
    assert [one.call for one in lint(source + "        return Ok(random.random())\n")] == ["random.random"]


def test_a_module_without_workflows_may_import_stars():
    assert lint("from shop.helpers import *\n") == []


SAGA = """
from temporalex_django import Err, Ok, Workflow, api
import temporalex_django as tx


class Order(Workflow):
    async def run(self, args):
        {statement}
        return Ok(1)
"""


def in_saga(statement: str) -> list[tuple[int, str, str]]:
    """Line after ``def run``, call, and advice."""
    source = SAGA.replace("{statement}", dedent(statement).strip().replace("\n", "\n        "))
    return [
        (one.line - source[: source.index("run(self")].count("\n") - 1, one.call, one.advice) for one in lint(source)
    ]


@pytest.mark.parametrize(
    ("statement", "line"),
    [
        ("async with api.saga() as saga:\n    return Err('no')", 2),
        ("async with tx.api.saga():\n    return tx.Err('no')", 2),
        ("from temporalex_django.api import saga\nasync with saga() as s:\n    return Err('no')", 3),
        ("async with api.shield(), api.saga() as s:\n    return Err('no')", 2),
        ("async with api.saga() as s:\n    if args:\n        return Ok(1) if args else Err('no')", 3),
        (
            "async with api.saga() as s:\n    for x in args:\n        async with api.shield():\n            return Err(x)",
            4,
        ),
        (
            "async with api.saga() as s:\n    try:\n        await f()\n    except ValueError:\n        return Err('no')",
            5,
        ),
        ("async with api.saga() as s:\n    match args:\n        case 1:\n            return Err('no')", 4),
        ("async with api.saga() as s:\n    answer = Err('no')\n    return answer", 3),
        ("s = api.saga()\nasync with s:\n    return Err('no')", 3),
        (
            "async def branch():\n    async with api.saga():\n        return Err('no')\nx = await api.parallel([branch])",
            3,
        ),
    ],
)
def test_err_inside_a_saga_is_found(statement: str, line: int) -> None:
    [(found_line, call, advice)] = in_saga(statement)
    assert (found_line, call) == (line, "return Err(...)")
    assert "raise ApplicationError(...)" in advice


@pytest.mark.parametrize(
    "statement",
    [
        "async with api.saga() as s:\n    pass\nreturn Err('no')",
        "async with api.saga() as s:\n    return Ok(1)",
        "async with api.shield():\n    return Err('no')",
        "async with api.saga() as s:\n    async def branch():\n        return Err('no')\n    x = await api.parallel([branch])",
        "async with api.saga() as s:\n    outcome = lambda: Err('no')\n    return outcome",
        "a = b\nb = a\nasync with api.saga() as s:\n    return a",
    ],
)
def test_err_that_leaves_no_saga_is_no_finding(statement: str) -> None:
    assert in_saga(statement) == []


@pytest.mark.parametrize(
    ("statement", "lines"),
    [
        ("await api.parallel([f(), f()])", [7]),
        ("if args:\n            await api.parallel(f(), f(), limit=2)", [8]),
        ("results = await api.parallel([f(), f()])", []),
        ("return await api.parallel([f(), f()])", []),
        ("await api.parallel([f(), f()], raise_errors=True)", []),
        ("await api.race(f(), f())", []),
    ],
)
def test_a_dropped_result_of_parallel_is_found(statement: str, lines: list[int]) -> None:
    source = (
        "from temporalex_django import Ok, Workflow, activity, api\n@activity\ndef f(): pass\n\n"
        f"class A(Workflow):\n    async def run(self, args):\n        {statement}\n        return Ok(None)\n"
    )
    found = [finding for finding in lint(source) if finding.call == "api.parallel(...)"]
    assert [finding.line for finding in found] == lines
    assert all("raise_errors=True" in finding.advice for finding in found)
