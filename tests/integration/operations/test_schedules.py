"""Schedules in the database: who may change them, what workers make of those that are due, and what goes wrong."""

from __future__ import annotations

import shutil
import threading
import zoneinfo
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connections, transaction
from django.db.models import F
from django.utils import timezone

from temporalex_django import Ok, Overlap, Schedule, Workflow, api, errors
from temporalex_django.access import AccessPolicy
from temporalex_django.authoring.schedules import functions
from temporalex_django.authoring.schedules import schedule as declarations
from temporalex_django.authoring.schedules.slots import load_zone
from temporalex_django.authoring.schedules.specs import parse_specs
from temporalex_django.db import background_hooks
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine import policy
from temporalex_django.models import Instance, OperatorAction, ScheduleSlot
from temporalex_django.models import Schedule as ScheduleRow
from temporalex_django.operations.base import CODE, Actor
from temporalex_django.operations.fleet import switches
from temporalex_django.operations.schedules import fire
from temporalex_django.operations.schedules.definition import KEPT, ScheduleDefinition, hanging_functions
from temporalex_django.operations.schedules.describe import describe_schedule, describe_schedules
from temporalex_django.operations.schedules.operations import (
    BackfillSchedule,
    DeleteSchedule,
    PauseSchedule,
    StopBackfill,
    TriggerSchedule,
    UnpauseSchedule,
    find_schedule,
    preview_backfill,
    visible_schedules,
)
from temporalex_django.operations.schedules.save import SaveSchedule
from temporalex_django.operations.schedules.sync import schedule_differences, sync_schedules
from temporalex_django.testing import drain
from temporalex_django.workers.loop import WorkerLoop
from temporalex_django.workers.maintenance import Maintenance

pytestmark = pytest.mark.django_db(transaction=True)

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
#: The last slot of the schedules of these tests; the next one comes a day later, so none comes while a test runs.
LAST = timezone.now().replace(microsecond=0) - timedelta(minutes=1)


class StoredReport(Workflow):
    start_permission = "temporalex_django.view_worker"

    async def run(self, amount: int = 0) -> Any:
        return Ok(amount)


class StoredHelper(Workflow):
    internal = True

    async def run(self, args: None = None) -> Any:
        return Ok(None)


class StoredWait(Workflow):
    async def run(self, args: None = None) -> Any:
        await api.sleep(timedelta(days=1))
        return Ok(None)


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """A test begins without schedules of code, and what it declares and registers is gone afterwards."""
    before = dict(declarations._declarations), dict(functions.ARGUMENTS._functions), dict(functions.HOLIDAYS._functions)
    declarations._declarations.clear()
    yield
    for registry, kept in zip(
        (declarations._declarations, functions.ARGUMENTS._functions, functions.HOLIDAYS._functions), before, strict=True
    ):
        registry.clear()
        registry.update(kept)


def person(name: str, *codes: str) -> Any:
    user = get_user_model().objects.create_user(name)
    user.user_permissions.set(Permission.objects.filter(codename__in=codes))
    return get_user_model().objects.get(pk=user.pk)


def manager(name: str = "ann") -> Any:
    return person(name, "manage_schedule", "view_schedule", "start_instance", "view_worker", "view_instance")


def definition(
    name: str = "report", workflow: type[Workflow] = StoredReport, cron: str | None = None, **values: Any
) -> ScheduleDefinition:
    specs = parse_specs(every=DAY, offset=timedelta(seconds=LAST.timestamp() % DAY.total_seconds()))
    if cron is not None:
        specs = parse_specs(cron=cron)
    return ScheduleDefinition(
        **{"name": name, "workflow": workflow.name, "specs": specs, "catch_up": 30 * DAY, **values}
    )


def save(by: Any = None, **values: Any) -> ScheduleRow:
    return SaveSchedule(definition(**values), create=True, by=Actor(user=by, source="rest")).execute()


class ByPrefix(AccessPolicy):
    """The names of a tenant's schedules begin with the name of its user."""

    def narrow_schedules(self, user: Any, schedules: Any) -> Any:
        return schedules.filter(name__startswith=user.username)


