"""Storage on Django's database: the contract of ``engine.contracts``, in SQL.

Locks: a turn locks only the rows of ``temporalex_chain`` that it claimed (``FOR NO KEY UPDATE``, which lets inserts
refer to them) and its own activity rows. Messages to another run are inserts into that run's inbox. On SQLite the
writer lock of the database takes the place of these locks. Nothing here commits by itself unless a docstring says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from hashlib import blake2s
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from django.db import connections

from temporalex_django.conf import get_settings
from temporalex_django.db.activity_tasks import ActivityTasks
from temporalex_django.db.claims.activities import DueTimes, TaskClaims
from temporalex_django.db.claims.limited import LimitedClaims
from temporalex_django.db.claims.runs import Deferrals, QueueOrder, RunClaims
from temporalex_django.db.dialects.base import find_dialect
from temporalex_django.db.messages.inbox import Inboxes
from temporalex_django.db.run_reader import RunReader
from temporalex_django.db.session import StorageSession
from temporalex_django.db.sql_columns import SCHEDULES, SLOTS
from temporalex_django.db.turn_writes import TurnWriter
from temporalex_django.engine.ids import token, uuid7

P = ParamSpec("P")
R = TypeVar("R")
Part = TypeVar("Part")


class _PartMethod:
    """A descriptor by which a storage offers a method of one of its parts.

    ``part`` and ``name`` are the names of the attribute that holds the part, and of the method. The bound method is
    kept in the storage at the first use, so a later call costs no more than a direct call of the part.
    """

    __slots__ = ("_name", "_part")

    def __init__(self, part: str, name: str) -> None:
        self._part = part
        self._name = name

    def __get__(self, storage: Any, owner: type) -> Any:
        if storage is None:
            return self
        bound = vars(storage)[self._name] = getattr(getattr(storage, self._part), self._name)
        return bound


def _from(
    part: Callable[[DjangoStorage], Part], method: Callable[Concatenate[Part, P], R]
) -> Callable[Concatenate[DjangoStorage, P], R]:
    """Offer ``method`` as a method of the storage; ``part`` is the ``cached_property`` that builds the part."""
    builder: Any = part
    declared: Any = _PartMethod(builder.func.__name__, method.__name__)
    checked: Callable[Concatenate[DjangoStorage, P], R] = declared
    return checked


class DjangoStorage(StorageSession):
    """``WorkerStorage`` on one database alias: a session, and the parts that use it.

    Callers use the methods of the contract, each of which is a method of one part. A part is built when it is first
    used, and gets the other parts that it needs.

    A run whose code has ended a process is claimed only by the storage of a worker (``worker=True``). One thread at a
    time may use an object. Its connection is that of the calling thread.
    """

    @cached_property
    def _queues(self) -> QueueOrder:
        return QueueOrder(self)

    @cached_property
    def _deferrals(self) -> Deferrals:
        return Deferrals(self.sql)

    @cached_property
    def _inboxes(self) -> Inboxes:
        return Inboxes(self)

    @cached_property
    def _reader(self) -> RunReader:
        return RunReader(self, inboxes=self._inboxes)

    @cached_property
    def _claims(self) -> RunClaims:
        return RunClaims(self, inboxes=self._inboxes, deferrals=self._deferrals, queue_order=self._queues)

    @cached_property
    def _tasks(self) -> ActivityTasks:
        return ActivityTasks(self)

    @cached_property
    def _task_claims(self) -> TaskClaims:
        return TaskClaims(self, tasks=self._tasks, queue_order=self._queues)

    @cached_property
    def _limited_claims(self) -> LimitedClaims:
        return LimitedClaims(self, tasks=self._tasks, task_claims=self._task_claims)

    @cached_property
    def _due_times(self) -> DueTimes:
        return DueTimes(self, deferrals=self._deferrals, task_claims=self._task_claims)

    @cached_property
    def _writer(self) -> TurnWriter:
        return TurnWriter(self, inboxes=self._inboxes, tasks=self._tasks)

    new_token = staticmethod(token)
    new_run_id = staticmethod(uuid7)

    queue_order = _from(_queues, QueueOrder.queue_order)

    defer = _from(_deferrals, Deferrals.defer)
    is_deferred = _from(_deferrals, Deferrals.is_deferred)

    inbox = _from(_inboxes, Inboxes.inbox)
    prepend_messages = _from(_inboxes, Inboxes.prepend_messages)
    message_statuses = _from(_inboxes, Inboxes.message_statuses)
    copy_failed_messages = _from(_inboxes, Inboxes.copy_failed_messages)
    store_settled_messages = _from(_inboxes, Inboxes.store_settled_messages)

    run_records = _from(_reader, RunReader.run_records)
    closing_record = _from(_reader, RunReader.closing_record)
    load_turn_input = _from(_reader, RunReader.load_turn_input)
    block_reason = _from(_reader, RunReader.block_reason)
    histories = _from(_reader, RunReader.histories)
    history_page = _from(_reader, RunReader.history_page)
    patch_markers = _from(_reader, RunReader.patch_markers)
    has_live_worker = _from(_reader, RunReader.has_live_worker)

    claim = _from(_claims, RunClaims.claim)
    submit_claim = _from(_claims, RunClaims.submit_claim)
    lock_run = _from(_claims, RunClaims.lock_run)
    lock_runs = _from(_claims, RunClaims.lock_runs)
    lock_chain = _from(_claims, RunClaims.lock_chain)
    wait_for_locks = _from(_claims, RunClaims.wait_for_locks)

    finish_tasks = _from(_tasks, ActivityTasks.finish_tasks)
    finish_undelivered = _from(_tasks, ActivityTasks.finish_undelivered)
    submit_finish = _from(_tasks, ActivityTasks.submit_finish)
    deliver = _from(_tasks, ActivityTasks.deliver)
    expired_tasks = _from(_tasks, ActivityTasks.expired_tasks)
    atomic_tasks = _from(_tasks, ActivityTasks.atomic_tasks)
    open_activities = _from(_tasks, ActivityTasks.open_activities)
    find_task = _from(_tasks, ActivityTasks.find_task)
    tasks_of_run = _from(_tasks, ActivityTasks.tasks_of_run)
    edit_task = _from(_tasks, ActivityTasks.edit_task)
    record_heartbeats = _from(_tasks, ActivityTasks.record_heartbeats)
    mark_tasks_started = _from(_tasks, ActivityTasks.mark_tasks_started)
    release_tasks = _from(_tasks, ActivityTasks.release_tasks)
    owned_tasks = _from(_tasks, ActivityTasks.owned_tasks)
    record_progress = _from(_tasks, ActivityTasks.record_progress)
    owned_background_tasks = _from(_tasks, ActivityTasks.owned_background_tasks)
    free_background_task = _from(_tasks, ActivityTasks.free_background_task)

    claim_tasks = _from(_task_claims, TaskClaims.claim_tasks)
    submit_task_claim = _from(_task_claims, TaskClaims.submit_task_claim)

    claim_limited = _from(_limited_claims, LimitedClaims.claim_limited)
    repartition = _from(_limited_claims, LimitedClaims.repartition)
    move_to_partitions = _from(_limited_claims, LimitedClaims.move_to_partitions)
    release_unstarted = _from(_limited_claims, LimitedClaims.release_unstarted)

    next_due = _from(_due_times, DueTimes.next_due)

    write = _from(_writer, TurnWriter.write)

    @property
    def domain(self) -> str:
        """A digest of the database's address. It tells databases apart in the names of marker and health files."""
        database = connections[self.alias].settings_dict
        which = "|".join([self.sql.name, *(str(database.get(key) or "") for key in ("HOST", "PORT", "NAME"))])
        return blake2s(which.encode(), digest_size=8).hexdigest()

    @property
    def turn_size(self) -> int:
        return get_settings().TURN_SIZE or self.sql.turn_size


