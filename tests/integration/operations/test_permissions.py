"""Permissions of handlers on the database: who is asked, what remains of a refusal, nobody else pays for it."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, Group, Permission
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext, override_settings
from django.utils import timezone
from rest_framework.test import APIClient

from temporalex_django import Ok, Reply, Stop, Workflow, api, errors, signal, update
from temporalex_django.authoring.authorization import sender_of
from temporalex_django.backends.tables import inline_turn
from temporalex_django.db.human_tasks import DatabaseJudge
from temporalex_django.db.inserts import insert_message, message_outcome
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.models import Chain, HistoryEvent, Message, OperatorAction
from temporalex_django.testing import drain
from tests.support.people import stored

pytestmark = pytest.mark.django_db

MAY = "auth.change_group"


def spend(args: Any, state: Any) -> Reply:
    return Reply("spent", state + args)


class Purse(Workflow):
    """Who may spend needs a permission, who looks does not."""

    name = "test.Purse"

    async def run(self, args: Any) -> Ok:
        return Ok(
            await api.phase(
                0,
                update={"spend": update(spend, permission=MAY), "free": spend},
                signal={"stop": signal(lambda _, state: Stop(state), permission=MAY)},
            )
        )


@pytest.fixture
def purse() -> Any:
    handle = Purse.start(id="purse")
    drain()
    return handle


def asked(queries: CaptureQueriesContext) -> list[str]:
    return [q["sql"] for q in queries.captured_queries if q["sql"] and "auth_" in q["sql"]]


@pytest.mark.parametrize("mode", ["auto", "worker"])
def test_an_update_without_the_permission_is_refused_wherever_its_turn_runs(purse: Any, mode: str) -> None:
    eve, ann = stored("eve"), stored("ann", MAY)
    length = HistoryEvent.objects.count()
    if mode == "auto":
        with pytest.raises(errors.ActionNotPermitted, match=f"eve may not send the update 'spend'.*{MAY}"):
            purse.update("spend", 5, by=eve)
        assert purse.update("spend", 5, by=ann) == "spent"
    else:
        left = {
            who.username: insert_message(
                purse.chain_id,
                kind="update",
                name="spend",
                body=5,
                request_id=who.username,
                sender=sender_of(who),
                storage=DjangoStorage(),
            )
            for who in (eve, ann)
        }
        drain()
        outcomes = {name: message_outcome(message.id, storage=DjangoStorage()) for name, message in left.items()}
        assert outcomes["eve"] is not None
        assert (outcomes["eve"].status, outcomes["eve"].value["code"]) == ("rejected", "not_permitted")
        assert outcomes["ann"] is not None
        assert outcomes["ann"].status == "completed"
    assert HistoryEvent.objects.count() == length + 3
    accepted = HistoryEvent.objects.get(kind="UpdateAccepted").data
    assert accepted["sender"] == {"key": str(ann.pk), "name": "ann"}


def test_a_user_who_is_gone_or_was_never_there_is_refused(purse: Any) -> None:
    inactive, deleted = stored("off", MAY, is_active=False), stored("gone", MAY)
    key = deleted.pk
    deleted.delete()
    deleted.pk = key

    for who in (inactive, deleted, AnonymousUser()):
        with pytest.raises(errors.ActionNotPermitted):
            purse.update("spend", 5, by=who)
    assert not HistoryEvent.objects.filter(kind="UpdateAccepted").exists()


def test_what_code_sends_is_not_judged_and_not_asked_about(purse: Any) -> None:
    with CaptureQueriesContext(connection) as queries:
        assert purse.update("spend", 5) == "spent"
        purse.update("free", 5, by=stored("eve"))
        found = [sql for sql in asked(queries) if "permission" in sql]
    assert found == []


@pytest.mark.usefixtures("unhurried")
def test_a_user_is_read_once_a_turn_and_anew_in_the_next(purse: Any) -> None:
    ann = stored("ann", MAY)
    for _ in range(3):
        purse.signal("unknown", by=ann)
    purse.update("free", 0)

    def send(*ids: str) -> CaptureQueriesContext:
        for one in ids:
            insert_message(
                purse.chain_id,
                kind="update",
                name="spend",
                body=1,
                request_id=one,
                sender=sender_of(ann),
                storage=DjangoStorage(),
            )
        with CaptureQueriesContext(connection) as queries:
            drain()
        return queries

    assert len([sql for sql in asked(send("1", "2", "3")) if 'FROM "auth_user"' in sql]) == 1
    ann.user_permissions.clear()
    with pytest.raises(errors.ActionNotPermitted):
        purse.update("spend", 1, by=ann)
    ann.groups.add(Group.objects.create(name="spenders"))
    Group.objects.get().permissions.add(Permission.objects.get(content_type__app_label="auth", codename="change_group"))
    assert purse.update("spend", 1, by=ann) == "spent"


class Busy(OperationalError):
    """Of a statement that the same turn may get through the next time."""


def test_a_database_that_is_busy_when_a_user_is_read_blocks_nobody(purse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: Any) -> bool:
        raise Busy

    purse.signal("stop", by=stored("ann", MAY))
    with monkeypatch.context() as patched:
        patched.setattr(DatabaseJudge, "__call__", busy)
        patched.setattr(DjangoStorage, "is_transient", lambda _, exc: isinstance(exc, Busy))
        with pytest.raises(Busy):
            inline_turn.engine("default").turn(limit=1, queues=["default"])
    assert purse.describe().blocked is None

    drain()
    assert purse.status == "completed"


def test_a_refused_signal_leaves_an_audit_row_and_nothing_else(purse: Any, caplog: pytest.LogCaptureFixture) -> None:
    eve = stored("eve")
    length = HistoryEvent.objects.count()
    purse.signal("stop", {"secret": 4711}, by=eve)
    sent = OperatorAction.objects.get()
    assert (sent.action, sent.actor, sent.source, sent.reason) == ("signal", eve, "code", "")

    with caplog.at_level(logging.WARNING, logger="temporalex_django"):
        drain()

    row = OperatorAction.objects.latest("id")
    assert (row.action, row.actor, row.actor_name, row.source) == ("signal", eve, "eve", "turn")
    assert (row.workflow, row.workflow_id, str(row.run_id)) == ("test.Purse", "purse", purse.run_id)
    assert row.reason == f"refused: eve lacks the permission {MAY}"
    assert row.details == {"signal": "stop", "refused": MAY}
    assert (row.automatic, sent.automatic) == (True, False)
    assert HistoryEvent.objects.count() == length
    message = Message.objects.get(kind="signal")
    assert (message.settled, message.outcome_status, message.sender_key, message.sender_name) == (
        True, "rejected", str(eve.pk), "eve",
    )  # fmt: skip
    assert (purse.status, "refused" in caplog.text, "4711" in caplog.text) == ("waiting", True, False)
    purse.signal("stop", by=stored("ann", MAY))
    drain()
    assert purse.status == "completed"


def test_a_face_asks_for_the_permission_to_signal_as_well(purse: Any) -> None:
    client = APIClient()
    clerk = stored("clerk", "temporalex_django.update_instance")
    client.force_authenticate(clerk)
    address = "/api/instances/purse/updates/spend/"

    refused = client.post(address, {"args": 5}, format="json")
    clerk.user_permissions.add(Permission.objects.get(content_type__app_label="auth", codename="change_group"))
    client.force_authenticate(type(clerk).objects.get(pk=clerk.pk))
    taken = client.post(address, {"args": 5}, format="json")

    assert (refused.status_code, refused.json()["code"]) == (403, "not_permitted")
    assert (taken.status_code, taken.json()["result"]) == (200, "spent")
    client.force_authenticate(stored("ann", MAY))
    assert client.post(address, {"args": 5}, format="json").status_code == 403


def test_what_is_done_in_somebodys_name_takes_the_permission_of_the_operation_and_is_audited() -> None:
    every = ("start", "query", "cancel", "terminate", "view")
    ann = stored("ann", *(f"temporalex_django.{name}_instance" for name in every))
    eve = stored("eve", MAY)
    with pytest.raises(errors.ActionNotPermitted, match="start_instance"):
        Purse.start(id="purse", by=eve)
    with pytest.raises(errors.ActionNotPermitted, match="start_instance"):
        Purse.signal_with_start("stop", id="purse", by=eve)
    purse = Purse.start(id="purse", by=ann)
    for call in (purse.query, purse.cancel, purse.terminate):
        with pytest.raises(errors.ActionNotPermitted, match=f"{call.__name__}_instance"):
            call("why", by=eve)
    for look in (purse.describe, purse.history, purse.result):
        with pytest.raises(errors.ActionNotPermitted, match="view_instance"):
            look(by=eve)
    assert purse.describe(by=ann).id == "purse"
    purse.terminate("enough", by=ann)

    rows = (
        OperatorAction.objects.filter(denied=False)
        .order_by("id")
        .values_list("action", "actor_name", "source", "reason")
    )
    assert list(rows) == [("start", "ann", "code", ""), ("terminate", "ann", "code", "enough")]


class Away:
    """A backend that reaches nobody; ``sql``: whose own statement fails."""

    sql = ""

    def has_perm(self, *_: Any, **__: Any) -> bool:
        if self.sql:
            with connection.cursor() as cursor:
                cursor.execute(self.sql)
        raise ValueError("ldap is away")


class Broken(Away):
    sql = "SELECT 1 FROM no_such_table"


@pytest.mark.parametrize("backend", ["Away", "Broken"])
@pytest.mark.parametrize("kind", ["signal", "update"])
def test_a_backend_that_fails_blocks_the_run_with_what_was_judged_until_it_is_back(
    purse: Any, backend: str, kind: str
) -> None:
    ann, name = stored("ann", MAY), {"signal": "stop", "update": "spend"}[kind]
    neighbour = Purse.start(id="neighbour")
    drain()
    insert_message(
        purse.chain_id, kind=kind, name=name, body=4711, request_id="1", sender=sender_of(ann), storage=DjangoStorage()
    )
    neighbour.signal("unknown")
    with override_settings(AUTHENTICATION_BACKENDS=[f"{__name__}.{backend}"]):
        inline_turn.engine("default").turn(limit=9, queues=["default"])
    assert neighbour.describe().blocked is None
    blocked = purse.describe().blocked
    assert blocked["code"] == "judging_failed"
    failed = "ValueError: ldap is away" if backend == "Away" else r"\w+Error: .*no_such_table"
    assert re.match(
        f"JudgingFailed: checking '{MAY}' of 'ann' for {kind} '{name}' failed: {failed}", blocked["error"], re.DOTALL
    )
    assert "4711" not in blocked["error"]
    again = Chain.objects.filter(pk=purse.chain_id, due_at__gt=timezone.now())
    assert again.update(due_at=timezone.now()) == 1
    drain()
    assert purse.describe().blocked is None
    assert purse.status == "completed" if kind == "signal" else purse.update("free", 0) == "spent"


@pytest.mark.usefixtures("unhurried")
def test_who_is_judged_costs_one_savepoint_and_who_is_not_none(purse: Any) -> None:
    ann = stored("ann", MAY)

    def send(name: str, **more: Any) -> int:
        for one in ("1", "2"):
            insert_message(
                purse.chain_id,
                kind="update",
                name=name,
                body=1,
                request_id=name + one,
                storage=DjangoStorage(),
                **more,
            )
        with CaptureQueriesContext(connection) as queries:
            inline_turn.engine("default").turn(limit=1, queues=["default"])
        return len([q for q in queries.captured_queries if q["sql"] and q["sql"].startswith("SAVEPOINT")])

    without = send("free", sender=sender_of(ann))
    assert send("spend", sender=sender_of(ann)) == without + 1
