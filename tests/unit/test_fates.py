from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from temporalex_django.engine.activity_policy import TurnDecision, decide, is_due, is_parked
from temporalex_django.engine.contracts.records import RunState

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(seconds=1)


def _run(**given) -> RunState:
    return RunState(
        chain_id=UUID(int=1), run_id=UUID(int=2), queue="default", head_token=None, length=0, activations=0, activated_at=None,
        **{"due_at": None, "deadline": None} | given,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("run", "told", "fate"),
    [
        ({}, {}, TurnDecision.ACTIVATE),
        ({}, {"atomic": True}, TurnDecision.ATOMIC),
        ({}, {"parked": True, "atomic": True}, TurnDecision.PARK),
        ({}, {"closing": True, "parked": True, "atomic": True}, TurnDecision.END),
        ({"closed": True}, {"closing": True, "parked": True, "atomic": True}, TurnDecision.ANSWER),
    ],
)
def test_what_comes_first_decides(run, told, fate):
    assert decide(_run(**run), **{"closing": False, "parked": False, "atomic": False} | told) is fate


@pytest.mark.parametrize(
    ("run", "force", "waiting"),
    [
        ({}, False, False),
        ({"paused": True}, False, True),
        ({"paused": True}, True, True),
        ({"failed_tries": 1, "due_at": LATER}, False, True),
        ({"failed_tries": 1, "due_at": None}, False, True),
        ({"failed_tries": 1, "due_at": LATER}, True, False),
        ({"failed_tries": 1, "due_at": NOW}, False, False),
        ({"closed": True, "paused": True}, False, False),
    ],
)
def test_a_blocked_run_is_tried_when_it_is_due_or_when_somebody_insists(run, force, waiting):
    assert is_parked(_run(**run), NOW, force=force) is waiting


def test_due():
    assert [is_due(moment, NOW) for moment in (None, LATER, NOW, NOW - timedelta(days=1))] == [False, False, True, True]
