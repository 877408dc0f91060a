"""Hints after a commit: for workers of other queues, and for callers who wait. What goes wrong here is nobody's business."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from django.db import DatabaseError, connections

from temporalex_django.conf import get_settings
from temporalex_django.runtime.inserting import ring
from temporalex_django.runtime.turn import TurnReport

#: Whoever waits for a result or an outcome listens here; the payload names chains, by the hex of their ids.
DONE_CHANNEL = "temporalex_done"
_PAYLOAD_IDS = 200


def hint(report: TurnReport, *, alias: str, own_queues: Iterable[str] = ()) -> None:
    """Tell of a committed turn: which queues have new activities, which chains have something that a caller may wait for."""
    queues = {task.queue for write in report.writes for task in write.tasks}.difference(own_queues)
    if queues:
        ring(alias=alias, queues=queues)
    tell_done(
        [w.run.chain_id for w in report.writes if w.settled or w.outcomes or w.closing is not None or w.run.closed], alias=alias
    )


def tell_done(chains: list[UUID], *, alias: str) -> None:
    """Wake callers who wait for these chains. Nothing on SQLite, in a transaction, or behind a pooler."""
    connection = connections[alias]
    if not chains or connection.vendor != "postgresql" or connection.in_atomic_block or get_settings().POOLED:
        return
    try:
        with connection.cursor() as cursor:
            for i in range(0, len(chains), _PAYLOAD_IDS):
                payload = ",".join(chain.hex for chain in chains[i : i + _PAYLOAD_IDS])
                cursor.execute("select pg_notify(%s, %s)", [DONE_CHANNEL, payload])
    except DatabaseError:
        return
