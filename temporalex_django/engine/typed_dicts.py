"""Dictionaries whose keys are known. They are JSON, or say what changes: a key that is absent stays as it is."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NotRequired, TypedDict

from temporalex_django.core.typed_dicts import AcceptedNames, WaitInfo


class BlockMark(TypedDict):
    """Why a run cannot go on. ``attempt``: failed tries in a row, ``since`` the first; ``waits_for``: what nobody has.

    ``place`` is the file and line of the code. Where it parted from the history, ``event`` is the number of the event,
    ``recorded`` what that says and ``produced`` what the code does.
    """

    code: str
    error: str
    since: str
    attempt: int
    waits_for: NotRequired[str]
    place: NotRequired[str]
    event: NotRequired[int]
    recorded: NotRequired[str]
    produced: NotRequired[str]


class PauseMark(TypedDict):
    """That somebody paused a run: when, why, and who (None: code)."""

    since: str
    reason: str
    by: dict[str, str] | None


class RowChanges(TypedDict, total=False):
    """What changes in the row of a run, which people read."""

    status: str
    waiting_for: list[str]
    waits: list[WaitInfo]
    accepts: AcceptedNames
    published: Any
    stored: dict[str, Any]
    search_attributes: Mapping[str, Any] | None
    blocked: BlockMark | None
    paused: PauseMark | None
    closing: dict[str, Any]
    cause: str | None
    started_at: datetime
    closed_at: datetime


class CurrentRow(TypedDict):
    """What the row of a run says at present, as far as a turn compares it."""

    status: str
    waiting_for: list[str]
    waits: list[WaitInfo]
    accepts: AcceptedNames
    publications: int
    search_attributes: Mapping[str, Any]
