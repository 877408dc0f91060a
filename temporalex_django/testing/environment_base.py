"""The base of the test environments: their common state, the abstract methods, and the simulated deaths of a worker."""

from __future__ import annotations

import asyncio
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from temporalex_django.authoring.authorization import Person, sender_of
from temporalex_django.authoring.backend import FailedMessage
from temporalex_django.authoring.handle import WorkflowHandle
from temporalex_django.authoring.human_tasks import OpenHumanTask
from temporalex_django.authoring.requests import RunAddress
from temporalex_django.authoring.start_api import Result_co
from temporalex_django.authoring.workflow import Workflow, class_for_run, last_definition_number, newest_class
from temporalex_django.core.failures import failure_summary
from temporalex_django.core.history.events import Command
from temporalex_django.core.messages.mailbox import failed_text
from temporalex_django.core.messages.sender import Sender
from temporalex_django.engine.activity_policy import update_result
from temporalex_django.engine.contracts.records import Outcome, TaskResult, TaskState
from temporalex_django.engine.contracts.storage import TaskStorage
from temporalex_django.engine.memory.tables import RunRow
from temporalex_django.engine.refusals import RefusedRedelivery, RefusedSignal
from temporalex_django.engine.turn_report import TurnReport
from temporalex_django.errors import WorkflowClosed, WorkflowDefinitionError, WorkflowNotFound
from temporalex_django.graph.projection import Projections
from temporalex_django.testing import plugin_hooks

if TYPE_CHECKING:
    from temporalex_django.testing.schedules import EnvironmentSchedules


EPOCH = datetime(2026, 1, 1, tzinfo=UTC)

#: The points at which ``crash_at`` can make a worker die.
CRASH_POINTS = ("before_turn", "after_turn", "before_activity", "after_activity", "after_result")


class Crash(BaseException):
    """The death of a worker in the middle of a transaction; raising it rolls the transaction back."""


