"""Loaded by a process that a test starts with this folder first on its path.

Its clock is wrong by TX_TEST_CLOCK seconds.
"""

from __future__ import annotations

import datetime as dt
import os
import time

_OFF = float(os.environ.get("TX_TEST_CLOCK", "0"))
_time, _datetime = time.time, dt.datetime


class _Meta(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _datetime)


class _Wrong(_datetime, metaclass=_Meta):
    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> dt.datetime:  # type: ignore[override]
        return _datetime.fromtimestamp(time.time(), tz)


time.time = lambda: _time() + _OFF
dt.datetime = _Wrong  # type: ignore[misc]
