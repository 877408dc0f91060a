"""Errors that quote a payload: neither the log nor the server's history has it."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.db import IntegrityError

from temporalex_django import Ok, Reply, RetryPolicy, Stop, Workflow, activity, api, errors, update
from temporalex_django.backends.cluster import mirror
from temporalex_django.backends.cluster.client import cluster_client
from temporalex_django.models import Instance
from tests.integration.cluster.conftest import WorkerMaker
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

QUEUE = f"cluster-quotes-{uuid.uuid4().hex[:8]}"
SECRET = "ann@secret.example"


def refuse(amount: int, state: Any) -> Any:
    raise KeyError(f"{SECRET} may not take {amount}")


@activity(retry=RetryPolicy(max_attempts=1))
def quote_customer() -> None:
    raise LookupError(f"no customer {SECRET}")


class QuotedCustomer(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        return Ok(await quote_customer())


class MirroredQuotes(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        return Ok(
            await api.phase(
                None,
                signal={"go": lambda _, state: Stop(state)},
                update={"take": update(lambda _, state: Reply(None, state), validator=refuse)},
            )
        )


@pytest.fixture
def handle(cluster: Any, start_worker: WorkerMaker) -> Any:
    with start_worker():
        handle = MirroredQuotes.start(None, id=f"quotes-{uuid.uuid4().hex[:6]}")
        wait_for(lambda: handle.describe().waiting_for)
        yield handle


def failures_there(handle: Any) -> list[Any]:
    """The failed tasks in the history of the server."""
    run = Instance.objects.get(pk=handle.run_id)

    async def read(sdk: Any) -> Any:
        return await sdk.get_workflow_handle(run.cluster_id).fetch_history()

    events = cluster_client().call(read).events
    return [e for e in events if e.HasField("workflow_task_failed_event_attributes")]


def test_a_database_that_quotes_a_row_is_quoted_nowhere(
    handle: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse_row(*_: Any, **__: Any) -> None:
        raise IntegrityError(f"duplicate key\nDETAIL: Key (name)=({SECRET}) already exists.")

    with monkeypatch.context() as patch:
        patch.setattr(mirror, "write", refuse_row)
        handle.signal("go")
        (failed, *_) = wait_for(lambda: failures_there(handle))
    assert "IntegrityError" in str(failed)
    assert SECRET not in str(failed)
    assert "IntegrityError" in caplog.text
    assert SECRET not in caplog.text
    assert handle.result(timeout=60) is None


def test_a_validator_that_fails_is_logged_without_its_message(handle: Any, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(errors.UpdateFailed) as failed:
        handle.update("take", 5)
    assert failed.value.reference in caplog.text
    assert "KeyError at " in caplog.text
    assert SECRET not in caplog.text


def test_a_failed_attempt_is_logged_without_its_message(handle: Any, caplog: pytest.LogCaptureFixture) -> None:
    order = QuotedCustomer.start(None, id=f"quoted-{uuid.uuid4().hex[:6]}")
    with pytest.raises(errors.WorkflowFailed):
        order.result(timeout=20)
    assert "LookupError at" in caplog.text
    assert SECRET not in caplog.text


class QuotedBlocked(Workflow):
    task_queue = QUEUE
    unexpected_error = "block"

    async def run(self, args: Any) -> Any:
        raise KeyError(SECRET)


def test_the_core_of_the_sdk_logs_failed_tasks_without_their_messages(
    handle: Any, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    blocked = QuotedBlocked.start(None, id=f"quoted-{uuid.uuid4().hex[:6]}")
    wait_for(lambda: blocked.describe().blocked)
    wait_for(lambda: "Failing workflow task" in caplog.text)
    names = {record.name for record in caplog.records if "Failing workflow task" in record.getMessage()}
    assert names == {"temporalex_django.backends"}
    assert SECRET not in caplog.text
    printed = capfd.readouterr()
    assert "workflow task" not in printed.out
    assert SECRET not in printed.out + printed.err
