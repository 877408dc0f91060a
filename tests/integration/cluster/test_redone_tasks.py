"""The mirror after tasks that the server has had done again: what the first try has written is undone or replaced."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from temporalex_django import ContinueAsNew, Ok, Workflow, api, signals
from temporalex_django.backends.cluster import mirror
from temporalex_django.backends.cluster.client import cluster_client
from temporalex_django.backends.cluster.mirrored_run import ObservedRun
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.models import Chain, Instance
from tests.support.observations import CONTINUE, Observations

pytestmark = pytest.mark.django_db(transaction=True)

KEY = "g:order-1"
QUEUE = f"cluster-redone-{uuid.uuid4().hex[:8]}"


class RefusedSteps(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        await api.wait_for_signal("go")
        return ContinueAsNew(args + 1) if args < 2 else Ok(args)


@pytest.fixture
def storage() -> DjangoStorage:
    return DjangoStorage()


def continued(storage: DjangoStorage) -> Observations:
    """A run whose second activation has continued it as a new run, before the server has taken the completion."""
    run = Observations()
    run.write(storage, 1, at=0)
    run.write(storage, 2, at=1, closing=CONTINUE, args="second")
    assert (Instance.objects.count(), run.row().status) == (2, "continued_as_new")
    return run


# -- a continue-as-new that the server has refused --------------------------------------------------------------------


def test_a_refused_continuation_leaves_no_row_and_the_run_goes_on(storage: DjangoStorage) -> None:
    """A signal came while the task was in progress, and the run waits again."""
    run = continued(storage)
    run.write(storage, 2, at=2)
    row, chain = Instance.objects.get(), Chain.objects.get()
    assert (row.status, row.waiting_for, row.closed_at, row.closing) == ("waiting", ["signal go"], None, None)
    assert (chain.run_id, chain.closed, chain.open_key, chain.activations) == (row.pk, False, KEY, 2)
    run.write(storage, 3, at=3, closing="WorkflowCompleted", result=5)
    assert (run.row().status, run.row().closing_value, Chain.objects.get().closed) == ("completed", {"result": 5}, True)


def test_a_refused_continuation_that_completes_leaves_no_open_run(storage: DjangoStorage) -> None:
    run = continued(storage)
    run.write(storage, 2, at=2, closing="WorkflowCompleted", result=5)
    chain = Chain.objects.get()
    assert Instance.objects.get().status == "completed"
    assert (chain.run_id, chain.closed, chain.open_key) == (run.row().pk, True, None)


def test_a_continuation_that_is_done_again_has_the_later_args_and_messages(storage: DjangoStorage) -> None:
    run = continued(storage)
    run.write(storage, 2, at=2, closing=CONTINUE, args="with the signal", carried=[["SignalReceived", {}]])
    row = Instance.objects.get(cluster_run_id=None)
    record: Any = storage.run_records([row.pk])[row.pk]
    assert (record.args, record.carried_messages) == ("with the signal", [["SignalReceived", {}]])
    assert (Instance.objects.count(), row.attempt, Chain.objects.get().run_id) == (2, 2, row.pk)


def test_an_earlier_try_does_not_undo_a_continuation(storage: DjangoStorage) -> None:
    """A rebuild of the run sees its last activation at the time at which it was done, a slow worker at an older one."""
    run = continued(storage)
    for at in (0.5, 1):
        run.write(storage, 2, at=at)
    assert (Instance.objects.count(), run.row().status) == (2, "continued_as_new")


def test_a_continuation_whose_next_run_has_begun_stays(storage: DjangoStorage) -> None:
    run = continued(storage)
    following = Observations(attempt=2, facts=run.facts, first=run.run_id)
    following.write(storage, 1, at=1.5)
    run.write(storage, 2, at=2)
    assert (run.row().status, following.row().status) == ("continued_as_new", "waiting")
    assert Chain.objects.get().run_id == following.row().pk


def test_a_chain_that_people_have_closed_stays_closed(storage: DjangoStorage) -> None:
    run = continued(storage)
    chain = Chain.objects.get()
    with storage.transaction():
        mirror.close(chain.pk, "terminated", {"reason": "enough"}, storage=storage)
    run.write(storage, 2, at=2)
    assert Instance.objects.get(cluster_run_id=None).status == "terminated"
    assert Chain.objects.get().closed


@pytest.mark.once
def test_a_signal_during_the_task_that_continues_a_run_reaches_its_next_run(
    worker: None, storage: DjangoStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server refuses the completion, and has the task done again with the signal."""
    write, tries = mirror.write, list[ObservedRun]()

    def write_and_signal(run: ObservedRun, **options: Any) -> Any:
        errors = write(run, **options)
        if run.closing is not None and run.closing.kind == CONTINUE:
            tries.append(run)
            if len(tries) == 1:
                cluster_client().call(lambda sdk: sdk.get_workflow_handle(run.execution.workflow_id).signal("go"))
        return errors

    monkeypatch.setattr(mirror, "write", write_and_signal)
    handle = RefusedSteps.start(1, id=f"redone-{uuid.uuid4().hex[:8]}")
    handle.signal("go")
    assert handle.result(timeout=60) == 2
    first, second = Instance.objects.order_by("id")
    assert [run.run_id for run in tries] == [str(first.cluster_run_id)] * 2
    assert (first.status, second.status) == ("continued_as_new", "completed")
    carried = [(run.next_facts or {}).get("carried") for run in tries]
    assert carried[0] != carried[1] == storage.run_records([second.pk])[second.pk].carried_messages


