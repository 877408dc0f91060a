"""Rows of the outbox are sent once they are committed, in order, and none keeps another destination waiting."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.core.management import call_command
from django.db import IntegrityError, transaction
from django.db.models import F
from django.urls import reverse
from django.utils import timezone

from temporalex_django import Ok, Workflow, api, signals
from temporalex_django.db import outbox
from temporalex_django.db.outbox import DeliveryFailed
from temporalex_django.db.retention import delete_chain
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine import policy
from temporalex_django.errors import ActionNotPossible, WorkflowNotFound
from temporalex_django.models import Chain, OperatorAction, Outbox
from temporalex_django.operations.fleet.outgoing import DropOutgoing, SendAgain, describe_outgoing, outgoing_messages
from temporalex_django.operations.read.project_state import load_project_state
from temporalex_django.present import diagnosis
from temporalex_django.workers.loop import WorkerLoop, run_until_idle
from temporalex_django.workers.maintenance import OutboxDispatcher, send_batch
from tests.support.outbox_kinds import AppendLine, register
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)

CHAIN = uuid.uuid4()


@pytest.fixture(autouse=True)
def kind() -> Iterator[AppendLine]:
    yield register()
    outbox._loaders.pop("file")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "lines"


def insert(file: Path, line: str, *, chain: uuid.UUID = CHAIN, destination: str = "file", **options: Any) -> uuid.UUID:
    body = {"path": str(file), "line": line}
    return outbox.insert(
        chain, destination=destination, kind="file.append", body=body, storage=DjangoStorage(), **options
    ).id


def due_now() -> None:
    Outbox.objects.update(due_at=timezone.now() - timedelta(seconds=1))


def test_rows_are_sent_in_order_once_they_are_committed(file: Path, kind: AppendLine) -> None:
    with transaction.atomic():
        insert(file, "rolled back")
        transaction.set_rollback(True)
    with transaction.atomic():
        for number in range(5):
            insert(file, f"line {number}")
        assert not file.exists()
    run_until_idle()
    assert file.read_text().splitlines() == kind.settled == [f"line {number}" for number in range(5)]
    assert not Outbox.objects.exists()


def test_a_row_with_a_later_time_keeps_the_rows_behind_it(file: Path) -> None:
    insert(file, "later", due_at=timezone.now() + timedelta(hours=1))
    insert(file, "behind")
    insert(file, "another chain", chain=uuid.uuid4())
    run_until_idle()
    assert file.read_text().splitlines() == ["another chain"]
    due_now()
    run_until_idle()
    assert file.read_text().splitlines() == ["another chain", "later", "behind"]


def test_a_destination_that_does_not_answer_keeps_no_other_waiting(
    file: Path, kind: AppendLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("OUTBOX_FIRST_PAUSE", "OUTBOX_LONGEST_PAUSE"):  # no second try, however slow the machine is
        monkeypatch.setattr(policy, pause, 3600.0)
    before = timezone.now()
    insert(file.parent / "missing" / "lines", "first", destination="away")
    insert(file, "second")
    run_until_idle()
    assert file.read_text().splitlines() == ["second"]
    (row,) = Outbox.objects.all()
    assert (row.tries, row.failed) == (1, None)
    assert "FileNotFoundError" in str(row.error)
    assert row.due_at >= before + timedelta(seconds=policy.OUTBOX_FIRST_PAUSE)


def test_a_refusal_that_cannot_be_stored_is_tried_again(
    file: Path, kind: AppendLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_locked(*_: Any) -> None:
        raise DeliveryFailed("the row of the run is locked")

    insert(file, "no")
    insert(file, "another chain", chain=uuid.uuid4())
    with monkeypatch.context() as patch:
        patch.setattr(kind, "refuse", is_locked)
        assert send_batch("default", "file")
    (row,) = Outbox.objects.all()
    assert (row.failed, row.error, file.read_text()) == (None, "the row of the run is locked", "another chain\n")
    due_now()
    assert send_batch("default", "file")
    assert kind.refused == ["not_possible"]


def test_a_row_is_given_up_after_the_tries_of_its_kind(file: Path, kind: AppendLine) -> None:
    told: list[dict[str, Any]] = []
    receive = lambda sender, **facts: told.append(facts)  # noqa: E731
    signals.delivery_refused.connect(receive)
    insert(file.parent / "missing" / "lines", "lost")
    insert(file, "behind")
    for _ in range(kind.max_tries):
        due_now()
        assert send_batch("default", "file")
    (dead,) = Outbox.objects.refused()
    assert dead.failed is not None
    assert dead.failed["code"] == "gave_up"
    assert "3 tries" in dead.failed["error"]
    assert [(facts["code"], facts["kind"], facts["destination"]) for facts in told] == [
        ("gave_up", "file.append", "file")
    ]
    run_until_idle()
    assert file.read_text().splitlines() == ["behind"]


def test_a_destination_that_takes_nothing_uses_up_no_try_and_the_pauses_grow(
    file: Path, kind: AppendLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_away(prepared: Any) -> None:
        raise DeliveryFailed("away", uses_try=False)

    insert(file, "kept")
    now = timezone.now()
    Outbox.objects.update(created_at=now)
    with monkeypatch.context() as patch:
        patch.setattr(kind, "send", is_away)
        patch.setattr(DjangoStorage, "now", lambda storage: now)
        pauses = []
        for _ in range(kind.max_tries + 2):
            Outbox.objects.update(due_at=now)
            assert send_batch("default", "file")
            row = Outbox.objects.get()
            pauses.append((row.due_at - now).total_seconds())
            assert (row.failed, row.tries, row.error) == (None, 1, "away")
            Outbox.objects.update(created_at=F("created_at") - timedelta(seconds=20))
    longest = policy.OUTBOX_LONGEST_PAUSE
    assert pauses == [policy.OUTBOX_FIRST_PAUSE, 20, longest, longest, longest]
    due_now()
    run_until_idle()
    assert file.read_text() == "kept\n"


def test_a_row_that_fails_while_others_are_sent_uses_up_its_tries(
    file: Path, kind: AppendLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = kind.send

    def is_busy(prepared: Any) -> Any:
        if prepared["line"] == "large":
            raise DeliveryFailed("busy", uses_try=None)
        return send(prepared)

    monkeypatch.setattr(kind, "send", is_busy)
    insert(file, "large")
    for _ in range(kind.max_tries + 2):
        due_now()
        assert send_batch("default", "file")
    assert Outbox.objects.get().failed is None
    for number in range(kind.max_tries):
        insert(file, str(number), chain=uuid.uuid4())
        due_now()
        while send_batch("default", "file"):
            pass
    assert Outbox.objects.get().failed is not None


def test_an_answer_that_cannot_be_stored_is_asked_for_again(
    file: Path, kind: AppendLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_locked(*_: Any) -> None:
        raise DeliveryFailed("the row of the run is locked")

    insert(file, "yes")
    with monkeypatch.context() as patch:
        patch.setattr(kind, "settle", is_locked)
        assert send_batch("default", "file")
    assert Outbox.objects.get().error == "the row of the run is locked"
    due_now()
    run_until_idle()
    assert kind.settled == ["yes"]


def test_a_refused_row_is_a_dead_letter_at_once_and_the_next_one_goes(file: Path, kind: AppendLine) -> None:
    insert(file, "no")
    insert(file, "yes")
    run_until_idle()
    (dead,) = Outbox.objects.all()
    assert dead.failed is not None
    assert (dead.failed["code"], dead.tries, kind.refused) == ("not_possible", 1, ["not_possible"])
    assert file.read_text().splitlines() == ["yes"]


def test_the_caller_gets_the_refusal_of_its_own_row_and_no_dead_letter_stays(file: Path) -> None:
    storage = DjangoStorage()
    own = insert(file, "no")
    rows = outbox.claim(storage, limit=1, chain_id=CHAIN)
    with pytest.raises(ActionNotPossible, match="'no' was refused"):
        outbox.deliver(rows, storage=storage, own=[own])
    assert not Outbox.objects.exists()


def test_a_claimed_row_is_nobody_elses_until_its_lease_ends(file: Path) -> None:
    storage = DjangoStorage()
    insert(file, "once")
    assert len(outbox.claim(storage, limit=5)) == 1
    assert outbox.claim(storage, limit=5) == []
    lease = Outbox.objects.get().due_at - timezone.now()
    assert timedelta(seconds=policy.OUTBOX_LEASE - 5) < lease <= timedelta(seconds=policy.OUTBOX_LEASE)
    due_now()
    (again,) = outbox.claim(storage, limit=5)
    assert again.tries == 2


def test_an_answer_that_comes_after_the_lease_changes_nothing(file: Path, kind: AppendLine) -> None:
    storage = DjangoStorage()
    insert(file, "slow")
    late = outbox.claim(storage, limit=1)
    due_now()
    outbox.deliver(outbox.claim(storage, limit=1), storage=storage)
    outbox.deliver(late, storage=storage)
    assert kind.settled == ["slow"]  # sent twice, and settled once


def test_rows_of_many_chains_are_sent_at_the_same_time(file: Path, kind: AppendLine, monkeypatch: Any) -> None:
    barrier = threading.Barrier(4)
    send = kind.send

    def send_together(prepared: Any) -> Any:
        barrier.wait(20)
        return send(prepared)

    monkeypatch.setattr(kind, "send", send_together)
    for number in range(4):
        insert(file, str(number), chain=uuid.uuid4())
    with ThreadPoolExecutor(4) as pool:
        assert send_batch("default", "file", pool)
    assert sorted(kind.settled) == ["0", "1", "2", "3"]


def test_an_answer_is_stored_while_another_row_is_still_on_its_way(
    file: Path, kind: AppendLine, monkeypatch: Any
) -> None:
    quick_is_stored = threading.Event()
    send, settle = kind.send, kind.settle

    def send_slowly(prepared: Any) -> Any:
        if prepared["line"] == "slow" and not quick_is_stored.wait(5):
            raise AssertionError("the other answer was kept waiting")
        return send(prepared)

    def note(row: Any, answer: Any, storage: Any) -> None:
        settle(row, answer, storage)
        if row.body["line"] == "quick":
            quick_is_stored.set()

    monkeypatch.setattr(kind, "send", send_slowly)
    monkeypatch.setattr(kind, "settle", note)
    for line in ("slow", "quick"):
        insert(file, line, chain=uuid.uuid4())
    with ThreadPoolExecutor(2) as pool:
        assert send_batch("default", "file", pool)
    assert kind.settled == ["quick", "slow"]


def test_a_worker_sends_what_a_transaction_has_committed(file: Path, kind: AppendLine) -> None:
    stop = threading.Event()
    worker = threading.Thread(target=lambda: WorkerLoop().run(stop))
    worker.start()
    try:
        with transaction.atomic():
            insert(file, "from a transaction")
        wait_for(lambda: kind.settled and not Outbox.objects.exists())
    finally:
        stop.set()
        worker.join(30)
    assert kind.settled == ["from a transaction"]
    assert file.read_text().splitlines() == ["from a transaction"]


def test_the_age_is_that_of_the_oldest_row_that_should_be_gone(file: Path) -> None:
    storage = DjangoStorage()
    assert outbox.oldest_due(storage) is None
    insert(file, "later", due_at=timezone.now() + timedelta(hours=1))
    assert outbox.oldest_due(storage) is None
    insert(file, "now", chain=uuid.uuid4())
    oldest = outbox.oldest_due(storage)
    assert oldest is not None
    assert timezone.now() - oldest < timedelta(minutes=1)


def test_a_kind_that_this_process_lacks_is_tried_again(file: Path) -> None:
    outbox.insert(CHAIN, destination="nowhere", kind="unknown.kind", body=None, storage=DjangoStorage())
    send_batch("default", None)
    (row,) = Outbox.objects.all()
    assert row.failed is None
    assert "unknown.kind" in str(row.error)


def test_no_chain_on_a_cluster_can_be_due() -> None:
    """The check of the table keeps every claim away from runs that live elsewhere."""
    for column in ("due_at", "deadline", "atomic_due"):
        with pytest.raises(IntegrityError), transaction.atomic():
            Chain.objects.create(
                id=uuid.uuid4(), run_id=uuid.uuid4(), queue="default", backend="temporal", **{column: timezone.now()}
            )
    Chain.objects.create(id=uuid.uuid4(), run_id=uuid.uuid4(), queue="default", backend="temporal")


def dead(file: Path) -> str:
    insert(file, "no")
    send_batch("default", None)
    return str(Outbox.objects.refused().get().pk)


def test_a_dead_letter_is_sent_again_before_what_waits_behind_it(
    file: Path, kind: AppendLine, monkeypatch: Any
) -> None:
    message = dead(file)
    insert(file, "behind")
    with pytest.raises(ActionNotPossible, match="is not a dead letter"):
        SendAgain(str(Outbox.objects.waiting().get().pk)).execute()
    assert SendAgain(message, reason="corrected").execute().is_dead is False
    monkeypatch.setattr(kind, "send", lambda prepared: kind.settled.append(prepared["line"]) or prepared["line"])
    run_until_idle()
    assert kind.settled == ["no", "no", "behind", "behind"]  # sent, and settled
    row = OperatorAction.objects.get(action="send_again")
    assert (row.reason, row.details["message"], row.details["kind"]) == ("corrected", message, "file.append")


def test_a_message_is_dropped_and_then_unknown(file: Path) -> None:
    message = dead(file)
    dropped = DropOutgoing(message, reason="not needed").execute()
    assert (dropped.code, dropped.is_dead, dropped.tries) == ("not_possible", True, 1)
    assert not Outbox.objects.exists()
    for unknown in (message, "no id"):
        with pytest.raises(WorkflowNotFound, match="there is no outgoing message"):
            SendAgain(unknown).execute()


def test_a_message_that_is_being_sent_is_not_dropped(file: Path) -> None:
    row = insert(file, "on its way")
    outbox.claim(DjangoStorage(), limit=1)
    with pytest.raises(ActionNotPossible, match="is being sent"):
        DropOutgoing(row).execute()


def test_the_command_shows_messages_sends_them_again_and_drops_them(file: Path) -> None:
    run = lambda *args: call("outbox", *args)  # noqa: E731
    assert run("show") == "no messages are waiting to be sent\n"
    message = dead(file)
    assert message in run("show")
    assert "not_possible" in run("show")
    assert run("again", message) == f"file.append {message}: it is sent again\n"
    assert run("drop", message) == f"file.append {message}: dropped\n"


def call(*args: str) -> str:
    written = StringIO()
    call_command("temporalex", *args, stdout=written)
    return written.getvalue()


def test_the_admin_sends_again_and_drops(file: Path, client: Any) -> None:
    client.force_login(get_user_model().objects.create_superuser("root"))
    message, page = dead(file), reverse("admin:temporalex_django_outbox_changelist")
    assert "not_possible" in client.get(page).content.decode()
    for action, left in (("send_again", 1), ("drop", 0)):
        answer = client.post(page, {"action": action, "_selected_action": [message]}, follow=True)
        assert "1 message was processed." in answer.content.decode()
        assert Outbox.objects.waiting().count() == left


def test_texts_of_errors_are_shown_to_those_who_may_see_payloads(file: Path, client: Any) -> None:
    """They may quote the message."""
    user = get_user_model().objects.create_user("ann", is_staff=True)
    elsewhere(file)
    Outbox.objects.refused().update(failed={"code": "gave_up", "error": "4111 1111", "at": ""})
    Outbox.objects.waiting().update(error="4111 2222", tries=1)
    page, rest = reverse("admin:temporalex_django_outbox_changelist"), "/api/outbox/"
    for name, shown in (("view_outbox", False), ("view_instance", False), ("view_payload", True)):
        user.user_permissions.add(Permission.objects.get(codename=name, content_type__app_label="temporalex_django"))
        client.force_login(get_user_model().objects.get(pk=user.pk))
        texts = [client.get(page).content.decode(), client.get(rest).content.decode()]
        texts.append(call("outbox", "show", "--as-user", "ann"))
        for text in texts:
            assert "gave_up" in text
            assert ("4111 1111" in text, "4111 2222" in text) == (shown, shown)


def test_texts_of_errors_about_a_run_that_is_gone_are_hidden(file: Path) -> None:
    user = get_user_model().objects.create_user("ann")
    dead(file)
    Outbox.objects.update(failed={"code": "gave_up", "error": "4111 1111", "at": ""})
    (message,) = describe_outgoing([*outgoing_messages("default", user)], user)
    assert (message.code, "4111" in message.error) == ("gave_up", False)
    (message,) = describe_outgoing([*outgoing_messages("default")])
    assert message.error == "4111 1111"


def test_doctor_reports_what_waits_for_half_a_minute_and_dead_letters(file: Path) -> None:
    insert(file, "late")
    assert [finding.code for finding in findings()] == []
    Outbox.objects.update(created_at=timezone.now() - timedelta(seconds=31), error="away")
    (late,) = findings()
    assert (late.code, late.severity, late.count) == ("outbox_late", "warning", 1)
    assert "1 message to file has been waiting since" in late.text
    Outbox.objects.update(failed={"code": "gave_up", "error": "away for good", "at": ""})
    (dead_letter,) = findings()
    assert (dead_letter.code, dead_letter.severity) == ("dead_letters", "error")
    assert "1 message to file was refused: gave_up" in dead_letter.text
    assert "away" not in str(dead_letter), "the text of an error may quote the message"
    assert str(Outbox.objects.get().pk) in dead_letter.next_step


def findings() -> list[Any]:
    project = load_project_state("default")
    return [finding for finding in diagnosis.diagnose(project, now=timezone.now()) if finding.about == "file"]


def test_health_says_how_far_the_outbox_is_behind(file: Path) -> None:
    insert(file, "late")
    Outbox.objects.update(created_at=timezone.now() - timedelta(seconds=50))
    assert OutboxDispatcher("default").age() >= 50


class SentElsewhere(Workflow):
    name = "outbox.SentElsewhere"

    async def run(self, args: Any) -> Any:
        return Ok(await api.wait_for_signal("go"))


def elsewhere(file: Path) -> Any:
    """A run on a cluster with a dead letter, and a message that waits behind it."""
    run = SentElsewhere.start(id="elsewhere")
    chain = Chain.objects.get(pk=run.chain_id)
    Chain.objects.filter(pk=chain.pk).update(backend="temporal", due_at=None)
    insert(file, "no", chain=chain.pk)
    send_batch("default", None)
    insert(file, "behind", chain=chain.pk, due_at=timezone.now() + timedelta(hours=1))
    return run


def test_the_page_of_a_run_shows_its_messages(file: Path, client: Any) -> None:
    client.force_login(get_user_model().objects.create_superuser("root"))
    run = elsewhere(file)
    page = client.get(reverse("admin:temporalex_console:run_part", args=[run.run_id, "messages"])).content.decode()
    assert page.count("<td>file.append</td>") == 2
    assert "<strong>Dead letter:</strong> not_possible: " in page
    Chain.objects.update(backend="tables")
    page = client.get(reverse("admin:temporalex_console:run_part", args=[run.run_id, "messages"])).content.decode()
    assert "Outgoing messages</caption>" not in page


def test_dead_letters_go_with_their_run_and_what_waits_does_not(file: Path) -> None:
    run = elsewhere(file)
    with transaction.atomic():
        delete_chain(run.chain_id, storage=DjangoStorage())
    assert [row.failed for row in Outbox.objects.all()] == [None]
