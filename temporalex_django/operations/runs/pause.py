"""Pause a run."""

from __future__ import annotations

from typing import ClassVar

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django.backends.routing import backend_of
from temporalex_django.models import Instance
from temporalex_django.operations.runs.operator_action import OperatorRunAction, Text


class Pause(OperatorRunAction[None]):
    """Operation that pauses a run: none of its code runs until it is unpaused.

    Signals, cancel requests, results, timers and timeouts of the run wait until then. Updates and resumes are refused
    with ``RunPaused``, and queries are answered. Activities that the run has scheduled continue, with their retries. A
    paused run can be terminated. If the chain gets a next run, that run is paused too.

    Runs in the caller's transaction and locks the chain; see ``OperatorRunAction.lock_run``.
    """

    name: ClassVar[str] = "pause"
    permission: ClassVar[str] = "pause_instance"
    label: ClassVar[Promise] = _("Pause")
    summary: ClassVar[Promise] = _("Pause a run.")
    effect: ClassVar[Promise] = _(
        "The run stops where it is. Messages, timers and results wait until it is unpaused; updates "
        "are refused. Running activities continue."
    )
    done: ClassVar[Promise] = _("The run is paused.")

    @classmethod
    def why_not(cls, run: Instance, *, seq: int | None = None) -> str | None:
        if reason := super().why_not(run, seq=seq):
            return reason
        if run.paused is None:
            return None
        return str(_("the run is already paused"))

    def is_done(self, run: Instance) -> bool:
        return run.is_open and run.paused is not None

    def perform(self) -> None:
        backend_of(self.target).pause(self)


class Unpause(OperatorRunAction[None]):
    """Operation that lets a paused run continue: it is due at once and receives what has arrived during the pause.

    A run that is blocked because workers died while running it stays blocked; use ``TryAgain`` for it. Runs in the
    caller's transaction and locks the chain; see ``OperatorRunAction.lock_run``.
    """

    name: ClassVar[str] = "unpause"
    permission: ClassVar[str] = "pause_instance"
    label: ClassVar[Promise] = _("Unpause")
    summary: ClassVar[Promise] = _("Unpause a run.")
    effect: ClassVar[Promise] = _(
        "The run continues at once, with the messages, timers and results that waited. A run that is "
        "blocked because its workers crashed stays blocked."
    )
    done: ClassVar[Promise] = _("The run continues.")
    _stays_blocked = False

    @property
    def done_message(self) -> Text:
        if self._stays_blocked:
            return _(
                "The run is unpaused, but it stays blocked because its workers crashed. Try it again once "
                "its code is fixed."
            )
        return self.done

    @classmethod
    def why_not(cls, run: Instance, *, seq: int | None = None) -> str | None:
        if reason := super().why_not(run, seq=seq):
            return reason
        if run.paused is None:
            return str(_("the run is not paused"))
        return None

    def is_done(self, run: Instance) -> bool:
        return run.is_open and run.paused is None

    def perform(self) -> None:
        self._stays_blocked = backend_of(self.target).unpause(self)
