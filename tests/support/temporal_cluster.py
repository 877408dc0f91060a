"""A client and workers of the SDK for tests that are not async: an event loop in a thread does the work."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from temporalio.client import Client, WorkflowHandle
from temporalio.client._interceptor import SignalWorkflowInput
from temporalio.worker import Replayer, Worker

from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.temporal import names
from temporalex_django.temporal.plugin import TemporalexPlugin
from tests.support.waiting import wait_for

_ANSWER = 30.0


class Cluster:
    """The access of a test to the server, with a task queue of its own. ``options`` are those of the plugin."""

    plugin_class: type[TemporalexPlugin] = TemporalexPlugin

    def __init__(self, address: str, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.queue = f"queue-{uuid.uuid4().hex[:8]}"
        self.handles: list[WorkflowHandle] = []  # of the runs that were started here
        self.options = {"queue_name": lambda _: self.queue, **options}
        self.plugin = self.plugin_class(**self.options)
        self.payloads = self.plugin.options.payloads
        self._address = address
        self.client: Client
        self.reconnect()

    def reconnect(self) -> None:
        """Use a connection of its own from now on."""
        self.client = self.call(self._connect(self._address))

    async def _connect(self, address: str) -> Client:
        for _ in range(600):
            try:
                return await Client.connect(address, plugins=[self.plugin])
            except RuntimeError:  # the server has just been started
                await asyncio.sleep(0.02)
        raise AssertionError("the server of Temporal did not start")

    def close(self) -> None:
        self.call(self._loop.shutdown_asyncgens())  # the SDK leaves one open
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.submit(coroutine).result(_ANSWER)

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    @contextmanager
    def worker(self, *, cache: int = 1000) -> Iterator[Worker]:
        """A worker for the queue, in whose block runs proceed; ``cache`` is the number of runs that it keeps."""
        worker = self.call(self._worker(cache))
        running = self.submit(worker.run())
        try:
            yield worker
        finally:
            self.call(worker.shutdown())
            running.result(_ANSWER)

    async def _worker(self, cache: int) -> Worker:
        return Worker(self.client, task_queue=self.queue, max_cached_workflows=cache)

    # -- runs ---------------------------------------------------------------------------------------------------------

    def start(self, workflow: str, args: Any = None, *, id: str | None = None, facts: Any = None) -> WorkflowHandle:
        arguments = [args, {"version": 1} if facts is None else facts]
        start = self.client.start_workflow(
            workflow, args=arguments, id=id or f"{workflow}-{uuid.uuid4().hex[:8]}", task_queue=self.queue
        )
        handle = self.call(start)
        self.handles.append(handle)
        return handle

    def send(self, handle: WorkflowHandle, name: str, payload: Any = None, **headers: Any) -> None:
        """Send a signal with headers, such as its sender."""
        request = SignalWorkflowInput(
            id=handle.id,
            run_id=None,
            signal=name,
            args=[payload],
            headers={header: self.payloads.encode(value) for header, value in headers.items()},
            rpc_metadata={},
            rpc_timeout=None,
        )
        self.call(self.client._impl.signal_workflow(request))

    def result(self, handle: WorkflowHandle) -> Any:
        return self.call(handle.result())

    def state(self, handle: WorkflowHandle) -> dict[str, Any]:
        return self.call(handle.query(names.STATE))

    def events(self, handle: WorkflowHandle) -> list[HistoryEvent]:
        return [
            HistoryEvent(number, activation, kind, at, attributes)
            for number, activation, kind, at, attributes in self.state(handle)["events"]
        ]

    def wait_until_waiting(self, handle: WorkflowHandle, label: str) -> None:
        """Wait until the run waits for something whose label contains ``label``."""
        wait_for(lambda: any(label in wait for wait in self.state(handle)["waiting_for"]))

    def history(self, handle: WorkflowHandle) -> Any:
        return self.call(handle.fetch_history())

    def replay(self, history: Any) -> None:
        """Replay a history with the Replayer of the SDK. Raises its error."""
        self.call(self._replay(history))

    async def _replay(self, history: Any) -> None:
        await Replayer(workflows=[], plugins=[self.plugin]).replay_workflow(history)
