"""Runs on the server under a virtual clock, which the host of the tests moves by a signal that nobody else may send.

Timers and activities exist on the server, with limits that never pass in a test. The host lets timers fire, and ends
activities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from temporalio import activity as sdk
from temporalio.bridge.proto.workflow_activation import RemoveFromCache
from temporalio.common import RawValue

from temporalex_django.core.executor import VisibleState
from temporalex_django.core.history.activation import Completion
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.core.human_tasks import HumanTaskState
from temporalex_django.errors import NondeterminismError
from temporalex_django.temporal.names import REST_TIMERS
from temporalex_django.temporal.plugin import TemporalexPlugin
from temporalex_django.temporal.run import TemporalRun
from temporalex_django.temporal.start_facts import StartFacts

_NONDETERMINISM = RemoveFromCache.EvictionReason.NONDETERMINISM
CLOCK = "__tx_clock"
#: Added to all timers, so that none fires by itself.
_NEVER = timedelta(days=20)
#: After a task has failed, the server waits for this time before it tries the task again.
TASK_TIMEOUT = timedelta(seconds=2)


@dataclass(kw_only=True)
class RunReport:
    """A run after an activation.

    ``signals`` counts those of the server so far, and ``rest`` those of a long inbox. ``externals`` are the numbers of
    messages to other runs that wait for an answer. ``completion`` is None if nothing was delivered.
    """

    workflow_id: str
    run_id: str
    run: TemporalRun
    now: datetime
    events: list[HistoryEvent]
    visible: VisibleState | None
    human_tasks: list[HumanTaskState]
    next_timer: datetime | None
    signals: int
    cancelled: bool
    externals: frozenset[int]
    children: frozenset[int]
    rest: int
    completion: Completion | None = None
    error: Exception | None = None
    is_unexpected: bool = False


class VirtualRun(TemporalRun):
    """A run whose time is the clock of the host. It reports each activation."""

    def __init__(
        self,
        options: Any,
        info: Any,
        report: Callable[[RunReport], None],
        class_of: Any,
        dies: Callable[[], bool] | None,
    ) -> None:
        super().__init__(options, info)
        self._report = report
        self.class_of = class_of
        self._dies = dies
        self._clock: datetime | None = None
        self._signals = 0
        self._cancelled = False
        self._completion: Completion | None = None
        self._error: Exception | None = None

    def activate(self, act: Any) -> Any:
        self._completion = self._error = None
        is_eviction = any(job.HasField("remove_from_cache") for job in act.jobs)
        self._signals += sum(job.HasField("signal_workflow") for job in act.jobs)
        self._cancelled |= any(job.HasField("cancel_workflow") for job in act.jobs)
        written = super().activate(act)
        if self._dies is not None and not (is_eviction or act.is_replaying) and self._dies():
            return written  # nobody hears of it
        for command in written.successful.commands:
            if command.HasField("start_timer") and command.start_timer.seq < REST_TIMERS:
                duration = command.start_timer.start_to_fire_timeout
                duration.FromTimedelta(duration.ToTimedelta() + _NEVER)
            elif command.HasField("start_child_workflow_execution"):
                command.start_child_workflow_execution.workflow_task_timeout.FromTimedelta(TASK_TIMEOUT)
            elif command.HasField("schedule_activity"):
                activity = command.schedule_activity
                for name in ("schedule_to_start_timeout", "schedule_to_close_timeout", "heartbeat_timeout"):
                    activity.ClearField(name)
                activity.start_to_close_timeout.FromTimedelta(_NEVER)
                activity.retry_policy.maximum_attempts = 1
        for job in act.jobs:
            # The SDK compares commands itself, and asks only to drop the run.
            if job.HasField("remove_from_cache") and job.remove_from_cache.reason == _NONDETERMINISM:
                self._error = NondeterminismError(job.remove_from_cache.message)
        if self._error is not None or not (is_eviction or act.is_replaying):
            self._report(self._make_report())
        return written

    def find_class(self, name: str, version: int | None) -> Any:
        return self.class_of(self._info.workflow_id, name, version)

    def report_failure(self, error: Exception) -> None:
        self._error = error

    def now(self, act: Any, inbound: Any) -> datetime:
        del act
        if self._clock is None:
            self._clock = datetime.fromisoformat(self._facts["now"])
        clock_signals = [job for job in inbound.messages if job.attributes.get("name") == CLOCK]
        for job in clock_signals:
            inbound.messages.remove(job)
            self._clock = datetime.fromisoformat(job.attributes["payload"]["now"])
            inbound.skips += [{"seq": number} for number in job.attributes["payload"]["fire"]]
        return self._clock

    def add_facts(self, facts: StartFacts, search_attributes: Any, *, child: bool) -> StartFacts:
        return {**super().add_facts(facts, search_attributes, child=child), "now": self._clock.isoformat()}

    def _activate(self, activation: Any) -> Completion:
        self._completion = super()._activate(activation)
        return self._completion

    def _make_report(self) -> RunReport:
        executor = getattr(self, "executor", None)
        pending = None if executor is None else executor.pending_commands
        begun = executor is not None and self._error is None
        external = {
            number
            for number, attributes in self._called.items()
            if "parent_close" not in attributes and "activity" not in attributes
        }
        return RunReport(
            workflow_id=self._info.workflow_id,
            run_id=self._info.run_id,
            run=self,
            now=self._clock,
            events=[*self.history.events] if executor is not None else [],
            visible=executor.visible_state() if begun else None,
            human_tasks=list(self.history.human_tasks.values()) if begun else [],
            next_timer=executor.next_timer() if begun else None,
            signals=self._signals,
            cancelled=self._cancelled,
            externals=frozenset(external & pending._resolvers.keys()) if begun else frozenset(),
            children=frozenset(pending.children) if begun else frozenset(),
            rest=len(self._inbox.signals) if begun and executor.closed is None else 0,
            completion=self._completion,
            error=self._error,
            is_unexpected=executor is not None and executor.run_context.blocking_error is not None,
        )


class VirtualPlugin(TemporalexPlugin):
    """The plugin of the host. ``report`` takes each activation, and ``started`` each activity: run id and number.

    ``dies()`` is called at the end of each activation. If it returns True, the worker has died and sends no commands.
    """

    def __init__(
        self,
        *,
        report: Callable[[RunReport], None],
        started: Callable[[str, int], None],
        class_of: Callable[[str, str, int | None], Any],
        dies: Callable[[], bool] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._report, self._class_of, self._dies = report, class_of, dies

        @sdk.defn(dynamic=True)
        async def any_activity(args: Sequence[RawValue]) -> RawValue:
            del args
            info = sdk.info()
            started(info.workflow_run_id or "", int(info.activity_id))
            sdk.raise_complete_async()

        self.activities = [any_activity]

    def new_run(self, info: Any) -> TemporalRun:
        return VirtualRun(self.options, info, self._report, self._class_of, self._dies)
