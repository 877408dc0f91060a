"""A project with a row in each table, and the ways in which a column of a row can become unreadable.

The cells are made of the fields of the models, so a new column has its cells by itself. Keys and numbers are left out,
and so are texts that may hold anything.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.apps import apps
from django.db import DatabaseError, connection, models, transaction
from django.db.models import F
from django.db.models.functions import Cast
from django.utils import timezone

from temporalex_django import Ok, RetryPolicy, Workflow, activity, api
from temporalex_django.conf import codec
from temporalex_django.models import (
    ActivityTask,
    Alert,
    BulkItem,
    BulkJob,
    Chain,
    DeployCheck,
    DoneOnce,
    EndedTask,
    FailedAttempt,
    Instance,
    KeptAnswer,
    Lease,
    Limit,
    LostWorker,
    Message,
    OperatorAction,
    Outbox,
    Permit,
    Schedule,
    ScheduleSlot,
    SwitchedOff,
    Worker,
)
from temporalex_django.operations.schedules.definition import parse_definition
from temporalex_django.operations.schedules.save import SaveSchedule
from tests.support.client_flows import drain


@activity(retry=RetryPolicy(initial_interval=3600, max_interval=None))
def refused_for_now(n: int) -> int:
    """Fail, so that its row waits for the next attempt."""
    raise ConnectionError("refused")


@activity
def doubled(n: int) -> int:
    return 2 * n


class Damaged(Workflow):
    """Has a row in each table of runs: an activity, a human task, messages, a timer and search attributes."""

    name = "test.Damaged"
    search_attributes = {"city": str}

    async def run(self, args: Any) -> Any:
        api.publish_state({"n": 1})
        api.set_search_attributes({"city": "Ulm"})
        await doubled(1)
        return Ok(
            await api.race(
                refused_for_now(2),
                api.approval("May it?", groups=["clerks"]),
                api.wait_for_signal("go"),
                api.sleep(3600),
            )
        )


class Healthy(Workflow):
    """Goes through all that a worker does for a run."""

    name = "test.BesideDamage"

    async def run(self, args: Any) -> Any:
        await api.sleep(0.01)
        return Ok(await doubled(await api.wait_for_signal("go")))


class Timely(Workflow):
    """A run of a schedule."""

    name = "test.TimelyBesideDamage"

    async def run(self, args: Any) -> Any:
        return Ok()


#: Values by kind of column: what a database accepts and Python cannot read, or what no code has written.
TIMES = {
    "postgresql": {
        "infinity": "infinity",
        "minus_infinity": "-infinity",
        "year_10000": "10000-01-01 00:00:00+00",
        "bc": "0044-03-15 00:00:00+00 BC",
        "year_9999": "9999-12-31 23:59:59.999999+00",
        "year_1": "0001-01-01 00:00:00+00",
    },
    "sqlite": {
        "text": "tomorrow",
        "month_13": "2026-13-45 00:00:00",
        "early_month_13": "0000-13-45 00:00:00",
        "number": 12,
        "bytes": b"\xff\xfe",
        "empty": "",
        "year_9999": "9999-12-31 23:59:59.999999",
        "year_1": "0001-01-01 00:00:00",
    },
}
JSONS = {"list": "[1]", "text": '"x"', "number": "7", "object": '{"x": [null]}', "false": "false"}
BYTES = {
    "not_json": b"\xff\x00\xfe",
    "empty": b"",
    "other_codec": b"gAAAAABn-of-another-codec",
    "other_shape": b"[[7]]",
    "other_type": b'{"x":1}',
}
TEXTS = {"unknown": "unknown-7", "empty": ""}
#: Texts of the code, which have no choices in the model.
NAMED = {
    "kind", "backend", "parent_close", "outcome_status", "cause", "outcome", "reason", "action", "source", "tz",
    "dst_gap", "dst_fold", "arguments_function",
}  # fmt: skip
KINDS: dict[str, dict[type[models.Field[Any, Any]], dict[str, Any]]] = {
    vendor: {
        models.DateTimeField: times,
        models.JSONField: JSONS,
        models.BinaryField: BYTES,
        models.CharField: TEXTS,
    }
    for vendor, times in TIMES.items()
}


@dataclass(frozen=True)
class Cell:
    """A value that is written into a column of the rows of one run."""

    model: type[models.Model]
    field: Any
    damage: str
    value: Any

    @property
    def column(self) -> str:
        return f"{self.model._meta.db_table}.{self.field.column}"

    def __str__(self) -> str:
        return f"{self.column} = {self.damage}"

    def stored(self, key: Any) -> Any:
        """Return the text of what the row with this key has in the column now; None if the row is gone."""
        rows = self.model.objects.filter(pk=key).annotate(
            stored_text=Cast(
                F(self.field.name), models.TextField() if connection.vendor != "sqlite" else models.BinaryField()
            )
        )
        return rows.values_list("stored_text", flat=True).first()

    def is_named(self, key: Any, said: str) -> bool:
        """Return True if what ``doctor`` said names the table, the column and the row."""
        return any(
            self.model._meta.db_table in line
            and self.field.column in line
            and all(_literal(part) in line for part in (key if isinstance(key, tuple) else (key,)))
            for line in said.splitlines()
            if line.lstrip().startswith("next:")
        )


def _literal(part: Any) -> str:
    return part.hex if isinstance(part, uuid.UUID) and connection.vendor == "sqlite" else str(part)


def cells(vendor: str) -> Iterator[Cell]:
    """All cells of a database: what its columns may hold and no process can read."""
    for model in apps.get_app_config("temporalex_django").get_models():
        for field in [] if model._meta.proxy else model._meta.local_concrete_fields:
            if field.primary_key or field.is_relation or getattr(field, "generated", False):
                continue
            for kind, values in KINDS[vendor].items():
                if isinstance(field, kind):
                    if kind is not models.CharField or field.choices or field.name in NAMED:
                        yield from (Cell(model, field, damage, value) for damage, value in values.items())
                    break


class World:
    """A project with a damaged run for each of the cells, and as many rows in each table that has no runs."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells, count = cells, len(cells)
        #: The models of which rows are damaged.
        self.models = {cell.model for cell in cells}
        for number in range(count):
            Damaged.start({"n": 1}, id=f"damaged-{number}")
        drain()
        self.runs = [Instance.objects.get(workflow_id=f"damaged-{number}") for number in range(count)]
        assert all(run.is_open and run.blocked is None for run in self.runs)
        for number, run in enumerate(self.runs):
            self._add_rows(number, run)
        # Whatever reads a row of a run reads it now.
        now = timezone.now()
        Chain.objects.update(due_at=now)
        ActivityTask.objects.update(due_at=now)

    def _add_rows(self, number: int, run: Instance) -> None:
        now, payload, one = timezone.now(), codec().encode({"a": 1}), uuid.uuid4
        Alert.objects.create(cause=f"blocked:{number}", since=now, seen_at=now, sent_at=now)
        Lease.objects.create(name="alerts" if number == 0 else f"lease-{number}", until=now, notes={})
        job = BulkJob.objects.create(
            id=one(), action="pause", given=codec().encode({}), total=1, source="code", created_at=now, state="running"
        )
        BulkItem.objects.create(job=job, run_id=run.pk, part=0)
        EndedTask.objects.create(
            id=one(), task="tests.app.tasks.add", backend="default", queue="default", priority=0,
            status="SUCCESSFUL", call=codec().encode([[1, 2], {}]), options=payload, outcome=payload, attempts=1,
            enqueued_at=now, started_at=now, finished_at=now,
        )  # fmt: skip
        KeptAnswer.objects.create(id=one(), key=f"k{number}", request="r", at=now)
        Limit.objects.create(name=f"queue:other-{number}", starts=[])
        DeployCheck.objects.create(
            release=f"r{number}",
            at=now,
            fits=False,
            mismatches=[],
            classes=[{"workflow": Damaged.name, "version": 1, "open": 1, "replayed": 1}],
        )
        Permit.objects.create(queue="other", owner=1)
        SwitchedOff.objects.create(kind="activity", name=f"somewhere.else{number}", since=now)
        DoneOnce.objects.create(key=f"k{number}", run_id=run.pk, result=payload, created_at=now)
        Outbox.objects.create(
            id=one(), chain_id=run.chain_id, destination="mail:x", kind="start", body=payload, created_at=now,
            due_at=now + timedelta(hours=1),
        )  # fmt: skip
        Message.objects.create(
            chain_id=run.chain_id, queue="default", kind="signal", name="unwanted", body=payload, created_at=now
        )
        OperatorAction.objects.create(
            at=now, action="pause", run_id=run.pk, workflow=Damaged.name, workflow_id=run.workflow_id, source="code"
        )
        schedule = make_schedule(f"damaged-{number}")
        ScheduleSlot.objects.create(
            schedule=schedule, at=now - timedelta(days=1), cause="time", outcome="started", decided_at=now,
            workflow_id=run.workflow_id, run_id=run.pk, chain_id=run.chain_id,
        )  # fmt: skip
        Worker.objects.create(
            id=one(), epoch=77 + number, kind="worker", host="web-3", pid=7, queues=["default"],
            workflows={Damaged.name: [1]}, activity_names=["x"], started_at=now, beat_at=now,
            expires_at=now + timedelta(hours=1), load={},
        )  # fmt: skip
        LostWorker.objects.create(
            epoch=1077 + number, name="web-4:7", kind="worker", queues=["default"], started_at=now, beat_at=now,
            lost_at=now, held_count=1, held_activities=[{"activity": "x", "workflow_id": "y", "run_id": str(run.pk)}],
            released_by="web-3:7",
        )  # fmt: skip
        FailedAttempt.objects.create(
            run=run, seq=99, activity="x", attempt=1, outcome="failed", began_at=now, ended_at=now, worker="web-3:7",
            failure=payload,
        )  # fmt: skip

    def damage(self) -> dict[Cell, Any]:
        """Write each of the values into the rows of one run; return the key of a row by cell.

        A value that the database refuses is left out.
        """
        return {
            cell: key
            for number, cell in enumerate(self.cells)
            if (key := self._damage(number, cell, self.runs[number])) is not None
        }

    def _damage(self, number: int, cell: Cell, run: Instance) -> Any:
        options = cell.model._meta
        names = {field.attname for field in options.local_concrete_fields}
        rows = cell.model.objects.order_by("pk")
        if cell.model is Instance:
            rows = rows.filter(pk=run.pk)
        elif cell.model is Chain:
            rows = rows.filter(pk=run.chain_id)
        elif "run_id" in names and cell.model is not Message:
            rows = rows.filter(run_id=run.pk)
        elif "chain_id" in names:
            rows = rows.filter(chain_id=run.chain_id)
        elif cell.model is Schedule:
            rows = rows.filter(name=run.workflow_id)
        else:
            rows = rows.filter(pk=rows.values_list("pk", flat=True)[number])
        key = rows.values_list("pk", flat=True).first()
        assert key is not None, f"no row of {options.db_table} is damaged"
        sql, parameters = rows.order_by().values("pk").query.sql_with_params()
        mark = "%s"
        if connection.vendor == "postgresql" and isinstance(cell.field, models.JSONField):
            mark = "%s::jsonb"
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute(
                    f"update {options.db_table} set {cell.field.column} = {mark} {sql[sql.index('WHERE') :]}",
                    [cell.value, *parameters],
                )
        except DatabaseError:
            return None
        return key


def make_schedule(name: str) -> Schedule:
    """A schedule that is due."""
    values = {"name": name, "workflow": Timely.name, "workflow_id": name + "-{slot:%Y%m%dT%H%M}", "every": 60}
    SaveSchedule(parse_definition({**values, "overlap": "allow_all"}), create=True).execute()
    now = timezone.now()
    Schedule.objects.filter(name=name).update(position=now - timedelta(seconds=90), next_at=now - timedelta(seconds=1))
    return Schedule.objects.get(name=name)
