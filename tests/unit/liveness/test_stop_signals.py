"""What a signal interrupts may have the lock of the very event that the signal is to set."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.each_python

_IN_THE_MIDST = """
import signal, threading
from temporalex_django.liveness.guardian import {name}
stop = threading.Event()
{listen}
with stop._cond:  # as in the midst of its wait() and set()
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
print(stop.wait(30))
"""


@pytest.mark.parametrize(
    ("name", "listen"),
    [
        ("StopSignals", "StopSignals(stop)"),
        ("EventSetter", "signal.signal(signal.SIGTERM, EventSetter(stop).trigger)"),
    ],
    ids=["a worker", "a worker of a cluster"],
)
def test_a_signal_in_the_midst_of_the_event_sets_it(name: str, listen: str) -> None:
    code = _IN_THE_MIDST.format(name=name, listen=listen)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "True\n"
