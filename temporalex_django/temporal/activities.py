"""Activities on a cluster: one dynamic activity of the SDK, which runs every activity of this package."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextvars import ContextVar
from typing import Any, ClassVar

from temporalio import activity as sdk
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from temporalex_django.temporal.attempts import ActivityAttempt
from temporalex_django.temporal.options import HostOptions

_headers: ContextVar[Mapping[str, Payload]] = ContextVar("temporalex_temporal_headers")


class HeaderInterceptor(Interceptor):
    """Lets the attempt of an activity see its headers, which the SDK gives to interceptors alone."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _HeaderReader(next)


class _HeaderReader(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        token = _headers.set(input.headers)
        try:
            return await self.next.execute_activity(input)
        finally:
            _headers.reset(token)


class ActivityRunner:
    """Runs the attempts of activities in a worker of the SDK.

    Plain functions run in threads of ``executor`` (None: the default executor of the event loop), and async ones in the
    event loop.
    """

    attempt_class: ClassVar[type[ActivityAttempt]] = ActivityAttempt

    def __init__(self, options: HostOptions, executor: Executor | None = None) -> None:
        self._options = options
        self._executor = executor

    def definition(self) -> Callable[..., Any]:
        """Return the dynamic activity for the worker."""

        @sdk.defn(dynamic=True)
        async def any_activity(args: Sequence[RawValue]) -> RawValue:
            return await self.run(args)

        return any_activity

    async def run(self, args: Sequence[RawValue]) -> RawValue:
        """Run one attempt and return its result as a payload. Raises the failure of the attempt for the SDK."""
        info, payloads = sdk.info(), self._options.payloads
        attempt = self.attempt_class(self._options, info, sdk.client(), asyncio.get_running_loop(), _headers.get({}))
        beats = asyncio.create_task(attempt.send_heartbeats())
        try:
            result = await attempt.run([arg.payload for arg in args], self._executor)
        finally:
            beats.cancel()
        metadata = {"attempts": str(info.attempt).encode()} if info.attempt > 1 else {}
        return RawValue(payloads.encode(result, **metadata))
