"""One thing done to many runs: what a job is, who may, how workers go through it."""

from __future__ import annotations

import threading
import uuid
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import InterfaceError, connection
from django.db.models import F
from django.test import override_settings
from django.utils import timezone

from temporalex_django import Ok, Workflow, api, errors
from temporalex_django.db import background_hooks
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.models import BulkItem, BulkJob, Instance, OperatorAction, Worker
from temporalex_django.operations import bulk
from temporalex_django.operations.base import Actor
from temporalex_django.operations.bulk import ResumeBulk, StartBulk, StopBulk, redact_items
from temporalex_django.operations.fleet import switches
from temporalex_django.operations.read import run_filters
from temporalex_django.operations.run_lookup import find_run
from temporalex_django.operations.runs.control import Delete
from temporalex_django.operations.runs.history_action import Reset
from temporalex_django.testing import drain
from temporalex_django.workers.loop import WorkerLoop
from temporalex_django.workers.maintenance import Maintenance
from tests.support import tenants
from tests.support.client_flows import Basket
from tests.support.people import Somebody
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def baskets(*ids: str) -> list[str]:
    """Run ids."""
    made = [Basket.start(id=name).run_id for name in ids]
    drain()
    return made


def person(name: str, *codes: str) -> Any:
    user = get_user_model().objects.create_user(name)
    user.user_permissions.set(Permission.objects.filter(codename__in=codes))
    return get_user_model().objects.get(pk=user.pk)


def finished() -> None:
    """A worker goes on until there is nothing left of any job."""
    while background_hooks.run_hooks("default"):
        pass


def statuses() -> dict[str, str]:
    return dict(Instance.objects.values_list("workflow_id", "status"))


def test_a_job_does_it_to_each_run_and_says_what_became_of_it() -> None:
    runs = baskets("a", "b", "c")
    Basket.handle("b").terminate()

    job = StartBulk("terminate", runs=runs, reason="spring cleaning").execute()

    assert (job.total, job.done, job.failed, job.left, job.state) == (3, 0, 0, 3, "running")
    assert statuses() == {"a": "waiting", "b": "terminated", "c": "waiting"}  # not in the request
    finished()
    job.refresh_from_db()
    assert (job.total, job.done, job.failed, job.left, job.state) == (3, 2, 1, 0, "done")
    assert job.finished_at is not None
    assert set(statuses().values()) == {"terminated"}
    bad = BulkItem.objects.get(outcome="failed")
    assert (str(bad.run_id), bad.code) == (runs[1], "workflow_closed")
    assert "already closed" in bad.message
    audit = OperatorAction.objects.filter(action="terminate", reason="spring cleaning")
    assert audit.count() == 2
    asked = OperatorAction.objects.get(action="start_bulk")
    assert asked.details == {"job": str(job.pk), "of": "terminate", "runs": 3}


def test_workers_go_through_jobs_in_their_maintenance() -> None:
    assert background_hooks.BACKGROUND_HOOKS
    (run,) = baskets("a")
    StartBulk("terminate", runs=[run]).execute()
    maintenance = Maintenance(WorkerLoop())
    maintenance.run_pass()
    wait_for(lambda: statuses() == {"a": "terminated"})
    maintenance.background_thread.stop()


def test_signals_and_resets_are_for_many_too() -> None:
    runs = baskets("a", "b")
    StartBulk("signal", runs=runs, signal="note", payload="hello").execute()
    finished()
    drain()
    assert [len(Basket.handle(name).history()) for name in ("a", "b")] == [len(Basket.handle("a").history())] * 2
    assert "SignalReceived" in [event.kind for event in Basket.handle("b").history()]

    StartBulk("reset", runs=runs, to=1).execute()
    finished()
    assert [len(Basket.handle(name).run_ids) for name in ("a", "b")] == [2, 2]


def test_a_filter_is_a_queryset_of_runs() -> None:
    baskets("a-1", "a-2", "b-1")
    StartBulk("terminate", runs=Instance.objects.filter(workflow_id__startswith="a-")).execute()
    finished()
    assert statuses() == {"a-1": "terminated", "a-2": "terminated", "b-1": "waiting"}


