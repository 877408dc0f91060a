"""Settings: one typed, frozen object read from the dict ``TEMPORALEX`` of the Django settings.

``get_settings()`` reads the dict again whenever Django's setting is another object, so ``override_settings`` works and
no cache has to be invalidated. Without Django, or before it is configured, the defaults apply: the in-memory
environment needs no settings.

An unknown name or a value of a wrong type raises ``NotConfigured``, when Django starts and at every use. A misspelt
``PAYLOAD_CODEC`` must not store payloads as plain JSON.
"""

from __future__ import annotations

import difflib
import ipaddress
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from temporalex_django.core.limits import NO_LIMITS, Limits, queue_errors
from temporalex_django.core.names import quoted
from temporalex_django.errors import NotConfigured, PayloadError, TemporalexError

if TYPE_CHECKING:
    from temporalex_django.core.payloads import PayloadCodec

SETTING = "TEMPORALEX"
_JSON_CODEC = "temporalex_django.core.payloads.JsonCodec"
#: Methods that the object behind a dotted path must have, by setting.
_METHODS = {
    "PAYLOAD_CODEC": ("encode", "decode"),
    "ACCESS_POLICY": (
        *("narrow", "permits", "allows", "startable", "mask"),
        *("permissions", "stands_in_for", "may_delegate"),
    ),
}
#: Item of ``TRUSTED_PROXIES`` for a proxy that connects over a Unix socket, which has no address.
UNIX = "unix"
#: Fewest database connections with which a worker with one activity thread can run.
FEWEST_CONNECTIONS = 6


def _setting(default: Any, doc: str, *, refuse: Callable[[Any], bool] | None = None, kind: str = "") -> Any:
    """Return a dataclass field with the description that ``docs/reference/settings.md`` shows.

    ``refuse`` is True for values of the right type that are wrong; ``kind`` describes the values that are right.
    """
    metadata = {"doc": doc, "refuse": refuse, "kind": kind}
    return (
        field(default_factory=dict, metadata=metadata) if default == {} else field(default=default, metadata=metadata)
    )


def _has_invalid_proxy(value: Any) -> bool:
    """True if an item is neither an address, a network nor ``UNIX``."""
    try:
        for proxy in value:
            if proxy != UNIX:
                ipaddress.ip_network(proxy, strict=False)
    except ValueError:
        return True
    return False


