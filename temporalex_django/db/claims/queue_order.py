"""The order in which one storage looks for work in its queues."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from temporalex_django.conf import weight_of
from temporalex_django.db.session import StorageSession
from temporalex_django.engine.scheduling.queue_rotation import QueueRotation


class QueueOrder:
    """A rotation of queues for each kind of work, by the weights of the settings."""

    __slots__ = ("_rotations", "_session")

    def __init__(self, session: StorageSession) -> None:
        self._session = session
        self._rotations: defaultdict[str, QueueRotation] = defaultdict(QueueRotation)

    def queue_order(self, queues: Sequence[str], kind: str) -> Sequence[str]:
        """Return the queues in the order in which to look for work of this ``kind``.

        The first place rotates, so that no queue starves the others. Under a virtual clock the order stays.
        """
        if self._session.clock is None:
            return self._rotations[kind].order(queues, weight_of)
        return queues
