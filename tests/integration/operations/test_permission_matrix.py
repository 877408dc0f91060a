"""The permission matrix: every operation, of every face, by everybody who could ask for it.

Each table below has one row for each entry of a registry: the methods of handles and of the backend that take ``by=``,
the operations of ``operations.registry``, the routes of REST, the pages of the admin, the subcommands with
``--as-user``. Who adds such an entry adds its row, one line; for what operators do (``registry.STEERING``) one in
``STEERED``, which is for all faces but code, and one for its method in ``CODE``::

    "pause": Row(("pause_instance",), dict),
    "pause": Row(("pause_instance",), lambda call, by: call("why", by=by)),

The permissions that it takes come first; then what does it, with what stands above each table; then which run it needs
(``run=``, a key of ``matrix.RUNS``) and whether it is about one run at all (``of_run=False``). Each row is tried by
five: anonymous, without a permission, who may look at runs only, with the permissions of the row alone, and of another
tenant with all permissions there are. Who may not is refused in the way of the face, and nothing has changed; to the
other tenant a run is not found (404, not 403). ``make test`` tries all five for code. For the others it does so with
the first row of each kind of permission, and has somebody without a permission try each row.
"""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
from asgiref.sync import async_to_sync
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.core.management import CommandError
from django.core.management.base import CommandParser
from django.test import RequestFactory, override_settings
from django.urls import URLResolver
from django.utils import timezone

from temporalex_django import WorkflowHandle, errors
from temporalex_django.authoring.requests import StartRequest
from temporalex_django.client import DatabaseBackend
from temporalex_django.management.commands.temporalex import Command
from temporalex_django.management.run_commands import COMMANDS as SHELL_STEERING
from temporalex_django.models import BulkJob, EnqueuedTask, HumanTask, Instance, OperatorAction, SwitchedOff
from temporalex_django.operations import audit
from temporalex_django.operations.base import Actor, storage
from temporalex_django.operations.bulk import ResumeBulk, StartBulk, StopBulk
from temporalex_django.operations.fleet.switches import DrainWorker, SwitchOff, SwitchOn, UndrainWorker
from temporalex_django.operations.human_tasks.operations import Claim, Decide, Delegate, Release
from temporalex_django.operations.registry import ACTIONS, STEERING
from temporalex_django.operations.run_lookup import find_run
from temporalex_django.operations.runs.control import Move, RunDue
from temporalex_django.operations.runs.history_action import CompareInputs
from temporalex_django.operations.runs.messages import Query, SendSignal, SignalWithStart
from temporalex_django.operations.runs.resume import Resume
from temporalex_django.operations.runs.start import Start
from temporalex_django.operations.runs.update import SendUpdate
from temporalex_django.rest import urls
from tests.settings import FOLDER
from tests.support import matrix_rows
from tests.support.client_flows import Basket
from tests.support.matrix import (
    ASKING,
    NOWHERE,
    POLICY,
    Row,
    api,
    browser,
    cases,
    command,
    console_pages,
    django_tasks,
    filled,
    objects,
    patterns,
    standing,
    token,
    whole,
    worker,
    written,
)

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.once,
    pytest.mark.usefixtures("_tenants", "unhurried"),
]

LOOK, SEE = ("view_instance",), ("view_instance", "view_payload")
#: What another input takes besides; a row with it has a name of its own, which ends with "edited".
EDIT, FORK = ("edit_activity_input", "view_payload"), ("reset_instance", "start_instance")


@pytest.fixture
def _tenants() -> Iterator[None]:
    with override_settings(TEMPORALEX={"ACCESS_POLICY": POLICY}):
        yield


# -- code ------------------------------------------------------------------------------------------------------------


def new_basket(by: Any) -> StartRequest:
    return StartRequest(workflow=Basket, id="red-2", by=by)


