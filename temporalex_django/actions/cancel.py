"""Ask a run to cancel."""

from __future__ import annotations

from typing import ClassVar

from temporalex_django.actions.base import CODE, Actor
from temporalex_django.actions.targets import ActionOnRun, RunTarget
from temporalex_django.actions.terminate import Terminate
from temporalex_django.core.payloads import text
from temporalex_django.db.starts import insert_message, ring_on_commit


class CancelAtOnce(Terminate):
    """Close a graph as cancelled, in the caller's transaction; otherwise as ``Terminate``."""

    name: ClassVar[str] = "cancel"
    permission: ClassVar[str] = "cancel_instance"
    forced: ClassVar[bool] = False
    status: ClassVar[str] = "cancelled"


def cancel(target: RunTarget, *, reason: str = "", by: Actor = CODE) -> None:
    """Cancel a run in the way of its class; one whose class this process lacks is asked to.

    Raises ``WorkflowClosed``.
    """
    at_once = target.code is not None and target.code.cancels_at_once
    (CancelAtOnce if at_once else Cancel)(target, reason=reason, by=by).execute()


class Cancel(ActionOnRun[None]):
    """One INSERT into the inbox, as with a signal.

    The workflow decides what it does about it, a second request is dropped.

    Raises ``WorkflowClosed``.
    """

    name: ClassVar[str] = "cancel"
    permission: ClassVar[str] = "cancel_instance"

    def __init__(self, target: RunTarget, *, reason: str = "", by: Actor = CODE) -> None:
        super().__init__(by=by)
        self.target = target
        self.reason = text(reason, what="the reason")

    def perform(self) -> None:
        target = self.target
        target.require_open("cancel request")
        with self.together():
            insert_message(target.chain_id, kind="cancel", name="", body={"reason": self.reason}, storage=self.storage)
            self.tell(target.subject, reason=self.reason)
        ring_on_commit(alias=self.storage.alias, queues=[target.queue])
