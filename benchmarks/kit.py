"""``kit``: a run with a timer and an activity in a ``DjangoEnvironment``, as a user's ``TestCase`` drives it."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

#: Runs that are timed together: the clock of the processor is coarse.
_TOGETHER = 10


def run(rounds: int) -> dict[str, Any]:
    """Measure ms of processor time for a run, the best of the rounds, and its statements.

    ``in_memory_ms`` is the same in a ``WorkflowEnvironment``. The runs share one transaction, which is rolled back.
    """
    from django.db import connection, transaction
    from django.test.utils import CaptureQueriesContext

    from temporalex_django.testing import DjangoEnvironment, WorkflowEnvironment

    environment = partial(DjangoEnvironment, allow_database=str(connection.settings_dict["NAME"]))
    block: Any = transaction.atomic()
    block._from_testcase = True  # as a TestCase marks its own
    with block:
        _drive(environment())
        with CaptureQueriesContext(connection) as queries:
            _drive(environment())
        stored = min(_timed(environment) for _ in range(rounds))
        transaction.set_rollback(True)
    return {
        "statements": len(queries),
        "ms": round(stored, 2),
        "in_memory_ms": round(min(_timed(WorkflowEnvironment) for _ in range(rounds)), 2),
    }


def _drive(env: Any) -> None:
    from benchmarks.app.workflows import Alarm

    env.start(Alarm)
    env.advance(hours=1)


def _timed(environment: Any) -> float:
    """Return the ms of processor time of a run."""
    began = time.process_time()
    for _ in range(_TOGETHER):
        _drive(environment())
    return (time.process_time() - began) / _TOGETHER * 1000
