"""Who hears of each test environment that is made.

Apart from the rest, so that a pytest plugin costs a suite without any nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Each is called with the new environment.
listeners: list[Callable[[Any], None]] = []
