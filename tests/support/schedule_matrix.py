"""The rows of schedules in the permission matrix, which ``test_permission_matrix`` adds to its tables."""

from __future__ import annotations

from typing import Any

from temporalex_django.models import Schedule
from temporalex_django.operations.schedules.definition import parse_definition
from temporalex_django.operations.schedules.operations import (
    BackfillSchedule,
    DeleteSchedule,
    PauseSchedule,
    StopBackfill,
    TriggerSchedule,
    UnpauseSchedule,
)
from temporalex_django.operations.schedules.save import SaveSchedule
from tests.support.matrix import JANUARY, NIGHTLY, Row, nightly, token

LOOK, MANAGE = ("view_schedule",), ("manage_schedule",)
#: Whoever starts runs by a schedule may start them.
START = (*MANAGE, "start_instance")
AT = {"schedule": NIGHTLY}
_RANGE = {"start": JANUARY[0].isoformat(), "end": JANUARY[1].isoformat()}


def _change() -> Any:
    return parse_definition({**nightly(), "cron": "0 3 * * *"})


OPERATIONS = {
    "save_schedule": Row(START, lambda by: SaveSchedule(_change(), create=False, by=by), "schedule"),
    "pause_schedule": Row(MANAGE, lambda by: PauseSchedule(NIGHTLY, by=by), "schedule"),
    "unpause_schedule": Row(MANAGE, lambda by: UnpauseSchedule(NIGHTLY, by=by), "paused schedule"),
    "trigger_schedule": Row(START, lambda by: TriggerSchedule(NIGHTLY, by=by), "schedule"),
    "backfill_schedule": Row(
        START, lambda by: BackfillSchedule(NIGHTLY, start=JANUARY[0], end=JANUARY[1], by=by), "schedule"
    ),
    "stop_backfill": Row(MANAGE, lambda by: StopBackfill(NIGHTLY, by=by), "backfill"),
    "delete_schedule": Row(MANAGE, lambda by: DeleteSchedule(NIGHTLY, by=by), "schedule"),
}
_WITHOUT_NAME = {name: value for name, value in nightly().items() if name != "name"}
REST = {
    "GET schedules": Row(LOOK, lambda send: send(), "schedule", of_run=False),
    "POST schedules": Row(START, lambda send: send(nightly("red-2")), "schedule", of_run=False, of_all=True),
    "POST schedule-preview": Row(MANAGE, lambda send: send(nightly("red-2")), "schedule", of_run=False, of_all=True),
    "GET schedule": Row(LOOK, lambda send: send(at=AT), "schedule"),
    "PUT schedule": Row(START, lambda send: send({**_WITHOUT_NAME, "cron": "0 3 * * *"}, at=AT), "schedule"),
    "DELETE schedule": Row(MANAGE, lambda send: send(at=AT), "schedule"),
    "GET slots": Row(LOOK, lambda send: send(at=AT), "schedule"),
    "POST pause_schedule": Row(MANAGE, lambda send: send({}, at=AT), "schedule"),
    "POST unpause_schedule": Row(MANAGE, lambda send: send({}, at=AT), "paused schedule"),
    "POST trigger_schedule": Row(START, lambda send: send({}, at=AT), "schedule"),
    "GET backfill_schedule": Row(
        LOOK, lambda send: send(at=AT, query="?start=2026-01-01&end=2026-01-03T00:00Z"), "schedule"
    ),
    "POST backfill_schedule": Row(START, lambda send: send(_RANGE, at=AT), "schedule"),
    "POST stop_backfill": Row(MANAGE, lambda send: send({}, at=AT), "backfill"),
}


def _edited(key: Any) -> dict[str, Any]:
    """The fields of the form that changes the schedule with that key."""
    row = Schedule.objects.filter(pk=key).first()
    changed_at = "" if row is None else row.changed_at.isoformat()
    return {
        "name": NIGHTLY, "cron": "0 3 * * *", "tz": "Europe/Berlin", "overlap": "skip", "workflow_id": "{schedule}-{slot}",
        "catch_up": "1 h", "dst_gap": "shift", "dst_fold": "first", "version": changed_at, "token": token(),
    }  # fmt: skip


#: Pages of the admin are for people who may look at schedules.
_LOOK_AND_MANAGE, _LOOK_AND_START = (*LOOK, *MANAGE), (*LOOK, *START)
_WALLS = {"start": "2026-01-01T00:00", "end": "2026-01-03T00:00", "per_minute": "60"}
ADMIN = {
    "schedule changelist": Row(LOOK, lambda page: page(), "schedule", of_run=False),
    "schedule add": Row(MANAGE, lambda page: page(), "schedule", of_run=False),
    "schedule change": Row(LOOK, lambda page: page("schedule"), "schedule", of_run=False),
    "instance console schedules": Row(LOOK, lambda page: page(), "schedule", of_run=False),
    "instance console schedule": Row(LOOK, lambda page: page("schedule"), "schedule"),
    "schedule edit": Row(_LOOK_AND_MANAGE, lambda page: page("schedule"), "schedule"),
    "schedule edit post": Row(_LOOK_AND_START, lambda page: page("schedule", _edited), "schedule"),
    "instance console pause_schedule post": Row(_LOOK_AND_MANAGE, lambda page: page("schedule", {}), "schedule"),
    "instance console unpause_schedule post": Row(
        _LOOK_AND_MANAGE, lambda page: page("schedule", {}), "paused schedule"
    ),
    "instance console trigger_schedule post": Row(
        _LOOK_AND_START, lambda page: page("schedule", {"token": token()}), "schedule"
    ),
    "instance console backfill_schedule": Row(_LOOK_AND_MANAGE, lambda page: page("schedule"), "schedule"),
    "instance console backfill_schedule post": Row(
        _LOOK_AND_START, lambda page: page("schedule", {**_WALLS, "_confirm": "1"}), "schedule"
    ),
    "instance console stop_backfill_schedule post": Row(
        _LOOK_AND_MANAGE, lambda page: page("schedule", {}), "backfill"
    ),
    "instance console delete_schedule": Row(_LOOK_AND_MANAGE, lambda page: page("schedule"), "schedule"),
    "instance console delete_schedule post": Row(_LOOK_AND_MANAGE, lambda page: page("schedule", {}), "schedule"),
}
COMMANDS = {
    "schedules": Row(MANAGE, lambda run, ref: run("pause", NIGHTLY), "schedule"),
}
