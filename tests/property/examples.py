"""How many examples: 120, always the same ones; on Python 3.11 50.

There the guard looks at each call of a function, which takes eight times as long; the digests that are kept are
compared on every Python.

In a campaign (tests/support/campaign.py) more, and other ones each time.
"""

from __future__ import annotations

import sys
from typing import Any

from hypothesis import HealthCheck, Phase, settings

from tests.support.campaign import REPEATED, scaled

EXAMPLES = 120 if sys.version_info >= (3, 12) else 50


def examples(share: float = 1.0) -> Any:
    """Settings of a law that is tried on that share of the examples."""
    return settings(
        max_examples=scaled(EXAMPLES, share=share),
        derandomize=REPEATED,
        deadline=None,
        database=None,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
