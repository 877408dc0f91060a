"""Names of queues: the ones that the project uses, and others that no code of the project names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from temporalex_django.authoring import activity, workflow
from temporalex_django.db import background_tasks


def all_queues() -> list[str]:
    """Return the names of all queues that the workflows, activities and background tasks of this process use."""
    return sorted({"default", *run_queues(), *(background_tasks.backend_queues() or ())})


def run_queues() -> set[str]:
    """Return the names of the queues that the workflows and activities of this process use."""
    names = {cls.task_queue for cls in workflow.concrete_classes()}
    return names | {act.options_set.queue for act in [*activity.registry.values()] if act.options_set.queue}


def unknown_queues(queues: Iterable[str]) -> dict[str, str | None]:
    """Return those of the queues that no code of the project names, each with a similar known name or None.

    Only options of a call could use them. The result is empty if the project's background tasks may go to any queue.
    """
    known_queues = all_queues()
    if background_tasks.backend_queues() is None:
        return {}
    unknown_queues = [name for name in queues if name not in known_queues]
    return {name: next(iter(get_close_matches(name, known_queues, n=1)), None) for name in unknown_queues}
