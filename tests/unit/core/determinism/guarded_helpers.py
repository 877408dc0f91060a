"""A helper module of a project: workflow code in ``test_guard`` calls what is here."""

# What is called here is what must not be.
# ruff: noqa: DTZ001, DTZ002, DTZ005

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from datetime import datetime
from time import time as imported_before
from typing import Any


def stamp() -> float:
    return time.time()


def two_deep() -> float:
    return stamp()


def by_imported_name() -> float:
    return imported_before()


def call(fn: Callable[..., Any], *args: Any) -> Any:
    return fn(*args)


def logged(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapper(*args: Any) -> Any:
        return fn(*args)

    return wrapper


@logged
def decorated() -> float:
    return time.monotonic()


@functools.cache
def cached() -> float:
    return time.monotonic()


class Clock:
    def __init__(self) -> None:
        self.started = datetime(2026, 1, 1)

    def read(self) -> datetime:
        return datetime.now()

    @property
    def today(self) -> datetime:
        return datetime.today()

    @staticmethod
    def ticks() -> int:
        return time.perf_counter_ns()

    def __call__(self) -> float:
        return time.time()


class Starts:
    def __init__(self) -> None:
        self.at = time.time()
