"""Resets and forks on the database: locks, attempts under way, what is written together, who may."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import override_settings

from temporalex_django import Ok, Workflow, activity, activity_context, api, errors
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine import activity_policy
from temporalex_django.engine.scheduling import Capacity
from temporalex_django.models import ActivityTask, Chain, HistoryEvent, Instance, Message, OperatorAction
from temporalex_django.operations.base import Actor, storage
from temporalex_django.operations.run_lookup import find_run
from temporalex_django.operations.runs.history_action import Fork, Reset
from temporalex_django.signals import instance_failed
from temporalex_django.testing import drain
from tests.support import tenants
from tests.support.client_flows import Basket, rolled_back

pytestmark = pytest.mark.django_db(transaction=True)

RAN: list[tuple[str, Any]] = []


@activity
def charge_of_reset(amount: int) -> str:
    key = activity_context().idempotency_key
    RAN.append((key, amount))
    return key


@activity(atomic=True)
def note_of_reset(amount: int) -> str:
    RAN.append((activity_context().idempotency_key, amount))
    return activity_context().idempotency_key


class Paying(Workflow):
    name = "test.PayingOfReset"

    async def run(self, args: int) -> Ok[Any]:
        first = await charge_of_reset(args)
        return Ok([first, await note_of_reset(args), await api.wait_for_signal("end")])


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


def rows() -> dict[str, Any]:
    """All that there is."""
    models = (Chain, Instance, HistoryEvent, Message, ActivityTask, OperatorAction)
    return {model.__name__: list(model.objects.order_by("pk").values()) for model in models}


def test_a_closed_run_goes_on_from_an_activation() -> None:
    h = Paying.start(5, id="p")
    h.signal("end", 1)
    drain()
    old = h.run_id
    assert h.result() == [f"{old}:1", f"{old}:2", 1]

    new = h.reset(1, reason="it was charged twice")

    assert h.run_ids == [old, new]
    chain = Chain.objects.get()
    assert (chain.closed, chain.open_key, str(chain.run_id)) == (False, "g:p", new)
    drain()
    assert h.result()[0] == f"{old}:1"  # which was open there, the other one was not
    assert h.result()[1:] == [f"{new}:2", 1]
    assert [amount for _, amount in RAN] == [5, 5, 5, 5]
    assert [r.status for r in Instance.objects.order_by("pk")] == ["completed", "completed"]
    audit = OperatorAction.objects.get()
    assert (audit.action, audit.forced, audit.reason) == ("reset", True, "it was charged twice")
    assert audit.details == {"activation": 1, "messages": "again", "run": old, "new_run": new}


def test_an_open_atomic_activity_runs_in_the_new_run() -> None:
    h = Paying.start(5, id="p")
    drain()
    old = h.run_id
    at = [e.activation for e in h.history() if e.kind == "ActivityScheduled"][-1]
    h.reset(at)
    h.signal("end", 1)
    drain()
    assert h.result() == [f"{old}:1", f"{old}:2", 1]


def test_the_end_of_an_attempt_that_is_under_way_changes_nothing() -> None:
    h = Paying.start(5, id="p")
    worker = storage()
    with worker.transaction():
        from temporalex_django.backends.tables import inline_turn

        inline_turn.advance(find_run("p", storage=worker), storage=worker)
    (task,) = worker.claim_tasks(capacity=Capacity(threads=1), queues=["default"], owner=7)

    new = h.reset(1)

    assert worker.finish_tasks([activity_policy.completed_result(task, "late")]) == []
    assert worker.record_heartbeats({(task.id, task.attempt, 7): "beat"}) == set()
    open_one = ActivityTask.objects.get()
    assert (str(open_one.run_id), open_one.attempt, open_one.owner) == (new, 0, None)
    h.signal("end", 1)
    drain()
    assert "late" not in h.result()


def test_all_of_it_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies in the middle leaves the run as it was."""
    h = Paying.start(5, id="p")
    h.signal("end", 1)
    drain()
    before = rows()
    from temporalex_django.db.storage import DjangoStorage

    for method in ("write", "prepend_messages", "on_commit"):
        with monkeypatch.context() as patched:
            patched.setattr(DjangoStorage, method, _dies)
            for call in (h.reset, h.fork):
                with pytest.raises(SystemExit):
                    call(1)
        assert rows() == before
    with rolled_back():
        h.reset(1)
        h.fork(1, id="q")
        assert Instance.objects.count() == 3
    assert rows() == before


def _dies(*args: Any, **options: Any) -> None:
    raise SystemExit


def test_a_failure_is_not_announced_for_a_run_that_goes_on() -> None:
    heard: list[Any] = []

    def hear(**facts: Any) -> None:
        heard.append(facts["run_id"])

    instance_failed.connect(hear)
    try:
        h = Paying.start(5, id="p")
        drain()
        h.reset(1)
        assert heard == []
        h.terminate()
        assert heard == [h.run_id]
    finally:
        instance_failed.disconnect(hear)