# --- storage parameters -----------------------------------------------------------------------------------------------
#
# Storage parameters and indexes on PostgreSQL that Django's schema language cannot express.


#: Hot tables: vacuum removes dead rows early, and rewritten rows find space on their own page (heap-only updates).
_VACUUM = "autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0"
_SETTINGS = {
    "temporalex_chain": f"fillfactor = 70, {_VACUUM}",
    "temporalex_instance": "fillfactor = 85",
    "temporalex_message": f"fillfactor = 90, {_VACUUM}",
    "temporalex_activity_task": f"fillfactor = 85, {_VACUUM}",
    "temporalex_worker": f"fillfactor = 50, {_VACUUM}",
    "temporalex_limit": f"fillfactor = 50, {_VACUUM}",
    "temporalex_permit": f"fillfactor = 85, {_VACUUM}",
}
#: When runs closed, by ranges of pages. From PostgreSQL 16 on such an index allows heap-only updates, so a run that
#: completes pays nothing for it. On earlier versions it is not created.
_CLOSED = (
    "CREATE INDEX temporalex_instance_closed ON temporalex_instance USING brin (closed_at)"
    " WITH (pages_per_range = 32, autosummarize = on)"
)
_SUMMARIZING = 160_000
#: Tags are set when a run is started, and never again. A run without tags pays nothing.
_TAGS = "CREATE INDEX temporalex_instance_tags ON temporalex_instance USING gin (tags jsonb_path_ops) WHERE tags IS NOT NULL"


