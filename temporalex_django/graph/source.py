"""What a class's source shows and the class does not: a key that stands twice in its ``transitions``.

In a mapping the second one wins silently, so the ambiguity (HE-069) is gone before any code could look.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Iterator
from functools import lru_cache


def repeated_clauses(cls: type) -> Iterator[str]:
    """The keys that stand twice, as they are written. Nothing where there is no source (a shell, an archive)."""
    node = _definition_of(cls)
    for statement in node.body if node is not None else ():
        match statement:
            case ast.Assign(targets=[ast.Name(id="transitions")], value=ast.Dict(keys=keys)):
                pass
            case ast.AnnAssign(target=ast.Name(id="transitions"), value=ast.Dict(keys=keys)):
                pass
            case _:
                continue
        seen: set[str] = set()
        for key in keys:
            if key is None:  # ** of another mapping
                continue
            text = ast.unparse(key)
            if text in seen:
                yield text
            seen.add(text)


def _definition_of(cls: type) -> ast.ClassDef | None:
    """The class statement that is being executed: the frames above know its file, and its line within a few."""
    frame = inspect.currentframe()
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if module == cls.__module__ and not frame.f_globals["__name__"].startswith("temporalex_django."):
            break
        frame = frame.f_back
    if frame is None:
        return None
    found = [
        node
        for node in _classes(frame.f_code.co_filename, _stamp(frame.f_code.co_filename))
        if node.name == cls.__name__ and _first_line(node) <= frame.f_lineno <= (node.end_lineno or 0)
    ]
    return max(found, key=_first_line, default=None)


def _first_line(node: ast.ClassDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _stamp(filename: str) -> int:
    """Changes when the file does, so that a reloaded module is read again."""
    linecache.checkcache(filename)
    return hash(tuple(linecache.getlines(filename)))


@lru_cache(maxsize=32)
def _classes(filename: str, stamp: int) -> tuple[ast.ClassDef, ...]:
    del stamp
    text = "".join(linecache.getlines(filename))
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