def test_the_name_of_a_schedule_of_another_tenant_is_no_oracle(settings: Any) -> None:
    settings.TEMPORALEX = {**settings.TEMPORALEX, "ACCESS_POLICY": f"{__name__}.ByPrefix"}
    ann, bob = manager("ann"), manager("bob")
    save(bob, name="bob-report")
    with pytest.raises(errors.ActionNotPermitted) as caught:
        save(ann, name="bob-report")
    assert "bob" not in str(caught.value)
    assert "choose another name" in str(caught.value)
    assert "already" not in str(caught.value)
    assert [*ScheduleRow.objects.values_list("name", flat=True)] == ["bob-report"]
    save(ann, name="ann-report")
    with pytest.raises(errors.ActionNotPossible, match="choose another name"):
        save(ann, name="ann-report")


def make_due(name: str = "report", slots: int = 1) -> datetime:
    """Let so many slots of a schedule be due; return the time of the last one."""
    ScheduleRow.objects.filter(name=name).update(position=LAST - slots * DAY, next_at=LAST, last_walls={})
    return LAST


def fire_all() -> None:
    """A worker fires what is due."""
    while fire.fire_due("default"):
        pass


def outcomes(name: str = "report") -> list[tuple[str, str]]:
    slots = ScheduleSlot.objects.filter(schedule__name=name).order_by("at")
    return [(slot.outcome, slot.error_code or slot.reason) for slot in slots]


# -- firing -----------------------------------------------------------------------------------------------------------


def test_a_worker_fires_what_is_due_and_the_run_belongs_to_the_slot() -> None:
    save(args=7)
    at = make_due()

    drain()

    slot, run = ScheduleSlot.objects.get(), Instance.objects.get()
    assert (slot.at, slot.outcome, slot.run_id, slot.chain_id) == (at, "started", run.pk, run.chain_id)
    assert (run.workflow_id, run.scheduled_for, run.closing_value) == (f"report-{at:%Y%m%dT%H%M}", at, {"result": 7})
    row = ScheduleRow.objects.get()
    assert (row.position, row.fires) == (at, 1)
    assert row.next_at == at + DAY


def test_the_thread_of_a_worker_fires_schedules() -> None:
    save()
    make_due()
    loop = WorkerLoop(kind="worker")
    maintenance = Maintenance(loop)
    loop.row.register(maintenance.storage)

    maintenance.run_pass()
    thread = maintenance.schedule_thread._thread
    assert thread is not None
    thread.join(20)
    maintenance.schedule_thread.stop()

    assert outcomes() == [("started", "")]
    assert not background_hooks.has_work("default", background_hooks.SCHEDULE_HOOKS)


def test_workers_that_fire_at_once_start_each_slot_once() -> None:
    for number in range(20):
        save(name=f"report-{number}", overlap=Overlap.ALLOW_ALL)
        make_due(f"report-{number}", slots=2)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            fire_all()
        except BaseException as exc:
            failures.append(exc)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    fire_all()

    assert failures == []
    assert Instance.objects.count() == ScheduleSlot.objects.filter(outcome="started").count() == 40


def test_idle_schedules_cost_one_read(django_assert_num_queries: Any) -> None:
    save()

    with django_assert_num_queries(1):
        assert not fire.has_due("default")


def test_a_waiting_slot_starts_when_the_run_before_has_closed() -> None:
    save(workflow=StoredWait, overlap=Overlap.BUFFER_ONE)
    make_due(slots=2)
    fire_all()
    assert outcomes() == [("started", ""), ("waiting", "overlap")]
    ScheduleRow.objects.update(next_at=timezone.now() + HOUR)
    assert not fire.has_due("default")

    StoredWait.handle(ScheduleSlot.objects.earliest("at").workflow_id).terminate(reason="enough")
    assert fire.has_due("default")
    fire_all()

    assert outcomes() == [("started", "")] * 2


def test_a_waiting_slot_starts_once_its_schedule_allows_runs_side_by_side() -> None:
    save(workflow=StoredWait, overlap=Overlap.BUFFER_ONE)
    make_due(slots=2)
    fire_all()
    ScheduleRow.objects.update(next_at=timezone.now() + HOUR, overlap=Overlap.ALLOW_ALL)

    assert fire.has_due("default")
    fire_all()

    assert outcomes() == [("started", "")] * 2
    assert not fire.has_due("default")


