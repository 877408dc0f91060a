"""Fields of a published state that are stored so that SQL can read them."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final

#: Types with which a field may be declared.
FIELD_TYPES: Final = (str, int, Decimal)
_LARGEST = 2**63


def stored_fields(published: Any, declared: Mapping[str, type]) -> dict[str, Any]:
    """Return the declared fields of a published state that have their declared type, by name.

    Decimals are returned as texts. A value of another type would make every query over the field fail. It is left out,
    as if the state had no such field.
    """
    state = published if isinstance(published, Mapping) else {}
    fields = {name: _to_stored(state[name], kind) for name, kind in declared.items() if name in state}
    return {name: value for name, value in fields.items() if value is not None}


def _to_stored(value: Any, kind: type) -> str | int | None:
    """Return the stored form of a value of the type ``kind``, or None if the value is of another type or too large."""
    if kind is str:
        return value if isinstance(value, str) else None
    # ``bool`` is a subclass of ``int``, but True is no number in the columns of SQL.
    if isinstance(value, bool):
        return None
    if kind is int:
        return value if isinstance(value, int) and -_LARGEST <= value < _LARGEST else None
    try:
        number = Decimal(value) if isinstance(value, str | int) else None
    except InvalidOperation:
        return None
    return format(number, "f") if number is not None and number.is_finite() and abs(number.adjusted()) < 20 else None
