"""Each sentence that is said of a run, with a workflow that is run until it is true."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import ClassVar

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client
from django.utils import translation
from rest_framework.test import APIClient

from temporalex_django import (
    Approval,
    Done,
    Err,
    GraphWorkflow,
    NoReply,
    Ok,
    RetryLater,
    RetryPolicy,
    Unique,
    WaitForEvent,
    Workflow,
    activity,
    activity_context,
    api,
    errors,
    signal,
    update,
)
from temporalex_django.authoring.redaction import UNREDACTED, Redactor
from temporalex_django.core.results import ContinueAsNew, Reply, Stop
from temporalex_django.liveness import recovery
from temporalex_django.liveness.crash_markers import MarkedWork, MarkerContent
from temporalex_django.liveness.leases import WorkerRow
from temporalex_django.models import Instance, Worker
from temporalex_django.operations.read.run_summary import summarize_run, summarize_runs
from temporalex_django.present.timeline import build_rows
from temporalex_django.testing import DjangoEnvironment
from temporalex_django.testing.environment_base import EPOCH

pytestmark = pytest.mark.django_db


@pytest.fixture
def env():
    with translation.override("en"):
        yield DjangoEnvironment()


def said(env, handle, *, view=UNREDACTED):
    """What is said of it; the list says the same, cut short."""
    run = Instance.objects.get(pk=handle.run_id)
    found = summarize_run(run, redactor=view, now=env.clock)
    listed = summarize_runs(
        [Instance.objects.select_related("chain").get(pk=run.pk)], redactor_of=lambda _: view, now=env.clock
    )
    assert listed[run.pk].state == found.state
    assert len(found.short_text) <= 140
    assert "%(" not in found.text
    return found


@activity(label="charge the card", retry=RetryPolicy(max_attempts=20, initial_interval=60, backoff=1))
def charge_card() -> str:
    raise ConnectionError("refused")


@activity(start_to_close=600, heartbeat=30)
def import_file() -> None:
    """Import the file.

    Takes long.
    """


@activity(retry=RetryPolicy(max_attempts=3))
def declined() -> None:
    raise ValueError("card declined")


class CollectsItems(Workflow):
    """A customer's basket."""

    name = "test.CollectsItems"
    summary = ("total",)

    async def run(self, args):
        state = await api.phase(
            0,
            update={
                "add_item": lambda n, s: Reply(s + n, s + n),
                "remove": update(lambda n, s: Reply(s, s), label="remove item"),
            },
            signal={"checkout": signal(lambda _, s: Stop(s), label="check out")},
            timeout=timedelta(days=1),
            label="Collecting items",
        )
        return Ok({"total": 33.91, "state": str(state)})


def test_a_phase(env):
    handle = env.start(CollectsItems)
    env.advance(3 * 3600)
    handle.update("add_item", 1)

    found = said(env, handle)

    assert found.text == (
        "Collecting items since 00:00 (3 h). Waiting for add item, remove item or check out. "
        "Times out tomorrow at 00:00."
    )
    assert (found.state, found.trouble) == ("phase", False)


def test_completed(env):
    handle = env.start(CollectsItems)
    env.advance(2 * 3600)
    handle.signal("checkout")
    assert said(env, handle).text == "Completed at 02:00 after 2 h. Total: 33.91."


class SaysLittle(Workflow):
    name = "test.SaysLittle"

    async def run(self, args):
        match args:
            case "phase":
                await api.phase(0, signal={"go_on": lambda _, s: NoReply(s)})
            case "signal":
                await api.wait_for_signal("paid_in_full")
            case "timer":
                await api.sleep(timedelta(days=30), then="send the reminder")
            case "plain timer":
                await api.sleep(3600)
            case "condition":
                await api.wait_condition(lambda: False)
            case "charge":
                await charge_card()
            case "import":
                await import_file()
            case "declined":
                await declined()
            case "several":
                await api.parallel([lambda: api.sleep(60), charge_card, import_file, lambda: api.sleep(90)])
            case "child":
                await api.child(CollectsItems, id="basket-1")
            case "raises":
                raise KeyError("vat")
            case "reason":
                return Err("out of stock")
            case "again":
                return ContinueAsNew("signal")
            case "cancel":
                await api.sleep(600)
        return Ok(None)


