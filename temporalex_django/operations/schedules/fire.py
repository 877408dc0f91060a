"""The firing of schedules by workers: each step of a schedule is part of one transaction, which locks its row.

The transaction that decides a slot also starts its run and moves the position of the schedule. So a worker that is
killed leaves the slot either decided or due, and another worker continues.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import Error as DatabaseError
from django.db import connections
from django.db.models import Exists, OuterRef, Q, QuerySet, Value
from django.db.models.functions import Now

from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.schedules.functions import ARGUMENTS
from temporalex_django.backends.host import host
from temporalex_django.conf import get_settings
from temporalex_django.core.failures import error_line
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine import policy
from temporalex_django.engine.schedules import ScheduleFirer, SlotCause, SlotFailure, SlotOutcome
from temporalex_django.errors import (
    KeyMissing,
    PayloadError,
    ScheduleInvalid,
    UpdateTimeout,
)
from temporalex_django.models import EnqueuedTask, Schedule, ScheduleSlot
from temporalex_django.operations import audit
from temporalex_django.operations.schedules.store import (
    DatabaseScheduleStore,
    Prepared,
    SlotInterrupted,
    TaskMissing,
    load_stores,
    missing_tasks,
    save_stores,
)
from temporalex_django.telemetry import definitions
from temporalex_django.telemetry.recording import recorder

logger = logging.getLogger("temporalex_django.operations")

#: Errors for which this process cannot compute the slots of a schedule, or read its input.
_POSTPONING = (ScheduleInvalid, PayloadError, KeyMissing)
#: Conditions of the partial index of schedules with a slot that waits for its turn.
_WITH_WAITING_SLOT: Mapping[str, Any] = {"waiting__gt": 0, "paused_at": None, "gone_since": None, "error": ""}


def has_due(alias: str) -> bool:
    """Return True if a schedule of the database has something to do, so that a worker should call ``fire_due``."""
    storage = host().storage(alias)
    schedules = Schedule.objects.using(alias)
    # Almost always there are none, and this takes a third of the time of the whole question.
    candidates = schedules.filter(next_at__lte=_present(storage)), schedules.filter(**_WITH_WAITING_SLOT)
    return _any(candidates) and _any(_due_schedules(storage))


def has_schedules(storage: DjangoStorage) -> bool:
    """Return True if there is any schedule. One read, much quicker than the search for those that are due."""
    return bool(storage.sql.select("select 1 from temporalex_schedule limit 1", [], ("int4",)))


def fire_due(alias: str) -> bool:
    """Start the runs of schedules that are due, for a short time; return True if any schedule was due.

    Workers call it repeatedly. A few schedules share a transaction. Those that another worker has locked are left to
    it.
    """
    storage, deadline = host().storage(alias), time.monotonic() + policy.SCHEDULE_BUDGET
    if not has_schedules(storage):
        return False
    # After an error the whole step is rolled back. In an environment it is a part of the transaction of the test.
    storage.disposable = storage.clock is None
    keys: list[int] = []
    for due_schedules in _due_schedules(storage):
        keys += due_schedules.order_by("next_at").values_list("pk", flat=True)[: policy.SCHEDULE_BATCH]
    # Workers read the same list. In another order each finds more schedules that no other worker has locked.
    if storage.clock is None:
        random.shuffle(keys)
    did_fire = False
    for start in range(0, len(keys), policy.SCHEDULES_TOGETHER):
        did_fire = fire_schedules(keys[start : start + policy.SCHEDULES_TOGETHER], storage) or did_fire
        if time.monotonic() >= deadline:
            break
    return did_fire


def _due_schedules(storage: DjangoStorage) -> tuple[QuerySet[Schedule], QuerySet[Schedule]]:
    """Return the schedules with a due slot, and those with a waiting slot that can start now. Both use partial indexes.

    A schedule whose class or function this process lacks is left to other workers for a minute.
    """
    now = _present(storage)
    names = [name for name, _ in workflows.named_classes()]
    has_code = Q(workflow__in=["", *names], arguments_function__in=["", *ARGUMENTS.names()])
    has_code &= ~Q(task__in=[*missing_tasks])
    is_overdue = Q(next_at__lte=now - timedelta(seconds=policy.SCHEDULE_CODE_WAIT))
    running_slots = ScheduleSlot.objects.filter(schedule=OuterRef("pk"), running=True)
    open_tasks = EnqueuedTask.objects.filter(run_id=OuterRef("run_id"))
    open_runs = running_slots.filter(Q(chain__closed=False) | Exists(open_tasks))
    schedules = Schedule.objects.using(storage.alias)
    waits_long = ScheduleSlot.objects.filter(
        schedule=OuterRef("pk"),
        outcome="waiting",
        decided_at__lte=now - timedelta(seconds=policy.SCHEDULE_CODE_WAIT),
    )
    can_start = ~Exists(open_runs) | Q(overlap=Schedule.OverlapPolicy.ALLOW_ALL)
    by_run = schedules.filter(has_code | Exists(waits_long), can_start, **_WITH_WAITING_SLOT)
    return schedules.filter(has_code | is_overdue, next_at__lte=now), by_run


def _present(storage: DjangoStorage) -> Any:
    return Now() if storage.clock is None else Value(storage.now())


def _any(querysets: tuple[QuerySet[Schedule], QuerySet[Schedule]]) -> bool:
    first, second = (queryset.values("pk") for queryset in querysets)
    return bool(first.union(second, all=True).exists())


def fire_schedules(keys: Sequence[int], storage: DjangoStorage) -> bool:
    """Start the runs that the schedules with these primary keys have to start now; return True if there were any.

    They share a transaction. If that fails, each schedule gets a transaction of its own.
    """
    if len(keys) > 1:
        try:
            return _fire_step(keys, storage, {})
        except Exception as exc:
            # It was rolled back, so all are still due. One of them must not stop the others.
            if _is_database_away(exc, storage):
                raise
    results = [fire_schedule(key, storage) for key in keys]
    return any(results)


def fire_schedule(key: int, storage: DjangoStorage) -> bool:
    """Start the runs that the schedule with the primary key ``key`` has to start now, in one transaction.

    Returns False if there was nothing to do: another worker has locked it or was faster, or it was deleted. If this
    process cannot compute its slots or read its input, the schedule is tried again later.
    """
    prepared: dict[tuple[int, datetime], Any | SlotFailure] = {}
    while True:
        try:
            # Denials are audited after the transaction, which a refusal rolls back.
            with audit.defer_denials():
                return _fire_step([key], storage, prepared)
        except SlotInterrupted as interruption:
            prepared[interruption.key] = interruption.prepare()
        except TaskMissing as exc:
            logger.info("a schedule is left to workers that have its task: %s", exc)
            return False
        except UpdateTimeout as exc:
            logger.info("a schedule is waiting for a run that is busy: %s", exc)
            return False
        except _POSTPONING as exc:
            _postpone(key, storage, exc, text=str(exc))
            return True
        except Exception as exc:
            if _is_database_away(exc, storage):
                raise
            _postpone(key, storage, exc, text=error_line(exc))
            return True


def _is_database_away(error: Exception, storage: DjangoStorage) -> bool:
    """Return True for an error that is no fault of the schedule."""
    return isinstance(error, DatabaseError) and (storage.is_transient(error) or storage.is_connection_lost(error))


def _fire_step(keys: Sequence[int], storage: DjangoStorage, prepared: Prepared) -> bool:
    """Lock the schedules, start their due runs and store their state, in one transaction.

    ``prepared`` has inputs or failures of earlier tries, by slot. Raises ``SlotInterrupted`` if another is needed, and
    ``UpdateTimeout`` for a busy run; both roll back.
    """
    alias = storage.alias
    skip_locked = connections[alias].features.has_select_for_update_skip_locked
    with storage.transaction("schedule"):
        locked = Schedule.objects.using(alias).filter(pk__in=keys).select_for_update(skip_locked=skip_locked)
        locked_rows, now = [*locked], storage.now()
        rows = [row for row in locked_rows if (row.next_at is not None and row.next_at <= now) or row.waiting]
        if not rows:
            return False
        stores = load_stores(rows, storage, prepared=prepared)
        for store in stores:
            ScheduleFirer(store, buffer_limit=get_settings().SCHEDULE_BUFFER).fire(store.state, now)
        save_stores(stores, storage)
    if recorder.is_active:
        _record_delays(stores, now)
    return True


def _record_delays(stores: Sequence[DatabaseScheduleStore], now: datetime) -> None:
    """Record how late each slot was started, but not those that waited for the end of an open run."""
    for store in stores:
        for slot in store.new_slots:
            if slot.outcome is SlotOutcome.STARTED and slot.cause is SlotCause.TIME:
                delay = max(0.0, (now - slot.at).total_seconds())
                recorder.record(definitions.SCHEDULE_DELAY, delay, workflow=store.state.workflow)


def _postpone(key: int, storage: DjangoStorage, error: Exception, *, text: str) -> None:
    """Store the error and retry in ``SCHEDULE_RETRY`` seconds. The log gets no text that may quote the input."""
    rows = Schedule.objects.using(storage.alias).filter(pk=key)
    logger.error(
        "schedule %s cannot fire, and is tried again in %g s: %s", key, policy.SCHEDULE_RETRY, error_line(error)
    )
    rows.update(error=text, next_at=storage.now() + timedelta(seconds=policy.SCHEDULE_RETRY))
