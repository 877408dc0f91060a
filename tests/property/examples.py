"""How many examples: ``PROPERTY_EXAMPLES`` (200), always the same ones; of another number other ones each time."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings

EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "200"))


def examples(share: float = 1.0) -> Any:
    """Settings of a law that is tried on that share of the examples."""
    return settings(
        max_examples=max(1, int(EXAMPLES * share)),
        derandomize="PROPERTY_EXAMPLES" not in os.environ,
        deadline=None,
        database=None,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
