"""Definitions of workflow classes, and what a redefinition changes."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import TYPE_CHECKING, Any

from temporalex_django.authoring.activity_options import Unique
from temporalex_django.authoring.start_api import START_API
from temporalex_django.core import names
from temporalex_django.core.messages.phase import accepts_arguments, signature_text
from temporalex_django.core.names import to_seconds
from temporalex_django.core.payloads import search_attributes
from temporalex_django.core.payloads.codec import FIELD_TYPES, check_text
from temporalex_django.errors import PayloadError, WorkflowDefinitionError

if TYPE_CHECKING:
    from temporalex_django.authoring.workflow import Workflow
    from temporalex_django.core.runtime_protocol import WorkflowRuntime


# --- definition -------------------------------------------------------------------------------------------------------
#
# The checks of a workflow class when it is defined. All problems are reported together.


#: Attributes of a class that are durations: seconds, or timedeltas.
DURATIONS = ("execution_timeout", "run_timeout", "retention", "chain_retention")
#: Names that the engine and other code call on a class; a method of the same name would hide them.
_OPERATIONS = frozenset(
    {"start", "astart", "list", "alist", "signal_with_start", "asignal_with_start", "handle", "answer"}
    | {"definition", "defined_as", "definition_place", "require_registered"}
    | {"dispatched_by", "resolve_version", "is_versioned", "choose"}
)
_INTERNAL = frozenset({"definition", "defined_as", "dispatched_by", "cancels_at_once", "definition_place"})
#: Minimal length of a name for which two edits still count as a misspelling. Short names (`run`, `tags`) are two edits
#: away from too many other words.
_LONG_NAME = 6
#: Longest name of a stored field or search attribute that a column and a query string can hold.
_LONGEST_NAME = 100
#: Names that other parts use for one of our attributes (activities have `queue`), and the attribute meant.
_FOREIGN_NAMES = {"queue": "task_queue", "permission": "start_permission"}
#: Attributes that set something for tasks of other packages, and what to write instead.
_FOREIGN_SETTINGS = {
    **dict.fromkeys(
        ("retries", "max_retries", "retry_policy", "default_retry_delay", "autoretry_for", "max_attempts"),
        "retry=RetryPolicy(...) at its activities, since a run is not tried again",
    ),
    **dict.fromkeys(("cron", "crontab", "run_every"), "Schedule(key, workflow, cron=...) in schedules.py of an app"),
    **dict.fromkeys(("time_limit", "soft_time_limit"), "execution_timeout, for all runs of a chain, or run_timeout"),
}
#: Ordinary words that are close to one of our attributes and are no misspellings of it.
_ORDINARY_WORDS = frozenset({"interval", "store", "stores", "started", "sorted", "scored"})


def problems(cls: type[Workflow], base: type[Workflow]) -> Iterator[str]:
    """Yield one sentence for each problem of the class ``cls``. ``base`` is ``Workflow`` itself."""
    run = inspect.getattr_static(cls, "run")
    if run is inspect.getattr_static(base, "run"):
        yield "it has no method run: write `async def run(self, args)`, or make a base class (Workflow, abstract=True)"
    if not inspect.iscoroutinefunction(run):
        yield "run must be an `async def` method"
    elif len(inspect.signature(run).parameters) != 2 or not accepts_arguments(run, 2):
        yield "run must take (self, args)"
    if cls.__init__ is not object.__init__ and not accepts_arguments(cls.__init__, 1):
        yield f"__init__ must take self alone: the input comes to run ({signature_text(cls.__init__)})"
    yield from _identity_problems(cls)
    yield from _label_problems(cls)
    yield from _duration_problems(cls)
    yield from _exposure_problems(cls)
    yield from _signal_problems(cls)
    yield from _misspelling_problems(cls, base)
    # Without `unique` a class has no `resume`, `get` or `cancel` of ours, so it may use these names itself.
    reserved = _OPERATIONS | START_API if cls.unique is not None else _OPERATIONS
    for name in sorted(reserved & cls.__dict__.keys()):
        yield f"{name} is reserved by the library: give the attribute another name"


def _identity_problems(cls: type[Workflow]) -> Iterator[str]:
    if not names.is_name(cls.name) or cls.name.startswith("__"):
        yield f"name {names.quoted(cls.name)} must be a string of 1 to 200 printable characters that does not begin with '__'"
    if type(cls.version) is not int or cls.version < 1:
        yield f"version {cls.version!r} must be a whole number of 1 or more"
    if not names.is_name(cls.task_queue):
        yield f"task_queue {names.quoted(cls.task_queue)} must be a string of 1 to 200 printable characters"
    if not isinstance(cls.aliases, (list, tuple)) or not all(map(names.is_name, cls.aliases)):
        yield f"aliases {names.quoted(cls.aliases)} must be a tuple of former names of the class"
    if cls.unique is not None and not isinstance(cls.unique, Unique):
        yield f"unique {cls.unique!r} must be Unique(key=..., scope=...)"


def _label_problems(cls: type[Workflow]) -> Iterator[str]:
    if not isinstance(cls.tags, (list, tuple)) or not all(isinstance(tag, str) for tag in cls.tags):
        yield f"tags {cls.tags!r} must be a list of strings"
    else:
        for tag in cls.tags:
            yield from _text_problems("tags", tag)
    if not isinstance(cls.metadata, Mapping):
        yield f"metadata {cls.metadata!r} must be a mapping with string keys"
    else:
        yield from json_problems("metadata", cls.metadata)


def merge_tags(cls: type[Workflow], extra_tags: Sequence[str]) -> list[str]:
    """Return the tags of a new run: the tags of its class, then ``extra_tags`` of its start, each once.

    Raises ``PayloadError`` for tags that are not valid.
    """
    if (
        not isinstance(extra_tags, (list, tuple))
        or len(extra_tags) > search_attributes.MAX_TEXTS
        or not all(map(names.is_name, extra_tags))
    ):
        raise PayloadError(
            f"start of {cls.name}: tags must be a list of at most {search_attributes.MAX_TEXTS} names "
            f"of 1 to {names.MAX_LENGTH} printable characters, not {names.quoted(extra_tags)}"
        )
    return list(dict.fromkeys([*cls.tags, *extra_tags]))


def _duration_problems(cls: type[Workflow]) -> Iterator[str]:
    for name in DURATIONS:
        value = getattr(cls, name)
        try:
            if value is not None and to_seconds(value, label=name) <= 0:
                yield f"{name} must be more than 0"
        except (TypeError, ValueError) as exc:
            yield str(exc)


def _exposure_problems(cls: type[Workflow]) -> Iterator[str]:
    if cls.updates_in not in (None, "request", "workers"):
        yield f'updates_in must be "request" or "workers", not {cls.updates_in!r}'
    if cls.versioning not in ("auto", "pinned"):
        yield f'versioning must be "auto" or "pinned", not {cls.versioning!r}'
    if cls.backend not in (None, names.TABLES, names.TEMPORAL):
        yield f'backend must be "tables" or "temporal", not {cls.backend!r}'
    if cls.unexpected_error not in (None, "fail", "block"):
        yield f'unexpected_error must be "fail" or "block", not {cls.unexpected_error!r}'
    if not isinstance(cls.internal, bool):
        yield f"internal {cls.internal!r} must be True or False"
    if cls.start_permission is not None and not names.is_permission(cls.start_permission):
        yield f"start_permission must be of the form app.codename, not {cls.start_permission!r}"
    yield from _path_problems(cls.redacted)
    stored = ", ".join(kind.__name__ for kind in FIELD_TYPES)
    yield from _typed_name_problems(cls, "stored", FIELD_TYPES, stored)
    yield from _typed_name_problems(
        cls, "search_attributes", search_attributes.ATTRIBUTE_TYPES, search_attributes.TYPE_NAMES
    )


def _signal_problems(cls: type[Workflow]) -> Iterator[str]:
    if cls.signals is None:
        return
    if not isinstance(cls.signals, (list, tuple)):
        yield f"signals {names.quoted(cls.signals)} must be a tuple of names, such as ('paid',)"
        return
    for name in cls.signals:
        if not names.is_name(name) or name.startswith("__"):
            yield (
                f"signals: {names.quoted(name)} must be a string of 1 to 200 printable characters "
                "that does not begin with '__'"
            )


def _typed_name_problems(cls: type[Workflow], attribute: str, kinds: Container[Any], type_names: str) -> Iterator[str]:
    """Check ``stored`` or ``search_attributes``: plain text in the database, so no field may be redacted."""
    types = getattr(cls, attribute)
    if not isinstance(types, Mapping):
        yield f"{attribute} {types!r} must be a mapping of fields to types, such as {{'total': Decimal}}"
        return
    for name, kind in types.items():
        if not isinstance(name, str) or not name.isidentifier() or "__" in name or len(name) > _LONGEST_NAME:
            yield (
                f"{attribute}: {names.quoted(name)} must be an identifier of at most {_LONGEST_NAME} characters "
                "without '__'"
            )
        elif not isinstance(kind, Hashable) or kind not in kinds:
            yield f"{attribute}: {name} must be {type_names}, not {kind!r}"
        elif isinstance(cls.redacted, (list, tuple)) and name in cls.redacted:
            yield f"{attribute}: {name} is also redacted, but SQL would show it: remove it from one of the two"


def _path_problems(paths: Any) -> Iterator[str]:
    if not isinstance(paths, (list, tuple)):
        yield f"redacted {paths!r} must be a tuple of paths such as 'card' or 'customer.email'"
        return
    for path in paths:
        if not names.is_name(path) or not all(part and part == part.strip() for part in path.split(".")):
            yield f"redacted: {names.quoted(path)} is not a path of keys such as 'card' or 'customer.email'"


def duplicate_query_problems(names: Sequence[str]) -> Iterator[str]:
    """Yield one sentence for each query name that occurs more than once."""
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            yield f"two functions answer the query {name!r}"


def signature_problems(functions: Mapping[str, Callable[..., Any]], form: str, *counts: int) -> Iterator[str]:
    """Yield one sentence for each function that accepts none of the ``counts`` of positional arguments.

    ``functions`` are the functions by name. ``form`` shows in the sentence how a function is called.
    """
    for label, fn in functions.items():
        if not any(accepts_arguments(fn, count) for count in counts):
            yield f"{label} must be callable as {form}"


def _misspelling_problems(cls: type[Workflow], base: type[Workflow]) -> Iterator[str]:
    """Yield a sentence for each attribute that looks like a misspelt attribute of ``Workflow``."""
    # Nothing else reads unknown attributes: `taskqueue = "slow"` would be ignored, and runs would start in the wrong
    # queue.
    annotated = {name for cls in base.__mro__ for name in getattr(cls, "__annotations__", {})}
    attribute_names = sorted(
        name for name in {*annotated, "run", "handle_query"} - START_API if not name.startswith("_")
    )
    for name in cls.__dict__:
        if name.startswith("_") or name in attribute_names or name in _ORDINARY_WORDS or hasattr(base, name):
            continue
        if problem := _foreign_problem(name):
            yield problem
            continue
        distances = [(edit_distance(name, other), other) for other in attribute_names if other not in _INTERNAL]
        best, other = min(distances)
        if best <= (2 if len(other) >= _LONG_NAME else 1):
            yield f"there is no attribute {name!r}: did you mean {other!r}? (if not, choose a less similar name)"


def _foreign_problem(name: str) -> str:
    """Return a sentence if the attribute belongs to other parts or other packages, else ""."""
    if name in _FOREIGN_NAMES:
        return f"there is no attribute {name!r}: did you mean {_FOREIGN_NAMES[name]!r}? (if not, rename it)"
    if name in _FOREIGN_SETTINGS:
        return f"{name} sets nothing here: write {_FOREIGN_SETTINGS[name]} (if it is yours, rename it)"
    return ""


def json_problems(label: str, value: Any, path: str = "") -> Iterator[str]:
    """Yield a sentence for each place where ``value`` is not JSON with string keys and finite numbers.

    ``label`` begins the sentence. ``path`` leads to ``value`` within the value that is checked.
    """
    place = f" at {path}" if path else ""
    if isinstance(value, Mapping):
        for key, part in value.items():
            if not isinstance(key, str):
                yield f"{label}{place}: the key {key!r} must be a string"
            else:
                yield from _text_problems(f"{label}{place}: the key", key)
                yield from json_problems(label, part, f"{path}.{key}" if path else key)
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            yield from json_problems(label, part, f"{path}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{label}{place}: {value} is not JSON"
    elif isinstance(value, str):
        yield from _text_problems(f"{label}{place}", value)
    elif value is not None and not isinstance(value, (int, float, bool)):
        yield f"{label}{place}: {value!r} is not JSON"


def _text_problems(label: str, value: str) -> Iterator[str]:
    """Yield a sentence if database columns cannot hold the text."""
    try:
        check_text(value, label=f"{label} {value!r}")
    except PayloadError as exc:
        yield str(exc)


def edit_distance(a: str, b: str) -> int:
    """Return the least number of edits that turn ``a`` into ``b`` (optimal string alignment).

    An edit inserts, drops or replaces a character, or swaps two neighbours.
    """
    rows = [list(range(len(b) + 1))]
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            cost = min(rows[-1][j] + 1, row[j - 1] + 1, rows[-1][j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, rows[-2][j - 2] + 1)
            row.append(cost)
        rows.append(row)
    return rows[-1][-1]


# --- redefinitions ----------------------------------------------------------------------------------------------------
#
# Two definitions that share a name: whether they are one piece of code, and the error if they are not.
#
# The later definition replaces the earlier one. Histories hold names, so a worker would run the later one although code
# has called the earlier one. See decision 55. The modules of activities and classes import this one, so their types are
# ``Any`` here.


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
    """Return True if code cannot tell them apart. ``assumed`` are open pairs: a function may refer to itself."""
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
    for name, value in vars(cls).items():
        if not name.startswith("__") and name not in _DERIVED:
            yield name, value
