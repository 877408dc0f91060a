"""An instance that is read when somebody looks at it: most steps never do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, SupportsIndex

from temporalex_django.graph.instance import Instance


class LazyInstance(Instance):
    """Equal to the instance that ``load`` gives, which is called once, when a field is asked for."""

    def __init__(self, load: Callable[[], Instance]) -> None:
        self.__dict__["load"] = load

    @property
    def real(self) -> Instance:
        """The instance itself. Raises what ``load`` raises."""
        attributes = self.__dict__  # a ``cached_property`` of Python 3.11 would let one thread read at a time
        if "real" not in attributes:
            attributes["real"] = attributes["load"]()
        return attributes["real"]  # type: ignore[no-any-return] # what ``load`` gave

    @property  # type: ignore[misc] # read-only
    def __class__(self) -> type[Instance]:  # type: ignore[override] # the base
        """What ``dataclasses.replace`` and ``pickle`` make anew."""
        return Instance

    def changed(self, **changes: Any) -> Instance:
        return self.real.changed(**changes)

    def _identity(self) -> tuple[Any, ...]:
        return self.real._identity()  # noqa: SLF001 - of its own kind

    def __repr__(self) -> str:
        return repr(self.real)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return self.real.__reduce_ex__(protocol)  # a copy is a plain instance


def _forward_property(name: str) -> property:
    return property(lambda lazy_instance: getattr(lazy_instance.real, name))


for _field in fields(Instance):
    setattr(LazyInstance, _field.name, _forward_property(_field.name))
