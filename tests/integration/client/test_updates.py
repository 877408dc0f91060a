"""Updates and queries in the caller's process, on the database of the lane."""

from __future__ import annotations

import threading
from contextlib import nullcontext

import pytest
from django.db import connection, connections, transaction

from temporalex_django import Ok, Reply, Workflow, WorkflowHandle, api, errors
from temporalex_django.authoring import workflow as workflows
from temporalex_django.backends.tables import inline_turn
from temporalex_django.models import Chain, HistoryEvent, Instance, Message, OperatorAction
from temporalex_django.operations.base import storage
from temporalex_django.operations.run_lookup import find_run
from temporalex_django.operations.runs.update import SendUpdate
from temporalex_django.signals import message_received, update_completed
from tests.support.client_flows import Basket, Generations, Inside, Orders, Sleepy, drain, rolled_back

pytestmark = pytest.mark.django_db


@pytest.fixture
def basket() -> WorkflowHandle:
    return Basket.start(id="b-1")


def test_an_update_is_answered_without_a_worker(basket):
    assert basket.update("add", 5) == 1
    assert basket.update("add", 6) == 2
    assert basket.query("items") == [5, 6]
    assert set(basket.describe().accepts["updates"]) == {"add", "broken", "slow", "busy", "close"}
    kinds = [e.kind for e in basket.history()]
    assert kinds.count("UpdateAccepted") == kinds.count("UpdateCompleted") == 2
    assert not OperatorAction.objects.exists()


def test_a_warm_update_takes_few_statements(basket, django_assert_max_num_queries):
    basket.update("add", 5)

    with django_assert_max_num_queries(12):  # in a TestCase two of them are savepoints
        basket.update("add", 6)


def test_a_rejected_update_leaves_nothing_and_its_id_free(basket):
    basket.update("add", 1)
    before = HistoryEvent.objects.count()

    with pytest.raises(errors.UpdateRejected, match="only more than nothing"):
        basket.update("add", -1, id="u-1")

    assert HistoryEvent.objects.count() == before
    assert not Message.objects.filter(request_id="u-1").exists()
    assert basket.update("add", 2, id="u-1") == 2


def test_an_update_that_is_rejected_by_the_first_activation_keeps_the_start(basket):
    with pytest.raises(errors.UpdateRejected):
        basket.update("add", -1)

    assert not Message.objects.exists()
    assert basket.status == "waiting"


def test_an_unknown_update_is_rejected(basket):
    with pytest.raises(errors.UpdateRejected, match="unknown"):
        basket.update("unknown")


def test_an_update_outside_a_phase_is_rejected():
    handle = Sleepy.start()

    with pytest.raises(errors.UpdateRejected):
        handle.update("add", 1)


def test_resending_an_id_gives_the_first_outcome(basket):
    assert basket.update("add", 5, id="u-1") == 1
    assert basket.update("add", 5, id="u-1") == 1
    assert basket.query("items") == [5]
    basket.terminate()
    assert basket.update("add", 7, id="u-1") == 1  # also when the run is closed
    with pytest.raises(errors.WorkflowClosed):
        basket.update("add", 7, id="u-2")


def test_a_handler_that_raises_fails_the_update_alone(basket):
    with pytest.raises(errors.UpdateFailed, match="lost") as caught:
        basket.update("broken")

    assert caught.value.type == "KeyError"
    assert basket.update("add", 1) == 1


@pytest.mark.parametrize(("name", "args"), [("add", object()), ("__resume__", 1), (7, 1)])
def test_a_bad_update_is_refused_and_nothing_is_written(basket, name, args):
    with pytest.raises(errors.PayloadError):
        basket.update(name, args)

    assert not Message.objects.exists()


@pytest.mark.parametrize("bad", ["", "x" * 201, "a\nb", 7])
def test_a_bad_update_id_is_refused(basket, bad):
    with pytest.raises(errors.InvalidId):
        basket.update("add", 1, id=bad)


