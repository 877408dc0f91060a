"""How many examples: 200, always the same ones.

In a campaign (tests/support/campaign.py) more, and other ones each time.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, settings

from tests.support.campaign import REPEATED, scaled

EXAMPLES = 200


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
