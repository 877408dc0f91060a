"""Graphs through the facade, REST and workers: by business value, with people, on committed data."""

from __future__ import annotations

import json
import threading
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission
from django.db import connection, transaction
from django.test import Client, override_settings
from django.urls import reverse
from rest_framework.test import APIClient

from temporalex_django import Approval, Done, Event, GraphWorkflow, Step, Unique, WaitForEvent, Workflow, api, errors
from temporalex_django.authoring.requests import StartRequest
from temporalex_django.backends.tables import inline_turn
from temporalex_django.db.graph_storage import TableStorage
from temporalex_django.graph import instance as snapshot
from temporalex_django.models import (
    ActivityTask,
    Candidate,
    HistoryEvent,
    HumanTask,
    Instance,
    Message,
    OperatorAction,
    SearchAttribute,
)
from temporalex_django.operations.base import Actor, storage
from temporalex_django.operations.run_lookup import find_run
from temporalex_django.operations.runs.resume import Resume
from temporalex_django.operations.runs.start import Start
from tests.support.client_flows import Basket, drain, rolled_back

pytestmark = pytest.mark.django_db(transaction=True)


class Prepare(Step):
    events = ("ready",)

    def execute(self, instance, config, context):
        return Event("ready", {"of": context.initial.get("order")})


class Record(Step):
    """Writes a row and the end of the step in one transaction."""

    events = ("recorded",)
    atomic = True

    def execute(self, instance, config, context):
        Group.objects.create(name=f"{instance.id} {context.steps.prepare.of}")
        return Event("recorded")


decision = Approval(role="deciders", due=timedelta(days=1))
hook = WaitForEvent("delivered")


class Delivery(GraphWorkflow):
    name = "test.Delivery"
    unique = Unique(key="delivery")
    tags = ["fast"]
    metadata = {"team": "shop"}
    search_attributes = {"of": str}
    initial = Prepare
    transitions = {
        (Prepare, "ready"): Record,
        (Record, "recorded"): decision,
        (decision, "approved"): hook,
        (decision, "rejected"): Done,
        (decision, "overdue"): Done,
        (hook, "delivered"): Done,
    }


def clerk(name: str = "ann", *, group: str | None = "deciders"):
    user = get_user_model().objects.create_user(name)
    if group is not None:
        user.groups.add(Group.objects.get_or_create(name=group)[0])
    return user


def test_from_start_to_end_by_value():
    """HE-006 HE-142 HE-143 HE-144 HE-110 HE-113."""
    handle = Delivery.start("42", {"order": 7})
    assert (handle.id, handle.status) == ("delivery::42", "pending")
    drain()
    assert Group.objects.filter(name="delivery::42 7").count() == 1
    assert Delivery.get("42").describe().waiting_for == ["step approval: approved or rejected or overdue"]
    Delivery.resume("42", "approved", by=(ann := clerk()), data={"why": "fine"})
    Delivery.resume("42", "delivered")
    assert handle.result(timeout=0)["approval"] == {"why": "fine", "by": "ann", "by_key": str(ann.pk)}
    assert handle.instance().status == "completed"


@pytest.mark.parametrize(
    "said", [None, {"why": "a regular"}, ["a", "b"], "yes", 0, {"by": "somebody else", "by_key": "7"}]
)
def test_who_decided_stands_beside_whatever_he_said(said):
    Delivery.start("1", {})
    drain()

    cleo = clerk("cleo")
    Delivery.resume("1", "approved", data=said, by=cleo)

    noted = Delivery.get("1").instance().context.steps.approval
    assert (noted.by, noted.by_key) == ("cleo", str(cleo.pk))
    if isinstance(said, dict):
        assert noted == {**said, "by": "cleo", "by_key": str(cleo.pk)}
    else:
        assert noted.get("data") == said


def test_a_decision_takes_the_role():
    """The group, a permission, or being a superuser; nobody else, and no code. Nothing changes when it is refused."""
    Delivery.start("1", {})
    drain()
    length = HistoryEvent.objects.count()
    for by in (None, "ann", clerk("bob", group=None), clerk("cleo", group="others")):
        with pytest.raises(
            errors.ActionNotPermitted, match=r"may not decide Approval: this requires the role 'deciders'"
        ):
            Delivery.resume("1", "approved", by=by)
    inactive = clerk("dan")
    inactive.is_active = False
    inactive.save()
    with pytest.raises(errors.ActionNotPermitted):
        Delivery.resume("1", "approved", by=inactive)
    assert HistoryEvent.objects.count() == length
    assert not Message.objects.filter(kind="resume").exists()
    Delivery.resume("1", "rejected", by=get_user_model().objects.create_superuser("root"))
    assert Delivery.get("1").instance().context.steps.approval.by == "root"
    assert OperatorAction.objects.get(denied=False).action == "resume"


