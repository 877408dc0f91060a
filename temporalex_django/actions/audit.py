"""What remains of what people did, tried and read: rows of ``OperatorAction``, and Django's own log of the admin.

Code is not audited here: what it does is in the histories. Nobody fills the audit: attempts of those who are not logged
in are only logged, the same attempt or read of the same person is one row a minute, and of different attempts the first
hundred of that minute have rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from typing import Any, Protocol
from uuid import UUID

from django.apps import apps
from django.contrib.contenttypes.models import ContentType
from django.core.cache import cache
from django.db import connections, router, transaction
from django.utils import timezone

from temporalex_django.authoring.authorization import Person
from temporalex_django.conf import get_settings
from temporalex_django.models import Instance, OperatorAction

logger = logging.getLogger("temporalex_django.actions")

#: So long an attempt, or a read, is the same one.
_REPEAT_PERIOD = timedelta(minutes=1)
#: Rows of one person's attempts in that time; the log has all of them.
_MAX_ROWS = 100
#: What the audit calls the reading of payloads.
READ = "view_payload"
#: The face of code; what goes through it is no person at a keyboard.
_CODE_SOURCE = "code"
_MAX_REASON_LENGTH = 1000
_MAX_NAME_LENGTH = 200
#: What was denied in a transaction that may be rolled back, to be noted behind it.
_deferred_denials: ContextVar[list[Callable[[], None]] | None] = ContextVar("temporalex_denied", default=None)


class AuditActor(Protocol):
    """``actions.base.Actor``."""

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
    """What is denied inside is noted behind the block, of which the transaction may be rolled back by then."""
    if _deferred_denials.get() is not None:  # the outermost one does
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
    """Note that somebody may not do that; ``reason`` names no payload.

    ``message`` is the name of the signal, update, query or event that it was about, ``ref`` how a run was named that
    was not looked up. An attempt is the same one with the same action, run, class and message.

    A row outside of the transaction of what was refused, if it is rolled back already or ``defer_denials`` stands
    around it; inside of one that the caller has open it lives or dies with that, and only the log is sure.
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
    run_text = "" if run is None else f" of {run.workflow} {run.workflow_id}"
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
    if user_id is None or (connection.in_atomic_block and connection.needs_rollback):
        return
    details = {name: _strip_unprintable(text) for name, text in (("message", message), ("run", ref)) if text}
    rows = OperatorAction.objects.using(alias).filter(
        denied=True, actor_id=user_id, at__gt=timezone.now() - _REPEAT_PERIOD
    )
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
    """What somebody wrote into an address, as JSON of any database takes it."""
    return "".join(letter for letter in text[:_MAX_NAME_LENGTH] if letter.isprintable())


def record_read(by: AuditActor, run: Instance) -> None:
    """Note that a person was shown payloads of a run. Not for code and programs.

    One INSERT a minute: the default cache knows what was noted, and what it forgets is noted again.
    """
    _record_read(by, run.pk, lambda alias: _create_row(by, READ, run, alias=alias))


def record_task_read(by: AuditActor, task_id: UUID, path: str) -> None:
    """The same of a Django task, which belongs to no run: its id and its function stand in the details."""
    details = {"task": path, "id": str(task_id)}
    _record_read(by, task_id, lambda alias: _create_row(by, READ, None, alias=alias, label=path, details=details))


def _record_read(by: AuditActor, object_id: UUID, create_row: Callable[[str], None]) -> None:
    user_id = getattr(by.user, "pk", None)
    if user_id is None or by.program or by.source == _CODE_SOURCE:
        return
    alias, cache_key = get_settings().DATABASE, f"temporalex:read:{user_id}:{object_id}"
    if cache.get(cache_key) is None:
        create_row(alias)
        # a row that is not written, or rolled back, is no reason to note nothing for a minute
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
    """What the details of a row say of the bulk job that it is part of."""
    return {"job": by.job} if by.job else {}


def actor_columns(by: AuditActor) -> dict[str, Any]:
    """What a row says of who acts, and from where."""
    user = by.user
    return {
        "actor_id": getattr(user, "pk", None),
        "actor_name": (by.account if user is None else str(user))[:200],
        "source": by.source,
        "address": by.address,
        "request_id": by.request_id,
    }


def add_admin_log_entry(by: AuditActor, action: str, run_id: str, object_text: str, reason: str) -> None:
    """In the log that Django's admin shows of an object and of a user, where the admin is installed."""
    if not apps.is_installed("django.contrib.admin"):
        return
    from django.contrib.admin.models import ADDITION, CHANGE, DELETION, LogEntry  # noqa: PLC0415 - a model of that app

    alias = router.db_for_write(LogEntry)
    content_type = ContentType.objects.db_manager(alias).get_for_model(Instance)
    LogEntry.objects.using(alias).create(
        user_id=by.user.pk,  # type: ignore[union-attr] # whoever is stored has one
        content_type=content_type,
        object_id=run_id,
        object_repr=object_text[:200],
        action_flag={"start": ADDITION, "delete": DELETION}.get(action, CHANGE),
        change_message=f"{action} ({by.source})" + (f": {reason[:_MAX_REASON_LENGTH]}" if reason else ""),
    )
