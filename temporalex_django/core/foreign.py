"""Types that the encoder does not know by itself: subclasses of those that it knows, lazy texts, pydantic models.

And those that get advice instead. They are told by what their classes have, so that nothing is imported for them:
neither Django nor pydantic need be there.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

from temporalex_django.core.ivar import Call

#: A value of a subclass (``SafeString``, the ``FakeDate`` of a test) as one of the type itself, which is equal to it.
#: The first that fits counts.
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
#: Of subclasses of these an annotation makes one again, by calling it.
_CONSTRUCTIBLE: Final = (str, int, float, Decimal)


def encode_external(value: Any) -> Any:
    """What the encoder writes for a value of a type that it does not know.

    Raises ``TypeError`` with advice, and ``NotAwaited`` for a call.
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
            f"{kind.__name__} is a model instance, and a copy of it would be out of date: give its pk, and read it again "
            "in an activity"
        )
    if hasattr(kind, "as_manager") and hasattr(value, "query"):
        raise TypeError("a query set is no data: give the pks of its rows, list(rows.values_list('pk', flat=True))")
    raise TypeError(f"objects of type {kind.__name__} are not supported")


def decode_external(kind: Any, value: Any) -> Any:
    """``value`` (JSON data) as ``kind``, of which the decoder knows nothing. Raises ``TypeError``, ``ValueError``."""
    if isinstance(kind, type) and is_pydantic(kind):
        return kind.model_validate(value)  # type: ignore[attr-defined] # that is what makes it one
    if isinstance(kind, type) and issubclass(kind, _CONSTRUCTIBLE) and _matches_type(kind, value):
        if hasattr(kind, "__html__"):
            raise TypeError(
                f"no text is safe HTML because it was stored: annotate str instead of {kind.__name__}, and mark it safe where "
                "that is known"
            )
        try:
            return kind(value)
        except ArithmeticError as exc:  # of a Decimal
            raise ValueError(f"{value!r} is no {kind.__name__}") from exc
    raise TypeError(f"objects of type {getattr(kind, '__name__', kind)} are not supported")


def _matches_type(kind: type, value: Any) -> bool:
    """Whether JSON data are what the type itself is written as."""
    if issubclass(kind, (int, float)):
        return type(value) is int or (type(value) is float and issubclass(kind, float))
    return isinstance(value, str)


def is_pydantic(kind: type) -> bool:
    """Whether it is a class of pydantic models."""
    return hasattr(kind, "__pydantic_validator__") and hasattr(kind, "model_dump")