def test_runs_are_ids_in_any_form_or_any_queryset_of_runs() -> None:
    runs, every = baskets("a", "b", "c"), Instance.objects.all()
    for number, (given, total) in enumerate(
        (
            (runs, 3),
            (iter(runs), 3),
            ({uuid.UUID(run) for run in runs}, 3),
            (every.values_list("pk", flat=True), 3),
            (every.order_by("-pk")[:2], 2),
            (every[2:], 1),
        )
    ):
        job = StartBulk("terminate", runs=given, token=f"t{number}").execute()  # type: ignore[arg-type]
        assert job.total == job.items.count() == total
    assert {str(item.run_id) for item in BulkItem.objects.filter(job__total=2)} == set(runs[1:])
    get_user_model().objects.create_user("ann")
    made = BulkJob.objects.count()
    for wrong, says in (
        (runs[0], "pass a list of run ids"),
        (runs[0].encode(), "pass a list of run ids"),
        ({runs[0]: 1}, "pass a list of run ids"),
        (None, "pass a list of run ids"),
        (get_user_model().objects.all(), "a queryset of User: pass a queryset of Instance"),
    ):
        with pytest.raises(TypeError, match=says):
            StartBulk("terminate", runs=wrong)  # type: ignore[arg-type]
    assert BulkJob.objects.count() == made


def test_an_id_is_for_one_fork() -> None:
    runs = baskets("a", "b")
    with pytest.raises(
        errors.ActionNotPossible, match="the input 'id' is for one run, but 2 runs are selected: leave it out"
    ):
        StartBulk("fork", runs=runs, id="c").execute()
    assert not BulkJob.objects.exists()
    for chosen, given in ((runs, {"id": ""}), (runs[:1], {"id": "c"})):
        job = StartBulk("fork", runs=chosen, **given).execute()
        finished()
        job.refresh_from_db()
        assert (job.done, job.failed) == (len(chosen), 0)
    assert Instance.objects.filter(workflow_id="c").exists()
    assert Instance.objects.filter(workflow_id__contains="-fork-").count() == 2


@override_settings(TEMPORALEX={"BULK_LIMIT": 2})
def test_there_is_a_limit() -> None:
    runs = baskets("a", "b", "c")
    for chosen in (runs, Instance.objects.all()):
        with pytest.raises(errors.ActionNotPossible, match="at most 2 runs"):
            StartBulk("terminate", runs=chosen).execute()
    assert not BulkJob.objects.exists()
    assert StartBulk("terminate", runs=runs[:2]).execute().total == 2


def test_what_cannot_be_done_is_refused_at_once() -> None:
    runs = baskets("a")
    for action in ("start", "fly", "start_bulk", None):
        with pytest.raises(errors.ActionNotPossible, match="not an operation on runs"):
            StartBulk(action, runs=runs)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        StartBulk("terminate", runs=runs, other=1)
    with pytest.raises(TypeError):
        StartBulk("signal", runs=runs, signal="note", other=1)
    with pytest.raises(errors.PayloadError):
        StartBulk("signal", runs=runs)
    with pytest.raises(errors.ActionNotPossible, match="no run"):
        StartBulk("terminate", runs=[]).execute()
    for wrong in ("a", "x", None, "00000000-0000-7000-8000-000000000000"):
        with pytest.raises(errors.WorkflowNotFound):
            StartBulk("terminate", runs=[wrong]).execute()  # type: ignore[list-item]
    assert not BulkJob.objects.exists()


def test_a_token_makes_it_one_job() -> None:
    runs, ann, bob = baskets("a"), person("ann", "bulk_actions", "terminate_instance"), person("bob")
    bob.user_permissions.set(ann.user_permissions.all())
    first = StartBulk("terminate", runs=runs, token="t", by=Actor(user=ann)).execute()
    again = StartBulk("terminate", runs=runs, token="t", by=Actor(user=ann)).execute()
    other = StartBulk("terminate", runs=runs, token="t", by=Actor(user=bob)).execute()
    assert first.pk == again.pk != other.pk
    assert StartBulk("terminate", runs=runs, token="None:t").execute().pk not in (first.pk, other.pk)
    BulkJob.objects.exclude(pk__in=(first.pk, other.pk)).delete()
    assert (BulkJob.objects.count(), BulkItem.objects.count()) == (2, 2)
    with pytest.raises(errors.InvalidId):
        StartBulk("terminate", runs=runs, token="")


