"""Commands: what an activation answers with, in the order in which workflow code asked for it."""

from __future__ import annotations

from typing import Any, NamedTuple

from temporalex_django.core.history.events import OUTPUT_OF


class Command(NamedTuple):
    """One thing that workflow code asked for.

    ``seq`` numbers activities, timers, children and external messages of a run from 1; other commands have None or, for
    the two cancels, the number of what they cancel. ``attributes`` is plain JSON data.
    """

    kind: str
    seq: int | None
    attributes: dict[str, Any]

    @property
    def event_kind(self) -> str:
        return OUTPUT_OF[self.kind]

    def event_attributes(self) -> dict[str, Any]:
        return self.attributes if self.seq is None else {"seq": self.seq, **self.attributes}
