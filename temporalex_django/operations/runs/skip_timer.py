"""Make a timer fire before it is due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, Literal
from uuid import UUID

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django.backends.routing import backend_of
from temporalex_django.core.history.events import kinds_of
from temporalex_django.core.names import TEMPORAL
from temporalex_django.engine.operator_overrides import absent_timer_text, pending_timers, skip_message_id
from temporalex_django.models import HistoryEvent, Instance, Message
from temporalex_django.operations.runs.operator_action import OperatorRunAction, batches


class SkipTimer(OperatorRunAction[None]):
    """Operation that makes a timer of a run fire in the next activation, as if it were due.

    ``seq`` is the number of the command that started the timer. The history gets an ordinary ``TimerFired``, which
    names the operator in ``by``. The timer of a paused run fires when the run is unpaused. Runs in the caller's
    transaction and locks the chain of the run.
    """

    name: ClassVar[str] = "skip_timer"
    permission: ClassVar[str] = "retry_activity"
    label: ClassVar[Promise] = _("Fire now")
    summary: ClassVar[Promise] = _("Fire a timer now.")
    effect: ClassVar[Promise] = _("The run continues as if the time were up.")
    done: ClassVar[Promise] = _("The timer fires.")
    destructive: ClassVar[bool] = True
    target_kind: ClassVar[Literal["run", "activity", "timer"]] = "timer"

    @classmethod
    def why_not(cls, run: Instance, *, seq: int | None = None) -> str | None:
        if reason := cls.why_not_open(run):
            return reason
        if run.backend == TEMPORAL:
            return None  # the run itself says which timers are running
        alias = run._state.db  # noqa: SLF001 - Django documents it
        events = HistoryEvent.objects.using(alias).filter(run_id=run.pk, kind__in=kinds_of("timer")).order_by("seq")
        # Running timers have no rows of their own; they follow from the events of the history.
        timers = pending_timers((event.kind, event.data) for event in events)
        if seq is None:
            return None if timers else str(_("no timer is running"))
        if seq not in timers:
            return absent_timer_text(timers)
        if _was_fired(run, seq):
            return str(_("somebody has already fired it"))
        return None

    def is_done(self, run: Instance) -> bool:
        assert self.seq is not None
        return _was_fired(run, self.seq)

    @classmethod
    def parts(
        cls, runs: Sequence[UUID], selection: Mapping[str, Any], *, alias: str, limit: int
    ) -> list[tuple[UUID, int | None]]:
        """Return every running timer of the runs, as pairs of a run id and the number of the timer, at most ``limit``.

        Timers are sleeps, and the time limits of phases, waits and human tasks. ``selection`` is ignored: no input
        chooses among timers.
        """
        del selection
        parts: list[tuple[UUID, int | None]] = []
        for batch in batches(runs):
            events_by_run: dict[UUID, list[tuple[str, dict[str, Any]]]] = {run: [] for run in batch}
            events = HistoryEvent.objects.using(alias).filter(run__in=batch, kind__in=kinds_of("timer")).order_by("seq")
            for event in events:
                events_by_run[event.run_id].append((event.kind, event.data))
            running_timers = ((run, seq) for run, events in events_by_run.items() for seq in pending_timers(events))
            parts += islice(running_timers, limit - len(parts))
        return parts

    def perform(self) -> None:
        backend_of(self.target).skip_timer(self)


def _was_fired(run: Instance, seq: int) -> bool:
    """Return True if somebody has fired the timer with that number before it was due."""
    # The message has an id that is derived from the timer, so a second skip finds the first one.
    messages = Message.objects.using(run._state.db)  # noqa: SLF001 - Django documents it
    return messages.filter(chain_id=run.chain_id, request_id=skip_message_id(run.pk, seq)).exists()
