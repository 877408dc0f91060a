"""Definitions that share a name: of two, the later replaces the earlier, and runs continue with the wrong code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from temporalex_django.authoring.activity import Activity
from temporalex_django.authoring.django_tasks import DjangoTask, is_task
from temporalex_django.authoring.redefinitions import DefinitionPlace, is_same_activity, is_same_code, place_of_activity
from temporalex_django.authoring.start_api import Startable


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A name that several definitions have, as a name or as an alias. ``kind`` is "workflow", "activity" or "task"."""

    kind: str
    name: str
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Definition:
    """A workflow class, an activity or a Django task that a module has, with the names that runs may hold for it."""

    kind: str
    value: Any
    place: DefinitionPlace
    names: tuple[str, ...]

    def is_same(self, other: _Definition) -> bool:
        """Return True if the other definition is the same code."""
        if isinstance(self.value, Activity) and isinstance(other.value, Activity):
            return is_same_activity(self.value, other.value)
        return self.value is other.value or is_same_code(self.place, self.value, other.place, other.value)


def duplicate_names(modules: Iterable[ModuleType]) -> Iterator[Duplicate]:
    """Yield each name that two definitions in ``modules`` share, sorted. It may be an alias of one or of both."""
    by_name: dict[tuple[str, str], list[_Definition]] = {}
    for module in modules:
        for value in [*vars(module).values()]:
            if (definition := _definition(value)) is not None:
                for name in definition.names:
                    group = by_name.setdefault((definition.kind, name), [])
                    if not any(definition.is_same(other) for other in group):
                        group.append(definition)
    for (kind, name), group in sorted(by_name.items()):
        if len(group) > 1:
            # In one module, or at one place that a function executes twice, the line is part of the answer.
            yield Duplicate(kind, name, tuple(sorted(str(definition.place) for definition in group)))


def _definition(value: Any) -> _Definition | None:
    """Return the definition that a value of a module is, or None."""
    cls = type(value)  # `isinstance` would ask a lazy object of Django for its class, and so make its value
    if issubclass(cls, type):
        if not issubclass(value, Startable) or "definition_place" not in vars(value):
            return None
        startable: Any = value.dispatched_by or value
        aliases = getattr(startable, "aliases", ())
        return _Definition("workflow", startable, startable.definition_place, (startable.name, *aliases))
    if issubclass(cls, Activity):
        return _Definition("activity", value, place_of_activity(value), (value.name, *value.aliases))
    if hasattr(cls, "enqueue") and is_task(value):
        task = DjangoTask(value)
        return _Definition("task", task, place_of_activity(task), (value.module_path,))
    return None
