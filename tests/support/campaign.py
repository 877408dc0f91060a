"""How long a campaign is: tests that are long by nature ask here for their numbers.

``TEST_SCALE`` (1) multiplies them. CI runs the short form, with the same random choices each time; ``make faults`` and
``make properties`` run the long one, with others each time.
"""

from __future__ import annotations

import os

SCALE = float(os.environ.get("TEST_SCALE", "1"))
#: Whether the choices of this run are those of every run.
REPEATED = SCALE == 1


def scaled(number: int, *, share: float = 1.0) -> int:
    """So many examples, kills or runs in the present run: ``number`` in the short form."""
    return max(1, round(number * SCALE * share))
