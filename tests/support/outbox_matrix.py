"""The rows about other systems in the permission matrix, which ``test_permission_matrix`` adds to its tables."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from django.utils import timezone

from temporalex_django.backends.cluster import reconcile
from temporalex_django.models import Instance, Outbox
from temporalex_django.operations.fleet.outgoing import DropOutgoing, SendAgain, SyncMirror
from tests.support.matrix import Row

LOOK, OPERATE = ("view_outbox",), ("operate_outbox",)


def dead_letter() -> uuid.UUID:
    """A message about the run that its destination has refused."""
    row = Outbox.objects.first()
    if row is None:
        now = timezone.now()
        row = Outbox.objects.create(
            id=uuid.uuid4(), chain_id=Instance.objects.earliest("id").chain_id, destination="file", kind="file.append",
            body=b"null", created_at=now, due_at=now, failed={"code": "gave_up", "error": "refused", "at": ""},
        )  # fmt: skip
    return row.pk


def without_server(call: Callable[[], Any]) -> Any:
    """Call this with a cluster that has no runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reconcile, "sync", lambda cluster_ids, *, storage: reconcile.Comparison(storage))
        return call()


OPERATIONS = {
    "sync": Row(
        OPERATE,
        lambda by: SimpleNamespace(execute=lambda: without_server(SyncMirror(by=by).execute)),
        of_run=False,
        of_all=True,
    ),
    "send_again": Row(OPERATE, lambda by: SendAgain(dead_letter(), by=by)),
    "drop_outgoing": Row(OPERATE, lambda by: DropOutgoing(dead_letter(), by=by)),
}
REST = {
    "GET outbox": Row(LOOK, lambda send: send(), of_run=False),
    "POST send_again": Row(OPERATE, lambda send: send({}, at={"message": dead_letter()})),
    "POST drop_outgoing": Row(OPERATE, lambda send: send({}, at={"message": dead_letter()})),
}
ADMIN = {
    **{
        f"outbox chosen {action.partition('_')[0]}": Row(
            (*LOOK, *OPERATE),
            lambda page, action=action: page(
                None, {"action": action, "_selected_action": [str(Outbox.objects.get().pk)]}
            ),
            of_run=False,
        )
        for action in ("send_again", "drop")
    },
    "outbox changelist": Row(LOOK, lambda page: page(), of_run=False),
    "outbox change": Row(LOOK, lambda page: page("message")),
    "outbox history": Row(LOOK, lambda page: page("message")),
    "outbox add": Row(None, lambda page: page(), of_run=False),
    "outbox delete": Row(None, lambda page: page("message")),
}
COMMANDS = {
    "sync": Row(OPERATE, lambda run, ref: without_server(run), of_run=False, of_all=True),
    "outbox": Row(OPERATE, lambda run, ref: run("drop", str(dead_letter()))),
}
