"""Rounds of alerts: one process looks for problems each minute, and reports the new ones to people in one message."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from django.conf import settings
from django.utils import timezone

from temporalex_django.authoring.redaction import Redactor
from temporalex_django.backends.host import host
from temporalex_django.conf import get_settings
from temporalex_django.core.error_text import error_line
from temporalex_django.db.process_leases import is_lease_free, set_lease, take_lease
from temporalex_django.engine.scheduling import policy
from temporalex_django.models import Alert, Instance
from temporalex_django.operations.alerts.message import (
    AlertEntry,
    admin_link,
    build_message,
    call_heartbeat_address,
    send_message,
)
from temporalex_django.operations.read.project_state import load_cluster_state, load_project_state
from temporalex_django.operations.read.run_summary import summarize_run
from temporalex_django.present.diagnosis import diagnose
from temporalex_django.present.view_models import Diagnosis

logger = logging.getLogger("temporalex_django.operations")

_LEASE: Final = "alerts"
#: Findings of ``doctor`` that alerts report. The others are states that somebody wanted, or need no hurry.
ALERT_CODES: Final = frozenset(
    {
        *("no_worker", "untaken", "late", "untaken_activity"),
        *("blocked", "failed", "failing", "failed_message", "validator_fault"),
        *("nobody_left", "overdue"),
        *("schedule_overdue", "schedule_ahead", "schedule_error", "schedule_class"),
        *("schedule_missed", "schedule_failures", "schedule_gone"),
        *("outbox_late", "dead_letters"),
        *("cluster_away", "cluster_unpolled", "mirror_behind", "cluster_clock"),
    }
)
#: Findings whose evidence begins with the business id of a run.
_WITH_EXAMPLE: Final = frozenset({"blocked", "failed", "failing", "failed_message"})
#: A problem is reported again after the first period if more runs have it, and after the second one in any case.
REPEAT_PERIOD: Final = timedelta(minutes=15)
REMINDER_PERIOD: Final = timedelta(days=1)
#: A problem that was not seen for this time is over: if it comes back, it is new.
_OVER_PERIOD: Final = timedelta(hours=1)
_MAX_ENTRIES: Final = 20


def is_round_due(alias: str, *, since: float = 0.0) -> bool:
    """Return True if a round of alerts has been due for ``since`` seconds. No statement without ``ALERTS``."""
    return bool(get_settings().ALERTS) and is_lease_free(_LEASE, storage=host().storage(alias), since=since)


def run_round(alias: str, *, is_worker: bool = True) -> bool:
    """Look for problems, and send one message about those that are new; return True if one was sent.

    Only one process at a time does this; in the others it returns False at once. A message that could not be sent is
    sent with the next round. ``is_worker`` is False in a web process, which does not call the heartbeat address.
    """
    storage = host().storage(alias)
    # Until the end of the round. If this process dies, another one may try after that time.
    if not get_settings().ALERTS or not take_lease(_LEASE, seconds=policy.ALERT_ROUND_SECONDS, storage=storage):
        return False
    try:
        if is_worker:
            _call_heartbeat_address()
        return _report_problems(alias, storage.now())
    finally:
        set_lease(_LEASE, seconds=policy.ALERT_SECONDS, storage=storage)


def _call_heartbeat_address() -> None:
    try:
        call_heartbeat_address()
    except (OSError, ValueError) as exc:
        logger.warning("the heartbeat address of ALERTS did not answer: %s", error_line(exc))


def _report_problems(alias: str, now: datetime) -> bool:
    project = load_project_state(alias)
    # The text of an error that refused a message may quote the message.
    outgoing = [replace(group, error=group.code or group.error) for group in project.outgoing_messages]
    project = replace(project, outgoing_messages=outgoing, cluster=load_cluster_state(alias))
    findings = [finding for finding in diagnose(project, now=now) if finding.code in ALERT_CODES]
    alerts = _record(alias, findings, now)
    due = [(finding, alerts[cause_of(finding)]) for finding in findings if _must_report(alerts[cause_of(finding)], now)]
    if not due:
        return False
    # Errors first. What does not fit comes with the next message.
    due.sort(key=lambda pair: pair[0].severity != "error")
    due = due[:_MAX_ENTRIES]
    message = build_message([_entry(alias, finding, alert) for finding, alert in due], project=_project_name())
    try:
        send_message(message)
    except Exception as exc:  # noqa: BLE001 - a mail server, or code of the project
        logger.error("%d alerts could not be sent and will be retried: %s", len(due), error_line(exc))
        return False
    for _finding, alert in due:
        Alert.objects.using(alias).filter(pk=alert.pk).update(sent_at=now, sent_count=alert.count)
    return True


def cause_of(finding: Diagnosis) -> str:
    """Return the key by which a problem is recognized again: the code of the finding, and what it is about."""
    return f"{finding.code} {finding.about}".strip()[:500]


def _record(alias: str, findings: Sequence[Diagnosis], now: datetime) -> Mapping[str, Alert]:
    """Store which problems there are now, and return them by cause. Problems that are over are deleted."""
    stored = Alert.objects.using(alias)
    stored.filter(seen_at__lt=now - _OVER_PERIOD).delete()
    earlier_alerts = {alert.cause: alert for alert in stored.all()}
    alerts: dict[str, Alert] = {}
    for finding in findings:
        cause = cause_of(finding)
        alert = earlier_alerts.get(cause) or Alert(cause=cause, since=now)
        # Two findings with one cause, such as a class with two versions, are one problem.
        previous = alerts.get(cause)
        alert.count = finding.count + (previous.count if previous is not None else 0)
        alert.seen_at = now
        # What is repaired counts again when it comes back.
        alert.sent_count = min(alert.sent_count, alert.count)
        alerts[cause] = alert
    stored.exclude(cause__in=alerts).exclude(sent_count=0).update(sent_count=0)
    stored.bulk_create(
        alerts.values(),
        update_conflicts=True,
        unique_fields=["cause"],
        update_fields=["seen_at", "count", "sent_count"],
    )
    return alerts


def _must_report(alert: Alert, now: datetime) -> bool:
    if alert.sent_at is None:
        return True
    if alert.count > alert.sent_count and now - alert.sent_at >= REPEAT_PERIOD:
        return True
    return bool(now - alert.sent_at >= REMINDER_PERIOD)


def _entry(alias: str, finding: Diagnosis, alert: Alert) -> AlertEntry:
    workflow = finding.about.partition(" ")[0]
    sentence = ""
    if finding.code in _WITH_EXAMPLE and finding.evidence:
        sentence = _sentence(alias, workflow, finding.evidence[:1])
    return AlertEntry(
        code=finding.code,
        about=finding.about,
        severity=finding.severity,
        text=finding.text,
        next_step=finding.next_step,
        count=alert.count,
        since=alert.since,
        run=sentence,
        link=admin_link(finding.code, workflow),
    )


def _sentence(alias: str, workflow: str, examples: Iterable[str]) -> str:
    """Return the sentence about the newest run with one of these ids, without payloads; empty if there is none."""
    runs = Instance.objects.using(alias).filter(workflow=workflow, workflow_id__in=list(examples))
    run = runs.select_related("chain").order_by("-id").first()
    if run is None:
        return ""
    summary = summarize_run(run, redactor=Redactor(may_see_payloads=False), now=timezone.now())
    return f"{run.workflow} {run.workflow_id}: {summary.text}"


def _project_name() -> str:
    name = get_settings().ALERTS.get("NAME")
    return str(name or settings.ROOT_URLCONF.partition(".")[0])