@pytest.mark.parametrize(
    ("waits_for", "text", "state"),
    [
        ("phase", "Waiting for go on since 00:00 (10 s).", "phase"),
        ("signal", "Waiting for paid in full since 00:00 (10 s).", "signal"),
        ("condition", "Waiting for a condition since 00:00 (10 s).", "condition"),
        ("timer", "Sleeping until 31 Jan 00:00. Then: send the reminder.", "timer"),
        ("plain timer", "Sleeping until 01:00.", "timer"),
    ],
)
def test_what_it_waits_for(env, waits_for, text, state):
    handle = env.start(SaysLittle, waits_for)
    env.advance(10)

    found = said(env, handle)

    assert (found.text, found.state, found.trouble) == (text, state, False)


write_off = Approval(role="managers", due=timedelta(days=2), key="write_off")


class WriteOffs(GraphWorkflow):
    name = "test.WriteOffs"
    unique = Unique(key="order")
    initial = write_off
    transitions: ClassVar = {(write_off, event): Done for event in write_off.events}


def test_a_decision(env):
    handle = env.start(WriteOffs, value="7")
    env.advance(60)

    found = said(env, handle)

    assert found.text == (
        "Waiting since 00:00 for a decision by managers on “write off”: approved or rejected. "
        "If nobody decides by Saturday 00:00, the run continues by itself."
    )
    assert found.state == "decision"
    run = Instance.objects.get(pk=handle.run_id)
    assert summarize_run(run, redactor=UNREDACTED, now=env.clock, may_decide=True).text.endswith("You can decide this.")


delivered = WaitForEvent("delivered", timeout=timedelta(days=2))


class Deliveries(GraphWorkflow):
    name = "test.Deliveries"
    unique = Unique(key="parcel")
    initial = delivered
    transitions: ClassVar = {(delivered, event): Done for event in delivered.events}


asked = Approval(key="asked", due=timedelta(days=2))


class AsksAnybody(GraphWorkflow):
    name = "test.AsksAnybody"
    unique = Unique(key="asked")
    initial = asked
    transitions: ClassVar = {(asked, event): Done for event in asked.events}


def test_an_event_of_a_step_is_no_decision(env):
    """A step that asks nobody waits for an event; an approval without a role remains a decision."""
    handle = env.start(Deliveries, value="7")
    anybody = env.start(AsksAnybody, value="7")
    env.advance(60)

    found = said(env, handle)

    assert found.text == (
        "Waiting since 00:00 for an event of “wait for event”: delivered. "
        "If none comes by Saturday 00:00, the run continues by itself."
    )
    assert found.state == "decision"
    run = Instance.objects.get(pk=handle.run_id)
    assert summarize_run(run, redactor=UNREDACTED, now=env.clock, may_decide=True).text.endswith("You can send it.")
    assert "If nobody decides by" in said(env, anybody).text


def test_an_activity_under_way(env):
    env.hold(charge_card)
    handle = env.start(SaysLittle, "charge")
    env.advance(4)

    found = said(env, handle)

    assert found.text == "Charge the card: attempt 1, running for 4 s on ?."
    assert found.state == "activity"


def test_an_activity_that_fails(env):
    handle = env.start(SaysLittle, "charge")
    env.advance(7 * 60)

    found = said(env, handle)

    assert found.text == (
        "Charge the card has failed 8 times since 00:00. Last error: ConnectionError: refused (00:07). "
        "Next attempt at 00:08; gives up after 20 attempts."
    )
    assert (found.state, found.trouble) == ("failing", True)
    hidden = said(env, handle, view=Redactor(may_see_payloads=False)).text
    assert "refused" not in hidden
    assert "ConnectionError" in hidden


