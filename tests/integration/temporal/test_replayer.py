"""The Replayer of the SDK with the plugin: each history replays, and it names the mutants that ours names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateStage
from temporalio.client._interceptor import StartWorkflowUpdateInput
from temporalio.workflow import NondeterminismError as SdkNondeterminismError

from temporalex_django.authoring import workflow as workflows
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.core.history.replay import replay
from temporalex_django.core.human_tasks import question
from temporalex_django.errors import NondeterminismError
from temporalex_django.temporal import names
from temporalex_django.temporal.payloads import Payloads
from tests.integration.temporal import replayed
from tests.support.temporal_cluster import Cluster
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.once, pytest.mark.xdist_group("replayer")]  # they share what was recorded
PATH = Path(replayed.__file__)
SOURCE = PATH.read_text()
NAMED, FITS = "named", "fits"

#: Changes of the code: the class whose histories are replayed, a text of the source, and the text in its place.
MUTANTS = [
    # an order: activities, a timer, a child, a patch, a signal
    ("ClusterOrder", "amount = await price(args)", "amount = await charge(4)"),
    ("ClusterOrder", "amount = await price(args)", "amount = 4"),
    ("ClusterOrder", "amount = await price(args)", "amount = await price(args) + await price(args)"),
    ("ClusterOrder", "amount = await price(args)", "amount = await price('other')"),
    ("ClusterOrder", "amount = await price(args)", "amount = await price(args) * 2"),
    ("ClusterOrder", "amount = await price(args)", "await api.sleep(0.02)\n        amount = await price(args)"),
    ("ClusterOrder", "await api.sleep(0.02)\n        paid", "paid"),
    ("ClusterOrder", "await api.sleep(0.02)\n        paid", "await api.sleep(5)\n        paid"),
    ("ClusterOrder", "await api.sleep(0.02)\n        paid", "await pack('x')\n        paid"),
    ("ClusterOrder", "await api.sleep(0.02)\n        paid", "await api.wait_for_signal('hello')\n        paid"),
    (
        "ClusterOrder",
        "await api.sleep(0.02)\n        paid",
        "await api.race(api.sleep(0.02), api.sleep(9))\n        paid",
    ),
    ("ClusterOrder", "await api.child(ClusterPayment, amount)", "await api.child(ClusterRefund, amount)"),
    ("ClusterOrder", "await api.child(ClusterPayment, amount)", "await charge(amount)"),
    ("ClusterOrder", "await api.child(ClusterPayment, amount)", "amount"),
    ("ClusterOrder", "await api.child(ClusterPayment, amount)", "await api.child(ClusterPayment, amount + 1)"),
    (
        "ClusterOrder",
        "await api.child(ClusterPayment, amount)",
        "await api.child(ClusterPayment, amount, parent_close='abandon')",
    ),
    ("ClusterOrder", 'if api.patched("boxes"):', "if True:"),
    ("ClusterOrder", 'if api.patched("boxes"):', 'if not api.patched("boxes"):'),
    ("ClusterOrder", 'if api.patched("boxes"):', "if False:"),
    ("ClusterOrder", 'if api.patched("boxes"):', 'if api.patched("bags"):'),
    ("ClusterOrder", 'if api.patched("boxes"):', 'api.deprecate_patch("boxes")\n        if True:'),
    ("ClusterOrder", 'if api.patched("boxes"):', 'if api.patched("new") or api.patched("boxes"):'),
    ("ClusterOrder", 'await api.wait_for_signal("address")', 'await api.wait_for_signal("street")'),
    ("ClusterOrder", "await pack(address)\n", "await price(address)\n"),
    ("ClusterOrder", "await pack(address)\n", "\n"),
    ("ClusterOrder", "await pack(address)\n", "await pack(address)\n        await pack(address)\n"),
    ("ClusterOrder", "await pack(address)\n", "await api.sleep(1)\n        await pack(address)\n"),
    ("ClusterOrder", "return Ok(paid)", "return Ok(paid + 1)"),
    ("ClusterOrder", "return Ok(paid)", "raise errors.ApplicationError('broken')"),
    ("ClusterOrder", "return Ok(paid)", "return ContinueAsNew(paid)"),
    ("ClusterOrder", "return Ok(paid)", "await api.sleep(3)\n        return Ok(paid)"),
    ("ClusterPayment", "Ok(await charge(args))", "Ok(args)"),
    ("ClusterPayment", "Ok(await charge(args))", "Ok(await price(args))"),
    ("ClusterPayment", "Ok(await charge(args))", "Ok(await charge(args) + 1)"),
    # branches side by side
    ("ClusterSide", 'api.wait_for_signal("never"), api.sleep(0.03)', 'api.sleep(0.02), api.wait_for_signal("never")'),
    ("ClusterSide", 'api.wait_for_signal("never"), api.sleep(0.03)', "api.sleep(0.02), price(args)"),
    ("ClusterSide", 'api.wait_for_signal("never"), api.sleep(0.03)', "api.sleep(0.02), api.sleep(7)"),
    ("ClusterSide", "[price(args), pack(args), charge(3)]", "[pack(args), price(args), charge(3)]"),
    ("ClusterSide", "[price(args), pack(args), charge(3)]", "[price(args), charge(3), pack(args)]"),
    ("ClusterSide", "[price(args), pack(args), charge(3)]", "[price(args), pack(args)]"),
    ("ClusterSide", "[price(args), pack(args), charge(3)]", "[price(args), pack(args), charge(3), charge(5)]"),
    ("ClusterSide", "[price(args), pack(args), charge(3)]", "[price(args), pack(args), charge(5)]"),
    ("ClusterSide", "[price(args), pack(args), charge(3)]", "[price(args), pack(args), charge(3)], limit=1"),
    ("ClusterSide", "[price(args), pack(args), charge(3)]", "[price(args), pack(args), charge(3)], limit=3"),
    ("ClusterSide", "async with api.shield():\n            await charge(4)", "await charge(4)"),
    ("ClusterSide", "async with api.shield():\n            await charge(4)", "pass"),
    # a phase, updates and rounds
    ("ClusterCounter", 'update={"add": add}', 'update={"sum": add}'),
    ("ClusterCounter", "return Reply(total + amount, total + amount)", "return Reply(total, total + amount)"),
    (
        "ClusterCounter",
        "return Reply(total + amount, total + amount)",
        "return Reply(total + amount, total + 2 * amount)",
    ),
    ("ClusterCounter", "if amount > 100:", "if amount > 1000:"),
    ("ClusterCounter", 'type="TooMuch"', 'type="TooLittle"'),
    ("ClusterCounter", 'signal={"close": close}', 'signal={"shut": close}'),
    ("ClusterCounter", "return Stop(total)", "return Reply(None, total)"),
    ("ClusterCounter", "await charge(total)\n        if", "if"),
    ("ClusterCounter", "await charge(total)\n        if", "await pack(total)\n        if"),
    ("ClusterCounter", "if total < 10:", "if total < 1:"),
    ("ClusterCounter", "if total < 10:", "if total < 5:"),
    ("ClusterCounter", "return ContinueAsNew(total)", "return ContinueAsNew(total + 1)"),
    ("ClusterCounter", "total = await api.phase(args,", "await api.sleep(1)\n        total = await api.phase(args,"),
    # messages to another run
    ("ClusterMessenger", 'await api.signal_external(args, "ping", 1)', 'await api.signal_external(args, "ping", 2)'),
    ("ClusterMessenger", 'await api.signal_external(args, "ping", 1)\n', "\n"),
    ("ClusterMessenger", "await api.cancel_external(args)\n", "\n"),
    ("ClusterMessenger", "await api.cancel_external(args)\n", "await charge(1)\n"),
    ("ClusterMessenger", "await api.sleep(0.04)", "await charge(1)"),
    # a graph
    ("ClusterDelivery", '(Check, "passed"): [Bill, Reserve]', '(Check, "passed"): [Reserve, Bill]'),
    (
        "ClusterDelivery",
        '(Check, "passed"): [Bill, Reserve]',
        '(Check, "passed"): [Bill, Reserve, Pick], (Pick, "picked"): Ship',
    ),
    ("ClusterDelivery", '(Bill, "billed"): Ship', '(Bill, "billed"): Pick, (Pick, "picked"): Ship'),
    ("ClusterDelivery", '(Ship, "shipped"): receipt', '(Ship, "shipped"): Pick, (Pick, "picked"): receipt'),
    (
        "ClusterDelivery",
        '(Check, "passed"): [Bill, Reserve]',
        '(Check, "passed"): [Pick, Reserve], (Pick, "picked"): Bill',
    ),
    # a human task
    ("ClusterExpense", "due=3600", "due=7200"),
    ("ClusterExpense", '"Pay the expense?"', '"Pay the bill?"'),
    ("ClusterExpense", ", due=3600", ""),
    ("ClusterExpense", 'if decision.outcome == "approved"', 'if decision.outcome == "rejected"'),
    ("ClusterExpense", "await pack(decision.outcome)", "await price(decision.outcome)"),
    # an open run
    ("ClusterWaiting", "await charge(10)\n", "await price(1)\n"),
    ("ClusterWaiting", "await charge(10)\n", "\n"),
    ("ClusterWaiting", "await charge(20)\n", "await price(2)\n"),
]

#: Mutants that only one of the two names, with the verdicts: ours, and that of the SDK.
DIFFERENT = [
    # The SDK does not compare how an accepted update ended, and to whom messages go under which name.
    (("ClusterCounter", "if amount > 100:", "if amount > 1:"), (NAMED, FITS)),
    (
        (
            "ClusterMessenger",
            'await api.signal_external(args, "ping", 1)',
            'await api.signal_external(args, "pong", 1)',
        ),
        (NAMED, FITS),
    ),
    (("ClusterMessenger", "await api.cancel_external(args)\n", 'await api.cancel_external("other")\n'), (NAMED, FITS)),
    # A task without commands takes those of the next one, and the last task of an open run takes any.
    (("ClusterOrder", 'address = await api.wait_for_signal("address")\n', 'address = "Rome"\n'), (NAMED, FITS)),
    (("ClusterWaiting", "await charge(10)\n", "await charge(10)\n        await charge(30)\n"), (NAMED, FITS)),
    (("ClusterWaiting", "await charge(10)\n", "await charge(10)\n        await api.sleep(3)\n"), (NAMED, FITS)),
    # Ours compares the class of a child, and the SDK its id, too.
    (
        (
            "ClusterOrder",
            "await api.child(ClusterPayment, amount)",
            'await api.child(ClusterPayment, amount, id="other")',
        ),
        (FITS, NAMED),
    ),
]


@dataclass(frozen=True)
class Recording:
    """A history of the server, and the same one in the form of this package."""

    name: str
    sdk: Any
    own: list[HistoryEvent]


@pytest.fixture(scope="module")
def recordings(temporal_address: str) -> Iterator[tuple[Cluster, dict[str, list[Recording]]]]:
    """The runs of all workflows of ``replayed``, by class."""
    cluster = Cluster(temporal_address, judge=lambda *_: True)
    try:
        relay = cluster.start("ClusterRelay")
        for number in (1, 2):  # one task delivers both, since there is no worker yet
            cluster.call(relay.signal("next", number))
        with cluster.worker():
            handles = list(record(cluster))
            handles += [("ClusterRelay", handle) for handle in rounds(cluster, relay)]
            recorded: dict[str, list[Recording]] = {}
            for name, handle in handles:
                own = [replace(event, at=datetime.fromisoformat(event.at)) for event in cluster.events(handle)]
                recorded.setdefault(name, []).append(Recording(name, cluster.history(handle), own))
        yield cluster, recorded
    finally:
        cluster.close()


def record(cluster: Cluster) -> Iterator[tuple[str, Any]]:
    """Start the runs and send them their messages; yields each run when it has closed, or waits for good."""
    order = cluster.start("ClusterOrder", "lamp")
    side = cluster.start("ClusterSide", "lamp")
    counter = cluster.start("ClusterCounter", 1)
    target = cluster.start("ClusterTarget")
    messenger = cluster.start("ClusterMessenger", target.id)
    delivery = cluster.start("ClusterDelivery", {"total": 4})
    expense = cluster.start("ClusterExpense", 5)
    waiting = cluster.start("ClusterWaiting")

    cluster.wait_until_waiting(order, "signal address")
    cluster.call(order.signal("address", "Rome"))
    cluster.wait_until_waiting(counter, "phase")
    assert cluster.call(counter.execute_update("add", 2)) == 3
    with pytest.raises(Exception, match="update"):
        cluster.call(counter.execute_update("add", 200))
    cluster.call(counter.signal("close"))
    newest = cluster.client.get_workflow_handle(counter.id)
    wait_for(lambda: cluster.events(newest)[0].attributes["attempt"] == 2)
    cluster.wait_until_waiting(newest, "phase")
    cluster.call(newest.execute_update("add", 10))
    cluster.call(newest.signal("close"))
    cluster.wait_until_waiting(delivery, "signed")
    cluster.call(delivery.execute_update(names.RESUME, {"event": "signed", "step": None, "data": None}))
    cluster.wait_until_waiting(expense, "expense")
    task = cluster.state(expense)["human_tasks"][0]
    spec = task["spec"]
    asked = question(spec["title"], candidates=spec["candidates"], outcomes=spec["outcomes"], form=None, shows=None)
    decision = {"event": "approved", "question": asked, "step": task["key"], "data": None, "by": "ann", "by_key": "1"}
    cluster.call(decide(cluster, expense.id, decision))
    cluster.wait_until_waiting(waiting, "signal more")

    for handle in (order, side, newest, messenger, delivery, expense):
        cluster.result(handle)
    child = next(e.attributes["id"] for e in cluster.events(order) if e.kind == "ChildStarted")
    yield from (
        ("ClusterOrder", order),
        ("ClusterPayment", cluster.client.get_workflow_handle(child)),
        ("ClusterSide", side),
        *(("ClusterCounter", handle) for handle in rounds(cluster, counter)),
        ("ClusterMessenger", messenger),
        ("ClusterDelivery", delivery),
        ("ClusterExpense", expense),
        ("ClusterWaiting", waiting),
    )


def rounds(cluster: Cluster, handle: Any) -> list[Any]:
    """The two runs of a chain, when its result is there."""
    newest = cluster.client.get_workflow_handle(handle.id)
    cluster.result(newest)
    return [cluster.client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id), newest]


async def decide(cluster: Cluster, workflow_id: str, decision: dict[str, Any]) -> None:
    """Decide a human task as Ann, whom a header names."""
    sender = Payloads().encode({"key": "1", "name": "ann"})
    update = StartWorkflowUpdateInput(
        id=workflow_id,
        run_id=None,
        first_execution_run_id=None,
        update_id=None,
        update=names.RESUME,
        args=[decision],
        wait_for_stage=WorkflowUpdateStage.COMPLETED,
        headers={names.SENDER: sender},
        ret_type=None,
        rpc_metadata={},
        rpc_timeout=None,
    )
    handle = await cluster.client._impl.start_workflow_update(update)
    await handle.result()


def load(source: str) -> None:
    """Define the workflows of ``source`` in the place of those of ``replayed``."""
    module = ModuleType(replayed.__name__)
    module.__file__ = str(PATH)
    exec(compile(source, str(PATH), "exec"), module.__dict__)


@pytest.fixture
def changed_code() -> Iterator[None]:
    """Code that a test changes, and that is as before afterwards."""
    yield
    load(SOURCE)


def verdict_of_ours(entry: Recording) -> str:
    try:
        replay(workflows.class_for_run(entry.name, 1).definition, entry.own)
    except NondeterminismError:
        return NAMED
    return FITS


def verdict_of_sdk(cluster: Cluster, entry: Recording) -> str:
    """A task that fails with our error counts as named: the Replayer has no other way to pass its message."""
    try:
        cluster.replay(entry.sdk)
    except SdkNondeterminismError:
        return NAMED
    except RuntimeError as exc:
        if "NondeterminismError" not in str(exc):
            raise
        return NAMED
    return FITS


def verdicts(recordings: Any, mutant: tuple[str, str, str]) -> list[tuple[str, str]]:
    """The verdicts of both about each history of a class, with the code of a mutant: ours, and that of the SDK."""
    cluster, recorded = recordings
    name, old, new = mutant
    assert SOURCE.count(old) == 1
    load(SOURCE.replace(old, new))
    return [(verdict_of_ours(entry), verdict_of_sdk(cluster, entry)) for entry in recorded[name]]


def test_each_history_replays(recordings):
    cluster, recorded = recordings
    replayed_by = {
        entry.own[0].attributes["id"]: (verdict_of_ours(entry), verdict_of_sdk(cluster, entry))
        for entries in recorded.values()
        for entry in entries
    }
    assert {run: fits for run, fits in replayed_by.items() if fits != (FITS, FITS)} == {}


def test_a_signal_behind_the_close_goes_to_the_next_run_once(recordings):
    _, recorded = recordings
    first, second = (entry.own for entry in recorded["ClusterRelay"])
    assert first[-1].kind == "WorkflowContinuedAsNew"
    assert second[0].attributes["carried"] == 1
    assert second[-1].attributes["result"] == [1, 2]


@pytest.mark.usefixtures("changed_code")
def test_the_replayer_names_the_mutants_that_ours_names(recordings):
    compared = {mutant: verdicts(recordings, mutant) for mutant in MUTANTS}
    assert {mutant: pairs for mutant, pairs in compared.items() if any(ours != sdk for ours, sdk in pairs)} == {}
    assert sum((NAMED, NAMED) in pairs for pairs in compared.values()) >= 50


@pytest.mark.usefixtures("changed_code")
@pytest.mark.parametrize(("mutant", "expected"), DIFFERENT)
def test_the_differences_of_the_two_are_known(recordings, mutant, expected):
    assert expected in verdicts(recordings, mutant)
