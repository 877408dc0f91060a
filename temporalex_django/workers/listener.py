"""The second connection of a worker on PostgreSQL: for notifications, and for a session lock that shows it lives."""

from __future__ import annotations

import logging
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Any

import psycopg
from django.db import connections

from temporalex_django.core.failures import error_line
from temporalex_django.db.inserts import CHANNEL, NOTIFY
from temporalex_django.db.outbox import OUTBOX_QUEUE
from temporalex_django.engine import policy
from temporalex_django.workers.background_thread import next_pause

log = logging.getLogger("temporalex_django.workers")


def connect(alias: str) -> psycopg.Connection[Any]:
    """Open a plain connection to the database of the alias, in autocommit, of which Django does not know."""
    parameters = {
        k: v for k, v in connections[alias].get_connection_params().items() if k not in {"pool", "cursor_factory"}
    }
    parameters |= {"keepalives": 1, "keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3}
    connection = psycopg.connect(**parameters)
    connection.autocommit = True
    return connection


class Listener:
    """A thread that calls ``wake`` when a notification for one of ``queues`` comes, or ``wake_outbox`` for the outbox.

    It holds an advisory lock on the worker's present epoch, which ``epoch()`` returns, for its session. ``locked`` is
    True while it holds the lock. When the connection breaks, it opens another one and takes the lock again. The lease
    is still valid then, unless the heartbeat is late.
    """

    def __init__(
        self,
        alias: str,
        queues: Collection[str],
        *,
        epoch: Callable[[], int],
        wake: Callable[[], None],
        wake_outbox: Callable[[], None] = lambda: None,
    ) -> None:
        self.alias = alias
        self.queues = set(queues)
        self.locked = False
        self._epoch = epoch
        self._wake = wake
        self._wake_outbox = wake_outbox
        self._stop = threading.Event()
        self._ready = threading.Event()
        # A byte here interrupts the thread while it waits for its connection.
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._wake_sender.setblocking(False)
        self._notifications: deque[tuple[str, str]] = deque(maxlen=1000)
        self._thread = threading.Thread(target=self._run, name="temporalex-listener", daemon=True)

    def start(self) -> None:
        """Start the thread; return when the lock is held or the first try failed, after ten seconds at most."""
        self._thread.start()
        self._ready.wait(policy.STOP_SECONDS)

    def stop(self) -> None:
        self._stop.set()
        self._interrupt_wait()
        self._thread.join(5)
        self._wake_sender.close()
        self._wake_receiver.close()

    def send_notifications(self, notifications: Iterable[tuple[str, str]]) -> None:
        """Let the listening thread send notifications, given as pairs of channel and payload.

        Each NOTIFY is a commit, for which a turn need not wait.
        """
        self._notifications.extend(notifications)
        if self._notifications:
            self._interrupt_wait()

    def _interrupt_wait(self) -> None:
        with suppress(BlockingIOError):  # enough bytes are waiting to wake it
            self._wake_sender.send(b"x")

    def _run(self) -> None:
        delay = 0.0
        while not self._stop.is_set():
            try:
                with connect(self.alias) as connection:
                    delay = 0.0
                    self._listen(connection)
            except psycopg.Error as exc:
                log.warning("lost the connection that listens for notifications, reconnecting: %s", error_line(exc))
            finally:
                self.locked = False
                self._ready.set()
            delay = next_pause(delay)
            self._stop.wait(delay)

    def _listen(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute(f"listen {CHANNEL}")
        locked_epoch: int | None = None
        while not self._stop.is_set():
            if locked_epoch != self._epoch():
                locked_epoch = self._epoch()
                connection.execute("select pg_advisory_unlock_all()")
                row = connection.execute("select pg_try_advisory_lock(%s::int8)", [locked_epoch]).fetchone()
                self.locked = bool(row and row[0])
                self._ready.set()
                self._wake()  # a notification may have come while nobody listened
            select.select([connection.fileno(), self._wake_receiver.fileno()], [], [], 0.5)
            with suppress(BlockingIOError):
                self._wake_receiver.recv(4096)
            while self._notifications:
                connection.execute(NOTIFY, self._notifications.popleft())
            for notice in connection.notifies(timeout=0):
                notified = notice.payload.split(",")
                if OUTBOX_QUEUE in notified:
                    self._wake_outbox()
                if not notice.payload or not self.queues.isdisjoint(notified):
                    self._wake()
