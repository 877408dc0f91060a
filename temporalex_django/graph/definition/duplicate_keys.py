"""What a class's source shows and the class does not: a key that stands twice in its ``transitions``.

In a mapping the second one wins silently, so the ambiguity is gone before any code could look.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Iterator
from functools import lru_cache


def duplicate_clauses(cls: type) -> Iterator[str]:
    """The keys that stand twice, as they are written. Nothing where there is no source (a shell, an archive)."""
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
    """The statements of the class statement that is being executed.

    Others of that name may stand in its file: some frame above is at a line of this one.
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
    """As it is now: a module may have been loaded anew."""
    linecache.checkcache(filename)
    return "".join(linecache.getlines(filename))


@lru_cache(maxsize=1)
def _class_definitions(source: str) -> tuple[ast.ClassDef, ...]:
    """All class statements; a module that has many graphs is parsed once."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
