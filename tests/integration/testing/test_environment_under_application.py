"""A ``DjangoEnvironment`` under an application: its runs, its clock, its commit points, its people."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.test import override_settings
from django.utils import timezone
from rest_framework.test import APIClient

from temporalex_django import (
    Approval,
    Async,
    Done,
    GraphWorkflow,
    NoReply,
    Ok,
    RetryPolicy,
    Unique,
    Workflow,
    activity,
    api,
    errors,
)
from temporalex_django import signals as told
from temporalex_django.access import AccessPolicy
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.models import HumanTask, Instance
from temporalex_django.operations.base import Actor
from temporalex_django.operations.bulk import StartBulk
from temporalex_django.operations.fleet.switches import SwitchOff, SwitchOn
from temporalex_django.operations.human_tasks.operations import Claim
from temporalex_django.testing import (
    DjangoEnvironment,
    WorkflowEnvironment,
    assert_blocked,
    assert_cancelled,
    assert_completed,
    assert_failed,
    assert_waiting_for,
)
from temporalex_django.testing.pytest_plugin import django_environment, workflow_environment  # noqa: F401 - fixtures
from tests.support.people import stored

pytestmark = pytest.mark.django_db

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
default = timezone.now  # as a model's default has it
after_commit: list[str] = []
HEARD = ("instance_started", "instance_completed", "update_completed", "activity_started", "activity_completed")


@activity(retry=RetryPolicy(max_attempts=2, initial_interval=60))
def post_parcel(name: str) -> str:
    transaction.on_commit(lambda: after_commit.append(f"parcel {name}"))
    with transaction.atomic(durable=True):  # an external activity is in no transaction
        Group.objects.create(name=f"parcel {name}")
    return f"{name} at {default().isoformat()}"


@activity(atomic=True, retry=RetryPolicy(max_attempts=2))
def book_parcel(name: str) -> None:
    transaction.on_commit(lambda: after_commit.append(f"booking {name}"))
    Group.objects.create(name=f"booking {name}")
    if name == "refused":
        raise ValueError(name)


async def send(name: Any) -> Any:
    sent = await post_parcel(name)
    return await api.update_state(lambda state: (sent, {**state, "sent": [*state["sent"], sent]}))


class Depot(Workflow):
    name = "test.EnvironmentDepot"

    async def run(self, args: Any) -> Any:
        await api.sleep(timedelta(days=args["days"]), then="the opening")
        api.publish_state(args["days"])
        state = await api.phase(
            {"sent": [], "notes": []},
            update={"send": lambda name, state: Async(partial(send, name), state)},
            signal={"note": lambda text, state: NoReply({**state, "notes": [*state["notes"], text]})},
            timeout=timedelta(days=30),
            label="the closing",
        )
        await book_parcel(args.get("last", "all"))
        return Ok(getattr(state, "state", state))


class Fickle(Workflow):
    name = "test.EnvironmentFickle"

    async def run(self, args: Any) -> Any:
        timezone.now()
        return Ok(1)


class Asked(Workflow):
    name = "test.EnvironmentAsked"

    async def run(self, args: Any) -> Any:
        return Ok((await api.approval("Sign it", groups=["signers"], users=["bob"])).by.name)


signed = Approval(role="signers")


class Signed(GraphWorkflow):
    name = "test.EnvironmentSigned"
    unique = Unique(key="signed")
    initial = signed
    transitions = {(signed, "approved"): Done, (signed, "rejected"): Done}


@pytest.fixture
def env() -> Iterator[DjangoEnvironment]:
    after_commit.clear()
    with DjangoEnvironment() as env:
        yield env


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """Names of the signals that were sent."""
    found: list[str] = []
    for name in HEARD:
        told.ALL[name].connect(lambda heard_as=name, **about: found.append(heard_as), weak=False, dispatch_uid="heard")
    yield found
    for name in HEARD:
        told.ALL[name].disconnect(dispatch_uid="heard")


def names(heard: list[str]) -> list[str]:
    taken = [*heard]
    heard.clear()
    return taken


def test_runs_that_the_application_starts_live_by_the_virtual_clock(env: Any, heard: Any) -> None:
    ann = User.objects.create(username="ann")
    assert ann.date_joined == timezone.now() == default() == EPOCH
    with transaction.atomic():
        run = Depot.start({"days": 30}, id="depot-1", subject=ann)
        with transaction.atomic():
            Depot.start({"days": 1}, id="depot-2")
            transaction.set_rollback(True)
    assert run.status == "pending" and names(heard) == []
    with pytest.raises(AssertionError, match="no worker has picked it up yet: call env.advance"):
        assert_waiting_for(run, timer="the opening")

    env.advance()
    assert names(heard) == ["instance_started"]
    assert_waiting_for(run, timer="the opening", until=EPOCH + 30 * DAY)
    assert_waiting_for(env.handle("depot-1"), timer="the opening")
    assert run.describe().waiting_for == ["timer 2026-01-31T00:00:00+00:00"]
    env.advance(days=29, hours=23)
    assert run.query("__accepts") == {"signals": [], "updates": []}
    env.advance(hours=1)
    assert_waiting_for(run, timer="the closing", update="send", signal="note")
    assert Instance.objects.for_subject(ann).get().published_state == 30
    assert [one.id for one in Depot.list(created_after=EPOCH, created_before=EPOCH + DAY, waits="message")] == [
        "depot-1"
    ]
    assert [*Depot.list(created_after=EPOCH + DAY)] == []

    names(heard)
    assert run.update("send", "a") == "a at 2026-01-31T00:00:00+00:00"  # its handler awaits an activity
    assert names(heard) == ["activity_started", "activity_completed", "update_completed"]
    assert after_commit == ["parcel a"]
    with transaction.atomic(), pytest.raises(errors.UpdateTimeout, match="when the transaction commits") as late:
        run.update("send", "b")
    env.advance()
    assert run.update("send", "?", id=late.value.update_id) == "b at 2026-01-31T00:00:00+00:00"
    run.signal("note", "closing soon")
    with pytest.raises(errors.ResultTimeout):
        run.result()  # the environment does what is due, and nothing waits in real time
    env.advance(days=30)
    assert run.result()["notes"] == ["closing soon"]
    assert_completed(run)
    assert after_commit == ["parcel a", "parcel b", "booking all"]
    assert {"activity_completed", "instance_completed"} <= {*names(heard)}
    assert run.describe().closed_at == EPOCH + 60 * DAY


def test_what_is_rolled_back_is_not_told(env: Any) -> None:
    run = env.start(Depot, {"days": 0, "last": "refused"}, id="depot-3")
    env.advance(days=60)
    assert_failed(run, type="ActivityFailure", match="refused")
    assert after_commit == [] and not Group.objects.filter(name="booking refused").exists()


def test_the_faces_find_it_too(env: Any, client: Any) -> None:
    """REST with DRF's own client, and the admin."""
    api_client = APIClient()
    boss = User.objects.create_superuser("boss")
    api_client.force_authenticate(boss)
    started = api_client.post(
        "/api/instances/", {"workflow": Depot.name, "args": {"days": 1}, "id": "depot-4"}, format="json"
    )
    assert started.status_code == 201, started.content
    env.advance(days=1)
    said = api_client.post("/api/instances/depot-4/updates/send/", {"args": "c"}, format="json")
    assert said.json()["result"] == "c at 2026-01-02T00:00:00+00:00", said.content
    client.force_login(boss)
    page = client.get(f"/admin/temporalex_django/instance/console/runs/{Instance.objects.get().pk}/")
    assert page.status_code == 200 and b"send" in page.content


