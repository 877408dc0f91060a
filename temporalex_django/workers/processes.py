"""The other side of ``activity_process``: a process for each thread of the pool that needs one."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from django.conf import settings

from temporalex_django.core.copying import deep_copy
from temporalex_django.engine import activity_policy
from temporalex_django.errors import ApplicationError
from temporalex_django.workers.attempts import Attempt, UnfitResult

#: How often it is asked whether somebody still waits for the result.
_LOOK = 0.1
#: How long code that is cancelled has to see that itself, before its process is killed.
_GRACE = 1.0
_own = threading.local()


class WorkerLost(Exception):
    """The process of an activity has ended: like a worker that dies with it, but nobody else does."""


class Child:
    """A process, and what it says. For one thread."""

    def __init__(self) -> None:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        env["DJANGO_SETTINGS_MODULE"] = settings.SETTINGS_MODULE
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "temporalex_django.workers.activity_process"],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # signals to the group are for the worker, which ends it
        )
        assert self.popen.stdout is not None
        self._read = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.popen.stdout, selectors.EVENT_READ)

    def say(self, **what: Any) -> None:
        assert self.popen.stdin is not None
        with suppress(BrokenPipeError):  # its end says so
            self.popen.stdin.write(json.dumps(what).encode() + b"\n")
            self.popen.stdin.flush()

    def hear(self) -> dict[str, Any] | None:
        """The next thing that it says; None for a while nothing. Raises ``EOFError`` when it has ended."""
        assert self.popen.stdout is not None
        while b"\n" not in self._read:
            if not self._selector.select(_LOOK):
                return None
            if not (more := os.read(self.popen.stdout.fileno(), 65536)):
                raise EOFError
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        return said

    def kill(self) -> int:
        """End it; how it ended."""
        self.popen.kill()
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self._selector.close()
        return self.popen.wait()


def call(attempt: Attempt) -> Any:
    """What the activity of an attempt returns, which runs in the process of this thread.

    Raises what it raised, as far as that is known here, ``UnfitResult``, and ``WorkerLost`` when its process ended. A
    cancelled one has a moment to see that itself; then its process is killed.
    """
    child: Child | None = getattr(_own, "child", None)
    if child is None or child.popen.poll() is not None:
        child = _own.child = Child()
    task = attempt.task
    context = {
        "attempt": task.attempt,
        "idempotency_key": activity_policy.idempotency_key(task),
        "workflow_id": task.workflow_id,
        "run_id": str(task.run_id),
        "heartbeat_details": deep_copy(task.heartbeat_details),
        "_seq": task.seq,
    }
    child.say(activity=task.activity, args=list(task.args), kwargs=dict(task.kwargs), context=context)
    kill_at = None
    while True:
        try:
            said = child.hear()
        except EOFError:
            status = child.popen.wait()
            _own.child = None
            child.kill()
            raise WorkerLost(f"the process of {task.activity} {_ended(status)}") from None
        if said is None:
            if attempt.cancelled and kill_at is None:
                child.say(cancel=True)
                kill_at = time.monotonic() + _GRACE
            elif kill_at is not None and time.monotonic() > kill_at:
                child.kill()
                _own.child = None
                raise WorkerLost(f"{task.activity} was cancelled and did not look: its process was ended")
        elif "beat" in said:
            attempt.context().heartbeat(said["beat"])
        elif "ready" not in said:
            return _value(said)


def _ended(status: int) -> str:
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended by itself with {status}"


def _value(said: dict[str, Any]) -> Any:
    """Raises an exception that is called as that of the process, and its bases; its cause has the traceback."""
    if "result" in said:
        return said["result"]
    if "unfit" in said:
        raise UnfitResult(said["unfit"])
    failure, cause = said["raised"], RuntimeError(said["traceback"])
    if "non_retryable" in said:
        details, final = failure.get("details"), said["non_retryable"]
        raise ApplicationError(
            failure["message"], type=failure["type"], details=details, non_retryable=final
        ) from cause
    made: type[Exception] = Exception
    for name in reversed([name for name in said["bases"] if name not in ("Exception", "BaseException")]):
        made = type(name, (made,), {})
    raise made(failure["message"]) from cause


def close() -> None:
    """The thread ends, and its process."""
    child: Child | None = getattr(_own, "child", None)
    if child is not None:
        child.kill()
        _own.child = None
