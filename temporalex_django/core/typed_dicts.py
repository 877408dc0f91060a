"""Dictionaries of the core whose keys are known: they are JSON."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class AcceptedNames(TypedDict):
    """Names that the open phase handles."""

    signals: list[str]
    updates: list[str]


class CarriedMessages(TypedDict):
    """Messages that go along to the next run of a chain: signals that nobody took, a cancel request that nobody heard.

    ``failed``: ``{"id", "name"}`` of signals whose handler failed and that were not delivered again.
    """

    signals: list[dict[str, Any]]
    cancel: dict[str, Any] | None
    failed: NotRequired[list[dict[str, Any]]]


class WaitInfo(TypedDict):
    """What a unit waits for. Times are ISO texts; a key that says nothing is absent.

    ``kind``: timer, phase, signal, condition, child, step, human_task. ``seq`` is the number of the command, ``since``
    when the wait began, ``until`` when a timer is due or the wait gives up, ``then`` what follows, ``label`` what it is
    about. ``name`` is that of a signal, of the class of a child, or the key of a step or a human task; ``id`` that of a
    child. ``events`` and ``role``: what a step or a human task takes, from whom. ``labels``: of the messages of a
    phase, by name.
    """

    kind: str
    since: str
    seq: NotRequired[int]
    until: NotRequired[str]
    then: NotRequired[str]
    label: NotRequired[str]
    labels: NotRequired[dict[str, str]]
    name: NotRequired[str]
    id: NotRequired[str]
    events: NotRequired[list[str]]
    role: NotRequired[str]
