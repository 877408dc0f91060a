"""Functions of schedules that code registers under a name: holidays and arguments.

Schedules that people make in forms can only name them, and a row of a schedule stores the name.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from datetime import date, datetime
from typing import Any, Generic, TypeVar

from temporalex_django.core.failures import exception_message, exception_name
from temporalex_django.core.names import is_name, quoted
from temporalex_django.errors import ScheduleInvalid

Function = TypeVar("Function", bound=Callable[..., Any])


class FunctionRegistry(Generic[Function]):
    """The registered functions of one purpose, by their names, such as the holidays functions.

    ``kind`` is the word for such a function in errors.
    """

    def __init__(self, kind: str, decorator: str) -> None:
        self.kind = kind
        self._decorator = decorator
        self._functions: dict[str, Function] = {}

    def register(self, function: Function | None = None, *, name: str | None = None) -> Any:
        """Register a function under ``name``, or else under its own name, and return it; usable as a decorator.

        A module that is imported again replaces its functions. Raises ``ScheduleInvalid`` if another function has the
        name, and for names that are no strings of 1 to 200 printable characters.
        """
        if function is None:
            return lambda decorated: self._add(decorated, name)
        return self._add(function, name)

    def find(self, name: str) -> Function:
        """Return the function with that name. Raises ``ScheduleInvalid``, which suggests the nearest name."""
        try:
            return self._functions[name]
        except (KeyError, TypeError):
            matches = difflib.get_close_matches(str(name), self._functions, n=1)
            advice = f"did you mean {matches[0]!r}?" if matches else f"register it with `@{self._decorator}`"
            raise ScheduleInvalid(f"no {self.kind} function {quoted(name)} in this process: {advice}") from None

    def name_of(self, function: Callable[..., Any]) -> str:
        """Return the name under which the function is registered. Raises ``ScheduleInvalid`` if it is not."""
        for name, registered in self._functions.items():
            if registered is function:
                return name
        raise ScheduleInvalid(
            f"{_place(function)} is not registered as {self.kind} function: decorate it with `@{self._decorator}`"
        )

    def names(self) -> list[str]:
        """Return the names of all functions, sorted."""
        return sorted(self._functions)

    def _add(self, function: Function, name: str | None) -> Function:
        if not callable(function):
            raise ScheduleInvalid(f"{self.kind} function: {quoted(function)} is not a function")
        name = getattr(function, "__name__", None) if name is None else name
        if not is_name(name) or not isinstance(name, str):
            raise ScheduleInvalid(
                f"{self.kind} function: {quoted(name)} must be a name of 1 to 200 printable characters"
            )
        existing = self._functions.get(name)
        if existing is not None and _place(existing) != _place(function):
            raise ScheduleInvalid(
                f"two {self.kind} functions are named {name!r}: {_place(existing)} and {_place(function)}; "
                f"give one of them another name with `@{self._decorator}(name=...)`"
            )
        self._functions[name] = function
        return function


def _place(function: Any) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"


#: Functions that say whether a day is a holiday. They run whenever times of a schedule are computed, so they are fast.
HOLIDAYS: FunctionRegistry[Callable[[date], bool]] = FunctionRegistry("holidays", "Schedule.holidays_function")
#: Functions that return the input of a run, given the time of its slot (aware, in the zone of the schedule).
ARGUMENTS: FunctionRegistry[Callable[[datetime], Any]] = FunctionRegistry("arguments", "Schedule.arguments_function")


def holiday_test(name: str | None) -> Callable[[date], bool]:
    """Return the function that says whether a day is a holiday; without a name, no day is one.

    Raises ``ScheduleInvalid`` for an unknown name. The returned function raises it, too, if the registered function
    raises any error.
    """
    if name is None:
        return frozenset[date]().__contains__
    function = HOLIDAYS.find(name)

    def is_holiday(day: date) -> bool:
        try:
            return bool(function(day))
        except Exception as exc:
            raise ScheduleInvalid(
                f"the holidays function {name!r} raised {exception_name(type(exc))} for {day}: {exception_message(exc)}; correct {_place(function)}"
            ) from exc

    return is_holiday
