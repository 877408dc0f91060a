"""Let a timer fire now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, Literal
from uuid import UUID

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django.actions.on_activity import batches
from temporalex_django.actions.steering import Steering
from temporalex_django.db.inserts import notify_on_commit
from temporalex_django.engine.operator_overrides import TIMERS, pending_timers, skip_message_id, skip_timer
from temporalex_django.models import HistoryEvent, Instance, Message


class SkipTimer(Steering[None]):
    """An ordinary ``TimerFired`` with ``by``, of the next activation; of a paused run when it is unpaused.

    ``seq`` is the number of the command that started the timer. In the caller's transaction; locks the chain: see
    ``Steering.held``.
    """

    name: ClassVar[str] = "skip_timer"
    permission: ClassVar[str] = "retry_activity"
    label: ClassVar[Promise] = _("Fire now")
    effect: ClassVar[Promise] = _("The run goes on as if the time were up.")
    done: ClassVar[Promise] = _("The timer fires.")
    destructive: ClassVar[bool] = True
    of: ClassVar[Literal["run", "activity", "timer"]] = "timer"

    @classmethod
    def why_not(cls, run: Instance, *, seq: int | None = None) -> str | None:
        if why := cls.why_not_open(run):
            return why
        alias = run._state.db  # noqa: SLF001 - Django documents it
        events = HistoryEvent.objects.using(alias).filter(run_id=run.pk, kind__in=TIMERS).order_by("seq")
        timers = pending_timers((event.kind, event.data) for event in events)
        if seq is None:
            return None if timers else str(_("no timer is running"))
        if seq not in timers:
            return str(_("no timer of that number is running: it has fired, or was cancelled"))
        asked = Message.objects.using(alias).filter(chain_id=run.chain_id, request_id=skip_message_id(run.pk, seq))
        return str(_("somebody has let it fire already")) if asked.exists() else None

    @classmethod
    def parts(
        cls, runs: Sequence[UUID], selection: Mapping[str, Any], *, alias: str, most: int
    ) -> list[tuple[UUID, int | None]]:
        """Every running timer of the runs: sleeps, and time limits of phases, waits and human tasks."""
        del selection
        found: list[tuple[UUID, int | None]] = []
        for some in batches(runs):
            of_runs: dict[UUID, list[tuple[str, dict[str, Any]]]] = {run: [] for run in some}
            events = HistoryEvent.objects.using(alias).filter(run__in=some, kind__in=TIMERS).order_by("seq")
            for event in events:
                of_runs[event.run_id].append((event.kind, event.data))
            running = ((run, seq) for run, events in of_runs.items() for seq in pending_timers(events))
            found += islice(running, most - len(found))
        return found

    def perform(self) -> None:
        assert self.seq is not None
        with self.storage.transaction():
            run = self.held()
            self.storage.write([skip_timer(run, self.seq, sender=self.by.sender)])
            self.tell(self.target.subject, reason=self.reason, seq=self.seq)
            notify_on_commit(alias=self.storage.alias, queues=[run.queue])
