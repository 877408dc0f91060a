"""``RunBackend``: what is done to runs where they live, below the operations.

An operation has permissions, an audit row, a Django signal and a log entry. It passes itself to the backend of its run
as a *call*, and the backend does the innermost write or read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol
from uuid import UUID

from temporalex_django.authoring.activity import Activity
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.backends.polling import Deadline, WaitSlot
from temporalex_django.backends.target import AuditSubject, RunTarget
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.core.messages.sender import Headers, Sender
from temporalex_django.db.inserts import InsertedMessage, NewStart, StartedRun
from temporalex_django.db.messages.inbox import HandledMessage
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.contracts.records import Outcome, RunState, TaskResult, TaskState
from temporalex_django.engine.reset import ResetPlan
from temporalex_django.errors import AlreadyRunning, WorkflowClosed
from temporalex_django.models import ActivityTask


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

    reason: str
    seq: int | None
    once_id: str
    input_values: dict[str, Any]

    def lock_run(self) -> RunState:
        """Lock the chain in the open transaction, check that the operation is possible, and return the run."""

    def refuse(self, reason: Any, *, closed: bool) -> None:
        """Raise ``WorkflowClosed`` if ``closed`` is True, and ``ActionNotPossible`` otherwise."""


class ActivityCall(OperatorCall, Protocol):
    """An operation of an operator on one activity."""

    def load_task(self, run: RunState) -> TaskState:
        """Return the activity task of the call."""

    def find_activity(self, task: TaskState) -> Activity[Any, Any]:
        """Return the activity of a task; its annotations check the values that operators enter."""

    def require_activity_access(self, activities: Iterable[str]) -> None:
        """Raise ``ActionNotPermitted`` unless the user may operate on all of these activities (names)."""

    def finish_task(self, result: TaskResult, run: RunState, **digests: Any) -> None:
        """Store the result of the activity, and write the audit row."""


class ResetCall(OperatorCall, Protocol):
    """A reset. The tables replay the history and make a plan; a cluster takes only the inputs."""

    def check_replay(self) -> None:
        """Replay the history once, before the chain is locked."""

    def plan(self, run: RunState) -> tuple[ResetPlan, type[Workflow]]:
        """Return ``(plan of the reset, class of the new run)``."""

    def reopen_chain(self, run: RunState, plan: ResetPlan, code: type[Workflow]) -> None:
        """Make the chain ready for the new run."""

    def record_plan(self, plan: ResetPlan, new_run_id: UUID) -> None:
        """Write the audit row of the reset."""


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
    """A place where runs live: the tables of this package, or a Temporal cluster.

    All methods work on the connection of the calling thread, and in its transaction if one is open. They raise the
    errors that the operations document.
    """

    name: str

    def flush(self, chain_id: UUID, *, storage: DjangoStorage) -> None:
        """Send what the operation has written for the chain to another system, if the run lives there.

        ``Action.execute`` calls it when the transaction of the operation is over.
        """

    def start(self, start: NewStart, *, storage: DjangoStorage) -> StartedRun: ...

    def start_many(
        self, starts: Sequence[NewStart], *, storage: DjangoStorage
    ) -> list[StartedRun | AlreadyRunning]: ...

    def replace_input(self, start: NewStart, sender: Sender | None, *, storage: DjangoStorage) -> StartedRun | None:
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
        """Return the events of the selected run. ``timeout`` is in seconds, for a backend that asks for them."""

    def open_tasks(self, target: RunTarget, *, limit: int, storage: DjangoStorage) -> list[ActivityTask]:
        """Return the first activities of the selected run that have no result yet, by number.

        The rows are for display. Those of a run that lives elsewhere are not saved.
        """

    def closing(self, target: RunTarget, *, storage: DjangoStorage) -> tuple[str, Any] | None: ...

    def close(self, call: OperatorCall, status: str) -> None: ...

    def close_locked(self, call: OperatorCall, status: str, run: RunState) -> None: ...

    def pause(self, call: OperatorCall) -> None: ...

    def unpause(self, call: OperatorCall) -> bool: ...

    def skip_timer(self, call: OperatorCall) -> None: ...

    def retry_activity(self, call: ActivityCall) -> None: ...

    def complete_activity(self, call: ActivityCall) -> None: ...

    def fail_activity(self, call: ActivityCall) -> None: ...

    def reset(self, call: ResetCall) -> str: ...

    def redeliver(self, call: OperatorCall, message_id: str) -> HandledMessage | None:
        """Deliver a failed message again, in the open transaction; None if the run has none with that id."""

    def discard(self, call: OperatorCall, message_id: str) -> HandledMessage | None:
        """Discard a failed message, in the open transaction; None if the run has none with that id."""

    def delete(self, call: OperatorCall) -> None: ...
