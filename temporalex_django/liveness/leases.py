"""Leases of workers, and the heartbeats that renew them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

from temporalex_django.authoring import activity
from temporalex_django.conf import get_settings
from temporalex_django.core import process
from temporalex_django.core.names import TABLES
from temporalex_django.db.sql_columns import RUNS, WORKERS
from temporalex_django.engine import policy
from temporalex_django.engine.blocked import CRASH
from temporalex_django.engine.contracts.storage import WorkerStorage
from temporalex_django.engine.ids import token, uuid7
from temporalex_django.errors import UnknownWorkflow, WorkflowSwitchedOff
from temporalex_django.liveness.crash_markers import Kind, MarkedWork
from temporalex_django.liveness.health import WorkerLoad
from temporalex_django.liveness.process_identity import host, identity_of
from temporalex_django.telemetry.recording import recorder

# --- leases -----------------------------------------------------------------------------------------------------------
#
# Leases: the rows of workers, and the blocked runs that become due when workers start and end.
#
# A worker lives as long as its heartbeats extend its lease. Its epoch is the number that everything it claims carries
# as its owner. A worker that was declared dead gets a new row and a new epoch, so it no longer owns what it claimed
# before.


_NEW = WORKERS.pick_columns(
    *("id", "epoch", "kind", "host", "pid", "process_identity", "queues", "workflows", "activity_names"),
    *(
        "crash_marker",
        "session_lock",
        "exports_metrics",
        "clock_skew",
        "drained_at",
        "started_at",
        "beat_at",
        "expires_at",
    ),
)
_CODE = RUNS.pick_columns("chain_id", "workflow", "version", "blocked")


@dataclass(slots=True, kw_only=True)
class WorkerRow:
    """The row of a worker process, whose heartbeats extend its lease: the time for which it counts as alive.

    ``epoch`` is the number under which the worker owns everything that it claims. ``workflows`` has the versions of
    each class that the worker has, by name. ``crash_marker`` is the path of the file that names what it is running.
    ``session_lock`` is True while the worker holds a database lock on its epoch. ``skew`` is the number of seconds by
    which the clock of this machine is ahead of the database's.
    """

    kind: str
    queues: Sequence[str]
    workflows: Mapping[str, Sequence[int]]
    crash_marker: str = ""
    session_lock: bool = False
    id: UUID = field(default_factory=uuid7)
    epoch: int = field(default_factory=token)
    skew: float = 0.0
    drained_at: datetime | None = None  # as of the last heartbeat; it outlasts the epoch
    #: The last time of the database's clock, and the time of this process's monotonic clock at that moment.
    _clocks: tuple[datetime, float] = field(default=(datetime.min.replace(tzinfo=UTC), 0.0), repr=False)

    def now(self) -> datetime:
        """Return the database's time, as of the last heartbeat plus the monotonic time since then.

        The wall clock of this machine is not used, so its changes have no effect.
        """
        moment, at = self._clocks
        return moment + timedelta(seconds=time.monotonic() - at)

    def _sync_clock(self, storage: WorkerStorage) -> datetime:
        """Read the database's time, as that of the moment half-way between the query and its answer."""
        started = time.monotonic()
        now = storage.now()
        self._clocks = now, (started + time.monotonic()) / 2
        self.skew = (datetime.now(UTC) - self.now()).total_seconds()
        return now

    def register(self, storage: WorkerStorage) -> int:
        """Insert the row, and make blocked runs due that this worker may be able to advance.

        One transaction. Returns the number of runs that are due now.
        """
        with storage.transaction("register"):
            now = self._sync_clock(storage)
            lease = timedelta(seconds=get_settings().LEASE_SECONDS)
            storage.sql.execute(
                _NEW.insert_parameters(storage.sql.placeholder, ""),
                _NEW.encode_row(
                    (
                        *(self.id, self.epoch, self.kind, host(), os.getpid(), identity_of()),
                        *(
                            list(self.queues),
                            {k: list(v) for k, v in self.workflows.items()},
                            sorted(activity.registry),
                        ),
                        *(self.crash_marker, self.session_lock, recorder.is_active, self.skew, self.drained_at),
                        *(now, now, now + lease),
                    )
                ),
            )
            return wake_blocked(storage, list(self.workflows), now)

    def send_heartbeat(
        self,
        storage: WorkerStorage,
        *,
        runs: int = 0,
        activities: int = 0,
        turns: int = 0,
        load: WorkerLoad | None = None,
    ) -> bool:
        """Extend the lease, and read whether this worker is drained. One UPDATE.

        ``runs`` is the number of executors in memory, ``activities`` the number of activities in the pool, and
        ``turns`` how often a run was advanced so far. ``load`` is stored as it is. Returns False if the row is gone.
        Then this worker was declared dead and needs a new epoch.
        """
        now = self._sync_clock(storage)
        lease = timedelta(seconds=get_settings().LEASE_SECONDS)
        cast = storage.sql.placeholder("jsonb")
        process.reached("beat: before")
        # The epoch is compared: after a pause this worker must not extend a lease that others have ended.
        changed = storage.sql.select(
            "update temporalex_worker set beat_at = %s, expires_at = %s, runs = %s, activities = %s,"
            f" turns = %s, clock_skew = %s, session_lock = %s, load = {cast}"
            " where id = %s and epoch = %s and buried_at is null returning drained_at",
            [
                *(now, now + lease, runs, activities, turns, self.skew, self.session_lock),
                *(None if load is None else json.dumps(load), self.id, self.epoch),
            ],
            ("timestamptz",),
        )
        process.reached("beat: after")
        if changed:
            self.drained_at = changed[0][0]
        return bool(changed)

    def samples_facts(self, storage: WorkerStorage) -> bool:
        """Return True if this worker is the one of the project that samples the metrics of the database. One read.

        That is the oldest worker with a lease that exports metrics and is not drained. Ids are in the order of time.
        """
        now, parameters = storage.sql.now_expression(storage.clock)
        rows = storage.sql.select(
            "select id from temporalex_worker where exports_metrics and buried_at is null and drained_at is null"
            f" and expires_at > {now} order by id limit 1",
            parameters,
            ("uuid",),
        )
        return bool(rows) and rows[0][0] == self.id

    def renew_epoch(self) -> None:
        """Take a new id and a new epoch (the number under which it owns its claims), after it was declared dead.

        The worker no longer owns what it claimed under the old epoch. ``register`` then inserts the new row.
        """
        self.id, self.epoch = uuid7(), token()

    def announce(self, storage: WorkerStorage, suspects: Sequence[MarkedWork]) -> bool:
        """Commit to this row the runs and activities (``suspects``) that it is about to run; an empty list clears it.

        Suspects are runs and activities that may have ended a process. Other workers read the announcement if this
        worker dies and its crash marker cannot be read.

        Returns False if the row of another worker announces one of them. That other worker is running it, or has died
        while it ran and is not declared dead yet. Returns False, too, if this worker was declared dead itself.
        """
        if not suspects:
            storage.sql.execute(
                "update temporalex_worker set trying = null where id = %s and epoch = %s", [self.id, self.epoch]
            )
            return True
        others = storage.sql.select(
            "select cast(trying as text) from temporalex_worker"
            " where trying is not null and buried_at is null and id <> %s",
            [self.id],
            ("text",),
        )
        # Nothing runs what the row of another worker names until that worker is through or declared dead (decision 22).
        if any(
            not set(parse_announcement(WORKERS.read_json("trying", row[0]) or ())).isdisjoint(suspects)
            for row in others
        ):
            return False
        trying = json.dumps([[mark.kind, str(mark.key)] for mark in suspects])
        cast = storage.sql.placeholder("jsonb")
        changed = storage.sql.execute(
            f"update temporalex_worker set trying = {cast} where id = %s and epoch = %s and buried_at is null",
            [trying, self.id, self.epoch],
        )
        return bool(changed)

    def remove(self, storage: WorkerStorage) -> None:
        """Delete the row, and make blocked runs of its classes due for the workers that remain.

        Call it inside a transaction.
        """
        storage.sql.execute("delete from temporalex_worker where id = %s", [self.id])
        wake_for_others(storage, list(self.workflows))


