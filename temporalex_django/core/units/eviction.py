"""Eviction: drop suspended coroutines without running their code. See decision 29.

``coroutine.close()`` and the garbage collector throw ``GeneratorExit`` into a suspended coroutine. Its ``finally``
blocks and context managers would run, in any thread and at any moment, as if they were part of another run. A coroutine
whose FINALIZED bit is set in its GC header is freed like any other object instead. That header is an implementation
detail of CPython with the GIL. ``SAFE`` is True if a probe at import found that it works.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Iterable
from contextvars import Context
from typing import Any

from temporalex_django.core import current

_WRAPPERS = ("coroutine_wrapper", "async_generator_asend", "async_generator_athrow")


def _mark_finalized(target: object) -> None:
    """Mark ``target`` as finalized: set bit 0 of ``_gc_prev``, the word before the object."""
    ctypes.c_size_t.from_address(id(target) - 8).value |= 1


def suspended_parts(coroutine: Any) -> Iterable[Any]:
    """Yield the coroutine and all coroutines and generators that it is suspended in, from the outermost inwards.

    A wrapper (``coroutine.__await__()``) has no attribute for the coroutine in it, so ``gc`` is asked for that.
    """
    # The limit on ``seen`` ends the loop if coroutines await each other in a cycle.
    seen = 0
    while coroutine is not None and seen < 10_000:
        seen += 1
        if type(coroutine).__name__ in ("coroutine", "generator", "async_generator"):
            yield coroutine
        inner = getattr(coroutine, "cr_await", None)
        if inner is None:
            inner = getattr(coroutine, "gi_yieldfrom", None)
        if inner is None:
            inner = getattr(coroutine, "ag_await", None)
        if inner is None and type(coroutine).__name__ in _WRAPPERS:
            inner = next(iter(gc.get_referents(coroutine)), None)
        coroutine = inner


def _can_mark_finalized() -> bool:
    if (
        sys.implementation.name != "cpython"
        or ctypes.sizeof(ctypes.c_size_t) != 8
        or not getattr(sys, "_is_gil_enabled", lambda: True)()
    ):
        return False
    ran: list[int] = []

    class Trap:
        def __await__(self) -> Any:
            return iter((None,))

    async def probe() -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(ran.append, 1)
            await Trap()

    # The probe suspends inside a context manager. If its exit runs nevertheless, this interpreter ignores the bit.
    coroutine = probe()
    coroutine.send(None)
    _mark_finalized(coroutine)
    del coroutine
    return not ran


SAFE = _can_mark_finalized()


def discard(coroutines: Iterable[Any]) -> None:
    """Drop suspended coroutines and async generators, without running their code if ``SAFE`` is True.

    If ``SAFE`` is False, the coroutines are closed while every primitive refuses to act.

    The safe path touches no context variable. A finalizer may run at any moment. On Python 3.11 the collector runs
    inside allocations, and so also inside ``ContextVar.set``, which cannot be entered again.
    """
    if SAFE:
        for coroutine in coroutines:
            for part in list(suspended_parts(coroutine)):
                _mark_finalized(part)
        return
    with current.outside_workflow("workflow that is being evicted"):
        for coroutine in coroutines:
            with contextlib.suppress(BaseException):  # the run is gone, so nothing can handle the error
                Context().run(coroutine.close)