#: Methods of handles and of the backend: ``call`` is the method (of an async one, its sync twin), ``by`` the user.
#: Messages take no permission here: code vouches for the sender, and the handler says who may send them.
CODE = {
    "signal": Row((), lambda call, by: call("note", 1, by=by)),
    "update": Row((), lambda call, by: call("add", 5, by=by)),
    "resume": Row((), lambda call, by: call("approved", by=by), "graph"),
    "decide": Row(("signal_instance",), lambda call, by: call("approved", by=by), "graph"),
    "human_tasks": Row((), lambda call, by: call(by=by), "graph"),
    "query": Row(("query_instance",), lambda call, by: call("items", by=by)),
    "result": Row(SEE, lambda call, by: call(0, by=by), "ended"),
    "instance": Row(SEE, lambda call, by: call(by=by), "graph"),
    "describe": Row(LOOK, lambda call, by: call(by=by)),
    "history": Row(LOOK, lambda call, by: call(by=by)),
    "cancel": Row(("cancel_instance",), lambda call, by: call("why", by=by)),
    "reset": Row(("reset_instance",), lambda call, by: call(0, reason="why", by=by)),
    "fork": Row(("reset_instance", "start_instance"), lambda call, by: call(0, reason="why", by=by)),
    "terminate": Row(("terminate_instance",), lambda call, by: call("why", by=by)),
    "pause": Row(("pause_instance",), lambda call, by: call("why", by=by)),
    "unpause": Row(("pause_instance",), lambda call, by: call("why", by=by), "paused"),
    "try_again": Row(("pause_instance",), lambda call, by: call("why", by=by), "blocked"),
    "retry_activity": Row(("retry_activity",), lambda call, by: call(1, by=by), "errand"),
    "retry_activity edited": Row(("retry_activity", *EDIT), lambda call, by: call(1, input=[7], by=by), "errand"),
    "reset edited": Row(("reset_instance", *EDIT), lambda call, by: call(1, edited={1: [7]}, by=by), "errand"),
    "fork edited": Row((*FORK, *EDIT), lambda call, by: call(1, id="rederrand::2", edited={1: [7]}, by=by), "errand"),
    "complete_activity": Row(("complete_activity", "view_payload"), lambda call, by: call(1, 5, by=by), "errand"),
    "fail_activity": Row(("fail_activity", "view_payload"), lambda call, by: call(1, "no", by=by), "errand"),
    "skip_timer": Row(("retry_activity",), lambda call, by: call(2, by=by), "errand"),
    "redeliver": Row(("redeliver_message",), lambda call, by: call("lost-1", by=by), "failed"),
    "discard": Row(("redeliver_message",), lambda call, by: call("lost-1", by=by), "failed"),
    "delete": Row(("delete_instance",), lambda call, by: call("why", by=by), "acted"),
    "list": Row(LOOK, lambda call, by: [*call(Basket, {}, by=by)], of_run=False),
    "start": Row(("start_instance",), lambda call, by: call(new_basket(by)), of_run=False),
    "signal_with_start": Row(("start_instance",), lambda call, by: call(new_basket(by), "note", 1), of_run=False),
}
#: What of a handle is for code alone: it takes nobody's name.
WITHOUT_BY = {"run_id", "run_ids", "start_outcome", "status"}


def methods() -> dict[str, Any]:
    """By name; a twin that begins with ``a`` has the row of the other."""
    found: dict[str, Any] = {}
    for cls in (WorkflowHandle, DatabaseBackend):
        for name, method in inspect.getmembers(cls, inspect.isfunction):
            if not name.startswith("_") and (name.endswith("start") or "by" in inspect.signature(method).parameters):
                found[name] = cls
    return found


def rows_of_methods() -> set[str]:
    return {name for name in methods() if not (name.startswith("a") and name[1:] in methods())}


def plainly(name: str) -> str:
    return name.replace(" edited", "").removesuffix(" post")


def test_each_method_with_by_has_a_row() -> None:
    assert_rows("CODE", {plainly(name): row for name, row in CODE.items()}, rows_of_methods())


def test_each_method_of_a_handle_takes_by() -> None:
    own = {name for name, _ in inspect.getmembers(WorkflowHandle) if not name.startswith("_")}
    without = own - {name for name, cls in methods().items() if cls is WorkflowHandle}
    assert without - {"id", "chain_id"} == WITHOUT_BY, "each method of a handle takes by="


@pytest.mark.parametrize("asking", ASKING)
@pytest.mark.parametrize("name", [*methods(), *(name for name in CODE if name != plainly(name))])
def test_code(name: str, asking: str) -> None:
    row = CODE.get(name) or CODE.get(name[1:])
    assert row is not None, f"{name} has no row: test_each_method_with_by_has_a_row says what to add"
    name = plainly(name)
    handle, user = row.ready(), row.user(asking)
    method = getattr(handle if methods()[name] is WorkflowHandle else DatabaseBackend(), name)
    call = async_to_sync(method) if inspect.iscoroutinefunction(method) else method
    before = standing()

    if asking == "other tenant" and row.of_run:
        for one in (handle, WorkflowHandle(handle.id), WorkflowHandle(handle.run_id)):
            other = getattr(one, name)
            with pytest.raises(errors.WorkflowNotFound):
                row.do(async_to_sync(other) if inspect.iscoroutinefunction(other) else other, user)
        assert standing() == before
    elif asking == "other tenant":  # what he starts there is among nobody's runs, and he cannot signal it
        with pytest.raises(errors.WorkflowNotFound) if name.endswith("with_start") else nullcontext():
            row.do(call, user)
    elif row.may(asking) or not row.takes:
        row.do(call, user)
    else:
        with pytest.raises(errors.ActionNotPermitted, match=" this requires the permission |may not"):
            row.do(call, user)
        assert standing() == before


# -- operations, from a face -----------------------------------------------------------------------------------------


def red() -> Any:
    return find_run(str(Instance.objects.get().pk), storage=storage())


