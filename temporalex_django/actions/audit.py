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
_SAME = timedelta(minutes=1)
#: Rows of one person's attempts in that time; the log has all of them.
_MOST = 100
#: What the audit calls the reading of payloads.
READ = "view_payload"
#: The face of code; what goes through it is no person at a keyboard.
_CODE = "code"
_LONGEST = 1000
_LONGEST_NAME = 200
#: What was denied in a transaction that may be rolled back, to be noted behind it.
_held: ContextVar[list[Callable[[], None]] | None] = ContextVar("temporalex_denied", default=None)


class Acting(Protocol):
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
def surviving() -> Iterator[None]:
    """What is denied inside is noted behind the block, of which the transaction may be rolled back by then."""
    if _held.get() is not None:  # the outermost one does
        yield
        return
    notes: list[Callable[[], None]] = []
    token = _held.set(notes)
    try:
        yield
    finally:
        _held.reset(token)
        for note in notes:
            note()


def denied(
    by: Acting,
    action: str,
    why: str,
    *,
    run: Instance | None = None,
    workflow: str = "",
    message: str = "",
    ref: str = "",
) -> None:
    """Note that somebody may not do that; ``why`` names no payload.

    ``message`` is the name of the signal, update, query or event that it was about, ``ref`` how a run was named that
    was not looked up. An attempt is the same one with the same action, run, class and message.

    A row outside of the transaction of what was refused, if it is rolled back already or ``surviving`` stands around
    it; inside of one that the caller has open it lives or dies with that, and only the log is sure.
    """
    user = by.user
    if user is None:
        return
    if (held := _held.get()) is not None:
        held.append(partial(denied, by, action, why, run=run, workflow=workflow, message=message, ref=ref))
        return
    key = getattr(user, "pk", None)
    of = "" if run is None else f" of {run.workflow} {run.workflow_id}"
    level = logging.INFO if key is None else logging.WARNING
    logger.log(
        level, "%s%s denied to user %s (%s)", action, of, key, by.source, extra={"action": action, "denied": True}
    )
    alias = get_settings().DATABASE
    connection = connections[alias]
    if key is None or (connection.in_atomic_block and connection.needs_rollback):
        return
    details = {name: _printable(said) for name, said in (("message", message), ("run", ref)) if said}
    rows = OperatorAction.objects.using(alias).filter(denied=True, actor_id=key, at__gt=timezone.now() - _SAME)
    before = [*rows.values_list("action", "run_id", "workflow", "details")[:_MOST]]
    same = (action, None, workflow) if run is None else (action, run.pk, run.workflow)
    known = ((tuple(row[:3]), row[3].get("message")) for row in before)
    if len(before) < _MOST and (same, details.get("message")) not in known:
        _write(by, action, run, alias=alias, denied=True, reason=why[:_LONGEST], workflow=workflow, details=details)


def _printable(said: str) -> str:
    """What somebody wrote into an address, as JSON of any database takes it."""
    return "".join(letter for letter in said[:_LONGEST_NAME] if letter.isprintable())


def read(by: Acting, run: Instance) -> None:
    """Note that a person was shown payloads of a run. Not for code and programs.

    One INSERT a minute: the default cache knows what was noted, and what it forgets is noted again.
    """
    _read(by, run.pk, lambda alias: _write(by, READ, run, alias=alias))


def read_task(by: Acting, number: UUID, path: str) -> None:
    """The same of a Django task, which belongs to no run: its id and its function stand in the details."""
    details = {"task": path, "id": str(number)}
    _read(by, number, lambda alias: _write(by, READ, None, alias=alias, named=path, details=details))


def _read(by: Acting, what: UUID, write: Callable[[str], None]) -> None:
    key = getattr(by.user, "pk", None)
    if key is None or by.program or by.source == _CODE:
        return
    alias, known = get_settings().DATABASE, f"temporalex:read:{key}:{what}"
    if cache.get(known) is None:
        write(alias)
        # a row that is not written, or rolled back, is no reason to note nothing for a minute
        transaction.on_commit(lambda: cache.set(known, 1, _SAME.total_seconds()), using=alias)


def _write(
    by: Acting,
    action: str,
    run: Instance | None,
    *,
    alias: str,
    workflow: str = "",
    named: str = "",
    details: Mapping[str, str] | None = None,
    **more: Any,
) -> None:
    OperatorAction.objects.using(alias).create(
        at=timezone.now(),
        action=action,
        run_id=None if run is None else run.pk,
        workflow=workflow if run is None else run.workflow,
        workflow_id=named[:_LONGEST_NAME] if run is None else run.workflow_id,
        details={**(details or {}), **job_of(by)},
        **of_actor(by),
        **more,
    )


def job_of(by: Acting) -> dict[str, Any]:
    """What the details of a row say of the bulk job that it is part of."""
    return {"job": by.job} if by.job else {}


def of_actor(by: Acting) -> dict[str, Any]:
    """What a row says of who acts, and from where."""
    user = by.user
    return {
        "actor_id": getattr(user, "pk", None),
        "actor_name": (by.account if user is None else str(user))[:200],
        "source": by.source,
        "address": by.address,
        "request_id": by.request_id,
    }


def log_entry(by: Acting, action: str, run_id: str, shown: str, reason: str) -> None:
    """In the log that Django's admin shows of an object and of a user, where the admin is installed."""
    if not apps.is_installed("django.contrib.admin"):
        return
    from django.contrib.admin.models import ADDITION, CHANGE, DELETION, LogEntry  # noqa: PLC0415 - a model of that app

    alias = router.db_for_write(LogEntry)
    kind = ContentType.objects.db_manager(alias).get_for_model(Instance)
    LogEntry.objects.using(alias).create(
        user_id=by.user.pk,  # type: ignore[union-attr] # whoever is stored has one
        content_type=kind,
        object_id=run_id,
        object_repr=shown[:200],
        action_flag={"start": ADDITION, "delete": DELETION}.get(action, CHANGE),
        change_message=f"{action} ({by.source})" + (f": {reason[:_LONGEST]}" if reason else ""),
    )
