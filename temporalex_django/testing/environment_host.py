"""The hosts of a ``DjangoEnvironment``: their storage, engine, clock and ids, and calls of ``on_commit`` callbacks.

One host is for the handles of the environment, and one for the application under test. Both use the virtual clock and
the environment's engine, and the environment does the work that operations leave.

The transaction around a ``TestCase`` never commits, so Django itself does not call them. The kit calls them at the
points where a worker would commit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from datetime import datetime, tzinfo
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db import connections
from django.utils import timezone

from temporalex_django.authoring.start_api import Startable
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.backends.host import OperationHost, replace_host, use_host
from temporalex_django.core.failures import error_line
from temporalex_django.core.names import TABLES
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine import ids
from temporalex_django.engine.turn import WorkflowEngine
from temporalex_django.engine.turn_report import TurnReport
from temporalex_django.errors import TemporalexError

if TYPE_CHECKING:
    from temporalex_django.testing.environment_base import EnvironmentBase

logger = logging.getLogger("temporalex_django.testing")

#: Django sets this attribute on the ``atomic`` blocks of a ``TestCase``.
_TEST_MARK = "_from_testcase"


def has_open_transaction(alias: str) -> bool:
    """Return True if a transaction is open on the database ``alias``.

    Those that a ``TestCase`` opens around a test and its class do not count.
    """
    return any(not _is_test_block(block) for block in connections[alias].atomic_blocks)


def hide_savepoint(alias: str) -> None:
    """Hide the innermost savepoint on the database ``alias``, so that code inside it sees no open transaction."""
    blocks = connections[alias].atomic_blocks
    if blocks:
        setattr(blocks[-1], _TEST_MARK, True)


@contextmanager
def commit_point(alias: str) -> Iterator[None]:
    """Return a context manager that calls the ``on_commit`` callbacks of its block at the end of the block.

    Does nothing while a transaction is open around the block. An error of a callback is raised, unless the callback was
    registered with ``robust=True``. Callbacks that were registered before the block stay registered:
    ``captureOnCommitCallbacks`` finds them.
    """
    connection = connections[alias]
    if has_open_transaction(alias):
        yield
        return
    hook_count = len(connection.run_on_commit)
    yield
    # Callbacks are code of the application, whatever operation has registered them.
    with use_host(None):
        while len(connection.run_on_commit) > hook_count:
            # An entry is (savepoint ids, callback, robust). Read the list each time: a callback may register others.
            hook: Sequence[Any] = connection.run_on_commit.pop(hook_count)
            if hook[2]:
                call_robustly(hook[1])
            else:
                hook[1]()


def call_robustly(callback: Callable[[], object]) -> None:
    """Call the callback, and log an error that it raises."""
    try:
        callback()
    except Exception as exc:  # noqa: BLE001 - the data is committed already
        logger.error("a callback after a commit failed: %s", error_line(exc))


def _is_test_block(block: object) -> bool:
    return bool(getattr(block, _TEST_MARK, False))


# --- environment host -------------------------------------------------------------------------------------------------
#
# The hosts of a ``DjangoEnvironment``, which give operations their storage, engine, clock and ids.
#
# One host is for the handles of the environment, and one for the application under test. Both use the virtual clock and
# the environment's engine, and the environment does the work that operations leave.


_EPOCH = datetime.fromtimestamp(0, tz=timezone.get_fixed_timezone(0))
#: Nanoseconds between two ids that are drawn at one time of the virtual clock, so that ids keep their order.
_BETWEEN_IDS = 1_000
_entered_environments: list[EnvironmentBase] = []


def _call_in_application(callback: Callable[[], None]) -> None:
    """Call an ``on_commit`` callback, such as a sender of Django signals, as code of the application under test."""
    with use_host(None):
        callback()


class EnvironmentStorage(DjangoStorage):
    """The database storage for code inside a test's transaction, which never commits.

    The end of a ``transaction()`` block counts as a commit: the callbacks of ``on_commit`` are called then.
    """

    @contextmanager
    def transaction(self, site: str = "") -> Iterator[None]:
        with commit_point(self.alias), super().transaction(site):
            yield

    def join_transaction(self) -> AbstractContextManager[None]:
        # Nothing else writes in the transaction of a test, so an error there is one of the test in any case.
        return nullcontext() if connections[self.alias].in_atomic_block else super().join_transaction()

    def on_commit(self, callback: Callable[[], None]) -> None:
        # Inside the test's own blocks alone, Django would keep the callback until a commit that never comes.
        if has_open_transaction(self.alias):
            super().on_commit(partial(_call_in_application, callback))
        else:
            call_robustly(partial(_call_in_application, callback))


class ApplicationHost(OperationHost):
    """The host of the application under test.

    It gives operations the storage, the engine and the clock of an environment. Requests of the application run turns,
    as those of a web process do.
    """

    # The functions of schedules see what the test has written, and has not committed.
    limits_functions = False
    # The environment has a clock of its own, which a cluster does not follow.
    backend = TABLES

    def __init__(self, env: EnvironmentBase) -> None:
        self._env = env
        self._database: Any = env  # as a ``DjangoEnvironment``, whose module imports this one

    def storage(self, alias: str | None = None) -> DjangoStorage:
        if alias is None or alias == self._database.storage.alias:
            return EnvironmentStorage(alias, clock=self._database.now)
        return super().storage(alias)

    def engine(self, alias: str) -> WorkflowEngine | None:
        engine: WorkflowEngine = self._database.engine
        return engine if alias == self._database.storage.alias else None

    def in_transaction(self, alias: str) -> bool:
        """Return True if the application has a transaction open on the database ``alias``.

        The blocks of a ``TestCase`` do not count.
        """
        return has_open_transaction(alias)

    def run_pending(self) -> None:
        """Do all work that is due, as the workers of the application would."""
        # Activities run code of the application, whose operations belong to the host of the application.
        with use_host(None):
            self._database.work()

    def find_class(self, chain_id: UUID, workflow: str, version: int) -> type[Workflow]:
        return self._env.class_of(chain_id, workflow, version)

    def find_workflow(self, name: str) -> type[Startable]:
        workflow: type[Startable] | None = self._env.schedules.workflows.get(name)
        if workflow is None:
            return super().find_workflow(name)
        return workflow

    def record_start(self, chain_id: UUID, workflow: type[Workflow]) -> None:
        self._env.remember_class(chain_id, workflow)

    def record_turn(self, report: TurnReport) -> None:
        self._database.note(report)


class HandleHost(ApplicationHost):
    """The host of the environment's own handles, on which operations only write; the environment runs all turns.

    So the order of turns never varies. Business ids, seeds and suffixes come from the environment, so that a test gives
    the same history every time.
    """

    runs_turns = False
    # A test of a workflow sees what the run makes of a wrong input.
    checks_input = False
    has_random_ids = False

    def in_transaction(self, alias: str) -> bool:
        """Return False, so that an operation waits for its outcome although the test has a transaction open.

        In production such a wait would be in vain. Here the environment works inside the same transaction.
        """
        del alias
        return False

    def generate_id(self, workflow: type[Workflow]) -> str:
        return self._env.generate_id(workflow)

    def new_seed(self) -> int | None:
        return self._env.new_seed()

    def random_suffix(self) -> str:
        return self._env.random_suffix()


@contextmanager
def run_application(env: EnvironmentBase) -> Iterator[None]:
    """Return a context manager in whose block the application (views, receivers, activities) runs on the environment.

    Raises ``TemporalexError`` where another environment is entered.
    """
    if _entered_environments:
        raise TemporalexError("another DjangoEnvironment is already entered: the application runs on one at a time")
    _entered_environments.append(env)
    try:
        with ExitStack() as stack:
            stack.enter_context(replace_host(ApplicationHost(env)))
            stack.enter_context(_virtual_now(env))
            stack.enter_context(ids.use_clock(_id_clock(env)))
            yield
    finally:
        _entered_environments.remove(env)


def is_entered(env: EnvironmentBase) -> bool:
    """Return True if the application runs on this environment now, inside ``with env:``."""
    return env in _entered_environments


def _id_clock(env: EnvironmentBase) -> Callable[[], int]:
    """Return a clock in nanoseconds, which follows the virtual clock, to make run ids, which begin with the time."""
    id_counter = count(1)

    # In integers: a float of seconds has too few digits for nanoseconds.
    def time_ns() -> int:
        elapsed = env.clock - _EPOCH
        micros = (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds
        return micros * 1_000 + next(id_counter) * _BETWEEN_IDS

    return time_ns


@contextmanager
def _virtual_now(env: EnvironmentBase) -> Iterator[None]:
    """Return a context manager in whose block ``django.utils.timezone.now`` returns the virtual clock.

    ``now`` calls ``datetime.now`` of its module. Replacing that name also works for code that imported ``now``.
    """

    # The stand-in is a subclass, so real datetimes must still pass isinstance checks against it.
    class VirtualDatetimeType(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, datetime)

    class VirtualDatetime(datetime, metaclass=VirtualDatetimeType):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            local_time = env.clock.astimezone(tz)
            return local_time if tz is not None else local_time.replace(tzinfo=None)

    module: Any = timezone
    original_datetime, module.datetime = module.datetime, VirtualDatetime
    try:
        yield
    finally:
        module.datetime = original_datetime
