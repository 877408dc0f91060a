"""django-q2 as the host of workers: a broker that runs them beside its queue.

    Q_CLUSTER = {..., "broker_class": "temporalex_django.workers.q2.Broker"}

``manage.py qcluster`` then runs the project's own tasks as before, from the broker that the rest of ``Q_CLUSTER``
configures. Beside them it runs processes that advance workflows. Turns never go through django-q2's queue.
"""

from __future__ import annotations

import logging
import os
import time
from multiprocessing import util
from typing import Any

from django.db import connections
from django_q.brokers import Broker as BaseBroker
from django_q.conf import Conf

from temporalex_django.conf import get_settings
from temporalex_django.core.failures import error_line
from temporalex_django.engine import policy
from temporalex_django.workers.q2.worker_processes import WorkerProcesses

log = logging.getLogger("temporalex_django.workers")


def worker_count() -> int:
    """Return the number of worker processes that a cluster starts."""
    return get_settings().Q2_PUMPS or max(1, int(Conf.WORKERS) // 2)


class WorkerHost:
    """A mixin for a broker of your own: ``class Broker(WorkerHost, MyBroker)``.

    ``dequeue`` runs in the cluster's pusher process, which becomes the parent of the workers. When the cluster stops,
    it waits for its pusher, and the pusher waits for the workers.
    """

    _owner: int = 0

    def dequeue(self) -> Any:
        """Return the next task of the project. The first call in the cluster's pusher starts the workers."""
        # The cluster forks with brokers that exist already, so the process id shows whether this one has its own
        # workers.
        if self._owner != os.getpid():
            self._owner = os.getpid()
            hosted = WorkerProcesses(worker_count())
            hosted.start()
            util.Finalize(None, hosted.stop, exitpriority=10)
        try:
            return super().dequeue()  # type: ignore[misc] # the broker that this is mixed into
        except Exception as exc:  # noqa: BLE001 - see below
            # Stock django-q2 would replace the pusher, which ends its workers. A broken queue must not interrupt
            # workflows.
            log.error("the broker of this cluster's tasks does not answer, retrying: %s", error_line(exc))
            connections.close_all()
            time.sleep(policy.Q2_RETRY_SECONDS)
            return None


class _EmptyBroker(BaseBroker):  # type: ignore[misc] # django-q2 is not typed
    """The broker of a django-q2 cluster that has no queue of its own, and only runs workers."""

    def dequeue(self) -> None:
        time.sleep(Conf.POLL)

    def queue_size(self) -> int:
        return 0

    def lock_size(self) -> int:
        return 0

    def ping(self) -> bool:
        return True

    def info(self) -> str:
        return "no queue"


def _project_broker() -> type[Any]:
    """Return the broker class that ``Q_CLUSTER`` configures when its ``broker_class`` is left out.

    It chooses as ``django_q.brokers.get_broker`` does.
    """
    if Conf.IRON_MQ:
        from django_q.brokers.ironmq import IronMQBroker as Chosen  # noqa: PLC0415 - each needs a library of its own
    elif isinstance(Conf.SQS, dict):
        from django_q.brokers.aws_sqs import Sqs as Chosen  # noqa: PLC0415 - each needs a library of its own
    elif Conf.ORM:
        from django_q.brokers.orm import ORM as Chosen  # noqa: PLC0415, N811 - it needs the apps
    elif Conf.MONGO:
        from django_q.brokers.mongo import Mongo as Chosen  # noqa: PLC0415 - as above
    elif Conf.REDIS or Conf.DJANGO_REDIS:
        from django_q.brokers.redis_broker import Redis as Chosen  # noqa: PLC0415 - as above
    else:
        Chosen = _EmptyBroker  # noqa: N806 - a class
    return Chosen  # type: ignore[no-any-return]


class Broker(WorkerHost, _project_broker()):  # type: ignore[misc] # the base is chosen by the settings
    """The project's broker, which also starts workers in the cluster's pusher."""
