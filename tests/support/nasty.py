"""Values that cannot be stored, or only just: what arbitrary code returns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Any

from temporalex_django.errors import ApplicationError, RetryLater


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


class _Meta(type):
    @property
    def __name__(cls) -> str:
        raise SystemExit("no name")


class NamelessError(Exception, metaclass=_Meta):
    """Its class does not say its name."""


class LyingError(Exception):
    """Says that it is another error, whose attributes it lacks."""

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        return ApplicationError


class RecursiveError(Exception):
    def __str__(self) -> str:
        return str(self)


class NumericError(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value] # noqa: PLE0307 - on purpose


class EvilText(str):
    __slots__ = ()

    def __len__(self) -> int:
        raise KeyError("no length")

    def encode(self, *_: Any) -> bytes:
        raise KeyError("no bytes")

    def __getitem__(self, _: Any) -> str:
        raise KeyError("no part")


class EvilTextError(Exception):
    def __str__(self) -> str:
        return EvilText("a text")


class TracelessError(Exception):
    @property
    def __traceback__(self) -> Any:  # type: ignore[override]
        raise KeyError("no traceback")

    @__traceback__.setter  # ``contextlib`` sets it
    def __traceback__(self, _: Any) -> None:
        pass

    @property
    def __cause__(self) -> Any:  # type: ignore[override]
        raise KeyError("no cause")

    @property
    def __notes__(self) -> Any:
        raise KeyError("no notes")


def _with_notes(notes: Any) -> Exception:
    error = ValueError("noted")
    error.__notes__ = notes
    return error


def _in_a_circle() -> Exception:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def _deep_causes(link: str) -> Exception:
    error = ValueError("0")
    for number in range(10_000):
        outer = ValueError(str(number + 1))
        setattr(outer, link, error)
        error = outer
    return error


def _nested_groups() -> Exception:
    error: Exception = ValueError("inner")
    for _ in range(5_000):
        error = ExceptionGroup("outer", [error])
    return error


def _application_error(**attributes: Any) -> Exception:
    error = ApplicationError("on purpose")
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


def _broken_application_error() -> Exception:
    def broken(self: Any) -> Any:
        raise SystemExit("no attribute")

    names = ("type", "details", "non_retryable", "code", "next_step")
    cls = type("BrokenError", (ApplicationError,), {name: property(broken, lambda *_: None) for name in names})
    return cls("on purpose")


class BareLater(RetryLater):
    """A request for a later attempt that never calls its constructor."""

    def __init__(self) -> None:
        Exception.__init__(self, "busy")


def _broken_later() -> Exception:
    def broken(self: Any) -> Any:
        raise SystemExit("no attribute")

    names = ("after", "counts", "hold")
    return type("BrokenLater", (BareLater,), {name: property(broken, lambda *_: None) for name in names})()


#: Errors that resist being described, each with the name that they have all the same.
ERRORS: dict[str, tuple[Any, str]] = {
    "nul": (lambda: ValueError("a\x00b"), "ValueError"),
    "surrogate": (lambda: ValueError("\ud800"), "ValueError"),
    "long": (lambda: ValueError("x" * 10_000_000), "ValueError"),
    "no text": (lambda: ValueError(7, None, Evil()), "ValueError"),
    "evil": (EvilError, "EvilError"),
    "recursive": (RecursiveError, "RecursiveError"),
    "a number as its text": (NumericError, "NumericError"),
    "evil text": (EvilTextError, "EvilTextError"),
    "nameless": (NamelessError, "NamelessError"),
    "lying": (LyingError, "LyingError"),
    "traceless": (TracelessError, "TracelessError"),
    "evil notes": (lambda: _with_notes(Evil()), "ValueError"),
    "a number as its notes": (lambda: _with_notes(7), "ValueError"),
    "notes that are no texts": (lambda: _with_notes([7, None, Evil(), "\ud800"]), "ValueError"),
    "circular causes": (_in_a_circle, "ValueError"),
    "many causes": (lambda: _deep_causes("__cause__"), "ValueError"),
    "many contexts": (lambda: _deep_causes("__context__"), "ValueError"),
    "nested groups": (_nested_groups, "ExceptionGroup"),
    "a wide group": (lambda: ExceptionGroup("wide", [ValueError(str(n)) for n in range(20_000)]), "ExceptionGroup"),
    "strange name": (lambda: type("<b>\n" + "x" * 1000, (Exception,), {})("x"), "<b>\n" + "x" * 1000),
    "type that is no text": (lambda: _application_error(type=7), "7"),
    "evil type": (lambda: _application_error(type=Evil()), "<SystemExit in __str__>"),
    "type with nul": (lambda: _application_error(type="a\x00b"), "a\\x00b"),
    "evil details": (lambda: _application_error(details=Evil()), "ApplicationError"),
    "circular details": (lambda: _application_error(details=circular()), "ApplicationError"),
    "large details": (lambda: _application_error(details="x" * 5_000_000), "ApplicationError"),
    "evil finality": (lambda: _application_error(non_retryable=Evil()), "ApplicationError"),
    "later without a constructor": (BareLater, "BareLater"),
    "broken later": (_broken_later, "BrokenLater"),
    "broken attributes": (_broken_application_error, "BrokenError"),
}
