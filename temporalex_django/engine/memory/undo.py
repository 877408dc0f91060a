"""Transactions in memory: tables whose changes are undone when the block that made them raises."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from temporalex_django.core.failures import error_line

logger = logging.getLogger("temporalex_django.engine")

K = TypeVar("K")
V = TypeVar("V")
_ABSENT: Any = object()


class UndoLog:
    """The functions that undo the changes of the open transactions and savepoints in memory.

    It also keeps the callbacks to call when the outermost transaction has ended without an error.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []
        self._callbacks: list[Callable[[], None]] = []
        self._depth = 0

    def add_undo(self, undo: Callable[[], object]) -> None:
        """Record a function that undoes a change; it is called if the open transaction or savepoint raises.

        Without an open transaction it does nothing, so the change stays.
        """
        if self._depth:
            self._undo.append(undo)

    @contextmanager
    def block(self) -> Iterator[None]:
        """Open a transaction, or a savepoint inside one; an error undoes its changes."""
        changes, callbacks = len(self._undo), len(self._callbacks)
        self._depth += 1
        try:
            yield
        except BaseException:
            # The latest change goes first, since it may be about what an earlier one made.
            while len(self._undo) > changes:
                self._undo.pop()()
            del self._callbacks[callbacks:]
            raise
        finally:
            self._depth -= 1
        if not self._depth:
            self._undo.clear()
            due_callbacks, self._callbacks = self._callbacks, []
            for callback in due_callbacks:
                _run_callback(callback)

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the outermost block has ended without an error; without a block, call it now."""
        if self._depth:
            self._callbacks.append(callback)
        else:
            _run_callback(callback)


def _run_callback(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception as exc:  # noqa: BLE001 - a callback is the project's own
        logger.error("a callback after a commit failed: %s", error_line(exc))


class Table(dict[K, V]):
    """A dict of rows by key whose changes are undone if the open transaction or savepoint raises.

    A row is never changed in place, but replaced at its key.
    """

    def __init__(self, log: UndoLog) -> None:
        super().__init__()
        self._log = log

    def __setitem__(self, key: K, row: V) -> None:
        before = self.get(key, _ABSENT)
        if before is _ABSENT:
            undo = partial(super().__delitem__, key)
        else:
            undo = partial(super().__setitem__, key, before)
        self._log.add_undo(undo)
        super().__setitem__(key, row)

    def __delitem__(self, key: K) -> None:
        self._log.add_undo(partial(super().__setitem__, key, self[key]))
        super().__delitem__(key)

    def discard(self, key: K) -> V | None:
        """Delete the row of this key and return it, or None if there is none."""
        row = self.get(key)
        if key in self:
            del self[key]
        return row
