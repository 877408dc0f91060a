"""What stands under the application while a ``DjangoEnvironment`` is entered: its clock, its turns, its commit points.

Views, signal receivers and activities then start and message runs of the environment by the ways that they always use.
Nothing of it is there outside of ``with``.
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

from temporalex_django.actions import inline, waiting
from temporalex_django.actions.live_workers import LiveWorkers
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine import ids
from temporalex_django.engine.report import TurnReport
from temporalex_django.engine.turn import WorkflowEngine
from temporalex_django.errors import TemporalexError
from temporalex_django.testing.commits import commit_point, robustly, under_way

if TYPE_CHECKING:
    from temporalex_django.testing.database import DjangoEnvironment

_EPOCH = datetime.fromtimestamp(0, tz=timezone.get_fixed_timezone(0))
#: Ids of one instant of the virtual clock keep their order: so many nanoseconds lie between two of them.
_BETWEEN_IDS = 1_000
_under: list[DjangoEnvironment] = []


class EnvironmentCircumstances(waiting.Circumstances):
    """Whoever waits lets the environment do what there is to do."""

    def __init__(self, env: DjangoEnvironment) -> None:
        self.meanwhile = env.work

    def inside(self, alias: str) -> bool:
        """The transaction of a ``TestCase`` is no transaction of the application's."""
        return under_way(alias)


@contextmanager
def installed(env: DjangoEnvironment) -> Iterator[None]:
    """Put the environment under the application. Raises ``TemporalexError`` where another one is already."""
    if _under:
        raise TemporalexError("a DjangoEnvironment is entered already: the application runs on one at a time")
    _under.append(env)
    try:
        with ExitStack() as stack:
            for owner, name, stand_in in _stand_ins(env):
                stack.enter_context(patch.object(owner, name, stand_in))
            yield
    finally:
        _under.remove(env)


def is_entered(env: DjangoEnvironment) -> bool:
    """Whether the application runs on this environment now."""
    return env in _under


def _stand_ins(env: DjangoEnvironment) -> list[tuple[Any, str, Any]]:
    return [
        *_of_the_storage(env),
        *_of_the_clock(env),
        *_of_turns(env),
        (waiting, "here", EnvironmentCircumstances(env)),
        # the environment takes all that is due
        (LiveWorkers, "missing", lambda _self, **_asked: None),
        (LiveWorkers, "has", lambda _self, _activity, **_asked: True),
        (LiveWorkers, "without_taker", lambda _self: Q(pk__in=[])),
    ]


def _of_the_storage(env: DjangoEnvironment) -> list[tuple[Any, str, Any]]:
    made, transaction, on_commit = DjangoStorage.__init__, DjangoStorage.transaction, DjangoStorage.on_commit

    def init(self: DjangoStorage, *given: Any, **options: Any) -> None:
        made(self, *given, **options)
        if self.clock is None and self.alias == env.storage.alias:
            self.clock = env.now

    @contextmanager
    def committing(self: DjangoStorage, *given: Any, **options: Any) -> Iterator[None]:
        with commit_point(self.alias), transaction(self, *given, **options):
            yield

    def after_the_commit(self: DjangoStorage, callback: Callable[[], None]) -> None:
        if under_way(self.alias):
            on_commit(self, callback)
        else:
            robustly(callback)

    return [
        (DjangoStorage, "__init__", init),
        (DjangoStorage, "transaction", committing),
        (DjangoStorage, "on_commit", after_the_commit),
    ]


def _of_the_clock(env: DjangoEnvironment) -> list[tuple[Any, str, Any]]:
    """``django.utils.timezone.now``, by whatever name somebody has it; ids of runs begin with the time."""
    drawn = count(1)

    class Virtual(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, datetime)

    class VirtualDatetime(datetime, metaclass=Virtual):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            here = env.clock.astimezone(tz)
            return here if tz is not None else here.replace(tzinfo=None)

    def time_ns() -> int:
        since = env.clock - _EPOCH
        micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
        return micros * 1_000 + next(drawn) * _BETWEEN_IDS

    return [(timezone, "datetime", VirtualDatetime), (ids, "time", SimpleNamespace(time_ns=time_ns))]


def _of_turns(env: DjangoEnvironment) -> list[tuple[Any, str, Any]]:
    """Turns in requests are those of the environment's engine, with its memory."""
    engine, follow_up = inline.engine, inline._follow_up  # noqa: SLF001 - it is put back

    def of_the_environment(alias: str) -> WorkflowEngine:
        return env.engine if alias == env.storage.alias else engine(alias)

    def noted(report: TurnReport, *, storage: DjangoStorage) -> None:
        env.note(report)
        follow_up(report, storage=storage)

    return [(inline, "engine", of_the_environment), (inline, "_follow_up", noted)]
