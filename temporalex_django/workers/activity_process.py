"""The process that runs activities with ``lane="process"`` for a worker.

It reads lines of JSON from its standard input: a call, then perhaps its cancellation. It writes lines of JSON to its
standard output: heartbeats, then the result. The prints of an activity go to standard error. The process ends when
its worker does.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from datetime import datetime
from typing import IO, Any


class CallReader:
    """A thread that reads the worker's calls, JSON lines, from ``source`` while an activity computes.

    So a call can be cancelled while its code runs: ``cancelled`` is True if the worker has cancelled the present call.
    """

    def __init__(self, source: IO[str]) -> None:
        self._source = source
        self._condition = threading.Condition()
        self._next: dict[str, Any] | None = None
        self.cancelled = False
        threading.Thread(target=self._listen, name="temporalex-calls", daemon=True).start()

    def _listen(self) -> None:
        for line in self._source:
            message = json.loads(line)
            with self._condition:
                if message.get("cancel"):
                    self.cancelled = True
                else:
                    self._next, self.cancelled = message, False
                    self._condition.notify()
        os._exit(0)  # the worker is gone, whatever is being computed here

    def take(self) -> dict[str, Any]:
        """Wait for the next call of the worker and return it."""
        with self._condition:
            self._condition.wait_for(lambda: self._next is not None)
            call, self._next = self._next, None
        assert call is not None
        return call


def main() -> None:
    """Run the activities that the worker sends, one call after the other, until the worker ends."""
    parent = os.getppid()
    # The protocol keeps the original standard output for itself; whatever the activity prints goes to the standard
    # error.
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    calls = CallReader(sys.stdin)

    import django  # noqa: PLC0415 - the streams come first

    django.setup()
    from temporalex_django.liveness.guardian import die_with_parent  # noqa: PLC0415 - as above

    # C code may keep the reading thread from running, so the system has to end this process with its worker.
    die_with_parent(parent)
    writing = threading.Lock()

    def send(**fields: Any) -> None:
        with writing:
            output.write(json.dumps(fields) + "\n")
            output.flush()

    send(ready=True)
    while True:
        call = calls.take()
        send(**_run_call(call, calls, send))


def _run_call(call: dict[str, Any], calls: CallReader, send: Any) -> dict[str, Any]:
    from django.db import close_old_connections  # noqa: PLC0415 - Django is set up by then

    from temporalex_django.authoring import activity  # noqa: PLC0415
    from temporalex_django.authoring.activity_context import ActivityContext, PreviousFailure, use_context  # noqa: PLC0415
    from temporalex_django.db.attempt_scope import call_in_scope  # noqa: PLC0415

    context = ActivityContext(
        **{**call["context"], "previous_failure": PreviousFailure.from_payload(call["context"]["previous_failure"])},
        _heartbeat=lambda details: send(beat=details),
        _progress=lambda progress: send(progress=progress),
        _is_cancelled=lambda: calls.cancelled,
    )

    def call_function() -> Any:
        with use_context(context):
            return act.__wrapped__(*args, **kwargs)

    close_old_connections()
    try:
        act = activity.find(call["activity"])
        args, kwargs = act.decode(call["args"], call["kwargs"])
        value = call_in_scope(act.name, call_function)
        return _encode_result(act, value)
    except BaseException as exc:  # noqa: BLE001 - also SystemExit: it ends the attempt
        return _encode_error(exc)
    finally:
        close_old_connections()


def _encode_error(exc: BaseException) -> dict[str, Any]:
    from temporalex_django.core.failures import (  # noqa: PLC0415 - as above
        clean_traceback,
        describe,
        error_attribute,
        exception_name,
        is_error,
        retry_request,
    )
    from temporalex_django.errors import ApplicationError  # noqa: PLC0415

    on_purpose: dict[str, Any] = {}
    if (request := retry_request(exc)) is not None:
        after = request.after.isoformat() if isinstance(request.after, datetime) else request.after
        on_purpose = {"retry_later": {"after": after, "counts": request.counts, "hold": request.hold}}
    elif is_error(exc, ApplicationError):
        on_purpose = {"non_retryable": error_attribute(exc, "non_retryable") is True}
    bases = [exception_name(cls) for cls in type(exc).__mro__ if issubclass(cls, BaseException)]
    return {"raised": describe(exc), "bases": bases, "traceback": clean_traceback(exc), **on_purpose}


def _encode_result(act: Any, value: Any) -> dict[str, Any]:
    """Return a message, ``unfit`` if the value would be read back differently: only this process can compare."""
    from temporalex_django.core.payloads.round_trip import encode_lossless  # noqa: PLC0415 - as above
    from temporalex_django.errors import PayloadError  # noqa: PLC0415

    try:
        label = f"the result of {act.name}"
        return {"result": encode_lossless(value, label=label, read=act.read_result, annotate=act.annotate_result)}
    except PayloadError as exc:
        return {"unfit": str(exc)}


if __name__ == "__main__":
    main()
