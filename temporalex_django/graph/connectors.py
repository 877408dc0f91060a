"""Connectors: how steps reach other systems.

A test double takes the place of a system without a change of code.

A step finds its connector by a key, mostly one from its config: what is stored is a name, never an object or an import
path. The engine calls no connector; only steps do::

    @connectors.connector("payments")
    class Payments(Connector):
        actions = ("charge",)
        def charge(self, params, config): ...

    connectors.of(config).execute("charge", {"cents": 1200})         # in a step
    with connectors.swapped(payments=RecordingConnector(charge=Ok(7))): ...      # in a test
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

from temporalex_django.core.results import Err, Ok
from temporalex_django.errors import NotConfigured, WorkflowDefinitionError

C = TypeVar("C", bound="type[Connector] | Callable[[], Connector]")


class Connector:
    """A subclass lists its ``actions`` and has a method ``(params, config)`` of each name.

    It gives ``Ok(result)`` or ``Err(reason)``.
    """

    actions: ClassVar[Sequence[str]] = ()

    def supported_actions(self) -> list[str]:
        """The names that ``execute`` takes."""
        return list(self.actions)

    def execute(self, action: str, params: Any = None, config: Any = None) -> Ok[Any] | Err[Any]:
        """Do it. An action that there is not is an ``Err``, no exception: the step decides what it means."""
        if action not in self.supported_actions():
            action_names = ", ".join(self.supported_actions()) or "none"
            return Err(f"{type(self).__name__} has no action {action!r} (it has: {action_names})")
        result: Ok[Any] | Err[Any] = getattr(self, action)(params, config)
        return result


class RecordingConnector(Connector):
    """A test double: answers each action with what it was given, and keeps the ``calls``.

    ``RecordingConnector(charge=Ok(7))``; a callable ``(params, config)`` computes its answer.
    """

    def __init__(self, **answers: Any) -> None:
        self._answers = answers
        self.calls: list[tuple[str, Any, Any]] = []

    def supported_actions(self) -> list[str]:
        return list(self._answers)

    def execute(self, action: str, params: Any = None, config: Any = None) -> Ok[Any] | Err[Any]:
        self.calls.append((action, params, config))
        if action not in self._answers:
            return super().execute(action, params, config)
        answer = self._answers[action]
        return answer(params, config) if callable(answer) else answer  # type: ignore[no-any-return] # the test's own


_factories: dict[str, Any] = {}
_test_doubles: dict[str, list[Any]] = {}
_lock = threading.Lock()


def register(key: str, factory: C) -> C:
    """Make a connector (a class, or a function without arguments that gives one) known under a key.

    The last one counts.

    Raises ``WorkflowDefinitionError``.
    """
    if not isinstance(key, str) or not key:
        raise WorkflowDefinitionError(f"a connector needs a key that is a string, not {key!r}")
    if not callable(factory):
        raise WorkflowDefinitionError(
            f"connector {key!r}: {factory!r} is neither a class nor a function that gives one"
        )
    _factories[key] = factory
    return factory


def connector(key: str) -> Callable[[C], C]:
    """``register`` as a decorator."""
    return lambda factory: register(key, factory)


def get(key: str) -> Connector:
    """The connector of a key: a test double where one is swapped in, else a new one. Raises ``NotConfigured``."""
    with _lock:
        if doubles := _test_doubles.get(key):
            return doubles[-1]  # type: ignore[no-any-return] # what `swapped` was given
    factory = _factories.get(key)
    if factory is None:
        registered_keys = ", ".join(sorted(_factories)) or "none"
        raise NotConfigured(
            f"no connector {key!r} is registered (registered: {registered_keys}): is its module imported?"
        )
    return factory()  # type: ignore[no-any-return] # by `register`


def of(config: Any) -> Connector:
    """The connector that a step's config names under ``connector``. Raises ``NotConfigured``."""
    key = config.get("connector") if isinstance(config, Mapping) else getattr(config, "connector", None)
    if not isinstance(key, str):
        raise NotConfigured("the config of the step names no connector: give it {'connector': 'its key'}")
    return get(key)


@contextmanager
def swapped(**doubles: Any) -> Iterator[dict[str, Any]]:
    """While inside, ``get`` gives these instead, in every thread."""
    with _lock:
        for key, double in doubles.items():
            _test_doubles.setdefault(key, []).append(double)
    try:
        yield doubles
    finally:
        with _lock:
            for key, double in doubles.items():
                _test_doubles[key].remove(double)
