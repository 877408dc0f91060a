"""Steps as activities: the function that a worker runs for a step, and the form of its result in the history."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, SupportsIndex
from weakref import WeakKeyDictionary

from temporalex_django.authoring import activity as activities
from temporalex_django.authoring.activity import Activity, ActivityOptions, RunSource
from temporalex_django.authoring.activity_options import RetryPolicy
from temporalex_django.core.history.events import InputReading, to_reading
from temporalex_django.core.payloads import codec
from temporalex_django.core.payloads.codec import deep_copy
from temporalex_django.core.results import Event
from temporalex_django.errors import ActivityNotFound, PayloadError
from temporalex_django.graph.context import Context
from temporalex_django.graph.events import find_declared_event
from temporalex_django.graph.frozen_data import freeze
from temporalex_django.graph.instance import Instance
from temporalex_django.graph.progress import encode_step_result
from temporalex_django.graph.steps import Step, StepRef, class_of, events_of, name_of

#: The retry policy of a step for which neither the step nor its workflow sets one.
DEFAULT_RETRY = RetryPolicy(max_attempts=5, max_interval=60.0)


class StepActivity(Activity[Any, Any]):
    """The activity that runs the steps of one step class, in all graph workflows that use the class."""

    def __init__(self, cls: type[Step]) -> None:
        super().__init__(cls.execute, ActivityOptions(atomic=cls.atomic))
        # The function may come from a base or a mixin, so its name does not identify the step. Histories name the
        # class.
        self.name = f"{cls.__module__}.{cls.__qualname__.rsplit('<locals>.', 1)[-1]}"
        self.step_class = cls

    def decode_call(
        self, args: Sequence[Any], kwargs: Any, source: RunSource
    ) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """Return ``execute`` of the step, its arguments ``(instance, config, context)`` and no keyword arguments.

        ``args`` are the step key, the config and the version from the recorded call. The instance is loaded from
        ``source`` when ``execute`` reads one of its fields. Raises ``PayloadError``, ``UnknownWorkflow``,
        ``ActivityNotFound``.
        """
        key, config, version = args
        step = self._find_step(key, source.workflow(version))
        step_instance = step() if isinstance(step, type) else step
        config_type = _config_type(type(step_instance))
        if config_type is Any:
            typed_config = freeze(config)
        else:
            typed_config = codec.convert(config, config_type, label=f"the config of step {name_of(step)}")
        # Computing the instance replays the history of the run, and most steps read only their config.
        instance = LazyInstance(lambda: source.instance(version))
        return step_instance.execute, (instance, typed_config, Context.of(instance)), {}

    def encode_result(self, value: Any, args: Sequence[Any], source: RunSource) -> Any:
        """Return the form in which the history records ``value``, which ``execute`` has returned.

        ``args`` are the recorded step key, config and version, and ``source`` has the class of the run. A value that
        the step may not return is encoded as the reason why it may not.
        """
        step = self._find_step(args[0], source.workflow(args[2]))
        encoded_result = encode_step_result(name_of(step), events_of(step), value)
        if "event" in encoded_result and (declared := find_declared_event(step, encoded_result["event"])) is not None:
            # Convert for the check alone: the history keeps the plain data.
            label = f"the data of the event {encoded_result['event']!r} of step {name_of(step)}"
            try:
                codec.convert(codec.to_plain(encoded_result["data"], label=label), declared.data_type, label=label)
            except PayloadError as exc:
                return {"wrong": exc.message}
        return encoded_result

    annotate_result = ""  # other steps read plain data

    def read_result(self, result: Any) -> Any:
        """Return the recorded result unchanged, because the context of a graph holds plain data."""
        return result

    def encode_manual_result(self, result: Any, args: Sequence[Any], source: RunSource) -> Any:
        """Return the form in which the history records a result that a person entered for the step.

        ``result`` is ``{"event": name, "data": …}`` with an event that the step declares. Raises ``PayloadError``.
        """
        if (
            not isinstance(result, dict)
            or not isinstance(result.get("event"), str)
            or result.keys() - {"event", "data"}
        ):
            raise PayloadError(f'the result of step {args[0]} must be {{"event": name, "data": ...}}')
        encoded_result: dict[str, Any] = self.encode_result(Event(result["event"], result.get("data")), args, source)
        if "wrong" in encoded_result:
            raise PayloadError(encoded_result["wrong"])
        return encoded_result

    def parse_edited_input(self, edited_input: Any, args: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of the step with the config that a person entered, and no keyword arguments.

        ``edited_input`` is that config, and ``args`` are the recorded arguments. Raises ``PayloadError``.
        """
        key, _, version = args
        codec.convert(deep_copy(edited_input), _config_type(self.step_class), label=f"the config of step {key}")
        return [key, edited_input, version], {}

    def read_input(self, attributes: Mapping[str, Any]) -> InputReading:
        """Return the key and the config of the step from a recorded call.

        The recorded version is left out, because it is the version of the run. Raises ``PayloadError``.
        """
        key, config, _ = attributes["args"]
        config_type = _config_type(self.step_class)
        typed_config = codec.convert(deep_copy(config), config_type, label=f"the config of step {key}")
        return to_reading({"step": key, "config": typed_config}, {"step": str, "config": config_type})

    def _find_step(self, key: str, workflow: Any) -> StepRef:
        """Return the step of the workflow class with this key. Raises ``ActivityNotFound``."""
        graph = getattr(workflow, "_graph", None)
        step: StepRef | None = None
        if graph is not None:
            step = graph.by_key.get(key)
        if step is None:
            raise ActivityNotFound(f"{workflow.__name__} has no step {key!r} in this process")
        return step


