"""Children and messages between a run on the tables and one on the cluster: each pair works, or fails by name."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from temporalex_django import Ok, Workflow, api, errors
from temporalex_django.backends.cluster.attempts import ProjectAttempt
from temporalex_django.conf import codec
from temporalex_django.models import Instance, Message, Outbox
from temporalex_django.temporal import names
from temporalex_django.temporal.options import HostOptions
from temporalex_django.temporal.payloads import Payloads
from temporalex_django.workers.loop import run_until_idle
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

QUEUE = f"cluster-across-{uuid.uuid4().hex[:8]}"


class AcrossWaiter(Workflow):
    """Waits on the cluster."""

    task_queue = QUEUE
    signals = ("go", "ready")

    async def run(self, args: Any) -> Any:
        return Ok(await api.wait_for_signal("go"))


class AcrossMany(Workflow):
    """Waits on the cluster, with runs of its id that began under its earlier name."""

    task_queue = QUEUE
    aliases = ("AcrossManyBefore",)
    signals = ("go",)

    async def run(self, args: Any) -> Any:
        return Ok(await api.wait_for_signal("go"))


class AcrossTablesWaiter(Workflow):
    """Waits on the tables."""

    backend = "tables"
    signals = ("go", "ready")

    async def run(self, args: Any) -> Any:
        return Ok(await api.wait_for_signal("go"))


async def send(args: Any) -> Any:
    """Send what the input says, and return the names of the errors."""
    results = []
    for number in range(args.get("times", 1)):
        try:
            if args.get("cancel"):
                await api.cancel_external(args["to"])
            else:
                await api.signal_external(args["to"], args.get("signal", "go"), {"number": number})
        except errors.TemporalexError as exc:
            results.append(type(exc).__name__)
        else:
            results.append("sent")
    await api.wait_for_signal("go")
    return Ok(results)


class AcrossSender(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        return await send(args)


class AcrossTablesSender(Workflow):
    backend = "tables"

    async def run(self, args: Any) -> Any:
        return await send(args)


class AcrossParent(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        return Ok(await api.child(AcrossWaiter, None, id=args))


class AcrossParentOfTables(Workflow):
    """On the cluster, with a child that says that it lives on the tables."""

    task_queue = QUEUE
    unexpected_error = "fail"

    async def run(self, args: Any) -> Any:
        try:
            await api.child(AcrossTablesWaiter, None)
        except errors.WorkflowDefinitionError as exc:
            return Ok(str(exc))
        return Ok("started")


class AcrossOnTemporal(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        return Ok(args)


class AcrossTablesParent(Workflow):
    """On the tables, with a child that says that it lives on the cluster."""

    backend = "tables"

    async def run(self, args: Any) -> Any:
        try:
            await api.child(AcrossOnTemporal, None)
        except errors.WorkflowDefinitionError as exc:
            return Ok(str(exc))
        return Ok("started")


def new_id() -> str:
    return f"across-{uuid.uuid4().hex[:6]}"


def started(cls: Any, args: Any = None) -> Any:
    handle = cls.start(args, id=new_id())
    run_until_idle()
    wait_for(lambda: handle.describe().waiting_for)
    return handle


def end(sender: Any) -> Any:
    sender.signal("go")
    run_until_idle()
    return sender.result(timeout=60)  # a worker that has stopped may have been offered the task for 10 seconds


def test_a_signal_from_the_tables_to_the_cluster_goes_through_the_outbox(cluster: Any, worker: None) -> None:
    waiter = started(AcrossWaiter)
    sender = started(AcrossTablesSender, {"to": waiter.id})
    assert waiter.result(timeout=20) == {"number": 0}
    assert end(sender) == ["sent"]
    assert not Message.objects.filter(chain__backend="temporal").exists()


def test_a_signal_to_one_of_several_runs_of_a_renamed_class_reaches_the_newest(cluster: Any, worker: None) -> None:
    first, newest = started(AcrossMany), started(AcrossMany)
    Instance.objects.filter(pk=first.run_id).update(workflow="AcrossManyBefore", workflow_id=newest.id)
    sender = started(AcrossTablesSender, {"to": newest.id})
    assert newest.result(timeout=20) == {"number": 0}
    assert end(sender) == ["sent"]


def test_a_cancel_request_from_the_tables_to_the_cluster(cluster: Any, worker: None) -> None:
    waiter = started(AcrossWaiter)
    sender = started(AcrossTablesSender, {"to": waiter.id, "cancel": True})
    with pytest.raises(errors.WorkflowCancelled):
        waiter.result(timeout=20)
    assert end(sender) == ["sent"]


def redelivery(sender: Any, signal: Message, call: dict[str, Any]) -> Callable[[], Any]:
    """Another attempt of the activity that has delivered this signal of a run, with this call."""
    run_id, _, seq = str(signal.request_id).partition(":")
    options = HostOptions(payloads=Payloads(codec()))
    facts = {"seq": int(seq), "run_id": sender.run_id, "id": sender.id}
    info = SimpleNamespace(activity_id=seq, heartbeat_details=[], workflow_id=sender.id, workflow_run_id=run_id)
    headers = {names.CALL: options.payloads.encode(facts)}
    attempt = ProjectAttempt(options, info, None, None, headers)  # type: ignore[arg-type] # without the SDK
    return lambda: attempt._deliver([options.payloads.encode(call)])


def test_a_signal_from_the_cluster_to_the_tables_is_delivered_once(cluster: Any, worker: None) -> None:
    waiter = started(AcrossTablesWaiter)
    sender = started(AcrossSender, {"to": waiter.id})
    signal = wait_for(lambda: Message.objects.filter(chain=waiter.chain_id).first())
    deliver = redelivery(sender, signal, {"id": waiter.id, "name": "go", "payload": {"number": 0}})
    deliver()  # its worker died before the server had the answer
    assert Message.objects.filter(chain=waiter.chain_id).count() == 1
    run_until_idle()
    assert waiter.result(timeout=20) == {"number": 0}
    # Meanwhile the receiver has closed, and another run has its id.
    sent = ("ExternalDelivered", {})
    assert deliver() == sent
    another = AcrossTablesWaiter.start(None, id=waiter.id)
    assert deliver() == sent
    assert not Message.objects.filter(chain=another.chain_id).exists()
    assert end(sender) == ["sent"]


def test_the_answer_of_the_tables_is_the_same_in_a_replay(cluster: Any, start_worker: Any) -> None:
    waiter = AcrossTablesWaiter.start(None, id=new_id())
    run_until_idle()
    with start_worker():
        sender = AcrossSender.start({"to": waiter.id, "times": 2}, id=new_id())
        # Until both are there the waiter takes no turn, which would end it.
        wait_for(lambda: Message.objects.filter(chain=waiter.chain_id).count() == 2)
        wait_for(lambda: Instance.objects.get(pk=sender.run_id).status == "waiting")
    with start_worker():  # it has nothing in memory
        assert end(sender) == ["sent", "sent"]
    run_until_idle()
    assert waiter.result(timeout=20) == {"number": 0}


def test_a_cancel_request_from_the_cluster_to_the_tables(cluster: Any, worker: None) -> None:
    waiter = started(AcrossTablesWaiter)
    sender = started(AcrossSender, {"to": waiter.id, "cancel": True})
    assert end(sender) == ["sent"]
    run_until_idle()
    with pytest.raises(errors.WorkflowCancelled):
        waiter.result(timeout=20)


@pytest.mark.parametrize("cls", [AcrossSender, AcrossTablesSender])
def test_errors_of_messages_are_those_of_the_tables(cluster: Any, worker: None, cls: Any) -> None:
    waiter = started(AcrossTablesWaiter)
    assert end(started(cls, {"to": waiter.id, "signal": "undeclared"})) == ["UnknownSignal"]
    assert end(started(cls, {"to": "nobody"})) == ["WorkflowNotFound"]
    waiter.terminate()
    assert end(started(cls, {"to": waiter.id})) == ["WorkflowClosed"]


def test_a_message_to_a_run_whose_start_waits_in_the_outbox_is_kept(cluster: Any, worker: None) -> None:
    waiter = AcrossWaiter.start(None, id=new_id(), start_delay=3600)
    sender = started(AcrossSender, {"to": waiter.id})
    assert end(sender) == ["sent"]
    assert list(Outbox.objects.order_by("id").values_list("kind", flat=True)) == ["temporal.start", "temporal.signal"]


def test_a_child_on_the_cluster_has_rows_too(cluster: Any, worker: None) -> None:
    name = new_id()
    parent = AcrossParent.start(name, id=new_id())
    wait_for(lambda: Instance.objects.filter(workflow_id=name).exists())
    child = AcrossWaiter.handle(name)
    child.signal("go", 5)
    assert parent.result(timeout=20) == 5
    assert child.result(timeout=20) == 5
    row = Instance.objects.get(workflow_id=name)
    assert (row.parent, row.backend, row.status) == (parent.id, "temporal", "completed")


@pytest.mark.parametrize(
    ("cls", "home", "other"), [(AcrossParentOfTables, "temporal", "tables"), (AcrossTablesParent, "tables", "temporal")]
)
def test_a_child_that_names_another_backend_is_refused(
    cluster: Any, worker: None, monkeypatch: pytest.MonkeyPatch, cls: Any, home: str, other: str
) -> None:
    monkeypatch.setattr(AcrossOnTemporal, "backend", "temporal")  # only here: checks look at all classes
    parent = cls.start(None, id=new_id())
    run_until_idle()
    message = parent.result(timeout=20)
    assert f"live on '{other}', and this run on '{home}'" in message
    assert Instance.objects.count() == 1