def test_a_bad_mode_is_refused(basket):
    with pytest.raises(ValueError, match="mode"):
        basket.update("add", 1, mode="here")


def test_an_update_can_end_the_run(basket):
    assert basket.update("close") == "closing"
    assert basket.result() == []


def test_what_would_still_wait_is_refused_inside_a_transaction(basket):
    with pytest.raises(errors.ActionNotPossible, match="cannot arrive before the transaction ends"):
        basket.update("slow", 4, id="u-1")

    assert not Message.objects.filter(request_id="u-1").exists()
    assert basket.update("add", 4, id="u-2") == 1


@pytest.mark.django_db(transaction=True)
def test_what_cannot_be_admitted_inside_a_transaction_is_rolled_back():
    basket = Basket.start(id="b-1")
    with pytest.raises(errors.UpdateTimeout) as caught:
        basket.update("busy", 4, id="u-1", timeout=0)  # accepted, and its handler waits for an activity
    assert caught.value.accepted

    with transaction.atomic():
        with pytest.raises(errors.UpdateTimeout) as caught:
            basket.update("add", 4, id="u-2")
        assert (caught.value.accepted, caught.value.code) == (False, "busy")
        with pytest.raises(errors.UpdateTimeout) as caught:  # sent before: it goes on
            basket.update("busy", 4, id="u-1")
        assert caught.value.accepted

    assert not Message.objects.filter(request_id="u-2").exists()
    drain()
    assert basket.update("add", 4, id="u-2") == 1


def test_mode_worker_cannot_wait_inside_a_transaction(basket):
    with pytest.raises(errors.UpdateTimeout) as caught:
        basket.update("add", 1, mode="worker")

    assert caught.value.code == "busy"
    assert not Message.objects.exists()


def test_an_update_vanishes_with_the_callers_transaction_and_no_cache_believes_otherwise(basket):
    basket.update("add", 1)
    with rolled_back():
        assert basket.update("add", 2) == 2
        assert basket.update("add", 3) == 3

    assert basket.query("items") == [1]
    assert basket.update("add", 4) == 2
    assert basket.query("items") == [1, 4]


def test_what_others_wrote_after_a_rollback_is_not_fed_to_what_was_rolled_back(basket):
    basket.update("add", 1)
    with rolled_back():
        basket.update("add", 2)
    basket.signal("note", 3)
    basket.signal("note", 4)
    drain()

    assert basket.update("add", 5) == 4
    assert basket.query("items") == [1, 3, 4, 5]


def test_a_process_without_the_class_never_turns_the_run(basket, monkeypatch):
    monkeypatch.delitem(workflows.registry, "test.Basket")

    with pytest.raises(errors.UpdateTimeout, match=r"does not have test\.Basket"):
        basket.update("add", 1)
    with pytest.raises(errors.UnknownWorkflow):
        basket.query("items")

    assert basket.describe().blocked is None
    assert basket.status == "pending"


def test_a_run_of_another_version_is_not_turned_here(basket, monkeypatch):
    monkeypatch.setattr(Basket, "version", 2)

    with pytest.raises(errors.UpdateTimeout):
        basket.update("add", 1)

    assert basket.status == "pending"


def test_a_blocked_run_says_so_and_heals_when_somebody_asks(monkeypatch):
    monkeypatch.setitem(workflows.registry, "test.Sleepy", Sleepy)  # put back at the end, whatever is defined here

    class Changed(Workflow):
        name = "test.Sleepy"

        async def run(self, args):
            await api.phase(0, update={"add": lambda args, state: Reply(state + args, state + args)})
            return Ok(None)

    monkeypatch.setitem(workflows.registry, "test.Sleepy", Sleepy)
    handle = Sleepy.start(id="s-1")
    drain()
    monkeypatch.setitem(workflows.registry, "test.Sleepy", Changed)
    inline_turn.engine("default").cache.clear()
    handle.signal("wake", 1)
    drain()

    blocked = handle.describe().blocked
    assert blocked["code"] == "nondeterminism"
    with pytest.raises(errors.ResultTimeout, match="blocked"):
        handle.result()
    with pytest.raises(errors.RunBlocked, match="withdrawn because the run is blocked") as caught:
        handle.update("add", 1)
    assert caught.value.code == "blocked" and "recorded" in caught.value.reason

    monkeypatch.setitem(workflows.registry, "test.Sleepy", Sleepy)
    with pytest.raises(errors.UpdateRejected):
        handle.update("add", 1)
    assert handle.describe().blocked is None


