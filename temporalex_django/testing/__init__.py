"""The test kit: environments with a virtual clock (in memory or on the database), assertions, and ``drain``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from temporalex_django.testing.assertions import (
        assert_blocked,
        assert_cancelled,
        assert_completed,
        assert_failed,
        assert_waiting_for,
    )
    from temporalex_django.testing.database import DjangoEnvironment, drain
    from temporalex_django.testing.memory_backend import WorkflowEnvironment
    from temporalex_django.testing.schedules import assert_fires

__all__ = [
    "DjangoEnvironment",
    "WorkflowEnvironment",
    "assert_blocked",
    "assert_cancelled",
    "assert_completed",
    "assert_failed",
    "assert_fires",
    "assert_waiting_for",
    "drain",
]

_HOME = {
    "WorkflowEnvironment": "memory_backend",
    "DjangoEnvironment": "database",
    "drain": "database",
    **dict.fromkeys((name for name in __all__ if name.startswith("assert_")), "assertions"),
    "assert_fires": "schedules",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'temporalex_django.testing' has no attribute {name!r}")
    import importlib  # noqa: PLC0415 - the database half needs Django, the other must not

    return getattr(importlib.import_module(f"temporalex_django.testing.{_HOME[name]}"), name)
