"""Two definitions that share a name: whether they are one piece of code, and the error if they are not.

The later definition replaces the earlier one. Histories hold names, so a worker would run the later one although code
has called the earlier one. See decision 55. The modules of activities and classes import this one, so their types are
``Any`` here.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import TYPE_CHECKING, Any

from temporalex_django.errors import WorkflowDefinitionError

if TYPE_CHECKING:
    from temporalex_django.core.run_context import WorkflowRuntime

_PACKAGE = "temporalex_django."
#: Functions that a class statement calls in the bases and the metaclass of its class.
_CLASS_HOOKS = frozenset({"__init_subclass__", "__new__", "__init__", "__call__"})
#: Attributes of a workflow class that the package sets.
_DERIVED = frozenset(
    {"_graph", "_queries", "definition", "defined_as", "definition_place", "dispatched_by", "name", "names", "options"}
)


@dataclass(frozen=True, slots=True)
class DefinitionPlace:
    """The place of a definition in the source.

    ``execution`` is the spec of the module when the definition was executed. A module that is loaded again has another
    spec.
    """

    module: str
    qualname: str
    path: str
    line: int
    execution: object = field(compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.module}, line {self.line}"


def place_of_function(fn: Any, execution: object) -> DefinitionPlace:
    """Return the place of a function. Decorators that keep ``__wrapped__`` are looked through."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    path, line = ("", 0) if code is None else (code.co_filename, code.co_firstlineno)
    return DefinitionPlace(fn.__module__, fn.__qualname__, path, line, execution)


def place_of_class(cls: type) -> DefinitionPlace:
    """Return the place of a class that is being defined now: the line of its statement, or of the call of ``type``."""
    frame = sys._getframe(1)  # noqa: SLF001
    while frame.f_back is not None and (
        frame.f_globals.get("__name__", "").startswith(_PACKAGE) or frame.f_code.co_name in _CLASS_HOOKS
    ):
        frame = frame.f_back
    return DefinitionPlace(
        cls.__module__, cls.__qualname__, frame.f_code.co_filename, frame.f_lineno, execution_of(frame.f_globals)
    )


def execution_of(module_globals: Mapping[str, Any]) -> object:
    """Return the object that stands for the present execution of a module: its spec, which a reload replaces."""
    return module_globals.get("__spec__")


def is_same_code(place: DefinitionPlace, old: Any, new_place: DefinitionPlace, new: Any) -> bool:
    """Return True if two definitions, of ``old`` and ``new``, are one piece of code that was executed twice.

    A module that was loaded again has the same code at the same place. A function that is called twice makes two
    definitions at one place. They are the same only if the function gave them the same values.
    """
    if place != new_place:
        return False
    if place.execution is not new_place.execution and "<locals>" not in place.qualname:
        return True
    return _is_same_value(old, new, ())


def replaced_error(kind: str, name: str, place: DefinitionPlace, new_place: DefinitionPlace) -> WorkflowDefinitionError:
    """Return the error for the use of a definition that another one has replaced under its name."""
    other = (
        "it was defined there again with other values" if place == new_place else f"{new_place} has defined another one"
    )
    return WorkflowDefinitionError(
        f"the {kind} {name!r} that this code uses is defined in {place}, but {other} under this name, and workers would "
        "run that one: give each of them a name of its own, with name="
    )


def is_same_activity(used: Any, other: Any) -> bool:
    """Return True if two activities are one piece of code."""
    return is_same_code(place_of_activity(used), _code_of(used), place_of_activity(other), _code_of(other))


def require_same_activity(used: Any, registered: Any) -> None:
    """Raise ``WorkflowDefinitionError`` if ``registered``, the activity under the name of ``used``, is other code."""
    if not is_same_activity(used, registered):
        raise replaced_error("activity", used.name, place_of_activity(used), place_of_activity(registered))


