"""Schedules under random events: memory and database decide alike, and what the policies promise holds."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from temporalex_django import Err, Ok, Overlap, Schedule, Workflow, api
from temporalex_django.authoring.schedules import schedule as declarations
from temporalex_django.errors import ActionNotPossible
from temporalex_django.testing import DjangoEnvironment, WorkflowEnvironment
from tests.property.examples import examples

#: Shortly before the clock change of March, so that the schedules of a zone go through it.
BEGIN = datetime(2026, 3, 28, 12, tzinfo=UTC)
_numbers = count()


class ScheduledWork(Workflow):
    """Runs for so many minutes, then completes or fails."""

    async def run(self, args: dict[str, int]) -> Any:
        if args["minutes"]:
            await api.sleep(timedelta(minutes=args["minutes"]))
        return Err("failed on purpose") if args["fails"] else Ok(None)


DECLARATIONS = st.fixed_dictionaries(
    {
        "timing": st.sampled_from(
            [
                {"cron": "*/20 * * * *"},
                {"cron": "30 1,2,3 * * *", "tz": "Europe/Berlin"},
                {"cron": ["0 * * * *", "30 */2 * * *"], "tz": "America/New_York"},
                {"every": timedelta(minutes=25), "offset": timedelta(minutes=7)},
            ]
        ),
        "overlap": st.sampled_from(list(Overlap)),
        "pause_after": st.sampled_from([None, None, 2]),
        "max_fires": st.sampled_from([None, None, 4]),
        "jitter": st.sampled_from([None, timedelta(minutes=5)]),
        "args": st.fixed_dictionaries(
            {"minutes": st.sampled_from([0, 5, 45, 130]), "fails": st.sampled_from([0, 0, 1])}
        ),
    }
)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("advance"), st.integers(1, 240)),
        st.tuples(st.just("advance"), st.integers(1, 240)),
        st.tuples(st.sampled_from(["trigger", "pause", "unpause", "terminate", "add"]), st.just(0)),
    ),
    min_size=1,
    max_size=12,
)


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    before = dict(declarations._declarations)
    yield
    declarations._declarations.clear()
    declarations._declarations.update(before)


def play(env: Any, schedule: Schedule, events: list[tuple[str, int]]) -> list[tuple[Any, ...]]:
    """Let the events happen, and return the slots with their outcomes and the ends of their runs."""
    name = schedule.name
    env.schedule(schedule)
    for event, minutes in events:
        try:
            match event:
                case "advance":
                    env.advance(minutes=minutes)
                case "terminate":
                    for handle in env.list(ScheduledWork):
                        if handle.describe().status == "waiting":
                            handle.terminate(reason="enough")
                case "add":
                    env.schedule(schedule)
                case _:
                    getattr(env.schedules, event)(name)
        except ActionNotPossible:
            pass  # it is paused, or is not
    return [
        (
            *(slot.at, str(slot.cause), str(slot.outcome), str(slot.reason), slot.workflow_id, slot.decided_at),
            env.handle(slot.workflow_id).describe().status if slot.workflow_id else None,
        )
        for slot in env.schedules.slots(name)
    ]


def declare(options: dict[str, Any]) -> Schedule:
    values = {name: value for name, value in options.items() if name != "timing"}
    return Schedule(f"random-{next(_numbers)}", ScheduledWork, **options["timing"], **values)


def check(schedule: Schedule, slots: list[tuple[Any, ...]], env: Any) -> None:
    """What holds whatever happened."""
    by_time = [slot for slot in slots if slot[1] == "time"]
    expected = [slot.instant for slot in schedule.table.slots(BEGIN, until=env.now())]
    assert [slot[0] for slot in by_time] == expected[: len(by_time)], "each time once, in order, without a gap"
    fires = sum(slot[2] in ("started", "waiting") for slot in by_time)
    assert schedule.max_fires is None or fires <= schedule.max_fires
    if schedule.max_fires is None:
        late = timedelta(minutes=5) if schedule.jitter else timedelta(0)
        assert all(at + late > env.now() for at in expected[len(by_time) :])
    started = [slot for slot in slots if slot[2] == "started"]
    running = [slot for slot in started if slot[6] == "waiting"]
    if schedule.overlap is not Overlap.ALLOW_ALL:
        assert len(running) <= 1
    waiting = [slot for slot in slots if slot[2] == "waiting"]
    if schedule.overlap in (Overlap.BUFFER_ONE, Overlap.CANCEL_OTHER):
        assert len(waiting) <= 1
    if schedule.overlap in (Overlap.SKIP, Overlap.ALLOW_ALL, Overlap.TERMINATE_OTHER):
        assert not waiting
    assert len(env.list(ScheduledWork)) == len(started)


@examples(0.3)
@given(options=DECLARATIONS, events=EVENTS, evict=st.booleans())
def test_in_memory_every_slot_has_one_outcome(options: dict[str, Any], events: Any, evict: bool) -> None:
    env, schedule = WorkflowEnvironment(now=BEGIN, evict=evict), declare(options)

    check(schedule, play(env, schedule, events), env)
    env.replay_all()


@pytest.mark.django_db
@examples(0.1)
@example(
    options={
        "timing": {"cron": "*/20 * * * *"},
        "overlap": Overlap.BUFFER_ALL,
        "pause_after": 2,
        "max_fires": 4,
        "jitter": None,
        "args": {"minutes": 130, "fails": 1},
    },
    events=[("advance", 150), ("add", 0), ("advance", 240), ("pause", 0), ("add", 0), ("advance", 60)],
)
@given(options=DECLARATIONS, events=EVENTS)
def test_the_database_decides_as_memory_does(options: dict[str, Any], events: Any) -> None:
    from django.db import transaction

    schedule = declare(options)
    with transaction.atomic():
        stored = DjangoEnvironment(now=BEGIN)
        in_database = play(stored, schedule, events)
        check(schedule, in_database, stored)
        transaction.set_rollback(True)

    assert in_database == play(WorkflowEnvironment(now=BEGIN), schedule, events)
