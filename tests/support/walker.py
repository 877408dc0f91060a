"""A process without a connection that forks workers which end at a crash point: ``python -m tests.support.walker``.

A line of JSON is a request: ``{"die": point, "fail": {point: how often}, "do": what, "ref": run}``. A worker runs until
it is told to stop; with ``do`` an update is sent instead, of which ``id`` and ``args`` may be given. The answer is the
pid. ``{"stop": pid}`` tells it to stop and ``{"wait": pid}`` waits for it; the answer is how it ended. A test starts
it, and ends it by closing its input.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from typing import Any

#: As in ``crash_walk``: ended here, for want of its point.
MISSED = 999


def install(die: str | None, fail: dict[str, int]) -> None:
    """Have this process kill itself at that point, and raise at others, so often."""
    from django.db import OperationalError

    from temporalex_django.core import process

    left = Counter(fail)

    def reached(point: str) -> None:
        assert point in process.POINTS, point
        if point == die:
            os.kill(os.getpid(), signal.SIGKILL)
        if left[point] > 0:
            left[point] -= 1
            raise OperationalError("injected") if point.startswith("bulk") else RuntimeError("injected")

    process.reached = reached


def _work() -> None:
    from temporalex_django.workers import maintenance
    from temporalex_django.workers.loop import WorkerLoop
    from tests.support import outbox_kinds

    maintenance._CODE_EVERY = 0.2
    outbox_kinds.register()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    WorkerLoop(kind="worker").run(stop)


def _update(asked: dict[str, Any]) -> None:
    from temporalex_django.client import backend

    run = backend().handle(asked["ref"])
    run.update("add", asked.get("args", 1), id=asked.get("id"), mode=asked["do"], timeout=5)


def _child(asked: dict[str, Any]) -> None:
    code = 1
    try:
        install(asked.get("die"), asked.get("fail") or {})
        if asked.get("do"):
            _update(asked)
        else:
            _work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _ended(pid: int, seconds: float = 60.0) -> int:
    """How it ended; ``MISSED`` when it had to be ended here."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return MISSED


def main() -> None:
    """Until the input ends."""
    import django

    django.setup()
    from temporalex_django.workers import loop  # noqa: F401 - what is loaded now is not loaded by each child

    for line in sys.stdin:
        asked = json.loads(line)
        if "wait" in asked:
            answer = _ended(asked["wait"], asked["seconds"])
        elif "stop" in asked:
            os.kill(asked["stop"], signal.SIGTERM)
            answer = _ended(asked["stop"])
        else:
            sys.stderr.flush()
            answer = os.fork()
            if not answer:
                _child(asked)
        print(answer, flush=True)


if __name__ == "__main__":
    main()