#: Operations as a face calls them, when it has found the run: ``by`` is the actor.
OPERATIONS = {
    "start": Row(("start_instance",), lambda by: Start(new_basket(None), by=by), of_run=False),
    "signal_with_start": Row(
        ("start_instance", "signal_instance"),
        lambda by: SignalWithStart(new_basket(None), signal="note", by=by),
        of_run=False,
    ),
    "signal": Row(("signal_instance",), lambda by: SendSignal(red(), signal="note", by=by)),
    "update": Row(("update_instance",), lambda by: SendUpdate(red(), update="add", args=5, by=by)),
    "resume": Row(("signal_instance",), lambda by: Resume(red(), event="approved", by=by), "graph"),
    "query": Row(("query_instance",), lambda by: Query(red(), query="items", by=by)),
    "compare": Row(("view_payload",), lambda by: CompareInputs(red(), by=by)),
    "move": Row(("terminate_instance",), lambda by: Move(red(), version=2, by=by), "moving"),
}

OPERATIONS |= {  # human tasks: whoever is asked may, and that one asks whoever may send signals
    "decide": Row(("signal_instance",), lambda by: Decide(asked(), outcome="approved", by=by), "graph"),
    "claim": Row(("signal_instance",), lambda by: Claim(asked(), by=by), "graph"),
    "release": Row(("signal_instance",), lambda by: Release(claimed(by), by=by), "graph"),
    "delegate": Row(
        ("signal_instance", "delegate_humantask"), lambda by: Delegate(asked(), to=by.user, by=by), "graph"
    ),
}


def asked() -> Any:
    """The human task that there is."""
    return HumanTask.objects.get()


def claimed(by: Actor) -> Any:
    """The same, claimed by whom it is to be released by, as far as he could."""
    if by.user is not None and by.user.has_perm("temporalex_django.signal_instance") and "red" in str(by.user):
        Claim(asked(), by=by).execute()
    return asked()


def run_due(by: Actor) -> Any:
    """Under DEBUG, with nothing that is due."""
    action = RunDue(by=by)
    idle = patch("temporalex_django.operations.runs.control.run_due", new=lambda seconds: 0)
    action.execute = idle(override_settings(DEBUG=True)(action.execute))  # type: ignore[method-assign]
    return action


OPERATIONS |= {  # bulk jobs: a job is its owner's
    "start_bulk": Row(
        ("bulk_actions", "terminate_instance"),
        lambda by: StartBulk("terminate", runs=[str(Instance.objects.get().pk)], by=by),
    ),
    "stop_bulk": Row(("bulk_actions",), lambda by: StopBulk(bulk_job(by, "running"), by=by)),
    "drain_worker": Row(("drain_worker",), lambda by: DrainWorker(worker().pk, by=by), of_run=False, of_all=True),
    "undrain_worker": Row(
        ("drain_worker",), lambda by: UndrainWorker(worker(drained=True).pk, by=by), of_run=False, of_all=True
    ),
    "run_due": Row(("run_due",), run_due, of_run=False, of_all=True),
    "resume_bulk": Row(("bulk_actions",), lambda by: ResumeBulk(bulk_job(by, "stopped"), by=by)),
    "switch_off": Row(("use_switches",), lambda by: SwitchOff("queue", "default", by=by), of_run=False, of_all=True),
    "switch_on": Row(("use_switches",), lambda by: SwitchOn(**switched_off(), by=by), of_run=False, of_all=True),
}


def switched_off() -> dict[str, str]:
    """A switch that is off."""
    off, _ = SwitchedOff.objects.get_or_create(kind="queue", name="default", defaults={"since": timezone.now()})
    return {"kind": off.kind, "switch_name": off.name}


def bulk_job(by: Actor, state: str) -> Any:
    """One of that person, if he is of this tenant."""
    own = by.user if str(by.user).startswith("red-") else None
    job = BulkJob(id=uuid.uuid4(), action="terminate", given=b"{}", state=state, actor=own, source="rest", total=0)
    job.created_at = timezone.now()
    job.save()
    return job.pk


def job_of_red(state: str) -> Any:
    """One of whoever asks, if he is of this tenant."""
    return bulk_job(Actor(user=get_user_model().objects.filter(username__startswith="red-").first()), state)


#: What operators do to a run (``registry.STEERING``), in each face: ``do`` gives the arguments beside the reason, seq
#: among them where it is about an activity or a timer.
STEERED = {
    "cancel": Row(("cancel_instance",), dict),
    "reset": Row(("reset_instance",), lambda: {"to": 0}),
    "fork": Row(("reset_instance", "start_instance"), lambda: {"to": 0}),
    "terminate": Row(("terminate_instance",), dict),
    "pause": Row(("pause_instance",), dict),
    "unpause": Row(("pause_instance",), dict, "paused"),
    "try_again": Row(("pause_instance",), dict, "blocked"),
    "retry_activity": Row(("retry_activity",), lambda: {"seq": 1}, "errand"),
    "complete_activity": Row(("complete_activity", "view_payload"), lambda: {"seq": 1, "result": 5}, "errand"),
    "fail_activity": Row(("fail_activity", "view_payload"), lambda: {"seq": 1, "message": "no"}, "errand"),
    "skip_timer": Row(("retry_activity",), lambda: {"seq": 2}, "errand"),
    "redeliver": Row(("redeliver_message",), dict, "failed"),
    "discard": Row(("redeliver_message",), lambda: {"message": "lost-1"}, "failed"),
    "delete": Row(("delete_instance",), dict, "acted"),
}