def test_a_token_is_for_what_it_came_with() -> None:
    """Action, inputs, reason and runs; the moment at which a filter was asked is none of these."""
    a, b = baskets("a", "b")
    some = Instance.objects.filter(workflow_id="a")
    late = StartBulk(
        "signal", runs=run_filters.stuck_runs(Instance.objects.all()) | some, signal="note", payload=[1], token="q"
    )
    job = StartBulk("signal", runs=[b, a], signal="note", payload=1, reason="x", token="t").execute()
    for same in ([a, b], [a, b, a]):
        assert StartBulk("signal", runs=same, signal="note", payload=1, reason="x", token="t").execute().pk == job.pk
    given: dict[str, Any] = {"runs": [a, b], "signal": "note", "payload": 1, "reason": "x"}
    for other in ({"runs": [a]}, {"runs": some}, {"signal": "n"}, {"payload": 2}, {"reason": ""}):
        with pytest.raises(errors.IdempotencyKeyReused, match="token t"):
            StartBulk("signal", **{**given, **other}, token="t").execute()
    with pytest.raises(errors.IdempotencyKeyReused):
        StartBulk("terminate", runs=[a, b], reason="x", token="t").execute()

    first = late.execute()
    for hours in (0, 5):
        moment = timezone.now() - timedelta(hours=hours)
        runs = run_filters.FILTERS["created_before"](some, moment + timedelta(days=1))
        found = StartBulk("signal", runs=runs, signal="note", token="since").execute()
        assert found.total == 1
    again = run_filters.stuck_runs(Instance.objects.all()) | some
    assert StartBulk("signal", runs=again, signal="note", payload=[1], token="q").execute().pk == first.pk
    with pytest.raises(errors.IdempotencyKeyReused):
        StartBulk("signal", runs=Instance.objects.filter(workflow_id="b"), signal="note", token="since").execute()
    assert BulkJob.objects.count() == 3


def test_a_token_of_one_person_is_none_of_another() -> None:
    keys = set()
    for key, token in (("5:x", "y"), ("5", "x:y"), (None, "y"), ("", "y"), (5, "y")):
        user: Any = Somebody("ann")
        user.pk = key
        keys.add(StartBulk("terminate", runs=[], token=token, by=Actor(user=user))._token_digest)
    assert len(keys) == 5


def test_what_is_denied_for_a_run_of_a_job_is_noted() -> None:
    runs = baskets("red-1", "red-2")
    ann = person("red-ann", "bulk_actions", "terminate_instance", "reset_instance", "view_instance")
    jobs = [StartBulk("terminate", runs=runs[:1], by=Actor(user=ann, source="rest")).execute()]
    jobs.append(StartBulk("reset", runs=runs[1:], by=Actor(user=ann, source="rest"), to=1).execute())
    ann.user_permissions.clear()
    finished()
    assert {*BulkItem.objects.values_list("outcome", "code")} == {("failed", "not_permitted")}
    denied = OperatorAction.objects.filter(denied=True).order_by("workflow_id")
    assert [*denied.values_list("action", "workflow_id", "actor_name", "source")] == [
        ("terminate", "red-1", "red-ann", "rest"), ("reset", "red-2", "red-ann", "rest"),
    ]  # fmt: skip


def test_who_lost_sight_of_a_run_is_told_nothing_about_it() -> None:
    runs, ann = baskets("red-1", "red-2"), person("red-ann", "bulk_actions", "terminate_instance", "view_instance")
    Basket.handle("red-1").terminate()
    Basket.handle("red-2").terminate()
    job = StartBulk("terminate", runs=runs, by=Actor(user=ann)).execute()
    finished()
    items = BulkItem.objects.filter(job=job).order_by("pk")

    def told(user: Any, **more: Any) -> list[bool]:
        return [bool(one.message) for one in redact_items(items.all(), user, alias="default", **more)]

    assert told(None) == told(ann) == [True, True]
    items.update(code="payload")  # whose words may quote some
    assert [one.message for one in redact_items(items, None, alias="default")] == [one.message for one in items]
    assert {one.message[:7] for one in redact_items(items.all(), ann, alias="default")} == {"hidden:"}
    items.update(code="workflow_closed")
    assert told(person("bob", "bulk_actions")) == [False, False]
    assert told(ann, is_admitted=lambda run: run.workflow_id == "red-2") == [True, False]  # newest first
    assert told(ann, visible_runs=Instance.objects.filter(workflow_id="red-1")) == [False, True]
    with override_settings(TEMPORALEX={"ACCESS_POLICY": tenants.POLICY}):
        assert told(ann) == [True, True]
        assert told(person("blue-eve", "view_instance")) == [False, False]
        Basket.handle("red-2").delete()
        assert told(ann) == [False, True]
    assert told(ann) == [True, True]  # it is gone, and nobody's


