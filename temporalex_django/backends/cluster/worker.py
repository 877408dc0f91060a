"""Workers of the SDK in a Django process: they run the classes of this project, and mirror their runs."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Final

from temporalio.api.workflowservice.v1 import GetSystemInfoRequest
from temporalio.client import Client
from temporalio.worker import FixedSizeSlotSupplier, PollerBehaviorSimpleMaximum, Worker, WorkerTuner

from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.backends.cluster import deployments
from temporalex_django.backends.cluster.attempts import (
    ProcessCall,
    ProjectActivities,
    bind_process_call,
)
from temporalex_django.backends.cluster.client import CREDENTIALS_SECONDS, ClusterUnavailable, cluster_client
from temporalex_django.backends.cluster.ids import identity_of, task_queue
from temporalex_django.backends.cluster.logs import hide_error_texts
from temporalex_django.backends.cluster.mirror_writer import MirrorWriter
from temporalex_django.backends.cluster.mirrored_run import MirroredPlugin
from temporalex_django.backends.cluster.permits import Permits, slots_of
from temporalex_django.backends.cluster.places import ActivitySlots, PoolExecutor, Threads
from temporalex_django.conf import get_settings
from temporalex_django.core.failures import error_line
from temporalex_django.db.human_tasks import DatabaseJudge
from temporalex_django.temporal.options import find_class
from temporalex_django.temporal.plugin import TemporalexPlugin

log = logging.getLogger("temporalex_django.backends")

#: Seconds of the first pause after the cluster has not answered, and of the longest one.
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 15.0
#: Activations at a time. Most of their time they wait for the commit of their rows, which they share.
_WORKFLOW_TASKS: Final = 32
_ACTIVITY_POLLERS: Final = 2
#: Seconds between two questions whether the cluster answers, and of the wait for each answer.
_WATCH_SECONDS: Final = 10.0


class ProjectPlugin(MirroredPlugin):
    """The plugin of workers of this project: with its codec, its permissions, its ids, its mirror and its attempts."""

    def __init__(self, observer: MirrorWriter, *, executor: Executor, permits: Permits | None = None) -> None:
        super().__init__(observer, judge=partial(_is_permitted, observer), executor=executor)
        self.activities = [ProjectActivities(self.options, executor, permits).definition()]


def project_plugin(*, executor: Executor | None = None) -> TemporalexPlugin:
    """Return a plugin for clients, workers and replayers of the SDK in a Django process.

    It has the codec, the prefix, the task queues and the permissions of the project. Every history of the project
    replays with it, unless the code has changed. Workers write the rows of their runs. ``executor`` has the threads of
    activities that are plain functions (None: threads of its own).
    """
    hide_error_texts()
    writer = MirrorWriter(get_settings().DATABASE)
    threads = executor or ThreadPoolExecutor(thread_name_prefix="temporalex-activity")
    plugin = ProjectPlugin(writer, executor=threads)
    run_context: Any = partial(aclosing, writer)
    plugin.run_context = run_context
    return plugin


def _is_permitted(writer: MirrorWriter, key: str, permission: str, message: Any) -> bool:
    """Return True if a user may send a message. Each question reads the user anew."""
    is_permitted: bool = writer.call(partial(DatabaseJudge(writer.alias), key, permission, message))
    return is_permitted


class ClusterWorker:
    """The workers of the SDK of this process, one for each queue that it polls, in a thread with an event loop.

    ``threads`` run plain activities, and ``tasks`` is the number of async ones at a time. ``alias`` is the database of
    the rows. ``name`` is the id of the worker, and ``owner()`` its epoch. ``resolve(name, version)`` returns the class
    of a run. ``drain_seconds`` is the time that activities have to end when polling stops.

    It polls nothing until ``poll`` names queues. A cluster that does not answer is tried again, with growing pauses.
    """

    def __init__(
        self,
        *,
        threads: Threads,
        thread_count: int,
        tasks: int,
        alias: str,
        name: str,
        drain_seconds: float,
        resolve: Callable[[str, int], type[Workflow]] = workflows.class_for_run,
        owner: Callable[[], int] = int,
        call_in_process: ProcessCall | None = None,
    ) -> None:
        self._slots = ActivitySlots(threads, limit=thread_count + tasks)
        self._name = name
        self._drain_seconds = drain_seconds
        self._writer = MirrorWriter(alias, combines=True)
        self._permits = Permits(alias, owner)
        self._deployment = deployments.worker_config()
        # Without an id, the SDK reads the code of all modules to make one, which takes seconds.
        self._build_id = None if self._deployment else deployments.code_digest()
        hide_error_texts()
        self._tasks = ThreadPoolExecutor(_WORKFLOW_TASKS, thread_name_prefix="temporalex-cluster-task")
        try:
            self._plugin = ProjectPlugin(self._writer, executor=PoolExecutor(threads), permits=self._permits)
        except Exception:  # the SDK does not fit: the next try must not find the threads of this one
            self._writer.close()
            self._permits.close()
            raise
        self._plugin.options = replace(self._plugin.options, find_class=_finder(resolve))
        if call_in_process is not None:
            bind_process_call(call_in_process)
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None
        #: The queues that a worker of the SDK polls now.
        self.polled: set[str] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="temporalex-cluster-worker", daemon=True)
        self._thread.start()

    def poll(self, queues: Collection[str]) -> None:
        """Poll these queues of the project and no others. Returns at once; what runs of the others may end."""
        self._loop.call_soon_threadsafe(self._set_queues, frozenset(queues))

    def stop(self) -> None:
        """Stop polling, let activities end for ``drain_seconds``, and end the threads."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._tasks.shutdown()
        self._writer.close()
        self._permits.close()

    # -- on the event loop --------------------------------------------------------------------------------------------

    def _set_queues(self, queues: AbstractSet[str]) -> None:
        if self._watch is None:
            self._watch = self._loop.create_task(self._watch_cluster())
        for queue in self._serving.keys() - queues:
            task = self._serving.pop(queue)
            task.cancel()  # once: a second time would not let its activities end
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        for queue in queues - self._serving.keys():
            self._serving[queue] = self._loop.create_task(self._serve(queue))

    async def _end(self) -> None:
        self._set_queues(frozenset())
        await asyncio.gather(*self._ending, return_exceptions=True)
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self._loop.shutdown_asyncgens()

    async def _serve(self, queue: str) -> None:
        """Poll one queue until it is cancelled, whatever happens to the cluster."""
        pause = _FIRST_PAUSE
        while True:
            started_at = time.monotonic()
            try:
                worker = self._make_worker(await self._connect(), queue)
                self.polled.add(queue)
                renewal = self._loop.create_task(self._renew(worker))
                try:
                    await worker.run()
                finally:
                    renewal.cancel()
            except Exception as exc:  # noqa: BLE001 - whatever it is, the cluster is tried again
                log.warning("the queue %r of the cluster is polled again in %.1f s: %s", queue, pause, error_line(exc))
            finally:
                self.polled.discard(queue)
            await asyncio.sleep(pause)
            was_long = time.monotonic() - started_at > 2 * _LONGEST_PAUSE
            pause = _FIRST_PAUSE if was_long else min(pause * 2, _LONGEST_PAUSE)

    async def _watch_cluster(self) -> None:
        """Give back the places of this process while the cluster does not answer it: others may reach the cluster.

        Also note the code of this process with its build there.
        """
        build = None
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            try:
                client = await self._connect()
                await client.workflow_service.get_system_info(
                    GetSystemInfoRequest(), timeout=timedelta(seconds=_WATCH_SECONDS)
                )
            except Exception:  # noqa: BLE001 - whatever it is, this process cannot use the cluster now
                self._permits.suspend()
            else:
                self._permits.resume()
                if build is None or not build.has_polled:
                    build = await deployments.note_code(client)

    async def _renew(self, worker: Worker) -> None:
        """Give a worker the client of this process whenever it has connected anew, with another key or certificate."""
        while True:
            await asyncio.sleep(CREDENTIALS_SECONDS)
            with suppress(ClusterUnavailable):
                client = await self._connect()
                if client is not worker.client:
                    worker.client = client

    async def _connect(self) -> Client:
        """Return the client of this process, with which the dispatcher of the outbox sends as well."""
        return await asyncio.wrap_future(cluster_client().submit(_identity))

    def _make_worker(self, client: Client, queue: str) -> Worker:
        """Return a worker of the SDK for a queue. It must be created on the event loop."""
        fixed = FixedSizeSlotSupplier(_WORKFLOW_TASKS)
        return Worker(
            client,
            task_queue=task_queue(queue),
            plugins=[self._plugin],
            identity=identity_of(self._name),
            workflow_task_executor=self._tasks,
            max_cached_workflows=get_settings().CACHE_SIZE,
            tuner=WorkerTuner.create_composite(
                workflow_supplier=fixed,
                activity_supplier=slots_of(queue, self._slots, self._permits),
                local_activity_supplier=fixed,
                nexus_supplier=fixed,
            ),
            activity_task_poller_behavior=PollerBehaviorSimpleMaximum(maximum=_ACTIVITY_POLLERS),
            build_id=self._build_id,
            deployment_config=self._deployment,
            graceful_shutdown_timeout=timedelta(seconds=self._drain_seconds),
        )


async def _identity(client: Client) -> Client:
    return client


def _finder(resolve: Callable[[str, int], type[Workflow]]) -> Callable[[str, int | None], type[Workflow]]:
    """Return the function with which runs find their class, which asks ``resolve`` for all runs with a version."""

    def find(name: str, version: int | None) -> type[Workflow]:
        return resolve(name, find_class(name, None).version if version is None else version)

    return find