STEERED |= {
    "retry_activity edited": Row(("retry_activity", *EDIT), lambda: {"seq": 1, "input": [7]}, "errand"),
    "reset edited": Row(("reset_instance", *EDIT), lambda: {"to": 1, "edited": {"1": [7]}}, "errand"),
    "fork edited": Row(
        ("reset_instance", "start_instance", *EDIT),
        lambda: {"to": 1, "id": "rederrand::2", "edited": {"1": [7]}},
        "errand",
    ),
}


def steering(name: str) -> Any:
    return lambda by: STEERING[plainly(name)](red(), reason="why", by=by, **STEERED[name].do())


OPERATIONS |= {name: replace(row, do=steering(name)) for name, row in STEERED.items()} | matrix_rows.OPERATIONS


def test_each_operation_has_a_row() -> None:
    assert_rows("STEERED", {plainly(name): row for name, row in STEERED.items()}, set(STEERING))
    assert_rows("OPERATIONS", {plainly(name): row for name, row in OPERATIONS.items()}, set(ACTIONS))


@pytest.mark.parametrize(("name", "asking"), cases(OPERATIONS))
def test_operations(name: str, asking: str) -> None:
    row = OPERATIONS[name]
    row.ready()
    by, before = Actor(user=row.user(asking), source="pages"), standing()

    if row.may(asking):
        row.do(by).execute()
        assert standing() != before or name in ("query", "compare")
        return
    hidden = (errors.WorkflowNotFound, errors.ScheduleNotFound, errors.TaskNotFound)
    wanted = hidden if asking == "other tenant" and row.of_run else errors.ActionNotPermitted
    with pytest.raises(wanted):
        row.do(by).execute()
    assert standing() == before


# -- REST ------------------------------------------------------------------------------------------------------------

#: Routes by method and name: ``send`` is given the body, ``at`` what is in the address beside the id, and ``?query``.
REST = {
    "GET instances": Row(LOOK, lambda send: send(), of_run=False),
    "POST instances": Row(
        ("start_instance",), lambda send: send({"workflow": "test.Basket", "id": "red-2"}), of_run=False
    ),
    "GET instance": Row(LOOK, lambda send: send()),
    "GET events": Row(LOOK, lambda send: send()),
    "GET timeline": Row(LOOK, lambda send: send()),
    "GET result": Row(LOOK, lambda send: send(), "ended"),
    "GET children": Row(LOOK, lambda send: send()),
    "GET activities": Row(LOOK, lambda send: send()),
    "GET messages": Row(LOOK, lambda send: send()),
    "GET operations": Row(LOOK, lambda send: send()),
    "GET bulk": Row(("bulk_actions",), lambda send: send(), of_run=False),
    "POST bulk": Row(
        ("bulk_actions", "terminate_instance"),
        lambda send: send({"action": "terminate", "runs": [str(Instance.objects.get().pk)]}),
    ),
    "GET bulk-job": Row(("bulk_actions",), lambda send: send(at={"job": job_of_red("running")})),
    "GET bulk-items": Row(("bulk_actions",), lambda send: send(at={"job": job_of_red("running")})),
    "POST stop_bulk": Row(("bulk_actions",), lambda send: send({}, at={"job": job_of_red("running")})),
    "POST resume_bulk": Row(("bulk_actions",), lambda send: send({}, at={"job": job_of_red("stopped")})),
    "POST drain_worker": Row(
        ("drain_worker",), lambda send: send({}, at={"worker": worker().pk}), of_run=False, of_all=True
    ),
    "POST undrain_worker": Row(
        ("drain_worker",), lambda send: send({}, at={"worker": worker(drained=True).pk}), of_run=False, of_all=True
    ),
    "GET root": Row((), lambda send: send(), of_run=False),
    "GET openapi": Row((), lambda send: send(), of_run=False),
    "GET overview": Row(LOOK, lambda send: send(), of_run=False),
    "GET failures": Row(LOOK, lambda send: send(), of_run=False),
    **{f"GET {name}": Row(("view_worker",), lambda send: send(), of_run=False) for name in ("workers", "queues")},
    "GET switches": Row(("view_switchedoff",), lambda send: send(), of_run=False),
    "POST switch_off": Row(
        ("use_switches",), lambda send: send({"kind": "queue", "name": "default"}), of_run=False, of_all=True
    ),
    "POST switch_on": Row(
        ("use_switches",),
        lambda send: send({"kind": "queue", "name": switched_off()["switch_name"]}),
        of_run=False,
        of_all=True,
    ),
    "GET types": Row(LOOK, lambda send: send(), of_run=False),
    "GET type": Row(LOOK, lambda send: send(at={"name": "test.Basket"}), of_run=False),
    "POST signal": Row(("signal_instance",), lambda send: send({"payload": 1}, at={"name": "note"})),
    "POST update": Row(("update_instance",), lambda send: send({"args": 5}, at={"name": "add"})),
    "GET update": Row(LOOK, lambda send: send(at={"name": "add"}, query="?id=known"), "updated"),
    "POST query": Row(("query_instance",), lambda send: send({}, at={"name": "items"})),
    "POST redeliver_message": Row(
        ("redeliver_message",), lambda send: send({"reason": "why"}, at={"message": "lost-1"}), "failed"
    ),
    "POST discard_message": Row(
        ("redeliver_message",), lambda send: send({"reason": "why"}, at={"message": "lost-1"}), "failed"
    ),
    "POST resume": Row(("signal_instance",), lambda send: send({"event": "approved"}), "graph"),
    "GET human-tasks": Row((), lambda send: send(), "question", of_run=False),
    "GET human-task": Row((), lambda send: send(at=the_task()), "question"),
    "POST claim": Row((), lambda send: send({}, at=the_task()), "question"),
    "POST release": Row((), lambda send: send({}, at=the_task(claimed=True)), "question"),
    "POST delegate": Row(("delegate_humantask",), lambda send: send({"to": colleague()}, at=the_task()), "question"),
    "POST decide": Row((), lambda send: send({"outcome": "approved"}, at=the_task()), "question"),
}