def test_everybody_is_judged_as_in_production(env: Any) -> None:
    bob, eve = stored("bob"), stored("eve")
    dora = stored("dora", "temporalex_django.view_instance")
    for user in (bob, dora):
        user.groups.add(Group.objects.get_or_create(name="signers")[0])
    mine, other = env.start(Asked, id="asked-1"), Asked.start({}, id="asked-2")
    env.advance()
    assert_waiting_for(other, human_task="Sign it")
    assert [task.title for task in mine.human_tasks(by=bob)] == ["Sign it"]  # a candidate needs no permission to look
    assert mine.human_tasks(by=eve) == other.human_tasks(by=eve) == []
    for run in (mine, other):
        with pytest.raises(errors.ActionNotPermitted, match="eve"):
            run.decide("approved", by=eve)
        with pytest.raises(errors.ActionNotPermitted):
            run.cancel(by=bob)
    with override_settings(TEMPORALEX={"ACCESS_POLICY": f"{__name__}.Nothing"}):
        for call in (mine.describe, lambda by: mine.signal("note", by=by)):
            with pytest.raises(errors.WorkflowNotFound):
                call(by=dora)
        assert env.list(Asked, by=dora) == []
    assert len(env.list(Asked, by=dora)) == 2
    mine.decide("approved", by=bob)
    assert_completed(mine, "bob")
    other.cancel()
    env.advance()
    assert_cancelled(other)

    for graph in (env.start(Signed, value="1"), Signed.start("2", {})):
        env.advance()
        assert_waiting_for(graph, step="approval", event="approved")
        Claim(HumanTask.objects.get(workflow_id=graph.id), by=Actor(user=bob)).execute()
        for who, error in (
            (eve, errors.ActionNotPermitted),
            (None, errors.ActionNotPermitted),
            (dora, errors.HumanTaskClaimed),
        ):
            with pytest.raises(error):
                graph.resume("approved", by=who)
        assert graph.describe().status == "waiting"
        graph.resume("approved", by=bob)
        env.advance()
        assert_completed(graph)


