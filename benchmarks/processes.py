"""Worker processes of the benchmarks.

Each ends with the block that started it, and with this process, however that ends (Linux).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from scripts.embedded_postgres import die_with_parent


@contextmanager
def process(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run a Python module until the end of the block; SIGTERM, then SIGKILL after ten seconds."""
    child = subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - called from the main thread, one system call
    )
    try:
        yield child
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait(10)


@contextmanager
def worker() -> Iterator[subprocess.Popen[str]]:
    """One worker process of ours, ready (its first line of output has been read)."""
    with process("-m", "django", "temporalex", "worker") as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child