# -- queries -----------------------------------------------------------------------------------------------------------


def test_a_query_right_after_the_start_sees_the_first_activation(basket):
    assert basket.query("items") == []
    assert basket.status == "waiting"


def test_a_query_delivers_unread_messages_first(basket):
    """ST-043."""
    basket.update("add", 1)
    basket.signal("note", 2)

    assert basket.query("upto", 5, fresh=False) == [1]
    assert Message.objects.count() == 2  # the settled update, and the signal
    basket.query("items")
    assert Message.objects.count() == 1


def test_a_query_that_has_nothing_to_deliver_reads_twice(basket, django_assert_num_queries):
    basket.query("items")

    with django_assert_num_queries(2):
        basket.query("items")


def test_bad_queries_harm_the_asker_only(basket):
    with pytest.raises(errors.UnknownQuery, match="broken, items, upto"):
        basket.query("nothing")
    with pytest.raises(errors.UnknownQuery, match="__accepts"):
        basket.query("__nothing")
    with pytest.raises(errors.QueryFailed, match="no idea"):
        basket.query("broken")
    with pytest.raises(errors.PayloadError):
        basket.query("upto", object())

    assert basket.update("add", 1) == 1


def test_built_in_queries(basket):
    basket.query("items")

    assert sorted(basket.query("__accepts")["signals"]) == ["checkout", "note"]
    assert basket.query("__describe")["status"] == "waiting"


def test_a_closed_run_answers(basket):
    basket.update("add", 1)
    basket.signal("checkout")
    drain()

    assert basket.status == "completed"
    assert basket.query("items") == [1]


def test_a_run_that_killed_three_processes_answers_no_query(basket):
    basket.query("items")
    for crashes in (2, 3):
        Chain.objects.update(crashes=crashes)
        with nullcontext() if crashes < 3 else pytest.raises(errors.QueryFailed, match="3 processes in a row"):
            assert basket.query("items") == []


def test_a_run_that_closed_since_it_was_found_takes_no_update(basket):
    found = find_run("b-1", storage=storage())
    basket.terminate()

    with pytest.raises(errors.WorkflowClosed):
        SendUpdate(found, update="add", args=1, id="u").execute()

    assert not Message.objects.exists()


@pytest.mark.usefixtures("unhurried")
def test_in_the_gap_after_continue_as_new_the_run_before_answers():
    handle = Generations.start(0, id="g-1")
    handle.signal("word", "next")

    assert handle.query("state") == "of the first"
    assert len(handle.run_ids) == 2
    assert WorkflowHandle(handle.run_ids[1]).query("state") is None
    handle.signal("word", "of the second")
    assert handle.query("state") == "of the second"
    first = WorkflowHandle(handle.run_ids[0])
    assert first.query("state") == "of the first"


def test_a_query_with_an_input_needs_no_worker_to_know_a_run_of_another_queue():
    handle = Orders.start({}, value="7")

    with pytest.raises(errors.UnknownQuery):
        handle.query("nothing")
    assert handle.status == "waiting"


# -- places ------------------------------------------------------------------------------------------------------------


@pytest.mark.of_the_tables("atomic activities, which have no transaction of their run on a cluster")
@pytest.mark.parametrize("what", ["update", "query"])
def test_an_atomic_activity_cannot_turn_its_own_run(what):
    handle = Inside.start(what)
    drain()

    assert "refused" in handle.result()
    assert "locked" in handle.result()


@pytest.mark.of_the_tables("atomic activities, which have no transaction of their run on a cluster")
def test_an_external_activity_may_ask_its_own_run_inside_a_transaction():
    handle = Inside.start("ask")
    drain()

    assert handle.result() == "inside"


