"""start, signal, cancel, terminate, describe, history and result through handles, on the database of the lane."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.db import transaction
from django.utils import timezone

from temporalex_django import Workflow, WorkflowHandle, errors
from temporalex_django.models import Chain, Instance, Message, OperatorAction
from tests.support.client_flows import (
    Basket,
    Failing,
    Generations,
    Opening,
    Orders,
    Sleepy,
    Typed,
    drain,
    rolled_back,
)

pytestmark = pytest.mark.django_db


def test_a_start_is_there_at_once_and_runs_to_its_end():
    handle = Typed.start(Opening(owner="ann"), id="t-1")

    assert (handle.id, handle.status) == ("t-1", "pending")
    drain()

    assert handle.result() == "ann:10"
    described = handle.describe()
    assert (described.id, described.workflow, described.version, described.status) == (
        "t-1",
        "test.Typed",
        1,
        "completed",
    )
    assert described["status"] == "completed"
    assert dict(described)["run_id"] == handle.run_id == str(Instance.objects.get().pk)
    assert described.started_at is not None
    assert described.closed_at is not None
    assert [e.kind for e in handle.history()] == ["WorkflowStarted", "ActivationStarted", "WorkflowCompleted"]
    assert not OperatorAction.objects.exists()  # code acted, not a person


def test_without_an_id_one_is_made_up():
    first, second = Basket.start(), Basket.start()

    assert uuid.UUID(first.id) != uuid.UUID(second.id)


@pytest.mark.parametrize("bad", ["", "a/b", "x" * 201, "line\nbreak", "nul\x00", 7])
def test_an_invalid_id_is_refused_and_nothing_is_written(bad):
    with pytest.raises(errors.InvalidId):
        Basket.start(id=bad)

    assert not Chain.objects.exists()


def test_a_live_id_is_refused_whatever_the_class_and_the_transaction_stays_whole():
    """TX-221."""
    Basket.start(id="x-1")

    with pytest.raises(errors.AlreadyRunning, match="x-1") as caught, transaction.atomic():
        Typed.start(Opening("ann"), id="x-1")

    assert caught.value.pending is False
    assert Instance.objects.count() == 1


def test_the_id_of_a_closed_run_is_free():
    old = Basket.start(id="x-1")
    old.terminate("enough")

    new = Basket.start(id="x-1")

    assert new.run_id != old.run_id
    assert WorkflowHandle("x-1").run_id == new.run_id
    assert old.status == "terminated"  # a handle that start gave stays with its chain


@pytest.mark.parametrize(
    ("args", "path"),
    [({"owner": "ann", "limit": "many"}, r"\$\.limit"), ({}, "owner"), ({"owner": object()}, r"\$\.owner")],
)
def test_an_input_that_does_not_fit_names_the_path_and_writes_nothing(args, path):
    with pytest.raises(errors.PayloadError, match=path):
        Typed.start(args, id="t-1")

    assert not Chain.objects.exists()


def test_a_value_makes_the_id_of_a_class_with_unique():
    handle = Orders.start({}, value="42")

    assert handle.id == "order::42"
    assert Instance.objects.get().queue == "orders"
    with pytest.raises(errors.InvalidId):
        Orders.start({}, value="Not OK")
    with pytest.raises(errors.InvalidId):
        Basket.start({}, value="42")


def test_a_start_vanishes_with_its_transaction():
    with rolled_back():
        handle = Basket.start(id="gone")
        handle.signal("note", 1)

    assert not Chain.objects.exists()
    assert not Message.objects.exists()
    with pytest.raises(errors.WorkflowNotFound):
        handle.describe()


def test_a_subject_links_the_run_to_a_model():
    user = get_user_model().objects.create(username="ann")

    handle = Basket.start(subject=user)

    assert [str(run.pk) for run in Instance.objects.for_subject(user)] == [handle.run_id]


def test_a_signal_is_one_insert_and_reaches_the_run(django_assert_num_queries):
    handle = Basket.start(id="b-1")
    drain()

    with django_assert_num_queries(2):  # who it is, and the message
        handle.signal("note", {"a": 1})
    handle.signal("checkout")
    drain()

    assert handle.result() == [{"a": 1}]


def test_messages_to_a_closed_run_are_refused():
    handle = Basket.start(id="b-1")
    handle.terminate("enough")

    for send in (lambda: handle.signal("note"), handle.cancel, handle.terminate, lambda: handle.update("add", 1)):
        with pytest.raises(errors.WorkflowClosed, match="b-1"):
            send()
    assert not Message.objects.exists()


def test_messages_to_nobody_are_refused():
    handle = Basket.handle(id="nobody")

    for send in (
        lambda: handle.signal("note"),
        handle.cancel,
        handle.terminate,
        lambda: handle.update("add", 1),
        lambda: handle.query("items"),
        handle.describe,
        handle.history,
        handle.result,
    ):
        with pytest.raises(errors.WorkflowNotFound, match="nobody"):
            send()


@pytest.mark.parametrize(("name", "payload"), [("__resume__", 1), ("", 1), ("note", object()), ("note", float("nan"))])
def test_a_bad_signal_is_refused_and_nothing_is_written(name, payload):
    handle = Basket.start()

    with pytest.raises(errors.PayloadError):
        handle.signal(name, payload)

    assert not Message.objects.exists()


def test_cancel_ends_a_run_that_does_not_mind():
    handle = Sleepy.start(id="s-1")
    drain()

    handle.cancel()
    drain()

    with pytest.raises(errors.WorkflowCancelled, match="s-1"):
        handle.result()


def test_terminate_closes_at_once_and_is_always_audited():
    handle = Sleepy.start(id="s-1")
    drain()

    handle.terminate("not needed")

    described = handle.describe()
    assert (described.status, described.waiting_for) == ("terminated", [])
    with pytest.raises(errors.WorkflowTerminated, match="not needed") as caught:
        handle.result()
    assert isinstance(caught.value, errors.WorkflowFailed)
    assert handle.history()[-1].kind == "WorkflowTerminated"
    audit = OperatorAction.objects.get()
    assert (audit.action, audit.forced, audit.source, audit.actor, audit.reason, audit.workflow_id) == (
        "terminate", True, "code", None, "not needed", "s-1",
    )  # fmt: skip
    assert str(audit.run_id) == handle.run_id


def test_terminate_vanishes_with_its_transaction():
    handle = Sleepy.start()
    with rolled_back():
        handle.terminate("no")

    assert handle.status == "pending"
    assert not OperatorAction.objects.exists()


def test_terminate_reaches_a_run_that_kills_its_workers():
    handle = Sleepy.start()
    Chain.objects.update(crashes=2, due_at=None)

    handle.terminate("poison")

    assert handle.status == "terminated"


@pytest.mark.parametrize(("args", "kind", "reason"), [("raise", "LookupError", None), ("reason", None, {"code": 7})])
def test_the_result_of_a_failed_run_says_why(args, kind, reason):
    handle = Failing.start(args)
    drain()

    with pytest.raises(errors.WorkflowFailed, match="nowhere" if kind else "7") as caught:
        handle.result()

    assert (caught.value.type, caught.value.reason) == (kind, reason)
    assert ("nowhere" in (caught.value.traceback or "")) is bool(kind)


def test_the_result_of_an_open_run_is_not_there():
    handle = Sleepy.start()
    drain()

    with pytest.raises(errors.ResultTimeout, match="waiting"):
        handle.result(timeout=0)


def test_result_follows_continue_as_new():
    """TX-222."""
    handle = Generations.start(0, id="g-1")
    first = handle.run_id
    for word in ("next", "next", "end"):
        handle.signal("word", word)
        drain()

    assert handle.result() == 2
    assert WorkflowHandle(first).result() == 2
    assert len(handle.run_ids) == 3
    assert handle.run_ids[0] == first
    assert WorkflowHandle(first).describe().status == "continued_as_new"
    assert WorkflowHandle("g-1").describe().status == "completed"


def test_a_run_id_is_a_handle_too():
    handle = Basket.start(id="b-1")

    by_run = WorkflowHandle(handle.run_id)

    assert by_run.describe().id == "b-1"
    by_run.signal("note", 1)
    assert Message.objects.get().chain_id == handle.chain_id


def test_signal_with_start_starts_once():
    first = Basket.signal_with_start("note", 1, id="b-1")
    second = Basket.signal_with_start("note", 2, id="b-1")
    second.signal("checkout")
    drain()

    assert first.chain_id == second.chain_id
    assert first.result() == [1, 2]
    third = Basket.signal_with_start("note", 3, id="b-1")
    assert third.chain_id != first.chain_id
    with pytest.raises(errors.AlreadyRunning):
        Sleepy.signal_with_start("note", 1, id="b-1")


def test_a_start_that_no_live_worker_can_take_says_so():
    handle = Orders.start({}, value="1")
    Chain.objects.update(due_at=timezone.now() - timedelta(minutes=1))

    assert any("'orders'" in reason for reason in handle.describe().waiting_for)


def test_a_handle_of_a_class_sees_only_its_runs():
    Basket.start(id="b-1")

    with pytest.raises(errors.WorkflowNotFound):
        Sleepy.handle(id="b-1").describe()


def test_handles_do_not_work_inside_a_workflow():
    class Naughty(Workflow):
        name = "test.Naughty"

        async def run(self, args):
            WorkflowHandle("x").signal("y")

    handle = Naughty.start()
    drain()

    with pytest.raises(errors.WorkflowFailed, match=r"api\.signal_external"):
        handle.result()


def test_a_signal_with_an_id_is_taken_once_however_often_it_is_sent():
    handle = Basket.start(id="b-1")
    for _ in range(2):
        handle.signal("note", 1, id="k-1")
    drain()
    handle.signal("note", 1, id="k-1")  # after the run has read it
    handle.signal("note", 2, id="k-2")
    handle.signal("checkout", id="out")
    drain()

    assert handle.result() == [1, 2]
    handle.signal("checkout", id="out")  # it had its effect: no reason to refuse it now that the run is closed
    with pytest.raises(errors.WorkflowClosed):
        handle.signal("note", 3, id="k-3")


def test_sent_again_to_a_closed_run_an_id_says_what_became_of_it():
    handle = Basket.start(id="b-1")
    handle.signal("note", 1, id="read")
    drain()
    handle.signal("note", 2, id="unread")
    handle.terminate()
    drain()

    handle.signal("note", 1, id="read")
    with pytest.raises(errors.WorkflowClosed):
        handle.signal("note", 2, id="unread")
    with pytest.raises(errors.MessageIdTaken):
        handle.signal("checkout", 1, id="read")


def test_an_id_belongs_to_one_message():
    handle = Basket.start(id="b-1")
    handle.signal("note", 1, id="k-1")

    with pytest.raises(errors.InvalidId, match="the id of the signal 'note' of this run"):
        handle.update("add", 1, id="k-1")
    with pytest.raises(errors.InvalidId, match="is not a valid signal id"):
        handle.signal("note", 1, id="")
    handle.signal("checkout")
    drain()
    assert handle.result() == [1]