@pytest.mark.parametrize(
    ("sees", "text"),
    [
        (True, "Charge the card asked to be retried later (00:00): the bank is closed. Next attempt at 00:05;"),
        (False, "Charge the card asked to be retried later (00:00). Next attempt at 00:05;"),
    ],
)
def test_an_activity_that_asked_for_a_later_attempt(env, sees, text):
    """It says when and why, and is no trouble."""

    def refuse(*_):
        raise RetryLater("the bank is closed.", after=300, details={"card": 4711})

    env.mock(charge_card, refuse)
    handle = env.start(SaysLittle, "charge")
    env.advance(0)

    found = said(env, handle, view=Redactor(may_see_payloads=sees))

    assert found.text == f"{text} gives up after 20 attempts."
    assert (found.state, found.trouble, found.until) == ("failing", False, env.clock + timedelta(minutes=5))
    (one,) = handle.describe().activities
    assert (Redactor(may_see_payloads=sees).redact_activity(one).last_failure.details == {"card": 4711}) == sees


def test_a_silent_activity(env):
    env.hold(import_file)
    handle = env.start(SaysLittle, "import")
    task = env._held_tasks[0]
    env.storage.mark_tasks_started([task])
    env.clock += timedelta(minutes=2)

    found = said(env, handle)

    assert found.text.startswith(
        "Import file has not sent a heartbeat for 2 min (limit: 30 s). Its worker is considered lost "
    )
    assert (found.state, found.trouble) == ("silent", True)


def test_several_things(env):
    env.hold(import_file)
    handle = env.start(SaysLittle, "several")
    env.advance(1)

    found = said(env, handle)

    assert found.text == (
        "Waiting for 4 things: charge the card (retrying after 1 failure), import file (running), "
        "a timer (00:01), and 1 more."
    )
    assert (found.state, found.trouble) == ("several", True)


def test_a_child(env):
    handle = env.start(SaysLittle, "child")
    env.advance(60)

    found = said(env, handle)

    assert found.text.startswith("Waiting for collects items basket-1: “Collecting items since 00:00 (1 min).")
    assert found.state == "child"


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("raises", "Failed at 00:00: KeyError: 'vat'."),
        ("reason", "Failed at 00:00: out of stock."),
        ("declined", "Failed at 00:00 in “declined”: card declined (3 attempts)."),
    ],
)
def test_failed(env, how, text):
    handle = env.start(SaysLittle, how)
    env.advance(10)

    found = said(env, handle)

    assert (found.text, found.state, found.trouble) == (text, "failed", True)
    hidden = said(env, handle, view=Redactor(may_see_payloads=False)).text
    assert not any(word in hidden for word in ("vat", "stock", "card declined"))


def test_cancelled_and_terminated(env):
    cancelled, terminated = env.start(SaysLittle, "cancel"), env.start(SaysLittle, "cancel")
    cancelled.cancel("customer called")
    terminated.terminate("of no use")

    assert said(env, cancelled).text == "Cancelled at 00:00. Cleanup finished."
    assert said(env, terminated).text == "Terminated at 00:00: of no use. No cleanup ran."


class TakesTooLong(Workflow):
    name = "test.TakesTooLong"
    run_timeout = timedelta(days=30)

    async def run(self, args):
        await api.wait_for_signal("never")
        return Ok(None)


def test_out_of_time(env):
    handle = env.start(TakesTooLong)
    env.advance(30 * 86400)
    assert said(env, handle).text == "Timed out at 00:00 (limit: 30 d)."


def test_continued_as_new(env):
    handle = env.start(SaysLittle, "again")
    first = Instance.objects.get(pk=handle.run_ids[0])
    assert summarize_run(first, redactor=UNREDACTED, now=env.clock).text == "Continued in run 2 of this chain."


def test_nothing_has_taken_it_up():
    """First nobody is worried; then it says what is lacking."""
    handle = SaysLittle.start("signal", id="s-1")
    run = Instance.objects.get(pk=handle.run_id)
    soon = summarize_run(run, redactor=UNREDACTED, now=run.created_at + timedelta(seconds=2))
    late = summarize_run(run, redactor=UNREDACTED, now=run.created_at + timedelta(seconds=60))

    assert soon.text == "Started 2 s ago; no worker has picked it up yet."
    assert (soon.state, soon.trouble) == ("not_taken_up", False)
    assert late.text == (
        "Started 1 min ago; no worker has picked it up yet. It is waiting for a worker: no live worker polls the queue "
        "'default'. 0 workers are alive."
    )
    assert late.trouble
    assert not Worker.objects.exists()