def parse_announcement(stored: Iterable[tuple[Kind, str]]) -> list[MarkedWork]:
    """Return the runs and activities that a worker announced before it ran them.

    ``stored`` is the value in the row of the worker: pairs of kind and key as text.
    """
    return [MarkedWork(kind, int(key) if kind in ("task", "trial") else UUID(key)) for kind, key in stored]


#: Code of runs that ended their processes. A new worker does not help: the run would end it, too.
_CRASH_CODE = CRASH
#: Condition for runs that are blocked only because their class is off. They wait for the switch.
_SWITCHED_OFF = f"cast(blocked as text) like '%%\"{WorkflowSwitchedOff.code}\"%%'"


def wake_blocked(storage: WorkerStorage, workflows: Sequence[str], now: datetime) -> int:
    """Make the blocked runs of these classes (names) due at ``now``, because a worker may have the code that they need.

    It skips runs that are locked, and runs that are blocked for crashes. Returns the number of runs that are due.
    """
    return _wake_chains(
        storage, now, [chain for chain, _, _, code in _blocked_runs(storage, workflows) if code != _CRASH_CODE]
    )


def wake_for_others(storage: WorkerStorage, workflows: Sequence[str]) -> int:
    """Make the blocked runs of these classes (names) due now, after a worker ended, if there are other workers.

    The worker that ended may have been the one with the wrong code. Returns the number of runs that are due.
    """
    now, parameters = storage.sql.now_expression(storage.clock)
    others = f"select exists (select 1 from temporalex_worker where expires_at > {now})"
    if not storage.sql.select(others, parameters, ("bool",))[0][0]:
        return 0
    return wake_blocked(storage, workflows, storage.now())


