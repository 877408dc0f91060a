"""Retention: the deletion of chains and runs that closed longer ago than their class keeps them.

``retention`` is for closed chains, which are deleted together with all their rows. ``chain_retention``
is for chains that continue: it deletes runs that closed longer ago, and messages that were answered as long ago.

A closed chain is deleted run by run, oldest first, one transaction each, so that neither a lock nor a transaction is
ever long. Runs are scanned a page at a time by id, which is the order in which they started. A run that started within
the retention time cannot have closed before it, so the scan ends at the first page of such runs. There is no index for
this alone, since every run that closes would pay for it. Audit rows are kept.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from temporalex_django.authoring import workflow as workflows
from temporalex_django.core.names import to_seconds
from temporalex_django.db.human_tasks import delete_human_tasks
from temporalex_django.db.sql_columns import RUNS
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.db.turn_writes import delete_search_attributes
from temporalex_django.engine import policy

log = logging.getLogger("temporalex_django.db")

_UUID7 = 7
#: Conditions for the settled messages of a chain, and for all of them. Each part has an index; together they have none.
_SETTLED = ("request_id is not null", "request_id is null and settled")
_PARTS = (*_SETTLED, "request_id is null and not settled")


class RetentionPolicy(NamedTuple):
    """The seconds for which runs are kept after they have closed; None means for ever.

    ``closed`` is for all runs of a chain that has closed, and ``earlier`` for the earlier runs of a chain that
    continues.
    """

    closed: float | None
    earlier: float | None

    @property
    def shortest(self) -> float:
        return min(duration for duration in self if duration is not None)


def retention_policies() -> dict[str, dict[int | None, RetentionPolicy]]:
    """Return the retention policies of the classes that this process has, by class name and version.

    Classes that keep everything are left out. The version None means all versions.
    """
    policies: dict[str, dict[int | None, RetentionPolicy]] = {}
    for name, cls in workflows.named_classes():
        versions = {None: cls} if issubclass(cls, workflows.Workflow) else cls.versions
        version_policies = {
            number: RetentionPolicy(_to_seconds(policy.retention), _to_seconds(policy.chain_retention))
            for number, policy in versions.items()
        }
        version_policies = {
            number: policy for number, policy in version_policies.items() if any(limit is not None for limit in policy)
        }
        if version_policies:
            policies[name] = version_policies
    return policies


def _to_seconds(duration: timedelta | float | None) -> float | None:
    if duration is None:
        return None
    return to_seconds(duration)


_ROW = RUNS.pick_columns("id", "chain_id", "version", "closed_at")


class Retention:
    """A sweep over one database that deletes old runs, a few in each call. It remembers its position."""

    def __init__(self, storage: DjangoStorage) -> None:
        self.storage = storage
        self._cursors: dict[str, UUID] = {}  # by class: the last run that was looked at
        # Chains that the last sweep deleted: a message may have been on its way to them.
        self._deleted_chains: list[UUID] = []

    def sweep(self) -> bool:
        """Delete old runs for a fraction of a second, and return True if there may be more.

        No query if no class declares a retention.
        """
        policies = retention_policies()
        if not policies and not self._deleted_chains:
            return False
        until = time.monotonic() + policy.RETENTION_SWEEP_SECONDS
        chains, self._deleted_chains = self._deleted_chains, []
        if chains:
            _delete_messages(chains, storage=self.storage)
        now = self.storage.now()
        unfinished = [self._sweep_class(name, versions, now, until) for name, versions in policies.items()]
        return any(unfinished)

    def _sweep_class(self, name: str, versions: dict[int | None, RetentionPolicy], now: datetime, until: float) -> bool:
        """Delete old runs until ``until`` (``time.monotonic``); return True if there may be more."""
        shortest = now - timedelta(seconds=min(rule.shortest for rule in versions.values()))
        while time.monotonic() < until:
            page = self._next_page(name)
            for run, chain, version, closed_at, chain_closed in page:
                rule = versions.get(version) or versions.get(None)
                limit = None if rule is None else rule.closed if chain_closed else rule.earlier
                if limit is not None and closed_at is not None and closed_at <= now - timedelta(seconds=limit):
                    before = now - timedelta(seconds=limit)
                    if chain_closed:
                        self._delete_closed_chain(chain, closed_before=before)
                    else:
                        self._delete_earlier_run(chain, run, answered_before=before)
                    log.debug("run %s of %s has passed its retention", run, name)
                if time.monotonic() >= until:
                    self._cursors[name] = run
                    return True
            if len(page) < policy.RETENTION_PAGE or _start_timestamp(page[-1][0]) > shortest.timestamp():
                self._cursors.pop(name, None)
                return False
            self._cursors[name] = page[-1][0]
        return True

    def _next_page(self, name: str) -> list[tuple[UUID, UUID, int, datetime | None, bool]]:
        """Return the next runs as ``(run, chain, version, time, is the chain closed)``.

        The time is when the chain or run closed, for the last run of a closed chain and earlier runs of an open one.
        """
        after = self._cursors.get(name)
        rows = self.storage.sql.select(
            "select i.id, i.chain_id, i.version,"
            " case when c.closed = (c.run_id = i.id) then i.closed_at else null end, c.closed"
            f" from (select {_ROW.names} from temporalex_instance"
            f" where workflow = %s{'' if after is None else ' and id > %s'} order by id limit {policy.RETENTION_PAGE}) i"
            " join temporalex_chain c on c.id = i.chain_id order by i.id",
            [name, *([] if after is None else [after])],
            (*_ROW.types, "bool"),
        )
        return [(run, chain, version, closed_at, bool(closed)) for run, chain, version, closed_at, closed in rows]

    def _delete_earlier_run(self, chain: UUID, run: UUID, *, answered_before: datetime) -> None:
        """Delete a run of a chain that goes on, and messages answered before. Skip it if a turn has the lock."""
        with self.storage.transaction("earlier"):
            rows = self.storage.sql.select(
                f"select run_id from temporalex_chain where id = %s and not closed{self.storage.sql.skip_locked()}",
                [chain],
                ("uuid",),
            )
            if not rows or rows[0][0] == run:
                return
            _delete_run(run, None, storage=self.storage)
            for part in _SETTLED:
                self.storage.sql.execute(
                    # An accepted update is answered when its handler is done, however long that takes. A failed message
                    # waits for people, and the id of a discarded one stays taken.
                    "delete from temporalex_message where chain_id = %s and settled and coalesce(answered_at, created_at) <= %s"
                    f" and coalesce(outcome_status, '') not in ('accepted', 'failed', 'discarded') and {part}",
                    [chain, answered_before],
                )

    def _delete_closed_chain(self, chain: UUID, *, closed_before: datetime) -> None:
        """Delete a chain run by run, and itself with the last one, unless another worker has locked it."""
        runs = _run_ids(chain, storage=self.storage)
        for number, run in enumerate(runs, 1):
            with self.storage.transaction("retention"):
                if not self._lock_closed_chain(chain, closed_before):
                    return
                _delete_run(run, chain if number == len(runs) else None, storage=self.storage)
        self._deleted_chains.append(chain)

    def _lock_closed_chain(self, chain: UUID, closed_before: datetime) -> bool:
        """Lock the chain. Return False if another transaction has it, or if it was not closed before the time."""
        rows = self.storage.sql.select(
            f"select run_id from temporalex_chain where id = %s and closed{self.storage.sql.skip_locked()}",
            [chain],
            ("uuid",),
        )
        if not rows:
            return False
        closed = self.storage.sql.select(
            "select closed_at from temporalex_instance where id = %s", [rows[0][0]], ("timestamptz",)
        )
        return bool(closed) and closed[0][0] is not None and closed[0][0] <= closed_before


def delete_chain(chain: UUID, *, storage: DjangoStorage) -> None:
    """Delete a locked, closed chain with all its rows, in the open transaction.

    Audit rows are kept.
    """
    runs = _run_ids(chain, storage=storage)
    for run in runs:
        _delete_run(run, chain if run == runs[-1] else None, storage=storage)


def _run_ids(chain: UUID, *, storage: DjangoStorage) -> list[UUID]:
    rows = storage.sql.select("select id from temporalex_instance where chain_id = %s order by id", [chain], ("uuid",))
    return [row[0] for row in rows]


def _delete_messages(chains: Sequence[UUID], *, storage: DjangoStorage) -> None:
    test, parameter = storage.sql.in_array(chains, "uuid")
    for part in _PARTS:
        storage.sql.execute(f"delete from temporalex_message where chain_id {test} and {part}", [parameter])


def _delete_run(run: UUID, last_of: UUID | None, *, storage: DjangoStorage) -> None:
    """Delete a run with all its rows, and also the chain ``last_of``."""
    storage.sql.execute("delete from temporalex_history_event where run_id = %s", [run])
    storage.sql.execute("delete from temporalex_activity_task where run_id = %s", [run])
    storage.sql.execute("delete from temporalex_failed_attempt where run_id = %s", [run])
    # Activities of a run on a cluster see its id there.
    storage.sql.execute(
        "delete from temporalex_done_once where run_id = %s"
        " or run_id = (select cluster_run_id from temporalex_instance where id = %s)",
        [run, run],
    )
    delete_human_tasks(run, alias=storage.alias)
    delete_search_attributes(storage.sql, [run])
    if last_of is not None:
        storage.sql.execute("delete from temporalex_chain where id = %s", [last_of])
        _delete_messages([last_of], storage=storage)
        # Dead letters go with their run. Messages that wait do not: one may ask the cluster to delete the run.
        storage.sql.execute("delete from temporalex_outbox where chain_id = %s and failed is not null", [last_of])
    storage.sql.execute("delete from temporalex_instance where id = %s", [run])


def _start_timestamp(run: UUID) -> float:
    """Return seconds since 1970, from the run id; 0.0 if it contains no time."""
    if run.version == _UUID7:
        return (run.int >> 80) / 1000
    return 0.0
