"""Whoever made a run begin has been involved in it, in whatever way, and does not decide in it under four eyes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.utils import timezone

from temporalex_django import Ok, Overlap, Schedule, Workflow, api, errors
from temporalex_django.authoring.schedules import schedule as declarations
from temporalex_django.authoring.schedules.specs import parse_specs
from temporalex_django.models import Chain, Instance
from temporalex_django.models import Schedule as ScheduleRow
from temporalex_django.operations.base import CODE, Actor
from temporalex_django.operations.schedules import fire
from temporalex_django.operations.schedules.definition import KEPT, ScheduleDefinition
from temporalex_django.operations.schedules.operations import (
    BackfillSchedule,
    PauseSchedule,
    TriggerSchedule,
    UnpauseSchedule,
)
from temporalex_django.operations.schedules.save import SaveSchedule
from temporalex_django.operations.schedules.sync import sync_schedules
from temporalex_django.testing import drain

pytestmark = pytest.mark.django_db(transaction=True)

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
CODES = (
    *("manage_schedule", "view_schedule", "start_instance", "view_instance", "reset_instance", "signal_instance"),
    "change_group",
)


class Paying(Workflow):
    name = "test.ScheduledPaying"

    async def run(self, args: Any = None) -> Any:
        scope = "run" if args == "run" else True
        return Ok((await api.approval("Pay it", role="auth.change_group", four_eyes=scope)).by.name)


@pytest.fixture(autouse=True)
def declared() -> Iterator[None]:
    before = dict(declarations._declarations)
    declarations._declarations.clear()
    yield
    declarations._declarations.clear()
    declarations._declarations.update(before)


def person(name: str) -> Any:
    user = get_user_model().objects.create_user(name)
    user.user_permissions.set(Permission.objects.filter(codename__in=CODES))
    return get_user_model().objects.get(pk=user.pk)


def actor(user: Any) -> Actor:
    return CODE if user is None else Actor(user=user, source="rest")


def save(user: Any, *, create: bool = False, **values: Any) -> None:
    kept = {} if create else {"args": KEPT}
    options = {**kept, "specs": parse_specs(every=DAY), "overlap": Overlap.BUFFER_ALL, "catch_up": 30 * DAY, **values}
    definition = ScheduleDefinition(name="pay", workflow=Paying.name, **options)
    SaveSchedule(definition, create=create, by=actor(user)).execute()


def fire_all() -> None:
    while fire.fire_due("default"):
        pass
    drain()


def by_time() -> None:
    due = timezone.now() - timedelta(minutes=1)
    ScheduleRow.objects.update(position=due - 2 * DAY, next_at=due, last_walls={})
    fire_all()


def trigger(user: Any) -> None:
    TriggerSchedule("pay", by=actor(user)).execute()
    drain()


def backfill(user: Any) -> None:
    now = timezone.now()
    BackfillSchedule("pay", start=now - 1.5 * DAY, end=now, by=actor(user)).execute()
    fire_all()


def edit(**values: Any) -> Callable[[Any], None]:
    def edit_and_fire(user: Any) -> None:
        save(user, **values)
        by_time()

    return edit_and_fire


def edit_then_replace(user: Any) -> None:
    """Another edit by another person does not wash the first one off."""
    save(user, args=1)
    save(person("dora"), args=2)
    by_time()


def pause(user: Any) -> None:
    PauseSchedule("pay", by=actor(user)).execute()
    UnpauseSchedule("pay", by=actor(user)).execute()
    by_time()


def wait_behind_another(user: Any) -> None:
    """The slot waits for a run that is open, and the worker starts it later."""
    TriggerSchedule("pay", by=CODE).execute()
    TriggerSchedule("pay", by=actor(user)).execute()
    first = Instance.objects.get(closed_at=None)
    Paying.handle(first.workflow_id).terminate(reason="next")
    fire_all()


def start(user: Any) -> None:
    Paying.start(id="started", by=user)
    drain()


def signal_with_start(user: Any) -> None:
    Paying.signal_with_start("hello", id="signalled", by=user)
    drain()


def debounce(user: Any) -> None:
    for starter in (person("dora"), user, person("eve")):
        Paying.start(id="debounced", debounce=DAY, by=starter)
    earlier = timezone.now() - HOUR
    Instance.objects.update(starts_at=earlier)
    Chain.objects.update(due_at=earlier)
    drain()


def fork(user: Any) -> None:
    run = Paying.start(id="original", by=person("dora"))
    drain()
    run.fork(id="forked", by=user)
    run.terminate(reason="forked")
    drain()


#: Ways to make a run begin: what the user does, and whether they have been involved in the run then.
WAYS = [
    (trigger, True),
    (backfill, True),
    (edit(specs=parse_specs(every=DAY, offset=HOUR)), True),
    (edit(tz="Europe/Berlin"), True),
    (edit(start=datetime(2020, 1, 1, tzinfo=UTC)), True),
    (edit(args=1), True),
    (edit_then_replace, True),
    (wait_behind_another, True),
    (start, True),
    (signal_with_start, True),
    (debounce, True),
    (fork, True),
    (pause, False),
]


def assert_four_eyes(user: Any, *, is_involved: bool) -> None:
    run = Instance.objects.filter(closed_at=None).latest("started_at")
    handle = Paying.handle(run.workflow_id)
    if is_involved:
        with pytest.raises(errors.FourEyes, match=f"{user} may not decide"):
            handle.decide("approved", by=user)
        user = person("cleo")
    handle.decide("approved", by=user)
    drain()
    assert handle.result() == str(user)


@pytest.mark.parametrize(("way", "is_involved"), WAYS)
@pytest.mark.parametrize("owner", ["ann", None])
def test_who_makes_a_run_begin_does_not_decide_in_it(way: Any, owner: str | None, *, is_involved: bool) -> None:
    save(None if owner is None else person(owner), create=True, args="run" if owner is None else None)
    user = person("bob")
    way(user)
    assert_four_eyes(user, is_involved=is_involved)


def test_who_edits_another_option_has_not_been_involved() -> None:
    save(person("ann"), create=True)
    user = person("bob")
    edit(max_fires=100)(user)
    assert_four_eyes(user, is_involved=False)


@pytest.mark.parametrize("way", [trigger, backfill])
def test_a_schedule_of_code_excludes_who_fires_it(way: Any) -> None:
    Schedule("pay", Paying, cron="0 0 * * *")
    sync_schedules("default")
    user = person("bob")
    way(user)
    assert_four_eyes(user, is_involved=True)


def test_the_owner_stays_excluded_from_what_another_person_triggers() -> None:
    ann = person("ann")
    save(ann, create=True)
    trigger(person("bob"))
    assert_four_eyes(ann, is_involved=True)
