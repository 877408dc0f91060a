from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Programs fail on purpose, by the thousand; what is logged of that is other tests' affair."""
    logger = logging.getLogger("temporalex_django")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)