@pytest.mark.parametrize(
    ("overlap", "status"), [(Overlap.CANCEL_OTHER, "cancelled"), (Overlap.TERMINATE_OTHER, "terminated")]
)
def test_other_runs_are_stopped(overlap: Overlap, status: str) -> None:
    save(workflow=StoredWait, overlap=overlap)
    make_due(slots=2)

    drain()

    first, second = Instance.objects.order_by("id")
    assert (first.status, second.status) == (status, "waiting")
    assert outcomes() == [("started", "")] * 2


@pytest.fixture
def other_time_data(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Give this process time zone data in which Berlin has the clock of London, as another worker may have them."""
    folder = next((Path(path) for path in zoneinfo.TZPATH if (Path(path) / "Europe/London").exists()), None)
    if folder is None:
        folder = Path(str(resources.files("tzdata") / "zoneinfo"))
    (tmp_path / "Europe").mkdir()
    shutil.copy(folder / "Europe/London", tmp_path / "Europe/Berlin")
    before = zoneinfo.TZPATH

    def use(*paths: str) -> None:
        zoneinfo.reset_tzpath(to=paths or before)
        zoneinfo.ZoneInfo.clear_cache()
        load_zone.cache_clear()

    yield lambda: use(str(tmp_path))
    use()


def test_two_workers_with_different_time_zone_data_fire_a_slot_once(other_time_data: Callable[[], None]) -> None:
    wall = (timezone.now() - 2 * HOUR).astimezone(zoneinfo.ZoneInfo("Europe/Berlin"))
    save(cron=f"{wall.minute} {wall.hour} * * *", tz="Europe/Berlin", overlap=Overlap.ALLOW_ALL)
    before = timezone.now() - 10 * HOUR
    ScheduleRow.objects.update(position=before, next_at=before)
    fire_all()
    assert outcomes() == [("started", "")]

    other_time_data()
    due_now = {"position": F("position"), "next_at": timezone.now()}
    ScheduleRow.objects.update(**due_now)
    fire_all()
    assert outcomes() == [("started", "")]
    # Its clock shows that time an hour later, which only the wall-clock time of the last slot tells from a new one.
    ScheduleRow.objects.update(**due_now, last_walls={})
    fire_all()
    assert outcomes() == [("started", ""), ("failed", "already_running")]


# -- people -----------------------------------------------------------------------------------------------------------


def test_people_need_every_permission_to_save() -> None:
    codes = ["manage_schedule", "start_instance", "view_worker", "cancel_instance"]
    for missing in codes:
        user = person(f"without-{missing}", *(code for code in codes if code != missing))
        with pytest.raises(errors.ActionNotPermitted):
            save(user, overlap=Overlap.CANCEL_OTHER)
    assert not ScheduleRow.objects.exists()
    assert set(OperatorAction.objects.values_list("action", flat=True)) == {"save_schedule"}
    save(person("with-all", *codes), overlap=Overlap.CANCEL_OTHER)


def test_people_cannot_schedule_an_internal_class() -> None:
    with pytest.raises(errors.ActionNotPermitted, match="internal"):
        save(manager(), workflow=StoredHelper)
    save(workflow=StoredHelper)


def test_the_starter_of_the_runs_is_who_changed_their_arguments_last() -> None:
    ann, bob = manager("ann"), manager("bob")
    specs = save(ann, args=1).specs
    change = definition(cron="*/2 * * * *", args=KEPT)
    assert SaveSchedule(change, create=False, by=Actor(user=bob, source="rest")).execute().editor == ann

    make_due()
    ScheduleRow.objects.update(specs=specs)
    fire_all()
    assert OperatorAction.objects.get(action="start").actor == ann
    change = definition(cron="*/2 * * * *", args=2)
    assert SaveSchedule(change, create=False, by=Actor(user=bob, source="rest")).execute().editor == bob


@pytest.mark.parametrize("lost", ["manage_schedule", "start_instance", "view_worker"])
def test_a_permission_that_was_lost_makes_the_slot_fail(lost: str) -> None:
    user = manager()
    save(user)
    user.user_permissions.remove(Permission.objects.get(codename=lost))
    make_due()

    fire_all()

    assert outcomes() == [("failed", "not_permitted")]
    assert not Instance.objects.exists()


def test_slots_of_a_user_who_is_gone_fail_until_somebody_saves() -> None:
    user = manager()
    save(user)
    user.delete()
    make_due(slots=2)
    fire_all()
    assert outcomes() == [("failed", "not_permitted")] * 2
    assert "ann no longer exists" in ScheduleSlot.objects.earliest("at").error

    change = definition(args=KEPT)
    SaveSchedule(change, create=False, by=Actor(user=manager("bob"), source="rest")).execute()
    ScheduleSlot.objects.all().delete()
    make_due()
    fire_all()
    assert outcomes() == [("started", "")]


def test_a_name_is_taken_once_and_an_unknown_one_is_said() -> None:
    save()
    with pytest.raises(errors.ActionNotPossible, match="already"):
        save()
    with pytest.raises(errors.ScheduleNotFound, match="'nightly'"):
        SaveSchedule(definition(name="nightly"), create=False).execute()
    for action in (PauseSchedule, UnpauseSchedule, TriggerSchedule, DeleteSchedule):
        with pytest.raises(errors.ScheduleNotFound):
            action("nightly").execute()


def test_a_changed_spec_begins_anew_and_another_change_does_not() -> None:
    row = save()
    make_due(slots=30)
    position = ScheduleRow.objects.get().position

    assert SaveSchedule(definition(overlap=Overlap.ALLOW_ALL), create=False).execute().position == position
    changed = SaveSchedule(definition(cron="*/5 * * * *"), create=False).execute()
    assert changed.position > row.position
    assert changed.last_walls == {}


# -- operations -------------------------------------------------------------------------------------------------------


def test_pause_and_unpause() -> None:
    save(manager())
    by = Actor(user=manager("bob"), source="admin")
    row = PauseSchedule("report", reason="stocktaking", by=by).execute()
    assert (row.paused_by, row.pause_reason) == ("bob", "stocktaking")
    with pytest.raises(errors.ActionNotPossible, match="already paused"):
        PauseSchedule("report", by=by).execute()
    make_due()
    fire_all()
    assert outcomes() == [("skipped", "paused")]
    ScheduleRow.objects.update(position=timezone.now() + HOUR)  # the clock was set back
    row = UnpauseSchedule("report", by=by).execute()
    assert row.position <= timezone.now()
    assert row.next_at is not None
    actions = OperatorAction.objects.filter(action__in=["pause_schedule", "unpause_schedule"], denied=False)
    assert [(action.actor_name, action.details["schedule"]) for action in actions] == [("bob", "report")] * 2


def test_a_trigger_starts_a_run_now_with_the_transaction_of_the_caller() -> None:
    save(args=3)
    with transaction.atomic():
        TriggerSchedule("report").execute()
        transaction.set_rollback(True)
    assert not Instance.objects.exists()

    user = manager()
    slot = TriggerSchedule("report", by=Actor(user=user, source="rest")).execute()
    assert (slot.outcome, slot.cause, slot.actor) == ("started", "trigger", "ann")
    user.user_permissions.remove(Permission.objects.get(codename="view_worker"))
    with pytest.raises(errors.ActionNotPermitted):
        TriggerSchedule("report", by=Actor(user=get_user_model().objects.get(), source="rest")).execute()


def test_a_backfill_is_previewed_bounded_and_done_by_workers() -> None:
    row = save(overlap=Overlap.ALLOW_ALL)
    end = make_due()
    start = end - 3 * DAY
    fire_all()
    preview = preview_backfill(ScheduleRow.objects.get(), start, end + HOUR, alias="default")
    assert (preview.slots, preview.started, preview.first, preview.last) == (4, 1, start, end)

    with pytest.raises(errors.ScheduleInvalid, match="more than 10,000 slots"):
        BackfillSchedule("report", start=start - 11_000 * DAY, end=end).execute()
    with pytest.raises(errors.ScheduleInvalid, match="per_minute"):
        BackfillSchedule("report", start=start, end=end, per_minute=0).execute()
    with pytest.raises(errors.ScheduleInvalid, match="past"):
        BackfillSchedule("report", start=end + HOUR, end=end + 2 * HOUR).execute()
    BackfillSchedule("report", start=start, end=end, per_minute=6000).execute()
    with pytest.raises(errors.ActionNotPossible, match="in progress"):
        BackfillSchedule("report", start=start, end=end).execute()
    while ScheduleRow.objects.get().backfill is not None:
        fire.fire_schedule(row.pk, DjangoStorage())
    assert outcomes() == [("started", "")] * 4
    with pytest.raises(errors.ActionNotPossible, match="nothing to do"):
        BackfillSchedule("report", start=start, end=end).execute()
    with pytest.raises(errors.ActionNotPossible, match="no backfill"):
        StopBackfill("report").execute()


def test_a_schedule_is_deleted_with_its_slots_and_its_runs_stay() -> None:
    save()
    make_due()
    fire_all()

    DeleteSchedule("report").execute()

    assert (ScheduleRow.objects.count(), ScheduleSlot.objects.count(), Instance.objects.count()) == (0, 0, 1)
    assert not fire.fire_schedule(1, DjangoStorage())


# -- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_function_that_raises_or_hangs_makes_its_slot_fail() -> None:
    release = threading.Event()

    def bad(slot: datetime) -> int:
        raise KeyError("S3CRET")

    def slow(slot: datetime) -> int:
        release.wait(60)
        return 1

    functions.ARGUMENTS.register(name="bad")(bad)
    functions.ARGUMENTS.register(name="slow")(slow)
    save(arguments_function="bad")
    save(name="slow", arguments_function="slow")
    make_due()
    make_due("slow", slots=2)
    with patch.object(policy, "ARGUMENTS_SECONDS", 0.1):
        fire_all()
    release.set()

    assert outcomes() == [("failed", "arguments")]
    assert ScheduleSlot.objects.get(schedule__name="report").error == "the arguments function bad: KeyError"
    assert outcomes("slow") == [("failed", "arguments")] * 2
    texts = [slot.error for slot in ScheduleSlot.objects.filter(schedule__name="slow").order_by("at")]
    assert ["did not return within" in texts[0], "has not returned since" in texts[1]] == [True, True]
    hanging_functions.pop("slow").join(20)
    make_due("slow")
    ScheduleSlot.objects.all().delete()
    fire_all()
    assert outcomes("slow") == [("started", "")]


def test_holidays_that_cannot_be_computed_are_said_and_tried_again() -> None:
    def broken(day: Any) -> bool:
        raise ZeroDivisionError

    functions.HOLIDAYS.register(name="region")(lambda day: False)
    SaveSchedule(
        ScheduleDefinition(
            name="report",
            workflow=StoredReport.name,
            specs=parse_specs(calendar="last working day 18:00", holidays="region"),
        ),
        create=True,
    ).execute()
    functions.HOLIDAYS._functions["region"] = broken
    make_due()

    fire_all()
    row = ScheduleRow.objects.get()
    assert "ZeroDivisionError" in row.error
    assert row.next_at is not None
    assert row.next_at > timezone.now()
    functions.HOLIDAYS._functions["region"] = lambda day: False
    ScheduleRow.objects.update(next_at=timezone.now())
    fire_all()
    assert ScheduleRow.objects.get().error == ""


def test_a_class_that_this_worker_lacks_is_left_to_others_for_a_minute() -> None:
    save()
    make_due()
    ScheduleRow.objects.update(workflow="Gone", next_at=timezone.now() - timedelta(seconds=30))
    assert not fire.has_due("default")

    ScheduleRow.objects.update(next_at=timezone.now() - timedelta(seconds=61))
    fire_all()
    assert outcomes() == [("failed", "unknown_workflow")]


@pytest.mark.postgres
def test_a_busy_run_delays_the_schedule_that_wants_to_terminate_it_and_no_other(settings: Any) -> None:
    settings.TEMPORALEX = {**settings.TEMPORALEX, "UPDATE_LOCK_WAIT": 0.05}
    save(workflow=StoredWait, overlap=Overlap.TERMINATE_OTHER)
    make_due(slots=2)
    fire.fire_schedule(ScheduleRow.objects.get().pk, DjangoStorage())
    chain = ScheduleSlot.objects.get().chain_id
    save(name="other")
    make_due("other")
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        storage = DjangoStorage()
        with storage.transaction():
            storage.lock_run(chain, wait=1)
            held.set()
            done.wait(60)
        connections.close_all()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(20)
    try:
        fire.fire_due("default")
        assert outcomes("other") == [("started", "")]
        assert outcomes() == [("started", "")]
    finally:
        done.set()
        thread.join(20)
    fire_all()
    assert outcomes()[-1] == ("started", "")


def test_a_schedule_that_cannot_be_read_is_postponed_and_stops_no_other() -> None:
    for name in ("first", "second"):
        save(name=name)
        make_due(name)
    ScheduleRow.objects.filter(name="first").update(overlap="unheard of")

    fire_all()

    row = ScheduleRow.objects.get(name="first")
    assert "cannot be read: correct overlap in its row" in row.error
    assert row.next_at is not None
    assert row.next_at > timezone.now()
    assert outcomes("second") == [("started", "")]
    assert not fire.has_due("default")


def test_a_slot_that_waits_is_not_tried_in_a_circle_while_its_schedule_is_broken() -> None:
    save(workflow=StoredWait, overlap=Overlap.BUFFER_ONE)
    make_due(slots=2)
    fire_all()
    StoredWait.handle(ScheduleSlot.objects.earliest("at").workflow_id).terminate(reason="enough")
    ScheduleRow.objects.update(specs=[{"type": "calendar", "rule": "last working day 18:00", "holidays": "nobody"}])
    assert fire.fire_due("default")

    assert not fire.has_due("default")
    assert "nobody" in ScheduleRow.objects.get().error


def test_a_run_that_was_reset_after_it_closed_is_open_for_the_next_slot() -> None:
    save(workflow=StoredWait)
    make_due(slots=2)
    fire.fire_schedule(ScheduleRow.objects.get().pk, DjangoStorage())
    handle = StoredWait.handle(ScheduleSlot.objects.get().workflow_id)
    drain()
    handle.terminate(reason="enough")
    ScheduleSlot.objects.update(running=False)  # a look has seen it closed
    handle.reset(0, reason="too early")

    ScheduleRow.objects.update(next_at=timezone.now())
    assert TriggerSchedule("report").execute().reason == "overlap"


def test_a_changed_time_table_ends_a_backfill() -> None:
    save(overlap=Overlap.ALLOW_ALL)
    end = make_due()
    fire_all()
    BackfillSchedule("report", start=end - 3 * DAY, end=end, per_minute=1).execute()

    SaveSchedule(definition(overlap=Overlap.ALLOW_ALL, cron="*/5 * * * *"), create=False).execute()

    assert ScheduleRow.objects.get().backfill is None


def test_far_jitter_odd_names_and_zones_of_machines_are_refused() -> None:
    for values, match in (
        ({"jitter": 400 * DAY}, "at most one day"),
        ({"name": ".."}, "dots"),
        ({"tz": "localtime"}, "machine"),
    ):
        with pytest.raises(errors.ScheduleInvalid, match=match):
            save(**values)


# -- code -------------------------------------------------------------------------------------------------------------


def test_schedules_of_code_are_created_changed_marked_as_gone_and_return() -> None:
    module = "tests.app.workflows"  # an installed app
    Schedule("declared", StoredReport, cron="0 4 * * *", args=1)
    object.__setattr__(declarations._declarations["declared"].schedule, "module", module)
    assert [(d.name, d.kind) for d in sync_schedules("default")] == [("declared", "new")]
    assert schedule_differences("default") == []
    PauseSchedule("declared", reason="stocktaking").execute()

    del declarations._declarations["declared"]
    assert [d.kind for d in sync_schedules("default")] == ["gone"]
    row = ScheduleRow.objects.get()
    assert (row.gone_since is not None, row.pause_reason, describe_schedule(row, CODE, alias="default").state) == (
        True,
        "stocktaking",
        "gone",
    )
    Schedule("declared", StoredReport, cron="0 5 * * *", args=1)
    object.__setattr__(declarations._declarations["declared"].schedule, "module", module)
    assert [d.kind for d in sync_schedules("default")] == ["returned"]
    row = ScheduleRow.objects.get()
    assert (row.gone_since, row.pause_reason) == (None, "stocktaking")
    assert row.specs == [{"type": "cron", "expression": "0 5 * * *"}]

    Schedule("declared-2", StoredReport, cron="0 5 * * *", args="x")
    save(name="people", cron="0 4 * * *")
    object.__setattr__(declarations._declarations["declared-2"].schedule, "name", "declared-2")
    kinds = {d.name: d.kind for d in sync_schedules("default")}
    assert kinds == {"declared-2": "invalid"}
    with pytest.raises(errors.ActionNotPossible, match="declared in tests.app.workflows"):
        SaveSchedule(definition(name="declared"), create=False).execute()
    with pytest.raises(errors.ActionNotPossible, match="remove it there"):
        DeleteSchedule("declared").execute()


def test_a_schedule_of_code_whose_module_is_not_loaded_is_left_alone() -> None:
    Schedule("elsewhere", StoredReport, cron="0 4 * * *")
    object.__setattr__(declarations._declarations["elsewhere"].schedule, "module", "not.installed")
    sync_schedules("default")
    del declarations._declarations["elsewhere"]

    assert sync_schedules("default") == []
    assert ScheduleRow.objects.get().gone_since is None


def test_test_databases_have_no_schedules_until_they_are_asked_for() -> None:
    Schedule("declared", StoredReport, cron="0 4 * * *", args=1)
    assert not ScheduleRow.objects.exists()

    drain(schedules=True)

    assert ScheduleRow.objects.get().owner == "code"


# -- looking ----------------------------------------------------------------------------------------------------------


def test_tenants_see_their_schedules_alone(settings: Any) -> None:
    settings.TEMPORALEX = {**settings.TEMPORALEX, "ACCESS_POLICY": "tests.support.tenants.Tenants"}
    red, blue = manager("red-ann"), manager("blue-bob")
    save(red, workflow_id="red-{slot:%Y%m%dT%H%M}")

    assert [row.name for row in visible_schedules(red, alias="default")] == ["report"]
    assert not visible_schedules(blue, alias="default").exists()
    with pytest.raises(errors.ScheduleNotFound):
        find_schedule("report", blue, alias="default")
    with pytest.raises(errors.ScheduleNotFound):
        TriggerSchedule("report", by=Actor(user=blue, source="rest")).execute()
    with pytest.raises(errors.ActionNotPermitted):
        visible_schedules(person("nobody"), alias="default")


def test_a_description_hides_inputs_and_runs() -> None:
    save(args=7)
    make_due()
    fire_all()
    row = ScheduleRow.objects.get()

    full = describe_schedule(row, CODE, alias="default")
    assert (full.args, full.slots[0].run_id, full.slots[0].status) == (7, str(Instance.objects.get().pk), "pending")
    assert full.next_fires[:2] == [row.position + DAY, row.position + 2 * DAY]
    assert "day" in full.description
    part = describe_schedule(row, Actor(user=person("cem", "view_schedule"), source="rest"), alias="default")
    slot = part.slots[0]
    assert (part.args, slot.run_id, slot.workflow_id, slot.outcome) == (None, None, "", "started")
    assert not OperatorAction.objects.filter(action="view_payload").exists()


def test_the_audit_has_who_read_an_input() -> None:
    save(args=7)
    row = ScheduleRow.objects.get()
    reader = Actor(user=person("cem", "view_schedule", "view_payload"), source="rest")

    assert [one.args for one in describe_schedules([row], reader.user, alias="default")] == [None]
    assert describe_schedule(row, reader, alias="default").args == 7

    entry = OperatorAction.objects.get(action="view_payload")
    assert (entry.actor_name, entry.workflow_id, entry.details) == ("cem", row.name, {"schedule": row.name})


def test_old_slots_are_deleted_and_open_ones_stay() -> None:
    save(workflow=StoredWait)
    make_due(slots=2)
    fire_all()
    ScheduleSlot.objects.update(decided_at=datetime(2020, 1, 1, tzinfo=UTC))

    switches.SLOTS.delete_batch("default")

    assert outcomes() == [("started", "")]
