"""An instance that is computed when its first field is read, because most steps never read one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, SupportsIndex

from temporalex_django.graph.instance import Instance


class LazyInstance(Instance):
    """An instance that equals the one that ``load`` returns. ``load`` is called once, when a field is read."""

    def __init__(self, load: Callable[[], Instance]) -> None:
        self.__dict__["load"] = load

    @property
    def real(self) -> Instance:
        """The instance that ``load`` returns. Raises the errors of ``load``."""
        # Not a ``cached_property``: in Python 3.11 it has one lock for all instances.
        attributes = self.__dict__
        if "real" not in attributes:
            attributes["real"] = attributes["load"]()
        return attributes["real"]  # type: ignore[no-any-return] # the return value of ``load``

    @property  # type: ignore[misc] # read-only
    def __class__(self) -> type[Instance]:  # type: ignore[override] # the base
        """The class ``Instance``, so that ``dataclasses.replace`` and ``pickle`` create an ordinary instance."""
        return Instance

    def changed(self, **changes: Any) -> Instance:
        return self.real.changed(**changes)

    def _identity(self) -> tuple[Any, ...]:
        return self.real._identity()  # noqa: SLF001 - of the same class

    def __repr__(self) -> str:
        return repr(self.real)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return self.real.__reduce_ex__(protocol)  # a copy or pickle is a plain instance


def _forward_property(name: str) -> property:
    return property(lambda lazy_instance: getattr(lazy_instance.real, name))


# Properties of the class win over the values in ``__dict__``, so every field is read from the real instance.
for _field in fields(Instance):
    setattr(LazyInstance, _field.name, _forward_property(_field.name))
