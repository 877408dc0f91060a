"""Patches under the application while a ``DjangoEnvironment`` is entered: its clock, its turns and its commit points.

Views, signal receivers and activities then start and message runs of the environment through their usual calls.
Outside of ``with`` nothing is patched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, tzinfo
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from django.db.models import Q
from django.utils import timezone

from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine import ids
from temporalex_django.engine.turn import WorkflowEngine
from temporalex_django.engine.turn_report import TurnReport
from temporalex_django.errors import TemporalexError
from temporalex_django.operations import inline_turn, polling
from temporalex_django.operations.fleet.live_workers import LiveWorkers
from temporalex_django.testing.commit_hooks import call_robustly, commit_point, has_open_transaction

if TYPE_CHECKING:
    from temporalex_django.testing.database import DjangoEnvironment

_EPOCH = datetime.fromtimestamp(0, tz=timezone.get_fixed_timezone(0))
#: Nanoseconds between two ids that are drawn at one time of the virtual clock, so that ids keep their order.
_BETWEEN_IDS = 1_000
_entered_environments: list[DjangoEnvironment] = []


class EnvironmentWaitStrategy(polling.WaitStrategy):
    """A wait strategy that lets the environment work instead of waiting for other processes."""

    def __init__(self, env: DjangoEnvironment) -> None:
        self.run_pending = env.work

    def in_transaction(self, alias: str) -> bool:
        """Return True if the application has a transaction open; the blocks of a ``TestCase`` do not count."""
        return has_open_transaction(alias)


@contextmanager
def patch_application(env: DjangoEnvironment) -> Iterator[None]:
    """Run the application on the environment. Raises ``TemporalexError`` where another environment is entered."""
    if _entered_environments:
        raise TemporalexError("another DjangoEnvironment is already entered: the application runs on one at a time")
    _entered_environments.append(env)
    try:
        with ExitStack() as stack:
            for owner, name, stand_in in _patches(env):
                stack.enter_context(patch.object(owner, name, stand_in))
            yield
    finally:
        _entered_environments.remove(env)


def is_entered(env: DjangoEnvironment) -> bool:
    """Return True if the application runs on this environment now."""
    return env in _entered_environments


def _patches(env: DjangoEnvironment) -> list[tuple[Any, str, Any]]:
    return [
        *_storage_patches(env),
        *_clock_patches(env),
        *_turn_patches(env),
        (polling, "wait_strategy", EnvironmentWaitStrategy(env)),
        # The environment runs whatever is due, so the application must not report that no live worker can.
        (LiveWorkers, "missing_worker", lambda _self, **_options: None),
        (LiveWorkers, "can_run_activity", lambda _self, _activity, **_options: True),
        (LiveWorkers, "unpolled_tasks", lambda _self: Q(pk__in=[])),
    ]


def _storage_patches(env: DjangoEnvironment) -> list[tuple[Any, str, Any]]:
    original_init, original_transaction, original_on_commit = (
        DjangoStorage.__init__,
        DjangoStorage.transaction,
        DjangoStorage.on_commit,
    )

    def init(self: DjangoStorage, *args: Any, **options: Any) -> None:
        original_init(self, *args, **options)
        # A storage of the application reads the virtual clock; one that has a clock keeps it.
        if self.clock is None and self.alias == env.storage.alias:
            self.clock = env.now

    @contextmanager
    def committing(self: DjangoStorage, *args: Any, **options: Any) -> Iterator[None]:
        # The test's transaction never commits, so what waits for the commit is called when this block ends.
        with commit_point(self.alias), original_transaction(self, *args, **options):
            yield

    def after_commit(self: DjangoStorage, callback: Callable[[], None]) -> None:
        # Inside the test's own blocks alone, Django would keep the callback until a commit that never comes.
        if has_open_transaction(self.alias):
            original_on_commit(self, callback)
        else:
            call_robustly(callback)

    return [
        (DjangoStorage, "__init__", init),
        (DjangoStorage, "transaction", committing),
        (DjangoStorage, "on_commit", after_commit),
    ]


def _clock_patches(env: DjangoEnvironment) -> list[tuple[Any, str, Any]]:
    """Return the patches for the clock of ``django.utils.timezone.now`` and of run ids, which begin with the time.

    The patch is inside the module ``timezone``, so it also works for code that imported ``now`` by name.
    """
    id_counter = count(1)

    # timezone.now() calls datetime.now(). The stand-in is a subclass, so real datetimes must still pass isinstance
    # checks against it.
    class VirtualDatetimeType(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, datetime)

    class VirtualDatetime(datetime, metaclass=VirtualDatetimeType):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            local_time = env.clock.astimezone(tz)
            return local_time if tz is not None else local_time.replace(tzinfo=None)

    # In integers: a float of seconds has too few digits for nanoseconds.
    def time_ns() -> int:
        elapsed = env.clock - _EPOCH
        micros = (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds
        return micros * 1_000 + next(id_counter) * _BETWEEN_IDS

    return [(timezone, "datetime", VirtualDatetime), (ids, "time", SimpleNamespace(time_ns=time_ns))]


def _turn_patches(env: DjangoEnvironment) -> list[tuple[Any, str, Any]]:
    """Return the patches that make turns inside requests use the environment's engine, with its cache."""
    original_engine, original_follow_up = inline_turn.engine, inline_turn._follow_up  # noqa: SLF001 - the patch calls it

    def environment_engine(alias: str) -> WorkflowEngine:
        return env.engine if alias == env.storage.alias else original_engine(alias)

    def note_follow_up(report: TurnReport, *, storage: DjangoStorage) -> None:
        env.note(report)
        original_follow_up(report, storage=storage)

    return [(inline_turn, "engine", environment_engine), (inline_turn, "_follow_up", note_follow_up)]