def test_a_superuser_has_the_jobs_of_those_whose_runs_he_has() -> None:
    runs = baskets("red-1", "blue-1")
    bob = person("blue-bob", "bulk_actions", "terminate_instance")
    root = get_user_model().objects.create_superuser("red-root")
    job = StartBulk("terminate", runs=runs[1:], by=Actor(user=bob)).execute()
    assert [*bulk.jobs_for(root, alias="default")] == [job]
    with override_settings(TEMPORALEX={"ACCESS_POLICY": tenants.POLICY}):
        assert not bulk.jobs_for(root, alias="default").exists()
        with pytest.raises(errors.WorkflowNotFound):
            StopBulk(job.pk, by=Actor(user=root)).execute()
        own = StartBulk("terminate", runs=runs[:1], by=Actor(user=root)).execute()
        assert [*bulk.jobs_for(root, alias="default")] == [own]
    assert bulk.jobs_for(None, alias="default").count() == 2


def test_who_may() -> None:
    runs = baskets("red-1", "blue-1")
    only_bulk, only_end = person("red-a", "bulk_actions"), person("red-b", "terminate_instance")
    both = person("red-c", "bulk_actions", "terminate_instance", "view_instance")
    blind = person("red-d", "bulk_actions", "terminate_instance")
    for filtered in (Instance.objects.all(), Instance.objects.none()):  # how many there are is not told either
        with pytest.raises(errors.ActionNotPermitted, match="view_instance"):
            StartBulk("terminate", runs=filtered, by=Actor(user=blind)).execute()
    for user, lacks in ((only_bulk, "terminate_instance"), (only_end, "bulk_actions")):
        with pytest.raises(errors.ActionNotPermitted, match=lacks):
            StartBulk("terminate", runs=runs, by=Actor(user=user)).execute()
    with override_settings(TEMPORALEX={"ACCESS_POLICY": tenants.POLICY}):
        with pytest.raises(errors.WorkflowNotFound):
            StartBulk("terminate", runs=runs, by=Actor(user=both)).execute()
        job = StartBulk("terminate", runs=Instance.objects.all(), by=Actor(user=both)).execute()
        assert job.total == 1
        for action in (StopBulk, ResumeBulk):
            with pytest.raises(errors.WorkflowNotFound):
                action(job.pk, by=Actor(user=person(f"red-{action.name}", "bulk_actions"))).execute()
            with pytest.raises(errors.ActionNotPermitted):
                action(job.pk, by=Actor(user=only_end)).execute()
        both.user_permissions.clear()  # since
        finished()
    job.refresh_from_db()
    assert (job.done, job.failed) == (0, 1)
    assert BulkItem.objects.get().code == "not_permitted"
    assert statuses() == {"red-1": "waiting", "blue-1": "waiting"}


def test_what_a_job_does_leads_back_to_it_and_to_its_request() -> None:
    runs, ann = baskets("a", "b"), person("ann", "bulk_actions", "terminate_instance", "signal_instance")
    by = Actor(user=ann, source="rest", address="10.0.0.7", request_id="req-7", program=True)
    signals = StartBulk("signal", runs=runs[:1], signal="note", by=by).execute()
    ends = StartBulk("terminate", runs=runs, by=by).execute()
    assert bulk._run_next_item(signals.pk, DjangoStorage())
    assert bulk._run_next_item(ends.pk, DjangoStorage())
    ann.user_permissions.clear()
    finished()

    found = OperatorAction.objects.exclude(action="start_bulk").order_by("pk")
    assert [(one.action, one.denied, one.automatic, one.details.get("job")) for one in found] == [
        ("signal", False, True, str(signals.pk)),  # as a program sends it by itself
        ("terminate", False, False, str(ends.pk)),
        ("terminate", True, False, str(ends.pk)),
    ]
    asked = {(one.actor_id, one.source, one.address, one.request_id) for one in OperatorAction.objects.all()}
    assert asked == {(ann.pk, "rest", "10.0.0.7", "req-7")}


