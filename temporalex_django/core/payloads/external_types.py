"""Types that the encoder does not know: subclasses of the types that it knows, lazy texts, pydantic models.

Django models and query sets get advice instead. Types are recognized by attributes of their classes, so nothing is
imported for them. Neither Django nor pydantic needs to be installed.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

from temporalex_django.core.units.ivar import Call

#: Conversions of a value of a subclass (``SafeString``, the ``FakeDate`` of a test) to an equal value of the base type.
#: The first base that fits counts, so ``datetime`` comes before ``date``.
_BASES: Final[tuple[tuple[type, Callable[[Any], Any]], ...]] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
    (Decimal, Decimal),
    (
        datetime,
        lambda v: datetime(v.year, v.month, v.day, v.hour, v.minute, v.second, v.microsecond, v.tzinfo, fold=v.fold),
    ),
    (date, lambda v: date(v.year, v.month, v.day)),
    (time, lambda v: time(v.hour, v.minute, v.second, v.microsecond, v.tzinfo, fold=v.fold)),
    (timedelta, lambda v: timedelta(v.days, v.seconds, v.microseconds)),
)
#: Base types whose subclasses an annotation restores, by calling the subclass.
_CONSTRUCTIBLE: Final = (str, int, float, Decimal)


def encode_external(value: Any) -> Any:
    """Return data that the encoder can write for a value of a type that it does not know.

    Raises ``TypeError`` with advice for unsupported types, and ``NotAwaited`` for a primitive that was not awaited.
    """
    kind = type(value)
    if kind is Call:
        raise value.refused()
    for base, as_base in _BASES:
        if issubclass(kind, base):
            return as_base(value)
    if is_pydantic(kind):
        return value.model_dump(mode="json")
    if any(base.__name__ == "Promise" and base.__module__ == "django.utils.functional" for base in kind.__mro__):
        return str(value)
    if hasattr(getattr(kind, "_meta", None), "concrete_model"):
        raise TypeError(
            f"{kind.__name__} is a model instance, and a copy of it would be out of date: pass its pk, and read it "
            "again in an activity"
        )
    if hasattr(kind, "as_manager") and hasattr(value, "query"):
        raise TypeError("a QuerySet is not data: pass the pks of its rows, list(rows.values_list('pk', flat=True))")
    raise TypeError(f"objects of type {kind.__name__} are not supported")


def decode_external(kind: Any, value: Any) -> Any:
    """Return JSON data as ``kind``, a type that the decoder does not know.

    Raises ``TypeError`` for an unsupported type, and ``ValueError`` for data that do not fit it.
    """
    if isinstance(kind, type) and is_pydantic(kind):
        return kind.model_validate(value)  # type: ignore[attr-defined] # that is what makes it one
    if isinstance(kind, type) and issubclass(kind, _CONSTRUCTIBLE) and _matches_type(kind, value):
        if hasattr(kind, "__html__"):
            raise TypeError(
                f"a stored string is not known to be safe HTML: annotate str instead of {kind.__name__}, and mark it "
                "safe where you know that it is"
            )
        try:
            return kind(value)
        except ArithmeticError as exc:  # of a Decimal
            raise ValueError(f"{value!r} is not a valid {kind.__name__}") from exc
    raise TypeError(f"objects of type {getattr(kind, '__name__', kind)} are not supported")


def _matches_type(kind: type, value: Any) -> bool:
    """Return True if the JSON value has the form in which values of ``kind`` are written: a number or a text."""
    # By the exact type: True is an ``int`` for ``isinstance``, and a number written as text is no number.
    if issubclass(kind, (int, float)):
        return type(value) is int or (type(value) is float and issubclass(kind, float))
    return isinstance(value, str)


def is_pydantic(kind: type) -> bool:
    """Return True for a class of pydantic models."""
    return hasattr(kind, "__pydantic_validator__") and hasattr(kind, "model_dump")
