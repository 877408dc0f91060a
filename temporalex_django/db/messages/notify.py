"""Notifications between processes: how they are sent and listened to."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import UUID

from django.db import DatabaseError, connections

from temporalex_django import signals
from temporalex_django.authoring import workflow
from temporalex_django.conf import get_settings
from temporalex_django.core.failures import error_line
from temporalex_django.core.history.events import CLOSING
from temporalex_django.db.dialects.base import get_dialect
from temporalex_django.db.human_tasks import undecidable_tasks
from temporalex_django.db.inserts import CHANNEL, NOTIFY
from temporalex_django.engine.contracts.records import HumanTaskWrite, RunRecord, RunWrite
from temporalex_django.engine.executors import report_turn
from temporalex_django.engine.turn_metrics import record_turn
from temporalex_django.engine.turn_report import TurnReport
from temporalex_django.interceptors.chain import chain
from temporalex_django.models import HumanTask
from temporalex_django.telemetry.recording import recorder

# --- notify -----------------------------------------------------------------------------------------------------------
#
# Signals and notifications after a commit: Django signals about what it stored, and notifications for processes.
#
# Replays write nothing, so they announce nothing. Notifications may be lost: nothing depends on them (decision 2).


logger = logging.getLogger("temporalex_django.db")

#: Callers that wait for a result or an outcome listen here. The payload names chains, by the hex of their ids.
DONE_CHANNEL = "temporalex_done"
# PostgreSQL refuses payloads of 8,000 bytes. An id is 32 characters long, plus a comma.
_PAYLOAD_IDS = 200
#: Changes of a human task after which other people may decide it than before.
_NEW_PEOPLE = frozenset({"opened", "barred", "escalated"})

_BY_KIND = {
    "SignalReceived": ("message_received", {"kind": "signal"}, ("name",)),
    "CancelRequested": ("message_received", {"kind": "cancel", "name": ""}, ()),
    "SignalFailed": ("signal_failed", {}, ("id", "name", "type")),
    "UpdateAccepted": ("message_received", {"kind": "update"}, ("name",)),
    "UpdateCompleted": ("update_completed", {"status": "completed"}, ("id", "name")),
    "UpdateFailed": ("update_completed", {"status": "failed"}, ("id", "name")),
    "TimerFired": ("timer_fired", {}, ("seq",)),
    "WorkflowCompleted": ("instance_completed", {}, ("result",)),
    "WorkflowFailed": ("instance_failed", {"status": "failed"}, ()),
    "WorkflowTerminated": ("instance_failed", {"status": "terminated"}, ()),
    "WorkflowTimedOut": ("instance_failed", {"status": "timed_out"}, ()),
    "WorkflowCancelled": ("instance_cancelled", {}, ()),
}


def send_turn_signals(report: TurnReport) -> None:
    """Send the Django signals about what a committed turn did, and record its metrics.

    A signal without receivers costs nothing.
    """
    if recorder.is_active:
        record_turn(report)
    if chain.problem:
        report_turn(report)
    if not any(signal.receivers for signal in signals.ALL.values()):
        return
    for write in report.writes:
        record = report.records.get(write.run.run_id)
        if record is None:
            continue
        try:
            _send_run_signals(write, record)
        except Exception as exc:  # noqa: BLE001 - the commit stands, even if its signals fail
            logger.error("signals about run %s were not sent: %s", record.run_id, error_line(exc))


def _send_run_signals(write: RunWrite, record: RunRecord) -> None:
    sender: Any = workflow.signal_sender(record.workflow, record.version)
    run_fields = {"workflow": record.workflow, "workflow_id": record.workflow_id, "run_id": str(record.run_id)}
    _send_event_signals(write, record, sender, run_fields)
    for task_write in write.human_tasks:
        _send_task_signals(task_write, sender, run_fields)
    if signals.human_task_nobody_left.receivers:
        _send_nobody_left(write.human_tasks, sender, run_fields)
    if "published" in write.instance:
        signals.send("state_published", sender, **run_fields, state=write.instance["published"])
    if blocked := write.instance.get("blocked"):
        signals.send("instance_blocked", sender, **run_fields, code=blocked["code"], error=blocked["error"])
    for outcome in write.settled.values():
        if outcome.status == "undelivered":
            signals.send("message_received", sender, **run_fields, kind="undelivered", name="")


def _send_event_signals(write: RunWrite, record: RunRecord, sender: Any, run_fields: dict[str, str]) -> None:
    for event in write.events:
        if event.kind == "WorkflowStarted":
            signals.send("instance_started", sender, **run_fields, version=record.version)
        elif (rule := _BY_KIND.get(event.kind)) is not None:
            name, fixed, attribute_names = rule
            argument_names = {}
            if name == "update_completed":
                argument_names = {"id": "update_id"}
            attributes: dict[str, Any] = {
                argument_names.get(key, key): event.attributes.get(key) for key in attribute_names
            }
            if name == "instance_failed":
                attributes["failure"] = event.attributes
            signals.send(name, sender, **run_fields, **fixed, **attributes)
    for name, note_fields in write.notes:
        signals.send(name, sender, **{**note_fields, **run_fields, "workflow_version": record.version})
    if write.is_closed_externally and isinstance(sender, type) and issubclass(sender, workflow.Workflow):
        last_event = write.events[-1]
        notes = sender._external_close_signals(CLOSING[last_event.kind], record.started_at, last_event.at)  # noqa: SLF001 - a hook for us alone
        for name, note_fields in notes:
            signals.send(name, sender, **{**note_fields, **run_fields, "workflow_version": record.version})


def _send_task_signals(task_write: HumanTaskWrite, sender: Any, run_fields: dict[str, str]) -> None:
    task = task_write.task
    task_fields = {**run_fields, "task": str(task_write.id), "title": task.spec.title, "key": task.key}
    for change in task_write.changes:
        match change:
            case "opened":
                signals.send("human_task_opened", sender, **task_fields, asked=task.candidates, due_at=task.due_at)
            case "reminded":
                signals.send("human_task_reminded", sender, **task_fields, reminders=task.reminders)
            case "escalated":
                signals.send("human_task_escalated", sender, **task_fields, asked=task.candidates)
            case "closed":
                if task.ending == "decided":
                    by = ""
                    if task.decided_by is not None:
                        by = task.decided_by.name
                    signals.send("human_task_decided", sender, **task_fields, outcome=task.outcome, decided_by=by)
                signals.send("human_task_closed", sender, **task_fields, ending=task.ending)


def _send_nobody_left(tasks: Iterable[HumanTaskWrite], sender: Any, run_fields: dict[str, str]) -> None:
    """Send a signal for each four-eyes task that nobody may decide any more since this turn."""
    changed = {
        task_write.id: task_write.task
        for task_write in tasks
        if task_write.task.spec.four_eyes and not _NEW_PEOPLE.isdisjoint(task_write.changes)
    }
    if not changed:
        return
    alias = get_settings().DATABASE
    for pk in undecidable_tasks(HumanTask.objects.using(alias).filter(pk__in=changed), alias=alias):
        task = changed[pk]
        task_fields = {**run_fields, "task": str(pk), "title": task.spec.title, "key": task.key}
        signals.send("human_task_nobody_left", sender, **task_fields, asked=task.candidates)


def notify_payloads(report: TurnReport, *, own_queues: Iterable[str] = ()) -> list[tuple[str, str]]:
    """Return the notifications of a committed turn, as pairs of channel and payload.

    They name the queues with new activities or runs, so that their workers look, and the chains for which a caller may
    wait. ``own_queues`` are left out, because the worker that made the turn looks there by itself.
    """
    queues = {task.queue for write in report.writes for task in write.tasks}
    queues |= {child.queue for write in report.writes for child in write.children}
    queues.difference_update(own_queues)
    payloads = []
    if queues:
        payloads = [(CHANNEL, ",".join(sorted(queues)))]
    done = [
        w.run.chain_id.hex for w in report.writes if w.settled or w.outcomes or w.closing is not None or w.run.closed
    ]
    payloads += [(DONE_CHANNEL, ",".join(done[i : i + _PAYLOAD_IDS])) for i in range(0, len(done), _PAYLOAD_IDS)]
    return payloads


def send_notifications(report: TurnReport, *, alias: str, own_queues: Iterable[str] = ()) -> None:
    """Send the notifications of a committed turn to workers and waiting callers, on Django's own connection.

    Does nothing on SQLite, in a transaction, or behind a pooler. ``own_queues`` are left out, because the worker that
    made the turn looks there by itself.
    """
    dialect = get_dialect(alias)
    if connections[alias].in_atomic_block or not dialect.listens or get_settings().POOLED:
        return
    try:
        for channel, payload in notify_payloads(report, own_queues=own_queues):
            dialect.execute(NOTIFY, [channel, payload])
    except DatabaseError:
        return


# --- listen -----------------------------------------------------------------------------------------------------------
#
# Waiting for notifications about a chain on the caller's own connection.


#: A function that waits so many seconds at most.
WaitFunction = Callable[[float], None]


@contextmanager
def listen(chain: UUID, *, alias: str) -> Iterator[WaitFunction]:
    """Listen for notifications about a chain while the block runs, and yield a function that waits for one.

    The function takes the most seconds to wait. It returns early when a turn of ``chain`` was announced. Look at the
    rows before the first wait and after each one, since notifications may be lost and have more than one reason. Your
    statement then also ends the listening. So if you wait again, that wait listens again and returns at once, for
    another look.

    The function is ``time.sleep`` where no notifications arrive: on SQLite, behind a pooler, in a transaction, on a
    standby. An error that breaks the connection is not raised here; the next user of the connection finds it.
    """
    connection, dialect, name = connections[alias], get_dialect(alias), chain.hex
    raw = None
    if _can_listen(connection):
        raw = connection.connection
    if raw is None or not _send_command(connection, raw, "listen"):
        yield time.sleep
        return

    withdraw_unlisten: Callable[[], bool] | None = None  # withdraws the UNLISTEN that goes with the next statement

    def wait(seconds: float) -> None:
        nonlocal withdraw_unlisten
        if withdraw_unlisten is not None:
            is_withdrawn, withdraw_unlisten = withdraw_unlisten(), None
            if not is_withdrawn and _send_command(connection, raw, "listen"):
                return  # a notification may have come while nothing listened, so the caller looks again
        deadline = time.monotonic() + seconds
        try:
            with connection.wrap_database_errors:
                while (left := deadline - time.monotonic()) > 0:
                    if any(name in notice.payload for notice in raw.notifies(timeout=left, stop_after=1)):
                        withdraw_unlisten = dialect.send_with_next(f"unlisten {DONE_CHANNEL}")
                        return
        except DatabaseError:
            time.sleep(max(deadline - time.monotonic(), 0.0))

    try:
        yield wait
    finally:
        if withdraw_unlisten is None or withdraw_unlisten():
            _send_command(connection, raw, "unlisten")


def _can_listen(connection: Any) -> bool:
    """Return True if notifications can arrive now: not on SQLite, behind a pooler, or in a transaction."""
    if not get_dialect(connection.alias).listens or get_settings().POOLED or connection.in_atomic_block:
        return False
    return bool(connection.get_autocommit())


def _send_command(connection: Any, raw: Any, command: str) -> bool:
    """Send "listen" or "unlisten"; return True if done. It is no query of the project: no cursor of Django's."""
    with suppress(DatabaseError), connection.wrap_database_errors:
        raw.execute(f"{command} {DONE_CHANNEL}")
        return True
    return False
