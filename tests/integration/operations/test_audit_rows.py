"""Who may do what, and what remains of it: permissions, audit rows, Django's signal, the log."""

from __future__ import annotations

import logging

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser, Permission

from temporalex_django import errors
from temporalex_django.authoring.requests import StartRequest
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.models import Chain, Instance, Message, OperatorAction
from temporalex_django.operations.base import Action, Actor, storage
from temporalex_django.operations.fleet.switches import SwitchOff
from temporalex_django.operations.registry import ACTIONS, STEERING
from temporalex_django.operations.run_lookup import find_run
from temporalex_django.operations.runs.control import Cancel, Move, Terminate
from temporalex_django.operations.runs.messages import Query, SendSignal, SignalWithStart
from temporalex_django.operations.runs.start import Start
from temporalex_django.operations.runs.update import SendUpdate
from temporalex_django.signals import operator_acted
from tests.support import schedule_matrix
from tests.support.client_flows import Basket, rolled_back

pytestmark = pytest.mark.django_db


def target() -> RunTarget:
    return find_run("b-1", storage=storage())


#: Every operation on a run: how to make it, its permission, and what its audit row says.
OPERATIONS = {
    "start": (lambda by: Start(StartRequest(workflow=Basket, id="b-2"), by=by), "start", {}),
    "signal_with_start": (
        lambda by: SignalWithStart(StartRequest(workflow=Basket, id="b-3"), signal="note", payload="secret", by=by), "start", {"signal": "note"},
    ),
    "signal": (lambda by: SendSignal(target(), signal="note", payload="secret", by=by), "signal", {"signal": "note"}),
    "update": (lambda by: SendUpdate(target(), update="add", args=4711, id="u", by=by), "update", {"update": "add", "update_id": "u"}),
    "query": (lambda by: Query(target(), query="items", by=by), "query", None),
    "cancel": (lambda by: Cancel(target(), reason="why", by=by), "cancel", {}),
    "terminate": (lambda by: Terminate(target(), reason="why", by=by), "terminate", {}),
}  # fmt: skip


@pytest.fixture(autouse=True)
def basket():
    return Basket.start(id="b-1")


def person(*permissions: str):
    user = get_user_model().objects.create_user("ann")
    user.user_permissions.set(Permission.objects.filter(codename__in=[f"{name}_instance" for name in permissions]))
    return get_user_model().objects.get(pk=user.pk)


def concrete(cls: type) -> set[str]:
    """Names of the operations below ``cls``; a base that is none itself has no name, and tests have their own."""
    own = {cls.name} if "name" in vars(cls) and cls.__module__.startswith("temporalex_django.") else set()
    return own.union(*(concrete(below) for below in cls.__subclasses__()))


def test_every_operation_is_listed():
    assert set(ACTIONS) == concrete(Action)
    assert set(ACTIONS) == {
        *OPERATIONS,
        *STEERING,
        "resume",
        "reset",
        "fork",
        "start_bulk",  # see test_bulk
        "stop_bulk",
        "resume_bulk",
        Move.name,
        "compare",  # see test_compare_inputs
        "claim",  # see test_human_tasks
        "release",
        "delegate",
        "decide",
        "drain_worker",  # see test_health
        "undrain_worker",
        "run_due",  # see test_steering
        "send_again",  # see test_outbox
        "drop_outgoing",
        "sync",  # see test_mirror
        "switch_off",  # see test_switches
        "switch_on",
        "retry_task",  # see tasks/test_task_operations.py
        "cancel_task",
        "run_task_now",
        "requeue",
        *schedule_matrix.OPERATIONS,  # see test_schedules
    }  # see test_graphs_on_the_database, test_versions, test_resets


@pytest.mark.parametrize("name", [name for name, (_, _, details) in OPERATIONS.items() if details is not None])
def test_what_a_program_sends_all_day_is_apart_from_what_people_do(name):
    make, permission, _ = OPERATIONS[name]
    user = person(permission, "signal")
    make(Actor(user=user, source="rest", program=True)).execute()

    ordinary = {"start", "signal_with_start", "signal", "update"}
    assert {row.automatic for row in OperatorAction.objects.all()} == {name in ordinary}


