"""Transitions: the steps that follow an event of a step, in the forms in which a workflow class writes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from temporalex_django.authoring.activity import Activity
from temporalex_django.authoring.django_tasks import is_task
from temporalex_django.errors import WorkflowDefinitionError
from temporalex_django.graph.steps import StepRef, is_event, is_step, name_of, not_a_step_text


@dataclass(frozen=True, slots=True)
class Target:
    """A step to which a transition leads, with the config that the transition gives to the step, or None."""

    step: StepRef
    config: Any = None


@dataclass(frozen=True, slots=True)
class Clause:
    """A transition: the ``targets`` that follow when ``step`` emits ``event``.

    A dynamic clause has a function ``route(context)``, which chooses among the targets when the event comes.
    """

    step: StepRef
    event: str
    targets: tuple[Target, ...]
    route: Callable[[Any], Any] | None = None


class Transit:
    """A dynamic transition as ``@transit`` declares it in the body of a workflow class.

    ``fn`` is the decorated function, which chooses among the targets.
    """

    def __init__(self, step: StepRef, event: str, targets: tuple[StepRef, ...], fn: Callable[[Any], Any]) -> None:
        self.step = step
        self.event = event
        self.targets = targets
        self.fn = fn

    def __get__(self, instance: object, owner: type | None = None) -> Callable[[Any], Any]:
        return self.fn


def transit(
    step: StepRef, event: str, *, targets: Sequence[StepRef]
) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Return a decorator for a function that chooses the steps which follow when ``step`` emits ``event``.

    It decorates a function ``(context)`` in the body of the workflow class, above ``@staticmethod``.

    The function returns one of ``targets``, ``(target, config)``, or a list of these; an empty list activates nothing.
    It must be deterministic, like all workflow code. Raises ``WorkflowDefinitionError`` for invalid arguments, and for
    a function that is async or cannot be called with a context.
    """
    problems = []
    if not is_step(step):
        problems = [not_a_step_text(step)]
    if not is_event(event):
        problems.append(f"{event!r} is not a valid event name")
    if (
        isinstance(targets, (str, bytes, Mapping))
        or not hasattr(targets, "__iter__")
        or not (target_steps := tuple(targets))
    ):
        target_steps = ()
        problems.append("targets must be a list of the steps that it can choose")
    problems += [f"the target {not_a_step_text(target)}" for target in target_steps if not is_step(target)]
    for ref in (step, *target_steps):
        try:
            require_hashable(ref)
        except ValueError as exc:
            problems.append(str(exc))
    if problems:
        raise WorkflowDefinitionError(f"transit({name_of(step)}, {event!r}): " + "; ".join(problems))

    def decorate(fn: Callable[[Any], Any]) -> Any:
        function = fn.__func__ if isinstance(fn, staticmethod) else fn
        if not callable(function) or inspect.iscoroutinefunction(function) or not _accepts_context(function):
            raise WorkflowDefinitionError(
                f"transit({name_of(step)}, {event!r}): decorate a plain function that takes (context), not {fn!r}"
            )
        return Transit(step, str.__str__(event), target_steps, function)

    return decorate


def _accepts_context(fn: Callable[..., Any]) -> bool:
    try:
        inspect.signature(fn).bind(None)
    except TypeError:
        return False
    return True


def targets_of(value: Any) -> tuple[Target, ...]:
    """Return the targets that ``value`` describes: a step, ``(step, config)``, or a list of these.

    Raises ``ValueError`` that names the part which is none of these.
    """
    if isinstance(value, list):
        targets = tuple(_as_target(part) for part in value)
        for index, target in enumerate(targets):
            if any(target.step == other.step for other in targets[:index]):
                raise ValueError(f"{name_of(target.step)} is in the list twice")
        return targets
    return (_as_target(value),)


def _as_target(value: Any) -> Target:
    """Return the target for a step or ``(step, config)``. Raises ``ValueError``, with advice, for anything else."""
    if is_step(value):
        return Target(require_hashable(value))
    if isinstance(value, tuple) and len(value) == 2 and is_step(value[0]):
        # A tuple of two steps looks like (step, config), and is almost always meant as a fan-out.
        if is_step(value[1]):
            raise ValueError(f"({name_of(value[0])}, {name_of(value[1])}) is a tuple: write a list to fan out")
        return Target(require_hashable(value[0]), value[1])
    if isinstance(value, tuple) and len(value) == 2 and (isinstance(value[0], Activity) or is_task(value[0])):
        value = value[0]
    raise ValueError(not_a_step_text(value, " (a step, (step, config), or a list of these)"))


def require_hashable(step: StepRef) -> StepRef:
    """Return the step. Raises ``ValueError`` if the step is not hashable, because it then cannot be looked up."""
    try:
        hash(step)
    except TypeError:
        raise ValueError(
            f"{name_of(step)} cannot be hashed: make its class a frozen dataclass of hashable values"
        ) from None
    return step


def dynamic_transits(cls: type) -> Iterator[Transit]:
    """Yield the dynamic clauses that ``@transit`` declares in a class and its bases, in order of definition.

    A function replaces an earlier one of the same name.
    """
    attributes: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items():
            # Remove it first, so that a name that is defined again moves to the place of its new definition.
            attributes.pop(name, None)
            attributes[name] = value
    for value in attributes.values():
        if isinstance(value, Transit):
            yield value
