"""A pytest plugin that makes one argument have no effect.

``TX_DROP=WorkflowHandle.update:mode pytest -p tests.support.dropping …`` has to fail.

``tests/structure/test_public_arguments.py`` keeps the table of which test fails for which argument;
``scripts/arguments.py`` tries them.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

DROP = os.environ.get("TX_DROP", "")
_WITHOUT_DJANGO = (
    "activity",
    "query",
    "signal",
    "update",
    "transit",
    "Workflow",
    "GraphWorkflow",
    "VersionedWorkflow",
    "Step",
)


def without(fn: Callable[..., Any], name: str) -> Callable[..., Any]:
    """``fn`` as if nobody had given ``name``.

    Its default, None where it has none, nothing where there may be any number.
    """
    signature = inspect.signature(fn)
    parameter = signature.parameters.get(name)

    def changed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if parameter is None:  # one of **options
            return args, {key: value for key, value in kwargs.items() if key != name}
        bound = signature.bind(*args, **kwargs)
        if name in bound.arguments:
            if parameter.default is not parameter.empty or parameter.kind is parameter.VAR_POSITIONAL:
                del bound.arguments[name]
                bound.apply_defaults()
            else:
                bound.arguments[name] = None
        return bound.args, bound.kwargs

    if inspect.iscoroutinefunction(fn):

        @functools.wraps(fn)
        async def later(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = changed(args, kwargs)
            return await fn(*args, **kwargs)

        return later

    @functools.wraps(fn)
    def now(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = changed(args, kwargs)
        return fn(*args, **kwargs)

    return now


def drop(owner: str, name: str) -> None:
    """Make the argument have no effect in this process."""
    import temporalex_django

    head, _, member = owner.partition(".")
    if head == "settings":
        from temporalex_django.conf import Settings

        Settings.__init__ = without(Settings.__init__, name)  # type: ignore[method-assign]
    elif head == "REST":
        from temporalex_django.rest import serializers

        body = getattr(serializers, member)
        given = body.to_internal_value
        body.to_internal_value = lambda self, data: given(self, {k: v for k, v in data.items() if k != name})
    elif head == "api":
        module = temporalex_django.api
        setattr(module, member, without(getattr(module, member), name))
    elif owner == "Activity.options":
        from temporalex_django.authoring.activity import Activity

        Activity.options = without(Activity.options, name)  # type: ignore[method-assign]
    elif head == "Workflow" and member in {"start", "resume", "get", "list", "cancel"}:
        from temporalex_django.authoring.start_api import Startable

        for half in (member, f"a{member}"):
            found = vars(Startable)[half]
            found._fn = without(found._fn, name)
    else:
        _drop_of(head, member, name)


def _drop_of(head: str, member: str, name: str) -> None:
    import importlib

    import temporalex_django

    value = None
    homes = [
        "temporalex_django",
        "temporalex_django.graph",
        "temporalex_django.testing",
        "temporalex_django.testing.environment_base",
    ]
    for home in homes:
        value = getattr(importlib.import_module(home), head, None)
        if value is not None:
            break
    assert value is not None, head
    if not inspect.isclass(value):
        changed = without(value, name)
        setattr(importlib.import_module(value.__module__), head, changed)
        setattr(temporalex_django, head, changed)
    elif member:
        for cls in value.__mro__:
            if member in vars(cls):
                kept = vars(cls)[member]
                plain = getattr(kept, "__func__", kept)
                changed = without(plain, name)
                setattr(cls, member, type(kept)(changed) if isinstance(kept, (classmethod, staticmethod)) else changed)
                return
    elif name in inspect.signature(value.__init__).parameters:
        value.__init__ = without(value.__init__, name)
    else:
        _drop_attribute(value, name)


def _drop_attribute(owner: type, name: str) -> None:
    """Subclasses are as if they had not set it."""
    made = vars(owner).get("__init_subclass__")

    def forgets(cls: type, **kwargs: Any) -> None:
        if name in vars(cls):
            delattr(cls, name)
        if made is not None:
            made.__func__(cls, **kwargs)
        else:
            super(owner, cls).__init_subclass__(**kwargs)  # type: ignore[misc] # mypy knows no such use

    owner.__init_subclass__ = classmethod(forgets)  # type: ignore[assignment]


if DROP.partition(".")[0].partition(":")[0] in _WITHOUT_DJANGO:
    drop(*DROP.split(":"))


def pytest_sessionstart() -> None:
    """Django is ready now, and no test module has been imported yet."""
    if DROP and DROP.partition(".")[0].partition(":")[0] not in _WITHOUT_DJANGO:
        drop(*DROP.split(":"))
