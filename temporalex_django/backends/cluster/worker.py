"""Workers of the SDK in a Django process: they run the classes of this project, and mirror their runs."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any

from temporalio.client import Client
from temporalio.worker import Worker

from temporalex_django.backends.cluster import mirror
from temporalex_django.backends.cluster.client import tls_config
from temporalex_django.backends.cluster.ids import cluster_id_of
from temporalex_django.backends.cluster.mirrored_run import MirroredPlugin
from temporalex_django.conf import codec, get_settings
from temporalex_django.db.people.deciders import DatabaseJudge
from temporalex_django.temporal.plugin import TemporalexPlugin


def make_plugin(*, executor: Executor | None = None) -> TemporalexPlugin:
    """Return the plugin for workers of this project: with its codec, its permissions, its ids and its mirror.

    ``executor`` has the threads of activities that are plain functions.
    """
    settings = get_settings()
    return MirroredPlugin(
        mirror.observe,
        codec=codec(),
        judge=_judge,
        workflow_id=cluster_id_of,
        unexpected_error=settings.UNEXPECTED_ERROR,
        executor=executor,
    )


def _judge(key: str, permission: str, message: Any) -> bool:
    """Return True if a user may send a message. Each question reads the user anew."""
    return DatabaseJudge(get_settings().DATABASE)(key, permission, message)


async def connect(*, executor: Executor | None = None) -> Client:
    """Return a client of the SDK with the plugin, for workers of this project, by the setting ``CLUSTER``.

    ``executor`` is that of ``make_plugin``.
    """
    settings = get_settings().CLUSTER
    return await Client.connect(
        settings.get("ADDRESS", "localhost:7233"),
        namespace=settings.get("NAMESPACE", "default"),
        api_key=settings.get("API_KEY"),
        tls=tls_config(settings),
        plugins=[make_plugin(executor=executor)],
    )


def make_worker(client: Client, queue: str = "default", **options: Any) -> Worker:
    """Return a worker of the SDK that polls one task queue. ``options`` are further options of ``Worker``."""
    return Worker(client, task_queue=queue, **options)
