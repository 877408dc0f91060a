"""A log of the Django signals about runs and graphs.

    handler = LogHandler(levels={"step_started": logging.INFO}, events=["step_started", "workflow_failed"])
    handler.attach()          # for example in AppConfig.ready

Each signal is one line: its name, and the ids and names in it. Results, states, reasons and messages are payloads, so
they are never logged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from django.dispatch import Signal

from temporalex_django import signals

#: Levels of the signals that are not logged at INFO.
LEVELS: Mapping[str, int] = {
    "engine_advanced": logging.DEBUG,
    "runner_initialized": logging.DEBUG,
    "state_published": logging.DEBUG,
    "step_failed": logging.ERROR,
    "workflow_failed": logging.ERROR,
    "instance_failed": logging.ERROR,
    "instance_blocked": logging.ERROR,
    "activity_failed": logging.WARNING,
}
#: Facts that may contain payloads of users.
_PAYLOADS = frozenset({"result", "failure", "state", "reason", "message", "error"})
# A list of what is logged, not of what is left out: a new fact stays out of the log until it is added here.
_LOGGED_FACTS = frozenset({
    "workflow", "workflow_id", "run_id", "workflow_version", "version", "status", "step", "event", "events", "type", "duration",
    "wait_duration", "source", "targets", "count", "fan_out", "concurrent", "active_count", "completed_count", "recovered", "kind",
    "name", "update_id", "activity", "seq", "attempt", "attempts", "code", "action",
})  # fmt: skip


class LogHandler:
    """Writes a log entry for each Django signal of this package, from ``attach`` to ``detach``.

    ``events`` are the names of the signals, by default all. ``levels`` maps names of signals to log levels, which
    replace the ones in ``LEVELS``. ``logger`` is the name of the logger. Raises ``ValueError`` for a name that is not a
    signal.
    """

    def __init__(
        self,
        *,
        levels: Mapping[str, int] | None = None,
        events: Iterable[str] | None = None,
        logger: str = "temporalex_django.telemetry",
    ) -> None:
        self.events = list(signals.ALL if events is None else events)
        self.levels = {**LEVELS, **(levels or {})}
        if unknown := sorted({*self.events, *(levels or {})} - signals.ALL.keys()):
            raise ValueError(
                f"there is no event {', '.join(unknown)} (the events are: {', '.join(sorted(signals.ALL))})"
            )
        self._logger = logging.getLogger(logger)
        self._attached: dict[str, Any] = {}

    def attach(self) -> None:
        """Start to log, by connecting to the signals. Raises ``RuntimeError`` if the handler is attached already."""
        if self._attached:
            raise RuntimeError("the log handler is already attached: detach it first, or create another one")
        for name in self.events:
            self._attached[name] = self._receiver(name)
            # Nothing else refers to the receiver; a weak reference would disconnect it at the next garbage collection.
            signals.ALL[name].connect(self._attached[name], weak=False)

    def detach(self) -> None:
        """Stop logging, by disconnecting from the signals. Raises ``RuntimeError`` if the handler is not attached."""
        if not self._attached:
            raise RuntimeError("the log handler is not attached")
        for name, receiver in self._attached.items():
            signals.ALL[name].disconnect(receiver)
        self._attached = {}

    def _receiver(self, name: str) -> Any:
        level = self.levels.get(name, logging.INFO)

        def receive(signal: Signal, sender: Any, **facts: Any) -> None:
            # Signals are frequent; a level that is off must not cost the formatting.
            if not self._logger.isEnabledFor(level):
                return
            logged_facts = {key: value for key, value in facts.items() if key in _LOGGED_FACTS - _PAYLOADS}
            text = " ".join(f"{key}={value}" for key, value in logged_facts.items())
            self._logger.log(level, "%s %s", name, text, extra={"event": name, "facts": logged_facts})

        return receive
