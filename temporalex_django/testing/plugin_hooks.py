"""Listeners that are called with each new test environment.

They have a module of their own so that the pytest plugin can register one without importing the environments. A suite
that has no environments then pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Each is called with the new environment, while the environment is being constructed.
listeners: list[Callable[[Any], None]] = []