def test_a_run_that_has_gone_on_since_it_was_looked_at_is_left_alone() -> None:
    Basket.start(id="b")
    drain()
    seen = find_run("b", storage=storage())
    Reset(seen, to=1).execute()
    drain()
    with pytest.raises(errors.ActionNotPossible, match="continued as a new run"):
        Reset(seen, to=1).execute()
    assert Instance.objects.count() == 2
    again = find_run(str(seen.run_id), storage=storage())  # by its own id it is meant, whatever came then
    Reset(again, to=1, messages="drop").execute()
    assert Instance.objects.count() == 3


def test_a_replay_has_a_lease_of_time_and_nothing_is_locked_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    Basket.start(id="b")
    drain()
    ticks = iter(range(0, 1_000_000, 20))
    held = DjangoStorage.lock_run
    monkeypatch.setattr("temporalex_django.engine.reset.time", SimpleNamespace(monotonic=lambda: next(ticks)))
    monkeypatch.setattr(
        DjangoStorage, "lock_run", lambda *_, **__: pytest.fail("it was locked before its replay was over")
    )
    with override_settings(TEMPORALEX={"LEASE_SECONDS": 10.0}):
        for call in (Basket.handle("b").reset, Basket.handle("b").fork):
            with pytest.raises(errors.ActionNotPossible, match="takes longer than 10 s to replay 1 activations"):
                call(1)
    monkeypatch.setattr(DjangoStorage, "lock_run", held)
    with override_settings(TEMPORALEX={"LEASE_SECONDS": 30.0}):
        Basket.handle("b").reset(1)
    assert Instance.objects.count() == 2


def test_without_its_class_a_run_cannot_be_taken_up() -> None:
    Basket.start(id="b")
    drain()
    Instance.objects.update(version=7)
    row = Instance.objects.get()
    for cls in (Reset, Fork):
        assert "does not have the class" in str(cls.why_not(row))
        with pytest.raises(errors.ActionNotPossible, match="does not have the class"):
            cls(find_run("b", storage=storage()), to=1).execute()
    assert Instance.objects.count() == 1


def person(name: str, *codes: str) -> Any:
    user = get_user_model().objects.create_user(name)
    user.user_permissions.set(Permission.objects.filter(codename__in=codes))
    return user


def test_who_may() -> None:
    h = Basket.start(id="red-1")
    drain()
    nobody, ann = (
        person("red-nobody", "view_instance", "terminate_instance"),
        person("red-ann", "reset_instance", "start_instance"),
    )
    for call in (h.reset, h.fork):
        with pytest.raises(errors.ActionNotPermitted, match="reset_instance"):
            call(1, by=nobody)
    h.reset(1, by=ann)
    assert OperatorAction.objects.latest("pk").actor_name == "red-ann"

    with override_settings(TEMPORALEX={"ACCESS_POLICY": tenants.POLICY}):
        with pytest.raises(errors.WorkflowNotFound):
            h.reset(1, by=person("blue-bob", "reset_instance"))
        before = rows()
        with pytest.raises(errors.ActionNotPermitted, match="visible to them"):
            Fork(find_run("red-1", storage=storage()), to=1, id="blue-1", by=Actor(user=ann, source="rest")).execute()
        assert {**rows(), "OperatorAction": None} == {**before, "OperatorAction": None}
        Fork(find_run("red-1", storage=storage()), to=1, id="red-2", by=Actor(user=ann, source="rest")).execute()


def test_a_fork_has_what_its_trunk_is_about() -> None:
    subject = person("subject")
    h = Basket.start(id="b", subject=subject)
    Instance.objects.update(search_attributes={"city": "Bonn"})  # with which it begins
    drain()
    fork = h.fork(1, reason="to try it")
    row = Instance.objects.get(pk=fork.run_id)
    assert (row.subject, row.search_attributes, row.parent) == (subject, {"city": "Bonn"}, None)
    audit = OperatorAction.objects.get()
    assert (audit.details["new_id"], audit.reason) == (fork.id, "to try it")


def test_a_long_history_is_copied_whole() -> None:
    h = Basket.start(id="b")
    for number in range(300):
        h.signal("note", number)
    drain()
    h.reset(1)
    drain()
    old, new = Instance.objects.order_by("pk")
    assert new.published_state == old.published_state
    events = HistoryEvent.objects.filter(run_id=h.run_id).order_by("seq")
    assert [event.seq for event in events] == list(range(1, len(events) + 1))


def test_a_reset_run_that_had_a_deadline_has_it_again() -> None:
    class Hurried(Workflow):
        name = "test.HurriedReset"
        run_timeout = timedelta(hours=1)

        async def run(self, args: Any) -> Ok[Any]:
            return Ok(await api.wait_for_signal("end"))

    h = Hurried.start(id="h")
    drain()
    before = Chain.objects.get().deadline
    h.reset(1)
    after = Chain.objects.get().deadline
    assert before is not None
    assert after is not None
    assert after > before
