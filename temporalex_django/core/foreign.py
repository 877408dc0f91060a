"""Types that the encoder does not know by itself: lazy texts, pydantic models, and those that get advice instead.

They are told by what their classes have, so that nothing is imported for them: neither Django nor pydantic need be
there.
"""

from __future__ import annotations

from typing import Any


def written(value: Any) -> Any:
    """What the encoder writes for a value of a type that it does not know. Raises ``TypeError`` with advice."""
    kind = type(value)
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


def read(kind: Any, value: Any) -> Any:
    """``value`` (JSON data) as ``kind``, of which the decoder knows nothing. Raises ``TypeError``, ``ValueError``."""
    if isinstance(kind, type) and is_pydantic(kind):
        return kind.model_validate(value)  # type: ignore[attr-defined] # that is what makes it one
    raise TypeError(f"objects of type {getattr(kind, '__name__', kind)} are not supported")


def is_pydantic(kind: type) -> bool:
    """Whether it is a class of pydantic models."""
    return hasattr(kind, "__pydantic_validator__") and hasattr(kind, "model_dump")
