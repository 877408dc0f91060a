"""Limits of sizes, and readable errors about values of settings."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from temporalex_django.core.names import is_name, quoted

# --- limits -----------------------------------------------------------------------------------------------------------
#
# Limits: how many activities may run at a time, and how many may start within a period. All functions are pure.


_PERIODS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_RATE = re.compile(r"([1-9][0-9]{0,8})/([smh])")
#: Number of slices of a period. Starts are counted by slice, so a start may count for up to one slice too long.
_SLICES = 20
#: Longest concurrency key, in characters.
_MAX_KEY_LENGTH = 200

#: Pairs of the start of a slice, in seconds since 1970, and the number of activities that started in it.
StartSlices = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Rate:
    """A limit: at most ``count`` starts in any window of ``seconds`` seconds.

    Starts are counted in slices, which are short parts of that window. In the methods, ``starts`` has a pair for each
    slice: the time at which it begins, and the number of activities that started in it. Times, such as ``now``, are in
    seconds since 1970.
    """

    count: int
    seconds: float

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Return the rate for a text such as "10/s", "100/m" or "1000/h". Raises ``ValueError`` for other texts."""
        matched = _RATE.fullmatch(text) if isinstance(text, str) else None
        if matched is None:
            raise ValueError(f"rate must be like '10/s', '100/m' or '1000/h', not {text!r}")
        return cls(int(matched[1]), _PERIODS[matched[2]])

    def __str__(self) -> str:
        return f"{self.count}/{next(name for name, seconds in _PERIODS.items() if seconds == self.seconds)}"

    def recent_slices(self, starts: StartSlices, now: float) -> list[tuple[float, int]]:
        """Return the slices (short parts of the window, with their starts) that may count for the window that ends now.

        A slice is ``(time at which it begins, number of starts)``. A slice more than a window in the future was
        recorded by a clock that has since been set back. It is dropped, so that it delays nothing.
        """
        first, last = now - self.seconds - self.seconds / _SLICES, now + self.seconds
        return [(at, int(count)) for at, count in starts if count and first < at <= last]

    def remaining(self, starts: StartSlices, now: float) -> int:
        """Return how many activities may start now."""
        return max(0, self.count - sum(count for _, count in self.recent_slices(starts, now)))

    def wait_seconds(self, starts: StartSlices, now: float) -> float:
        """Return the seconds until the oldest start leaves the window; 0 if there was no start in it."""
        recent = self.recent_slices(starts, now)
        return max(0.0, min(at for at, _ in recent) + self.seconds * (1 + 1 / _SLICES) - now) if recent else 0.0

    def with_starts(self, starts: StartSlices, now: float, started_count: int) -> list[tuple[float, int]]:
        """Return ``starts``, as it has to be stored, after ``started_count`` more activities start now."""
        recent, slice_ = self.recent_slices(starts, now), self.seconds / _SLICES
        current = now // slice_ * slice_
        before = sum(count for at, count in recent if at == current)
        return [*((at, count) for at, count in recent if at != current), (current, before + started_count)]

    @staticmethod
    def without_starts(starts: StartSlices, number: int) -> list[tuple[float, int]]:
        """Return ``starts`` without the last ``number`` of them: these activities were claimed and not started."""
        slices = []
        for at, count in sorted(((at, int(count)) for at, count in starts), reverse=True):
            removed = min(count, number)
            number -= removed
            slices.append((at, count - removed))
        return [(at, count) for at, count in reversed(slices) if count]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a queue or an activity, which hold over all workers together. None means no limit.

    - ``concurrency``: largest number of attempts that run at a time.
    - ``rate``: largest number of starts in a period.
    - ``concurrency_per_key``: largest number of attempts with the same concurrency key that run at a time.
    - ``weight``: the share of a queue in the order in which workers look for work.
    """

    concurrency: int | None = None
    rate: Rate | None = None
    concurrency_per_key: int | None = None
    weight: int = 1

    @property
    def is_limited(self) -> bool:
        return self.concurrency is not None or self.rate is not None or self.concurrency_per_key is not None

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Limits:
        """Return the limits for options that ``limit_errors`` found valid; a rate is a text such as "10/s"."""
        rate = options.get("rate")
        return cls(**{**options, "rate": None if rate is None else Rate.parse(rate)})


NO_LIMITS = Limits()


def limit_errors(options: Mapping[str, Any]) -> list[str]:
    """Return a text for each limit among ``options`` that has an invalid value; an empty list if all are valid.

    ``options`` maps names of limits, such as "concurrency" and "rate", to values.
    """
    errors = []
    for name in ("concurrency", "concurrency_per_key", "weight"):
        value = options.get(name, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            errors.append(f"{name} must be a whole number above 0, not {value!r}")
    if "rate" in options:
        try:
            Rate.parse(options["rate"])
        except ValueError as exc:
            errors.append(str(exc))
    return errors


def queue_errors(queues: Any) -> list[str]:
    """Return a text for each error in ``queues``, the setting that maps names of queues to their limits."""
    option_names = tuple(Limits.__dataclass_fields__)
    shape = "{'payments': {'concurrency': 10, 'rate': '100/m', 'concurrency_per_key': 2, 'weight': 3}}"
    if not isinstance(queues, Mapping):
        return [f"must be a dict of queues, like {shape}, not {type(queues).__name__}"]
    errors = []
    for name, options in queues.items():
        if not is_name(name):
            errors.append(f"names a queue {quoted(name)}: the name must be a string of 1 to 200 printable characters")
        elif not isinstance(options, Mapping):
            errors.append(
                f"[{name!r}] must be a dict with some of {', '.join(option_names)}, not {type(options).__name__}"
            )
        else:
            unknown = [key for key in options if key not in option_names]
            errors += [f"[{name!r}] has no {key!r}. The options are {', '.join(option_names)}" for key in unknown]
            errors += [f"[{name!r}]: {problem}" for problem in limit_errors(options)]
    return errors


def key_error(key: Any) -> str | None:
    """Return the reason why ``key`` cannot be a concurrency key; None if it is a valid one."""
    if isinstance(key, str) and 0 < len(key) <= _MAX_KEY_LENGTH and key.isprintable():
        return None
    return f"concurrency_key must be a string of 1 to {_MAX_KEY_LENGTH} printable characters, not {quoted(key)}"


@dataclass(frozen=True, slots=True)
class QueuePartition:
    """A part of a queue whose activities wait apart from the rest, so that a limit delays only these.

    It belongs to an ``activity`` that has limits of its own or is switched off, to a concurrency ``key``, or to both.
    """

    activity: str | None
    key: str | None

    @property
    def name(self) -> str | None:
        """The stored name of the partition. It is None for the common partition, with neither activity nor key."""
        if self.activity is None:
            return None if self.key is None else f"k:{self.key}"
        # Names and keys are printable, so neither of them contains the line break that separates them.
        return f"a:{self.activity}" if self.key is None else f"a:{self.activity}\n{self.key}"

    @classmethod
    def from_name(cls, name: str) -> QueuePartition:
        """Return the partition with this stored name; see ``name``."""
        kind, rest = name[0], name[2:]
        if kind == "k":
            return cls(None, rest)
        activity, separator, key = rest.partition("\n")
        return cls(activity, key if separator else None)


def interleave(groups: Iterable[Sequence[Any]]) -> list[Any]:
    """Return the first element of each group, then the second of each, and so on."""
    remaining = [list(reversed(group)) for group in groups]
    interleaved = []
    while remaining := [group for group in remaining if group]:
        interleaved += [group.pop() for group in remaining]
    return interleaved


# --- setting values ---------------------------------------------------------------------------------------------------
#
# Checks of the values of settings that have more than a type. They know no settings.


#: Item of ``TRUSTED_PROXIES`` for a proxy that connects over a Unix socket, which has no address.
UNIX = "unix"


def has_invalid_proxy(value: Any) -> bool:
    """Return True if an item of ``TRUSTED_PROXIES`` is neither an address, a network nor ``UNIX``."""
    try:
        for proxy in value:
            if proxy != UNIX:
                ipaddress.ip_network(proxy, strict=False)
    except ValueError:
        return True
    return False


def is_invalid_header(value: Any) -> bool:
    """Return True if the value cannot be the name of a header."""
    return value is not None and not (value.isascii() and value.replace("-", "").isalnum())


#: The keys of ``ALERTS``, and the types of their values.
_ALERT_KEYS = {"MAIL": list, "CALL": str, "FROM": str, "BASE_URL": str, "NAME": str, "HEARTBEAT_URL": str}
ALERTS_KIND = "a dict with MAIL or CALL, and no other keys than MAIL, CALL, FROM, BASE_URL, NAME and HEARTBEAT_URL"


def is_invalid_alerts(value: Any) -> bool:
    """Return True if ``ALERTS`` has an unknown key or a value of a wrong type, or names nobody."""
    if any(key not in _ALERT_KEYS or not isinstance(entry, _ALERT_KEYS[key]) for key, entry in value.items()):
        return True
    if any(not isinstance(address, str) or "@" not in address for address in value.get("MAIL", ())):
        return True
    addresses = [value[key] for key in ("BASE_URL", "HEARTBEAT_URL") if key in value]
    if any(not address.startswith(("http://", "https://")) for address in addresses):
        return True
    return bool(value) and not (value.get("MAIL") or value.get("CALL"))


#: The keys of ``CLUSTER``, and the types of their values.
_CLUSTER_KEYS: dict[str, Any] = {
    "ADDRESS": str,
    "NAMESPACE": str,
    "TLS": (bool, Mapping),
    "API_KEY": (str, Callable),
    "PREFIX": str,
    "DEPLOYMENT": str,
    "BUILD_ID": str,
}
_TLS_KEYS = {"CA", "CERT", "KEY"}
CLUSTER_KIND = (
    "a dict with the texts ADDRESS, NAMESPACE, API_KEY (or a function that returns it), PREFIX (printable, without "
    "'/'), DEPLOYMENT (without '.') and BUILD_ID, and TLS (a bool, or a dict of the paths CA, CERT and KEY)"
)


def is_invalid_cluster(value: Any) -> bool:
    """Return True if ``CLUSTER`` has an unknown key or a value of a wrong type."""
    if any(key not in _CLUSTER_KEYS or not isinstance(entry, _CLUSTER_KEYS[key]) for key, entry in value.items()):
        return True
    tls, prefix = value.get("TLS", False), value.get("PREFIX", "")
    if not prefix.isprintable() or "/" in prefix:
        return True
    deployment, build = value.get("DEPLOYMENT", ""), value.get("BUILD_ID", "")
    if bool(deployment) != bool(build) or "." in deployment:
        return True
    return isinstance(tls, Mapping) and any(
        key not in _TLS_KEYS or not isinstance(path, str) for key, path in tls.items()
    )
