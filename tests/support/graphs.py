"""Parts of graphs that tests share."""

from __future__ import annotations

from typing import Any


def leads(step: Any, **targets: Any) -> dict[tuple[Any, str], Any]:
    """The transitions out of a step: where each of its events leads."""
    return {(step, event): target for event, target in targets.items()}