def _config_type(cls: type[Step]) -> Any:
    """Return the annotation of the parameter ``config`` of ``execute`` of a step class, or Any.

    The answer is cached, because reading a signature takes longer than most steps.
    """
    # Threads may compute the same entry twice, which does no harm.
    if cls not in _config_types:
        name = [*inspect.signature(cls.execute).parameters][2]
        _config_types[cls] = codec.resolve_hints(cls.execute).get(name, Any)
    return _config_types[cls]


_config_types: WeakKeyDictionary[type[Step], Any] = WeakKeyDictionary()
_step_activities: WeakKeyDictionary[type[Step], StepActivity] = WeakKeyDictionary()


def activity_of(step: StepRef) -> StepActivity:
    """Return the activity that runs steps of the class of ``step``, and register it so that workers find it."""
    cls = class_of(step)
    step_activity = _step_activities.get(cls)
    if step_activity is None:
        step_activity = _step_activities[cls] = StepActivity(cls)
    activities.register(step_activity)
    return step_activity


def options_of(step: StepRef, workflow: Any) -> dict[str, Any]:
    """Return the options of the activity that runs a step, as plain data.

    Each option comes from the step. A step without a retry policy gets the policy of its workflow class, or else the
    default policy. Raises ``WorkflowDefinitionError`` for options that are not valid.
    """
    retry = step.retry or getattr(workflow, "retry", None) or DEFAULT_RETRY
    return ActivityOptions(
        retry=retry,
        start_to_close=step.timeout,
        heartbeat=step.heartbeat,
        queue=step.queue,
        atomic=step.atomic,
        by_hand=step.by_hand,
    ).as_dict()


class LazyInstance(Instance):
    """A stand-in for the instance that the function ``load`` returns: it behaves as that instance does.

    ``load`` is called once, when a field is read. So a step that never reads its instance does not pay for computing
    it.
    """

    def __init__(self, load: Callable[[], Instance]) -> None:
        self.__dict__["load"] = load

    @property
    def real(self) -> Instance:
        """The instance that ``load`` returns. Raises the errors of ``load``."""
        # Not a ``cached_property``: in Python 3.11 it has one lock for all instances.
        attributes = self.__dict__
        if "real" not in attributes:
            attributes["real"] = attributes["load"]()
        return attributes["real"]  # type: ignore[no-any-return] # the return value of ``load``

    @property  # type: ignore[misc] # read-only
    def __class__(self) -> type[Instance]:  # type: ignore[override] # the base
        """The class ``Instance``, so that ``dataclasses.replace`` and ``pickle`` create an ordinary instance."""
        return Instance

    def changed(self, **changes: Any) -> Instance:
        return self.real.changed(**changes)

    def _identity(self) -> tuple[Any, ...]:
        return self.real._identity()  # noqa: SLF001 - of the same class

    def __repr__(self) -> str:
        return repr(self.real)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return self.real.__reduce_ex__(protocol)  # a copy or pickle is a plain instance


def _forward_property(name: str) -> property:
    """Return a property that reads the field ``name`` of the real instance."""
    return property(lambda lazy_instance: getattr(lazy_instance.real, name))


# Properties of the class win over the values in ``__dict__``, so every field is read from the real instance.
for _field in fields(Instance):
    setattr(LazyInstance, _field.name, _forward_property(_field.name))
