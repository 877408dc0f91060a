"""Permissions of senders: users as the database has them, and audit rows for refused messages.

Some messages take a permission, which is judged in the turn that dispatches them (decision 37).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db import transaction

from temporalex_django.access import policy
from temporalex_django.authoring import authorization
from temporalex_django.engine.refusals import RefusedRedelivery, RefusedSignal
from temporalex_django.models import OperatorAction

_STANDS_IN = "stands_in_for:"


class DatabaseJudge:
    """``core.messages.sender.Judge`` of one turn.

    It reads each user once, with their permissions. A turn does not use what an earlier one read.

    It asks authentication backends of the project, so it does that inside a savepoint of ``alias``, where the turn's
    transaction is. The turn continues even if their statements fail.
    """

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._users: dict[str, Any] = {}
        self._verdicts: dict[tuple[str, str], bool] = {}

    def __call__(self, key: str, permission: str, message: str) -> bool:
        """Return True if the user has the permission.

        False for users who are deleted, inactive or were never stored. Raises what a backend raises.
        """
        del message
        if (key, permission) not in self._verdicts:
            with transaction.atomic(using=self._alias):
                self._verdicts[key, permission] = self._has_permission(key, permission)
        return self._verdicts[key, permission]

    def _has_permission(self, key: str, permission: str) -> bool:
        if key not in self._users:
            pk = _primary_key(key)
            users = get_user_model()._default_manager  # noqa: SLF001 - as authentication backends do
            self._users[key] = None if pk is None else users.filter(pk=pk).first()
        user, access_policy = self._users[key], policy()
        if user is None:
            return False
        if permission.startswith(_STANDS_IN):
            principals = access_policy.stands_in_for(user) if getattr(user, "is_active", True) else ()
            return any(
                authorization.sender_key(principal) == permission.removeprefix(_STANDS_IN) for principal in principals
            )
        return authorization.is_authorized(user, permission, permits=access_policy.permits)


def audit_refused_signals(refused: Sequence[RefusedSignal], *, alias: str) -> None:
    """Write an audit row for each refused signal, in the open transaction."""
    OperatorAction.objects.using(alias).bulk_create(
        OperatorAction(
            at=refusal.at,
            action="signal",
            actor_id=_primary_key(refusal.sender.key),
            actor_name=refusal.sender.name,
            run_id=refusal.run_id,
            workflow=refusal.workflow,
            workflow_id=refusal.workflow_id,
            reason=refusal.reason,
            source="turn",
            automatic=True,
            denied=True,
            details={"signal": refusal.signal, "refused": refusal.permission},
        )
        for refusal in refused
    )


def audit_refused_redeliveries(messages: Sequence[RefusedRedelivery], *, alias: str) -> None:
    """Write an audit row for each refused message that was delivered again, in the open transaction."""
    OperatorAction.objects.using(alias).bulk_create(
        OperatorAction(
            at=message.at,
            action=message.kind,
            actor_id=None if message.sender is None else _primary_key(message.sender.key),
            actor_name="" if message.sender is None else message.sender.name,
            run_id=message.run_id,
            workflow=message.workflow,
            workflow_id=message.workflow_id,
            reason=f"delivered again and refused: {message.code}",
            source="turn",
            details={message.kind: message.name, "redelivered": True, "refused": message.code},
        )
        for message in messages
    )


def _primary_key(key: str) -> Any:
    """Return the primary key whose text is the sender's key, or None if there is none."""
    field = get_user_model()._meta.pk  # noqa: SLF001 - Django's documented API
    try:
        return field.to_python(key) if key else None
    except ValidationError:
        return None