def the_task(*, claimed: bool = False) -> dict[str, Any]:
    """The one that there is; claimed by whoever asks, if he is of this tenant."""
    if claimed and (user := get_user_model().objects.filter(username__startswith="red-").first()):
        later = timezone.now() + timedelta(hours=1)
        HumanTask.objects.update(claimed_by_key=str(user.pk), claimed_by_name=user.username, claimed_until=later)
    return {"task": HumanTask.objects.get().pk}


def colleague(name: str = "red-dan") -> str:
    """Somebody to whom a human task may go."""
    return str(get_user_model().objects.get_or_create(username=name)[0].username)


def steered_in_rest(name: str) -> Any:
    def do(send: Any) -> Any:
        given = STEERED[name].do()
        at = {"seq": given.pop("seq")} if "seq" in given else {}
        return send({"reason": "why", **given}, at=at)

    return do


def routes() -> dict[str, str]:
    """Addresses of REST by method and name."""
    found = {}
    for pattern in patterns(urls.urlpatterns):
        view: Any = pattern.callback
        verbs = getattr(view, "actions", None) or [m for m in view.cls.http_method_names if hasattr(view.cls, m)]
        for verb in set(verbs) - {"head", "options"}:
            found[f"{verb.upper()} {pattern.name}"] = f"/api/{pattern.pattern}"
    return found


REST |= {f"POST {name}": replace(row, do=steered_in_rest(name)) for name, row in STEERED.items()} | matrix_rows.REST


def test_each_route_of_rest_has_a_row() -> None:
    assert_rows("REST", {plainly(name): row for name, row in REST.items()}, set(routes()))


@pytest.mark.parametrize(("name", "asking"), cases(REST))
def test_rest(name: str, asking: str) -> None:
    row = REST[name]
    run = row.ready()
    client, before = api(row.user(asking)), standing()

    def send(body: Any = None, *, at: Any = (), query: str = "") -> Any:
        address = filled(routes()[plainly(name)], {"id": run.id, **dict(at)}) + query
        return getattr(client, name.partition(" ")[0].lower())(address, body, format="json")

    answer = row.do(send)
    text = f"{answer.status_code} {answer.content.decode()[:500]}"
    if row.may(asking):
        assert answer.status_code < 400, text
        return
    if asking == "anonymous":
        assert answer.status_code in (401, 403), text
    elif asking != "other tenant":
        assert answer.status_code == 403, text
    elif row.of_run:
        assert answer.status_code == 404, text
    else:
        assert answer.status_code in (200, 403), text
        assert run.id not in text
    assert standing() == before


# -- the admin -------------------------------------------------------------------------------------------------------

