"""Dictionaries of the core whose keys are known: they are JSON."""

from __future__ import annotations

from typing import Any, TypedDict


class Accepts(TypedDict):
    """Names that the open phase handles."""

    signals: list[str]
    updates: list[str]


class CarriedMessages(TypedDict):
    """What goes along to the next run of a chain: signals that nobody took, and a cancel request that nobody heard."""

    signals: list[dict[str, Any]]
    cancel: dict[str, Any] | None