class EnvironmentBase(ABC):
    """The base class of the environments, with their state and their abstract methods.

    Memory and the database implement these methods differently. ``backend`` performs the requests of handles, and
    ``clock`` is the present virtual time. ``schedules`` are the schedules that were added.
    """

    clock: datetime
    backend: Any
    schedules: EnvironmentSchedules

    def __init__(self) -> None:
        #: One list of commands per recorded activation, in running order over all runs.
        self.commands: list[list[Command]] = []
        self._people: dict[str, Person] = {}
        self._stand_ins: dict[str, Callable[..., Any]] = {}
        self._held_activities: set[str] = set()
        self._heartbeats: dict[tuple[int, int, int], Any] = {}  # by (task id, attempt, owner)
        self._progress_reports: dict[tuple[int, int, int], Mapping[str, Any]] = {}  # likewise
        self._held_tasks: list[TaskState] = []
        self._batch: list[Callable[[], None]] | None = None
        self._seeds = random.Random(0)  # noqa: S311 - a test draws the same numbers each time
        self._id_count = 0
        self.projections = Projections(lambda run, after: self.row(run).events[after:])
        self._classes: dict[UUID, tuple[type[Workflow], int]] = {}
        self.errors: dict[UUID, BaseException] = {}  # of blocked runs
        self.refused: list[RefusedSignal] = []  # signals whose sender lacks the permission of the handler
        self.not_taken: list[RefusedRedelivery] = []  # redelivered messages that were refused
        # The thread of ``worker()`` and the test must not drive at the same time.
        self._drive_lock = threading.RLock()
        self.crashes: list[str] = []  # points at which a worker died, see ``crash_at``
        self._crash_points: dict[str, int] = {}
        for listener in plugin_hooks.listeners:
            listener(self)

    # -- the host that runs workflow code ------------------------------------------------------------------------------

    @property
    @abstractmethod
    def _tasks(self) -> TaskStorage:
        """The storage of the scheduled activities of the runs."""

    @abstractmethod
    def _run_turn(self) -> TurnReport | None:
        """Advance the runs that have work by one activation each, and return what they did.

        Returns None if the worker died, so that another one does the same work.
        """

    @abstractmethod
    def _forget_runs(self) -> None:
        """Drop all executors (runs in memory), so that the next activation of each run rebuilds it from its history."""

    @abstractmethod
    def evict_run(self, run_id: UUID) -> None:
        """Drop the executor of a run, so that the run is rebuilt from its history, and do the work that is due."""

    # -- where runs live ----------------------------------------------------------------------------------------------

    @abstractmethod
    def run_ids(self, chain_id: UUID) -> list[UUID]:
        """Return the ids of the runs of a chain, oldest first."""

    @abstractmethod
    def row(self, run_id: UUID) -> RunRow:
        """Return a run as it is stored."""

    @abstractmethod
    def outcome(self, message_id: int) -> Outcome | None:
        """Return the outcome of a message by the number of its row; None while it has none."""

    @abstractmethod
    def update_outcome(self, chain_id: UUID, update_id: str) -> Outcome | None:
        """Return the outcome of an update by its message id; None while it has none."""

    @abstractmethod
    def human_tasks(self, run_id: UUID, *, by: Person | None = None) -> list[OpenHumanTask]:
        """Return the human tasks of a run, closed ones included, oldest first.

        With ``by``, only the tasks that this user may see are returned.
        """

    @abstractmethod
    def _failed_messages(self, chain_id: UUID) -> list[FailedMessage]:
        """Return the failed messages of a chain (signals whose handler failed), oldest first."""

    @abstractmethod
    def inbox(self, user: Person) -> list[OpenHumanTask]:
        """Return the open human tasks of all runs that this user may decide now.

        The task that is due first comes first.
        """

    @abstractmethod
    def _set_clock(self, now: datetime) -> None: ...

    @abstractmethod
    def _next_due(self) -> datetime | None:
        """Return the next time at which a run, a retry or a timeout is due; None if nothing is due."""

    @abstractmethod
    def _wake_blocked(self) -> None:
        """Make blocked runs due, so that they are tried again."""

    @abstractmethod
    def chain_ids(self) -> list[UUID]:
        """Return the ids of all chains in this environment, oldest first."""

    def _queues(self) -> Sequence[str]:
        """Return the queues in which to look for work."""
        return ()

    # -- work and announcements ----------------------------------------------------------------------------------------

    def _forget_pending(self) -> None:
        """Forget what was read about the work that waits, because it may have changed; in memory nothing is read."""
        return

    def _run_bulk_jobs(self) -> bool:
        """Work on bulk jobs for a moment. Return True if there were any; in memory there are none."""
        return False

    @abstractmethod
    def _announce(self, report: TurnReport) -> None:
        """Send the Django signals of a turn that is committed. ``report`` says what happened in the turn."""

    @abstractmethod
    def _announce_attempt(self, task: TaskState, result: TaskResult | None = None) -> None:
        """Send the Django signal that an attempt of an activity starts or, with ``result``, that it has ended."""

    def _commit_point(self) -> AbstractContextManager[None]:
        """Return a context manager around work that a worker would commit at the end.

        Callbacks that wait for the commit (``on_commit``) are called at the end of the block.
        """
        return nullcontext()

    @abstractmethod
    def _attempt_savepoint(self, task: TaskState) -> AbstractContextManager[None]:
        """Return a context manager that opens a savepoint around an attempt, so that its writes can be undone.

        An external activity must not see the savepoint: for its code, no transaction is open.
        """

    def remember_person(self, by: Person | None) -> Sender | None:
        """Return the sender that is stored with a message of the user ``by``; None for code.

        The user is remembered, because permissions are checked when the message is dispatched (see decision 37).
        """
        message_sender = sender_of(by)
        if message_sender is not None and by is not None:
            self._people[message_sender.key] = by
        return message_sender

    @property
    def batching(self) -> bool:
        """True if ``batch()`` is open, so that nothing is delivered yet."""
        return self._batch is not None

    @abstractmethod
    def _drive(self) -> None:
        """Do all work that is due, until every part of each run's code waits. In a batch, do nothing."""

    # -- what a start draws, the same in every run of a test -----------------------------------------------------------

    def generate_id(self, workflow: type[Workflow]) -> str:
        """Return the business id of a run that is started without one: the name of its class and a number."""
        self._id_count += 1
        return f"{workflow.name}-{self._id_count}"

    def new_seed(self) -> int:
        """Return the random seed of a new run; each test gets the same seeds in the same order."""
        return self._seeds.getrandbits(62)

    def random_suffix(self) -> str:
        """Return 8 hex digits that distinguish business ids derived from the same value.

        The digits come from the seed of the environment, so a test gets the same ones in every test run.
        """
        return f"{self._seeds.getrandbits(32):08x}"

    # -- classes, and code of users ------------------------------------------------------------------------------------

    def class_of(self, chain_id: UUID, name: str, version: int) -> type[Workflow]:
        """Return the class of a run: the class it was started with, or a later class of the same name and version.

        ``name`` is the name of its workflow. Tests define many classes of one name, so the registry of classes alone
        does not answer this.
        """
        workflow_class, at = self._classes.get(chain_id, (None, 0))
        if (
            workflow_class is None
            or workflow_class.name != name
            or (workflow_class.dispatched_by and workflow_class.version != version)
        ):
            return class_for_run(name, version)
        return newest_class(workflow_class, at)

    def remember_class(self, chain_id: UUID, workflow: type[Workflow]) -> None:
        """Remember ``workflow`` as the class of the runs of a chain.

        If a class of its name and version is defined later, the chain continues with that one.
        """
        self._classes[chain_id] = workflow, last_definition_number()

    def remember_new_class(self, chain_id: UUID, workflow: type[Workflow]) -> None:
        """Remember ``workflow`` as the class of a chain's runs, unless a class is remembered for the chain already."""
        if chain_id not in self._classes:
            self.remember_class(chain_id, workflow)

    def _run_async(self, coroutine: Any) -> Any:
        """Run the coroutine of an async activity and return its value."""
        return _run_coroutine(coroutine)

    async def from_async(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call ``call(*args, **options)`` from async code and return its result."""
        return call(*args, **options)

    def _breaks_transaction(self, error: BaseException) -> bool:
        """Return True if ``error`` of an external activity has broken the test's transaction.

        The writes of the activity are then undone, so that the transaction stays usable.
        """
        del error
        return False

    # -- a worker dies -------------------------------------------------------------------------------------------------

    def crash_at(self, point: str, times: int = 1) -> None:
        """Make the worker die at ``point``, the next ``times`` times that it gets there; another worker takes over.

        The points, in the order in which a worker passes them:

        - ``before_turn``: a turn is computed and not committed. It is lost and done again.
        - ``after_turn``: the turn is committed.
        - ``before_activity``: an activity is claimed and has not started.
        - ``after_activity``: the activity has run and its result is not committed. It runs again as the next attempt,
          or fails with ``WorkerLost`` if no attempt is left. The writes of an atomic activity are rolled back, and its
          attempt does not count.
        - ``after_result``: the result is committed.

        Each crash empties the worker's memory. ``crashes`` lists the crashes that happened. Raises ``ValueError`` for
        an unknown point.
        """
        if point not in CRASH_POINTS:
            raise ValueError(f"crash_at({point!r}): the points are {', '.join(CRASH_POINTS)}")
        self._crash_points[point] = times

    def _maybe_crash(self, point: str) -> bool:
        """Return True if the test has asked by ``crash_at`` that the worker die at this point.

        All executors are then dropped from memory.
        """
        remaining = self._crash_points.get(point, 0)
        if not remaining:
            return False
        if remaining > 1:
            self._crash_points[point] = remaining - 1
        else:
            del self._crash_points[point]
        self.crashes.append(point)
        self._forget_runs()
        return True


def _run_coroutine(coroutine: Any) -> Any:
    """Run the coroutine of an async activity and return its value, also where an event loop is already running."""
    # Not an error of the task: in the main thread, asyncio.run() of Python 3.11 calls its ``repr``, which may raise.
    box: list[tuple[Any, BaseException | None]] = []

    async def keep_outcome() -> None:
        try:
            box.append((await coroutine, None))
        except Exception as exc:  # noqa: BLE001 - raised below
            box.append((None, exc))

    def run() -> None:
        try:
            asyncio.run(keep_outcome())
        except BaseException as exc:  # noqa: BLE001 - raised below
            box.append((None, exc))

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        run()
    else:
        # asyncio.run() refuses a thread whose event loop is running, so the coroutine gets a thread of its own.
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    value, error = box[-1]
    if error is not None:
        raise error
    return value


# --- handles ----------------------------------------------------------------------------------------------------------
#
# The handles of the test environments, and the updates that they send.
#
# An ``EnvironmentHandle`` has the methods of ``WorkflowHandle`` and some for tests. Each method lets the run work as
# far as it can before it returns, so ``timeout`` and ``mode`` are checked and have no effect.


class EnvironmentUpdate:
    """An update whose result is not awaited; ``result()`` raises ``UpdateTimeout`` while there is none.

    ``message_id`` is the number of its message, and ``update_id`` the message id, with which it can be sent again.
    ``label`` names the update in errors. ``read(answer)`` returns an answer, plain data, as its reader gets it.
    """

    def __init__(
        self,
        env: EnvironmentBase,
        chain_id: UUID,
        message_id: int,
        update_id: str,
        label: str,
        read: Callable[[Any], Any] = lambda answer: answer,
    ) -> None:
        self._env = env
        self._chain_id = chain_id
        self._message_id = message_id
        self.id = update_id
        self._label = label
        self._read = read

    @property
    def _outcome(self) -> Outcome | None:
        outcome = self._env.outcome(self._message_id)
        # After a reset the update is delivered again, as a new message with the same message id (see decision 43).
        return self._env.update_outcome(self._chain_id, self.id) if outcome is None else outcome

    @property
    def accepted(self) -> bool:
        """True if the update was accepted, whether or not its handler has ended."""
        outcome = self._outcome
        return outcome is not None and outcome.status != "rejected"

    @property
    def done(self) -> bool:
        """True if there is an answer: a response, a rejection or a failure."""
        outcome = self._outcome
        return outcome is not None and outcome.status != "accepted"

    def result(self) -> Any:
        """Return the response of the update.

        Raises ``UpdateTimeout`` while there is none, ``UpdateFailed`` if the handler raised, and ``UpdateRejected`` or
        another refusal, such as ``WorkflowClosed``.
        """
        try:
            return self._read(update_result(self._outcome, update_id=self.id, label=self._label))
        except WorkflowClosed as exc:
            raise explain_closed(exc, self._env.row(self._env.run_ids(self._chain_id)[-1])) from None


def explain_closed(error: WorkflowClosed, row: RunRow) -> WorkflowClosed:
    """Return the error of a message to a closed run, with the mistake of a definition that is first met here."""
    # Other failures are those of the run alone.
    closing = row.closing or {}
    is_definition = row.status == "failed" and closing.get("type") == WorkflowDefinitionError.__name__
    if not is_definition or "failed with" in error.message:
        return error
    return WorkflowClosed(f"{error.message}: it {failed_text(failure_summary(closing))}")


class EnvironmentHandle(WorkflowHandle[Result_co]):
    """The handle of a chain of runs in a test environment, with the methods of ``WorkflowHandle`` and some for tests.

    ``workflow_id`` is the business id. ``pinned`` is the run that was asked for by its run id; the handle then shows
    that run instead of the newest one.
    """

    def __init__(self, env: EnvironmentBase, workflow_id: str, chain_id: UUID, *, pinned: UUID | None = None) -> None:
        self._backend = env.backend
        self._address = RunAddress(id=workflow_id, chain_id=chain_id, run_id=pinned)
        self.env = env

    @property
    def chain_id(self) -> UUID:
        """The id of the chain."""
        chain_id = self._address.chain_id
        assert chain_id is not None
        return chain_id

    @property
    def selected_run(self) -> RunRow:
        """The row of the run that this handle shows: the pinned one, or the newest of its chain."""
        return self._row if self._address.run_id is None else self.env.row(self._address.run_id)

    @property
    def _row(self) -> RunRow:
        run_ids = self.env.run_ids(self.chain_id)
        if not run_ids:
            raise WorkflowNotFound(f"{self.id} no longer exists: somebody has deleted it")
        return self.env.row(run_ids[-1])

    @property
    def status(self) -> str:
        return self.selected_run.status

    @property
    def blocked(self) -> BaseException | None:
        """The error that keeps the run from continuing, or None."""
        return self.env.errors.get(UUID(self.run_id))

    def update_async(
        self, name: Any, args: Any = None, id: str | None = None, *, by: Person | None = None
    ) -> EnvironmentUpdate:
        """Send the update ``name`` without asking for its response. Raises ``PayloadError``, ``InvalidId``.

        ``name`` may be the function that handles it. ``id`` is its message id; without one it is generated.
        """
        return cast("EnvironmentUpdate", self.env.backend.send_update(self._address, name, args, id=id, by=by))