#: Pages by model and name (what is posted to one of them has a row of its own that ends with "post"), and what is
#: chosen in lists: ``page`` is given what its address names (a key of ``matrix.objects``), what is posted, and a query.
ADMIN = {
    "instance changelist": Row(LOOK, lambda page: page(), of_run=False),
    "instance console message": Row(LOOK, lambda page: page("run", query="?kind=signal&name=note")),
    "instance console message post": Row(
        (*LOOK, "signal_instance"),
        lambda page: page("run", {"token": token(), "payload": "1"}, query="?kind=signal&name=note"),
    ),
    "instance console query": Row(LOOK, lambda page: page("run", query="?name=items")),
    "instance console compare": Row(LOOK, lambda page: page("run")),
    "instance console compare post": Row(SEE, lambda page: page("run", {"token": token()})),
    "instance console start": Row(("start_instance",), lambda page: page(), of_run=False),
    "instance delete": Row(None, lambda page: page("run")),
    "instance add": Row(None, lambda page: page(), of_run=False),
    "instance console overview": Row(LOOK, lambda page: page(), of_run=False),
    "instance console runs": Row(LOOK, lambda page: page(), of_run=False),
    "instance console export": Row(LOOK, lambda page: whole(page(query="?format=csv")), of_run=False),
    "instance console bulk cancel": Row(LOOK, lambda page: page("run", query=lambda run: f"&run={run}")),
    "instance console jobs": Row((*LOOK, "bulk_actions"), lambda page: page(), of_run=False),
    "instance console job": Row((*LOOK, "bulk_actions"), lambda page: page("job")),
    "instance console stop_job post": Row((*LOOK, "bulk_actions"), lambda page: page("job", {})),
    "instance console resume_job post": Row((*LOOK, "bulk_actions"), lambda page: page("stopped job", {})),
    "bulkjob changelist": Row(("bulk_actions",), lambda page: page(), of_run=False),
    "instance console reassign post": Row(
        ("delegate_humantask",),
        lambda page: page(None, {"task": [str(the_task()["task"])], "to": colleague("red-viewer")}),
        "question",
        of_run=False,
    ),
    "enqueuedtask changelist": Row(("view_enqueuedtask",), lambda page: page(), of_run=False),
    "enqueuedtask change": Row(("view_enqueuedtask",), lambda page: page("enqueued"), of_run=False),
    "enqueuedtask history": Row(("view_enqueuedtask",), lambda page: page("enqueued"), of_run=False),
    "enqueuedtask delete": Row(None, lambda page: page("enqueued"), of_run=False),
    "enqueuedtask add": Row(None, lambda page: page(), of_run=False),
    "endedtask changelist": Row(("view_endedtask",), lambda page: page(), of_run=False),
    "endedtask change": Row(("view_endedtask",), lambda page: page("ended task"), of_run=False),
    "endedtask history": Row(("view_endedtask",), lambda page: page("ended task"), of_run=False),
    "endedtask delete": Row(None, lambda page: page("ended task"), of_run=False),
    "endedtask add": Row(None, lambda page: page(), of_run=False),
    "operatoraction changelist": Row(("view_operatoraction",), lambda page: page(), "acted", of_run=False),
    "operatoraction change": Row(("view_operatoraction",), lambda page: page("action"), "acted"),
    "operatoraction history": Row(("view_operatoraction",), lambda page: page("action"), "acted"),
    "operatoraction delete": Row(None, lambda page: page("action"), "acted"),
    "operatoraction add": Row(None, lambda page: page(), of_run=False),
    "switchedoff changelist": Row(("view_switchedoff",), lambda page: page(), of_run=False),
    "instance console switches": Row(("view_switchedoff",), lambda page: page(), of_run=False),
    "instance console switch_off post": Row(
        ("use_switches",),
        lambda page: page(None, {"thing": "activity:matrix.refused"}),
        of_run=False,
        of_all=True,
    ),
    "instance console switch_on post": Row(
        ("use_switches",), lambda page: page(None, {"thing": "queue:default"}), of_run=False, of_all=True
    ),
    "worker changelist": Row(("view_worker",), lambda page: page(), of_run=False),
    "instance console workers": Row(("view_worker",), lambda page: page(), of_run=False),
    "instance console drain post": Row(("drain_worker",), lambda page: page("worker", {}), of_run=False, of_all=True),
    "instance console undrain post": Row(
        ("drain_worker",), lambda page: page("drained worker", {}), of_run=False, of_all=True
    ),
    "instance console run_due post": Row(("run_due",), lambda page: under_debug(page), of_run=False, of_all=True),
}


def steered_in_the_admin(name: str, *, posted: bool) -> Any:
    def do(page: Any) -> Any:
        given = STEERED[name].do()
        query = f"?seq={given.pop('seq')}" if "seq" in given else ""
        data = {"token": token(), "reason": "why", **{f"input_{key}": written(value) for key, value in given.items()}}
        return page("run", data if posted else None, query=query)

    return do


def for_many(page: Any) -> Any:
    """Post the page of an operation on many runs."""
    body = lambda run: {"token": token(), "reason": "why", "newest": str(run)}  # noqa: E731
    return page("run", body, query=lambda run: f"&run={run}")


def steered_pages() -> dict[str, Row]:
    found = {}
    for name, row in STEERED.items():
        if name == plainly(name):
            found[f"instance console do {name}"] = replace(row, takes=LOOK, do=steered_in_the_admin(name, posted=False))
        takes = (*LOOK, *(row.takes or ()))
        found[f"instance console do {name} post"] = replace(
            row, takes=takes, do=steered_in_the_admin(name, posted=True)
        )
        if name == plainly(name) and STEERING[name].target_kind == "run":
            many = (*takes, "bulk_actions")
            found[f"instance console bulk {name} post"] = replace(row, takes=many, do=for_many)
    return found


