"""How classes and handles reach whatever runs them, without importing it.

``AppConfig.ready`` puts the database backend here; a ``WorkflowEnvironment`` brings its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from temporalex_django.errors import NotConfigured

if TYPE_CHECKING:
    from temporalex_django.authoring.workflow import Workflow


class Backend(Protocol):
    """Operations on runs, as page "Programming model" describes them. ``ref`` is what a handle holds: id, and chain or class if known."""

    def start(self, workflow: type[Workflow], args: Any, *, id: str | None, subject: Any = None, **options: Any) -> Any: ...

    def handle(self, id: str, *, workflow: type[Workflow] | None = None) -> Any: ...


_backend: Callable[[], Backend] | None = None


def bind(backend: Callable[[], Backend]) -> None:
    """``backend()`` is asked at each use, so that importing it can wait until Django is ready."""
    global _backend  # noqa: PLW0603 - the one place where the application is wired
    _backend = backend


def backend() -> Backend:
    """Raises ``NotConfigured`` when nothing is bound."""
    if _backend is None:
        raise NotConfigured(
            "workflows have nowhere to run: add 'temporalex_django' to INSTALLED_APPS (and call django.setup() in scripts), "
            "or use WorkflowEnvironment().start(...) in a test"
        )
    return _backend()