def _is_invalid_header(value: Any) -> bool:
    """True if the value cannot be the name of a header."""
    return value is not None and not (value.isascii() and value.replace("-", "").isalnum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings; each is a key of ``TEMPORALEX`` and has a default."""

    DATABASE: str = _setting(
        "default",
        "Alias of the database that holds the runs. It must be the database of the models that are written together with them: "
        "`start()` inside `transaction.atomic()` and `atomic=True` activities share that transaction.",
    )
    PAYLOAD_CODEC: str = _setting(
        _JSON_CODEC,
        "Dotted path of the class that turns payloads (arguments, results, messages, history attributes) into bytes and back. "
        "It has `encode(value) -> bytes` and `decode(data) -> value`; one that encrypts goes here.",
    )
    ACCESS_POLICY: str = _setting(
        "temporalex_django.access.AccessPolicy",
        "Dotted path of a subclass of `temporalex_django.access.AccessPolicy`: which runs a user can see, what they may do and start, "
        "and how payloads look to them. REST, the admin, commands and `by=` all use it.",
    )
    MAX_PAYLOAD_BYTES: int = _setting(
        2_000_000,
        "Largest encoded payload; a bigger one raises `PayloadError` at the call, and so does one of lists and objects more than 200 levels deep.",
    )
    POOLED: bool = _setting(
        False,
        "True behind a transaction pooler (PgBouncer): no settings or locks of a session, no prepared statements, no LISTEN. A dead "
        "worker is then found by its lease alone.",
    )
    UPDATE_LOCK_WAIT: float = _setting(
        2.0, "Seconds that an update in a request waits for the lock of its run before it is left to a worker."
    )
    BULK_LIMIT: int = _setting(1000, "Runs of one bulk job at most.")
    BULK_JOBS: int = _setting(
        20, "Bulk jobs of one person that may run at a time. One more is refused: `ActionNotPossible`."
    )
    CLAIM_SECONDS: float = _setting(
        900.0, "Seconds after which the claim of a human task ends by itself; who claims it again has so many more."
    )
    START_LOCK_WAIT: float = _setting(
        2.0,
        "Seconds that a start waits for another open transaction that starts the same id; then it raises `AlreadyRunning` with "
        "`pending=True`.",
    )
    POLL_INTERVAL: float = _setting(
        0.2,
        "Seconds between two looks of an idle worker at the tables, five times as many while it hears hints. Nothing depends on those.",
    )
    CACHE_SIZE: int = _setting(
        1000, "Runs that a worker keeps in memory between activations; the others are rebuilt from history."
    )
    CACHE_BYTES: int | None = _setting(
        128_000_000,
        "About how many bytes those runs may take; the least recently used go first. An estimate: 25 kB a run, and what came in by "
        "payloads. None: no limit but `CACHE_SIZE`.",
    )
    TURN_SIZE: int | None = _setting(
        None,
        "Runs that share one transaction. None: 200 on PostgreSQL; on SQLite 20, and more where so many take 8 ms, 100 at most.",
    )
    ACTIVITY_THREADS: int = _setting(8, "Threads of a worker for activities that are plain functions.")
    ACTIVITY_TASKS: int = _setting(
        100, "`async def` activities that a worker runs at the same time, in one event loop."
    )
    QUEUES: Mapping[str, Mapping[str, Any]] = _setting(
        {},
        "Queues with their limits, over all workers: `{'payments': {'concurrency': 10, 'rate': '100/m', 'concurrency_per_key': 2, "
        "'weight': 3}}`. `concurrency`: attempts of activities under way at a time; `rate`: how many begin, per second (`s`), minute "
        "(`m`) or hour (`h`); `concurrency_per_key`: at a time of one key, which `options(concurrency_key=...)` of an activity gives; `weight`: how "
        "often the queue comes first, 1 unless said otherwise. A queue that is not named has no limits.",
    )
    LEASE_SECONDS: float = _setting(
        6.0,
        "A worker that has not beaten for so long is taken for dead and its activities are given to others. It beats three times in "
        "that time.",
        refuse=lambda value: value <= 0,
        kind="a number above 0",
    )
    DRAIN_SECONDS: float = _setting(
        20.0, "How long a worker that was told to stop waits for activities in progress before it gives them back."
    )
    LEAVE_SECONDS: float = _setting(
        8.0,
        "How much longer it may take to commit, give back and end. Then its guardian kills it: SIGTERM ends a worker within "
        "`DRAIN_SECONDS` and this. Kubernetes' `terminationGracePeriodSeconds`, which is 30 where nothing is said, and systemd's "
        "`TimeoutStopSec` are to be more.",
    )
    HEALTH_SECONDS: float = _setting(
        60.0,
        "For so many seconds a worker's turns, its maintenance or its guardian may be silent until `temporalex health` says that it is "
        "not live. More than an atomic activity takes: that is part of a turn, though turns of others go on.",
        refuse=lambda value: value <= 0,
        kind="a number above 0",
    )
    WORKER_CONNECTIONS: int | None = _setting(
        None,
        "Connections to the database that one worker has open at most, at least 6: one each for turns, maintenance, LISTEN, bulk jobs "
        "and `async` activities, one for each thread of activities, and two for turns that go on while an atomic activity takes long. To "
        "stay below it takes fewer of these, then fewer threads than `ACTIVITY_THREADS`. None: `ACTIVITY_THREADS` and 7. What activities open besides, to other databases or in threads of their own, is theirs.",
        refuse=lambda value: value is not None and value < FEWEST_CONNECTIONS,
        kind="a whole number from 6, or None",
    )
    Q2_PUMPS: int | None = _setting(
        None,
        "Processes that a django-q2 cluster starts to advance workflows, when its `broker_class` is ours, beside the "
        "`Q_CLUSTER['workers']` that run the project's own tasks. None: half as many, at least one.",
    )
    WORKER_MAX_SECONDS: float | None = _setting(
        3600.0, "A worker of a django-q2 cluster retires after this time and is replaced. None: never."
    )
    WORKER_MAX_MEMORY_MB: int | None = _setting(None, "The same when its memory grows beyond this. None: never.")
    DEADLOCK_TIMEOUT: float | None = _setting(
        2.0,
        "Seconds that workflow code may compute without coming to a wait; then the run is blocked. None: no limit. A long inbox is no "
        "deadlock, nor is a long history that is replayed: each step is counted by itself.",
    )
    UNEXPECTED_ERROR: Literal["fail", "block"] = _setting(
        "fail",
        "What an exception does that escapes `run` and that nobody raised on purpose, a `KeyError` for example: it fails the run, or "
        "it blocks the run until the code is put right. A class has its own answer in `unexpected_error`.",
    )
    UPDATES_IN: Literal["request", "workers"] = _setting(
        "request",
        "Where updates are judged and their handlers run: in the process that sends them, or in workers alone. Code that keeps the "
        "interpreter to itself stops all threads of a web process, and nothing there ends it. A class has its own answer in `updates_in`.",
    )
    HARD_DEADLOCK_TIMEOUT: float | None = _setting(
        10.0,
        "Seconds after which the parent of a worker ends it when nothing inside can interrupt what it runs: a loop that catches every "
        "exception, or C code that keeps the interpreter to itself, also of activities. Time in which the worker was stopped does not "
        "count. What ends three workers is blocked, or fails. None: never.",
    )
    STRICT_REPLAY: bool = _setting(
        False,
        "Whether a run is blocked whose code gives an activity or a child another input than its history has, when it is rebuilt. "
        "Otherwise the log has a warning, and the run goes on with what is recorded.",
    )
    GUARD: Literal["error", "warn", "off"] = _setting(
        "error",
        "What happens when workflow code reads the clock, draws randomness, or touches files, network, threads or the ORM. "
        "error: `DeterminismViolation`; warn: a `DeterminismWarning` and a log line, once per place; off: nothing.",
    )
    WAITING_UPDATES: int = _setting(
        1000,
        "Updates of one run that may wait to be let in, behind a busy handler, say, or for a worker. One more is refused: "
        "`TooManyUpdates`.",
    )
    WAITING_REQUESTS: int = _setting(
        16,
        "Requests to REST that may wait at a time, in one process, for a result or the outcome of an update (`?wait=`). Others are "
        "answered at once: 202, with `Retry-After`. Less than the server has threads. One user may have half of them.",
    )
    TRUSTED_PROXIES: tuple[str, ...] = _setting(
        (),
        "The proxies in front of the web server: what they say in `X-Forwarded-For` is recorded as the address of the person who acted. "
        "`'unix'` is one that comes over a socket of the machine. Of everybody else `REMOTE_ADDR` is noted.",
        refuse=_has_invalid_proxy,
        kind=f"a list of addresses, networks ('10.0.0.0/8') and {UNIX!r}",
    )
    REQUEST_ID_HEADER: str | None = _setting(
        "X-Request-ID",
        "The header in which the web server, or a proxy, says the id of a request, for the audit. It is a claim of its sender: 64 "
        "letters, digits and `-_.:/+=@` of it are noted. None: none.",
        refuse=_is_invalid_header,
        kind="the name of a header",
    )
    LOCAL_RUNNER: bool | None = _setting(
        None, "Whether `runserver` runs workflows in threads of its own. None: under DEBUG it does."
    )


_cached_settings: tuple[Any, Settings, list[str]] | None = None


def get_settings() -> Settings:
    """Return the present settings. Raises ``NotConfigured`` with everything that is unknown or of a wrong type."""
    settings, errors = read()
    if errors:
        raise NotConfigured(" ".join(errors))
    return settings


def read() -> tuple[Settings, list[str]]:
    """Return the settings, with defaults in place of wrong values, and one sentence for each error.

    The system checks use it to report all errors.
    """
    # By identity, not equality: `override_settings` replaces the object, and comparing dicts would cost at every use.
    global _cached_settings  # noqa: PLW0603 - a memo of one entry
    raw_settings = _raw_settings()
    if _cached_settings is None or _cached_settings[0] is not raw_settings:
        values = raw_settings if isinstance(raw_settings, Mapping) else _NO_SETTINGS
        hints = _hints()
        valid_values = {
            name: value for name, value in values.items() if name in hints and _fits(name, value, hints[name])
        }
        _cached_settings = raw_settings, Settings(**valid_values), [*_setting_errors(raw_settings, hints)]
    return _cached_settings[1], _cached_settings[2]


def problems() -> list[str]:
    """Return one sentence for each problem of ``TEMPORALEX``.

    The classes that settings name by path are imported for it.
    """
    _, errors = read()
    # Paths are imported only if the rest is right: `object_from_setting` would raise the errors above again.
    if all_errors := [*errors, *_misspelling_errors()]:
        return all_errors
    return [problem for name in _METHODS if (problem := _object_error(name))]


def _object_error(name: str) -> str | None:
    try:
        object_from_setting(name)
    except NotConfigured as exc:
        return str(exc)
    return None


def _setting_errors(raw: Any, hints: Mapping[str, Any]) -> Iterator[str]:
    if not isinstance(raw, Mapping):
        yield f"{SETTING} must be a dict, not {type(raw).__name__}."
        return
    for name, value in raw.items():
        if name not in hints:
            matches = difflib.get_close_matches(str(name).upper(), hints, n=1)
            yield f"{SETTING}[{name!r}] is not a setting" + (f": did you mean {matches[0]!r}?" if matches else ".")
        elif name == "QUEUES":
            yield from (f"{SETTING}[{name!r}]{'' if error[0] == '[' else ' '}{error}." for error in queue_errors(value))
        elif not _fits(name, value, hints[name]):
            advice = ""
            if name in _METHODS and not isinstance(value, str):
                cls = value if isinstance(value, type) else type(value)
                advice = f" Write the path of the class: '{cls.__module__}.{cls.__qualname__}'."
            yield f"{SETTING}[{name!r}] must be {_describe(name, hints[name])}, not {quoted(value)}.{advice}"


def _misspelling_errors() -> Iterator[str]:
    """Yield the settings that were probably meant as ``TEMPORALEX``, if it is missing.

    Their names are similar, and they hold a dict with one of our keys.
    """
    from django.conf import settings  # noqa: PLC0415 - see `_django_settings`

    if hasattr(settings, SETTING):
        return
    hints = _hints()
    for name in difflib.get_close_matches(SETTING, [name for name in dir(settings) if name.isupper()], cutoff=0.8):
        value = getattr(settings, name)
        if isinstance(value, Mapping) and any(key in hints for key in value):
            yield f"There is a setting {name}, but none {SETTING}: did you mean {SETTING!r}?"


def documentation() -> list[tuple[str, str, str, str]]:
    """Return ``(name, type, default, text)`` of every setting, for the reference page."""
    hints = _hints()
    return [
        (
            f.name,
            _describe(f.name, hints[f.name]),
            repr(f.default) if f.default is not MISSING else "{}",
            f.metadata["doc"],
        )
        for f in fields(Settings)
    ]


_cached_limits: tuple[Any, dict[str, Limits]] | None = None


def queue_limits() -> Mapping[str, Limits]:
    """Return the limits by queue; queues without limits are left out."""
    global _cached_limits  # noqa: PLW0603 - as above
    settings = get_settings()
    if _cached_limits is None or _cached_limits[0] is not settings:
        _cached_limits = settings, {name: Limits.from_options(options) for name, options in settings.QUEUES.items()}
    return _cached_limits[1]


def weight_of(queue: str) -> int:
    """Return the weight of a queue: its share in the order in which a worker looks for work."""
    return queue_limits().get(queue, NO_LIMITS).weight


_objects: dict[tuple[str, str], Any] = {}


def codec() -> PayloadCodec:
    """Return the payload codec that the settings name. Raises ``NotConfigured`` if it cannot be loaded."""
    payload_codec: PayloadCodec = object_from_setting("PAYLOAD_CODEC")
    return payload_codec


def object_from_setting(setting: str) -> Any:
    """Return an instance of the class that a setting names; there is one for each process and path.

    Raises ``NotConfigured`` if it cannot be loaded.
    """
    path = getattr(get_settings(), setting)
    loaded_object = _objects.get((setting, path))
    if loaded_object is None:
        loaded_object = _objects[setting, path] = _load_object(setting, path)
    return loaded_object


def _load_object(setting: str, path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        loaded_object = getattr(import_module(module), name)()
    except Exception as exc:
        raise NotConfigured(f"{SETTING}[{setting!r}] = {path!r} cannot be used: {type(exc).__name__}: {exc}.") from exc
    for method in _METHODS[setting]:
        if not callable(getattr(loaded_object, method, None)):
            raise NotConfigured(f"{SETTING}[{setting!r}] = {path!r} cannot be used: it has no method {method}().")
    # Our own codec is not wrapped: it raises the right errors, and encodes many payloads in each turn.
    return _ProjectCodec(path, loaded_object) if setting == "PAYLOAD_CODEC" and path != _JSON_CODEC else loaded_object


class _ProjectCodec:
    """A codec of the project.

    Its exceptions become ``PayloadError``, which callers and interfaces can handle. Errors of the package pass.
    """

    def __init__(self, path: str, codec: PayloadCodec) -> None:
        self._path = path
        self._encode, self._decode = codec.encode, codec.decode

    def encode(self, value: Any) -> bytes:
        try:
            return self._encode(value)
        except TemporalexError:
            raise
        except Exception as exc:
            raise self._error("encode a payload", exc) from exc

    def decode(self, data: bytes) -> Any:
        try:
            return self._decode(data)
        except TemporalexError:
            raise
        except Exception as exc:
            raise self._error("decode a stored payload", exc) from exc

    def _error(self, operation: str, exc: Exception) -> PayloadError:
        # Only the type: the message of a codec's exception may quote the payload.
        return PayloadError(f"the codec {self._path} cannot {operation}: {type(exc).__name__}")


@cache
def _django_settings() -> Any:
    """Return the settings object of Django, or None without Django."""
    try:
        from django.conf import settings  # noqa: PLC0415 - the in-memory environment runs without Django
    except ImportError:
        return None
    return settings


def _raw_settings() -> Any:
    settings = _django_settings()
    # Always the same object without settings: `read` compares by identity.
    if settings is None:
        return _NO_SETTINGS
    # LazySettings keeps values that were read in its `__dict__` until they are overridden. Reading there is faster than
    # an attribute access, and settings are read in every turn.
    cached_settings = object.__getattribute__(settings, "__dict__").get(SETTING)
    if cached_settings is not None:
        return cached_settings
    # An attribute access would raise ImproperlyConfigured; tests in memory may have Django installed and not use it.
    if not settings.configured and not _has_settings_module():
        return _NO_SETTINGS
    return getattr(settings, SETTING, _NO_SETTINGS)


def _has_settings_module() -> bool:
    import os  # noqa: PLC0415 - needed once, before Django is configured

    return bool(os.environ.get("DJANGO_SETTINGS_MODULE"))


_NO_SETTINGS: Mapping[str, Any] = {}


def _hints() -> dict[str, Any]:
    return get_type_hints(Settings)


def _choices(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the annotation alone."""
    return get_args(annotation) if type(None) in get_args(annotation) else (annotation,)


def _fits(name: str, value: Any, annotation: Any) -> bool:
    if name == "QUEUES":
        return not queue_errors(value)
    refuse = Settings.__dataclass_fields__[name].metadata["refuse"]
    return _is_instance_of(value, annotation) and not (refuse is not None and refuse(value))


def _is_instance_of(value: Any, annotation: Any) -> bool:
    for choice in _choices(annotation):
        if get_origin(choice) is Literal:
            if value in get_args(choice):
                return True
        elif get_origin(choice) is tuple:
            if isinstance(value, (list, tuple)) and all(isinstance(part, str) for part in value):
                return True
        elif choice is float:
            # True is an int in Python: `LEASE_SECONDS = True` must not mean one second.
            if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf:
                return True
        elif choice is int:
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return True
        elif isinstance(value, choice):
            return True
    return False


def _describe(name: str, annotation: Any) -> str:
    if kind := Settings.__dataclass_fields__[name].metadata["kind"]:
        return str(kind)
    names = {
        float: "a number",
        int: "a whole number above 0",
        str: "a string",
        bool: "True or False",
        type(None): "None",
        Mapping[str, Mapping[str, Any]]: "queues with their limits",
    }
    return " or ".join(names.get(choice) or " or ".join(map(repr, get_args(choice))) for choice in _choices(annotation))
