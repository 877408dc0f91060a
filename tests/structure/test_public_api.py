"""Public names and their signatures are those of a list, so that a change of them is seen and decided.

``UPDATE_GOLDEN=1`` keeps them as they are now: read the difference first, and docs/explanation/versions.md.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import runpy
from collections.abc import Iterator
from typing import Any

from django.dispatch import Signal

from temporalex_django.authoring.start_api import ForeignMethod
from tests.structure.source import ROOT, modules, name, parse

GOLDEN = ROOT / "tests" / "golden" / "public_api.txt"
PACKAGE = "temporalex_django"
#: A warning about a deprecation says since when it warns, and which release removes the thing.
WORDING = re.compile(r"is deprecated since \d+\.\d+ and will be removed in \d+\.\d+")


def signature(value: Any) -> str:
    """Return parameters with their annotations and defaults; addresses of objects are left out."""
    try:
        return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(value)))
    except (TypeError, ValueError):
        return ""


def members(cls: type) -> Iterator[str]:
    """Yield a line for each public member that a class of the package defines."""
    for member in sorted(each for each in dir(cls) if not each.startswith("_")):
        owner = next((base for base in inspect.getmro(cls) if member in vars(base)), None)
        if owner is None or not owner.__module__.startswith(PACKAGE):
            continue
        if member.startswith(("get_next_by_", "get_previous_by_")):
            continue  # Django's
        if isinstance(vars(owner)[member], ForeignMethod):
            continue  # the name of another package, which raises an error with ours
        # A class has ``cancel`` and its kind only with a rule for uniqueness; their code is below private names.
        value = getattr(cls, member, None) or getattr(cls, f"_{member}", None)
        yield f"    {member}{signature(value) if inspect.isroutine(value) else ''}"


def lines(dotted: str, value: Any) -> Iterator[str]:
    """Yield what users can rely on: the name, its kind, and how it is called."""
    if inspect.isclass(value):
        bases = [base for base in inspect.getmro(value) if base.__module__.startswith(PACKAGE)]
        made = any("__init__" in vars(base) for base in bases)
        yield f"class {dotted}{signature(value) if made else ''}"
        yield from members(value)
    elif isinstance(value, Signal):
        yield f"signal {dotted}"
    elif callable(value):
        yield f"def {dotted}{signature(value)}"
    else:
        yield f"value {dotted}"


def test_public_names_and_their_signatures_are_those_of_the_list() -> None:
    public = sorted(runpy.run_path(str(ROOT / "docs" / "conf.py"))["public"](), key=lambda item: item[0])

    now = "\n".join(line for dotted, value in public for line in lines(dotted, value)) + "\n"

    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(now, encoding="utf-8")
    assert now == GOLDEN.read_text(encoding="utf-8"), "UPDATE_GOLDEN=1 keeps it as it is now: read the difference first"


def test_a_parameter_a_default_a_method_and_a_name_change_the_list() -> None:
    class Before:
        """A class of the package."""

        def __init__(self, size: int = 1) -> None: ...
        def close(self) -> None: ...

    class After:
        """Another one."""

        def __init__(self, size: int = 2) -> None: ...
        def open(self, path: str) -> None: ...

    Before.__module__ = After.__module__ = PACKAGE

    before, after = [*lines("x.Case", Before)], [*lines("x.Case", After)]

    assert before == ["class x.Case(size: 'int' = 1) -> 'None'", "    close(self) -> 'None'"]
    assert after == ["class x.Case(size: 'int' = 2) -> 'None'", "    open(self, path: 'str') -> 'None'"]


def vague_deprecations(source: str, tree: ast.Module) -> Iterator[str]:
    """Yield each place that warns about a deprecation without the two versions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and any(
            isinstance(each, ast.Name) and each.id in {"DeprecationWarning", "PendingDeprecationWarning"}
            for each in [*node.args, *(keyword.value for keyword in node.keywords)]
        ):
            texts = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
            if not WORDING.search("".join(text for text in texts if isinstance(text, str))):
                yield f"{source}:{node.lineno}"


def test_a_deprecation_names_the_releases() -> None:
    good = "warnings.warn(f'{x} is deprecated since 0.3 and will be removed in 0.5: use y', DeprecationWarning)"

    assert [place for path in modules(ROOT / PACKAGE) for place in vague_deprecations(name(path), parse(path))] == []
    assert [*vague_deprecations("a.py", ast.parse(good))] == []
    assert [*vague_deprecations("a.py", ast.parse("warn('x is old', category=DeprecationWarning)"))] == ["a.py:1"]
