"""Dictionaries with known keys: JSON data, or changes, in which an absent key leaves its value as it is."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NotRequired, TypedDict

from temporalex_django.core.typed_dicts import AcceptedNames, WaitInfo


class BlockMark(TypedDict):
    """The data that say why a run is blocked, and since when; the column ``blocked`` of its row.

    ``code`` is a short name of the cause, and ``error`` says it in words. ``attempt`` is the number of failed tries in
    a row, ``since`` the time of the first and ``last`` that of the last. ``waits_for`` names the code or key that no
    worker has. ``place`` is the file and line of the code, and ``function`` the name of its function. If the code
    differs from the history, ``event`` is the number of the event, ``recorded`` what it says and ``produced`` what the
    code does.
    """

    code: str
    error: str
    since: str
    attempt: int
    last: NotRequired[str]
    waits_for: NotRequired[str]
    place: NotRequired[str]
    function: NotRequired[str]
    event: NotRequired[int]
    recorded: NotRequired[str]
    produced: NotRequired[str]


class PauseMark(TypedDict):
    """The data that say since when, why and by whom a run is paused; the column ``paused`` of its row.

    ``by`` is None if code paused it.
    """

    since: str
    reason: str
    by: dict[str, str] | None


class RowChanges(TypedDict, total=False):
    """The changes that a turn makes to the columns of a run's row; columns without a key stay as they are."""

    status: str
    waiting_for: list[str]
    waits: list[WaitInfo]
    accepts: AcceptedNames
    published: Any
    published_at: datetime | None
    stored: dict[str, Any]
    search_attributes: Mapping[str, Any] | None
    blocked: BlockMark | None
    paused: PauseMark | None
    closing: dict[str, Any]
    cause: str | None
    fault: str | None
    started_at: datetime
    closed_at: datetime
