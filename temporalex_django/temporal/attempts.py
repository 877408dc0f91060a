"""One attempt of an activity on a cluster: its call, its heartbeats, and what the server is told about its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db import close_old_connections
from temporalio import activity as sdk
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.exceptions import ApplicationError as SdkError

from temporalex_django.authoring import activity as activities
from temporalex_django.authoring.activity import Activity
from temporalex_django.authoring.activity_context import ActivityContext, use_context
from temporalex_django.authoring.activity_options import delay_after, jitter_draw
from temporalex_django.core.failures import ReturnedErr, describe
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.core.payloads import codec
from temporalex_django.core.payloads.round_trip import encode_lossless
from temporalex_django.errors import ApplicationError, PayloadError
from temporalex_django.graph.durable_run import StepActivity
from temporalex_django.graph.projection import Projection
from temporalex_django.temporal import names
from temporalex_django.temporal.failures import failure_details
from temporalex_django.temporal.options import HostOptions

#: The wrapper sends so many heartbeats within the time that one may take.
_BEATS_IN_LIMIT: Final = 3


class ActivityAttempt:
    """One attempt of an activity in a worker of the SDK. For activities that are steps it is their ``RunSource``.

    ``loop`` is the event loop of the worker, and ``headers`` are those of the call.
    """

    def __init__(
        self,
        options: HostOptions,
        info: sdk.Info,
        client: Client,
        loop: asyncio.AbstractEventLoop,
        headers: Mapping[str, Payload],
    ) -> None:
        self._options = options
        self._info = info
        self._client = client
        self._loop = loop
        # A call by another program has no facts.
        call = options.payloads.decode(headers[names.CALL]) if names.CALL in headers else {}
        self._seq: int = call.get("seq", 0)
        self._call_id = info.activity_id  # of our own runs it is the number
        self._kwargs: Mapping[str, Any] = call.get("kwargs", {})
        self._retry: dict[str, Any] | None = call.get("retry")
        self._key: str | None = call.get("key")  # its concurrency key
        self._headers: dict[str, str] = call.get("headers", {})
        self._workflow_id: str = call.get("id", info.workflow_id or "")
        self._run_id: str = call.get("run_id", info.workflow_run_id or "")
        self._details = list(info.heartbeat_details)
        self._events: Sequence[HistoryEvent] | None = None

    async def run(self, payloads: Sequence[Payload], executor: Executor | None) -> Any:
        """Run the function and return its result as plain data.

        Raises the failure of the attempt as an error of the SDK.
        """
        try:
            args = [*map(self._options.payloads.decode, payloads)]
            activity = activities.find(self._info.activity_type)
            if activity.is_async:
                if isinstance(activity, StepActivity):
                    self._events = await self._query_events()  # a query would block the event loop later
                fn, positional, keywords = activity.decode_call(args, self._kwargs, self)
                with self.surroundings(activity):
                    value = await fn(*positional, **keywords)
                return self.encode(activity, value, args)
            return await self.start_in_thread(activity, args, executor)
        except Exception as exc:
            raise self._failure(exc) from exc

    def start_in_thread(self, activity: Activity[Any, Any], args: Sequence[Any], executor: Any) -> Awaitable[Any]:
        """Call ``run_in_thread`` in a thread of ``executor``, and return an awaitable of its result."""
        return self._loop.run_in_executor(executor, copy_context().run, self.run_in_thread, activity, args)

    def surroundings(self, activity: Activity[Any, Any]) -> AbstractContextManager[None]:
        """Return the context manager in which the function of ``activity`` runs; subclasses may add to it."""
        del activity
        return use_context(self._context())

    def run_in_thread(self, activity: Activity[Any, Any], args: Sequence[Any]) -> Any:
        """Call the plain function of an activity in this thread, and return its value as plain data.

        Database connections that are too old or broken are closed before and after it.
        """
        close_old_connections()
        try:
            fn, positional, keywords = activity.decode_call(args, self._kwargs, self)
            with self.surroundings(activity):
                value = fn(*positional, **keywords)
            return self.encode(activity, value, args)
        except (KeyboardInterrupt, SystemExit, asyncio.CancelledError) as exc:
            # These would end the thread or the event loop; here they end the attempt.
            raise RuntimeError(f"{activity.name} raised {type(exc).__name__}") from exc
        finally:
            close_old_connections()

    def encode(self, activity: Activity[Any, Any], value: Any, args: Sequence[Any]) -> Any:
        """Return the value of the function as plain data. Raises ``PayloadError`` if the history cannot keep it."""
        encoded = activity.encode_result(value, args, self)
        label = f"the result of {activity.name}"
        return encode_lossless(
            encoded, label=label, limit=codec.MAX_BYTES, read=activity.read_result, annotate=activity.annotate_result
        )

    def _context(self) -> ActivityContext:
        """Return the context that the code of the activity sees."""
        return ActivityContext(
            attempt=self._info.attempt,
            idempotency_key=f"{self._run_id}:{self._call_id}",
            workflow_id=self._workflow_id,
            run_id=self._run_id,
            heartbeat_details=self._details[0] if self._details else None,
            headers=self._headers,
            _seq=self._seq,
            _owner=self._info.workflow_run_id,
            _heartbeat=self._note_heartbeat,
            _is_cancelled=sdk.is_cancelled,
        )

    # -- heartbeats ---------------------------------------------------------------------------------------------------

    def _note_heartbeat(self, details: Any) -> None:
        """Send a heartbeat; any thread may call this. The details are sent again until others replace them."""
        if details is not None:
            self._details = [details]
        self._loop.call_soon_threadsafe(sdk.heartbeat, *self._details)

    async def send_heartbeats(self) -> None:
        """Send heartbeats until this task is cancelled, so that the server notices a dead worker."""
        while limit := self._info.heartbeat_timeout:
            await asyncio.sleep(limit.total_seconds() / _BEATS_IN_LIMIT)
            self._note_heartbeat(None)

    # -- the end of an attempt ----------------------------------------------------------------------------------------

    def _failure(self, error: BaseException) -> SdkError:
        """Return the error of the SDK for an attempt that failed with ``error``.

        The server counts attempts. The returned error tells it if another attempt follows, and when.
        """
        attempt = self._info.attempt
        attributes: dict[str, Any] = {**describe(error), "attempts": attempt, "timeout": None}
        if isinstance(error, ReturnedErr):
            attributes.update(type="Err", reason=error.reason)
        final = isinstance(error, PayloadError) or (isinstance(error, ApplicationError) and error.non_retryable)
        draw = jitter_draw(self._run_id, self._seq, attempt)
        delay = delay_after(self._retry, attempt, error, now=datetime.now(UTC), draw=draw)
        return SdkError(
            attributes["message"],
            failure_details(attributes),
            type=attributes["type"],
            non_retryable=final or delay is None,
            next_retry_delay=None if final or delay is None else timedelta(seconds=delay),
        )

    # -- the run of a step (``RunSource``) ----------------------------------------------------------------------------

    def workflow(self, version: int) -> Any:
        return self._options.find_class(self._info.workflow_type or "", version)

    def instance(self, version: int) -> Any:
        """Return the instance of the graph as it was when the step was scheduled, computed by a query of the run."""
        events = self._events
        if events is None:
            events = asyncio.run_coroutine_threadsafe(self._query_events(), self._loop).result()
        projection = Projection(self.workflow(version))
        projection.feed(events)
        return projection.activity_instances[self._seq]

    async def _query_events(self) -> list[HistoryEvent]:
        handle = self._client.get_workflow_handle(self._info.workflow_id or "", run_id=self._info.workflow_run_id)
        state = await handle.query(names.STATE)
        return [
            HistoryEvent(number, activation, kind, datetime.fromisoformat(at), attributes)
            for number, activation, kind, at, attributes in state["events"]
        ]