class ChangesItsCode(Workflow):
    name = "test.ChangesItsCode"
    now = "old"

    async def run(self, args):
        if args == "raises in a handler of the turn":
            raise RecursionError("too deep")
        await (charge_card() if self.now == "old" else import_file())
        return Ok(None)


def test_blocked_where_code_and_history_part(monkeypatch):
    with translation.override("en"):
        env = DjangoEnvironment(evict=True)
        env.hold(charge_card)
        handle = env.start(ChangesItsCode)
        monkeypatch.setattr(ChangesItsCode, "now", "new")
        handle.signal("anything")

        found = said(env, handle)

    assert found.state == "blocked"
    assert found.text.startswith(
        "Blocked since 00:00: the code no longer matches what this run has already done. Event 3 recorded "
        "ActivityScheduled, "
    )
    assert "present/test_sentences.py:" in found.text
    assert (
        "Nothing is lost. It continues by itself once the code is fixed. Tried 1 time; next attempt at " in found.text
    )


def test_blocked_by_what_its_code_raises(env):
    handle = env.start(ChangesItsCode, "raises in a handler of the turn")

    found = said(env, handle)

    assert found.text.startswith("Blocked since 00:00: RecursionError: too deep in present/test_sentences.py:")
    assert found.trouble
    assert "too deep" not in said(env, handle, view=Redactor(may_see_payloads=False)).text


def test_a_blocked_run_says_since_when_and_how_many_others_are(env):
    handle, *others = [env.start(ChangesItsCode, "raises in a handler of the turn", id=f"b-{n}") for n in range(3)]
    env.advance(600)

    found = said(env, handle)

    assert found.text.startswith("Blocked since 00:00: RecursionError: too deep in ")
    assert " Tried 9 times; next attempt at 00:13. 2 other runs have the same problem." in found.text
    assert found.since == EPOCH
    others[0].terminate()
    assert said(env, handle).text.endswith(" 1 other run has the same problem.")


def test_blocked_because_it_kills_who_runs_it(env):
    handle = env.start(SaysLittle, "signal")
    for _ in range(3):
        recovery._attribute_crash(env.storage, MarkerContent((MarkedWork("chain", handle.chain_id),)))
        env.clock += timedelta(minutes=1)

    found = said(env, handle)

    assert found.text == (
        "Blocked since 00:02: 3 processes in a row died while running the code of this run; look for a "
        "segmentation fault, running out of memory or os._exit. Once you have fixed the code, try it again: a "
        "single worker then runs only this run."
    )
    assert said(env, handle, view=Redactor(may_see_payloads=False)).text == found.text


def test_an_activity_that_no_worker_takes(env):
    env.hold(charge_card)
    handle = env.start(SaysLittle, "charge")
    (task,) = env._held_tasks
    env.storage.release_tasks([(task.id, task.attempt, task.owner)])
    last = WorkerRow(kind="worker", queues=["default"], workflows={})
    last.register(env.storage)
    env.clock += timedelta(hours=1)

    found = said(env, handle)

    assert found.text == (
        "Charge the card has been waiting for a worker since 00:00. No live worker polls the queue default "
        f"(last seen: {Worker.objects.get()}, 00:00)."
    )
    assert (found.state, found.trouble) == ("no_worker", True)


def test_who_did_it_and_why(env):
    ann = get_user_model().objects.create_superuser("ann")
    runs = {name: env.start(SaysLittle, "cancel", id=name) for name in ("cancel", "terminate", "pause")}
    for name, handle in runs.items():
        getattr(handle, name)("customer called", by=ann)
    runs["pause"].signal("paid_in_full")
    runs["pause"].signal("paid_in_full")

    assert {name: said(env, handle).text for name, handle in runs.items()} == {
        "cancel": "Cancelled by ann at 00:00: customer called. Cleanup finished.",
        "terminate": "Terminated by ann at 00:00: customer called. No cleanup ran.",
        "pause": "Paused by ann since 00:00 (customer called). 2 messages are waiting.",
    }


