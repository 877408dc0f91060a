"""Recovery of the work of dead workers, and blocks for runs that fail even when they are alone in a turn.

A worker is dead in two cases. Its crash marker proves that its process has ended. Or a process that searches for dead
workers has seen no new heartbeat of it for one lease, by its own monotonic clock (decision 23). A session lock that is
held proves nothing, since a frozen worker holds it for ever. The runs and activities of a dead worker are due again.

Deaths are counted against the work that a process was running when it ended. Its marker names that work if it can be
opened. If it cannot (another machine, a container with a temporary folder of its own), the row of the worker has to
name it. Workers are therefore *cautious* as long as a worker elsewhere may have died. That is so for a row elsewhere
that has sent no heartbeat since the search began, that is late, or whose death has no explanation. A cautious worker
commits to its row which run it is about to activate, one at a time. Other workers do not start a run that is on the row
of a worker until that worker is through or declared dead (decision 22).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.db import Error as DatabaseError
from django.db import connections

from temporalex_django.conf import codec, get_settings
from temporalex_django.core.failures import cause_from, error_data, error_line
from temporalex_django.core.names import counted
from temporalex_django.core.process import REQUEST
from temporalex_django.db.activity_tasks import keep_lost_attempts, process_name
from temporalex_django.db.sql_columns import (
    LOST_WORKERS,
    RESULT,
    RESULT_INSERT,
    TASKS,
    WORKERS,
    json_text,
    json_value,
    result_row,
)
from temporalex_django.engine import activity_policy, background_task, blocked, policy
from temporalex_django.engine.blocked import BlockLog, RunNames, block_cause, block_mark_of, next_retry_at
from temporalex_django.engine.contracts.records import BlockMark
from temporalex_django.engine.contracts.storage import WorkerStorage
from temporalex_django.errors import KeyMissing, RunBlocked
from temporalex_django.liveness.crash_markers import (
    MarkedWork,
    MarkerContent,
    abandoned_markers,
    clear_marker,
    owner_state,
    read_marker,
    remove_marker,
)
from temporalex_django.liveness.leases import Heartbeats, parse_announcement, wake_for_others
from temporalex_django.telemetry import definitions
from temporalex_django.telemetry.recording import recorder

log = logging.getLogger("temporalex_django.liveness")
_block_log = BlockLog()


@dataclass(slots=True)
class RecoveryResult:
    """The outcome of one search for dead workers.

    ``workers`` are the ids of those that were found dead. ``due`` is the number of their activities that are due again,
    and ``failed`` the number of their activities that had no attempt left. ``caution`` is the number of recent deaths
    without an explanation, plus one while a worker elsewhere may have died. While it is not 0, a worker starts runs one
    at a time.
    """

    workers: list[UUID] = field(default_factory=list)
    due: int = 0
    failed: int = 0
    caution: int = 0

    def __bool__(self) -> bool:
        return bool(self.workers)


class _WorkerRecord(NamedTuple):
    """The row of a worker, as read by another process that searches for dead workers.

    ``trying`` is the work that the worker has announced, as JSON. ``buried_at`` is when it was declared dead without an
    explanation; None: it was not.
    """

    id: UUID
    epoch: int
    crash_marker: str
    trying: str | None
    beat_at: datetime
    buried_at: datetime | None

    @property
    def announced_work(self) -> list[MarkedWork]:
        return parse_announcement(WORKERS.read_json("trying", self.trying) or ())


_WORKER = WORKERS.pick_columns(*_WorkerRecord._fields)


def recover(storage: WorkerStorage, heartbeats: Heartbeats, *, own: UUID | None = None) -> RecoveryResult:
    """Find dead workers, except the one whose row is ``own``, and make their work due for others.

    One transaction for each dead worker, and only a read if there are none. ``heartbeats`` are the observations that
    the caller keeps from call to call. If they are new, only workers whose crash markers prove their death are found
    dead. So a process that has just started, or could not look while the database did not answer, declares no live
    worker dead.
    """
    result, suspected = RecoveryResult(), False
    lease = get_settings().LEASE_SECONDS
    rows = [_WorkerRecord(*row) for row in storage.sql.select(_WORKER.select(""), [], _WORKER.types)]
    heartbeats.observe((row.epoch, row.buried_at or row.beat_at) for row in rows)
    for row in rows:
        # A worker never judges itself. If others have declared it dead, its next heartbeat fails.
        if row.id == own:
            continue
        silence = heartbeats.silence(row.epoch)
        if row.buried_at is not None:
            result.caution += 1
            if silence > policy.CAUTION_LEASES * lease:
                storage.sql.execute("delete from temporalex_worker where id = %s and epoch = %s", [row.id, row.epoch])
            continue
        owner = owner_state(row.crash_marker)
        if owner == "ended":
            _declare_dead(storage, row, read_marker(row.crash_marker), result, unknown=False)
        elif silence >= lease:
            result.caution += owner == "unknown"
            # A worker that lives here is frozen or starved. Its marker is read when it ends, so it is not blamed now.
            _declare_dead(storage, row, None, result, unknown=owner == "unknown")
        elif owner == "unknown":
            suspected = suspected or silence > policy.LATE_SHARE * lease or not heartbeats.is_confirmed(row.epoch)
    result.caution += suspected
    return result


def judge_abandoned_markers(storage: WorkerStorage) -> int:
    """Count deaths of processes of this machine that left a crash marker and have no row; return the number of markers.

    Web processes have no row, and workers that were late have lost theirs. Each death is counted against the runs and
    activities that the marker names, in one transaction for each marker. If there are no markers, this only looks into
    a folder.
    """
    with abandoned_markers(storage.domain) as paths:
        for path in paths:
            if storage.sql.select("select 1 from temporalex_worker where crash_marker = %s", [path], ("int4",)):
                continue  # read when that worker is declared dead
            left = read_marker(path)
            if left is not None and left.marks:
                with storage.transaction("marker"):
                    _attribute_crash(storage, left)
                    clear_marker(path)
            remove_marker(path)
    return len(paths)


def report_deaths(storage: WorkerStorage) -> None:
    """Record the work that may have ended workers of this machine, as their crash markers name it.

    Guardians call this when their worker has just died, since the marker may go with the container. A failure is
    logged: other workers find the death later.
    """
    try:
        recover(storage, Heartbeats())
        judge_abandoned_markers(storage)
    except DatabaseError as exc:
        log.warning("could not record the cause of a worker's death: %s", error_line(exc))
    finally:
        connections[storage.alias].close()


def release_orphans(storage: WorkerStorage) -> None:
    """Release activities whose owner is the epoch (number) of no worker that counts as alive."""
    rows = storage.sql.select(
        "select distinct owner from temporalex_activity_task where owner is not null"
        " and not exists (select 1 from temporalex_worker w where w.epoch = owner and w.buried_at is null)",
        [],
        ("int8",),
    )
    for (owner,) in rows:
        with storage.transaction("orphans"):
            release_activities(storage, owner)
    storage.sql.execute(
        "delete from temporalex_permit where not exists"
        " (select 1 from temporalex_worker w where w.epoch = temporalex_permit.owner and w.buried_at is null)",
        [],
    )


def _declare_dead(
    storage: WorkerStorage, row: _WorkerRecord, left: MarkerContent | None, result: RecoveryResult, *, unknown: bool
) -> None:
    """Declare a worker dead and make its activities due again.

    Several processes may try this. The one whose DELETE (or UPDATE) matches the row releases the work, in the same
    transaction. ``left`` is None if the process may still live. If its marker is ``unknown``, announced work takes its
    place; without any, the row stays as an unexplained death.
    """
    condition, explained = "where id = %s and epoch = %s and buried_at is null", not unknown
    with storage.transaction("bury"):
        rows = storage.sql.select(
            f"select cast(workflows as text), cast(trying as text) from temporalex_worker {condition}"
            f"{storage.sql.skip_locked()}",
            [row.id, row.epoch],
            ("text", "text"),
        )
        if not rows:
            return
        # Its marker cannot be read. Its activities are in the tables anyway; its runs only if it announced them.
        if unknown:
            owned_tasks = storage.sql.select(
                "select id from temporalex_activity_task where owner = %s", [row.epoch], ("int8",)
            )
            announced_work = row._replace(trying=rows[0][1]).announced_work
            explained = bool(announced_work)
            left = MarkerContent((*announced_work, *(MarkedWork("task", task) for (task,) in owned_tasks)))
        _keep_lost_worker(storage, row.epoch)
        if explained:
            statement, values = f"delete from temporalex_worker {condition}", [row.id, row.epoch]
        else:
            statement, values = (
                f"update temporalex_worker set buried_at = %s {condition}",
                [storage.now(), row.id, row.epoch],
            )
        # Another judge may have been first. Its transaction released the work, so there is nothing left to do.
        if not storage.sql.execute(statement, values):
            return
        due, failed = release_activities(storage, row.epoch)
        if left is not None:
            _attribute_crash(storage, left, earlier=_unexplained_deaths(storage) if unknown and explained else 0)
        wake_for_others(storage, list(WORKERS.read_json("workflows", rows[0][0])))
        if left is not None:
            # Cleared before the commit and deleted after it: a judge that is killed in between does not count the death
            # twice.
            clear_marker(row.crash_marker)
    if left is not None:
        remove_marker(row.crash_marker)
    result.workers.append(row.id)
    if recorder.is_active:
        recorder.record(definitions.DEAD_WORKERS)
    result.due += due
    result.failed += failed
    log.warning(
        "a worker %s: %s due again, %d had no attempts left",
        "died" if left is not None else "sent no heartbeat for a whole lease",
        counted(due, "activity is", "activities are"),
        failed,
        extra={"worker": str(row.id)},
    )


#: What people want to know about an activity that a dead worker had claimed.
_HELD = TASKS.pick_columns("activity", "workflow_id", "run_id")


def _keep_lost_worker(storage: WorkerStorage, epoch: int) -> None:
    """Keep facts about a dead worker for a day, in the open transaction. A second judge finds no row."""
    columns = _HELD.select(f"where owner = %s order by id limit {policy.LOST_WORKER_HELD}")
    rows = storage.sql.select(columns, [epoch], _HELD.types)
    count = storage.sql.select("select count(*) from temporalex_activity_task where owner = %s", [epoch], ("int8",))
    now = storage.now()
    activities = [dict(zip(_HELD.column_names, map(str, values), strict=True)) for values in rows]
    storage.sql.execute("delete from temporalex_lost_worker where lost_at < %s", [now - policy.LOST_WORKER_PERIOD])
    copied_columns = {name: name for name in ("epoch", "kind", "queues", "started_at", "beat_at")}
    statement = LOST_WORKERS.insert(
        {
            **copied_columns,
            "name": "host || ':' || pid",
            "lost_at": "%s",
            "held_count": "%s",
            "held_activities": storage.sql.placeholder("jsonb"),
            "released_by": "%s",
        },
        "from temporalex_worker where epoch = %s and buried_at is null",
    )
    storage.sql.execute(statement, [now, count[0][0], json_text(activities), process_name(), epoch])


def _unexplained_deaths(storage: WorkerStorage) -> int:
    """Return the number of recent deaths that are counted against no run or activity."""
    statement = "select count(*) from temporalex_worker where buried_at is not null"
    number: int = storage.sql.select(statement, [], ("int8",))[0][0]
    return number


def _clear_unexplained(storage: WorkerStorage) -> None:
    """Delete unexplained deaths: the run that was just found at fault explains them, too."""
    storage.sql.execute("delete from temporalex_worker where buried_at is not null")


# --- attribution ------------------------------------------------------------------------------------------------------


def _attribute_crash(storage: WorkerStorage, left: MarkerContent, *, earlier: int = 0) -> None:
    """Count a death against the work that ran, and block or fail the guilty. Locks the rows; needs a transaction."""
    marks = _resolve_marks(storage, left.marks)
    verdicts = attribute_crashes(marks, _recorded_crashes(storage, marks), earlier=earlier)
    if earlier and any(verdict.is_final for verdict in verdicts):
        _clear_unexplained(storage)
    for verdict in verdicts:
        if verdict.mark.kind == "task":
            _attribute_to_activity(storage, verdict, left.ended_after)
        else:
            _attribute_to_run(storage, verdict, left.ended_after)


def _resolve_marks(storage: WorkerStorage, marks: Iterable[MarkedWork]) -> list[MarkedWork]:
    """Replace ids of runs that answered a query by chains, whose rows count the deaths."""
    resolved_marks: dict[MarkedWork, None] = {}
    for mark in marks:
        if mark.kind == "run":
            rows = storage.sql.select("select chain_id from temporalex_instance where id = %s", [mark.key], ("uuid",))
            resolved_marks.update((MarkedWork("run", row[0]), None) for row in rows)
        else:
            resolved_marks[mark] = None
    return list(resolved_marks)


def _recorded_crashes(storage: WorkerStorage, marks: Collection[MarkedWork]) -> Mapping[MarkedWork, int]:
    """Return the deaths that rows count so far, without closed runs and ended activities."""
    recorded: dict[MarkedWork, int] = {}
    for mark in marks:
        if mark.kind == "trial":
            continue
        table, still = (
            ("temporalex_activity_task", "") if mark.kind == "task" else ("temporalex_chain", " and not closed")
        )
        for (crashes,) in storage.sql.select(
            f"select crashes from {table} where id = %s{still}",
            [mark.key],
            ("int4",),
        ):
            recorded[mark] = crashes
    return recorded


_HINT = "look for a segmentation fault, running out of memory or os._exit"


def _cause_text(ended_after: float) -> str:
    """Return words for the probable cause. ``ended_after`` is in seconds; 0.0: no guardian killed it."""
    if not ended_after:
        return _HINT
    return (
        f"the guardian killed the last one, because nothing could interrupt it for {ended_after:g} s: look for a loop that "
        "catches every exception, or for C code that holds the interpreter lock, such as a regular expression"
    )


def _attribute_to_run(storage: WorkerStorage, verdict: CrashVerdict, ended_after: float) -> None:
    """Store the deaths of a run, and block it if the verdict is final; else it is due after a wait.

    Only workers claim it then, and each takes it alone. A death during a query does not change when it is due: a run
    that continues would not prove that the query is harmless.
    """
    now, chain = storage.now(), verdict.mark.key
    rows = storage.sql.select(
        "update temporalex_chain set crashes = %s where id = %s and not closed returning run_id",
        [verdict.crashes, chain],
        ("uuid",),
    )
    if not rows:
        return
    if not verdict.is_final:
        if verdict.mark.kind == "chain":
            due = now + timedelta(seconds=verdict.wait)
            storage.sql.execute(
                "update temporalex_chain set due_at = %s where id = %s and failed_tries = 0", [due, chain]
            )
        return
    reason = f"{verdict.crashes} processes in a row died while running the code of this run; {_cause_text(ended_after)}"
    assert isinstance(chain, UUID)
    _store_block(
        storage, chain, rows[0][0], blocked.block_mark(blocked.CRASH, reason, tries=verdict.crashes, now=now), due=None
    )
    _block_log.add_line(rows[0][0], _names_of(storage, rows[0][0]), blocked.CRASH, reason)


def _attribute_to_activity(storage: WorkerStorage, verdict: CrashVerdict, ended_after: float) -> None:
    """Store the deaths of an activity, and fail it if the verdict is final; else it is due after a wait.

    It runs alone then. If another worker has claimed it by now, it continues there.
    """
    now, task = storage.now(), verdict.mark.key
    if verdict.is_final:
        reason = f"{counted(verdict.crashes, 'worker', 'workers')} died while running it; {_cause_text(ended_after)}"
        assert isinstance(task, int)
        if (single := storage.free_background_task(task)) is not None:
            storage.finish_tasks([background_task.killed_result(single, reason)])
            return
        deleted_rows = storage.sql.select(
            f"delete from temporalex_activity_task where id = %s and owner is null and chain_id is not null returning {_LOST.names}",
            [task],
            _LOST.types,
        )
        _deliver_lost(storage, deleted_rows, now, reason)
        if deleted_rows:
            return
    storage.sql.execute(
        "update temporalex_activity_task set crashes = %s where id = %s", [min(verdict.crashes, 2), task]
    )
    due = now + timedelta(seconds=verdict.wait / 2)
    storage.sql.execute(
        "update temporalex_activity_task set due_at = %s where id = %s and owner is null and due_at < %s",
        [due, task, due],
    )


_LOST = TASKS.pick_columns("chain_id", "run_id", "run_queue", "seq", "attempt", "call", "options", "headers")


def release_activities(storage: WorkerStorage, epoch: int) -> tuple[int, int]:
    """Release all activities that the worker with the number ``epoch`` has claimed.

    They are due again, or have failed if no attempt is left. Used when a worker stops or was declared dead. The attempt
    stays counted, so ``max_attempts=1`` means at most once. Call it inside a transaction; it locks those activities.
    What the worker runs for a cluster no longer counts for limits.
    Returns ``(number due, number failed)``.
    """
    now = storage.now()
    storage.sql.execute("delete from temporalex_permit where owner = %s", [epoch])
    # Most workers stop without an activity.
    if not storage.sql.select("select 1 from temporalex_activity_task where owner = %s limit 1", [epoch], ("int4",)):
        return 0, 0
    # Background tasks have no chain to send a message to. Their log of attempts is in their options, so they take the
    # path of other results.
    background_results = [
        activity_policy.lost_result(task, now) for task in storage.owned_background_tasks(owner=epoch)
    ]
    storage.finish_tasks(background_results)
    finished_count = sum(result.outcome is not None for result in background_results)
    failure_attributes = activity_policy.worker_lost_attributes(0, 0)
    failure = {"type": failure_attributes["type"], "message": failure_attributes["message"], "traceback": None}
    keep_lost_attempts(epoch, failure, now=now, sql=storage.sql)
    lost = storage.sql.select(
        "delete from temporalex_activity_task where owner = %s and max_attempts > 0 and attempt >= max_attempts"
        f" and chain_id is not null returning {_LOST.names}",
        [epoch],
        _LOST.types,
    )
    _deliver_lost(storage, lost, now)
    due = storage.sql.execute(
        "update temporalex_activity_task set owner = null, started_at = null, beat_at = null, expires_at = close_at, due_at = %s,"
        " cause = activity || ': ' || %s, fault = activity || ': ' || %s, failure = %s, failed_at = %s, failed_attempt = attempt, failing_since = coalesce(failing_since, %s)"
        # A last attempt whose key is missing here stays owned. It becomes an orphan, for a process that has the key.
        " where owner = %s and (chain_id is not null or max_attempts = 0 or attempt < max_attempts)",
        [now, *cause_from(failure_attributes["type"]), codec().encode(failure), now, now, epoch],
    )
    return due + len(background_results) - finished_count, len(lost) + finished_count


def _deliver_lost(
    storage: WorkerStorage, lost: Iterable[tuple[Any, ...]], now: datetime, reason: str | None = None
) -> None:
    """Send each run a message that a worker died while it ran an activity."""
    rows = []
    for chain, run, queue, seq, attempt, call, options, headers in lost:
        body = {
            **activity_policy.worker_lost_attributes(seq, attempt, reason),
            **_edited_input(run, seq, call, options),
        }
        rows.append(result_row(chain, run, queue, "ActivityFailed", body, json_value(headers), now))
    storage.sql.write(RESULT.columns, RESULT_INSERT, rows)


def _edited_input(run: UUID, seq: int, call: bytes, options: bytes) -> dict[str, Any]:
    """Return ``{"edited": …}`` if a person edited the input, else ``{}``: the history needs the real input."""
    try:
        read: dict[str, Any] = codec().decode(options)
        if not read.get("edited"):
            return {}
        args, kwargs = codec().decode(call)
    except Exception as exc:  # noqa: BLE001 - the result is sent in any case, also by a worker that lacks the key
        log.warning("the input of a lost activity cannot be read: %s", error_line(exc), extra={"run_id": str(run)})
        return {}
    return {"edited": activity_policy.edited_input(args, kwargs, read, key=activity_policy.derive_key(run, seq, read))}


def block_run(storage: WorkerStorage, chain: UUID, error: BaseException) -> bool:
    """Block a run because the transaction that advances it raises ``error`` even when it advances no other run.

    The run is tried again after growing pauses. One transaction. Returns False if the run is locked elsewhere or
    closed.
    """
    with storage.transaction("block"):
        claimed = storage.claim(limit=1, queues=[], chains=[chain])
        if not claimed or claimed[0].closed:
            return False
        run, now = claimed[0], storage.now()
        tries = run.failed_tries + 1
        due, waits_for = next_retry_at(tries, now), None
        if isinstance(error, KeyMissing):
            due, waits_for = now + policy.KEY_OFFER_DELAY, f"the key {error.key!r}"
        mark = block_mark_of(error, tries=tries, now=now, waits_for=waits_for)
        _store_block(storage, chain, run.run_id, mark, due=due)
    _block_log.add(run.run_id, _names_of(storage, run.run_id), error, waits_for)
    return True


def _names_of(storage: WorkerStorage, run: UUID) -> RunNames:
    """Return the class and the business id of a run, for the log. One read."""
    rows = storage.sql.select(
        "select workflow, workflow_id from temporalex_instance where id = %s", [run], ("text", "text")
    )
    return (rows[0][0], rows[0][1]) if rows else None


def _store_block(storage: WorkerStorage, chain: UUID, run: UUID, mark: BlockMark, *, due: datetime | None) -> None:
    """Block a run, and reject waiting updates and requests. The time of the first block stays. ``due`` None: never."""
    if (before := storage.block_reason(run)) is not None:
        mark["since"] = before["since"]
    storage.sql.execute(
        "update temporalex_chain set failed_tries = %s, due_at = coalesce(%s, deadline) where id = %s",
        [mark["attempt"], due, chain],
    )
    refusal = error_data(RunBlocked("the run is blocked: the message was withdrawn", reason=mark["error"]))
    storage.sql.execute(
        "update temporalex_message set fresh = false, settled = true, outcome_status = 'rejected', outcome = %s, answered_at = %s"
        " where chain_id = %s and not settled and kind in ('update', %s)",
        [codec().encode(refusal), storage.now(), chain, REQUEST],
    )
    storage.sql.execute("update temporalex_message set fresh = false where chain_id = %s and fresh", [chain])
    cast = storage.sql.placeholder("jsonb")
    storage.sql.execute(
        f"update temporalex_instance set blocked = {cast}, cause = %s, fault = %s where id = %s",
        [json_text(mark), *block_cause(mark), run],
    )


# --- crash attribution ------------------------------------------------------------------------------------------------
#
# Attribution of the death of a process to the runs and activities that it was running.
#
# The decisions here need no I/O. ``liveness.recovery`` asks for them and writes the outcome.


@dataclass(frozen=True, slots=True)
class CrashVerdict:
    """The decision about one run or activity that a process was running when it died.

    ``mark`` names the run or activity. ``crashes`` is the new number of deaths for its row. If ``is_final``, its code
    is no longer run. Otherwise it is due again after ``wait`` seconds, and runs alone then, so that another death shows
    the cause.
    """

    mark: MarkedWork
    crashes: int
    wait: float

    @property
    def is_final(self) -> bool:
        return self.crashes >= policy.MOST_CRASHES


def attribute_crashes(
    marks: Collection[MarkedWork], recorded: Mapping[MarkedWork, int], *, earlier: int = 0
) -> list[CrashVerdict]:
    """Return one decision for each run and activity (``marks``) that a process was running when it ended.

    ``recorded`` has the deaths that the rows count so far, by mark; work that is over has no entry and gets no
    decision. Call this only for processes that are known to have ended: a process that is merely late has killed
    nothing. ``earlier`` is the number of earlier deaths of workers that nothing explained, and 0 unless the row of the
    dead worker explains this death. One of them then counts for a run that was alone at its second death, as the first
    of three.

    - The only run in the process: its death counts, whatever activities ran at the same time. An activation takes a
      moment, so a run that is found there repeatedly is no bystander. Besides, no run is activated while an activity
      runs that may have ended a process (a suspect).
    - An activity that was alone, or on trial (the quarantine of a worker started nothing else while it ran): its death
      counts.
    - Work that ran at the same time as other work becomes a suspect: one death is counted, and never more. Innocent
      work must not be blocked or failed for its neighbours. If an activity was on trial, the other activities are not
      even suspected. Suspects come back one by one, so that the next death identifies the cause.
    """
    run_count = len({mark.key for mark in marks if mark.kind in ("chain", "run")})
    tried = {mark.key for mark in marks if mark.kind == "trial"}
    alone = len([mark for mark in marks if mark.kind != "trial"]) == 1
    verdicts = []
    for mark in marks:
        if mark not in recorded:
            continue
        if mark.kind == "task":
            crashes = _task_crashes(recorded[mark], to_blame=alone or mark.key in tried, is_cleared=bool(tried))
        else:
            crashes = _run_crashes(recorded[mark], alone=run_count == 1, earlier=earlier)
        verdicts.append(CrashVerdict(mark, crashes, wait=float(2 ** min(crashes, policy.MOST_CRASHES))))
    return verdicts


def _task_crashes(before: int, *, to_blame: bool, is_cleared: bool) -> int:
    """Return the new number. ``to_blame``: it ran alone, or on trial. ``is_cleared``: another one was on trial."""
    if to_blame:
        return before + 1
    # Work in company is set to one death, not increased: otherwise an activity that runs often would collect the deaths
    # of its neighbours.
    if is_cleared:
        return min(before, 1)
    return 1


def _run_crashes(before: int, *, alone: bool, earlier: int) -> int:
    """Return the new number. One of ``earlier`` unexplained deaths counts as the first if this is the second."""
    if not alone:
        return max(before, 1)
    crashes = before + 1
    # Second death on the row of a worker, and one before it is unexplained: that one was its first (decision 22).
    if earlier and before and crashes == policy.MOST_CRASHES - 1:
        return policy.MOST_CRASHES
    return crashes
