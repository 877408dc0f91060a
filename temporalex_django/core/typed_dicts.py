"""Dictionaries of the core with known keys. They are JSON data."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class AcceptedNames(TypedDict):
    """The names of the messages that a run accepts now: those that its open phase (``api.phase``) handles."""

    signals: list[str]
    updates: list[str]


class CarriedMessages(TypedDict):
    """Messages that a run passes to the next run of its chain.

    ``signals`` are those that no code took. ``cancel`` is a cancel request that the code of this run has not noticed.
    ``failed`` has ``{"id", "name"}`` of signals whose handler failed and that nobody has delivered again. ``waiting``
    has pairs of the kind and the attributes of a job, for updates and requests that were accepted and not taken.
    """

    signals: list[dict[str, Any]]
    cancel: dict[str, Any] | None
    failed: NotRequired[list[dict[str, Any]]]
    waiting: NotRequired[list[tuple[str, dict[str, Any]]]]


class WaitInfo(TypedDict):
    """A wait of workflow code, described for programs. Times are ISO texts. A key without a value is absent.

    - ``kind``: timer, phase, signal, condition, child, step or human_task.
    - ``seq``: the number of the command.
    - ``since`` and ``until``: the start of the wait; the due time of a timer, or the end of the timeout.
    - ``then``: a text that says what follows. ``label``: a text that says what the wait is about.
    - ``name``: the name of a signal, the class of a child, or the key of a step or human task.
    - ``id``: the business id of a child.
    - ``events`` and ``role``: the events that a step or human task takes, and from whom.
    - ``labels``: the labels of the messages of a phase, by name.
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
