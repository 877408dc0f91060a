"""How much of a kind may be under way at a time, and how much may begin in a while. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from temporalex_django.core.names import is_name, quoted

_PERIODS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_RATE = re.compile(r"([1-9][0-9]{0,8})/([smh])")
#: A period is counted in so many slices: what began leaves the count by slices, up to one of them late.
_SLICES = 20
#: The longest key.
_MAX_KEY_LENGTH = 200

#: When a slice began, in seconds since 1970, and how many began in it.
StartSlices = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Rate:
    """So many in any period of so many seconds, wherever it begins."""

    count: int
    seconds: float

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Read "10/s", "100/m" or "1000/h". Raises ``ValueError``."""
        matched = _RATE.fullmatch(text) if isinstance(text, str) else None
        if matched is None:
            raise ValueError(f"rate must be like '10/s', '100/m' or '1000/h', not {text!r}")
        return cls(int(matched[1]), _PERIODS[matched[2]])

    def __str__(self) -> str:
        return f"{self.count}/{next(name for name, seconds in _PERIODS.items() if seconds == self.seconds)}"

    def recent_slices(self, starts: StartSlices, now: float) -> list[tuple[float, int]]:
        """Those slices of which some may lie in the period that ends now.

        What is more than a period ahead was noted by a clock that has been put back since: it holds up nobody.
        """
        first, last = now - self.seconds - self.seconds / _SLICES, now + self.seconds
        return [(at, int(count)) for at, count in starts if count and first < at <= last]

    def remaining(self, starts: StartSlices, now: float) -> int:
        """How many may begin now."""
        return max(0, self.count - sum(count for _, count in self.recent_slices(starts, now)))

    def wait_seconds(self, starts: StartSlices, now: float) -> float:
        """Seconds until the first of what has begun is forgotten."""
        recent = self.recent_slices(starts, now)
        return max(0.0, min(at for at, _ in recent) + self.seconds * (1 + 1 / _SLICES) - now) if recent else 0.0

    def with_starts(self, starts: StartSlices, now: float, started_count: int) -> list[tuple[float, int]]:
        """The same with so many more that begin now: what is to be kept."""
        recent, slice_ = self.recent_slices(starts, now), self.seconds / _SLICES
        current = now // slice_ * slice_
        before = sum(count for at, count in recent if at == current)
        return [*((at, count) for at, count in recent if at != current), (current, before + started_count)]

    @staticmethod
    def without_starts(starts: StartSlices, number: int) -> list[tuple[float, int]]:
        """The same without so many of the last ones: they have not begun after all."""
        slices = []
        for at, count in sorted(((at, int(count)) for at, count in starts), reverse=True):
            removed = min(count, number)
            number -= removed
            slices.append((at, count - removed))
        return [(at, count) for at, count in reversed(slices) if count]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is set of a queue, or of an activity.

    ``concurrency``: so many attempts under way at a time; ``rate``: so many begin in a period; ``concurrency_per_key``:
    so many at a time of one key. All of them over all workers. ``weight``: how often a queue comes first.
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
        """Of what somebody wrote, in which nothing is wrong."""
        rate = options.get("rate")
        return cls(**{**options, "rate": None if rate is None else Rate.parse(rate)})


NO_LIMITS = Limits()


def limit_errors(options: Mapping[str, Any]) -> list[str]:
    """What is wrong with these, by name."""
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
    """What is wrong with a setting that gives queues their limits."""
    option_names = tuple(Limits.__dataclass_fields__)
    shape = "{'payments': {'concurrency': 10, 'rate': '100/m', 'concurrency_per_key': 2, 'weight': 3}}"
    if not isinstance(queues, Mapping):
        return [f"must be a dict of queues, like {shape}, not {type(queues).__name__}"]
    errors = []
    for name, options in queues.items():
        if not is_name(name):
            errors.append(f"names a queue {quoted(name)}: that is to be a string of 1 to 200 printable characters")
        elif not isinstance(options, Mapping):
            errors.append(
                f"[{name!r}] must be a dict with some of {', '.join(option_names)}, not {type(options).__name__}"
            )
        else:
            unknown = [key for key in options if key not in option_names]
            errors += [f"[{name!r}] has no {key!r}: there are {', '.join(option_names)}" for key in unknown]
            errors += [f"[{name!r}]: {problem}" for problem in limit_errors(options)]
    return errors


def key_error(key: Any) -> str | None:
    """What is wrong with the key of an activity; None: nothing."""
    if isinstance(key, str) and 0 < len(key) <= _MAX_KEY_LENGTH and key.isprintable():
        return None
    return f"concurrency_key must be a string of 1 to {_MAX_KEY_LENGTH} printable characters, not {key!r}"


@dataclass(frozen=True, slots=True)
class QueuePartition:
    """In which of several lines of its queue an activity waits, where not in the common one.

    That of its ``activity``, which has limits of its own or is switched off, that of its ``key``, or that of both.
    """

    activity: str | None
    key: str | None

    @property
    def name(self) -> str | None:
        """What is stored; None is the common line."""
        if self.activity is None:
            return None if self.key is None else f"k:{self.key}"
        return f"a:{self.activity}" if self.key is None else f"a:{self.activity}\n{self.key}"

    @classmethod
    def from_name(cls, name: str) -> QueuePartition:
        """The line of that name."""
        kind, rest = name[0], name[2:]
        if kind == "k":
            return cls(None, rest)
        activity, separator, key = rest.partition("\n")
        return cls(activity, key if separator else None)


def interleave(groups: Iterable[Sequence[Any]]) -> list[Any]:
    """One of each group, then the next one of each, and so on."""
    remaining = [list(reversed(group)) for group in groups]
    interleaved = []
    while remaining := [group for group in remaining if group]:
        interleaved += [group.pop() for group in remaining]
    return interleaved
