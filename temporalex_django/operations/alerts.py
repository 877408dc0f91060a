"""Alerts: the rounds that find problems, and the messages about them."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from django.conf import settings
from django.core import mail
from django.db import Error as DatabaseError
from django.db import connections
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from temporalex_django.authoring.redaction import Redactor
from temporalex_django.backends.host import host
from temporalex_django.conf import alert_function, get_settings
from temporalex_django.core.failures import error_line
from temporalex_django.core.names import counted
from temporalex_django.db.outbox import is_lease_free, set_lease, take_lease
from temporalex_django.engine import policy
from temporalex_django.models import Alert, Instance
from temporalex_django.operations.read.project_state import load_cluster_state, load_project_state
from temporalex_django.operations.read.run_summary import summarize_run
from temporalex_django.present.diagnosis import diagnose
from temporalex_django.present.view_models import Diagnosis

# --- rounds -----------------------------------------------------------------------------------------------------------
#
# Rounds of alerts: one process looks for problems each minute, and reports the new ones to people.
#
# Each channel, which is an address of mail or a function, gets one message in a round, in a thread of its own. A
# channel that refuses a message, or does not answer, keeps no message from the others.


logger = logging.getLogger("temporalex_django.operations")

_LEASE: Final = "alerts"
#: Findings of ``doctor`` that alerts report. The others are states that somebody wanted, or need no hurry.
ALERT_CODES: Final = frozenset(
    {
        *("no_worker", "few_workers", "untaken", "late", "untaken_activity"),
        *("blocked", "failed", "failing", "failed_message", "validator_fault"),
        *("nobody_left", "nobody_asked", "overdue"),
        *("schedule_overdue", "schedule_ahead", "schedule_error", "schedule_class"),
        *("schedule_missed", "schedule_stalled", "schedule_failures", "schedule_gone"),
        *("outbox_late", "dead_letters"),
        *("cluster_away", "cluster_unpolled", "mirror_behind", "cluster_clock"),
        *("build_reused", "build_waits", "history_full", "cluster_old", "cluster_prefix"),
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
_HEARTBEAT: Final = "the heartbeat address of ALERTS"


@dataclass(eq=False, slots=True, kw_only=True)
class _Delivery:
    """A call in a thread of its own: a message to a channel, or the request of the heartbeat address.

    ``alerts`` are the rows that the message reports, as they were then. ``error`` is what the call has raised.
    """

    name: str
    call: Callable[[], None]
    at: datetime
    alerts: Sequence[Alert] = ()
    error: BaseException | None = None
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        # A daemon: a call that never returns does not keep the process.
        self.thread = threading.Thread(target=self._run, name="temporalex-alert", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.call()
        except BaseException as exc:  # noqa: BLE001 - a mail server, or code of the project
            self.error = exc
        finally:
            connections.close_all()


#: Calls that have not returned, by database alias and name. They are not made again meanwhile.
_under_way: dict[tuple[str, str], _Delivery] = {}


def is_round_due(alias: str, *, since: float = 0.0) -> bool:
    """Return True if a round of alerts has been due for ``since`` seconds. No statement without ``ALERTS``."""
    return bool(get_settings().ALERTS) and is_lease_free(_LEASE, storage=host().storage(alias), since=since)


def run_round(alias: str, *, is_worker: bool = True) -> bool:
    """Look for problems, and send each channel a message about those that are new to it; return True if one was sent.

    Only one process at a time does this; in the others it returns False at once. A message that a channel refused is
    sent to it with the next round. A channel that has not answered after fifteen seconds gets the next message when it
    has answered. ``is_worker`` is False in a web process, which does not call the heartbeat address.
    """
    storage = host().storage(alias)
    # Until the end of the round. If this process dies, another one may try after that time.
    if not get_settings().ALERTS or not take_lease(_LEASE, seconds=policy.ALERT_ROUND_SECONDS, storage=storage):
        return False
    try:
        now = storage.now()
        _finish(alias)
        if is_worker and get_settings().ALERTS.get("HEARTBEAT_URL"):
            _begin(alias, _HEARTBEAT, call_heartbeat_address, now=now)
        _report_problems(alias, now)
        # Longer than the timeout of a mail server, whose error then belongs to this round.
        deadline = time.monotonic() + 1.5 * policy.ALERT_CALL_SECONDS
        for delivery in [*_under_way.values()]:
            delivery.thread.join(max(0.0, deadline - time.monotonic()))
        return _finish(alias)
    finally:
        set_lease(_LEASE, seconds=policy.ALERT_SECONDS, storage=storage)


def _report_problems(alias: str, now: datetime) -> None:
    project = load_project_state(alias)
    project = replace(project, cluster=load_cluster_state(alias))
    findings = [finding for finding in diagnose(project, now=now) if finding.code in ALERT_CODES]
    # Errors first. What does not fit comes with the next message.
    findings.sort(key=lambda finding: finding.severity != "error")
    alerts = _record(alias, findings, now)
    for channel in channels():
        due = [
            (finding, alert) for finding in findings if _must_report(alert := alerts[cause_of(finding), channel], now)
        ]
        due = due[:_MAX_ENTRIES]
        if due:
            message = build_message([_entry(alias, finding, alert) for finding, alert in due], project=_project_name())
            call = partial(send_message, message, channel)
            _begin(alias, channel, call, now=now, alerts=[alert for _finding, alert in due])


def _begin(alias: str, name: str, call: Callable[[], None], *, now: datetime, alerts: Sequence[Alert] = ()) -> None:
    """Make the call in a thread, unless an earlier call of this name has not returned."""
    if (alias, name) not in _under_way:
        _under_way[alias, name] = _Delivery(name=name, call=call, at=now, alerts=alerts)


def _finish(alias: str) -> bool:
    """Store what the channels that have answered were sent, and return True if it is anything."""
    was_sent = False
    for key, delivery in [*_under_way.items()]:
        if key[0] != alias:
            continue
        if delivery.thread.is_alive():
            logger.error(
                "%s has not answered yet; %s for it",
                delivery.name,
                counted(len(delivery.alerts), "alert waits", "alerts wait"),
            )
            continue
        del _under_way[key]
        if delivery.error is None:
            for alert in delivery.alerts:
                Alert.objects.using(alias).filter(pk=alert.pk).update(sent_at=delivery.at, sent_count=alert.count)
                was_sent = True
        elif delivery.name == _HEARTBEAT:
            logger.warning("%s did not answer: %s", _HEARTBEAT, error_line(delivery.error))
        else:
            logger.error(
                "%s could not be sent to %s and will be retried: %s",
                counted(len(delivery.alerts), "alert", "alerts"),
                delivery.name,
                error_line(delivery.error),
            )
    return was_sent


def cause_of(finding: Diagnosis) -> str:
    """Return the key by which a problem is recognized again: the code of the finding, and what it is about."""
    return f"{finding.code} {finding.about}".strip()[:500]


def _record(alias: str, findings: Sequence[Diagnosis], now: datetime) -> Mapping[tuple[str, str], Alert]:
    """Store the present problems, delete those that are over, and return them by cause and channel."""
    stored = Alert.objects.using(alias)
    stored.filter(seen_at__lt=now - _OVER_PERIOD).delete()
    stored.exclude(channel__in=channels()).delete()
    # Two findings with one cause, such as a class with two versions, are one problem.
    counts: Counter[str] = Counter()
    for finding in findings:
        counts[cause_of(finding)] += finding.count
    alerts = {(alert.cause, alert.channel): alert for alert in stored.all()}
    for cause, count in counts.items():
        for channel in channels():
            alert = alerts.setdefault((cause, channel), Alert(cause=cause, channel=channel, since=now))
            alert.count, alert.seen_at = count, now
            # What is repaired counts again when it comes back.
            alert.sent_count = min(alert.sent_count, count)
    stored.exclude(cause__in=counts).exclude(sent_count=0).update(sent_count=0)
    seen = [alert for alert in alerts.values() if alert.cause in counts]
    changed = ["seen_at", "count", "sent_count"]
    stored.bulk_update([alert for alert in seen if alert.pk is not None], changed)
    stored.bulk_create(
        [alert for alert in seen if alert.pk is None],
        update_conflicts=True,
        unique_fields=["cause", "channel"],
        update_fields=changed,
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
        link=console_link(finding),
    )


def _sentence(alias: str, workflow: str, examples: Iterable[str]) -> str:
    """Return the sentence about the newest run, without payloads; empty if there is none."""
    runs = Instance.objects.using(alias).filter(workflow=workflow, workflow_id__in=list(examples))
    run = runs.select_related("chain").order_by("-id").first()
    if run is None:
        return ""
    summary = summarize_run(run, redactor=Redactor(may_see_payloads=False), now=timezone.now())
    return f"{run.workflow} {run.workflow_id}: {summary.text}"


def _project_name() -> str:
    name = get_settings().ALERTS.get("NAME")
    return str(name or settings.ROOT_URLCONF.partition(".")[0])


# --- message ----------------------------------------------------------------------------------------------------------
#
# The message of alerts: its text, and how it is sent.


#: Namespaces of the URLs of the console: below the admin site, or alone.
_CONSOLES = ("admin:temporalex_console", "temporalex_console")
_MAX_SUBJECT_LENGTH = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertEntry:
    """One problem in an alert.

    ``code``, ``about``, ``text``, ``next_step`` and ``count`` are those of the finding of ``doctor``. ``severity`` is
    "error" or "warning". ``since`` is when it was first seen. ``run`` is the sentence about one run that has the
    problem, without payloads, or empty. ``link`` is an address in the admin, or empty.
    """

    code: str
    about: str
    severity: str
    text: str
    next_step: str
    count: int
    since: datetime
    run: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertMessage:
    """A message to people about problems of the project. It contains no payloads.

    ``subject`` is one line, and ``text`` describes all ``entries``.
    """

    subject: str
    text: str
    entries: Sequence[AlertEntry]


def console_link(finding: Diagnosis) -> str:
    """Return the address of the console's list of the runs that have a problem, or of its overview.

    It is empty without ``BASE_URL``, or if the project has no console.
    """
    base = get_settings().ALERTS.get("BASE_URL", "").rstrip("/")
    page, filters, remedy = "overview", "", finding.remedy
    if remedy is not None and remedy.kind in ("bulk", "runs"):
        page, filters = "runs", f"?{urlencode(remedy.filters)}"
    for namespace in _CONSOLES if base else ():
        try:
            return f"{base}{reverse(f'{namespace}:{page}')}{filters}"
        except NoReverseMatch:
            continue
    return ""


def build_message(entries: Sequence[AlertEntry], *, project: str) -> AlertMessage:
    """Return the message about these problems; ``project`` names the project in the subject."""
    count = len(entries)
    subject = ngettext("%(count)d problem: %(text)s", "%(count)d problems: %(text)s", count) % {
        "count": count,
        "text": entries[0].text,
    }
    parts = [_entry_text(entry) for entry in entries]
    parts.append(
        _(
            "A problem is reported again when it affects more runs (at most every fifteen minutes), "
            "and once a day as a reminder."
        )
    )
    line = " ".join(f"[{project}] {subject}".split())
    if len(line) > _MAX_SUBJECT_LENGTH:
        line = f"{line[: _MAX_SUBJECT_LENGTH - 1]}…"
    return AlertMessage(subject=line, text="\n\n".join(parts), entries=entries)


def _entry_text(entry: AlertEntry) -> str:
    lines = [f"{entry.severity}: {entry.text}"]
    if entry.run:
        lines.append(entry.run)
    lines.append(_("Next step: %(step)s") % {"step": entry.next_step})
    if entry.link:
        lines.append(entry.link)
    return "\n".join(lines)


def channels() -> list[str]:
    """Return the channels that ``ALERTS`` names: each address of ``MAIL``, and the path of the function ``CALL``."""
    alerts = get_settings().ALERTS
    function = alerts.get("CALL")
    return [*dict.fromkeys(alerts.get("MAIL", ())), *([function] if function else ())]


def send_message(message: AlertMessage, channel: str) -> None:
    """Send a message to one of ``channels()``: by mail, or to the function. Raises what the channel raises."""
    alerts = get_settings().ALERTS
    if channel in alerts.get("MAIL", ()):
        send_mail(message.subject, message.text, alerts.get("FROM") or settings.SERVER_EMAIL, [channel])
        return
    function = alert_function()
    if function is not None:
        function(message)


def send_mail(subject: str, text: str, sender: str | None, to: Sequence[str]) -> None:
    """Send a mail with the project's mailer, with a timeout if the project sets none. Raises what the mailer raises.

    ``sender`` is the From address, by default Django's own.
    """
    # Django 6.1 has mailers, and warns about the older function.
    mailer: Any = mail.mailers.default if hasattr(mail, "mailers") else mail.get_connection()
    # The mailer for SMTP has this attribute. Without a timeout, a silent server would hold the thread for ever.
    if getattr(mailer, "timeout", 0.0) is None:
        mailer.timeout = policy.ALERT_CALL_SECONDS
    mailer.send_messages([mail.EmailMessage(subject, text, sender, to)])


def mail_deadline() -> float:
    """Return the time (``time.monotonic``) after which no mail about a human task is begun any more."""
    return time.monotonic() + policy.MAIL_SECONDS


def call_heartbeat_address() -> None:
    """Request the address that notices when no worker calls it any more. Raises what the request raises."""
    address = get_settings().ALERTS.get("HEARTBEAT_URL")
    if address:
        request = Request(address, headers={"User-Agent": "temporalex_django"})  # noqa: S310 - checked with the settings
        with urlopen(request, timeout=policy.ALERT_CALL_SECONDS):  # noqa: S310 - as above
            pass


# --- web --------------------------------------------------------------------------------------------------------------
#
# Alerts by web processes, for the time when no worker is left.


_lock = threading.Lock()
_looked_at = 0.0


def ensure_rounds() -> None:
    """Do a round of alerts in a thread of its own if no process has done one for two minutes.

    Web processes call this after each request. Once a minute it costs one statement, in that thread; otherwise nothing.
    """
    global _looked_at  # noqa: PLW0603 - one look a minute for the whole process
    with _lock:
        if time.monotonic() - _looked_at < policy.ALERT_SECONDS:
            return
        _looked_at = time.monotonic()
    threading.Thread(target=look, args=[get_settings().DATABASE], name="temporalex-alerts", daemon=True).start()


def look(alias: str) -> None:
    """Do a round of alerts if no process has done one for two minutes. Closes the connections of the thread."""
    try:
        if is_round_due(alias, since=policy.ALERT_WEB_SECONDS):
            run_round(alias, is_worker=False)
    except DatabaseError as exc:
        logger.warning("a web process could not look for problems: %s", error_line(exc))
    finally:
        connections.close_all()
