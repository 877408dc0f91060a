"""The audit log: rows of ``OperatorAction``, and entries in the log of Django's admin.

It records what people did, what they were refused, and which payloads they read. Ordinary operations of code are not
recorded here, because the histories have them.

Nobody can flood the audit log. Refusals of users who are not logged in go only to the log. The same refusal or read of
one person is one row per minute. Of different refusals, the first hundred within that minute have rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any, Protocol
from uuid import UUID

from django.apps import apps
from django.contrib.contenttypes.models import ContentType
from django.core.cache import cache
from django.db import connections, router, transaction
from django.utils import timezone

from temporalex_django.authoring.authorization import Person
from temporalex_django.conf import get_settings
from temporalex_django.core.limits import UNIX
from temporalex_django.models import Instance, OperatorAction, Schedule

logger = logging.getLogger("temporalex_django.operations")

#: Period within which a repeated attempt or read counts as the same one.
_REPEAT_PERIOD = timedelta(minutes=1)
#: Most rows for the attempts of one person in that period; the log has all attempts.
_MAX_ROWS = 100
#: Name of the action under which the audit log records that payloads were read.
READ = "view_payload"
#: Name of the action under which it records that a list of runs was taken as a file.
EXPORT = "export"
#: Source of operations of code; no person at a keyboard is behind them.
_CODE_SOURCE = "code"
_MAX_REASON_LENGTH = 1000
_MAX_NAME_LENGTH = 200
#: Denials in a transaction that may be rolled back, to be recorded after it has ended.
_deferred_denials: ContextVar[list[Callable[[], None]] | None] = ContextVar("temporalex_denied", default=None)


class AuditActor(Protocol):
    """The attributes of ``operations.base.Actor`` that the audit log reads.

    It is a protocol because ``operations.base`` imports the audit log, and not the other way round.
    """

    @property
    def user(self) -> Person | None: ...
    @property
    def source(self) -> str: ...
    @property
    def address(self) -> str | None: ...
    @property
    def program(self) -> bool: ...
    @property
    def request_id(self) -> str: ...
    @property
    def account(self) -> str: ...
    @property
    def job(self) -> str: ...


@contextmanager
def defer_denials() -> Iterator[None]:
    """Write the audit rows of refused operations only after the block has ended.

    Put it around a transaction that may be rolled back: a row that is written inside would be lost with it. Of nested
    blocks, the outermost one writes the rows.
    """
    # Only the outermost block is certain to be outside of the transaction, so it records the denials of inner ones.
    if _deferred_denials.get() is not None:
        yield
        return
    denials: list[Callable[[], None]] = []
    token = _deferred_denials.set(denials)
    try:
        yield
    finally:
        _deferred_denials.reset(token)
        for record in denials:
            record()


def record_denial(
    by: AuditActor,
    action: str,
    reason: str,
    *,
    run: Instance | None = None,
    workflow: str = "",
    message: str = "",
    ref: str = "",
) -> None:
    """Record that an operation was refused to a user: one log entry, and a row of the audit log.

    ``by`` is the user, with the interface that they used. ``action`` is the name of the operation. ``reason`` is the
    text of the refusal and contains no payload. ``workflow`` is the name of the class, for an operation on no existing
    run. ``message`` is the name of the signal, update, query or event that the user wanted to send. ``ref`` is the id
    that the user gave for a run that was not found. Nothing is recorded for code.

    A refusal with the same action, run, class and message within a minute gets no second row.

    Inside ``defer_denials`` the row is written when that block ends. Otherwise it is written at once, and a transaction
    that the caller has open may roll it back. The log entry stays in any case.
    """
    user = by.user
    if user is None:
        return
    if (deferred := _deferred_denials.get()) is not None:
        deferred.append(
            partial(record_denial, by, action, reason, run=run, workflow=workflow, message=message, ref=ref)
        )
        return
    user_id = getattr(user, "pk", None)
    run_text = ""
    if run is not None:
        run_text = f" of {run.workflow} {run.workflow_id}"
    level = logging.INFO if user_id is None else logging.WARNING
    logger.log(
        level,
        "%s%s denied to user %s (%s)",
        action,
        run_text,
        user_id,
        by.source,
        extra={"action": action, "denied": True},
    )
    alias = get_settings().DATABASE
    connection = connections[alias]
    # A transaction that is marked for rollback accepts no statement; the log entry above is all that remains.
    if user_id is None or (connection.in_atomic_block and connection.needs_rollback):
        return
    details = {name: _strip_unprintable(text) for name, text in (("message", message), ("run", ref)) if text}
    rows = OperatorAction.objects.using(alias).filter(
        denied=True, actor_id=user_id, at__gt=timezone.now() - _REPEAT_PERIOD
    )
    # Read at most as many rows as may be written: this bounds the read for somebody who tries very often.
    earlier_rows = [*rows.values_list("action", "run_id", "workflow", "details")[:_MAX_ROWS]]
    attempt_key = (action, None, workflow) if run is None else (action, run.pk, run.workflow)
    recorded_keys = ((tuple(row[:3]), row[3].get("message")) for row in earlier_rows)
    if len(earlier_rows) < _MAX_ROWS and (attempt_key, details.get("message")) not in recorded_keys:
        _create_row(
            by,
            action,
            run,
            alias=alias,
            denied=True,
            reason=reason[:_MAX_REASON_LENGTH],
            workflow=workflow,
            details=details,
        )


def _strip_unprintable(text: str) -> str:
    """Cut the text, and drop unprintable characters, which the JSON columns of some databases reject."""
    return "".join(letter for letter in text[:_MAX_NAME_LENGTH] if letter.isprintable())


def record_read(by: AuditActor, run: Instance) -> None:
    """Write an audit row which says that the person ``by`` was shown payloads of a run.

    Nothing is recorded for code and programs. The same person and run get one row per minute: the default cache
    remembers which rows exist. If the cache forgets, the next read is recorded again.
    """
    _record_read(by, run.pk, lambda alias: _create_row(by, READ, run, alias=alias))


def record_task_read(by: AuditActor, task_id: UUID, path: str) -> None:
    """Write an audit row which says that the person ``by`` was shown payloads of a background task.

    ``path`` is the dotted name of the task's function. The task belongs to no run, so the details of the row contain
    ``path`` and ``task_id``. Nothing is recorded for code and programs. One person gets at most one row per task and
    minute.
    """
    details = {"task": path, "id": str(task_id)}
    _record_read(by, task_id, lambda alias: _create_row(by, READ, None, alias=alias, label=path, details=details))


def record_schedule_read(by: AuditActor, schedule: Schedule) -> None:
    """Write an audit row which says that the person ``by`` was shown the input of a schedule.

    The details of the row contain the name of the schedule. Nothing is recorded for code and programs. One person gets
    at most one row per schedule and minute.
    """
    details = {"schedule": schedule.name}
    _record_read(
        by,
        f"schedule:{schedule.pk}",
        lambda alias: _create_row(
            by, READ, None, alias=alias, workflow=schedule.workflow, label=schedule.name, details=details
        ),
    )


def record_export(by: AuditActor, filters: Mapping[str, str], *, kind: str) -> None:
    """Write an audit row which says that the person ``by`` has taken a list of runs as a file.

    ``filters`` are the parameters that select the runs, and ``kind`` is the format of the file.
    """
    details = {**{name: _strip_unprintable(value) for name, value in filters.items()}, "format": kind}
    _create_row(by, EXPORT, None, alias=get_settings().DATABASE, details=details)


def _record_read(by: AuditActor, object_id: UUID | str, create_row: Callable[[str], None]) -> None:
    """Write no row for code and programs, or if the cache has a read by the same person of less than a minute ago."""
    user_id = getattr(by.user, "pk", None)
    if user_id is None or by.program or by.source == _CODE_SOURCE:
        return
    alias, cache_key = get_settings().DATABASE, f"temporalex:read:{user_id}:{object_id}"
    if cache.get(cache_key) is None:
        create_row(alias)
        # Set the cache only after the commit: a row that is rolled back must not suppress the next one for a minute.
        transaction.on_commit(lambda: cache.set(cache_key, 1, _REPEAT_PERIOD.total_seconds()), using=alias)


def _create_row(
    by: AuditActor,
    action: str,
    run: Instance | None,
    *,
    alias: str,
    workflow: str = "",
    label: str = "",
    details: Mapping[str, str] | None = None,
    **columns: Any,
) -> None:
    """Insert an audit row. Without a run, ``label`` is stored in place of the business id."""
    OperatorAction.objects.using(alias).create(
        at=timezone.now(),
        action=action,
        run_id=None if run is None else run.pk,
        workflow=workflow if run is None else run.workflow,
        workflow_id=label[:_MAX_NAME_LENGTH] if run is None else run.workflow_id,
        details={**(details or {}), **job_details(by)},
        **actor_columns(by),
        **columns,
    )


def job_details(by: AuditActor) -> dict[str, Any]:
    """Return ``{"job": id}`` for the details of an audit row if ``by`` acts for a bulk job, or else an empty dict."""
    if by.job:
        return {"job": by.job}
    return {}


def actor_columns(by: AuditActor) -> dict[str, Any]:
    """Return the columns of an audit row that say who acts and from where, as values by the name of the column."""
    user = by.user
    return {
        "actor_id": getattr(user, "pk", None),
        "actor_name": (by.account if user is None else str(user))[:200],
        "source": by.source,
        "address": by.address,
        "request_id": by.request_id,
    }


def add_admin_log_entry(by: AuditActor, action: str, run_id: str, object_text: str, reason: str) -> None:
    """Add an entry about a run to the log of Django's admin (``LogEntry``), in addition to the row of the audit log.

    ``action`` is the name of the operation, and ``object_text`` the text by which the log shows the run. The user of
    ``by`` must be stored in the database. If the admin is not installed, nothing is written.
    """
    if not apps.is_installed("django.contrib.admin"):
        return
    from django.contrib.admin.models import ADDITION, CHANGE, DELETION, LogEntry  # noqa: PLC0415 - a model of that app

    # The admin log belongs to the project and may be routed to another database than ours.
    alias = router.db_for_write(LogEntry)
    content_type = ContentType.objects.db_manager(alias).get_for_model(Instance)
    LogEntry.objects.using(alias).create(
        user_id=by.user.pk,  # type: ignore[union-attr] # the caller checked that the user is stored
        content_type=content_type,
        object_id=run_id,
        object_repr=object_text[:200],
        action_flag={"start": ADDITION, "delete": DELETION}.get(action, CHANGE),
        change_message=f"{action} ({by.source})" + (f": {reason[:_MAX_REASON_LENGTH]}" if reason else ""),
    )


Address = IPv4Address | IPv6Address


def client_address(meta: Mapping[str, Any]) -> str | None:
    """Return the IP address of the client from ``request.META``, or None if it has none.

    This is ``REMOTE_ADDR``, unless that is one of ``TRUSTED_PROXIES``. Then ``X-Forwarded-For`` is read from its end,
    up to the first address that is not a trusted proxy: a client can write anything before it.
    """
    trusted_proxies = get_settings().TRUSTED_PROXIES
    networks = [ip_network(proxy, strict=False) for proxy in trusted_proxies if proxy != UNIX]
    address = _parse_address(meta.get("REMOTE_ADDR"))
    # Requests over a Unix socket have no address, so the setting has a word of its own for them.
    is_trusted = any(address in network for network in networks) if address is not None else UNIX in trusted_proxies
    if is_trusted:
        claims = str(meta.get("HTTP_X_FORWARDED_FOR") or "").split(",")
        address = _first_untrusted(reversed(claims), networks, address)
    if address is None:
        return None
    return str(address)


def _first_untrusted(claims: Iterable[str], networks: list[Any], address: Address | None) -> Address | None:
    """Return the first claim of ``X-Forwarded-For``, the last entry first, that is no trusted proxy.

    An entry that is no address ends the search at the proxy before it, or at the peer ``address``. If all entries are
    trusted proxies, the last one is returned.
    """
    for claim in claims:
        parsed_address = _parse_address(claim)
        if parsed_address is None:
            return address
        address = parsed_address
        if not any(parsed_address in network for network in networks):
            return address
    return address


def _parse_address(text: Any) -> Address | None:
    """Ignore a zone, a port and brackets. An IPv4 address inside IPv6 becomes IPv4."""
    text = str(text or "").strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    # One colon is a port; an IPv6 address without brackets has at least two.
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        parsed_address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(parsed_address, "ipv4_mapped", None) or parsed_address
