"""Django tasks: what Django asks of a backend, what ours gives beside, and tasks in workflows."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import django
import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from temporalex_django import Done, Event, GraphWorkflow, Ok, RetryPolicy, Step, Unique, Workflow, api, errors, transit
from temporalex_django import activity as activity_of
from temporalex_django.authoring import activity
from temporalex_django.conf import codec
from temporalex_django.db import activity_tasks
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.liveness.recovery import CrashVerdict, MarkedWork, _attribute_to_activity, release_orphans
from temporalex_django.management import outputs
from temporalex_django.models import (
    ActivityTask,
    Chain,
    EndedTask,
    EnqueuedTask,
    HistoryEvent,
    Instance,
    Message,
    OperatorAction,
)
from temporalex_django.operations.fleet import switches
from temporalex_django.operations.fleet.stats import queue_figures
from temporalex_django.operations.fleet.switches import SwitchOff, SwitchOn
from temporalex_django.testing import DjangoEnvironment, WorkflowEnvironment
from temporalex_django.workers.loop import run_until_idle
from tests.settings_tasks import BACKEND, TASKS
from tests.support.people import stored
from tests.support.runs import once

with override_settings(TASKS=TASKS):
    from temporalex_django.tasks import DurableBackend, results, task
    from tests.app import tasks as t

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _backends() -> Iterator[None]:
    t.RAN.clear()
    switches.TASK_ENDS._checked_at["default"] = time.monotonic()  # ends that are not kept go when a test says so
    with override_settings(TASKS=TASKS):
        yield


def status(result: Any) -> str:
    result.refresh()
    return str(result.status)


def test_enqueue_commits_with_its_transaction_and_leaves_no_run_behind() -> None:
    with transaction.atomic():
        lost = t.add.enqueue(1)
        assert t.add.get_result(lost.id).status == "READY"
        transaction.set_rollback(True)
    with pytest.raises(results.TaskResultDoesNotExist):
        t.add.get_result(lost.id)

    before = timezone.now()
    with transaction.atomic():
        result = t.add.enqueue(1, b=2)
    assert (result.status, result.args, result.kwargs, result.attempts) == ("READY", [1], {"b": 2}, 0)
    assert (result.started_at, result.finished_at, result.is_finished) == (None, None, False)
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value

    run_until_idle()

    assert t.RAN == [("add", 1, 2)]
    assert status(result) == "SUCCESSFUL"
    assert (result.return_value, result.attempts, result.errors, result.is_finished) == (3, 1, [], True)
    assert before <= result.enqueued_at <= result.started_at <= result.finished_at <= timezone.now()
    assert result.last_attempted_at == result.started_at
    again = t.add.get_result(result.id)
    assert (again, again.return_value, again.task) == (result, 3, t.add)
    with pytest.raises(Exception, match="does not match"):
        t.mail.get_result(result.id)
    for unknown in ("nothing", "00000000-0000-0000-0000-000000000000"):
        with pytest.raises(results.TaskResultDoesNotExist):
            t.add.get_result(unknown)
    for model in (ActivityTask, Chain, Instance, HistoryEvent, Message):
        assert not model.objects.exists(), model


def test_what_raises_has_failed_and_what_has_a_policy_is_tried_again() -> None:
    failed, flaky = t.fails.enqueue("no money"), t.flaky.enqueue(2)
    patient, no_json = t.fails.using(backend="patient", queue_name="default").enqueue("twice"), t.no_json.enqueue()
    wrong = t.add.enqueue("a", "b", "c")

    run_until_idle()

    assert [status(one) for one in (failed, flaky, patient, no_json, wrong)] == [
        *("FAILED", "SUCCESSFUL", "FAILED", "FAILED", "FAILED")
    ]
    (error,) = failed.errors
    assert error.exception_class is ValueError
    assert "in fails" in error.traceback and error.traceback.endswith("ValueError: no money")
    with pytest.raises(ValueError, match="failed"):
        _ = failed.return_value
    assert (flaky.attempts, flaky.return_value, len(set(flaky.worker_ids))) == (3, f"{flaky.id}:0", 1)
    assert [one.exception_class for one in flaky.errors] == [LookupError] * 2
    assert flaky.started_at < flaky.last_attempted_at <= flaky.finished_at
    assert (patient.attempts, len(patient.errors), no_json.attempts, wrong.attempts) == (2, 2, 1, 1)
    assert wrong.errors[0].exception_class is TypeError
    assert "date" in no_json.errors[0].traceback


def test_the_context_is_that_of_the_attempt() -> None:
    result = t.told.enqueue("ann")

    run_until_idle()

    assert status(result) == "SUCCESSFUL"
    assert result.return_value == [1, result.id, "RUNNING", ["ann"], "ann", True]


def test_signals_are_sent_at_their_time() -> None:
    seen: list[Any] = []

    def note(signal: Any, sender: Any, task_result: Any, **_: Any) -> None:
        name = next(n for n in ("enqueued", "started", "finished") if getattr(results, f"task_{n}") is signal)
        stored = str(task_result.task.get_result(task_result.id).status)
        seen.append((name, sender, str(task_result.status), stored, task_result.attempts, len(task_result.errors)))

    def raises(**_: Any) -> None:
        raise RuntimeError("a receiver")

    every = (results.task_enqueued, results.task_started, results.task_finished)
    for signal in every:
        signal.connect(note)
    results.task_started.connect(raises)
    try:
        t.add.enqueue(1)
        t.fails.enqueue("x")
        run_until_idle()
    finally:
        for signal in every:
            signal.disconnect(note)
        results.task_started.disconnect(raises)

    assert sorted(one for one in seen if one[0] != "finished") == [
        *[("enqueued", DurableBackend, "READY", "READY", 0, 0)] * 2,
        *[("started", DurableBackend, "RUNNING", "RUNNING", 1, 0)] * 2,
    ]
    assert sorted(one[2:] for one in seen if one[0] == "finished") == [
        ("FAILED", "FAILED", 1, 1),
        ("SUCCESSFUL", "SUCCESSFUL", 1, 0),
    ]


def test_when_and_in_which_order() -> None:
    soon = t.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(7)
    first, low, high = t.mail.using(priority=0).enqueue("zero"), t.mail.using(priority=-3).enqueue("low"), None
    high = t.mail.using(priority=100).enqueue("high")
    t.mail.enqueue("five")
    assert t.mail.get_result(high.id).task.priority == 100

    run_until_idle(queues=["default"])
    assert t.RAN == []
    run_until_idle(queues=["mail"])

    assert t.RAN == ["high", "five", "zero", "low"]
    assert [status(one) for one in (first, low, high, soon)] == [*["SUCCESSFUL"] * 3, "READY"]
    assert t.add.get_result(soon.id).task.run_after == soon.task.run_after
    EnqueuedTask.objects.update(due_at=timezone.now())
    run_until_idle()
    assert status(soon) == "SUCCESSFUL"


def test_async_twins() -> None:
    async def flow() -> Any:
        return await t.later.aenqueue(5), await t.told_later.aenqueue()

    result, context = async_to_sync(flow)()
    run_until_idle()
    async_to_sync(result.arefresh)()

    assert (result.status, result.return_value) == ("SUCCESSFUL", {"n": 5})
    assert async_to_sync(t.told_later.aget_result)(context.id).return_value == 1
    assert async_to_sync(t.later.acall)(3) == {"n": 3} and t.later.call(3) == {"n": 3}


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(TypeError, match="return JSON, and date is not JSON"):
        t.add.enqueue(timezone.now().date())
    assert t.add.enqueue(b"bytes", b=("a", 1)).args == ["bytes"]
    with pytest.raises(errors.PayloadError, match="too large|bytes"):
        t.add.enqueue("x" * 3_000_000)
    for wrong, says in (
        ({"queue_name": "other"}, "other"),
        ({"priority": 101}, "priority"),
        ({"priority": 1.5}, "whole"),
    ):
        with pytest.raises(results.InvalidTask, match=says):
            t.add.using(**wrong)
    with pytest.raises(results.InvalidTask, match="more than 0"):
        task(start_to_close=-1)(t.add.func)
    with pytest.raises(TypeError, match=r"write \.using\(run_after=\.\.\.\)"):
        task(run_after=timezone.now())
    with pytest.raises(TypeError, match="retries"):
        task(retries=3)(t.add.func)
    immediate = results.BaseTaskBackend.__module__.rsplit(".", 1)[0] + ".immediate.ImmediateBackend"
    with (
        override_settings(TASKS={"default": {"BACKEND": immediate}}),
        pytest.raises(TypeError, match=r"TASKS\['default'\] takes no max_attempts, retry: set its BACKEND"),
    ):
        task(retry=RetryPolicy(), max_attempts=3)(t.add.func)
    for options, says in (
        ({"retries": 3}, "has no 'retries'. The options are retry, retention"),
        ({"retry": {"attempts": 3}}, "has no 'attempts'"),
        ({"retry": {"max_attempts": -1}}, "max_attempts"),
        ({"retry": 5}, "must be a RetryPolicy"),
        ({"retention": -1}, "0 or more"),
        ({"retention": "long"}, "retention"),
    ):
        with pytest.raises(results.InvalidTaskBackend, match=says):
            DurableBackend("default", {"OPTIONS": options})
    own = DurableBackend(
        "default", {"OPTIONS": {"retry": RetryPolicy(max_attempts=2), "retention": timedelta(hours=1)}}
    )
    assert (own.retry.max_attempts, own.retention) == (2, 3600.0)
    assert all(getattr(own, f"supports_{what}") for what in ("defer", "async_task", "get_result", "priority"))


def test_checks_say_what_is_missing() -> None:
    named = {"default": {"BACKEND": BACKEND, "QUEUES": []}}
    assert [one.id for one in results.task_backends["default"].check()] == []
    with override_settings(TASKS=named):
        (said,) = results.task_backends["default"].check()
        assert (said.id, said.hint) == (
            "temporalex_django.W020",
            "List the queues, or run: manage.py temporalex worker --queues NAME",
        )
        if django.VERSION >= (6, 0):  # the backport's own app registers its check
            assert any(one.id == said.id for one in run_checks())


def test_ends_go_when_they_were_kept_long_enough() -> None:
    short, long = t.add.using(backend="patient").enqueue(1), t.add.enqueue(2)
    run_until_idle()
    assert (status(short), status(long)) == ("SUCCESSFUL", "SUCCESSFUL")

    switches.TASK_ENDS._checked_at.clear()
    assert switches.TASK_ENDS.has_rows("default")
    assert not switches.TASK_ENDS.delete_batch("default")
    assert not switches.TASK_ENDS.has_rows("default")

    assert [str(one.pk) for one in EndedTask.objects.all()] == [long.id]
    kept = EndedTask.objects.get()
    assert kept.keep_until == kept.finished_at + timedelta(days=7)


def listed(*arguments: str) -> str:
    out = io.StringIO()
    call_command("temporalex", "enqueued", *arguments, stdout=out)
    return out.getvalue()


def test_people_see_them(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # which makes a table fit
    ended, waiting = t.add.enqueue(1, b=41), None
    failed = t.fails.enqueue("secret")
    run_until_idle()
    waiting = t.mail.enqueue("<ann>")

    assert [json.loads(line)["status"] for line in listed("--json").splitlines()] == ["READY", "FAILED", "SUCCESSFUL"]
    assert [json.loads(line)["id"] for line in listed("--json", "--status", "READY").splitlines()] == [waiting.id]
    assert listed("--queue", "nowhere") == "no tasks\n"
    table = listed("--limit", "2")
    assert waiting.id in table and ended.id not in table and "More than 2 tasks match" in table
    assert "tests.app.tasks.fails" in listed("--task", "tests.app.tasks.fails")

    client.force_login(get_user_model().objects.create_superuser("root"))
    openly, closed = "/admin/temporalex_django/enqueuedtask/", "/admin/temporalex_django/endedtask/"
    assert b"tests.app.tasks.mail" in client.get(openly).content
    page = client.get(f"{openly}{EnqueuedTask.objects.get().pk}/change/").content.decode()
    assert waiting.id in page and "&lt;ann&gt;" in page
    shown = client.get(closed, {"status": "FAILED"}).context["cl"].result_list
    assert [row.description.task for row in shown] == ["tests.app.tasks.fails"]
    for page, query in ((closed, "status"), (closed, "backend"), (closed, "queue"), (openly, "queue")):
        assert client.get(page, {query: "\0"}).status_code == 200
        with CaptureQueriesContext(connection) as asked:
            client.get(page)
        said = [one["sql"].lower() for one in asked if "_task" in one["sql"]]
        assert said and not any("distinct" in sql or '"call"' in sql or '"options"' in sql for sql in said)
    assert "secret" in client.get(f"{closed}{failed.id}/change/").content.decode()
    assert client.get(f"{closed}{failed.id}/change/").status_code == 200  # the same read of the same person
    read = OperatorAction.objects.filter(action="view_payload").order_by("id")
    assert [(one.actor_name, one.workflow_id, one.details) for one in read] == [
        ("root", "tests.app.tasks.mail", {"task": "tests.app.tasks.mail", "id": waiting.id}),
        ("root", "tests.app.tasks.fails", {"task": "tests.app.tasks.fails", "id": failed.id}),
    ]
    looks = stored("looks", "temporalex_django.view_endedtask", "temporalex_django.view_enqueuedtask")
    looks.is_staff = True
    looks.save()
    client.force_login(looks)
    page = client.get(f"{closed}{failed.id}/change/")
    assert page.status_code == 200 and "secret" not in page.content.decode()
    assert read.count() == 2


def test_who_may_look_at_both_lists_may_list_them_in_a_shell() -> None:
    t.add.enqueue(1)
    run_until_idle()
    t.mail.enqueue("ann")
    stored("open", "temporalex_django.view_enqueuedtask")
    stored("all", "temporalex_django.view_endedtask", "temporalex_django.view_enqueuedtask")

    said = listed("--json", "--as-user", "all")
    assert [json.loads(line)["status"] for line in said.splitlines()] == ["READY", "SUCCESSFUL"]
    with pytest.raises(CommandError, match="requires the permission temporalex_django.view_endedtask\\.") as caught:
        listed("--as-user", "open")
    assert caught.value.returncode == outputs.NOT_PERMITTED


# -- tasks in workflows ------------------------------------------------------------------------------------------------


class RunsTasks(Workflow):
    name = "test.RunsDjangoTasks"

    async def run(self, args: Any) -> Any:
        total = await api.task(t.add, args, b=1)
        context = await api.task(t.told, "ann")
        later = await api.task(t.later, total)
        return Ok([total, context[0], context[2:], later])


class EnqueuesTask(Workflow):
    name = "test.EnqueuesDjangoTask"

    async def run(self, args: Any) -> Any:
        try:
            t.add.enqueue(1)
        except errors.NestingError as exc:
            return Ok(str(exc))


DONE = [42, 1, ["RUNNING", ["ann"], "ann", True], {"n": 42}]


def test_a_workflow_runs_tasks_as_activities() -> None:
    for env in (WorkflowEnvironment(), DjangoEnvironment()):
        handle = env.start(RunsTasks, 41)
        assert handle.result() == DONE
        names = [event.attributes["activity"] for event in handle.history() if event.kind == "ActivityScheduled"]
        assert names == [f"task:tests.app.tasks.{name}" for name in ("add", "told", "later")]
        env.mock(t.add, lambda a, b: 0)
        assert env.start(RunsTasks, 41).result()[0] == 0

    stored = RunsTasks.start(41)
    run_until_idle()
    assert stored.result(5) == DONE
    assert not EndedTask.objects.exists()


def test_a_task_that_was_replaced_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(factor: int) -> Any:
        def scale(x: int, factor: int = factor) -> int:
            return x * factor

        scale.__module__, scale.__qualname__ = t.__name__, "scale"
        return t.task(scale)

    double = made(2)
    monkeypatch.setattr(t, "scale", double, raising=False)
    assert double.enqueue(10) is not None
    run = once(lambda: api.task(double, 10), name="test.ReplacedTask")
    env = WorkflowEnvironment()
    assert env.start(run).result() == 20
    triple = made(3)
    monkeypatch.setattr(t, "scale", triple)

    with pytest.raises(errors.WorkflowFailed, match="name="):
        env.start(run).result()
    assert env.start(once(lambda: api.task(triple, 10), name="test.ReplacedTask")).result() == 30
    with pytest.raises(results.InvalidTask, match="name="):
        double.enqueue(10)
    assert triple.enqueue(10) is not None


def test_a_worker_imports_what_it_has_not_seen_yet(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "tasks_that_raise.py").write_text("raise RuntimeError('when it is imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(t, "by_another_name", t.add, raising=False)
    absent = ("tests.app.tasks.moved_away", "tasks_that_raise.add", "tests.app.tasks.by_another_name")
    for path in absent:
        ActivityTask.objects.filter(run_id=t.later.enqueue(1).id).update(activity=f"task:{path}")
    result = t.add.enqueue(2)
    monkeypatch.delitem(activity.registry, "task:tests.app.tasks.add", raising=False)

    run_until_idle()

    assert status(result) == "SUCCESSFUL"
    assert [*ActivityTask.objects.values_list("attempt", flat=True)] == [0] * len(absent)  # left to one that has it
    with pytest.raises(errors.ActivityNotFound, match="no Django task 'tests.app.tasks.moved_away'"):
        activity.find("task:tests.app.tasks.moved_away")
    with pytest.raises(
        errors.ActivityNotFound, match="is not a Django task in this process: decorate the function with @task"
    ):
        activity.find("task:tests.app.tasks.RAN")


def test_what_a_dead_worker_had_is_given_back_by_who_lacks_the_key_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Keyless:
        encode = staticmethod(codec().encode)

        def decode(self, data: bytes) -> Any:
            raise errors.KeyMissing("k2")

    again, once = t.add.enqueue(1), t.dies.enqueue("never begun here")
    ActivityTask.objects.update(owner=-5, attempt=1)
    storage = DjangoStorage()
    with monkeypatch.context() as lacking:
        lacking.setattr(activity_tasks, "codec", Keyless)
        release_orphans(storage)
        ActivityTask.objects.filter(run_id=again.id).update(crashes=2)
        killed = MarkedWork("task", ActivityTask.objects.get(run_id=again.id).pk)
        _attribute_to_activity(storage, CrashVerdict(killed, 3, 1.0), 0.0)  # nor does it end what it cannot read
    assert [status(again), status(once)] == ["READY", "RUNNING"]  # at most once: whether that is over, its options say

    release_orphans(storage)

    assert (status(once), once.errors[0].traceback) == (
        "FAILED",
        "WorkerLost: its worker was lost; it is not known whether it took effect",
    )
    ActivityTask.objects.update(due_at=timezone.now())
    run_until_idle()
    assert status(again) == "SUCCESSFUL"


def test_who_watches_queues_sees_those_of_tasks_before_any_worker_does() -> None:
    t.mail.enqueue("ann")

    found = {one.queue: one.due_activities for one in queue_figures()}
    assert found["mail"] == 1
    SwitchOff("queue", "mail").execute()


def test_limits_and_switches_hold_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    named = "task:tests.app.tasks.mail"
    with override_settings(TEMPORALEX={"QUEUES": {"mail": {"concurrency": 1}}}):
        for priority in (0, -3, 100):
            t.mail.using(priority=priority).enqueue(str(priority))
        run_until_idle(queues=["mail"])
        assert t.RAN == ["100", "0", "-3"]

    monkeypatch.delitem(activity.registry, named, raising=False)
    with pytest.raises(errors.ActionNotPossible, match="knows the activity"):
        SwitchOff("activity", named).execute()
    waiting = t.mail.enqueue("later")
    SwitchOff("activity", named).execute()
    run_until_idle(queues=["mail"])
    assert (status(waiting), ActivityTask.objects.get().line) == ("READY", f"a:{named}")
    SwitchOn("activity", named).execute()
    monkeypatch.delitem(activity.registry, named, raising=False)  # a worker that was started since
    run_until_idle(queues=["mail"])
    assert status(waiting) == "SUCCESSFUL"


def test_an_environment_under_the_application_runs_them_in_their_time_and_order() -> None:
    with DjangoEnvironment() as env:
        later = t.add.using(run_after=timezone.now() + timedelta(days=3)).enqueue(7)
        for priority in (0, -3, 100):
            t.mail.using(priority=priority).enqueue(str(priority))
        env.advance()
        assert (t.RAN, status(later)) == (["100", "0", "-3"], "READY")
        env.advance(days=3)
        assert (status(later), later.finished_at) == ("SUCCESSFUL", later.task.run_after)


def test_the_pause_before_another_attempt_passes_by_its_clock_too() -> None:
    pausing = replace(t.flaky, retry=RetryPolicy(max_attempts=3, initial_interval=3600.0, max_interval=36_000))
    with DjangoEnvironment() as env:
        enqueued = timezone.now()
        result = pausing.enqueue(2)
        env.advance(minutes=59)
        assert (status(result), result.attempts, t.RAN) == ("READY", 1, ["flaky"])
        env.advance(hours=2)
        assert (status(result), result.attempts) == ("READY", 2)
        env.advance(minutes=1)  # twice as long
        assert (status(result), result.finished_at - enqueued) == ("SUCCESSFUL", timedelta(hours=3))
        env.hold(t.mail)
        held = t.mail.enqueue("later")
        env.advance(days=1)
        assert status(held) == "RUNNING"
        env.complete(t.mail)
        assert status(held) == "SUCCESSFUL"


class Sums(Step):
    events = ("summed",)

    def execute(self, instance: Any, config: Any, context: Any) -> Event:
        return Event("summed", t.add.call(1, b=2))


class SumsInAGraph(GraphWorkflow):
    unique = Unique(key="sums")
    initial = Sums
    transitions = {(Sums, "summed"): Done}


@activity_of
def lone_wolf() -> None:
    """No step either."""


def test_a_task_is_no_step_of_a_graph_and_says_what_to_write() -> None:
    advice = r"is not a step: write a Step whose execute calls task\.call\(\.\.\.\) and returns an Event"
    wrong: list[dict[str, Any]] = [
        {"initial": t.add},
        {"initial": Sums, "transitions": {(Sums, "summed"): t.add}},
        {"initial": Sums, "transitions": {(Sums, "summed"): [(t.add, {"a": 1}), Done]}},
        {"initial": Sums, "transitions": {(Sums, "summed"): Done, (t.add, "done"): Done}},
    ]
    for attributes in wrong:
        with pytest.raises(errors.WorkflowDefinitionError, match=f"the Django task tests.app.tasks.add {advice}"):
            type("Wrong", (GraphWorkflow,), {"unique": Unique(key="wrong"), "transitions": {}, **attributes})
    with pytest.raises(errors.WorkflowDefinitionError, match=advice):
        transit(t.add, "done", targets=[Done])
    with pytest.raises(errors.WorkflowDefinitionError, match="the activity .*lone_wolf is not a step: write a Step"):
        transit(Sums, "summed", targets=[lone_wolf])

    env = WorkflowEnvironment()
    run = env.start(SumsInAGraph, value="1")
    assert run.instance().context.steps.sums == 3


class NoTask(Workflow):
    name = "test.NoDjangoTask"

    async def run(self, args: Any) -> Any:
        try:
            await (api.task(len) if args == "no task" else api.task(t.add, api.now()))
        except (errors.WorkflowDefinitionError, errors.PayloadError) as exc:
            return Ok(str(exc))


def test_what_is_no_task_and_what_is_no_json_is_refused_at_the_call() -> None:
    env = WorkflowEnvironment()

    assert "is not a Django task: decorate the function with @task" in env.start(NoTask, "no task").result()
    assert "datetime is not JSON: convert it" in env.start(NoTask, "no json").result()
    assert "in workflow code" in DjangoEnvironment().start(EnqueuesTask).result()
