"""Base classes of all errors and of the control exceptions that travel through workflow code."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar, final


class TemporalexError(Exception):
    """The base class of all errors of temporalex_django; its subclasses say what happened."""

    code: ClassVar[str] = "error"
    #: Advice for the person who gets the error; a column of docs/reference/errors.md.
    next_step: ClassVar[str] = "Read the message; more precise errors are subclasses."
    #: True if an operation was refused because nothing is left to do: bulk jobs count such runs apart.
    already_done: bool = False

    def __init__(self, message: str | None = None) -> None:
        # The docstring is the default message, so the first paragraph of every subclass must read as one.
        super().__init__(message or inspect.cleandoc(type(self).__doc__ or "").split("\n\n", 1)[0])

    @property
    def message(self) -> str:
        """The text of the error: one sentence that says what happened."""
        return str(self.args[0]) if self.args else ""


class Control(BaseException):
    """Base of the exceptions of workflow code, such as ``Cancelled``, that ``except Exception`` does not catch.

    Only the engine raises them. Calling the class raises ``TypeError``.
    """

    # User code that raised these itself could pretend that a run was cancelled or evicted (see decision 11).
    _make_token: ClassVar[object] = object()

    def __init__(self, message: str = "", *, _token: object = None) -> None:
        if _token is not Control._make_token:
            raise TypeError(f"{type(self).__name__} has no public constructor: only the engine raises it")
        super().__init__(message)

    @classmethod
    def _make(cls, message: str = "") -> Any:
        """Return an exception of this class. Only the engine calls this."""
        return cls(message, _token=Control._make_token)


@final
class Cancelled(Control):
    """Raised where workflow code waits, in each coroutine that a cancellation reaches: ``run``, handlers, branches.

    Clean up and let it pass. If you swallow it, the cancelled run completes instead: do so only on purpose.
    """