def test_nothing_is_done_for_somebody_who_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    """Also when his row went without Django."""
    runs, users = baskets("a"), get_user_model().objects
    for raw in (False, True):
        job = StartBulk("terminate", runs=runs, by=Actor(user=users.create_superuser("ann"))).execute()
        if raw:
            with connection.cursor() as cursor:
                cursor.execute(f"delete from {users.model._meta.db_table}")
        else:
            users.all().delete()
        finished()
        item = job.items.get()
        assert (item.outcome, item.code, item.message) == ("failed", "not_permitted", "the user ann no longer exists")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_jobs_that_are_done_are_kept_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = baskets("a", "b", "c")
    old, young, stopped, running = (StartBulk("terminate", runs=runs, token=str(n)).execute() for n in range(4))
    for job, state, by in (
        (old, "done", timedelta(seconds=1)),
        (young, "done", -timedelta(minutes=5)),
        (stopped, "stopped", None),
        (running, "running", None),
    ):
        at = None if by is None else DjangoStorage().now() - switches.JOB_RETENTION - by
        BulkJob.objects.filter(pk=job.pk).update(
            state=state, finished_at=at, created_at=F("created_at") - timedelta(days=99)
        )
    monkeypatch.setattr(switches, "_BATCH_SIZE", 2)
    switches.JOBS._checked_at.clear()

    assert switches.JOBS.has_rows("default")
    assert not switches.JOBS.has_rows("default")  # it was asked a moment ago
    assert switches.JOBS.delete_batch("default")
    assert old.items.count() == 1
    finished()

    assert set(BulkJob.objects.values_list("pk", flat=True)) == {young.pk, stopped.pk, running.pk}
    assert set(BulkItem.objects.values_list("job_id", flat=True)) == {young.pk, stopped.pk, running.pk}
    switches.JOBS._checked_at.clear()
    assert not switches.JOBS.has_rows("default")
    assert StartBulk("terminate", runs=runs, token="0").execute().pk not in (old.pk, young.pk)
    assert OperatorAction.objects.filter(action="start_bulk").count() == 5


