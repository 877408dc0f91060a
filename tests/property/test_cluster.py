"""A real server of Temporal gives what memory gives, also if a worker dies."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.property import grammar
from tests.property.playing import Played, play
from tests.support.campaign import REPEATED
from tests.support.hosts import TEMPORAL

#: Programs in each run of the suite, and with ``make conformance HOSTS=temporal``.
FEW, MANY = 4, 200
COUNT = MANY if os.environ.get("HOSTS") in TEMPORAL else FEW


def portable(step: Any) -> Any:
    """A program without what differs by design.

    These are random numbers, starts at a later time, and messages that are sent together with the start of their
    receiver or by it.
    """
    if isinstance(step, dict):
        return {key: None if key == "begins" else portable(value) for key, value in step.items()}
    if not isinstance(step, (list, tuple)):
        return step
    if step and (step[0] in ("draw", "strict") or step[:2] == ("tell", "program")):
        return ("publish",)
    if step and step[0] == "child":
        return (*map(portable, step[:5]), None)
    return type(step)(portable(part) for part in step)


#: One event at a time: the server orders what arrives together in its own way.
events = st.lists(grammar.event, min_size=4, max_size=12)
ENDS = [event for event in grammar.FINISH if event[0] not in ("unpause", "edit", "redeliver", "delete")]


#: A cluster has one answer for a run that is closed, unknown, or takes no such signal.
_UNREACHABLE = ("WorkflowClosed", "WorkflowNotFound", "UnknownSignal")


def comparable(value: Any) -> Any:
    """Plain data without words that each host has of its own."""
    if isinstance(value, dict):
        return {key: comparable(part) for key, part in value.items() if key != "traceback"}
    if isinstance(value, str):
        return re.sub(r"reference [0-9a-f]+", "reference", value)
    if not isinstance(value, (list, tuple)):
        return value
    if len(value) >= 2 and value[-2] in _UNREACHABLE:
        return [*value[:-2], "unreachable"]
    return [comparable(part) for part in value]


def ends(played: Played) -> Any:
    """How each run of the program and its children ended, and what its updates were answered."""
    found = []
    for chain_id in played.env.chain_ids():
        for run_id in played.env.run_ids(chain_id):
            row = played.env.row(run_id)
            log = row.published and row.published["log"]
            found.append([row.facts.workflow_id, row.status, row.closing, log])
    return comparable(found), comparable(played.outcomes())


@pytest.mark.once
@settings(
    max_examples=COUNT,
    derandomize=REPEATED,
    deadline=None,
    database=None,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
@given(grammar.program.map(portable), events, st.integers(1, 12))
def test_a_cluster_whose_worker_dies_gives_what_memory_gives(
    temporal_address: str, program: Any, schedule: Any, dies_at: int
) -> None:
    """The worker does an activation of some run and never sends its commands. Another worker does it again."""
    from tests.support.temporal.environment import TemporalEnvironment

    schedule = [*schedule, *ENDS]
    memory = play(program, schedule, admit_updates=True)
    env = TemporalEnvironment(temporal_address, dies_at=dies_at)
    try:
        cluster = play(program, schedule, env)
        env.check()
        assert ends(cluster) == ends(memory)
    finally:
        env.close_down()
