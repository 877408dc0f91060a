"""What primitives and processes may use of the run that they are in; nobody outside of the executor assigns to it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from temporalex_django.core.approvals import Approvals
    from temporalex_django.core.cancellation import Cancellation
    from temporalex_django.core.conditions import Conditions
    from temporalex_django.core.dispatcher import Dispatcher
    from temporalex_django.core.human_tasks import HumanTasks
    from temporalex_django.core.journal import Journal
    from temporalex_django.core.patches import Patches
    from temporalex_django.core.pending_commands import PendingCommands
    from temporalex_django.core.process import RequestJudge
    from temporalex_django.core.run_context import RunContext
    from temporalex_django.core.scheduler import Scheduler


class WorkflowRuntime(Protocol):
    """The executor, as workflow code may see it."""

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
        """What the run asks people."""

    @property
    def approvals(self) -> Approvals:
        """What plain code asks people by."""

    @property
    def rng(self) -> random.Random:
        """The generator of the run."""

    @property
    def is_suspect(self) -> bool:
        """Whether the determinism guard watches this run closely (Python 3.11)."""

    def attach(self, request_judge: RequestJudge) -> None:
        """From here on ``request_judge`` judges requests."""

    def publish(self, value: Any) -> None:
        """Show ``value`` (JSON data) to queries."""

    def set_search_attributes(self, values: Any) -> None:
        """Change those by which the run is found. Raises ``PayloadError``."""

    def track_coroutine(self, coroutine: Any) -> None:
        """A coroutine was given as a branch: it is closed with the run if it never starts."""

    def untrack_coroutine(self, coroutine: Any) -> None:
        """It has ended."""

    def mark_suspect(self) -> None:
        """Suspect code is about to run: see ``is_suspect``."""
