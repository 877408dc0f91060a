"""Settings: one typed, frozen value read from the dict ``TEMPORALEX`` of the Django settings.

``get_settings()`` reads it anew whenever Django's setting is another object, so ``override_settings`` works and there is no cache
to invalidate. Without Django, or before it is configured, the defaults hold: the in-memory environment needs no settings.
Unknown names and wrong types do not raise here: the system check ``temporalex_django.E001`` names them.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from temporalex_django.core.payloads import PayloadCodec

SETTING = "TEMPORALEX"


def _setting(default: Any, doc: str) -> Any:
    """A field whose documentation travels with it: ``docs/reference/settings.md`` is made of these."""
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set; each setting is a key of ``TEMPORALEX`` and has a default."""

    DATABASE: str = _setting(
        "default",
        "Alias of the database that holds the runs. It must be the database of the models that are written together with them: "
        "`start()` inside `transaction.atomic()` and `atomic=True` activities share that transaction.",
    )
    PAYLOAD_CODEC: str = _setting(
        "temporalex_django.core.payloads.JsonCodec",
        "Dotted path of the class that turns payloads (arguments, results, messages, history attributes) into bytes and back. "
        "It has `encode(value) -> bytes` and `decode(data) -> value`; one that encrypts goes here.",
    )
    MAX_PAYLOAD_BYTES: int = _setting(
        2_000_000, "Largest encoded payload; a bigger one raises `PayloadError` at the call."
    )
    POOLED: bool = _setting(
        False,
        "True behind a transaction pooler (PgBouncer): no session locks, no prepared statements, no LISTEN. A dead worker is then "
        "found by its lease alone.",
    )
    UPDATE_LOCK_WAIT: float = _setting(
        2.0, "Seconds that an update in a request waits for the lock of its run before it is left to a worker."
    )
    START_LOCK_WAIT: float = _setting(
        2.0,
        "Seconds that a start waits for another open transaction that starts the same id; then it raises `AlreadyRunning` with "
        "`pending=True`.",
    )
    POLL_INTERVAL: float = _setting(
        0.2, "Seconds between two looks of an idle worker at the tables. Hints make it faster; nothing depends on them."
    )
    CACHE_SIZE: int = _setting(
        1000, "Runs that a worker keeps in memory between activations; the others are rebuilt from history."
    )
    TURN_SIZE: int | None = _setting(None, "Runs that share one transaction. None: 200 on PostgreSQL, 20 on SQLite.")
    ACTIVITY_THREADS: int = _setting(8, "Threads of a worker for activities that are plain functions.")
    ACTIVITY_TASKS: int = _setting(
        100, "`async def` activities that a worker runs at the same time, in one event loop."
    )
    LEASE_SECONDS: float = _setting(
        6.0,
        "A worker that has not beaten for so long is taken for dead and its activities are given to others. It beats three times in "
        "that time.",
    )
    DRAIN_SECONDS: float = _setting(
        20.0, "How long a worker that was told to stop waits for activities in progress before it gives them back."
    )
    Q2_PUMPS: int | None = _setting(
        None,
        "Processes of a django-q2 cluster that advance workflows, when its `broker_class` is ours; the others run the project's own "
        "tasks. None: half of `Q_CLUSTER['workers']`, at least one.",
    )
    WORKER_MAX_SECONDS: float | None = _setting(
        3600.0, "A worker of a django-q2 cluster retires after this time and is replaced. None: never."
    )
    WORKER_MAX_MEMORY_MB: int | None = _setting(None, "The same when its memory grows beyond this. None: never.")
    DEADLOCK_TIMEOUT: float | None = _setting(
        2.0, "Seconds that workflow code may compute without coming to a wait; then the run is blocked. None: no limit."
    )
    GUARD: Literal["error", "warn", "off"] = _setting(
        "error",
        "What happens when workflow code reads the clock, draws randomness, or touches files, network, threads or the ORM. "
        "error: `DeterminismViolation`; warn: a `DeterminismWarning` and a log line, once per place; off: nothing.",
    )
    LOCAL_RUNNER: bool | None = _setting(
        None, "Whether `runserver` runs workflows in threads of its own. None: under DEBUG it does."
    )


