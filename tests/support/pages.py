"""Pages of the documentation whose blocks are tests."""

from __future__ import annotations

import re
import sys
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from django.test import TestCase

HOWTO = Path(__file__).resolve().parents[2] / "docs" / "howto"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@contextmanager
def module_of(page: str) -> Iterator[ModuleType]:
    """A page as a module, which is there to be imported: its URLs are looked up by that name."""
    module = ModuleType("docs_" + page.replace("-", "_"))
    sys.modules[module.__name__] = module
    path = HOWTO / f"{page}.md"
    try:
        for block in BLOCK.findall(path.read_text(encoding="utf-8")):
            exec(compile(block, str(path), "exec"), vars(module))
        yield module
    finally:
        del sys.modules[module.__name__]


def passed(page: str) -> int:
    """How many tests there are on a page; the first that does not pass is an ``AssertionError``."""
    ran = unittest.TestResult()
    with module_of(page) as module:
        unittest.TestSuite(_suites(module)).run(ran)
    assert not ran.errors and not ran.failures, "\n".join(error for _, error in (*ran.errors, *ran.failures))
    return ran.testsRun


def _suites(module: ModuleType) -> Iterator[unittest.TestSuite]:
    """Its classes, and its functions, which take the fixture ``django_environment``."""
    from temporalex_django.testing import DjangoEnvironment

    for name, found in list(vars(module).items()):
        if isinstance(found, type) and issubclass(found, unittest.TestCase) and found.__module__ == module.__name__:
            yield unittest.defaultTestLoader.loadTestsFromTestCase(found)
        elif name.startswith("test_"):

            class Alone(TestCase):
                def test(self, function: Any = found) -> None:
                    with DjangoEnvironment() as env:
                        function(env)

            yield unittest.defaultTestLoader.loadTestsFromTestCase(Alone)
