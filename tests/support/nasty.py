"""Values that cannot be stored, or only just: what arbitrary code returns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Any


class Evil:
    """Raises whatever is asked of it."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __str__(self) -> str:
        raise SystemExit("no str")

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise ValueError("no class")

    def __iter__(self) -> Any:
        raise KeyError("no items")

    def __eq__(self, other: object) -> bool:
        raise TypeError("no equal")

    __hash__ = None  # type: ignore[assignment]


class EvilError(Exception):
    """An exception that cannot be described."""

    def __str__(self) -> str:
        raise SystemExit("no str")

    __repr__ = __str__


class NoZone(tzinfo):
    """The encoder asks it, and lets through whatever it raises."""

    def utcoffset(self, _: datetime | None) -> Any:
        raise LookupError("no zone")


@dataclass
class Holding:
    value: Any


class EvilDict(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no items")


def deep(levels: int, last: Any = None) -> Any:
    value = last
    for _ in range(levels):
        value = [value]
    return value


def circular() -> Any:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


#: Refused at once, whatever it is that takes them.
REFUSED: dict[str, Any] = {
    "number without digits": 10**5000,
    "number without digits, inside": {"a": [1, 10**5000]},
    "nan": math.nan,
    "infinity": [math.inf],
    "surrogate": "\ud800",
    "surrogate, inside": {"a": "x\udfff"},
    "surrogate in a key": {"\ud800": 1},
    "object": object(),
    "time without a zone": [datetime(2026, 1, 1, tzinfo=NoZone())],
    "evil": Evil(),
    "evil, inside": {"a": [Evil()]},
    "evil in a dataclass": Holding(Evil()),
    "function": deep,
    "class": Holding,
    "deep": deep(300),
    "very deep": deep(100_000),
    "circular": circular(),
    "too large": "x" * 3_000_000,
}
#: Stored as it is.
KEPT: dict[str, Any] = {
    "nul": "a\x00b",
    "nul in a key": {"\x00": "\x00"},
    "large number": 10**4000,
    "small number": -(10**30),
    "large float": 1.7e308,
    "tiny float": 5e-324,
    "nothing": None,
    "truth": True,
    "deep enough": deep(150, 1),
    "text": "\U0001f600 \u2028 \x7f",
}
