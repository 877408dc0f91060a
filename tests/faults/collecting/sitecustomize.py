"""Loaded by a process that a test starts with this folder first on its path.

SIGUSR1 collects garbage, and says so in TX_TEST_COLLECTED.
"""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path
from typing import Any


def _collect(_number: int, _frame: Any) -> None:
    gc.collect()
    with Path(os.environ["TX_TEST_COLLECTED"]).open("a", encoding="utf-8") as said:
        said.write(".")


signal.signal(signal.SIGUSR1, _collect)
