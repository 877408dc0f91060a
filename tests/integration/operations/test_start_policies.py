"""Start policies on the database: who may use or replace a run, what is audited, and many callers at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from threading import Barrier
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.core.management import CommandError, call_command
from django.db import connections, transaction
from rest_framework.test import APIClient

from temporalex_django import Ok, Workflow, api, errors
from temporalex_django.models import Chain, Instance, OperatorAction

CALLERS = 4


class PolicyRun(Workflow):
    async def run(self, args: Any) -> Any:
        return Ok(await api.wait_for_signal("end"))


def person(*permissions: str) -> Any:
    user = get_user_model().objects.create_user("ann")
    user.user_permissions.set(Permission.objects.filter(codename__in=[f"{name}_instance" for name in permissions]))
    return user


@pytest.mark.django_db
def test_who_uses_a_run_must_be_allowed_to_view_it() -> None:
    first = PolicyRun.start(id="o")
    ann = person("start")
    with pytest.raises(errors.ActionNotPermitted, match="view_instance"):
        PolicyRun.start(id="o", on_conflict="use_existing", by=ann)
    ann = person_with(ann, "start", "view")
    handle = PolicyRun.start(id="o", on_conflict="use_existing", by=ann)
    assert (handle.run_id, handle.start_outcome) == (first.run_id, "existing")
    row = OperatorAction.objects.get(denied=False)
    assert (row.action, str(row.run_id), row.details) == ("start", first.run_id, {"outcome": "existing"})


@pytest.mark.django_db
def test_who_replaces_a_run_must_be_allowed_to_terminate_it() -> None:
    first = PolicyRun.start(id="o")
    ann = person("start", "view")
    with pytest.raises(errors.ActionNotPermitted, match="terminate_instance"):
        PolicyRun.start(id="o", on_conflict="terminate_existing", by=ann)
    assert Instance.objects.get().is_open
    ann = person_with(ann, "start", "terminate")
    handle = PolicyRun.start(id="o", on_conflict="terminate_existing", by=ann)
    assert (first.status, handle.start_outcome) == ("terminated", "replaced")
    rows = OperatorAction.objects.filter(denied=False).order_by("pk")
    assert [(row.action, str(row.run_id)) for row in rows] == [("terminate", first.run_id), ("start", handle.run_id)]
    assert "terminate_existing" in rows[0].reason


def person_with(user: Any, *permissions: str) -> Any:
    user.user_permissions.set(Permission.objects.filter(codename__in=[f"{name}_instance" for name in permissions]))
    return get_user_model().objects.get(pk=user.pk)


@pytest.mark.django_db
def test_a_replacement_is_rolled_back_as_a_whole() -> None:
    first = PolicyRun.start(id="o")
    with transaction.atomic():
        second = PolicyRun.start(id="o", on_conflict="terminate_existing")
        assert (first.status, second.status) == ("terminated", "pending")
        transaction.set_rollback(True)
    assert [run.status for run in Instance.objects.all()] == ["pending"]
    assert PolicyRun.handle("o").run_id == first.run_id


@pytest.mark.django_db
def test_a_class_takes_the_policy_for_ended_runs() -> None:
    PolicyRun.start(id="o").terminate()
    PolicyRun.start(id="o", on_closed="failed_only").terminate()
    with pytest.raises(errors.AlreadyEnded):
        PolicyRun.start(id="o", on_closed="reject")
    assert Instance.objects.count() == 2


@pytest.mark.django_db
def test_rest_says_if_a_run_is_new() -> None:
    client = APIClient()
    client.force_authenticate(get_user_model().objects.create_superuser("root"))

    def start(**options: str) -> tuple[int, dict[str, Any]]:
        body = {"workflow": PolicyRun.name, "id": "o", **options}
        response = client.post("/api/instances/", body, format="json")
        return response.status_code, response.json()

    first_status, first = start()
    assert first_status == 201
    status, used = start(on_conflict="use_existing")
    assert (status, used["run_id"]) == (200, first["run_id"])
    status, replaced = start(on_conflict="terminate_existing")
    assert status == 201
    assert replaced["run_id"] != first["run_id"]
    PolicyRun.handle("o").terminate()
    status, ended = start(on_closed="reject")
    assert (status, ended["code"]) == (409, "already_ended")
    assert start(on_conflict="never")[0] == 400


@pytest.mark.django_db
def test_the_command_says_what_it_did() -> None:
    def start(*options: str) -> str:
        out = StringIO()
        call_command("temporalex", "start", PolicyRun.name, "--id", "o", *options, stdout=out)
        return out.getvalue()

    assert start().startswith("started ")
    assert start("--on-conflict", "use_existing").startswith("already open: ")
    assert start("--on-conflict", "terminate_existing").startswith("terminated the open run, and started ")
    PolicyRun.handle("o").terminate()
    with pytest.raises(CommandError, match="has ended"):
        start("--on-closed", "reject")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("policy", ["use_existing", "terminate_existing"])
@pytest.mark.parametrize("inside", [False, True])
def test_of_many_callers_at_once_exactly_one_run_stays_open(policy: str, inside: bool) -> None:
    barrier = Barrier(CALLERS)

    def start(_: int) -> tuple[str, str]:
        try:
            barrier.wait(30)
            if inside:
                with transaction.atomic():
                    handle = PolicyRun.start(id="o", on_conflict=policy)
            else:
                handle = PolicyRun.start(id="o", on_conflict=policy)
            return handle.start_outcome, handle.run_id
        finally:
            connections.close_all()

    with ThreadPoolExecutor(CALLERS) as pool:
        outcomes = [*pool.map(start, range(CALLERS))]
    other = "existing" if policy == "use_existing" else "replaced"
    assert sorted(outcome for outcome, _ in outcomes) == sorted(["started", *[other] * (CALLERS - 1)])
    open_chains = Chain.objects.filter(closed=False)
    assert open_chains.count() == 1
    assert str(open_chains.get().run_id) in {run_id for _, run_id in outcomes}
    if policy == "use_existing":
        assert len({run_id for _, run_id in outcomes}) == 1