@activity(label="send the parcel", retry=RetryPolicy(max_attempts=3, initial_interval=60, backoff=1))
def send_parcel(weight: int) -> int:
    if activity_context().attempt < 3:
        raise ConnectionError("busy")
    return weight


class ShipsParcels(Workflow):
    name = "test.ShipsParcels"

    async def run(self, args):
        await send_parcel(3)
        try:
            await declined()
        except errors.ActivityFailure:
            api.patched("kinder")
        await api.race(api.wait_for_signal("hurry"), lambda: api.sleep(3600))
        await api.child(SaysLittle, "plain timer", id="kid")
        with suppress(errors.TemporalexError):
            await api.signal_external("nobody", "hello")
        await api.phase(
            0, update={"weigh": lambda n, s: Reply(n, n), "drop": self.drop}, signal={"stop": lambda _, s: Stop(s)}
        )
        await api.sleep(60)
        return Err("lost")

    @staticmethod
    def drop(args, state):
        raise ValueError("too heavy")


def test_the_rows_of_a_history(env):
    ann = get_user_model().objects.create_superuser("ann")
    handle = env.start(ShipsParcels)
    env.advance(60 * 60)
    handle.signal("hurry", by=ann)
    env.advance(3600)
    handle.update("weigh", 3, by=ann)
    with pytest.raises(errors.UpdateFailed):
        handle.update("drop")
    handle.signal("stop")
    env.advance(60)

    found = build_rows(handle.history())

    titles = {"test.SaysLittle": "the kid"} | {one.name: one.label for one in (send_parcel,)}
    assert [row.text(now=env.clock, titles=titles) for row in found] == [
        "Run started, version 1",
        "Send the parcel: 3 attempts, 00:00 to 00:02, succeeded",
        "Declined: failed after 3 attempts, 00:02 to 00:02: ValueError: card declined",
        "Patch kinder",
        "Timer: due 01:02, cancelled at 01:00",
        "Signal hurry from ann",
        "The kid kid: 01:00 to 02:00, completed",
        "Message hello to nobody: not delivered: WorkflowNotFound: no run with the id 'nobody' was ever started",
        "Update weigh by ann: accepted, answered",
        "Update drop: failed: ValueError: too heavy",
        "Signal stop",
        "Timer: due 02:01, fired at 02:01",
        "Run failed: lost",
    ]


def test_the_rows_of_what_was_ended_by_hand(env):
    ann = get_user_model().objects.create_superuser("ann")
    done, failed, fired = (
        env.start(SaysLittle, kind, id=f"h-{n}") for n, kind in enumerate(["charge", "charge", "timer"])
    )
    done.complete_activity(1, "by cash", by=ann)
    failed.fail_activity(1, "no money", by=ann)
    fired.skip_timer(1, by=ann)

    told = [build_rows(handle.history())[1].text(now=env.clock) for handle in (done, failed, fired)]
    name = charge_card.name.rpartition(".")[2].replace("_", " ").capitalize()
    assert told == [
        f"{name}: completed by ann, 00:00 to 00:00",
        f"{name}: failed by ann, 00:00 to 00:00: FailedByHand: no money",
        "Timer: due 31 Jan 00:00, fired by ann at 00:00",
    ]


def test_what_is_read_for_it(env, django_assert_max_num_queries):
    """Six statements for one run, four for a page, however many there are."""
    every = ["phase", "charge", "several", "child", "raises", "again", "cancel", "timer"]
    handles = [env.start(SaysLittle, kind, id=f"{kind}-{n}") for kind in every for n in range(2)]
    handles.append(env.start(ChangesItsCode, "raises in a handler of the turn"))
    handles[0].pause()
    runs = Instance.objects.select_related("chain").order_by("pk")

    with django_assert_max_num_queries(1 + 4):
        assert len(summarize_runs(list(runs), redactor_of=lambda _: UNREDACTED, now=env.clock)) == runs.count()
    for run in runs:
        with django_assert_max_num_queries(6):
            summarize_run(run, redactor=UNREDACTED, now=env.clock)


# -- where people read them --------------------------------------------------------------------------------------------


