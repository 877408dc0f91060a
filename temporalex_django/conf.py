"""Settings: one typed, frozen object read from the dict ``TEMPORALEX`` of the Django settings.

``get_settings()`` reads the dict again whenever Django's setting is another object, so ``override_settings`` works and
no cache has to be invalidated. Without Django, or before it is configured, the defaults apply: the in-memory
environment needs no settings.

An unknown name or a value of a wrong type raises ``NotConfigured``, when Django starts and at every use. A misspelt
``PAYLOAD_CODEC`` must not store payloads as plain JSON.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, cast, get_args, get_origin, get_type_hints

from temporalex_django.core.limits import (
    ALERTS_KIND,
    CLUSTER_KIND,
    NO_LIMITS,
    UNIX,
    Limits,
    has_invalid_proxy,
    is_invalid_alerts,
    is_invalid_cluster,
    is_invalid_header,
    queue_errors,
)
from temporalex_django.core.names import TABLES, TEMPORAL, quoted
from temporalex_django.core.payloads.codec import ProjectCodec
from temporalex_django.errors import NotConfigured
from temporalex_django.interceptors.chain import load_interceptors
from temporalex_django.telemetry.definitions import EXPORTERS

if TYPE_CHECKING:
    from temporalex_django.core.payloads.codec import PayloadCodec

SETTING = "TEMPORALEX"
_JSON_CODEC = "temporalex_django.core.payloads.JsonCodec"
#: Says why a project with this setting cannot use the package.
WITHOUT_TIME_ZONES = (
    "USE_TZ is False: the times of runs have a time zone, and this project would store them without it."
)
#: Methods that the object behind a dotted path must have, by setting.
_METHODS = {
    "PAYLOAD_CODEC": ("encode", "decode"),
    "ACCESS_POLICY": (
        *("narrow", "narrow_schedules", "narrow_tasks", "permits", "allows", "startable", "mask"),
        *("permissions", "stands_in_for", "may_delegate"),
    ),
}
#: Fewest database connections with which a worker with one activity thread can run.
FEWEST_CONNECTIONS = 6
#: Further connections of a worker with a Temporal cluster.
CLUSTER_CONNECTIONS = 4


def _setting(default: Any, doc: str, *, refuse: Callable[[Any], bool] | None = None, kind: str = "") -> Any:
    """Return a field; ``doc`` is for settings.md, ``refuse`` for bad values of the right type, ``kind`` for errors."""
    metadata = {"doc": doc, "refuse": refuse, "kind": kind}
    return (
        field(default_factory=dict, metadata=metadata) if default == {} else field(default=default, metadata=metadata)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of the package. Each field is a key of the dict ``TEMPORALEX`` and has a default."""

    DATABASE: str = _setting(
        "default",
        "Alias of the database that holds the runs. Use the database of the models that you write together with runs: "
        "`start()` inside `transaction.atomic()` and `atomic=True` activities share that transaction.",
    )
    PAYLOAD_CODEC: str = _setting(
        _JSON_CODEC,
        "Dotted path of the class that turns payloads (arguments, results, messages, history attributes) into bytes and back. "
        "It has `encode(value) -> bytes` and `decode(data) -> value`. To encrypt payloads, give the path of a class that does so.",
    )
    ACCESS_POLICY: str = _setting(
        "temporalex_django.access.AccessPolicy",
        "Dotted path of a subclass of `temporalex_django.access.AccessPolicy`. It determines which runs a user "
        "can see, what they may do and start, and how payloads look to them. REST, the admin, commands and `by=` "
        "use it.",
    )
    MAX_PAYLOAD_BYTES: int = _setting(
        2_000_000,
        "Largest encoded payload. A larger one raises `PayloadError` at the call, and so does one with lists and objects nested more than 200 levels deep.",
    )
    POOLED: bool = _setting(
        False,
        "Set it to True behind a transaction pooler (PgBouncer): the package then uses no session settings or locks, no prepared statements and no LISTEN, "
        "and recognizes a dead worker only by its lease.",
    )
    UPDATE_LOCK_WAIT: float = _setting(
        2.0, "Seconds for which an update in a request waits for the lock of its run. After that, a worker handles it."
    )
    BULK_LIMIT: int = _setting(1000, "Maximum number of runs in one bulk job.")
    BULK_JOBS: int = _setting(
        20,
        (
            "Maximum number of bulk jobs of one person that can run at the same time. Starting another raises "
            "`ActionNotPossible`."
        ),
    )
    SCHEDULE_BUFFER: int = _setting(
        100,
        "Maximum number of slots of one schedule that wait for an earlier run, with `Overlap.BUFFER_ALL` or in a backfill.",
    )
    CLAIM_SECONDS: float = _setting(
        900.0, "Seconds after which the claim of a human task expires. Claiming it again starts a new period."
    )
    START_LOCK_WAIT: float = _setting(
        2.0,
        "Seconds for which a start waits for another open transaction that starts a run with the same id. After "
        "that, it raises `AlreadyRunning` with `pending=True`.",
    )
    POLL_INTERVAL: float = _setting(
        0.2,
        "Seconds between two polls by an idle worker. While the worker receives notifications, the interval is five times as long. "
        "Correctness never depends on notifications.",
    )
    CACHE_SIZE: int = _setting(
        1000, "Runs that a worker keeps in memory between activations. It rebuilds the others from their histories."
    )
    CACHE_BYTES: int | None = _setting(
        128_000_000,
        "Approximate memory, in bytes, for the runs that a worker keeps in memory; the worker drops the least recently used first. "
        "It estimates 25 kB for each run, plus its payloads. None: only `CACHE_SIZE` limits the cache.",
    )
    TURN_SIZE: int | None = _setting(
        None,
        "Maximum number of runs that share one transaction. None: 200 on PostgreSQL; on SQLite 20, or up to 100 as long as a transaction takes no more than 8 ms.",
    )
    ACTIVITY_THREADS: int = _setting(8, "Threads of a worker for activities that are plain functions.")
    ACTIVITY_TASKS: int = _setting(
        100, "Maximum number of `async def` activities that a worker runs at the same time, in one event loop."
    )
    QUEUES: Mapping[str, Mapping[str, Any]] = _setting(
        {},
        "Limits of queues, across all workers: `{'payments': {'concurrency': 10, 'rate': '100/m', "
        "'concurrency_per_key': 2, 'weight': 3}}`. `concurrency`: attempts of activities that run at the same "
        "time; `rate`: attempts that start per second (`s`), minute (`m`) or hour (`h`); `concurrency_per_key`: "
        "attempts at the same time for one key, which an activity sets with `options(concurrency_key=...)`; "
        "`weight`: how often a worker looks at this queue first, relative to other queues (default: 1). Queues "
        "that you do not list have no limits.",
    )
    LEASE_SECONDS: float = _setting(
        6.0,
        "Seconds without a heartbeat after which a worker counts as dead and other workers retry its activities. A worker sends three heartbeats in "
        "that time.",
        refuse=lambda value: value <= 0,
        kind="a number above 0",
    )
    DRAIN_SECONDS: float = _setting(
        20.0, "Seconds for which a stopping worker waits for its running activities before it releases them."
    )
    LEAVE_SECONDS: float = _setting(
        8.0,
        "Further seconds that a stopping worker may take to commit, release its claims and exit. Then its guardian kills it, so SIGTERM ends a worker within "
        "`DRAIN_SECONDS` plus `LEAVE_SECONDS`. Set Kubernetes' `terminationGracePeriodSeconds` (30 by default) and systemd's "
        "`TimeoutStopSec` to more than this sum.",
    )
    HEALTH_SECONDS: float = _setting(
        60.0,
        "Seconds without a sign of life from a worker's turns, maintenance or guardian after which `temporalex health` reports that it is "
        "not live. Set it to more than your longest atomic activity takes, because that activity is part of a turn.",
        refuse=lambda value: value <= 0,
        kind="a number above 0",
    )
    TARGET_LAG_SECONDS: float = _setting(
        10.0,
        "Seconds within which due work should begin. `temporalex health --queues` and a metric compute from it how many workers a queue needs.",
        refuse=lambda value: value <= 0,
        kind="a number above 0",
    )
    WORKER_CONNECTIONS: int | None = _setting(
        None,
        "Maximum number of database connections that one worker opens. Must be at least 6: one each for turns, "
        "maintenance, LISTEN, bulk jobs and `async` activities, one for each activity thread, and two for turns "
        "that continue during a long atomic activity. With a lower limit, a worker uses fewer of these, and then "
        "fewer threads than `ACTIVITY_THREADS`. None: `ACTIVITY_THREADS` plus 7. A `CLUSTER` needs four more, for the outbox, "
        "the rows of runs, their signals and their comparison, so the minimum is then 10. "
        "Connections that activities open themselves, to other databases or in their own threads, do not count.",
        refuse=lambda value: value is not None and value < FEWEST_CONNECTIONS,
        kind="a whole number of at least 6, or None",
    )
    Q2_PUMPS: int | None = _setting(
        None,
        "Processes that a django-q2 cluster with the `broker_class` of this package starts to advance workflows, in addition to the "
        "`Q_CLUSTER['workers']` that run the project's own tasks. None: half as many, but at least one.",
    )
    WORKER_MAX_SECONDS: float | None = _setting(
        3600.0, "Seconds after which a worker of a django-q2 cluster exits and the cluster replaces it. None: never."
    )
    WORKER_MAX_MEMORY_MB: int | None = _setting(
        None, "Memory in MB above which a worker of a django-q2 cluster exits and the cluster replaces it. None: never."
    )
    DEADLOCK_TIMEOUT: float | None = _setting(
        2.0,
        "Seconds for which workflow code may compute between two waits. After that, the run is blocked. None: no "
        "limit. A long inbox or the replay of a long history is not a deadlock: the limit applies to each step.",
    )
    UNEXPECTED_ERROR: Literal["fail", "block"] = _setting(
        "fail",
        "What happens when an exception that your code did not raise on purpose, such as a `KeyError`, escapes `run`: it fails the run, or "
        "it blocks the run until you fix the code. A class overrides this with `unexpected_error`.",
    )
    UPDATES_IN: Literal["request", "workers"] = _setting(
        "request",
        "Where validators and handlers of updates run: in the process that sends the update, or only in workers. Code that blocks the "
        "interpreter stops all threads of a web process, and nothing there interrupts it. A class overrides this with `updates_in`.",
    )
    HARD_DEADLOCK_TIMEOUT: float | None = _setting(
        10.0,
        "Seconds after which the guardian kills a worker whose code cannot be interrupted from inside: a loop that catches every "
        "exception, or C code that blocks the interpreter. This includes the code of activities. Time in which the worker process was "
        "suspended does not count. A run that has killed three workers is blocked, and an activity that has done so fails. None: never.",
    )
    STRICT_REPLAY: bool = _setting(
        False,
        "Whether a rebuilt run is blocked if its code gives an activity or a child an input that differs from its history. "
        "Otherwise the package logs a warning, and the run continues with the recorded input.",
    )
    GUARD: Literal["error", "warn", "off"] = _setting(
        "error",
        "What happens when workflow code reads the clock, uses randomness, or accesses files, the network, threads or the ORM. "
        "error: `DeterminismViolation`; warn: a `DeterminismWarning` and a log line, once for each place; off: nothing.",
    )
    WAITING_UPDATES: int = _setting(
        1000,
        "Number of updates of one run that may wait to be accepted, for example by a busy handler or for a worker. Sending another raises "
        "`TooManyUpdates`.",
    )
    WAITING_REQUESTS: int = _setting(
        16,
        "REST requests of one process that may wait at the same time for a result or the outcome of an update (`?wait=`). Others get "
        "202 with `Retry-After` at once. Set it to less than the number of threads of the server. One user may use half of them.",
    )
    TRUSTED_PROXIES: tuple[str, ...] = _setting(
        (),
        "The proxies in front of the web server. For their requests, the audit log records the address in `X-Forwarded-For` as that of the person who acted; "
        "for other requests, it records `REMOTE_ADDR`. `'unix'` is a proxy that connects over a Unix socket.",
        refuse=has_invalid_proxy,
        kind=f"a list of addresses, networks ('10.0.0.0/8') and {UNIX!r}",
    )
    REQUEST_ID_HEADER: str | None = _setting(
        "X-Request-ID",
        "The header in which the web server or a proxy sends the id of a request, for the audit log. The id is not verified. The audit log records at most 64 "
        "letters, digits and characters of `-_.:/+=@`. None: no header.",
        refuse=is_invalid_header,
        kind="the name of a header",
    )
    ALERTS: Mapping[str, Any] = _setting(
        {},
        "Where alerts about problems go: `MAIL` (a list of addresses), `CALL` (the path of a function that takes an `AlertMessage`), "
        "`FROM` (the sender; default: `SERVER_EMAIL`), `BASE_URL` (for links, such as `https://shop.example`), `NAME` (the project in subjects), "
        "and `HEARTBEAT_URL`, an address that workers request each minute. See [Alerts](../howto/alerts.md). Empty: nobody.",
        refuse=is_invalid_alerts,
        kind=ALERTS_KIND,
    )
    EXPECTED_WORKERS: int | None = _setting(
        None,
        "How many live workers the project expects. With fewer, `doctor` and alerts have a finding. None: any number.",
        refuse=lambda value: value is not None and value < 1,
    )
    INTERCEPTORS: tuple[str, ...] = _setting(
        (),
        "Dotted paths of subclasses of `temporalex_django.interceptors.Interceptor`, the outermost one first; read when Django starts. See [Interceptors](../howto/interceptors.md).",
        kind="a list of dotted paths",
    )
    METRICS: tuple[str, ...] = _setting(
        (),
        "Exporters of metrics in each process of the project: `'prometheus'`, `'otel'` or both. Each needs the "
        "extra with the same name. Without an exporter, nothing is recorded. `temporalex worker --metrics-port` "
        "adds `'prometheus'` in that worker.",
        refuse=lambda value: not EXPORTERS.keys() >= set(value),
        kind="a list of 'prometheus' and 'otel'",
    )
    METRICS_TOKEN: str | None = _setting(
        None,
        "The token with which a client may read the view of metrics, in the header `Authorization: Bearer TOKEN`. None: only users with the "
        "permission `temporalex_django.view_worker` may read it.",
        refuse=lambda value: value is not None and len(value) < 16,
        kind="a string of at least 16 characters, or None",
    )
    BACKEND: Literal["tables", "temporal"] = _setting(
        TABLES,
        "Where new runs are stored: in the tables of this package, or on the Temporal cluster in `CLUSTER`. A "
        "class overrides this with `backend`. A run stays on the backend on which it was started.",
    )
    CLUSTER: Mapping[str, Any] = _setting(
        {},
        "The Temporal cluster for runs with the backend `temporal`: `ADDRESS` (default: `localhost:7233`), `NAMESPACE` (default: `default`), "
        "`API_KEY` (a text, or a function that returns it), and `TLS`, which is True or a dict with the paths `CA`, `CERT` and `KEY`. "
        "The key and the files are read anew every 30 seconds, so they can be replaced without a restart. `PREFIX` comes before each id on the cluster, so that two projects can "
        "share a namespace. `DEPLOYMENT` and `BUILD_ID` are the names of the worker deployment and of the build of your code, for "
        "[deploys](../howto/run-on-temporal.md#deploy-new-code). See [Run workflows on a Temporal cluster](../howto/run-on-temporal.md).",
        refuse=is_invalid_cluster,
        kind=CLUSTER_KIND,
    )
    LOCAL_RUNNER: bool | None = _setting(
        None, "Whether `runserver` runs workflows in separate threads. None: only if DEBUG is on."
    )