def pages() -> dict[str, str]:
    """Addresses of the admin by model and name; those without a name only lead on to others."""
    found, request = {}, RequestFactory().get("/")
    request.user = get_user_model()(pk=0, is_superuser=True, is_staff=True, is_active=True)
    for model, one in admin.site._registry.items():
        name, base = model._meta.model_name, f"/admin/temporalex_django/{model._meta.model_name}/"
        if model._meta.app_label == "temporalex_django":
            for pattern in one.get_urls():
                if isinstance(pattern, URLResolver):
                    found |= {
                        f"{name} console {sub.name}{k}": v
                        for sub in pattern.url_patterns
                        for k, v in console_pages(sub.name, f"{base}{pattern.pattern}{sub.pattern}").items()
                    }
                elif pattern.name:
                    short = pattern.name.removeprefix("temporalex_django_").removeprefix(f"{name}_")
                    found[f"{name} {short}"] = f"{base}{pattern.pattern}"
            # what leads to one page each takes the same permission
            chosen = {action.partition("_")[0] for action in one.get_actions(request)}
            found |= {f"{name} chosen {action}": base for action in chosen}
    return found


ADMIN |= steered_pages() | matrix_rows.ADMIN


def under_debug(page: Any) -> Any:
    """With nothing that is due."""
    with override_settings(DEBUG=True), patch("temporalex_django.operations.runs.control.run_due", return_value=0):
        return page(None, {"reason": "why"})


def test_each_page_of_the_admin_has_a_row() -> None:
    assert_rows("ADMIN", {plainly(name): row for name, row in ADMIN.items()}, set(pages()))


@pytest.mark.parametrize(("name", "asking"), cases(ADMIN))
def test_admin(name: str, asking: str) -> None:
    row = ADMIN[name]
    run = row.ready()
    worker()
    django_tasks()
    user = row.user(asking)
    by = Actor(user=user if user.is_authenticated else None)
    there = {**objects(), "job": bulk_job(by, "running"), "stopped job": bulk_job(by, "stopped")}
    there |= {"drained worker": worker(drained=True).pk, "message": matrix_rows.dead_letter()}
    there["task id"] = EnqueuedTask.objects.order_by("pk").values_list("run_id", flat=True).first()
    there["switch"] = SwitchedOff.objects.get(name=switched_off()["switch_name"]).pk
    client, before = browser(user), standing()

    def page(what: str | None = None, data: Any = None, *, query: Any = "", keys: Any = there) -> Any:
        key = None if what is None else keys[what]
        named = (
            {}
            if what is None
            else dict.fromkeys(("object_id", "run_id", "job", "worker", "task_id", "schedule", "task"), key)
        )
        query, data = (one(key) if callable(one) else one for one in (query, data))
        address = filled(pages()[plainly(name)], named) + query
        return client.get(address) if data is None else client.post(address, data)

    answer = row.do(page)
    OperatorAction.objects.filter(action=audit.EXPORT).delete()  # to look at a list in a file is noted
    text = f"{answer.status_code} {answer.headers.get('Location', '')} {answer.content.decode()[:500]}"
    if asking == "anonymous":
        assert (answer.status_code, answer["Location"].partition("?")[0]) == (302, "/admin/login/"), text
    elif row.may(asking):
        leads_on = (name.endswith(" post") or " chosen " in name) and name != "instance console compare post"
        assert answer.status_code == (302 if leads_on or name in matrix_rows.ENTRIES else 200), text
        assert (standing() != before) == (leads_on and (" chosen " not in name or name.startswith("outbox")))
        return
    elif asking != "other tenant" or row.takes is None:
        assert answer.status_code == 403 or (asking == "other tenant" and answer.status_code == 302), text
    elif row.of_run:
        nowhere = row.do(partial(page, keys=NOWHERE))
        assert answer.status_code == nowhere.status_code
        assert answer.headers.get("Location") == nowhere.headers.get("Location")
        assert answer.status_code in (302, 404), text
        assert run.id not in text
    else:
        assert answer.status_code in (200, 302), text
        assert run.id not in answer.content.decode()
    assert standing() == before


# -- commands --------------------------------------------------------------------------------------------------------

