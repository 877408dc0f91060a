"""Handles of environments: time, copies, refusals, and code of the application that an operation calls."""

from __future__ import annotations

import pickle
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import transaction
from django.db.models.signals import post_save

from temporalex_django import Ok, Reply, VersionedWorkflow, Workflow, WorkflowHandle, api, errors, signals
from temporalex_django.models import OperatorAction
from temporalex_django.testing import DjangoEnvironment, WorkflowEnvironment

pytestmark = pytest.mark.django_db


class Adds(Workflow):
    name = "test.EnvironmentAdds"

    async def run(self, args: Any) -> Any:
        return Ok(await api.phase(0, update={"add": lambda number, total: Reply(total + number, total + number)}))


@dataclass
class Order:
    number: int


class Typed(Workflow):
    name = "test.EnvironmentTyped"

    async def run(self, args: Order) -> Any:
        return Ok(args.number)


def test_a_timeout_of_zero_has_no_effect() -> None:
    assert WorkflowEnvironment().start(Adds).update("add", 1, timeout=0) == 1
    assert DjangoEnvironment().start(Adds).update("add", 1, timeout=0) == 1


def test_a_handle_equals_its_copy() -> None:
    handle = WorkflowHandle("some-id")
    assert deepcopy(handle) == handle
    assert pickle.loads(pickle.dumps(handle)) == handle


def test_the_handle_of_an_environment_has_no_copy_elsewhere() -> None:
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        pickle.dumps(DjangoEnvironment().start(Adds)._backend)


def test_a_refused_update_is_audited_as_a_worker_does() -> None:
    boss = get_user_model().objects.create_superuser("boss")
    handle = DjangoEnvironment().start(Adds)
    with pytest.raises(errors.NotAccepting):
        handle.update("unknown", by=boss)
    assert list(OperatorAction.objects.values_list("action", "denied")) == [("update", False)]


@pytest.mark.parametrize("environment", [WorkflowEnvironment, DjangoEnvironment])
def test_a_deleted_run_is_not_there(environment: Any) -> None:
    handle = environment().start(Adds)
    handle.terminate()
    handle.delete()
    for look in (lambda: handle.status, handle.describe, handle.history, lambda: handle.run_ids):
        with pytest.raises(errors.WorkflowNotFound):
            look()


@pytest.mark.parametrize("environment", [WorkflowEnvironment, DjangoEnvironment])
def test_without_a_choice_messages_are_delivered_again(environment: Any) -> None:
    handle = environment().start(Adds)
    handle.update("add", 1)
    handle.reset(1, messages=None)
    assert handle.update("add", 1) == 2


@pytest.mark.parametrize("environment", [WorkflowEnvironment, DjangoEnvironment])
def test_a_dispatcher_is_started_by_a_signal(environment: Any) -> None:
    class Dispatched(Workflow):
        async def run(self, args: Any) -> Any:
            return Ok(await api.wait_for_signal("go"))

    dispatcher: Any = type(
        "test.EnvironmentDispatcher", (VersionedWorkflow,), {"versions": {1: Dispatched}, "current": 1}
    )
    assert environment().signal_with_start(dispatcher, "go", 5, id="one").result() == 5


@pytest.mark.parametrize("entered", [False, True])
def test_a_receiver_of_operator_acted_is_the_application(entered: bool) -> None:
    boss = get_user_model().objects.create_superuser("boss")
    starts: list[Any] = []

    def receiver(**kwargs: Any) -> None:
        try:
            starts.append(Typed.start({"number": "none"}))
        except errors.PayloadError as exc:
            starts.append(exc)

    env = DjangoEnvironment()
    signals.operator_acted.connect(receiver)
    try:
        if entered:
            env.__enter__()
        env.start(Adds).terminate(by=boss)
    finally:
        env.__exit__()
        signals.operator_acted.disconnect(receiver)
    assert isinstance(starts[0], errors.PayloadError)


@pytest.mark.parametrize("entered", [False, True])
def test_a_callback_of_a_receiver_is_the_application(entered: bool) -> None:
    boss = get_user_model().objects.create_superuser("boss")
    errors_of_starts: list[Exception] = []

    def start() -> None:
        try:
            Typed.start({"number": "none"})
        except errors.PayloadError as exc:
            errors_of_starts.append(exc)

    def receiver(**kwargs: Any) -> None:
        transaction.on_commit(start)

    env = DjangoEnvironment()
    post_save.connect(receiver, sender=OperatorAction)
    try:
        if entered:
            env.__enter__()
        env.start(Adds).terminate(by=boss)
    finally:
        env.__exit__()
        post_save.disconnect(receiver, sender=OperatorAction)
    assert len(errors_of_starts) == 1
