"""One worker of a django-q2 cluster.

It is run as ``python -m temporalex_django.workers.q2.worker_process PID``, with the pid of the pusher that starts it.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
import time

import django

from temporalex_django.engine import policy
from temporalex_django.liveness.guardian import EventSetter, die_with_parent

log = logging.getLogger("temporalex_django.workers")


def main(parent: int) -> None:
    """Advance workflows until SIGTERM comes, or until the process is too old or takes too much memory.

    Then it returns and the process ends. ``parent`` is the pid of the pusher: the process ends at once with it.
    """
    die_with_parent(parent)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, EventSetter(stop).trigger)
    faulthandler.enable()
    django.setup()
    from temporalex_django.workers.loop import WorkerLoop  # noqa: PLC0415 - when the apps are there

    threading.Thread(target=_watch, args=[stop], name="temporalex-watch", daemon=True).start()
    WorkerLoop(kind="q2").run(stop)


def _watch(stop: threading.Event) -> None:
    """Set ``stop`` when the worker is too old or takes too much memory."""
    from temporalex_django.conf import get_settings  # noqa: PLC0415 - when the apps are there

    settings, started_at = get_settings(), time.monotonic()
    while not stop.wait(policy.Q2_LOOK_SECONDS):
        if settings.WORKER_MAX_SECONDS is not None and time.monotonic() - started_at > settings.WORKER_MAX_SECONDS:
            reason = f"it is older than {settings.WORKER_MAX_SECONDS:g} s"
        elif settings.WORKER_MAX_MEMORY_MB is not None and _memory_mb() > settings.WORKER_MAX_MEMORY_MB:
            reason = f"it uses more than {settings.WORKER_MAX_MEMORY_MB} MB"
        else:
            continue
        log.info("this worker retires: %s", reason)
        stop.set()


def _memory_mb() -> float:
    """Return the resident memory; 0.0 where the system does not report it."""
    try:
        with open("/proc/self/statm") as file:  # noqa: PTH123 - five times a second
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        return 0.0


if __name__ == "__main__":
    main(int(sys.argv[1]))
