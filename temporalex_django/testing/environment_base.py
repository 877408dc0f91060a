"""What an environment stands on: where runs live, which the two kinds say, and at which points a worker dies."""

from __future__ import annotations

import asyncio
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import Any, Protocol
from uuid import UUID

from temporalex_django.authoring.authorization import Person, sender_of
from temporalex_django.authoring.backend import FailedMessage
from temporalex_django.authoring.human_tasks import OpenHumanTask
from temporalex_django.authoring.redaction import Redactor
from temporalex_django.authoring.start_api import Startable
from temporalex_django.authoring.workflow import Workflow, class_for_run, newest_class
from temporalex_django.core.history.commands import Command
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.core.senders import Sender
from temporalex_django.engine.refusals import RefusedRedelivery, RefusedSignal
from temporalex_django.engine.report import TurnReport
from temporalex_django.engine.run_start import RunStart
from temporalex_django.engine.storage import Outcome, RunRecord, TaskResult, TaskState
from temporalex_django.engine.turn import WorkflowEngine
from temporalex_django.graph.durable.projection import Projections
from temporalex_django.testing import plugin_hooks

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)

#: Messages: who may send one the handler says, and the run judges.
JUDGED_MESSAGES = frozenset({"signal", "update", "resume"})
#: Where ``crash_at`` lets a worker die.
CRASH_POINTS = ("before_turn", "after_turn", "before_activity", "after_activity", "after_result")


class Crash(BaseException):
    """A worker dies in the middle of a transaction."""


class RunRow(Protocol):
    """A run as it is stored, with its history."""

    status: str
    waiting_for: list[str]
    waits: list[dict[str, Any]]
    accepts: dict[str, list[str]]
    blocked: Any
    paused: Any
    started_at: datetime | None
    closed_at: datetime | None
    tags: list[str]
    stored: dict[str, Any] | None

    @property
    def published(self) -> Any: ...
    @property
    def closing(self) -> Any: ...
    @property
    def facts(self) -> RunRecord: ...
    @property
    def events(self) -> list[HistoryEvent]: ...


