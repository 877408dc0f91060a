"""Each kind of event has a row of the timeline that fits it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from temporalex_django.core.history.events import CLOSING, KINDS, HistoryEvent
from temporalex_django.present.timeline import build_rows

#: Kinds that are a row by themselves; the others begin or end a row together.
ALONE = [name for name, kind in KINDS.items() if kind.thing is None and name != "ActivationStarted"]


@pytest.mark.parametrize("name", ALONE)
def test_only_a_closing_event_is_shown_as_the_end_of_the_run(name: str) -> None:
    (row,) = build_rows([HistoryEvent(1, 1, name, datetime.now(UTC), {})])

    assert (row.kind == "end") == (name in CLOSING), f"{name} has no case in _single_event_row of present/timeline.py"