@pytest.mark.of_the_tables("atomic activities, which have no transaction of their run on a cluster")
def test_an_atomic_activity_may_signal_its_own_run():
    handle = Inside.start("signal")
    drain()

    assert handle.result() == "done"


# -- committed data ----------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_signals_of_django_are_sent_after_the_commit_only():
    """ST-036."""
    heard = []

    def receiver(**arguments):
        heard.append((arguments["name"], connection.in_atomic_block))

    message_received.connect(receiver)
    update_completed.connect(receiver)
    handle = Basket.start(id="b-1")
    with transaction.atomic():
        handle.update("add", 1)
        assert heard == []
    assert heard == [("add", False), ("add", False)]
    with rolled_back():
        handle.update("add", 1)
    assert len(heard) == 2


@pytest.mark.django_db(transaction=True)
def test_an_update_that_needs_a_worker_waits_for_it():
    handle = Basket.start(id="b-1")
    done = threading.Event()

    def work() -> None:
        try:
            while not done.is_set():
                drain()
        finally:
            connections.close_all()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        assert handle.update("slow", 4) == 8
        assert handle.update("add", 1, mode="worker") == 1
        with pytest.raises(errors.UpdateRejected):
            handle.update("add", -1, mode="worker")
        handle.signal("checkout")
        assert handle.result(timeout=20) == [1]
    finally:
        done.set()
        worker.join()


@pytest.mark.django_db(transaction=True)
def test_an_update_that_nobody_takes_times_out_and_is_not_lost():
    handle = Basket.start(id="b-1")

    with pytest.raises(errors.UpdateTimeout) as caught:
        handle.update("add", 1, id="u-1", mode="worker", timeout=0.05)

    assert (caught.value.update_id, caught.value.accepted) == ("u-1", False)
    assert handle.update("add", 1, id="u-1") == 1
    assert handle.update("add", 1) == 2


@pytest.mark.django_db(transaction=True)
def test_a_process_without_the_class_leaves_the_update_to_others(monkeypatch):
    handle = Basket.start(id="b-1")
    with monkeypatch.context() as patch:
        patch.delitem(workflows.registry, "test.Basket")
        with pytest.raises(errors.UpdateTimeout) as caught:
            handle.update("add", 1, id="u-1", timeout=0.02)

    assert (caught.value.code, caught.value.accepted) == ("update_timeout", False)
    assert (handle.status, Message.objects.get().fresh) == ("pending", True)
    drain()
    assert handle.update("add", 1, id="u-1") == 1


@pytest.mark.of_the_tables("atomic activities, which have no transaction of their run on a cluster")
@pytest.mark.django_db(transaction=True)
def test_an_update_behind_an_atomic_activity_is_judged_after_it():
    handle = Inside.start("signal")
    handle.query("__accepts")  # the first activation, here: the atomic activity is due and left to a worker

    with pytest.raises(errors.UpdateTimeout):
        handle.update("add", 1, id="u-1", timeout=0.02)
    drain()

    assert handle.result() == "done"
    with pytest.raises(errors.WorkflowClosed):
        handle.update("add", 1, id="u-1")


