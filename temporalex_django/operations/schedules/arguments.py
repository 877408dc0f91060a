"""Calls of arguments functions, which make the input of the runs of a schedule."""

from __future__ import annotations

import logging
import threading
from datetime import datetime
from typing import Any

from django.db import connections

from temporalex_django.authoring.schedules.functions import ARGUMENTS
from temporalex_django.backends.host import host
from temporalex_django.core.failures import error_line, exception_name
from temporalex_django.engine import policy
from temporalex_django.engine.schedules import SlotFailure
from temporalex_django.errors import TemporalexError
from temporalex_django.operations.base import to_plain_payload

logger = logging.getLogger("temporalex_django.operations")

#: Arguments functions that did not return in time, and are still running in this process.
hanging_functions: dict[str, threading.Thread] = {}


def compute_arguments(name: str, at: datetime) -> Any | SlotFailure:
    """Call a registered arguments function, which makes the input of a run, for the schedule's time ``at``.

    Returns the input as plain JSON types, or a ``SlotFailure`` if the function raises or does not return in time. It is
    called in a thread of its own, because it is code of the project. A thread that does not return in time is left
    alone; later slots fail until it returns. In a test environment the function is called in the thread of the test.
    """
    if not host().limits_functions:
        return _call_arguments(name, at)
    hanging = hanging_functions.get(name)
    if hanging is not None and hanging.is_alive():
        return SlotFailure(
            code="arguments", message=f"the arguments function {name} has not returned since an earlier slot"
        )
    results: list[Any | SlotFailure] = []
    thread = threading.Thread(
        target=_call_in_thread, args=[name, at, results], name=f"temporalex-arguments-{name}", daemon=True
    )
    thread.start()
    thread.join(policy.ARGUMENTS_SECONDS)
    if not results:
        hanging_functions[name] = thread
        return SlotFailure(
            code="arguments",
            message=f"the arguments function {name} did not return within {policy.ARGUMENTS_SECONDS:g} s",
        )
    return results[0]


def _call_in_thread(name: str, at: datetime, results: list[Any | SlotFailure]) -> None:
    try:
        results.append(_call_arguments(name, at))
    except BaseException as exc:  # noqa: BLE001 - such as SystemExit, which ends only this thread
        results.append(
            SlotFailure(code="arguments", message=f"the arguments function {name}: {exception_name(type(exc))}")
        )
    finally:
        connections.close_all()


def _call_arguments(name: str, at: datetime) -> Any | SlotFailure:
    try:
        return to_plain_payload(ARGUMENTS.find(name)(at), label=f"the input that {name} returned")
    except TemporalexError as exc:
        return SlotFailure(code=exc.code, message=str(exc))
    except Exception as exc:  # noqa: BLE001 - whatever the function raises becomes the outcome of the slot
        logger.error("the arguments function %s failed for the slot %s: %s", name, at.isoformat(), error_line(exc))
        return SlotFailure(code="arguments", message=f"the arguments function {name}: {exception_name(type(exc))}")