def test_the_activation_that_continues_a_run_sends_its_signals(storage: DjangoStorage) -> None:
    states: list[Any] = []

    def receive(state: Any, **_: Any) -> None:
        states.append(state)

    run = Observations()
    run.write(storage, 1, at=0)
    signals.state_published.connect(receive)
    try:
        run.write(storage, 2, at=1, closing=CONTINUE, args="second", published="last")
    finally:
        signals.state_published.disconnect(receive)
    assert states == ["last"]


# -- an end that the server has refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(("closing", "attributes"), [("WorkflowCompleted", {"result": 1}), ("WorkflowFailed", {})])
def test_a_refused_end_opens_the_run_and_keeps_its_id(
    storage: DjangoStorage, closing: str, attributes: dict[str, Any]
) -> None:
    run = Observations()
    run.write(storage, 1, at=0)
    run.write(storage, 2, at=1, closing=closing, **attributes)
    assert (Chain.objects.get().closed, Chain.objects.get().open_key) == (True, None)
    run.write(storage, 2, at=2)
    row, chain = run.row(), Chain.objects.get()
    assert (row.status, row.closed_at, row.closing, row.ended) == ("waiting", None, None, None)
    assert (chain.closed, chain.open_key) == (False, KEY)


def test_a_refused_end_that_continues_keeps_its_id(storage: DjangoStorage) -> None:
    run = Observations()
    run.write(storage, 1, at=0)
    run.write(storage, 2, at=1, closing="WorkflowCompleted", result=1)
    run.write(storage, 2, at=2, closing=CONTINUE, args="second")
    chain = Chain.objects.get()
    assert (chain.closed, chain.open_key, run.row().status) == (False, KEY, "continued_as_new")


def test_a_run_whose_start_was_given_up_is_open_once_it_begins(storage: DjangoStorage) -> None:
    run = Observations()
    run.write(storage, 1, at=0)
    Instance.objects.update(cluster_task_at=None, cluster_run_id=None)
    Chain.objects.update(activations=0)
    with storage.transaction():
        mirror.close(Chain.objects.get().pk, "failed", {"type": "DeliveryRefused", "message": "no"}, storage=storage)
    run.write(storage, 1, at=2)
    assert (run.row().status, run.row().closing) == ("waiting", None)
    assert (Chain.objects.get().closed, Chain.objects.get().open_key) == (False, KEY)


def test_an_end_whose_id_another_run_has_by_now_is_undone_without_it(storage: DjangoStorage) -> None:
    run, other = Observations(), Observations()
    run.write(storage, 1, at=0)
    run.write(storage, 2, at=1, closing="WorkflowCompleted", result=1)
    other.write(storage, 1, at=1)
    run.write(storage, 2, at=2)
    assert (run.row().status, other.row().status) == ("waiting", "waiting")
    assert [*Chain.objects.order_by("id").values_list("open_key", "closed")].count((KEY, False)) == 1


def test_a_termination_here_is_not_undone(storage: DjangoStorage) -> None:
    run = Observations()
    run.write(storage, 1, at=0)
    with storage.transaction():
        mirror.close(Chain.objects.get().pk, "terminated", {"reason": "enough"}, storage=storage)
    run.write(storage, 2, at=2)
    assert (run.row().status, Chain.objects.get().closed) == ("terminated", True)


def test_a_reset_on_the_server_takes_the_id_back(storage: DjangoStorage) -> None:
    """The end of the run that the reset has terminated is seen first, and closes the chain."""
    run = Observations()
    run.write(storage, 1, at=0)
    with storage.transaction():
        mirror.close(Chain.objects.get().pk, "terminated", {"reason": "reset"}, storage=storage)
    after_reset = Observations(facts=run.facts, first=run.run_id)
    after_reset.write(storage, 1, at=2)
    chain = Chain.objects.get()
    assert (chain.run_id, chain.closed, chain.open_key) == (after_reset.row().pk, False, KEY)


def test_a_reset_on_the_server_ends_the_pause_of_the_chain(storage: DjangoStorage) -> None:
    run = Observations()
    run.write(storage, 1, at=0)
    chain = Chain.objects.get()
    assert mirror.copy_pause(chain.pk, run.row().pk, is_paused=True, storage=storage)
    after_reset = Observations(facts=run.facts, first=run.run_id)
    after_reset.write(storage, 1, at=2)
    assert (Chain.objects.get().paused, run.row().paused, after_reset.row().paused) == (False, None, None)


def test_a_locked_chain_is_not_closed_in_silence(storage: DjangoStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Observations()
    run.write(storage, 1, at=0)
    monkeypatch.setattr(storage, "lock_run", lambda chain_id, *, wait: None)
    chain = Chain.objects.get()
    with storage.transaction(), pytest.raises(mirror.MirrorBusy, match=str(chain.pk)):
        mirror.close(chain.pk, "failed", {}, storage=storage)
    Chain.objects.all().delete()
    with storage.transaction():
        mirror.close(chain.pk, "failed", {}, storage=storage)