@pytest.mark.django_db(transaction=True)
def test_many_threads_update_one_run():
    """ST-077."""
    handle = Basket.start(id="b-1")
    answers: list[int] = []

    def add() -> None:
        try:
            answers.extend(handle.update("add", 1, timeout=20) for _ in range(10))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(answers) == list(range(1, 41))
    assert Instance.objects.get().published_state == [1] * 40


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
class TestLocks:
    """What only row locks can show."""

    def hold(self, handle: WorkflowHandle, seconds: float | None = None) -> tuple[threading.Thread, threading.Event]:
        """Another transaction has the run's lock until the event is set."""
        ready, free = threading.Event(), threading.Event()

        def run() -> None:
            try:
                with transaction.atomic(), connection.cursor() as cursor:
                    cursor.execute("select 1 from temporalex_chain where id = %s for no key update", [handle.chain_id])
                    ready.set()
                    free.wait(seconds)
            finally:
                connections.close_all()

        thread = threading.Thread(target=run)
        thread.start()
        ready.wait()
        return thread, free

    def test_an_update_waits_for_the_lock(self):
        handle = Basket.start(id="b-1")
        thread, _ = self.hold(handle, seconds=0.1)

        assert handle.update("add", 1) == 1
        thread.join()

    def test_a_lock_that_is_not_free_in_time_leaves_the_message_to_whoever_has_it(self, settings):
        settings.TEMPORALEX = {"UPDATE_LOCK_WAIT": 0.05}
        handle = Basket.start(id="b-1")
        thread, free = self.hold(handle)

        with pytest.raises(errors.UpdateTimeout):
            handle.update("add", 1, id="u-1", timeout=0.2)
        assert Message.objects.get().fresh
        free.set()
        thread.join()
        assert handle.update("add", 1, id="u-1") == 1

    def test_inside_a_transaction_no_lock_is_busy_and_the_transaction_stays_whole(self, settings):
        settings.TEMPORALEX = {"UPDATE_LOCK_WAIT": 0.05}
        handle = Basket.start(id="b-1")
        thread, free = self.hold(handle)

        with transaction.atomic():
            other = Basket.start(id="b-2")
            with pytest.raises(errors.UpdateTimeout) as caught:
                handle.update("add", 1)
            other.signal("checkout")
            with connection.cursor() as cursor:
                cursor.execute("show lock_timeout")
                assert cursor.fetchone() == ("0",)
        free.set()
        thread.join()

        assert caught.value.code == "busy"
        assert Message.objects.count() == 1

    def test_a_query_answers_from_the_row_when_the_lock_is_not_free(self, settings):
        settings.TEMPORALEX = {"UPDATE_LOCK_WAIT": 0.05}
        handle = Basket.start(id="b-1")
        handle.update("add", 1)
        handle.signal("note", 2)
        thread, free = self.hold(handle)

        assert handle.query("items") == [1]
        free.set()
        thread.join()

    def test_terminate_says_busy(self, settings):
        settings.TEMPORALEX = {"UPDATE_LOCK_WAIT": 0.05}
        handle = Basket.start(id="b-1")
        thread, free = self.hold(handle)

        with pytest.raises(errors.UpdateTimeout) as caught:
            handle.terminate()
        free.set()
        thread.join()

        assert caught.value.code == "busy"
        assert handle.status == "pending"

    @pytest.mark.parametrize("level", ["repeatable read", "serializable"])
    def test_a_higher_isolation_is_refused_clearly(self, level):
        handle = Basket.start(id="b-1")

        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"set transaction isolation level {level}")
            with pytest.raises(errors.NestingError, match=level):
                handle.update("add", 1)
            with pytest.raises(errors.UnknownQuery):
                handle.query("nothing")
        assert not Message.objects.exists()

    def test_two_callers_with_one_update_id_get_one_outcome(self):
        handle = Basket.start(id="b-1")
        answers: list[int] = []

        def add() -> None:
            try:
                answers.append(handle.update("add", 1, id="u-1"))
            finally:
                connections.close_all()

        threads = [threading.Thread(target=add) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert answers == [1] * 6

    def test_signals_to_two_runs_in_opposite_order_do_not_deadlock(self):
        first, second = Basket.start(id="b-1"), Basket.start(id="b-2")
        barrier = threading.Barrier(2)
        failures: list[BaseException] = []

        def send(one: WorkflowHandle, other: WorkflowHandle) -> None:
            try:
                with transaction.atomic():
                    one.signal("note", 1)
                    barrier.wait()
                    other.signal("note", 1)
            except BaseException as exc:
                failures.append(exc)
            finally:
                connections.close_all()

        threads = [threading.Thread(target=send, args=pair) for pair in ((first, second), (second, first))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert failures == []
        assert Message.objects.count() == 4
