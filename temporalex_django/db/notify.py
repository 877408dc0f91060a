"""After a commit: Django signals about what it stored, and hints for workers and for callers who wait.

Replays write nothing, so they announce nothing. Hints may be lost: nothing depends on them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from django.db import DatabaseError, connections

from temporalex_django import signals
from temporalex_django.authoring import workflow
from temporalex_django.conf import get_settings
from temporalex_django.core.error_text import error_line
from temporalex_django.core.history.events import CLOSING
from temporalex_django.db.deciders import without_deciders
from temporalex_django.db.dialects.base import dialect_for
from temporalex_django.db.starts import CHANNEL, NOTIFY
from temporalex_django.engine.report import TurnReport
from temporalex_django.engine.storage import HumanTaskWrite, RunRecord, RunWrite
from temporalex_django.models import HumanTask

logger = logging.getLogger("temporalex_django.runtime")

#: Whoever waits for a result or an outcome listens here; the payload names chains, by the hex of their ids.
DONE_CHANNEL = "temporalex_done"
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


def announce(report: TurnReport) -> None:
    """Send the signals of a committed turn; nothing is built for signals that nobody listens to."""
    if not any(signal.receivers for signal in signals.ALL.values()):
        return
    for write in report.writes:
        facts = report.records.get(write.run.run_id)
        if facts is None:
            continue
        try:
            _announce_run(write, facts)
        except Exception as exc:  # noqa: BLE001 - what is committed stays so, whatever becomes of the news of it
            logger.error("signals about run %s were not sent: %s", facts.run_id, error_line(exc))


def _announce_run(write: RunWrite, facts: RunRecord) -> None:
    sender: Any = workflow.signal_sender(facts.workflow, facts.version)
    who = {"workflow": facts.workflow, "workflow_id": facts.workflow_id, "run_id": str(facts.run_id)}
    _announce_events(write, facts, sender, who)
    for one in write.human_tasks:
        _announce_task(one, sender, who)
    if signals.human_task_nobody_left.receivers:
        _announce_nobody_left(write.human_tasks, sender, who)
    if "published" in write.instance:
        signals.send("state_published", sender, **who, state=write.instance["published"])
    if blocked := write.instance.get("blocked"):
        signals.send("instance_blocked", sender, **who, code=blocked["code"], error=blocked["error"])
    for outcome in write.settled.values():
        if outcome.status == "undelivered":
            signals.send("message_received", sender, **who, kind="undelivered", name="")


def _announce_events(write: RunWrite, facts: RunRecord, sender: Any, who: dict[str, str]) -> None:
    """What is in the history now."""
    for event in write.events:
        if event.kind == "WorkflowStarted":
            signals.send("instance_started", sender, **who, version=facts.version)
        elif (rule := _BY_KIND.get(event.kind)) is not None:
            name, fixed, wanted = rule
            renamed = {"id": "update_id"} if name == "update_completed" else {}
            more: dict[str, Any] = {renamed.get(key, key): event.attributes.get(key) for key in wanted}
            if name == "instance_failed":
                more["failure"] = event.attributes
            signals.send(name, sender, **who, **fixed, **more)
    for name, facts_of in write.notes:
        signals.send(name, sender, **{**facts_of, **who, "workflow_version": facts.version})
    if write.is_closed_externally and isinstance(sender, type) and issubclass(sender, workflow.Workflow):
        ended = write.events[-1]
        notes = sender._external_close_signals(CLOSING[ended.kind], facts.started_at, ended.at)  # noqa: SLF001 - a hook for us alone
        for name, facts_of in notes:
            signals.send(name, sender, **{**facts_of, **who, "workflow_version": facts.version})


def _announce_task(one: HumanTaskWrite, sender: Any, who: dict[str, str]) -> None:
    """What happened to a human task."""
    task = one.task
    about = {**who, "task": str(one.id), "title": task.spec.title, "key": task.key}
    for change in one.changes:
        match change:
            case "opened":
                signals.send("human_task_opened", sender, **about, asked=task.candidates, due_at=task.due_at)
            case "reminded":
                signals.send("human_task_reminded", sender, **about, reminders=task.reminders)
            case "escalated":
                signals.send("human_task_escalated", sender, **about, asked=task.candidates)
            case "closed":
                if task.ending == "decided":
                    by = task.decided_by.name if task.decided_by is not None else ""
                    signals.send("human_task_decided", sender, **about, outcome=task.outcome, decided_by=by)
                signals.send("human_task_closed", sender, **about, ending=task.ending)


def _announce_nobody_left(tasks: Iterable[HumanTaskWrite], sender: Any, who: dict[str, str]) -> None:
    """The tasks under four eyes that nobody may decide any more since this turn."""
    changed = {one.id: one.task for one in tasks if one.task.spec.four_eyes and not _NEW_PEOPLE.isdisjoint(one.changes)}
    if not changed:
        return
    alias = get_settings().DATABASE
    for pk in without_deciders(HumanTask.objects.using(alias).filter(pk__in=changed), alias=alias):
        task = changed[pk]
        about = {**who, "task": str(pk), "title": task.spec.title, "key": task.key}
        signals.send("human_task_nobody_left", sender, **about, asked=task.candidates)


def notices(report: TurnReport, *, own_queues: Iterable[str] = ()) -> list[tuple[str, str]]:
    """What to tell of a committed turn, as channel and payload.

    Which queues have new activities or runs, and which chains have something that a caller may wait for.
    """
    queues = {task.queue for write in report.writes for task in write.tasks}
    queues |= {child.queue for write in report.writes for child in write.children}
    queues.difference_update(own_queues)
    found = [(CHANNEL, ",".join(sorted(queues)))] if queues else []
    done = [
        w.run.chain_id.hex for w in report.writes if w.settled or w.outcomes or w.closing is not None or w.run.closed
    ]
    found += [(DONE_CHANNEL, ",".join(done[i : i + _PAYLOAD_IDS])) for i in range(0, len(done), _PAYLOAD_IDS)]
    return found


def hint(report: TurnReport, *, alias: str, own_queues: Iterable[str] = ()) -> None:
    """Send the notices of a turn on Django's own connection.

    Nothing on SQLite, in a transaction, or behind a pooler.
    """
    dialect = dialect_for(alias)
    if connections[alias].in_atomic_block or not dialect.listens or get_settings().POOLED:
        return
    try:
        for channel, payload in notices(report, own_queues=own_queues):
            dialect.execute(NOTIFY, [channel, payload])
    except DatabaseError:
        return