_seen: tuple[Any, Settings] | None = None


def get_settings() -> Settings:
    """The settings as they are now; what is unknown or of a wrong type is left at its default."""
    global _seen  # noqa: PLW0603 - a memo of one entry, compared by identity
    raw = _raw()
    if _seen is not None and _seen[0] is raw:
        return _seen[1]
    known = _hints()
    given = raw if isinstance(raw, Mapping) else _NOTHING
    good = {name: value for name, value in given.items() if name in known and _fits(value, known[name])}
    settings = Settings(**good)
    _seen = (raw, settings)
    return settings


def problems() -> list[str]:
    """What is wrong with ``TEMPORALEX``, one sentence each, for the system check."""
    raw = _raw()
    if not isinstance(raw, Mapping):
        return [f"{SETTING} must be a dict, not {type(raw).__name__}."]
    known = _hints()
    found = []
    for name, value in raw.items():
        if name not in known:
            near = difflib.get_close_matches(str(name).upper(), known, n=1)
            found.append(f"{SETTING}[{name!r}] is not a setting" + (f": did you mean {near[0]!r}?" if near else "."))
        elif not _fits(value, known[name]):
            found.append(f"{SETTING}[{name!r}] must be {_describe(known[name])}, not {value!r}.")
    try:
        codec()
    except Exception as exc:  # noqa: BLE001 - whatever importing the user's class raises belongs into the message
        found.append(f"{SETTING}['PAYLOAD_CODEC'] = {get_settings().PAYLOAD_CODEC!r} cannot be used: {exc}")
    return found


def documentation() -> list[tuple[str, str, str, str]]:
    """``(name, type, default, text)`` of every setting, for the reference page."""
    hints = _hints()
    return [
        (f.name, _describe(hints[f.name]), repr(f.default) if f.default is not MISSING else "", f.metadata["doc"])
        for f in fields(Settings)
    ]


_codecs: dict[str, PayloadCodec] = {}


def codec() -> PayloadCodec:
    """The payload codec that the settings name; one object a process and path."""
    path = get_settings().PAYLOAD_CODEC
    if path not in _codecs:
        module, _, name = path.rpartition(".")
        made = getattr(import_module(module), name)()
        for method in ("encode", "decode"):
            if not callable(getattr(made, method, None)):
                raise TypeError(f"{path} has no method {method}()")
        _codecs[path] = made
    return _codecs[path]


def _raw() -> Any:
    try:
        from django.conf import settings  # noqa: PLC0415 - the in-memory environment runs without Django
    except ImportError:
        return _NOTHING
    if not settings.configured and not _names_settings():
        return _NOTHING
    return getattr(settings, SETTING, _NOTHING)


def _names_settings() -> bool:
    import os  # noqa: PLC0415 - see above

    return bool(os.environ.get("DJANGO_SETTINGS_MODULE"))


_NOTHING: Mapping[str, Any] = {}


def _hints() -> dict[str, Any]:
    return get_type_hints(Settings)


def _choices(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, or the annotation alone."""
    return get_args(annotation) if type(None) in get_args(annotation) else (annotation,)


def _fits(value: Any, annotation: Any) -> bool:
    for one in _choices(annotation):
        if get_origin(one) is Literal:
            if value in get_args(one):
                return True
        elif one is float:
            if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0:
                return True
        elif one is int:
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return True
        elif isinstance(value, one):
            return True
    return False


def _describe(annotation: Any) -> str:
    names = {
        float: "a number",
        int: "a whole number above 0",
        str: "a string",
        bool: "True or False",
        type(None): "None",
    }
    return " or ".join(names.get(one) or " or ".join(map(repr, get_args(one))) for one in _choices(annotation))
