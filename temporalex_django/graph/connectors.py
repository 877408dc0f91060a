"""Connectors: the objects through which steps reach other systems.

A test double can replace a connector without a change of code.

A step finds its connector by a key, mostly one from its config. So a stored run holds a name, never an object or an
import path. The engine calls no connector; only steps do::

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
    """The base class of connectors.

    A subclass lists its ``actions`` and has one method ``(params, config)`` for each of these names. The method
    returns ``Ok(result)`` or ``Err(reason)``.
    """

    actions: ClassVar[Sequence[str]] = ()

    def supported_actions(self) -> list[str]:
        """Return the names that ``execute`` accepts."""
        return list(self.actions)

    def execute(self, action: str, params: Any = None, config: Any = None) -> Ok[Any] | Err[Any]:
        """Run the named action of this connector and return its result.

        ``params`` are the arguments of this call, and ``config`` is the config of the step that calls. The method of
        the action gets both. An unknown action is an ``Err`` and not an exception, so that the step decides what it
        means.
        """
        if action not in self.supported_actions():
            action_names = ", ".join(self.supported_actions()) or "none"
            return Err(f"{type(self).__name__} has no action {action!r} (it has: {action_names})")
        result: Ok[Any] | Err[Any] = getattr(self, action)(params, config)
        return result


class RecordingConnector(Connector):
    """A connector for tests: it gives prepared answers, and records each call in ``calls``.

    ``RecordingConnector(charge=Ok(7))`` answers the action ``charge``. An answer that is a callable ``(params,
    config)`` is called. Each item of ``calls`` is a tuple ``(action, params, config)``.
    """

    def __init__(self, **answers: Any) -> None:
        self._answers = answers
        self.calls: list[tuple[str, Any, Any]] = []

    def supported_actions(self) -> list[str]:
        return list(self._answers)

    def execute(self, action: str, params: Any = None, config: Any = None) -> Ok[Any] | Err[Any]:
        """Record the call, and return the prepared answer for the action."""
        self.calls.append((action, params, config))
        if action not in self._answers:
            return super().execute(action, params, config)
        answer = self._answers[action]
        return answer(params, config) if callable(answer) else answer  # type: ignore[no-any-return] # the test's own


_factories: dict[str, Any] = {}
_test_doubles: dict[str, list[Any]] = {}
_lock = threading.Lock()


def register(key: str, factory: C) -> C:
    """Register a connector under a key and return ``factory`` unchanged.

    ``factory`` is a class, or a function without arguments that returns a connector. A later registration replaces an
    earlier one. Raises ``WorkflowDefinitionError`` if the key is not a text, or if the factory cannot be called.
    """
    if not isinstance(key, str) or not key:
        raise WorkflowDefinitionError(f"the key of a connector must be a string, not {key!r}")
    if not callable(factory):
        raise WorkflowDefinitionError(
            f"connector {key!r}: {factory!r} is neither a class nor a function that returns a connector"
        )
    _factories[key] = factory
    return factory


def connector(key: str) -> Callable[[C], C]:
    """Return a decorator that registers a class, or a function that returns a connector, under ``key``.

    A later registration under the key replaces an earlier one.
    """
    return lambda factory: register(key, factory)


def get(key: str) -> Connector:
    """Return the connector that is registered under ``key``, or the test double that replaces it at present.

    The registered class or function is called each time. Raises ``NotConfigured`` for an unknown key.
    """
    with _lock:
        if doubles := _test_doubles.get(key):
            return doubles[-1]  # type: ignore[no-any-return] # an argument of `swapped`
    factory = _factories.get(key)
    if factory is None:
        registered_keys = ", ".join(sorted(_factories)) or "none"
        raise NotConfigured(
            f"no connector {key!r} is registered (registered: {registered_keys}): is its module imported?"
        )
    return factory()  # type: ignore[no-any-return] # by `register`


def of(config: Any) -> Connector:
    """Return the connector whose key is the value of ``connector`` in the config of a step.

    ``config`` is a mapping or an object with that attribute. Raises ``NotConfigured`` if it names no connector, or one
    that is not registered.
    """
    key = config.get("connector") if isinstance(config, Mapping) else getattr(config, "connector", None)
    if not isinstance(key, str):
        raise NotConfigured("the config of the step contains no connector: add {'connector': 'its key'}")
    return get(key)


@contextmanager
def swapped(**doubles: Any) -> Iterator[dict[str, Any]]:
    """Return a context manager in whose block test doubles replace connectors: ``swapped(payments=double)``.

    They replace them in every thread. The value of the block (``as``) is the dict of the doubles, by connector key.
    """
    with _lock:
        for key, double in doubles.items():
            _test_doubles.setdefault(key, []).append(double)
    try:
        yield doubles
    finally:
        with _lock:
            for key, double in doubles.items():
                # By value, not the last one: blocks in several threads may end in another order than they began.
                _test_doubles[key].remove(double)