#: Subcommands with ``--as-user``: ``run`` is given the other arguments, and ``ref``, the id of the run,
#: stands beside it.
COMMANDS = {
    "export": Row(SEE, lambda run, ref: run(ref, "--output", str(FOLDER / "exported"))),
    "graph": Row(LOOK, lambda run, ref: run("test.MatrixChoice", "--id", ref), "graph"),
    "versions": Row(LOOK, lambda run, ref: run(), of_run=False),
    "list": Row(LOOK, lambda run, ref: run(), of_run=False),
    "enqueued": Row(("view_enqueuedtask", "view_endedtask"), lambda run, ref: run(), of_run=False),
    "describe": Row(LOOK, lambda run, ref: run(ref)),
    "doctor": Row(LOOK, lambda run, ref: run(ref)),
    "drain": Row(("drain_worker",), lambda run, ref: run(str(worker().pk)), of_run=False, of_all=True),
    "undrain": Row(("drain_worker",), lambda run, ref: run(str(worker(drained=True).pk)), of_run=False, of_all=True),
    "switches": Row(("use_switches",), lambda run, ref: run("off", "queue", "default"), of_run=False, of_all=True),
    "tasks": Row((), lambda run, ref: run("list"), "question", of_run=False),
    "bulk": Row(
        (*LOOK, "bulk_actions", "terminate_instance"),
        lambda run, ref: run("terminate", "--workflow", "test.Basket"),
        of_run=False,
        acts=True,
    ),
    "history": Row(LOOK, lambda run, ref: run(ref)),
    "start": Row(("start_instance",), lambda run, ref: run("test.Basket", "--id", "red-2"), of_run=False, acts=True),
    "signal": Row(("signal_instance",), lambda run, ref: run(ref, "note")),
    "update": Row(("update_instance",), lambda run, ref: run(ref, "add", "--args", "5")),
    "query": Row(("query_instance",), lambda run, ref: run(ref, "items")),
    "resume": Row(("signal_instance",), lambda run, ref: run(ref, "approved"), "graph"),
    "migrate": Row(
        (*LOOK, "terminate_instance"),
        lambda run, ref: run("test.MatrixMoving", "--from", "1", "--to", "2"),
        "moving",
        of_run=False,
    ),
}


def steered_in_a_shell(name: str) -> Any:
    def do(run: Any, ref: str) -> Any:
        given = STEERED[name].do()
        seq = [str(given.pop("seq"))] if "seq" in given else []
        options = [part for key, value in given.items() for part in (f"--{key}", written(value))]
        return run(ref, *seq, *options, "--reason", "why")

    return do


SHELL_NAMES = {action.name: name for name, action in SHELL_STEERING.items()}
COMMANDS |= {
    name.replace(plainly(name), SHELL_NAMES[plainly(name)]): replace(row, do=steered_in_a_shell(name))
    for name, row in STEERED.items()
} | matrix_rows.COMMANDS
#: What nobody does in somebody's name: they show or change no run, or are a worker.
FOR_OPERATORS = {"health", "replay", "worker"}


def commands() -> set[str]:
    """Those that know the option."""
    found = set()
    for name, subcommand in Command.subcommands.items():
        parser = CommandParser()
        subcommand.add_arguments(parser)
        nested = [
            one for action in parser._actions if isinstance(action.choices, dict) for one in action.choices.values()
        ]
        if all("--as-user" in one._option_string_actions for one in nested or [parser]):
            found.add(name)
    return found


def test_each_subcommand_has_a_row() -> None:
    assert_rows("COMMANDS", {plainly(name): row for name, row in COMMANDS.items()}, commands())
    others = set(Command.subcommands) - commands()
    assert others == FOR_OPERATORS, "a subcommand that shows or changes runs takes --as-user (management.as_user)"


@pytest.mark.parametrize(("name", "asking"), cases(COMMANDS))
def test_commands(name: str, asking: str) -> None:
    row = COMMANDS[name]
    ref = row.ready().id
    user, before = row.user(asking), standing()

    def run(*arguments: str) -> str:
        return command(plainly(name), *arguments, "--as-user", user.get_username() or "nobody-there")

    if row.may(asking):
        row.do(run, ref)
        return
    if asking != "other tenant" or row.of_run:
        says = {
            "anonymous": "is not a user",
            "other tenant": "no (run|matching run|schedule|outgoing message|background task)",
        }.get(asking, "requires the permission")
        with pytest.raises(CommandError, match=says):
            row.do(run, ref)
    else:
        with (
            nullcontext()
            if not row.acts
            else pytest.raises(CommandError, match="not be visible to them|there is no run|contains no runs")
        ):
            assert ref not in row.do(run, ref)
    assert standing() == before


# -- what they share -------------------------------------------------------------------------------------------------


def assert_rows(table: str, rows: dict[str, Row], there: set[str]) -> None:
    missing, gone = sorted(there - set(rows)), sorted(set(rows) - there)
    says = f'"{missing[0] if missing else ""}": Row(("<permission>",), lambda ...: ...),'
    assert not missing, (
        f"{', '.join(missing)}: add a row to {table} in tests/integration/operations/test_permission_matrix.py: {says}"
    )
    assert not gone, f"{', '.join(gone)}: there is no such entry any more, remove its row from {table}"


@pytest.mark.parametrize(
    ("table", "there"),
    [(CODE, rows_of_methods), (OPERATIONS, lambda: ACTIONS), (REST, routes), (ADMIN, pages), (COMMANDS, commands)],
)
def test_an_entry_without_a_row_fails_with_what_to_add(table: dict[str, Row], there: Any) -> None:
    rows = {plainly(name): table[name] for name in list(table)[1:]}
    with pytest.raises(AssertionError, match=f'add a row to TABLE .*"{next(iter(table))}": Row'):
        assert_rows("TABLE", rows, set(there()))