class EnvironmentBase(ABC):
    """State of an environment, and what memory and the database do each in their way."""

    engine: WorkflowEngine
    clock: datetime

    def __init__(self) -> None:
        #: One list of commands per recorded activation, in running order over all runs.
        self.commands: list[list[Command]] = []
        self._people: dict[str, Person] = {}
        self._stand_ins: dict[str, Callable[..., Any]] = {}
        self._held_activities: set[str] = set()
        self._heartbeats: dict[tuple[int, int, int], Any] = {}  # of the attempt that is running
        self._held_tasks: list[TaskState] = []
        self._batch: list[Callable[[], None]] | None = None
        self._seeds = random.Random(0)  # noqa: S311 - the same test draws the same numbers each time
        self._id_count = 0
        self.projections = Projections(lambda run, after: self.row(run).events[after:])
        self._classes: dict[UUID, tuple[type[Workflow], int]] = {}
        self.errors: dict[UUID, BaseException] = {}  # of blocked runs
        self.refused: list[RefusedSignal] = []  # signals that the permission of a handler kept out
        self.not_taken: list[RefusedRedelivery] = []  # redelivered messages that were refused
        self._drive_lock = threading.RLock()  # a worker of its own and the test take turns
        self.crashes: list[str] = []  # points at which a worker died, see ``crash_at``
        self._crash_points: dict[str, int] = {}
        for listener in plugin_hooks.listeners:
            listener(self)

    # -- where runs live ----------------------------------------------------------------------------------------------

    @abstractmethod
    def _insert(
        self,
        cls: type[Workflow],
        workflow_id: str,
        args: Any,
        seed: int,
        snapshot: dict[str, Any] | None = None,
        **labels: Any,
    ) -> UUID:
        """Store a new chain, due now; its id. ``labels``: as of ``start_options``. Raises ``AlreadyRunning``."""

    @abstractmethod
    def _chain_of(self, ref: str, workflow: str | None = None) -> UUID | None:
        """The chain that an id means, of one workflow if it is named. Raises ``AmbiguousId``."""

    @abstractmethod
    def _list_runs(self, workflow: str, filters: dict[str, Any], by: Person | None) -> Iterator[tuple[str, UUID]]:
        """Id and chain of the present runs of a class that checked filters leave, newest first; those for ``by``."""

    @abstractmethod
    def run_ids(self, chain_id: UUID) -> list[UUID]:
        """The runs of a chain, oldest first."""

    @abstractmethod
    def row(self, run_id: UUID) -> RunRow:
        """A run as it is stored."""

    @abstractmethod
    def _send(
        self, chain_id: UUID, kind: str, name: str, payload: Any, request_id: str | None, sender: Sender | None
    ) -> int: ...

    @abstractmethod
    def outcome(self, message_id: int) -> Outcome | None:
        """What became of a message; None while it has no outcome."""

    @abstractmethod
    def update_outcome(self, chain_id: UUID, update_id: str) -> Outcome | None:
        """The same by the id of an update."""

    @abstractmethod
    def human_tasks(self, run_id: UUID, *, by: Person | None = None) -> list[OpenHumanTask]:
        """What a run asks people, those that are not open any more too, oldest first; of a person's what he sees."""

    @abstractmethod
    def _failed_messages(self, chain_id: UUID) -> list[FailedMessage]:
        """The signals of a chain whose handler failed, oldest first."""

    @abstractmethod
    def admitted(self, task: OpenHumanTask, user: Person) -> dict[str, Any]:
        """What a decision says of who decides, if he may. Raises ``ActionNotPermitted`` and its like."""

    @abstractmethod
    def inbox(self, user: Person) -> list[OpenHumanTask]:
        """What he may decide now, of all runs; what is due first comes first."""

    @abstractmethod
    def _reopen(self, chain_id: UUID, start: RunStart) -> bool:
        """Make the id of a closed chain its own again; False when another open run keeps it out."""

    @abstractmethod
    def _close(self, chain_id: UUID, status: str, reason: str) -> None: ...

    @abstractmethod
    def _operate(self, chain_id: UUID, name: str, by: Person | None, options: dict[str, Any]) -> None:
        """What an operator does to a run."""

    @abstractmethod
    def _set_clock(self, now: datetime) -> None: ...

    @abstractmethod
    def _next_due(self) -> datetime | None:
        """The next time at which a run, a retry or a timeout is due."""

    @abstractmethod
    def _wake_blocked(self) -> None: ...

    @abstractmethod
    def chain_ids(self) -> list[UUID]:
        """Of every chain that lives here, oldest first."""

    def _queues(self) -> Sequence[str]:
        return ()

    # -- who may do what, and what is told ---------------------------------------------------------------------------

    @abstractmethod
    def require_permitted(
        self,
        by: Person,
        operation: str,
        *,
        action_text: str,
        run_id: UUID | None = None,
        message: str | None = None,
        activity: str | None = None,
    ) -> None:
        """Raises ``ActionNotPermitted`` when he may not do that (with that run), ``WorkflowNotFound``."""

    @abstractmethod
    def _require_start_permitted(self, by: Person | None, workflow: type[Startable]) -> None:
        """Raises ``ActionNotPermitted``."""

    @abstractmethod
    def redactor_for(self, by: Person, chain_id: UUID, run_id: UUID) -> Redactor:
        """What somebody sees of a run. Raises ``ActionNotPermitted`` for who may not look at it."""

    @abstractmethod
    def _subject(self, workflow: type[Startable], subject: Any) -> Any:
        """The object that a run is about. Raises ``PayloadError``, ``NotConfigured``."""

    def _read_switches(self) -> None:
        """Take note of what is switched off; nothing in memory is."""
        return

    def _run_bulk_jobs(self) -> bool:
        """Go on with bulk jobs for a moment. Whether there was any; there are none in memory."""
        return False

    @abstractmethod
    def _copy_subject(self, chain_id: UUID, run_id: UUID) -> None:
        """Give the run of a chain the subject of another run."""

    @abstractmethod
    def require_unclaimed(self, by: Person, chain_id: UUID, event: str, *, step: str | None) -> None:
        """Raises ``HumanTaskClaimed`` where an event is the decision of what somebody else has claimed."""

    @abstractmethod
    def _announce(self, report: TurnReport) -> None:
        """What listeners hear of a turn that is committed."""

    @abstractmethod
    def _announce_attempt(self, task: TaskState, result: TaskResult | None = None) -> None:
        """What they hear of an attempt that begins, or, with its result, has ended."""

    def _commit_point(self) -> AbstractContextManager[None]:
        """Around what a worker would commit: what waits for that is called behind it."""
        return nullcontext()

    def _attempt_savepoint(self, task: TaskState) -> AbstractContextManager[None]:
        """Around an attempt: what it wrote can be undone. An external activity does not know of a transaction."""
        del task
        return self.engine.storage.savepoint()

    def _sender(self, by: Person | None) -> Sender | None:
        """What travels with a message of that person, who is asked when the message is judged."""
        message_sender = sender_of(by)
        if message_sender is not None and by is not None:
            self._people[message_sender.key] = by
        return message_sender

    @property
    def batching(self) -> bool:
        """Whether ``batch()`` is open, so that nothing is delivered yet."""
        return self._batch is not None

    @abstractmethod
    def _drive(self) -> None:
        """Go on until every unit is blocked."""

    # -- classes, and code of users ------------------------------------------------------------------------------------

    def class_of(self, chain_id: UUID, name: str, version: int) -> type[Workflow]:
        """The class that was started, or one of its name that was defined since: tests define many of one name."""
        workflow_class, at = self._classes.get(chain_id, (None, 0))
        if (
            workflow_class is None
            or workflow_class.name != name
            or (workflow_class.dispatched_by and workflow_class.version != version)
        ):
            return class_for_run(name, version)
        return newest_class(workflow_class, at)

    def _run_async(self, coroutine: Any) -> Any:
        return _run_coroutine(coroutine)

    async def from_async(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """``call(*args, **options)`` for async code."""
        return call(*args, **options)

    def _breaks_transaction(self, error: BaseException) -> bool:
        """Whether what an external activity wrote must be undone for the test's transaction to go on."""
        del error
        return False

    # -- a worker dies -------------------------------------------------------------------------------------------------

    def crash_at(self, point: str, times: int = 1) -> None:
        """Let the worker die at ``point``, the next ``times`` times it comes there, and another one take over.

        Points, in the order in which a worker passes them: ``before_turn`` (a turn is worked out and not committed: it
        is lost and done again), ``after_turn`` (committed), ``before_activity`` (an activity is taken and not begun),
        ``after_activity`` (it has run and its result is not committed: it runs again as the next attempt, or fails as
        WorkerLost where none is left; what an atomic one wrote is rolled back, and its attempt does not count),
        ``after_result`` (committed). Whatever lived in memory is gone each time. ``crashes`` lists those that happened.
        Raises ``ValueError`` for another point.
        """
        if point not in CRASH_POINTS:
            raise ValueError(f"crash_at({point!r}): the points are {', '.join(CRASH_POINTS)}")
        self._crash_points[point] = times

    def _maybe_crash(self, point: str) -> bool:
        """Whether the worker dies here; its memory is gone then."""
        remaining = self._crash_points.get(point, 0)
        if not remaining:
            return False
        if remaining > 1:
            self._crash_points[point] = remaining - 1
        else:
            del self._crash_points[point]
        self.crashes.append(point)
        self.engine.cache.clear()
        return True


def _run_coroutine(coroutine: Any) -> Any:
    """The value of an async activity, also where an event loop is running already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    box: list[Any] = []

    def run() -> None:
        try:
            box.append((asyncio.run(coroutine), None))
        except BaseException as exc:  # noqa: BLE001 - handed to the thread that waits
            box.append((None, exc))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    value, error = box[0]
    if error is not None:
        raise error
    return value