_cached_settings: tuple[Any, Settings, list[str]] | None = None


def uses_cluster(settings: Settings | None = None) -> bool:
    """Return True if the settings name a Temporal cluster, on which runs may live. None: those of this project."""
    settings = settings or get_settings()
    return bool(settings.CLUSTER) or settings.BACKEND == TEMPORAL


def cluster_address(cluster: Mapping[str, Any] | None = None) -> str:
    """Return the host and port in the setting ``CLUSTER`` (None: this project). By default those of Temporal."""
    return str((get_settings().CLUSTER if cluster is None else cluster).get("ADDRESS", "localhost:7233"))


def get_settings() -> Settings:
    """Return the current settings. Raises ``NotConfigured``, which lists all that are unknown or have a wrong type."""
    settings, errors = read()
    if errors:
        raise NotConfigured(" ".join(errors))
    return settings


def read() -> tuple[Settings, list[str]]:
    """Return ``(settings, errors)``: defaults take the place of wrong values, and each error is a sentence.

    The system checks use this function to report all errors.
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
    """Return one sentence for each problem of ``TEMPORALEX``; an empty list if there is none.

    This imports the classes that settings name by path.
    """
    settings, errors = read()
    # Paths are imported only if the rest is right: `object_from_setting` would raise the errors above again.
    if all_errors := [*errors, *_misspelling_errors()]:
        return all_errors
    missing_extras = [
        f"{SETTING}['METRICS'] names {name!r}, which needs the module {EXPORTERS[name]}: install temporalex-django[{name}]."
        for name in settings.METRICS
        if find_spec(EXPORTERS[name]) is None
    ]
    return [
        problem for name in (*_METHODS, "ALERTS", "INTERCEPTORS") if (problem := _object_error(name))
    ] + missing_extras


def _object_error(name: str) -> str | None:
    """Return why the class or function that a setting names cannot be used, or None."""
    try:
        if name == "INTERCEPTORS":
            load_interceptors(tuple(get_settings().INTERCEPTORS))
        else:
            alert_function() if name == "ALERTS" else object_from_setting(name)
    except NotConfigured as exc:
        return str(exc)
    return None


def _setting_errors(raw: Any, hints: Mapping[str, Any]) -> Iterator[str]:
    """Yield one sentence for each unknown name and each value of a wrong type in ``TEMPORALEX``."""
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
    least, connections = FEWEST_CONNECTIONS + CLUSTER_CONNECTIONS, raw.get("WORKER_CONNECTIONS")
    if raw.get("CLUSTER") and isinstance(connections, int) and FEWEST_CONNECTIONS <= connections < least:
        yield (
            f"{SETTING}['WORKER_CONNECTIONS'] must be at least {least} with a CLUSTER: a worker has {CLUSTER_CONNECTIONS} "
            "connections more, for the outbox, for the rows of runs, for their signals and for their comparison."
        )


def _misspelling_errors() -> Iterator[str]:
    """Yield a sentence for each dict with our keys under a similar name, if ``TEMPORALEX`` is missing."""
    from django.conf import settings  # noqa: PLC0415 - see `_django_settings`

    if hasattr(settings, SETTING):
        return
    hints = _hints()
    for name in difflib.get_close_matches(SETTING, [name for name in dir(settings) if name.isupper()], cutoff=0.8):
        value = getattr(settings, name)
        if isinstance(value, Mapping) and any(key in hints for key in value):
            yield f"There is a setting {name}, but no setting {SETTING}: did you mean {SETTING!r}?"


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
    """Return the limits of queues by name; queues without limits are left out."""
    global _cached_limits  # noqa: PLW0603 - as above
    settings = get_settings()
    if _cached_limits is None or _cached_limits[0] is not settings:
        _cached_limits = settings, {name: Limits.from_options(options) for name, options in settings.QUEUES.items()}
    return _cached_limits[1]


def weight_of(queue: str) -> int:
    """Return the weight of a queue: how often a worker looks at it first, relative to others (1 if none is set)."""
    return queue_limits().get(queue, NO_LIMITS).weight


_objects: dict[tuple[str, str], Any] = {}


def codec() -> PayloadCodec:
    """Return the payload codec that the settings name. Raises ``NotConfigured`` if it cannot be loaded."""
    payload_codec: PayloadCodec = object_from_setting("PAYLOAD_CODEC")
    return payload_codec


def object_from_setting(setting: str) -> Any:
    """Return the object of the class that a setting names by path, such as "PAYLOAD_CODEC".

    Each process makes one object for each path. Raises ``NotConfigured`` if the class cannot be loaded.
    """
    path = getattr(get_settings(), setting)
    loaded_object = _objects.get((setting, path))
    if loaded_object is None:
        loaded_object = _objects[setting, path] = _load_object(setting, path)
    return loaded_object


def _load_object(setting: str, path: str) -> Any:
    """Return an object with the methods that the setting requires. Raises ``NotConfigured``."""
    module, _, name = path.rpartition(".")
    try:
        loaded_object = getattr(import_module(module), name)()
    except Exception as exc:
        raise NotConfigured(f"{SETTING}[{setting!r}] = {path!r} cannot be used: {type(exc).__name__}: {exc}.") from exc
    for method in _METHODS[setting]:
        if not callable(getattr(loaded_object, method, None)):
            raise NotConfigured(
                f"{SETTING}[{setting!r}] = {path!r} cannot be used: it does not have the method {method}()."
            )
    # Our own codec is not wrapped: it raises the right errors, and encodes many payloads in each turn.
    return ProjectCodec(path, loaded_object) if setting == "PAYLOAD_CODEC" and path != _JSON_CODEC else loaded_object


def alert_function() -> Callable[[Any], object] | None:
    """Return the function that ``ALERTS`` names with ``CALL``, or None. Raises ``NotConfigured`` if there is none."""
    path = get_settings().ALERTS.get("CALL")
    if not path:
        return None
    module, _, name = path.rpartition(".")
    try:
        function = getattr(import_module(module), name)
    except Exception as exc:
        raise NotConfigured(f"{SETTING}['ALERTS']['CALL'] = {path!r}: {type(exc).__name__}: {exc}.") from exc
    if not callable(function):
        raise NotConfigured(f"{SETTING}['ALERTS']['CALL'] = {path!r} is not a function.")
    return cast("Callable[[Any], object]", function)


@cache
def _django_settings() -> Any:
    """Return the settings object, or None without Django."""
    try:
        from django.conf import settings  # noqa: PLC0415 - the in-memory environment runs without Django
    except ImportError:
        return None
    return settings


def _raw_settings() -> Any:
    """Return the value of ``TEMPORALEX``; an empty mapping if there is none."""
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
    """Return the types of an annotation such as ``int | None``. One without None is its own only choice."""
    return get_args(annotation) if type(None) in get_args(annotation) else (annotation,)


def _fits(name: str, value: Any, annotation: Any) -> bool:
    if name == "QUEUES":
        return not queue_errors(value)
    refuse = Settings.__dataclass_fields__[name].metadata["refuse"]
    return _is_instance_of(value, annotation) and not (refuse is not None and refuse(value))


def _is_instance_of(value: Any, annotation: Any) -> bool:
    return any(_is_instance_of_choice(value, choice) for choice in _choices(annotation))


def _is_instance_of_choice(value: Any, choice: Any) -> bool:
    """Return True if a value is of the type ``choice``, which is one part of the annotation."""
    if get_origin(choice) is Literal:
        return value in get_args(choice)
    if get_origin(choice) is tuple:
        return isinstance(value, (list, tuple)) and all(isinstance(part, str) for part in value)
    # True is an int in Python: `LEASE_SECONDS = True` must not mean one second.
    if choice is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf
    if choice is int:
        return isinstance(value, int) and not isinstance(value, bool) and value > 0
    return isinstance(value, get_origin(choice) or choice)


def _describe(name: str, annotation: Any) -> str:
    """Return words for valid values, such as "a whole number above 0 or None"."""
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
