"""The checks of a function that becomes an activity, and the answer to methods that tasks of other packages have.

The module of activities imports this one, so their types are ``Any`` here.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from temporalex_django.core.failures import source_line
from temporalex_django.core.payloads.codec import parameter_problems
from temporalex_django.errors import WorkflowDefinitionError

#: Methods by which tasks of Celery, Dramatiq, Huey, RQ, Procrastinate and ``django.tasks`` are sent to a queue.
_SENDERS = frozenset(
    {"delay", "delay_on_commit", "apply", "apply_async", "apply_async_on_commit", "s", "si", "signature", "subtask"}
    | {"send", "send_with_options", "schedule", "defer", "defer_async", "enqueue", "aenqueue", "adelay"}
    | {
        "run",
        "map",
        "starmap",
        "chunks",
        "retry",
        "submit",
        "execute",
        "execute_async",
        "start",
        "call",
        "kiq",
        "remote",
    }
)
#: Methods by which they make a copy with other options, and attributes that have these.
_OPTIONS = frozenset(
    {"with_options", "set", "configure", "override", "using", "kicker", "bind", "retry_policy", "timeout"}
)
_LAMBDA = "<lambda>"


def check_function(target: Any, options: Any, *, is_bare: bool) -> None:
    """Raise ``WorkflowDefinitionError`` if ``target`` cannot be the function of an activity with these options.

    ``is_bare`` is True for ``activity(target)``, which has no place for a name.
    """
    if isinstance(target, str):
        raise WorkflowDefinitionError(f"activity: {target!r} is not a function: write @activity(name={target!r})")
    if not callable(target) or not hasattr(target, "__qualname__"):
        raise WorkflowDefinitionError(f"activity: {target!r} is not a function: write a `def` that calls it")
    label = f"activity {target.__qualname__} ({source_line(target)})"
    if problem := next(_problems(target, options, is_bare=is_bare), None):
        raise WorkflowDefinitionError(f"{label}: {problem}")


def _problems(target: Any, options: Any, *, is_bare: bool) -> Iterator[str]:
    if inspect.isclass(target):
        yield "a class has no result that a history can record: decorate a function that returns data"
    if is_bare and _is_lambda(target):
        yield nameless_problem()
    if (owner := _owner(target)) is not None:
        yield (
            f"it is a method of {owner}, and a worker has no object for its first parameter: write a function outside "
            "of the class that takes the data it needs, such as the pk of an object"
        )
    if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        yield "it has a `yield`, and a generator is no result: return a list"
    if options.atomic and inspect.iscoroutinefunction(target):
        yield "an atomic activity runs inside the turn's transaction and cannot be async"
    if options.lane and inspect.iscoroutinefunction(target):
        yield "an async activity runs in the event loop of its worker, and cannot have lane='process'"


def _owner(target: Any) -> str | None:
    """Return the name of the class in whose body ``target`` is a method with ``self`` or ``cls``, or None."""
    # A name in a class body contains the class; a function inside a function contains "<locals>" before its own name.
    owner, _, _ = getattr(target, "__qualname__", "").rpartition("<locals>.")[2].rpartition(".")
    if not owner or not inspect.isfunction(target):
        return None
    return owner if next(iter(inspect.signature(target).parameters), None) in ("self", "cls") else None


def _is_lambda(target: Any) -> bool:
    return getattr(target, "__name__", "") == _LAMBDA


def nameless_problem() -> str:
    """Return why a lambda without a name cannot be an activity, and what to write instead."""
    return (
        "a lambda has no name, and histories find an activity by its name: write a `def`, "
        'or activity(name="shop.charge")(lambda: ...)'
    )


def is_nameless(activity: Any) -> bool:
    """Return True if the name of an activity is that of any lambda of its module."""
    return str(activity.name).endswith(_LAMBDA)


def require_name(activity: Any) -> None:
    """Raise ``WorkflowDefinitionError`` if an activity is a lambda that no name identifies."""
    if is_nameless(activity):
        raise WorkflowDefinitionError(
            f"activity {activity.name} ({source_line(activity.__wrapped__)}): {nameless_problem()}"
        )


def check_annotations(activity: Any) -> None:
    """Raise ``WorkflowDefinitionError`` for annotations as which nothing could be read back."""
    if problems := parameter_problems(activity.__wrapped__):
        raise WorkflowDefinitionError(f"activity {activity.name}: " + "; ".join(problems))


class ForeignMethods:
    """The base class of activities. It answers the methods that tasks of other packages have, with what to write here.

    ``name`` is the name of the activity.
    """

    name: str

    if not TYPE_CHECKING:  # type checkers report these names themselves

        def __getattr__(self, attribute: str) -> Any:
            name = vars(self).get("name", "")  # absent while a copy is made
            text, call = f"activity {name} has no attribute {attribute!r}", name.rpartition(".")[2]
            if attribute in _OPTIONS:
                text += f": write {call}.options(...)(...) for the options of one call"
            if attribute in _SENDERS:
                text = (
                    f"activity {name} has no {attribute}(): a workflow calls it, with `await {call}(...)` in run(). From "
                    "elsewhere, start the workflow: YourWorkflow.start(...)"
                )
            raise AttributeError(text, name=attribute, obj=self)