@pytest.fixture
def asked_then(env, monkeypatch):
    """The sentences are asked for at the time of the environment."""
    monkeypatch.setattr(
        "temporalex_django.operations.read.run_summary.timezone", SimpleNamespace(now=lambda: env.clock)
    )


@pytest.fixture
def charging(env, asked_then):
    """A run whose activity fails again and again; what is said of it needs the permission to see payloads."""
    handle = env.start(SaysLittle, "charge")
    env.advance(7 * 60)
    return handle


def _reader(*permissions: str):
    user = get_user_model().objects.create_user("ann", is_staff=True)
    names = ("view_instance", *permissions)
    user.user_permissions.set(Permission.objects.filter(codename__in=names))
    rest, pages = APIClient(), Client()
    rest.force_authenticate(user)
    pages.force_login(user)
    return rest, pages


def _rest(client, address=""):
    response = client.get(f"/api/instances/{address}")
    assert response.status_code == 200, response.content
    return response.json()


def _page(client, address=""):
    response = client.get(f"/admin/temporalex_django/instance/console/runs/{address}")
    assert response.status_code == 200, response
    return response.content.decode()


def test_rest_says_it_of_one_run(charging):
    found = _rest(_reader("view_payload")[0], f"{charging.run_id}/")["summary"]

    assert found == {
        "state": "failing",
        "text": "Charge the card has failed 8 times since 00:00. Last error: ConnectionError: refused (00:07). "
        "Next attempt at 00:08; gives up after 20 attempts.",
        "trouble": True,
    }


def test_rest_says_it_of_each_run_of_a_list(env, charging, django_assert_num_queries):
    done, cancelled = env.start(CollectsItems), env.start(SaysLittle, "cancel")
    done.signal("checkout")
    cancelled.cancel("customer called")
    rest, _pages = _reader()
    _rest(rest)  # the permissions are in the user now

    with django_assert_num_queries(4):  # runs with their ends, activities, workers, switches
        rows = {row["run_id"]: row["summary"] for row in _rest(rest)["results"]}

    assert {run: said["state"] for run, said in rows.items()} == {
        charging.run_id: "failing",
        done.run_id: "completed",
        cancelled.run_id: "cancelled",
    }
    assert all(len(said["text"]) <= 140 for said in rows.values())
    failing = rows[charging.run_id]["text"]
    assert failing.startswith("Charge the card has failed 8 times since ")
    assert "refused" not in failing


@pytest.mark.usefixtures("asked_then")
def test_a_tag_does_not_follow_the_seconds_of_the_sentence(env):
    handle = env.start(SaysLittle, "signal")
    rest, _pages = _reader()
    address = f"/api/instances/{handle.run_id}/"
    before = rest.get(address)
    env.clock += timedelta(hours=5)
    after = rest.get(address)

    assert before.json()["summary"]["text"] != after.json()["summary"]["text"]
    assert before["ETag"] == after["ETag"]


def test_the_page_of_a_run_says_it_first(charging):
    text = _page(_reader("view_payload")[1], f"{charging.run_id}/")

    said = text.index("Charge the card has failed 8 times since ")
    assert said < text.index("failed on attempt")
    assert "gives up after 20 attempts." in text


@pytest.mark.usefixtures("asked_then")
def test_the_page_of_a_run_tells_who_may_decide(env):
    handle = env.start(WriteOffs, value="7")
    assert "You can decide this." not in _page(_reader()[1], f"{handle.run_id}/")
    root = Client()
    root.force_login(get_user_model().objects.create_superuser("root"))
    assert "You can decide this." in _page(root, f"{handle.run_id}/")


def test_the_list_of_the_console_says_it_of_open_runs(env, charging, django_assert_max_num_queries):
    for _ in range(3):
        env.start(SaysLittle, "signal")
    env.start(SaysLittle, "raises")
    _rest_of, pages = _reader()
    _page(pages)
    # session, user, two of permissions, ids, runs, activities, workers; workers and numbers of the views
    with django_assert_max_num_queries(11):
        text = _page(pages)

    assert "Charge the card has failed 8 times since " in text
    assert "refused" not in text
    assert text.count(">Waiting for paid in full since ") == 3
