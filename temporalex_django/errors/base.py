"""The base of every error, and of what travels through workflow code."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar, final


class TemporalexError(Exception):
    """Something went wrong in temporalex_django."""

    code: ClassVar[str] = "error"
    #: What whoever gets it should do; shown in the reference.
    next_step: ClassVar[str] = "Read the message; every more precise error is a subclass."

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or inspect.cleandoc(type(self).__doc__ or "").split("\n\n", 1)[0])

    @property
    def message(self) -> str:
        """What happened, in a sentence."""
        return str(self.args[0]) if self.args else ""


class Control(BaseException):
    """Travels through workflow code out of reach of ``except Exception``; the engine alone makes them."""

    _make_token: ClassVar[object] = object()

    def __init__(self, message: str = "", *, _token: object = None) -> None:
        if _token is not Control._make_token:
            raise TypeError(f"{type(self).__name__} has no public constructor: the engine raises it")
        super().__init__(message)

    @classmethod
    def _make(cls, message: str = "") -> Any:
        return cls(message, _token=Control._make_token)


@final
class Cancelled(Control):
    """Raised at a wait of every unit when cancellation reaches it. Clean up and let it pass.

    Swallowing it turns the cancelled run into one that completes: do so only on purpose.
    """