@pytest.mark.parametrize("slow", [False, True])
def test_no_job_waits_for_another_one_to_be_through(slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when one run takes all the time that there is for jobs."""
    runs = baskets("a", "b", "c", "d", "e")
    jobs = [StartBulk("terminate", runs=chosen).execute().pk for chosen in (runs[:2], runs[2:4], runs[4:])]
    made, clock, turns = bulk.build_action, SimpleNamespace(now=0.0, monotonic=lambda: clock.now), []

    def noting(job: Any, item: int, target: Any, by: Any) -> Any:
        turns.append(jobs.index(job.pk))
        clock.now += slow
        return made(job, item, target, by)

    monkeypatch.setattr(bulk, "build_action", noting)
    monkeypatch.setattr(bulk, "time", clock)
    monkeypatch.setattr(bulk, "_last_job", {})
    finished()
    assert turns == [0, 1, 2, 0, 1]
    assert set(BulkJob.objects.values_list("state", flat=True)) == {"done"}


def test_a_job_is_stopped_and_resumed() -> None:
    job = StartBulk("terminate", runs=baskets("a", "b")).execute()
    assert bulk._run_next_item(job.pk, DjangoStorage())
    assert StopBulk(job.pk).execute().state == "stopped"
    finished()
    job.refresh_from_db()
    assert (job.done, job.left) == (1, 1)
    with pytest.raises(errors.ActionNotPossible, match="Stopped"):
        StopBulk(job.pk).execute()
    assert ResumeBulk(str(job.pk)).execute().state == "running"
    finished()
    job.refresh_from_db()
    assert (job.done, job.state) == (2, "done")
    with pytest.raises(errors.ActionNotPossible, match="Done"):
        ResumeBulk(job.pk).execute()
    for wrong in ("x", None, "00000000-0000-7000-8000-000000000000"):
        with pytest.raises(errors.WorkflowNotFound):
            StopBulk(wrong).execute()  # type: ignore[arg-type]


def test_what_was_done_already_is_counted_apart() -> None:
    """Only what a job finds in the wanted state is done already; a run that ended differently is not."""
    runs = baskets("paused", "open", "cancelled", "deleted", "terminated")
    Basket.handle("paused").pause()
    for name in ("deleted", "terminated"):
        Basket.handle(name).terminate()
    Basket.handle("cancelled").cancel()
    drain()
    delete = StartBulk("delete", runs=[runs[3]]).execute()
    Delete(find_run(runs[3], storage=DjangoStorage("default"))).execute()
    jobs = {
        name: StartBulk(name, runs=chosen).execute()
        for name, chosen in (
            ("cancel", runs[2:3] + runs[4:]), ("terminate", runs[2:3] + runs[4:]),
            ("pause", runs[:1] + runs[4:]), ("unpause", runs[1:2]),
        )
    }  # fmt: skip
    finished()
    counted = {name: BulkJob.objects.get(pk=job.pk) for name, job in [*jobs.items(), ("delete", delete)]}
    assert {name: (job.done, job.already_done, job.not_possible) for name, job in counted.items()} == {
        "cancel": (0, 1, 1), "terminate": (0, 1, 1), "pause": (0, 1, 1), "unpause": (0, 1, 0), "delete": (0, 1, 0),
    }  # fmt: skip


def test_a_worker_that_is_killed_leaves_nothing_half_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it was doing is rolled back with its note; another one does it, once."""
    job = StartBulk("terminate", runs=baskets("a", "b")).execute()
    before = OperatorAction.objects.count()
    with monkeypatch.context() as patched:
        patched.setattr(BulkItem, "save", _dies)
        with pytest.raises(SystemExit):
            bulk.run_jobs("default")
    assert set(statuses().values()) == {"waiting"}
    assert OperatorAction.objects.count() == before
    finished()
    job.refresh_from_db()
    assert (job.done, job.failed) == (2, 0)
    assert OperatorAction.objects.filter(action="terminate").count() == 2


def _dies(*args: Any, **options: Any) -> None:
    raise SystemExit


def test_what_is_wrong_with_one_run_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = baskets("a", "b")
    job = StartBulk("terminate", runs=runs).execute()
    made = bulk.build_action

    def broken(job: Any, item: int, target: Any, by: Any) -> Any:
        if target.workflow_id == "b":
            raise ZeroDivisionError("secret")
        return made(job, item, target, by)

    monkeypatch.setattr(bulk, "build_action", broken)
    finished()
    job.refresh_from_db()
    assert (job.done, job.failed, job.state) == (1, 1, "done")
    bad = BulkItem.objects.get(outcome="failed")
    assert (bad.code, bad.message) == ("internal", "ZeroDivisionError")


def test_a_run_that_is_busy_is_tried_behind_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    job = StartBulk("terminate", runs=baskets("a", "b")).execute()
    made, asked = bulk.build_action, []

    def busy(job: Any, item: int, target: Any, by: Any) -> Any:
        asked.append(target.workflow_id)
        if target.workflow_id == "b":
            raise errors.UpdateTimeout("busy", code="busy")
        return made(job, item, target, by)

    monkeypatch.setattr(bulk, "build_action", busy)
    finished()
    job.refresh_from_db()
    assert asked == ["b", "a", "b", "b", "b", "b"]
    assert (job.done, job.failed) == (1, 1)
    assert BulkItem.objects.get(outcome="failed").code == "busy"


# -- code of runs that is replayed -------------------------------------------------------------------------------------


def test_nobody_waits_for_the_code_of_a_run_that_is_replayed_for_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """But the job: its worker beats, other jobs go on, and so does the run."""
    runs = baskets("a", "b")
    slow = StartBulk("reset", runs=runs[:1], to=1).execute()
    other = StartBulk("terminate", runs=runs[1:]).execute()
    begun, go, rehearse = threading.Event(), threading.Event(), Reset.check_replay

    def long(action: Reset) -> None:
        begun.set()
        assert go.wait(60)
        rehearse(action)

    monkeypatch.setattr(Reset, "check_replay", long)
    loop = WorkerLoop()
    maintenance = Maintenance(loop)
    maintenance.register()
    try:
        maintenance.run_pass()
        assert begun.wait(60)
        maintenance._heartbeat_at = 0.0
        before = Worker.objects.get().beat_at
        maintenance.run_pass()
        assert Worker.objects.get().beat_at > before
        finished()  # another worker
        Basket.handle("a").signal("note", "hello")
        drain()
        states = dict(BulkJob.objects.values_list("pk", "state"))
        assert (states[slow.pk], states[other.pk]) == ("running", "done")
        assert "SignalReceived" in [event.kind for event in Basket.handle("a").history()]
        assert statuses()["b"] == "terminated"
    finally:
        go.set()
        wait_for(lambda: BulkJob.objects.get(pk=slow.pk).state == "done")
        maintenance.stop()
        loop.marker.close()
    slow.refresh_from_db()
    assert (slow.done, slow.failed, len(Basket.handle("a").run_ids)) == (1, 0, 2)


def let_go() -> None:
    """The time of whoever has the job is over."""
    BulkJob.objects.update(held_until=DjangoStorage().now())


def test_a_job_goes_on_behind_a_run_whose_code_three_workers_died_of(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = baskets("a", "b")
    job = StartBulk("reset", runs=runs, to=1).execute()
    rehearse, tried = Reset.check_replay, []

    def deadly(action: Reset) -> None:
        if action._replay_check is None:
            tried.append(action.target.workflow_id)
        _dies() if tried[-1] == "b" else rehearse(action)

    monkeypatch.setattr(Reset, "check_replay", deadly)
    for deaths in (1, 2, 3):
        with pytest.raises(SystemExit):
            bulk.run_jobs("default")
        assert not bulk.run_jobs("default")  # nobody knows yet that it died
        assert [item.crashes for item in BulkItem.objects.order_by("pk")] == [deaths, 0]
        let_go()
    finished()

    assert tried == ["b", "b", "b", "a"]
    job.refresh_from_db()
    assert (job.done, job.failed, job.state, job.held_until) == (1, 1, "done", None)
    bad = BulkItem.objects.get(outcome="failed")
    assert (bad.code, bad.message) == ("crash", "3 workers died while they replayed the run")
    assert [len(Basket.handle(name).run_ids) for name in ("a", "b")] == [2, 1]


@pytest.mark.parametrize("meanwhile", ["stopped", "taken for dead"])
def test_what_comes_too_late_of_a_replay_is_not_done(meanwhile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job = StartBulk("reset", runs=baskets("a"), to=1).execute()
    rehearse, met = Reset.check_replay, []

    def late(action: Reset) -> None:
        rehearse(action)
        if met:
            return
        met.append(action)
        if meanwhile == "stopped":
            StopBulk(job.pk).execute()
        else:
            let_go()
            assert bulk._run_next_item(job.pk, DjangoStorage())

    monkeypatch.setattr(Reset, "check_replay", late)
    finished()
    job.refresh_from_db()
    did = meanwhile != "stopped"
    assert (job.done, job.failed, job.held_until) == (int(did), 0, None)
    assert len(Basket.handle("a").run_ids) == 1 + did
    if not did:
        assert BulkItem.objects.get().crashes == 0
        ResumeBulk(job.pk).execute()
        finished()
        assert len(Basket.handle("a").run_ids) == 2


def test_a_database_that_does_not_answer_is_no_death(monkeypatch: pytest.MonkeyPatch) -> None:
    job = StartBulk("reset", runs=baskets("a"), to=1).execute()
    with monkeypatch.context() as patched:
        patched.setattr(Reset, "check_replay", _away)
        for _ in range(4):
            with pytest.raises(InterfaceError):
                bulk.run_jobs("default")
            assert (BulkItem.objects.get().crashes, BulkJob.objects.get().held_until) == (0, None)
    finished()
    job.refresh_from_db()
    assert (job.done, job.failed) == (1, 0)


def _away(_: Any) -> None:
    raise InterfaceError("connection already closed")


class LoopsWhenReplayed(Workflow):
    name = "test.LoopsWhenReplayed"
    loops = False

    async def run(self, args: Any) -> Any:
        while self.loops:
            pass
        return Ok(await api.wait_for_signal("go"))


@override_settings(TEMPORALEX={"DEADLOCK_TIMEOUT": 0.2})
def test_code_that_never_ends_is_interrupted_and_its_run_has_that_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [LoopsWhenReplayed.start(id="loops").run_id, *baskets("a")]
    monkeypatch.setattr(LoopsWhenReplayed, "loops", True)
    job = StartBulk("reset", runs=runs, to=1).execute()
    finished()
    job.refresh_from_db()
    assert (job.done, job.failed, job.state) == (1, 1, "done")
    bad = BulkItem.objects.get(outcome="failed")
    assert (str(bad.run_id), bad.code, bad.crashes) == (runs[0], "not_possible", 0)
    assert "DeadlockDetected" in bad.message