class Nothing(AccessPolicy):
    """There are no runs for anybody."""

    def narrow(self, user: Any, runs: Any) -> Any:
        return runs.none()


def test_it_is_gone_when_it_is_left(env: Any) -> None:
    with pytest.raises(errors.TemporalexError, match="already entered"), DjangoEnvironment():
        pass
    fickle = Fickle.start({}, id="fickle-1")
    env.advance()
    assert_failed(fickle, type="DeterminismViolation", match="timezone.now in workflow code")
    with pytest.raises(AssertionError, match="is not blocked; it is closed"):
        assert_blocked(fickle)
    with pytest.raises(AssertionError, match=r"is not completed; it is closed: failed, .*timezone.now"):
        assert_completed(fickle)
    env.__exit__()
    assert DjangoStorage().clock is None
    assert default() > EPOCH + DAY
    with DjangoEnvironment(now=EPOCH + DAY):
        assert timezone.now() == EPOCH + DAY


@async_to_sync
async def twins(env: Any) -> None:
    run = await env.astart(Depot, {"days": 1})
    await env.aadvance(days=1)
    await run.asignal("note", "hello")
    assert (await run.adescribe()).accepts == {"signals": ["note"], "updates": ["send"]}


def test_the_fixtures(django_environment: Any, workflow_environment: Any) -> None:  # noqa: F811
    twins(workflow_environment)
    twins(django_environment)
    with pytest.raises(errors.NotConfigured, match="no subject"):
        WorkflowEnvironment().start(Depot, {"days": 1}, subject=User())
    with pytest.raises(errors.PayloadError, match="saved model instance"):
        django_environment.start(Depot, {"days": 1}, subject=User())
    ann = User.objects.create(username="ann")
    django_environment.signal_with_start(Depot, "note", "hello", {"days": 1}, id="depot-5", subject=ann)
    assert Instance.objects.for_subject(ann).get().workflow_id == "depot-5"
    with pytest.raises(errors.TemporalexError, match="TransactionTestCase"), django_environment.worker():
        pass
    for wrong in ({"days": -1}, {"duration": -1}):
        with pytest.raises(ValueError, match="negative"):
            django_environment.advance(**wrong)
    with pytest.raises(TypeError, match="pass at least one of"):
        assert_waiting_for(django_environment.start(Asked))


class Courier(Workflow):
    """Posts one parcel."""

    name = "test.EnvironmentCourier"
    task_queue = "courier"

    async def run(self, name: str) -> Ok[Any]:
        return Ok(await post_parcel(name))


@pytest.mark.parametrize(("kind", "named"), [("queue", "courier"), ("workflow", Courier.name), ("activity", None)])
def test_it_honours_switches(kind: str, named: str | None) -> None:
    """Nothing goes on that is off, and all of it goes on once it is on again."""
    name = named or post_parcel.name
    with DjangoEnvironment() as env:
        env.mock(post_parcel, lambda parcel: parcel.upper())
        SwitchOff(kind, name, reason="the road is closed").execute()
        run = Courier.start("vase", id="courier")
        env.advance(hours=1)
        assert run.describe().status != "completed"
        SwitchOn(kind, name).execute()
        env.advance(hours=1)
        assert run.result() == "VASE"


def test_it_works_through_bulk_jobs() -> None:
    with DjangoEnvironment() as env:
        env.hold(post_parcel)
        runs = [Courier.start("vase", id=f"courier-{n}").run_id for n in range(3)]
        env.work()
        job = StartBulk("terminate", runs=runs, reason="the road is closed").execute()
        env.work()
        job.refresh_from_db()
        assert (job.state, job.done, job.failed) == ("done", 3, 0)
        assert {run.status for run in Instance.objects.all()} == {"terminated"}


def test_a_fork_is_about_the_object_of_its_origin() -> None:
    vase = Group.objects.create(name="vases")
    env = DjangoEnvironment()
    env.hold(post_parcel)
    fork = env.start(Courier, "vase", id="courier", subject=vase).fork(1)
    assert {run.workflow_id for run in Instance.objects.for_subject(vase)} == {"courier", fork.id}