def tune_hot_tables(_apps: Any, schema_editor: Any) -> None:
    """Set storage parameters, and create the indexes of closed runs and of tags; a function for ``RunPython``.

    Does nothing on other databases than PostgreSQL.
    """
    dialect = find_dialect(schema_editor.connection.alias)
    if dialect is not None and dialect.tunes_tables:
        for table, parameters in _SETTINGS.items():
            schema_editor.execute(f"ALTER TABLE {table} SET ({parameters})")
        schema_editor.execute(_TAGS)
        if schema_editor.connection.pg_version >= _SUMMARIZING:
            schema_editor.execute(_CLOSED)


# --- schedules --------------------------------------------------------------------------------------------------------
#
# Writes of schedules: the states and the new slots of many schedules, with one statement each.


#: Columns that firing changes.
FIRED_COLUMNS: Final = (
    *("position", "last_walls", "fires", "failures", "waiting", "next_at", "backfill"),
    *("paused_at", "pause_reason", "paused_by", "paused_by_failures", "gone_since", "error"),
)
_FIRED = SCHEDULES.pick_columns("id", *FIRED_COLUMNS)
_FIRED_UPDATE = _FIRED.update("id")
_SLOT_COLUMNS = (
    *("at", "cause", "outcome", "reason", "decided_at", "workflow_id", "run_id", "chain_id", "running"),
    *("error_code", "error", "until", "count", "actor", "actor_key"),
)
_SLOT = SLOTS.pick_columns("schedule_id", *_SLOT_COLUMNS)
_SLOT_INSERT = _SLOT.insert


def write_states(states: Iterable[tuple[int, Mapping[str, Any]]], *, storage: DjangoStorage) -> None:
    """Update schedules in the open transaction: each entry has a primary key, and the values of ``FIRED_COLUMNS``."""
    rows = [(key, *(values[name] for name in FIRED_COLUMNS)) for key, values in states]
    storage.sql.write(_FIRED.columns, _FIRED_UPDATE, _FIRED.encode_rows(rows), key="id")


def insert_slots(slots: Iterable[tuple[int, Mapping[str, Any]]], *, storage: DjangoStorage) -> None:
    """Insert slots in the open transaction: each entry has the primary key of the schedule, and the values of a slot.

    Raises ``IntegrityError`` if a schedule has a slot at that time.
    """
    rows = [(schedule, *(values[name] for name in _SLOT_COLUMNS)) for schedule, values in slots]
    storage.sql.write(_SLOT.columns, _SLOT_INSERT, rows)