def check_use(port: WorkflowRuntime, require: Callable[[], None]) -> None:
    """Call ``require``, and raise its ``WorkflowDefinitionError`` in the workflow code that runs now.

    Names decide in a history that was made without this error, and in its replay. So a marker records the error. It is
    a deprecated one: corrected code, which does not issue it, still replays.
    """
    try:
        require()
    except WorkflowDefinitionError:
        marker = f"__redefined__{port.pending_commands.last_number + 1}"
        is_refused, needs_marker = port.patches.check_patch(marker, replaying=port.run_context.replaying)
        if needs_marker:
            port.journal.emit("SetPatchMarker", None, {"id": marker, "deprecated": True})
        if is_refused:
            raise


def place_of_activity(activity: Any) -> DefinitionPlace:
    """Return the place of the function of an activity."""
    return place_of_function(activity.__wrapped__, activity.execution)


def _code_of(activity: Any) -> tuple[Any, ...]:
    """Return the function of an activity, and the options that workers look up by its name."""
    options = activity.options_set
    return activity.__wrapped__, options.limits, options.lane, options.atomic


def require_same_class(cls: Any, registered: Any) -> None:
    """Raise ``WorkflowDefinitionError`` if ``registered``, the class under the name of ``cls``, is other code."""
    # A version of a dispatcher is started through it, and has its name.
    if registered is None or registered is cls or registered is cls.dispatched_by:
        return
    used = cls.dispatched_by or cls
    if not is_same_code(used.definition_place, used, registered.definition_place, registered):
        raise replaced_error("workflow", cls.name, used.definition_place, registered.definition_place)


def _is_same_value(old: Any, new: Any, assumed: tuple[tuple[Any, Any], ...]) -> bool:
    """Return True if two values cannot be told apart by code that reads them.

    ``assumed`` are the pairs that are being compared already: a function may refer to itself.
    """
    if old is new or any(old is a and new is b for a, b in assumed):
        return True
    if type(old) is not type(new):
        return False
    assumed = (*assumed, (old, new))
    # What can change is the same only if it is one object, so anything else has to have a hash.
    is_same = False
    match old:
        case FunctionType():
            is_same = _place_and_code(old) == _place_and_code(new) and _are_same(_bound(old), _bound(new), assumed)
        case staticmethod() | classmethod():
            is_same = _is_same_value(old.__func__, new.__func__, assumed)
        case tuple():
            is_same = _are_same(enumerate(old), enumerate(new), assumed)
        case type():
            is_same = old.__bases__ == new.__bases__ and _are_same(_own_attributes(old), _own_attributes(new), assumed)
        case _:
            try:
                is_same = hash(old) == hash(new) and bool(old == new)
            except Exception:  # noqa: BLE001 - the values are of user code
                is_same = False
    return is_same


def _are_same(
    old: Iterable[tuple[Any, Any]], new: Iterable[tuple[Any, Any]], assumed: tuple[tuple[Any, Any], ...]
) -> bool:
    """Return True if two collections of pairs have the same keys, and the same value for each."""
    old_values, new_values = dict(old), dict(new)
    return old_values.keys() == new_values.keys() and all(
        _is_same_value(value, new_values[key], assumed) for key, value in old_values.items()
    )


def _place_and_code(fn: FunctionType) -> tuple[Any, ...]:
    code = fn.__code__
    # A path such as "<stdin>" is no place: each input there begins with line 1.
    own_code = code if code.co_filename.startswith("<") else None
    return fn.__module__, fn.__qualname__, code.co_filename, code.co_firstlineno, own_code


def _bound(fn: FunctionType) -> Iterator[tuple[Any, Any]]:
    """Yield the values that a function got when it was defined: its defaults, and the variables around it."""
    yield "defaults", fn.__defaults__
    yield from (fn.__kwdefaults__ or {}).items()
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            yield f"closure of {name}", cell.cell_contents
        except ValueError:  # not assigned yet
            yield f"closure of {name}", None


def _own_attributes(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a class that its statement sets."""
    for name, value in vars(cls).items():
        if not name.startswith("__") and name not in _DERIVED:
            yield name, value
