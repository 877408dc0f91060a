"""The ids of runs in the lines of structlog.

    TEMPORALEX = {"INTERCEPTORS": ["temporalex_django.contrib.structlog.Structlog"]}
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, add_run, ...])

In an activity, the interceptor binds the ids as context variables. In workflow code, the processor ``add_run`` adds
them: each part of a workflow has context variables of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from temporalex_django.core import current
from temporalex_django.errors import NotConfigured
from temporalex_django.interceptors import AttemptCall, Interceptor

try:
    import structlog
except ImportError as exc:
    raise NotConfigured(
        "temporalex_django.contrib.structlog needs the module structlog: install temporalex-django[structlog]"
    ) from exc


class Structlog(Interceptor):
    """Interceptor that binds the ids of an activity to the context variables of structlog while the activity runs.

    The names are ``workflow``, ``workflow_id``, ``run_id``, ``activity`` and ``attempt``.
    """

    @contextmanager
    def activity_attempt(self, attempt: AttemptCall) -> Iterator[None]:
        """Return a context manager in whose block the ids are bound."""
        with structlog.contextvars.bound_contextvars(
            workflow=attempt.workflow,
            workflow_id=attempt.workflow_id,
            run_id=attempt.run_id,
            activity=attempt.activity,
            attempt=attempt.attempt,
        ):
            yield


def add_run(logger: Any, method: str, event_dict: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add ``workflow``, ``workflow_id`` and ``run_id`` to a line of workflow code; a processor of structlog.

    A replay runs lines again that were written when they happened, so they are dropped.
    """
    del logger, method
    runtime = current.current_runtime()
    if runtime is None:
        return event_dict
    if runtime.run_context.replaying:
        raise structlog.DropEvent
    info = runtime.run_context.info
    return {"workflow": info.workflow, "workflow_id": info.id, "run_id": info.run_id, **event_dict}
