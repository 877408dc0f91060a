"""The message of alerts: its text, and how it is sent."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from django.conf import settings
from django.core import mail
from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from temporalex_django.conf import alert_function, get_settings
from temporalex_django.engine import policy

#: Filters of the list of runs in the admin, by the code of a finding.
_RUN_FILTERS = {
    "blocked": {"status": "blocked"},
    "failed": {"status": "failed"},
    "failing": {"standing": "stuck"},
    "untaken": {"standing": "stuck"},
    "late": {"standing": "stuck"},
    "failed_message": {"standing": "stuck"},
}
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


def admin_link(code: str, workflow: str) -> str:
    """Return the address of the list of runs that have a problem; empty without ``BASE_URL``, or without the admin."""
    base = get_settings().ALERTS.get("BASE_URL", "").rstrip("/")
    if not base:
        return ""
    page, query = "instance_changelist", dict(_RUN_FILTERS.get(code, {}))
    if code.startswith("schedule_"):
        page = "schedule_changelist"
    elif query and workflow:
        query["workflow"] = workflow
    try:
        address = reverse(f"admin:temporalex_django_{page}")
    except NoReverseMatch:
        return ""
    return f"{base}{address}?{urlencode(query)}" if query else f"{base}{address}"


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