def test_what_a_person_does_is_not_automatic_and_what_code_forces_is():
    SendSignal(target(), signal="note", by=Actor(user=person("signal"), source="rest")).execute()
    Terminate(target()).execute()

    assert dict(OperatorAction.objects.values_list("action", "automatic")) == {"signal": False, "terminate": True}


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_person_needs_the_permission_and_nothing_is_written_without_it(name):
    make, permission, _ = OPERATIONS[name]
    others = {"view", "start", "signal", "update", "query", "cancel", "terminate"} - {permission}
    user = person(*others)
    inactive = get_user_model().objects.create_superuser("gone", is_active=False)

    for who in (user, inactive, AnonymousUser()):
        with pytest.raises(errors.ActionNotPermitted, match=f"{permission}_instance"):
            make(Actor(user=who, source="pages")).execute()

    assert not OperatorAction.objects.filter(denied=False).exists()
    assert not Message.objects.exists()
    assert Chain.objects.count() == 1
    assert Instance.objects.get().status == "pending"


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_a_person_did_is_audited_and_told_without_payloads(name, django_capture_on_commit_callbacks, caplog):
    make, permission, details = OPERATIONS[name]
    user = person(permission, *(["signal"] if name == "signal_with_start" else []))
    caplog.set_level(logging.DEBUG, logger="temporalex_django.operations")
    heard = []

    def receiver(**arguments):
        heard.append(arguments)

    operator_acted.connect(receiver)
    with django_capture_on_commit_callbacks(execute=True):
        make(Actor(user=user, source="pages", address="10.0.0.7")).execute()
        assert heard == []

    rows = list(OperatorAction.objects.order_by("id"))
    assert [row.action for row in rows] == [e["action"] for e in heard]
    if details is None:
        assert rows == []
        return
    row = rows[-1]
    assert (row.actor, row.actor_name, row.source, row.address) == (user, "ann", "pages", "10.0.0.7")
    assert (row.forced, row.details) == (name == "terminate", details)
    assert row.reason == ("why" if name in ("cancel", "terminate") else "")
    assert row.run.workflow_id == row.workflow_id
    assert heard[-1]["actor"] == user
    assert heard[-1]["sender"] is Basket
    assert heard[-1]["run_id"] == str(row.run_id)
    record = next(r for r in caplog.records if r.action == row.action)
    assert (record.workflow_id, record.run_id) == (row.workflow_id, str(row.run_id))
    assert "secret" not in caplog.text
    assert "4711" not in caplog.text


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_code_does_is_in_the_history_alone_unless_it_is_forced(name):
    make, _, _ = OPERATIONS[name]

    make(Actor()).execute()

    assert OperatorAction.objects.count() == (name == "terminate")


def test_the_audit_vanishes_with_the_action():
    by = Actor(user=person("signal", "terminate"), source="pages")
    with rolled_back():
        SendSignal(target(), signal="note", by=by).execute()
        Terminate(target(), by=by).execute()

    assert not OperatorAction.objects.exists()


def test_a_refused_or_repeated_update_is_not_audited_again():
    by = Actor(user=person("update"), source="pages")
    with pytest.raises(errors.UpdateRejected):
        SendUpdate(target(), update="add", args=-1, by=by).execute()
    for _ in range(3):
        SendUpdate(target(), update="add", args=1, id="u", by=by).execute()

    assert OperatorAction.objects.count() == 1


def test_a_signal_that_is_sent_again_is_not_audited_again():
    by = Actor(user=person("signal"), source="pages")
    for _ in range(2):
        SendSignal(target(), signal="note", id="k", by=by).execute()

    assert OperatorAction.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_an_update_that_waits_for_a_worker_is_audited_once_however_often_it_is_sent():
    by = Actor(user=person("update"), source="pages")
    for _ in range(2):
        with pytest.raises(errors.UpdateTimeout):
            SendUpdate(target(), update="add", args=1, id="u", mode="worker", timeout=0.01, by=by).execute()
    SendUpdate(target(), update="add", args=1, id="u", by=by).execute()

    assert OperatorAction.objects.count() == 1


def test_an_async_update_needs_the_permission_too():
    stranger = Actor(user=person("view"), source="pages")

    with pytest.raises(errors.ActionNotPermitted, match="update_instance"):
        async_to_sync(SendUpdate(target(), update="add", args=1, by=stranger).aexecute)()

    assert not Message.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", [name for name, (_, _, details) in OPERATIONS.items() if details is not None])
def test_nothing_happens_when_its_audit_row_cannot_be_written(name, monkeypatch):
    make, permission, _ = OPERATIONS[name]
    by = Actor(user=person(permission, "signal"), source="pages")
    monkeypatch.setattr(OperatorAction, "save", lambda *_, **__: pytest.fail("the disk is full"))

    with pytest.raises(pytest.fail.Exception, match="disk is full"):
        make(by).execute()

    assert (Chain.objects.count(), Message.objects.count()) == (1, 0)
    assert Instance.objects.get().closed_at is None


def test_the_log_says_of_which_run_it_was_where_it_was_of_one(django_capture_on_commit_callbacks, caplog):
    root = Actor(user=get_user_model().objects.create_superuser("root"), source="command")
    caplog.set_level(logging.INFO, logger="temporalex_django.operations")
    with django_capture_on_commit_callbacks(execute=True):
        SwitchOff("queue", "default", by=root).execute()
        Start(StartRequest(workflow=Basket, id="b-9"), by=root).execute()
    said = [record.getMessage() for record in caplog.records]
    by = f"by user {root.user.pk} (command)"
    assert said == [f"switch_off {by}", f"start of {Basket.name} b-9 {by}"]


def test_the_log_says_who_acted(caplog, django_capture_on_commit_callbacks):
    ann = person("cancel")
    caplog.set_level(logging.INFO, logger="temporalex_django.operations")
    with django_capture_on_commit_callbacks(execute=True):
        Cancel(target(), by=Actor(user=ann, source="rest")).execute()
        Cancel(target(), by=Actor(source="command", account="root")).execute()

    said = [record.getMessage() for record in caplog.records if record.name == "temporalex_django.operations"]
    assert said == [f"cancel of test.Basket b-1 by user {ann.pk} (rest)", "cancel of test.Basket b-1 by root"]
