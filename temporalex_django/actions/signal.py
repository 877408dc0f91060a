"""Send a signal."""

from __future__ import annotations

from typing import Any, ClassVar

from temporalex_django.actions.base import CODE, Action, Actor, plain
from temporalex_django.actions.targets import Target
from temporalex_django.core.names import check_name
from temporalex_django.runtime.inserting import insert_message, ring_on_commit


class Signal(Action[None]):
    """One INSERT into the inbox of the chain, on the caller's connection: it vanishes with his transaction. Locks nothing.

    Raises ``WorkflowClosed`` when the run was closed when ``target`` was read, and ``PayloadError``. A run that closes before it
    reads the signal leaves it settled as undelivered.
    """

    name: ClassVar[str] = "signal"
    permission: ClassVar[str] = "signal_instance"
    judged: ClassVar[bool] = True

    def __init__(self, target: Target, *, signal: str, payload: Any = None, by: Actor = CODE) -> None:
        super().__init__(by=by)
        self.target = target
        self.signal = signal
        self.payload = payload

    def perform(self) -> None:
        target, name = self.target, check_name(self.signal, what="signal")
        body = plain(self.payload, what=f"the payload of signal {name!r}")
        target.require_open(f"signal {name!r}")
        with self.together():
            insert_message(
                target.chain_id, kind="signal", name=name, body=body, sender=self.by.sender, storage=self.storage
            )
            self.tell(target.subject, signal=name)
        ring_on_commit(alias=self.storage.alias, queues=[target.queue])
