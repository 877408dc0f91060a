"""A process that sends the outbox and nothing else, to be killed: ``python -m tests.support.dispatcher``."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor


def main() -> None:
    import django

    django.setup()
    from django.db import DatabaseError

    from temporalex_django.engine import policy
    from temporalex_django.workers.maintenance import send_batch

    policy.OUTBOX_LEASE = 1.0  # type: ignore[misc] # what a killed one has claimed is due again soon
    policy.OUTBOX_BATCH = 5  # type: ignore[misc]
    pause = threading.Event()
    with ThreadPoolExecutor(4) as pool:
        while True:
            try:
                done = send_batch("default", None, pool)
            except DatabaseError:
                done = False  # SQLite was busy
            if not done:
                pause.wait(0.05)


if __name__ == "__main__":
    main()
