"""Commands: the answers of an activation, in the order in which workflow code asked for them."""

from __future__ import annotations

from typing import Any, NamedTuple

from temporalex_django.core.history.events import OUTPUT_OF


class Command(NamedTuple):
    """One request of workflow code to the engine.

    ``seq`` numbers the activities, timers, children and external messages of a run from 1. The two cancel commands have
    the number of the command that they cancel; other commands have None. ``attributes`` is plain JSON data.
    """

    kind: str
    seq: int | None
    attributes: dict[str, Any]

    @property
    def event_kind(self) -> str:
        return OUTPUT_OF[self.kind]

    def event_attributes(self) -> dict[str, Any]:
        return self.attributes if self.seq is None else {"seq": self.seq, **self.attributes}
