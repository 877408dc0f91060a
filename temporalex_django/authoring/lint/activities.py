"""The activities that the code of a workflow class names, and annotations that name nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from temporalex_django.authoring import activity as activities
from temporalex_django.authoring.activity import Activity
from temporalex_django.authoring.activity_function import is_nameless
from temporalex_django.authoring.django_tasks import DjangoTask
from temporalex_django.authoring.workflow import Workflow, concrete_classes
from temporalex_django.core.determinism.rules import reachable_code
from temporalex_django.core.failures import source_line
from temporalex_django.core.payloads.codec import resolve_hints


def named_activities(workflow: type[Workflow]) -> dict[str, Activity[Any, Any]]:
    """Return the activities that the code of a class names as globals or attributes of modules, by their names.

    Activities that code looks up otherwise are not found.
    """
    by_name: dict[str, Activity[Any, Any]] = {}
    for code, namespace in reachable_code(workflow, ()):
        by_name |= {value.name: value for value in _values(code.co_names, namespace) if isinstance(value, Activity)}
    return by_name


def unresolved_annotations(is_in_app: Callable[[str], bool]) -> Iterator[tuple[str, str, Any]]:
    """Yield the annotations of runs and activities that name nothing when the process runs.

    An example is a class that is defined inside a function. Each result is ``(file:line, the parameter or result,
    annotation)``. Values that they describe stay plain data. ``is_in_app`` takes the name of a module, and returns True
    for those that are checked.
    """
    functions = [(f"{cls.name}.run", cls.run) for cls in concrete_classes() if issubclass(cls, Workflow)]
    # The arguments of a step come from the engine and not from a payload.
    functions += [
        (act.name, act.__wrapped__)
        for act in activities.registry.values()
        if type(act) in (Activity, DjangoTask) and not is_nameless(act)
    ]
    for name, fn in functions:
        annotations = getattr(fn, "__annotations__", {})
        if not annotations or not is_in_app(fn.__module__):
            continue
        resolved = resolve_hints(fn)
        for parameter, annotation in annotations.items():
            if parameter not in resolved:
                part = f"the result of {name}" if parameter == "return" else f"{parameter!r} of {name}"
                yield source_line(fn), part, annotation


def _values(names: tuple[str, ...], namespace: dict[str, Any]) -> Iterator[Any]:
    for name in names:
        value = namespace.get(name)
        yield value
        if type(value) is ModuleType:
            yield from (vars(value)[attribute] for attribute in names if attribute in vars(value))
