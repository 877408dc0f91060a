"""``WorkflowRuntime``: the part of a run in memory that primitives and processes may use.

Only the executor sets its attributes. Its parts have no need of this module, but for the functions that get a runtime.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Protocol

# For types only: the parts that import this module are among them.
if TYPE_CHECKING:
    from temporalex_django.core.human_tasks import Approvals, HumanTasks
    from temporalex_django.core.messages.dispatcher import Dispatcher
    from temporalex_django.core.pending_commands import Journal, PendingCommands
    from temporalex_django.core.process import RequestJudge
    from temporalex_django.core.run_context import Patches, RunContext
    from temporalex_django.core.units.conditions import Conditions
    from temporalex_django.core.units.scheduler import Cancellation, Scheduler


class WorkflowRuntime(Protocol):
    """The interface of the executor for the primitives of workflow code and for processes."""

    @property
    def run_context(self) -> RunContext: ...

    @property
    def scheduler(self) -> Scheduler: ...

    @property
    def journal(self) -> Journal: ...

    @property
    def pending_commands(self) -> PendingCommands: ...

    @property
    def dispatcher(self) -> Dispatcher: ...

    @property
    def conditions(self) -> Conditions: ...

    @property
    def cancellation(self) -> Cancellation: ...

    @property
    def patches(self) -> Patches: ...

    @property
    def human_tasks(self) -> HumanTasks:
        """The human tasks of the run."""

    @property
    def approvals(self) -> Approvals:
        """The approvals that the run asks for with ``api.approval``."""

    @property
    def rng(self) -> random.Random:
        """The random generator of the run."""

    @property
    def is_suspect(self) -> bool:
        """True if the determinism guard watches this run closely (Python 3.11)."""

    def attach(self, request_judge: RequestJudge) -> None:
        """Let ``request_judge`` judge requests from now on: events for declared steps, and decisions of people."""

    @property
    def published(self) -> Any:
        """The published state of the run; None before the first one."""

    def publish(self, value: Any) -> None:
        """Publish ``value`` (JSON data) for queries."""

    def set_search_attributes(self, values: Any) -> None:
        """Change the search attributes that ``values`` names, and remove those whose value is None.

        Raises ``PayloadError``.
        """

    def track_coroutine(self, coroutine: Any) -> None:
        """Remember a coroutine that was passed as a branch, so that eviction discards it if it never starts."""

    def untrack_coroutine(self, coroutine: Any) -> None:
        """Forget a coroutine that has ended."""

    def mark_suspect(self) -> None:
        """Let the determinism guard watch the calls of this run from now on, on Python 3.11, where it is slow."""
