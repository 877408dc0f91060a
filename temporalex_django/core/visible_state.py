"""Everything that a host shows of a run in memory."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from temporalex_django.core.human_tasks import HumanTaskState
from temporalex_django.core.typed_dicts import AcceptedNames, WaitInfo


class VisibleState(NamedTuple):
    """The state of a run after an activation, as far as a host shows it to people and programs.

    - ``status``: "running" if activities or children have no result yet, else "waiting"; once the run has closed, the
      status of its end.
    - ``waiting_for``, ``waits``, ``accepts``: the waits of its units as texts and for programs, and the names that the
      open phase handles. They are empty once the run has closed, as is ``human_tasks``.
    - ``published``: the published state, and ``published_at`` the time at which it was published. ``publications``
      counts how often that happened, so that equal numbers of one run mean an equal state. ``stored`` has the declared
      fields of the state, in the form of SQL.
    - ``search_attributes``: in stored form.
    - ``human_tasks``: those that are open.
    - ``four_eyes``: the part of the snapshot of its next run that is about people, or None; see
      ``core.people.four_eyes``.
    """

    status: str
    waiting_for: list[str]
    waits: list[WaitInfo]
    accepts: AcceptedNames
    published: Any
    publications: int
    stored: dict[str, Any]
    search_attributes: Mapping[str, Any]
    human_tasks: tuple[HumanTaskState, ...]
    four_eyes: dict[str, Any] | None
    published_at: datetime | None = None
