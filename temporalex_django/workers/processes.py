"""Processes for activities with ``lane="process"``, one for each thread of the pool that needs one.

They run ``workers.activity_process``; this module is the worker's side.
"""

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
from datetime import datetime
from typing import Any

from django.conf import settings

from temporalex_django.authoring.activity_context import ActivityContext
from temporalex_django.core.payloads.codec import deep_copy
from temporalex_django.engine import policy
from temporalex_django.engine.contracts.records import TaskState
from temporalex_django.errors import ApplicationError, RetryLater
from temporalex_django.workers.attempts import Attempt, UnfitResult

_thread_state = threading.local()


class WorkerLost(Exception):
    """Raised when the process that ran an activity has ended. The attempt counts as one whose worker died."""


class ActivityProcess:
    """A process that runs activities for one thread, and the messages that come from it."""

    def __init__(self) -> None:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        env["DJANGO_SETTINGS_MODULE"] = settings.SETTINGS_MODULE
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "temporalex_django.workers.activity_process"],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # signals to the group are for the worker, which ends this process
        )
        assert self.popen.stdout is not None
        self._read = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.popen.stdout, selectors.EVENT_READ)

    def send(self, **fields: Any) -> None:
        assert self.popen.stdin is not None
        with suppress(BrokenPipeError):  # ``receive`` finds that the process has ended
            self.popen.stdin.write(json.dumps(fields).encode() + b"\n")
            self.popen.stdin.flush()

    def receive(self) -> dict[str, Any] | None:
        """Return the next message from the process, or None if none came within a moment.

        Raises ``EOFError`` when the process has ended.
        """
        assert self.popen.stdout is not None
        while b"\n" not in self._read:
            if not self._selector.select(policy.PROCESS_POLL_SECONDS):
                return None
            if not (chunk := os.read(self.popen.stdout.fileno(), 65536)):
                raise EOFError
            self._read += chunk
        line, _, self._read = self._read.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def kill(self) -> int:
        """Kill the process and return its exit status."""
        self.popen.kill()
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self._selector.close()
        return self.popen.wait()


def call_in_process(attempt: Attempt) -> Any:
    """Run the activity of an attempt in the child process of this thread, and return its value: see ``run_task``."""
    return run_task(attempt.task, attempt.context())


def run_task(task: TaskState, context: ActivityContext) -> Any:
    """Run an activity in the child process of this thread, and return its value.

    ``context`` gets the details of its heartbeats, and its code sees the same context. Raises the exception of the
    activity, as an object of a class with the same name (``_decode_result``). Raises ``UnfitResult`` for a value that
    cannot be stored, and ``WorkerLost`` when the process ended. Once ``context.is_cancelled()`` is True, the code gets
    a moment to stop by itself; then its process is killed.
    """
    process: ActivityProcess | None = getattr(_thread_state, "child", None)
    if process is None or process.popen.poll() is not None:
        process = _thread_state.child = ActivityProcess()
    fields = {
        "attempt": context.attempt,
        "idempotency_key": context.idempotency_key,
        "workflow_id": context.workflow_id,
        "run_id": context.run_id,
        "heartbeat_details": deep_copy(context.heartbeat_details),
        "previous_failure": task.previous_failure,
        "headers": dict(context.headers),
        "_seq": context._seq,  # noqa: SLF001 - as in its worker
        "_owner": context._owner,  # noqa: SLF001 - as above
    }
    process.send(activity=task.activity, args=list(task.args), kwargs=dict(task.kwargs), context=fields)
    kill_at = None
    while True:
        try:
            message = process.receive()
        except EOFError:
            status = process.popen.wait()
            _thread_state.child = None
            process.kill()
            raise WorkerLost(f"the process of {task.activity} {_exit_text(status)}") from None
        if message is None:
            if context.is_cancelled() and kill_at is None:
                process.send(cancel=True)
                kill_at = time.monotonic() + policy.PROCESS_GRACE_SECONDS
            elif kill_at is not None and time.monotonic() > kill_at:
                process.kill()
                _thread_state.child = None
                raise WorkerLost(f"{task.activity} did not react to its cancellation: its process was killed")
        elif "beat" in message:
            context.heartbeat(message["beat"])
        elif "progress" in message:
            context.progress(**message["progress"])
        elif "ready" not in message:
            return _decode_result(message)


def _exit_text(status: int) -> str:
    """Return words for an exit status as ``Popen`` has it: negative after a signal."""
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"exited with status {status}"


def _decode_result(message: dict[str, Any]) -> Any:
    """Return the value, or raise with class names that retry policies compare, and with the traceback as cause."""
    if "result" in message:
        return message["result"]
    if "unfit" in message:
        raise UnfitResult(message["unfit"])
    failure, cause = message["raised"], RuntimeError(message["traceback"])
    if "retry_later" in message:
        request = message["retry_later"]
        if isinstance(request["after"], str):
            request["after"] = datetime.fromisoformat(request["after"])
        raise RetryLater(failure["message"], type=failure["type"], details=failure.get("details"), **request) from cause
    if "non_retryable" in message:
        details, final = failure.get("details"), message["non_retryable"]
        raise ApplicationError(
            failure["message"], type=failure["type"], details=details, non_retryable=final
        ) from cause
    error_class: type[Exception] = Exception
    for name in reversed([name for name in message["bases"] if name not in ("Exception", "BaseException")]):
        error_class = type(name, (error_class,), {})
    raise error_class(failure["message"]) from cause


def close_process() -> None:
    """End the process of the calling thread, when the thread itself ends."""
    process: ActivityProcess | None = getattr(_thread_state, "child", None)
    if process is not None:
        process.kill()
        _thread_state.child = None
