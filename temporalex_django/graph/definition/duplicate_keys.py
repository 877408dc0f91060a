"""A search for keys that are written twice in the ``transitions`` of a class.

In a mapping the second value replaces the first, so only the source of the class still shows the ambiguity.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Iterator
from functools import lru_cache


def duplicate_clauses(cls: type) -> Iterator[str]:
    """Yield the keys that are written twice, as source text.

    Without source (in a shell or an archive) there are none.
    """
    for statement in _class_body(cls):
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


def _class_body(cls: type) -> list[ast.stmt]:
    """Return the statements of the class that is being defined.

    The file may hold other classes of that name. The right one contains the current line of a frame on the stack.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == cls.__module__:
            class_nodes = [
                node
                for node in _class_definitions(_read_source(frame.f_code.co_filename))
                if node.name == cls.__name__ and _first_line(node) <= frame.f_lineno <= (node.end_lineno or 0)
            ]
            if class_nodes:
                return max(class_nodes, key=_first_line).body
        frame = frame.f_back
    return []


def _first_line(node: ast.ClassDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _read_source(filename: str) -> str:
    """Return the source as it is on disk now, because a module may have been reloaded."""
    linecache.checkcache(filename)
    return "".join(linecache.getlines(filename))


@lru_cache(maxsize=1)
def _class_definitions(source: str) -> tuple[ast.ClassDef, ...]:
    """Return all class statements of a source. The cache lets a module with many graphs be parsed once."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
