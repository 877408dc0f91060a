"""The host of operations: it provides the clock, the storage and the classes, and says if workers exist.

The default host is an application beside its workers. A ``DjangoEnvironment`` installs a host of its own, which reads a
virtual clock, finds the classes of the test, and does the work of workers itself. Nothing else in ``operations`` knows
about test environments.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from itertools import repeat
from typing import TypeVar
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import connections

from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.start_api import Startable
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.db.messages.notify import WaitFunction
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.ids import uuid7
from temporalex_django.engine.turn import WorkflowEngine
from temporalex_django.engine.turn_report import TurnReport
from temporalex_django.errors import InvalidId


class OperationHost:
    """The environment in which operations run: it provides the storage, the clock, the workflow classes and the ids.

    This class is the default, for an application whose workers are other processes. A test environment overrides it,
    for example to find the classes of a test and to do the work of workers itself. Use ``host()`` to get the current
    one.
    """

    #: False if turns must not run in the process of the caller, because the host itself orders all turns.
    runs_turns = True
    #: True if no other run can have an id that ``generate_id`` returns.
    has_random_ids = True
    #: False if a start accepts an input that does not fit the class, so that the run fails by it.
    checks_input = True
    #: False if code of the project has to run in the thread of the caller, whose transaction it needs.
    limits_functions = True
    #: Does all work that workers would do; None if there are workers for that.
    run_pending: Callable[[], None] | None = None
    #: The name of the backend of all new runs; None if classes and settings decide.
    backend: str | None = None

    def storage(self, alias: str | None = None) -> DjangoStorage:
        """Return a storage of runs on the database connection of the calling thread.

        ``alias`` is the alias of the database; None means the one of the setting ``DATABASE``.
        """
        return DjangoStorage(alias)

    def engine(self, alias: str) -> WorkflowEngine | None:
        """Return the engine for turns in the process of a caller, or None if ``inline_turn.engine`` should create it.

        ``alias`` is the alias of the database. This host returns None; a test environment returns its own engine.
        """
        del alias
        return None

    def in_transaction(self, alias: str) -> bool:
        """Return True if the caller has a transaction open.

        The caller must then not wait for other processes, because they do not see its changes.
        """
        return connections[alias].in_atomic_block

    def find_class(self, chain_id: UUID, workflow: str, version: int) -> type[Workflow]:
        """Return the class of a run in its version. Raises ``UnknownWorkflow`` if this process does not have it.

        The name and the version are enough for this host. A test environment also looks at ``chain_id``.
        """
        del chain_id
        return workflows.class_for_run(workflow, version)

    def find_workflow(self, name: str) -> type[Startable]:
        """Return the class with this name, for a run that a schedule starts.

        Raises ``UnknownWorkflow`` if this process does not have it.
        """
        return workflows.find(name)

    def record_start(self, chain_id: UUID, workflow: type[Workflow]) -> None:
        """Take note of the class of a run that a schedule starts; does nothing here."""

    def record_turn(self, report: TurnReport) -> None:
        """Take the report of a turn that ran in the process of a caller (``inline_turn``); does nothing here.

        A test environment overrides it, to follow what its runs do.
        """

    def generate_id(self, workflow: type[Workflow]) -> str:
        """Return a business id for a run that is started without one.

        Raises ``InvalidId`` if the class declares ``unique``, because its ids are derived from values.
        """
        if workflow.unique is not None:
            raise InvalidId(f"{workflow.name} declares `unique`: start it with a value")
        return str(uuid7())

    def new_seed(self) -> int | None:
        """Return the seed of the random numbers of a new run; None to draw a random seed."""
        return None

    def random_suffix(self) -> str:
        """Return 8 random hex digits, which distinguish business ids that are derived from the same value."""
        return os.urandom(4).hex()


_process_host = OperationHost()
#: The host of the current call, if it differs from the one of the process.
_call_host: ContextVar[OperationHost | None] = ContextVar("temporalex_operation_host", default=None)


def host() -> OperationHost:
    """Return the ``OperationHost`` of the current call: the one of ``use_host``, or else the one of the process."""
    return _call_host.get() or _process_host


@contextmanager
def use_host(call_host: OperationHost | None) -> Iterator[None]:
    """Use ``call_host`` as the environment of the operations that the block calls, in this thread or task.

    None means the host of the process. See ``OperationHost``.
    """
    token = _call_host.set(call_host)
    try:
        yield
    finally:
        _call_host.reset(token)


@contextmanager
def replace_host(process_host: OperationHost) -> Iterator[None]:
    """Use ``process_host`` as the environment of the operations of all threads, while the block runs.

    See ``OperationHost``.
    """
    global _process_host  # noqa: PLW0603 - the one host of the process
    previous_host, _process_host = _process_host, process_host
    try:
        yield
    finally:
        _process_host = previous_host


# --- polling ----------------------------------------------------------------------------------------------------------
#
# Waiting for an outcome that another process writes: polls with growing pauses, and sooner after a notification.
#
# No transaction is open between two polls.


T = TypeVar("T")

#: Seconds of the first and of the longest pause. A result arrives between two polls, so on average it is noticed late
#: by an eighth of the time that it took.
_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.1
_PAUSE_GROWTH = 1.25
#: A caller that gets notifications polls less often, and listens for this many seconds. After that, a pause is short
#: compared with the time waited, and the notifications of a busy system would wake the caller more often than its
#: polls.
_FIRST_LISTENING_PAUSE = 0.02
_LISTENING_SECONDS = 1.0


class Deadline:
    """A moment that is ``timeout`` seconds after the creation of the object.

    With None as ``timeout`` it never comes, and ``seconds_left`` is infinite.
    """

    def __init__(self, timeout: float | None) -> None:
        self._at = None if timeout is None else time.monotonic() + timeout

    @property
    def seconds_left(self) -> float:
        if self._at is None:
            return float("inf")
        return max(0.0, self._at - time.monotonic())


def inside_transaction(alias: str) -> bool:
    """Return True if the caller has a transaction open.

    Other processes do not see its writes before it ends, so the caller must not wait for an outcome. The host decides.
    """
    return host().in_transaction(alias)


#: Opens a wait slot for the time of the wait; its value is True if the slot was granted.
WaitSlot = Callable[[], AbstractContextManager[bool]]


#: Listens for the time of the wait. Its value is a sleep function that returns early when there may be a result.
Listen = Callable[[], AbstractContextManager[WaitFunction]]


def unlimited_wait() -> AbstractContextManager[bool]:
    """Return a wait slot that is always granted: the number of callers that wait is not limited.

    It is a context manager whose value is True: the caller may wait.
    """
    return nullcontext(enter_result=True)


def no_listen() -> AbstractContextManager[WaitFunction]:
    """Return a context manager whose value is ``time.sleep``: the wait receives no notifications."""
    return nullcontext(time.sleep)


def wait_for(
    poll: Callable[[], T | None],
    deadline: Deadline,
    *,
    wait_slot: WaitSlot = unlimited_wait,
    listen: Listen = no_listen,
    listening_pause: float | None = None,
) -> T | None:
    """Call ``poll`` until it returns something other than None, and return that; None when the deadline has passed.

    It polls at least once, then after growing pauses, and sooner when ``listen`` is notified. ``wait_slot()`` returns a
    context manager that limits how many callers wait at a time. Its value is False if too many wait already; then None
    is returned after the first poll. With ``listening_pause``, a caller that is notified polls after so many seconds
    otherwise, and listens all the time.

    A host that does the work of workers itself does it after the first poll, whatever the deadline is: its clock is not
    the one of the deadline.
    """
    run_pending = host().run_pending
    if (result := poll()) is not None or (run_pending is None and deadline.seconds_left <= 0):
        return result
    with wait_slot() as is_granted:
        if not is_granted:
            return None
        if run_pending is None:
            return _poll_until(poll, deadline, listen, listening_pause)
        run_pending()
        return poll()


def _poll_until(
    poll: Callable[[], T | None], deadline: Deadline, listen: Listen, listening_pause: float | None
) -> T | None:
    pauses, listen_deadline = _pauses(_FIRST_PAUSE), Deadline(_LISTENING_SECONDS)
    with listen() as rest:
        if rest is not time.sleep:
            pauses = _pauses(_FIRST_LISTENING_PAUSE)
            if listening_pause is not None:
                pauses, listen_deadline = repeat(listening_pause), deadline
            # Poll once more after the subscription: the result may have arrived before it, without a notification.
            if (result := poll()) is not None:
                return result
        while deadline.seconds_left > 0 and listen_deadline.seconds_left > 0:
            rest(min(next(pauses), deadline.seconds_left))
            if (result := poll()) is not None:
                return result
    # From here on notifications are ignored: a pause is short compared with the time waited (``_LISTENING_SECONDS``).
    while deadline.seconds_left > 0:
        time.sleep(min(next(pauses), deadline.seconds_left))
        if (result := poll()) is not None:
            return result
    return None


async def await_for(poll: Callable[[], T | None], deadline: Deadline) -> T | None:
    """Call ``poll`` in a thread until it returns something other than None, and return that, or None at the deadline.

    Between two polls no thread is held. Unlike ``wait_for`` it receives no notifications.
    """
    for pause in _pauses(_FIRST_PAUSE):
        if (result := await sync_to_async(poll)()) is not None:
            return result
        run_pending = host().run_pending
        if run_pending is not None:
            await sync_to_async(run_pending)()
            return await sync_to_async(poll)()
        if deadline.seconds_left <= 0:
            return None
        await asyncio.sleep(min(pause, deadline.seconds_left))
    raise AssertionError("unreachable")


def _pauses(pause: float) -> Iterator[float]:
    while True:
        yield pause
        pause = min(pause * _PAUSE_GROWTH, _LONGEST_PAUSE)