def test_a_role_may_be_a_permission():
    class Flow(GraphWorkflow):
        name = "test.ByPermission"
        unique = Unique(key="bypermission")
        initial = Approval(role="auth.view_group")
        transitions = {(initial, "approved"): Done, (initial, "rejected"): Done}

    Flow.start("1", {})
    drain()
    user = clerk(group=None)
    user.user_permissions.add(Permission.objects.get(codename="view_group"))
    Flow.resume("1", "approved", by=get_user_model().objects.get(pk=user.pk))
    assert Flow.get("1").status == "completed"


def test_a_person_from_a_face_needs_the_permission_to_signal_where_no_role_is_asked_for():
    Delivery.start("1", {})
    drain()
    Delivery.resume("1", "approved", by=clerk())
    target = find_run("delivery::1", storage=storage())
    with pytest.raises(errors.ActionNotPermitted, match="signal_instance"):
        Resume(target, event="delivered", by=Actor(user=clerk("bob"), source="rest")).execute()


def test_a_resume_lives_and_dies_with_the_callers_transaction():
    """HE-103: judged inside of it, undone with it."""
    Delivery.start("1", {})
    drain()
    ann = clerk()
    with rolled_back():
        Delivery.resume("1", "approved", by=ann)
        assert [s.name for s in Delivery.get("1").instance().waiting_steps] == ["delivered"]
    assert Delivery.get("1").instance().waiting_steps == {decision}
    with transaction.atomic():
        Delivery.resume("1", "approved", by=ann)
    assert Delivery.get("1").instance().waiting_steps == {hook}


class Noted(Step):
    events = ("noted",)
    atomic = True

    def execute(self, instance, config, context):
        Group.objects.create(name=f"{instance.id} {context.steps.money.amount}")
        return Event("noted")


class Early(GraphWorkflow):
    name = "test.Early"
    unique = Unique(key="early")
    money = WaitForEvent("paid", timeout=timedelta(days=30), key="money")
    initial = money
    transitions = {(money, "paid"): Noted, (money, "timeout"): Done, (Noted, "noted"): hook, (hook, "delivered"): Done}


@pytest.mark.usefixtures("unhurried")
def test_a_resume_may_come_before_any_worker_has_seen_the_run():
    """The step begins to wait, with its timer, and ends in one activation."""
    handle = Early.start("1", {})
    Early.resume("1", "paid", data={"amount": 5})

    kinds = [event.kind for event in handle.history() if event.activation == 1]
    assert kinds[2:] == ["SignalReceived", "TimerStarted", "TimerCancelled", "ActivityScheduled"]
    assert handle.instance().context.steps.money == {"amount": 5}
    drain()
    assert Group.objects.get().name == "early::1 5"
    assert handle.instance().waiting_steps == {hook}
    Early.resume("1", "delivered")
    assert handle.status == "completed"


def test_a_refused_resume_leaves_nothing():
    """HE-104."""
    Delivery.start("1", {})
    drain()
    length = HistoryEvent.objects.count()
    with pytest.raises(errors.ResumeRefused, match="no step is waiting for the event 'delivered'"):
        Delivery.resume("1", "delivered")
    assert (HistoryEvent.objects.count(), Message.objects.count()) == (length, 0)
    with pytest.raises(errors.WorkflowNotFound):
        Delivery.resume("2", "delivered")
    with pytest.raises(errors.ResumeRefused, match="not a graph"):
        Basket.start(id="b").resume("delivered")


def test_cancel_by_value_is_immediate():
    """HE-146 HE-149 HE-153."""
    Delivery.start("1", {})
    drain()
    Delivery.cancel("1")
    assert Delivery.get("1").status == "cancelled"
    with pytest.raises(errors.NotCancellable):
        Delivery.cancel("1")
    with pytest.raises(errors.WorkflowNotFound):
        Delivery.cancel("2")
    with pytest.raises(errors.WorkflowCancelled):
        Delivery.get("1").result(timeout=0)
    with pytest.raises(errors.WorkflowClosed):
        Delivery.resume("1", "approved", by=clerk())


def test_a_closed_run_leaves_its_value_free():
    """HE-138."""
    first = Delivery.start("1", {})
    with pytest.raises(errors.AlreadyRunning):
        Delivery.start("1", {})
    Delivery.cancel("1")
    second = Delivery.start("1", {})
    assert second.run_id != first.run_id
    assert Delivery.get("1").run_id == second.run_id


def test_a_run_that_a_storage_deletes_leaves_nothing_to_find_or_to_decide():
    for value in "12":
        Delivery.start(value, {}, search_attributes={"of": value})
    drain()
    TableStorage().delete(Delivery.get("1").id)
    for left in (SearchAttribute, HumanTask):
        assert [one.run.workflow_id for one in left.objects.all()] == [Delivery.get("2").id]
    assert not Candidate.objects.exclude(task__run__workflow_id=Delivery.get("2").id).exists()