def wake_for_code(storage: WorkerStorage, workflows: Mapping[str, Sequence[int]]) -> int:
    """Make runs due that were blocked for lack of code which this worker has; return their number.

    ``workflows`` has the versions of each class that the worker has, by name. If there are no such runs, this is only a
    read. It is repeated, because the worker that blocked such a run may have looked for other workers just before this
    one registered, or this one found the run locked.
    """
    blocked_runs = _blocked_runs(storage, list(workflows))
    chains = [
        c for c, name, version, code in blocked_runs if code == UnknownWorkflow.code and version in workflows[name]
    ]
    if not chains:
        return 0
    with storage.transaction("code"):
        return _wake_chains(storage, storage.now(), chains)


def wake_switched_on(storage: WorkerStorage, off: Collection[str]) -> int:
    """Make the runs due that were stopped because their class was switched off, if it is on again.

    ``off`` has the names of the classes that are still off. At most ``policy.WAKE_LIMIT`` runs in one call.
    """
    test, parameter = storage.sql.in_array(off, "text")
    rows = storage.sql.select(
        f"select chain_id from temporalex_instance where blocked is not null and {_SWITCHED_OFF} and not (workflow {test})"
        f" and closed_at is null limit {policy.WAKE_LIMIT}",
        [parameter],
        ("uuid",),
    )
    if not rows:
        return 0
    with storage.transaction("switched on"):
        return _wake_chains(storage, storage.now(), [row[0] for row in rows])


def _blocked_runs(storage: WorkerStorage, workflows: Sequence[str]) -> list[tuple[UUID, str, int, str]]:
    """Return ``(chain id, class, version, code)``. Runs that are blocked only by a switch are left out."""
    if not workflows:
        return []
    test, parameter = storage.sql.in_array(workflows, "text")
    rows = storage.sql.select(
        _CODE.select(f"where workflow {test} and blocked is not null and not ({_SWITCHED_OFF})"),
        [parameter],
        _CODE.types,
    )
    return [(chain, name, version, RUNS.read_json("blocked", mark)["code"]) for chain, name, version, mark in rows]


def _wake_chains(storage: WorkerStorage, now: datetime, chains: Sequence[UUID]) -> int:
    """Make runs due and return their number. Closed, paused and locked runs and runs on a cluster stay."""
    if not chains:
        return 0
    membership, ids = storage.sql.in_array(chains, "uuid")
    # A run that is locked is being advanced right now, and its turn sets its due time. So it is skipped.
    locked = storage.sql.select(
        f"select id from temporalex_chain where id {membership} and backend = %s and not closed and not paused"
        f"{storage.sql.skip_locked()}",
        [ids, TABLES],
        ("uuid",),
    )
    membership, ids = storage.sql.in_array([row[0] for row in locked], "uuid")
    return storage.sql.execute(f"update temporalex_chain set due_at = %s where id {membership}", [now, ids])


# --- heartbeats -------------------------------------------------------------------------------------------------------
#
# Observations of heartbeats: when this process saw the last new one of each worker, by its own monotonic clock.
#
# A process that searches for dead workers keeps them. A lease that has ended by the database's clock proves nothing:
# that clock may have been set forward. See decision 23.


class Heartbeats:
    """The heartbeats of workers as one process has observed them, which searches for dead workers.

    Workers are identified by their epoch, the number that a worker draws when it registers. The silence of a worker
    begins when the process sees a new heartbeat of it, or the first one. So a process that has just started finds no
    worker late.
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[datetime, float]] = {}
        self._confirmed: set[int] = set()

    def observe(self, heartbeats: Iterable[tuple[int, datetime]]) -> None:
        """Record the heartbeats in the rows of workers, as pairs ``(epoch, time)``; forget workers without a row.

        The epoch is the number that a worker draws when it registers.
        """
        now, before, self._seen = time.monotonic(), self._seen, {}
        for epoch, beat_at in heartbeats:
            last = before.get(epoch)
            # Any other value is a heartbeat, also an earlier one: the database's clock may have been set back.
            if last is not None and last[0] == beat_at:
                self._seen[epoch] = last
                continue
            self._seen[epoch] = (beat_at, now)
            if last is not None:
                self._confirmed.add(epoch)
        self._confirmed &= self._seen.keys()

    def silence(self, epoch: int) -> float:
        """Return the seconds since this process saw a new heartbeat of the worker with this epoch (its number)."""
        return time.monotonic() - self._seen[epoch][1]

    def is_confirmed(self, epoch: int) -> bool:
        """Return True if the worker with this epoch (number) has sent a heartbeat since this process first saw it."""
        return epoch in self._confirmed

    def clear(self) -> None:
        """Forget all observations, so that no worker is late.

        Call it after a time in which this process could not read the heartbeats, or the workers could not send any.
        """
        self._seen.clear()
        self._confirmed.clear()
