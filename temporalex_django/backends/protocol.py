"""``RunTarget``, the run that an operation is about, and ``RunBackend``, a place outside of the tables for runs.

An operation on a run of the tables reads and writes the storage itself. For a run that lives elsewhere, it passes
itself to the backend of the run as a *call*.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, Protocol
from uuid import UUID

from temporalex_django.authoring.workflow import Workflow
from temporalex_django.backends.host import Deadline, WaitSlot, host
from temporalex_django.conf import get_settings
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.core.messages.sender import Headers, Sender
from temporalex_django.core.names import TABLES
from temporalex_django.db.inserts import InsertedMessage, StartedRun
from temporalex_django.db.messages.inbox import HandledMessage
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.contracts.records import Outcome, RunState
from temporalex_django.engine.refusals import closed_run_error
from temporalex_django.engine.run_start import RunStart
from temporalex_django.errors import AlreadyRunning, UnknownWorkflow, WorkflowClosed
from temporalex_django.models import ActivityTask, Instance


class CallActor(Protocol):
    """The actor of a call: ``sender`` is the person in whose name it is done, or None for code."""

    @property
    def sender(self) -> Sender | None: ...


class RunCall(Protocol):
    """An operation on a run, as its backend sees it."""

    storage: DjangoStorage

    @property
    def target(self) -> RunTarget: ...

    @property
    def by(self) -> CallActor: ...

    def record(self, subject: AuditSubject, *, reason: str = "", **details: Any) -> None:
        """Write the audit row in the open transaction."""


class OperatorCall(RunCall, Protocol):
    """An operation of an operator. ``seq`` is the number of the activity or timer, or None.

    ``once_id`` is the id by which a cluster recognizes the operation if it is sent again.
    """

    name: ClassVar[str]
    reason: str
    seq: int | None
    once_id: str
    input_values: dict[str, Any]

    def lock_run(self) -> RunState:
        """Lock the chain in the open transaction, check that the operation is possible, and return the run."""

    def refuse(self, reason: Any, *, closed: bool) -> NoReturn:
        """Raise ``WorkflowClosed`` if ``closed`` is True, and ``ActionNotPossible`` otherwise."""

    def require_activity_access(self, activities: Iterable[str]) -> None:
        """Raise ``ActionNotPermitted`` unless the user may operate on all of these activities (names)."""


class RunQueryCall(RunCall, Protocol):
    """A query: its name, its argument, and ``fresh``: if unread messages are delivered to the run first."""

    query: str
    args: Any
    fresh: bool

    def answer_built_in(self) -> Any:
        """Return the answer to a query whose name begins with two underscores."""


class RequestCall(RunCall, Protocol):
    """A message that waits for its outcome: an update, a resume or a decision.

    ``request_label`` names it in errors. ``mode`` is "auto", or "worker" if only workers may judge it.
    """

    message: str
    payload: Any
    message_id: str
    headers: Headers | None
    exact: bool
    mode: str
    deadline: Deadline
    wait_slot: WaitSlot

    @property
    def kind(self) -> str: ...

    @property
    def request_label(self) -> str: ...

    def before_insert(self) -> None:
        """Raise the error that refuses the message, or lock the human task that it decides, before it is stored."""

    def closed_error(self, error: WorkflowClosed) -> Exception:
        """Return the error to raise for a run that is closed."""


class BackendRequest(Protocol):
    """A message of a ``RequestCall`` that is sent once and then waited for."""

    @property
    def message_number(self) -> int | None: ...

    def begin(self) -> None:
        """Send the message, and judge it at once if this process can; otherwise a worker judges it."""

    def enqueue(self) -> None:
        """Send the message, whatever the state of the run is, and wait for nothing."""

    def wait(self) -> None:
        """Wait for the outcome until the deadline of the call."""

    async def await_outcome(self) -> None:
        """Wait as ``wait`` does, without blocking a thread."""

    def outcome(self) -> Outcome | None:
        """Return the outcome, or None if the message was not judged."""


class RunBackend(Protocol):
    """A place where runs are stored outside of the tables of this package: a Temporal cluster.

    All methods work on the connection of the calling thread, and in its transaction if one is open. They raise the
    errors that the operations document.
    """

    name: str

    def flush(self, chain_id: UUID, *, storage: DjangoStorage) -> None:
        """Send what the operation has written for the chain.

        ``Action.execute`` calls it when the transaction of the operation is over.
        """

    def start(self, start: RunStart, *, storage: DjangoStorage) -> StartedRun: ...

    def start_many(
        self, starts: Sequence[RunStart], *, storage: DjangoStorage
    ) -> list[StartedRun | AlreadyRunning]: ...

    def replace_input(self, start: RunStart, sender: Sender | None, *, storage: DjangoStorage) -> StartedRun | None:
        """Give the run that waits to begin the input of a debounced start; None if there is no such run."""

    def send(
        self,
        target: RunTarget,
        *,
        kind: str,
        name: str,
        body: Any,
        message_id: str | None = None,
        sender: Sender | None = None,
        headers: Headers | None = None,
        exact: bool = False,
        storage: DjangoStorage,
    ) -> InsertedMessage: ...

    def request(self, call: RequestCall) -> BackendRequest: ...

    def query(self, call: RunQueryCall) -> Any: ...

    def history(self, target: RunTarget, *, storage: DjangoStorage, timeout: float | None = None) -> list[HistoryEvent]:
        """Return the events of the selected run. ``timeout`` is in seconds."""

    def open_tasks(self, target: RunTarget, *, limit: int, storage: DjangoStorage) -> list[ActivityTask]:
        """Return the first activities of the selected run that have no result yet, by number.

        The rows are for display and are not saved.
        """

    def closing(self, target: RunTarget, *, storage: DjangoStorage) -> tuple[str, Any] | None: ...

    def operate(self, call: OperatorCall) -> Any:
        """Perform the operation that ``call.name`` names, and write its rows and its audit row."""

    def close_locked(self, call: OperatorCall, status: str, run: RunState) -> None: ...

    def redeliver(self, call: OperatorCall, message_id: str) -> HandledMessage | None:
        """Deliver a failed message again, in the open transaction; None if the run has none with that id."""


# --- target -----------------------------------------------------------------------------------------------------------
#
# ``RunTarget``: the run that an operation is about, as it was when it was read.


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSubject:
    """The run that an operation was about, as the audit row, the Django signal and the log entry name it.

    ``workflow`` is the name of its class, and ``workflow_id`` its business id. For an operation on no particular run,
    ``run_id`` is None and ``workflow_id`` is empty.
    """

    run_id: str | None
    workflow: str
    workflow_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTarget:
    """The run that an operation is about: a chain and its current run, as they were when they were read.

    ``backend`` is the name of the backend that the chain was started on. ``run_id``, ``version`` and ``status`` are
    those of the current run. ``pinned`` is the run that was asked for by its
    run id, or None: reads show that run, while messages go to the chain. ``off`` is True if the workflow class is
    switched off.
    """

    chain_id: UUID
    run_id: UUID
    queue: str
    closed: bool
    paused: bool
    workflow_id: str
    workflow: str
    version: int
    status: str
    off: bool = False
    backend: str = TABLES
    pinned: UUID | None = None

    @classmethod
    def of(cls, run: Instance) -> RunTarget:
        """Return the target for a run that was asked for, from its row and that of its chain. Reads only need it."""
        chain = run.chain
        return cls(
            chain_id=run.chain_id,
            run_id=chain.run_id,
            queue=run.queue,
            closed=chain.closed,
            paused=chain.paused,
            workflow_id=run.workflow_id,
            workflow=run.workflow,
            version=run.version,
            status=run.status,
            backend=chain.backend,
            pinned=run.pk,
        )

    @property
    def selected_run_id(self) -> UUID:
        """The id of the run that was asked for by its run id, or else of the current run of the chain.

        Reads show this run.
        """
        return self.pinned or self.run_id

    @property
    def audit_subject(self) -> AuditSubject:
        return AuditSubject(run_id=str(self.run_id), workflow=self.workflow, workflow_id=self.workflow_id)

    @property
    def row(self) -> Instance:
        """The run that was asked for, as a model instance that is built without a read.

        This is the run of ``selected_run_id``. Columns that the target does not have are deferred: Django reads them on
        first access.
        """
        columns = {
            "id": self.selected_run_id,
            "chain_id": self.chain_id,
            "workflow_id": self.workflow_id,
            "workflow": self.workflow,
            "version": self.version,
            "status": self.status,
        }
        return Instance.from_db(host().storage().alias, [*columns], [*columns.values()])

    @property
    def workflow_class(self) -> type[Workflow] | None:
        """The class of the run in its version, or None if this process does not have it.

        Without it, the run must not be activated in this process.
        """
        return find_run_class(self.chain_id, self.workflow, self.version)

    def require_open(self, operation: str) -> None:
        """Raise ``WorkflowClosed`` if the chain was closed when it was read; the message names ``operation``."""
        if self.closed:
            raise closed_run_error(f"{self.workflow} {self.workflow_id}", self.status, operation)


def find_run_class(chain_id: UUID, workflow: str, version: int) -> type[Workflow] | None:
    """Return the class of a run if this process has it in exactly that version, or None."""
    try:
        workflow_class = host().find_class(chain_id, workflow, version)
    except UnknownWorkflow:
        return None
    return workflow_class if workflow_class.version == version else None


def runs_in_workers_only(code: type[Workflow] | None) -> bool:
    """Return True if only workers may run the code of the class; a web process then runs no updates or replays of it.

    The attribute ``updates_in`` of the class decides, or else the setting ``UPDATES_IN``. If ``code`` is None, the
    setting decides.
    """
    return ((None if code is None else code.updates_in) or get_settings().UPDATES_IN) == "workers"