def test_list_gives_handles_of_this_class_alone():
    """HE-145 HE-122 HE-123."""
    Basket.start(id="b")
    for value in ("1", "2", "3"):
        Delivery.start(value, {})
    Delivery.cancel("2")
    assert [handle.id for handle in Delivery.list()] == ["delivery::3", "delivery::2", "delivery::1"]
    assert [handle.id for handle in Delivery.list(status="cancelled")] == ["delivery::2"]
    assert [handle.id for handle in Delivery.list(status=["pending"], value="1")] == ["delivery::1"]
    assert list(Delivery.list(version=2)) == []
    with pytest.raises(TypeError, match="no such filter: colour"):
        Delivery.list(colour="red")


def test_tags_and_metadata_reach_the_rows_of_activities():
    """HE-117 HE-166 HE-167."""
    Delivery.start("1", {})
    with transaction.atomic():
        target = find_run("delivery::1", storage=storage())
        inline_turn.try_lock_run(target, storage=storage(), wait=1)
        inline_turn.advance(target, storage=storage())
    task = ActivityTask.objects.get()
    assert (task.tags, task.metadata) == (["fast"], {"team": "shop"})


@pytest.mark.parametrize("scope", ["workflow", "version", "global"])
@pytest.mark.parametrize("nested", [False, True], ids=["autocommit", "in a transaction"])
def test_of_thirty_threads_that_start_one_value_exactly_one_wins(scope, nested):
    """HE-127 HE-133 HE-134 HE-135 HE-136 HE-140 HE-148."""

    class Raced(Workflow):
        name = f"test.Raced.{scope}"
        unique = Unique(key="raced", scope=scope)

        async def run(self, args):
            return await api.wait_for_signal("end")

    won, lost, odd = [], [], []
    barrier = threading.Barrier(30, timeout=30)

    def start(number):
        try:
            barrier.wait()
            if nested:
                with transaction.atomic():
                    won.append(Raced.start("1", {"by": number}).run_id)
            else:
                won.append(Raced.start("1", {"by": number}).run_id)
        except errors.AlreadyRunning:
            lost.append(number)
        except Exception as exc:
            odd.append(exc)
        finally:
            connection.close()

    threads = [threading.Thread(target=start, args=(number,)) for number in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert (len(won), len(lost), odd) == (1, 29, [])
    assert Instance.objects.filter(workflow_id="raced::1").count() == 1


def test_with_scope_none_all_thirty_start():
    """HE-128 HE-137 HE-147."""

    class Many(Workflow):
        name = "test.Many"
        unique = Unique(key="many", scope="none")

        async def run(self, args):
            return await api.wait_for_signal("end")

    handles = [Many.start("1", number) for number in range(30)]
    assert len({handle.id for handle in handles}) == 30
    assert all(handle.id.startswith("many::1::") and len(handle.id) == 17 for handle in handles)
    assert len(list(Many.list())) == 30
    for name in ("resume", "get", "cancel", "aget"):
        assert not hasattr(Many, name)


def test_rest_resume_and_start():
    """HE-105: the event comes as text, 409 when it matches nothing, 403 without the role."""
    Delivery.start("1", {})
    drain()
    client = Client()
    user = get_user_model().objects.create_user("rita")
    user.user_permissions.add(*Permission.objects.filter(codename__in=["view_instance", "start_instance"]))
    client.force_login(user)

    def post(**body):
        address = reverse("temporalex_rest:resume", kwargs={"id": "delivery::1"})
        return client.post(address, json.dumps(body), content_type="application/json")

    assert post(event="approved").status_code == 403
    user.groups.add(Group.objects.get_or_create(name="deciders")[0])
    answer = post(event="approved", data={"why": "ok"})
    assert (answer.status_code, answer.json()["status"]) == (200, "waiting")
    refused = post(event="approved")
    assert (refused.status_code, refused.json()["code"]) == (409, "resume_refused")
    assert post(event="delivered").status_code == 403
    user.user_permissions.add(Permission.objects.get(codename="signal_instance"))
    assert post(event="delivered", step="nowhere").status_code == 409
    assert post(step="x").status_code == 400
    assert post(event="delivered", step="wait_for_event").json()["status"] == "completed"
    assert post(event="delivered").status_code == 409
    address = reverse("temporalex_rest:instances")
    body = {"workflow": "test.Delivery", "value": "9", "args": {"order": 1}}
    created = client.post(address, json.dumps(body), content_type="application/json")
    assert (created.status_code, created.json()["id"]) == (201, "delivery::9")


def test_the_facade_has_async_twins():
    """HE-142 HE-143 HE-144 HE-145 HE-146."""
    waiting, listed, status = async_to_sync(_from_start_to_cancel)()
    assert (waiting, listed, status) == ({hook}, ["delivery::1"], "cancelled")


async def _from_start_to_cancel():
    await Delivery.astart("1", {"order": 1})
    await sync_to_async(drain)()
    await Delivery.aresume("1", "approved", by=await sync_to_async(clerk)())
    handle = await Delivery.aget("1")
    waiting = (await handle.ainstance()).waiting_steps
    listed = [found.id for found in await Delivery.alist()]
    await Delivery.acancel("1")
    return waiting, listed, (await handle.adescribe()).status


def test_what_was_accepted_is_read_whatever_the_limit_was():
    """A step's data may be as large as the setting says, for those who run and for those who read."""

    class Large(Step):
        events = ("ok",)

        def execute(self, instance, config, context):
            return Event("ok", "x" * 3_000_000)

    class Reads(Step):
        events = ("ok",)

        def execute(self, instance, config, context):
            return Event("ok", {"length": len(context.steps.large), "status": instance.status})

    class Flow(GraphWorkflow):
        name = "test.Large"
        unique = Unique(key="large")
        initial = Large
        transitions = {(Large, "ok"): Reads, (Reads, "ok"): Done}

    with override_settings(TEMPORALEX={"MAX_PAYLOAD_BYTES": 8_000_000}):
        handle = Flow.start("1", {})
        drain()
        assert handle.result(timeout=0)["reads"] == {"length": 3_000_000, "status": "running"}


def test_a_role_of_one_step_opens_no_other():
    """From a face: who may decide an approval may not resume what has no role, without the permission to signal."""
    free = WaitForEvent("approved", key="free")
    asked = Approval(role="deciders", key="asked")

    class Both(GraphWorkflow):
        name = "test.Both"
        unique = Unique(key="both")
        initial = Prepare
        transitions = {
            (Prepare, "ready"): [free, asked],
            (free, "approved"): Record,
            (asked, "approved"): Record,
            (asked, "rejected"): Record,
            (Record, "recorded"): Done,
        }

    Both.start("1", {})
    drain()
    target = find_run("both::1", storage=storage())
    by = Actor(user=clerk(), source="rest")
    with pytest.raises(
        errors.ActionNotPermitted, match=r"ann may not resume WaitForEvent\(free\): this requires the permission"
    ):
        Resume(target, event="approved", step="free", by=by).execute()
    Resume(target, event="approved", step="asked", by=by).execute()
    assert Both.get("1").instance().waiting_steps == {free}


def test_somebody_who_is_not_stored_decides_nothing():
    Delivery.start("1", {})
    drain()
    for user in (get_user_model()(username="eve", is_superuser=True), get_user_model()(username="eve")):
        with pytest.raises(errors.ActionNotPermitted):
            Delivery.resume("1", "approved", by=user)


def test_a_class_with_unique_takes_a_value():
    """HE-008: no run of it gets an id that nobody chose."""
    with pytest.raises(errors.InvalidId, match="declares `unique`: start it with a value"):
        Start(StartRequest(workflow=Delivery)).execute()
    with pytest.raises(errors.InvalidId, match="start it with a value"):
        Delivery.start()


class Twofold(GraphWorkflow):
    name = "test.Twofold"
    unique = Unique(key="twofold")
    initial = Approval(key="twice", four_eyes=True)
    transitions = {(initial, "approved"): Done, (initial, "rejected"): Done}


def test_whoever_starts_a_run_over_rest_does_not_approve_it_from_anywhere():
    """The key of the starter goes with the run; roots are no exception, and no other version forgets it."""
    root, other = (get_user_model().objects.create_superuser(name) for name in ("root", "other"))
    client = APIClient()
    client.force_authenticate(root)
    made = client.post("/api/instances/", {"workflow": "test.Twofold", "value": "1"}, format="json")
    assert made.status_code == 201, made.content
    drain()

    refused = client.post("/api/instances/twofold::1/resume/", {"event": "approved"}, format="json")
    assert (refused.status_code, refused.json()["code"]) == (403, "four_eyes")
    assert "root may not decide" in refused.json()["detail"]
    for by in (root, None, "other"):
        with pytest.raises(errors.ActionNotPermitted, match="may not decide"):
            Twofold.resume("1", "approved", by=by)
    instance = Twofold.get("1").instance()
    assert snapshot.load(Twofold, snapshot.dump(instance)).started_by == instance.started_by == str(root.pk)
    client.force_authenticate(other)
    assert client.post("/api/instances/twofold::1/resume/", {"event": "approved"}, format="json").status_code == 200
