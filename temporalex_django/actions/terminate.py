"""Close a run at once, from outside."""

from __future__ import annotations

from typing import ClassVar

from temporalex_django.actions import inline
from temporalex_django.actions.base import CODE, Actor
from temporalex_django.actions.targets import ActionOnRun, RunTarget
from temporalex_django.conf import get_settings
from temporalex_django.core.payloads import text
from temporalex_django.engine.endings import ENDINGS
from temporalex_django.engine.storage import RunState
from temporalex_django.errors import UpdateTimeout, WorkflowClosed
from temporalex_django.models import Chain


class Terminate(ActionOnRun[None]):
    """Close the run in the caller's transaction; none of its code runs any more, its activities start no more.

    Locks the chain, waiting at most ``UPDATE_LOCK_WAIT``: then ``UpdateTimeout`` with the code ``busy``. Raises
    ``WorkflowClosed`` for a run that is closed. Always audited.
    """

    name: ClassVar[str] = "terminate"
    permission: ClassVar[str] = "terminate_instance"
    forced: ClassVar[bool] = True
    status: ClassVar[str] = "terminated"

    def __init__(self, target: RunTarget, *, reason: str = "", by: Actor = CODE) -> None:
        super().__init__(by=by)
        self.target = target
        self.reason = text(reason, what="the reason")

    def perform(self) -> None:
        target = self.target
        target.require_open(self.name)
        inline.refuse_own_run(target, f"{self.name}()", storage=self.storage)
        with self.storage.transaction():
            run = self._locked()
            if run.closed:
                raise WorkflowClosed(f"{target.workflow} {target.workflow_id} is closed: {self.name} refused")
            facts = self.storage.facts([run.run_id])[run.run_id]
            write = ENDINGS[self.status](run, reason=self.reason, now=self.storage.now(), facts=facts)
            self.storage.write([write])
            self.tell(target.subject, reason=self.reason)
            inline.closed_from_outside(write, target, storage=self.storage)

    def _locked(self) -> RunState:
        """The chain under our lock, also one whose workers died of it (which a claim keeps for workers)."""
        target, wait = self.target, get_settings().UPDATE_LOCK_WAIT
        chains = [target.chain_id]
        found = self.storage.claim(limit=1, queues=(), chains=chains)
        if not found and self.storage.lock(target.chain_id, wait=wait):
            Chain.objects.using(self.storage.alias).filter(pk=target.chain_id, crashes__gt=0).update(crashes=0)
            found = self.storage.claim(limit=1, queues=(), chains=chains)
        if not found:
            raise UpdateTimeout(
                f"{target.workflow} {target.workflow_id} is busy: its lock was not free within {wait:g} s, try again",
                code="busy",
            )
        return found[0]
