"""The type of a worker loop, as its maintenance and its health report use it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from temporalex_django.engine.contracts.storage import WorkerStorage
from temporalex_django.engine.turn import WorkflowEngine
from temporalex_django.liveness.leases import WorkerRow
from temporalex_django.workers.admission import Admission
from temporalex_django.workers.cluster import ClusterPoller
from temporalex_django.workers.polling.poll_modes import Poller
from temporalex_django.workers.pool import Pool
from temporalex_django.workers.turn_handover import TurnHandover

if TYPE_CHECKING:
    from temporalex_django.workers.listener import Listener  # needs psycopg


class MaintainedLoop(Protocol):
    """The attributes of a worker loop that its maintenance thread and its health report use.

    Maintenance sets ``listener`` and parts of ``poller``, and reads the others.
    """

    alias: str
    queues: list[str]
    row: WorkerRow
    engine: WorkflowEngine
    pool: Pool
    admission: Admission
    handover: TurnHandover
    poller: Poller
    cluster: ClusterPoller | None
    wake: threading.Event
    listener: Listener | None
    #: Runs that were advanced, and polls that are over.
    turn_count: int
    poll_count: int
    #: When the last poll began, and when the process has to be gone after a stop (0.0: it was not asked to).
    polled_at: float
    stop_deadline: float
    #: The maintenance thread calls it several times a second.
    on_heartbeat: Callable[[], None]

    @property
    def storage(self) -> WorkerStorage: ...
