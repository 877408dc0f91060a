"""Rows of the outbox are sent once they are committed, in order, and none keeps another destination waiting."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from temporalex_django import signals
from temporalex_django.db import outbox
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.scheduling import policy
from temporalex_django.errors import ActionNotPossible
from temporalex_django.models import Chain, Outbox
from temporalex_django.workers.loop import WorkerLoop, run_until_idle
from temporalex_django.workers.outbox import send_batch
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
    )


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


def test_a_destination_that_does_not_answer_keeps_no_other_waiting(file: Path, kind: AppendLine) -> None:
    insert(file.parent / "missing" / "lines", "first", destination="away")
    insert(file, "second")
    run_until_idle()
    assert file.read_text().splitlines() == ["second"]
    (row,) = Outbox.objects.all()
    assert (row.tries, row.failed) == (1, None)
    assert "FileNotFoundError" in str(row.error)
    assert row.due_at > timezone.now()


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


def test_a_worker_sends_what_a_transaction_has_committed(file: Path, kind: AppendLine) -> None:
    stop = threading.Event()
    worker = threading.Thread(target=lambda: WorkerLoop().run(stop))
    worker.start()
    try:
        with transaction.atomic():
            insert(file, "from a transaction")
        wait_for(lambda: kind.settled == ["from a transaction"] and not Outbox.objects.exists())
    finally:
        stop.set()
        worker.join(30)


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
