"""What every action on one run has for whoever makes a button, a route or a command of it."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.utils import timezone
from django.utils.functional import Promise

from temporalex_django import errors
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.models import ActivityTask, Chain, Instance, Message, OperatorAction
from temporalex_django.operations.base import Actor, storage
from temporalex_django.operations.registry import ACTIONS, STEERING
from temporalex_django.operations.run_lookup import find_run
from temporalex_django.operations.runs.control import Cancel, Move, Pause, Terminate
from temporalex_django.operations.runs.failures import CompleteActivity, RetryActivity
from temporalex_django.operations.runs.operator_action import Input, OperatorRunAction
from temporalex_django.signals import operator_acted
from tests.support.client_flows import Basket, drain
from tests.support.matrix import Row

pytestmark = pytest.mark.django_db


def target() -> RunTarget:
    return find_run("b-1", storage=storage())


@pytest.fixture(autouse=True)
def basket() -> Any:
    return Basket.start(id="b-1")


def test_all_of_them_are_found_by_name() -> None:
    assert {name: cls for name, cls in ACTIONS.items() if issubclass(cls, OperatorRunAction)} == STEERING
    assert {"cancel", "terminate"} <= set(STEERING)


@pytest.mark.parametrize("name", sorted(STEERING))
def test_a_face_finds_what_it_shows_and_asks(name: str) -> None:
    cls = STEERING[name]

    assert all(isinstance(words, Promise) and str(words) for words in (cls.label, cls.summary, cls.effect, cls.done))
    assert str(cls.summary).endswith(".")
    assert str(cls.effect).endswith(".")
    assert str(cls.done).endswith(".")
    assert len({one.name for one in cls.inputs} | {"reason", "seq", "by", "target"}) == len(cls.inputs) + 4
    codes = {f"temporalex_django.{code}" for code in dict(Instance._meta.permissions)} | {
        "temporalex_django.delete_instance"
    }
    assert f"temporalex_django.{cls.permission}" in codes


@pytest.mark.parametrize("cls", [Cancel, Terminate])
def test_what_cannot_be_done_any_more_says_why_and_does_nothing(cls: type[OperatorRunAction[Any]]) -> None:
    before = target()
    row = Instance.objects.get()
    assert cls.why_not(row) is None
    Terminate(before).execute()
    row.refresh_from_db()

    assert cls.why_not(row) == "the run is already closed (Terminated)"
    with pytest.raises(errors.WorkflowClosed, match="is already closed"):
        cls(target()).execute()
    assert OperatorAction.objects.count() == 1


def test_a_run_that_closed_since_it_was_looked_up_is_terminated_once() -> None:
    before = target()
    Terminate(before).execute()

    with pytest.raises(errors.WorkflowClosed, match=r"terminate of .* b-1 refused: the run is already closed"):
        Terminate(before).execute()
    assert OperatorAction.objects.count() == 1


#: What each is given beside the reason, and the run that it can be done to (see ``tests.support.matrix``).
DONE: dict[str, tuple[str, dict[str, Any]]] = {
    "cancel": ("basket", {}),
    "terminate": ("basket", {}),
    "pause": ("basket", {}),
    "unpause": ("paused", {}),
    "try_again": ("blocked", {}),
    "retry_activity": ("errand", {"seq": 1}),
    "complete_activity": ("errand", {"seq": 1, "result": 5}),
    "fail_activity": ("errand", {"seq": 1, "message": "secret"}),
    "skip_timer": ("errand", {"seq": 2}),
    "delete": ("acted", {}),
}


def prepared(name: str, **more: Any) -> tuple[OperatorRunAction[Any], str]:
    """The action on a run to which it can be done, and the id of that."""
    assert name in DONE, f"{name} has no row in DONE of tests/integration/operations/test_registry.py"
    run, given = DONE[name]
    handle = Row(None, print, run).ready()
    return STEERING[name](find_run(handle.id, storage=storage()), reason="why", **{**given, **more}), handle.id


@pytest.mark.parametrize("name", sorted(DONE))
def test_what_somebody_did_is_audited_and_told(name: str, django_capture_on_commit_callbacks: Any) -> None:
    heard: list[Any] = []

    def receiver(**arguments: Any) -> None:
        heard.append(arguments)

    operator_acted.connect(receiver)
    ann = get_user_model().objects.create_superuser("ann")
    with django_capture_on_commit_callbacks(execute=True):
        action, ref = prepared(name, by=Actor(user=ann, source="pages", address="10.0.0.7"))
        before = OperatorAction.objects.count()
        action.execute()

    assert OperatorAction.objects.count() == before + 1
    row = OperatorAction.objects.order_by("id").last()
    assert row is not None
    assert (row.action, row.actor, row.reason, row.workflow_id) == (name, ann, "why", ref)
    assert (row.source, row.address, row.forced) == ("pages", "10.0.0.7", name in ("terminate", "delete"))
    assert row.details.get("seq") == DONE[name][1].get("seq")
    assert "secret" not in str(row.details)
    (told,) = [one for one in heard if one["action"] == name and one["actor"] == ann]
    assert (told["workflow_id"], told["reason"]) == (ref, "why")
    assert str(action.done_message).endswith(".")


@pytest.mark.parametrize("name", sorted(set(DONE) - {"cancel", "retry_activity"}))
def test_of_two_operators_one_wins_and_the_other_reads_why(name: str) -> None:
    one, _ = prepared(name)
    other = type(one)(one.target, reason="me too", **({} if one.seq is None else {"seq": one.seq}), **one.input_values)
    one.execute()
    rows = OperatorAction.objects.count()

    with pytest.raises((errors.ActionNotPossible, errors.WorkflowClosed, errors.WorkflowNotFound)) as caught:
        other.execute()
    assert OperatorAction.objects.count() == rows
    assert len(str(caught.value)) > 20


def test_buttons_of_a_run_say_why_they_are_grey() -> None:
    row = Instance.objects.get()

    assert {name: cls.why_not(row) for name, cls in STEERING.items() if cls.why_not(row)} == {
        "complete_activity": "no activity is open",
        "delete": "the run is open: cancel or terminate it first",
        "discard": "the run has no failed message",
        "fail_activity": "no activity is open",
        "redeliver": "the run has no failed message",
        "retry_activity": "no activity is failing",
        "skip_timer": "no timer is running",
        "unpause": "the run is not paused",
        "try_again": "the run is not blocked",
    }


def test_a_row_that_a_page_has_read_needs_no_query(django_assert_num_queries: Any) -> None:
    _, ref = prepared("retry_activity")
    task = ActivityTask.objects.get(workflow_id=ref)
    with django_assert_num_queries(0):
        assert RetryActivity.why_not_task(task) is None
        task.owner = 7
        assert RetryActivity.why_not_task(task) == "an attempt is running now"
        assert CompleteActivity.why_not_task(task) is None


def test_the_answer_says_that_a_paused_run_hears_of_its_cancelling_later() -> None:
    Pause(target()).execute()
    action = Cancel(target())
    action.execute()

    assert (
        str(action.done_message)
        == "The run was asked to end. It is paused, so it receives the request when you unpause it."
    )
    assert Message.objects.filter(kind="cancel").count() == 1


def test_an_update_of_a_paused_run_is_refused_without_a_worker(basket: Any) -> None:
    basket.pause("bank holiday")

    for mode in ("auto", "worker"):
        with pytest.raises(errors.RunPaused, match="is paused: update 'add' refused"):
            basket.update("add", 1, mode=mode)
    assert not Message.objects.exists()
    basket.signal("note", 1)
    drain()
    assert Message.objects.filter(kind="signal", settled=False).count() == 1
    assert Chain.objects.get().due_at is None


@pytest.mark.parametrize(
    ("name", "given", "wrong"),
    [
        ("pause", {}, {}),
        ("unpause", {}, {}),
        ("try_again", {}, {}),
        ("retry_activity", {"seq": 1, "input": [7]}, {"seq": 9, "input": "seven"}),
        ("complete_activity", {"seq": 1, "result": 7}, {"seq": 9, "result": "seven"}),
        ("fail_activity", {"seq": 1, "message": "no", "type": "Stolen"}, {"seq": 9, "message": 7, "type": 7}),
        ("skip_timer", {"seq": 2}, {"seq": 9}),
        ("delete", {}, {}),
    ],
)
def test_a_handle_uses_all_that_it_is_given(name: str, given: dict[str, Any], wrong: dict[str, Any]) -> None:
    assert name in DONE, f"{name} has no row in DONE of tests/integration/operations/test_registry.py"
    call = getattr(Row(None, print, DONE[name][0]).ready(), name)
    for key, value in wrong.items():
        with pytest.raises((errors.PayloadError, errors.ActionNotPossible)):
            call(**{**given, key: value})
    with pytest.raises(errors.ActionNotPermitted):
        call(**given, by=get_user_model().objects.create_user("eve"))
    call(**given, reason="because", by=get_user_model().objects.create_superuser("ann"))

    row = OperatorAction.objects.filter(action=name).order_by("id").last()
    assert row is not None
    assert (row.reason, row.actor_name) == ("because", "ann")


def test_a_run_that_ended_its_workers_is_tried_alone_and_unpausing_does_not_try_it() -> None:
    """Whoever takes it later than the operator meant would end, too: one worker after the other."""
    handle = Row(None, print, "blocked").ready()
    chain = Chain.objects.filter(run_id=handle.run_id)
    handle.pause()
    action = STEERING["unpause"](find_run(handle.id, storage=storage()))
    action.execute()
    assert "stays blocked because its workers crashed" in str(action.done_message)
    assert chain.get().due_at == chain.get().deadline
    assert "one worker runs it alone" in str(STEERING["try_again"].effect)

    handle.try_again()
    assert chain.get().crashes == 3, "no worker takes it with others"
    report = DjangoStorage(worker=True)
    with report.transaction():
        assert [run.crashes for run in report.claim(limit=9, queues=["default"])] == [3]
    with DjangoStorage().transaction():
        assert not [*DjangoStorage().claim(limit=9, queues=[], chains=[chain.get().pk])], "no web process takes it"
    drain()
    assert (Instance.objects.get(pk=handle.run_id).blocked, chain.get().failed_tries) == (None, 0)


def test_whoever_sets_a_paused_run_due_does_not_wake_it(basket: Any) -> None:
    """As those do who take over from a worker that died."""
    basket.pause()
    Chain.objects.update(due_at=timezone.now())
    drain()

    assert Chain.objects.get().due_at is None
    assert basket.history() == []
    basket.unpause()
    drain()
    assert [event.kind for event in basket.history()][0] == "WorkflowStarted"


def test_a_run_that_is_moved_to_another_version_stays_paused() -> None:
    moving = Row(None, print, "moving").ready()
    moving.pause("wait")
    assert Move(find_run(moving.id, storage=storage()), version=2).execute().moves

    assert (moving.describe().version, moving.describe().paused["reason"]) == (2, "wait")
    drain()
    assert moving.describe().status == "pending"
    moving.unpause()
    drain()
    assert (moving.describe().status, moving.describe().paused) == ("waiting", None)


class Repaint(OperatorRunAction[None]):
    """Takes one of everything; it has no name, so that nobody finds it."""

    target_kind = "activity"
    inputs = (
        Input(name="colour", kind=str, label="Colour", required=True, choices=("red", "blue")),
        Input(name="coats", kind=int, label="Coats"),
        Input(name="litres", kind=float, label="Litres"),
        Input(name="glossy", kind=bool, label="Glossy"),
        Input(name="mixed", kind=object, label="Mixed"),
    )

    def perform(self) -> None: ...


def test_inputs_that_fit_are_taken() -> None:
    given = {"colour": "red", "coats": 2, "litres": 1, "glossy": True, "mixed": {"a": [None]}}

    assert Repaint(target(), seq=3, **given).input_values == given
    assert Repaint(target(), seq=3, colour="blue", litres=0.5).input_values == {"colour": "blue", "litres": 0.5}


@pytest.mark.parametrize(
    "given",
    [
        {"colour": "green"},
        {"colour": 1},
        {"colour": "red\x00"},
        {"colour": "red", "coats": "2"},
        {"colour": "red", "coats": True},
        {"colour": "red", "coats": 1.5},
        {"colour": "red", "litres": "1"},
        {"colour": "red", "litres": False},
        {"colour": "red", "glossy": 1},
        {"colour": "red", "mixed": object()},
    ],
)
def test_inputs_of_the_wrong_kind_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(errors.PayloadError, match="the input '(colour|coats|litres|glossy|mixed)'"):
        Repaint(target(), seq=3, **given)


def test_what_is_not_asked_for_is_refused() -> None:
    with pytest.raises(TypeError, match="requires colour"):
        Repaint(target(), seq=3)
    with pytest.raises(TypeError, match="has no input shade"):
        Repaint(target(), seq=3, colour="red", shade="dark")
    with pytest.raises(TypeError, match="requires seq, the number of the activity"):
        Repaint(target(), colour="red")
    with pytest.raises(TypeError, match="requires seq"):
        Repaint(target(), colour="red", seq="3")  # type: ignore[arg-type] # on purpose
    with pytest.raises(TypeError, match="does not accept seq"):
        Cancel(target(), seq=3)
