"""Ask a run to cancel."""

from __future__ import annotations

from typing import ClassVar

from temporalex_django.actions.base import CODE, Action, Actor
from temporalex_django.actions.targets import Target
from temporalex_django.runtime.inserting import insert_message, ring_on_commit


class Cancel(Action[None]):
    """One INSERT into the inbox, as with a signal; the workflow decides what it does about it, a second request is dropped.

    Raises ``WorkflowClosed``.
    """

    name: ClassVar[str] = "cancel"
    permission: ClassVar[str] = "cancel_instance"

    def __init__(self, target: Target, *, reason: str = "", by: Actor = CODE) -> None:
        super().__init__(by=by)
        self.target = target
        self.reason = reason

    def perform(self) -> None:
        target = self.target
        target.require_open("cancel request")
        with self.together():
            insert_message(target.chain_id, kind="cancel", name="", body={"reason": self.reason}, storage=self.storage)
            self.tell(target.subject, reason=self.reason)
        ring_on_commit(alias=self.storage.alias, queues=[target.queue])
