"""Let a paused run go on."""

from __future__ import annotations

from typing import ClassVar

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django.actions.steering import Steering
from temporalex_django.db.starts import ring_on_commit
from temporalex_django.engine.pausing import unpaused
from temporalex_django.models import Instance


class Unpause(Steering[None]):
    """The run is due at once, and finds what came while it was paused.

    In the caller's transaction. Locks the chain: see ``Steering.held``.
    """

    name: ClassVar[str] = "unpause"
    permission: ClassVar[str] = "pause_instance"
    label: ClassVar[Promise] = _("Unpause")
    effect: ClassVar[Promise] = _("The run goes on at once, with the messages, timers and results that waited.")
    done: ClassVar[Promise] = _("The run goes on.")

    @classmethod
    def why_not(cls, run: Instance, *, seq: int | None = None) -> str | None:
        if why := super().why_not(run, seq=seq):
            return why
        return str(_("the run is not paused")) if run.paused is None else None

    def perform(self) -> None:
        with self.storage.transaction():
            run = self.held()
            self.storage.write([unpaused(run, now=self.storage.now())])
            self.tell(self.target.subject, reason=self.reason)
            ring_on_commit(alias=self.storage.alias, queues=[run.queue])
