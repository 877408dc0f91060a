"""What goes wrong is told where it goes wrong: payloads that would change, signals and updates that nobody takes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any, TypedDict

import pytest

from temporalex_django import (
    Done,
    Err,
    Event,
    GraphWorkflow,
    Ok,
    Pending,
    Reply,
    Step,
    Stop,
    Unique,
    Wait,
    WaitForEvent,
    activity,
    api,
    errors,
    event,
    update,
)  # fmt: skip
from temporalex_django.authoring import activity as activities
from temporalex_django.authoring import workflow as workflows
from temporalex_django.core import names as aliases
from tests.support.people import person
from tests.support.runs import flow, forget

DONE = {"done": lambda _, state: Stop(state)}


@dataclass
class Priced:
    price: Decimal
    due: date


@activity
def untyped(value=None, *more, **named):
    return value if value != "decimal" else {"total": Decimal("1.0")}


@activity
def typed(value: Decimal, *more: date, **named: set[int]) -> tuple[Decimal, Priced]:
    assert isinstance(value, Decimal) and all(isinstance(one, date) for one in more)
    assert all(isinstance(one, set) for one in named.values())
    return value * 2, Priced(value, more[0])


def test_what_would_come_back_as_something_else_is_refused_where_it_is_handed_over(env):
    seen = {}

    def bad(args, state):
        return Reply(Decimal(1), state)

    async def run(self, args):
        for name, call in {
            "argument": lambda: untyped({"total": Decimal("1.0")}),
            "named": lambda: untyped(1, when=date(2026, 1, 2)),
            "further": lambda: untyped(1, {3}),
            "published": lambda: api.publish_state({"at": {1: "x"}}),
        }.items():
            try:
                call()
            except errors.PayloadError as exc:
                seen[name] = str(exc)
        try:
            await untyped.options(retry=None)("decimal")
        except errors.ActivityFailure as exc:
            seen["result"] = f"{exc.type} {exc.attempts}: {exc.cause}"
        await api.phase(None, update={"bad": bad}, signal=DONE)
        return Ok({"deep": [b"x"]})

    h = env.start(flow(run))
    with pytest.raises(errors.UpdateFailed, match="PayloadError: the response of update 'bad' has a Decimal, which"):
        h.update("bad")
    h.signal("done")
    with pytest.raises(errors.WorkflowFailed, match=r"the result of run has bytes at `\$\.deep\[0\]`.*annotate run"):
        h.result()
    both = "annotate that parameter of untyped, or convert it first"
    assert "argument 1 of" in seen["argument"] and "at `$.total`" in seen["argument"] and both in seen["argument"]
    assert "argument 'when' of" in seen["named"] and "argument 2 of" in seen["further"]
    assert "a key that is not a string (int) at `$.at`" in seen["published"]
    assert seen["result"].startswith("PayloadError 1: the result of") and "annotate its return" in seen["result"]


def test_what_is_annotated_comes_back_as_it_was(env):
    async def run(self, args: Priced) -> Ok[Priced] | Err[Any]:
        assert isinstance(args, Priced) and args.price == Decimal("1.50")
        doubled, priced = await typed(args.price, args.due, numbers={1, 2})
        assert isinstance(doubled, Decimal) and isinstance(priced, Priced)
        await api.sleep(1)
        return Ok(Priced(doubled, priced.due + timedelta(days=1)))

    Kid = flow(run)

    async def parent(self, args):
        got = await api.child(Kid, Priced(Decimal("1.50"), date(2026, 1, 2)), id="kid")
        return Ok(str(got.price))

    h = env.start(Kid, Priced(Decimal("1.50"), date(2026, 1, 2)))
    top = env.start(flow(parent, name="TruthParent"))
    env.advance(2)
    assert h.result() == Priced(Decimal("3.00"), date(2026, 1, 3))
    assert h.history()[-1].attributes["result"] == {"price": "3.00", "due": "2026-01-03"}
    assert top.result() == "3.00"


def test_not_accepting_now_and_refused_by_the_validator_are_told_apart(env):
    def validate(args, state):
        if args == "raise":
            raise ValueError("no such thing")
        return Err({"left": 3}) if args == "err" else None

    async def run(self, args):
        await api.phase(0, update={"take": update(lambda _, state: Reply(1, state), validator=validate)}, signal=DONE)
        await api.sleep(10)
        return Ok()

    h = env.start(flow(run))
    with pytest.raises(errors.UpdateRejected) as refused:
        h.update("take", "err")
    assert (refused.value.code, refused.value.reason, refused.value.accepts) == ("update_rejected", {"left": 3}, None)
    with pytest.raises(errors.UpdateRejected, match="no such thing") as raised:
        h.update("take", "raise")
    assert raised.value.reason == "no such thing"
    with pytest.raises(errors.NotAccepting) as other:
        h.update("give")
    assert (other.value.code, other.value.reason) == ("not_accepting", None)
    assert other.value.accepts == {"signals": ["done"], "updates": ["take"]}
    h.signal("done")
    with pytest.raises(errors.NotAccepting) as nothing:
        h.update("take")
    assert nothing.value.accepts == {"signals": [], "updates": []}


def test_an_update_of_a_blocked_run_is_tried_once_and_withdrawn_and_of_a_paused_one_refused(env):
    broken = [False]

    async def run(self, args):
        if broken[0]:
            await untyped()
        return Ok(await api.phase(0, update={"add": lambda n, total: Reply(total + n, total + n)}, signal=DONE))

    h = env.start(flow(run))
    assert h.update("add", 1) == 1
    broken[0] = True
    forget(env)
    tries = []
    for _ in range(2):
        with pytest.raises(errors.UpdateRejected) as caught:
            h.update("add", 2, id="again")
        assert caught.value.code == "blocked" and "NondeterminismError" in caught.value.reason
        tries.append(h.describe().blocked["attempt"])
    assert tries == [1, 2]  # each of them once
    h.signal("done")  # is kept
    broken[0] = False
    env.advance(600)
    assert h.result() == 1

    paused = env.start(flow(run))
    paused.pause("holiday")
    with pytest.raises(errors.RunPaused) as held:
        paused.update("add", 1)
    assert held.value.code == "paused" and isinstance(held.value, errors.UpdateRejected)


def test_signals_that_a_class_does_not_declare_are_refused_at_the_sender_and_at_the_call(env):
    seen = []

    async def run(self, args):
        for call in (
            lambda: api.phase(0, signal={"payed": lambda _, state: Stop(state)}),
            lambda: api.wait_for_signal("payed"),
        ):
            try:
                call()
            except errors.WorkflowDefinitionError as exc:
                seen.append(str(exc))
        await api.phase(0, signal={"paid": lambda _, state: Stop(state)})
        return Ok(await api.wait_for_signal("shipped"))

    Declared = flow(run, signals=("paid", "shipped"), name="TruthDeclared")
    h = env.start(Declared)
    assert len(seen) >= 2 and all("'payed' is not among the signals" in one for one in seen)
    with pytest.raises(errors.UnknownSignal, match="did you mean 'paid'") as caught:
        h.signal("payed")
    assert caught.value.known == ["paid", "shipped"]
    with pytest.raises(errors.UnknownSignal):
        env.signal_with_start(Declared, "payed", id="not-started")
    with pytest.raises(errors.WorkflowNotFound):
        env.handle("not-started")
    h.signal("paid")
    h.signal("shipped", "box")
    assert h.result() == "box"

    async def waits(self, args):
        await api.wait_for_signal("paid")
        return Ok(await api.wait_for_signal("shipped"))

    undeclared = env.start(flow(waits))  # takes any, and says in its closing event what nobody took
    undeclared.signal("payed")
    undeclared.signal("paid")
    undeclared.signal("shipped")
    assert undeclared.history()[-1].attributes["never_consumed"] == ["payed"]
    for wrong in ("paid", ("",), ("__resume__",), (1,)):
        with pytest.raises(errors.WorkflowDefinitionError, match="signals"):
            flow(run, signals=wrong)


def test_a_signal_to_another_run_is_refused_where_its_class_declares_others(env):
    async def waits(self, args):
        return Ok(await api.wait_for_signal("paid"))

    async def sends(self, args):
        try:
            await api.signal_external(args, "payed", 1)
        except errors.UnknownSignal as exc:
            found = [str(exc), exc.known]
        await api.signal_external(args, "paid", 2)
        return Ok(found)

    Paid = flow(waits, signals=("paid",), name="TruthPaid")
    declared, second = env.start(Paid, id="declared"), env.start(Paid, id="declared too")
    Sends = flow(sends, name="TruthSends")
    free = env.start(flow(waits, name="TruthTakesAny"), id="free")
    by_id, by_run_id = env.start(Sends, "declared"), env.start(Sends, second.run_id)
    for sender in (by_id, by_run_id):
        text, known = sender.result()
        assert "does not accept the signal 'payed': did you mean 'paid'" in text and known == ["paid"]
    for target in (declared, second):
        assert target.result() == 2
        assert "payed" not in [event.attributes.get("name") for event in target.history()]

    async def misspells(self, args):
        await api.signal_external(args, "payed", 1)
        return Ok("sent")

    assert env.start(flow(misspells, name="TruthMisspells"), "free").result() == "sent"  # it takes any
    free.signal("paid")
    assert free.history()[-1].attributes["never_consumed"] == ["payed"]


def test_async_methods_of_the_orm_say_what_the_plain_ones_say(env):
    from django.contrib.auth.models import Group

    async def run(self, args):
        return Ok(await Group.objects.filter(name="x").aget() if args else [one async for one in Group.objects.all()])

    for which in (True, False):
        with pytest.raises(errors.WorkflowFailed) as caught:
            env.start(flow(run), which).result()
        assert caught.value.type == "DeterminismViolation"
        assert "the ORM in workflow code" in str(caught.value) and "test_lossy_payloads_and_unknown_messages.py" in str(
            caught.value
        )
        assert "use the ORM in an activity" in str(caught.value)


def test_ids_are_texts_values_may_be_numbers_and_who_acts_is_a_user(env):
    async def run(self, args):
        return Ok(await api.wait_for_signal("go"))

    with pytest.raises(
        errors.InvalidId, match="5 is not a valid id: use 1 to 200 printable characters.*; it must be a string, not int"
    ):
        env.start(flow(run), id=5)
    h = env.start(
        flow(run, unique=Unique(key="truthid"), name="TruthNumber"), value=42
    )  # a key of a model: its own text
    assert h.id == "truthid::42"
    with pytest.raises(errors.InvalidId, match="it must be a string, not bool"):
        env.start(flow(run, unique=Unique(key="truthid"), name="TruthNumber"), value=True)
    with pytest.raises(errors.WorkflowNotFound, match="no run with the id '42'"):
        env.handle(42)
    with pytest.raises(errors.InvalidId, match="7 is not a valid signal id: .*; it must be a string, not int"):
        h.signal("go", 1, id=7)
    with pytest.raises(
        errors.ActionNotPermitted, match=r"by='boss' is not a user: pass a user .*request\.user.*, not str"
    ):
        h.signal("go", by="boss")
    h.signal("go", 1)
    assert h.result() == 1


class Scored(TypedDict):
    score: int


class AskReview(Step):
    events = (event("scored", data=Scored), "skipped")

    def execute(self, instance, config, context):
        return Pending() if context.initial.wait else Event("scored", {"score": context.initial.score})


def graph_of(name, initial, transitions):
    return type(
        name,
        (GraphWorkflow,),
        {"unique": Unique(key="truth"), "initial": initial, "transitions": transitions, "__module__": __name__},
    )


def not_too_high(data, context):
    if data["score"] > context.initial.most:
        return Err({"most": context.initial.most})
    return None


def test_events_of_a_graph_have_typed_data_a_validator_and_a_permission(env):
    judged = event("scored", data=Scored, validator=not_too_high, permission="auth.add_group")
    wait = WaitForEvent(judged, timeout=60, key="review")
    early = WaitForEvent("sooner", timeout=60, key="early", outside=True)
    asleep = Wait(60, key="asleep", outside=True)
    Reviewed = graph_of(
        "TruthReviewed",
        wait,
        {
            (wait, "scored"): asleep,
            (wait, "timeout"): Done,
            (asleep, "timeout"): early,
            (early, "sooner"): Done,
            (early, "timeout"): Done,
        },
    )
    clerk, nobody = person(env, "clerk", "auth.add_group"), person(env, "nobody")

    h = env.start(Reviewed, {"most": 5}, value="1")
    with pytest.raises(errors.ActionNotPermitted, match="auth.add_group"):
        h.resume("scored", data={"score": 1}, by=nobody)
    with pytest.raises(errors.PayloadError, match=r"the data of the event 'scored' does not fit Scored"):
        h.resume("scored", data={"score": "high"}, by=clerk)
    with pytest.raises(errors.UpdateRejected) as refused:
        h.resume("scored", data={"score": 9}, by=clerk)
    assert refused.value.reason == {"most": 5} and refused.value.code == "update_rejected"
    with pytest.raises(errors.ResumeRefused, match="timeout"):
        h.resume("timeout")
    h.resume("scored", data={"score": 3}, by=clerk)
    h.resume("timeout")
    h.resume("timeout")
    assert h.result()["review"]["score"] == 3 and h.result()["review"]["by"] == "clerk"

    typed = graph_of("TruthTyped", AskReview, {(AskReview, "scored"): Done, (AskReview, "skipped"): Done})
    assert env.start(typed, {"wait": False, "score": 2}, value="2").result()["ask_review"] == {"score": 2}
    with pytest.raises(errors.WorkflowFailed, match="does not fit Scored"):
        env.start(typed, {"wait": False, "score": "much"}, value="3").result()
    waiting = env.start(typed, {"wait": True}, value="4")
    with pytest.raises(errors.PayloadError):
        waiting.resume("scored", data={})
    waiting.resume("scored", data={"score": 1})
    assert waiting.result()["ask_review"] == {"score": 1}
    for wrong in (
        lambda: event("__x"),
        lambda: event("x", validator=lambda data: None),
        lambda: event("x", permission="score"),
        lambda: WaitForEvent("x", outside=True),
    ):
        with pytest.raises(errors.WorkflowDefinitionError):
            wrong()


def test_histories_go_on_with_activities_and_classes_that_were_renamed(env):
    @activity(name="truth.charge")
    def charge():
        return "old"

    async def run(self, args):
        first = await charge()
        await api.sleep(10)
        return Ok([first, await charge()])

    h = env.start(flow(run, name="TruthOrder"), id="moved")
    activities.registry.pop("truth.charge")

    @activity(name="truth.billing.charge", aliases=["truth.charge"])
    def charge_now():
        return "new"

    async def renamed(self, args):
        first = await charge_now()
        await api.sleep(10)
        return Ok([first, await charge_now()])

    workflows.registry.pop("TruthOrder")
    New = flow(renamed, name="TruthInvoice", aliases=("TruthOrder",))
    assert workflows.find("TruthOrder") is New and workflows.class_for_run("TruthOrder", 1) is New
    env.replay_history(New, h.history())
    assert activities.find("truth.charge").name == "truth.billing.charge"
    with pytest.raises(errors.WorkflowDefinitionError, match="aliases"):
        flow(run, aliases="TruthOrder")


@pytest.mark.parametrize("scope", ["workflow", "version", "global"])
def test_an_id_is_held_by_open_runs_of_the_names_that_a_class_had(env, scope, monkeypatch):
    async def run(self, args):
        return Ok(await api.wait_for_signal("go"))

    async def parent(self, args):
        try:
            return Ok(await api.child(Newest, id="held::1"))
        except errors.ChildWorkflowFailure as exc:
            return Ok(str(exc))

    unique = Unique(key="held", scope=scope)
    names = [f"TruthHeld{scope}{number}" for number in range(3)]
    first = env.start(flow(run, name=names[0], unique=unique), value="1")
    workflows.registry.pop(names[0])
    flow(run, name=names[1], unique=unique, aliases=names[:1])
    workflows.registry.pop(names[1])
    Newest = flow(run, name=names[2], unique=unique, aliases=names[:2])
    with pytest.raises(errors.AlreadyRunning):
        env.start(Newest, value="1")
    assert "AlreadyRunning" in env.start(flow(parent)).result()
    assert env.handle("held::1", workflow=Newest).run_id == first.run_id

    first.signal("go", "old")
    assert first.result() == "old"
    second = env.start(Newest, value="1")  # free again
    assert env.handle("held::1").run_id == second.run_id  # one workflow under several names
    with monkeypatch.context() as before_the_deploy:
        before_the_deploy.setattr(aliases, "WORKFLOWS", {})
        Old = flow(run, name=names[0], unique=unique)
        with pytest.raises(errors.AlreadyRunning):
            env.start(Old, value="1")
        workflows.registry.pop(names[0])
    second.signal("go", "new")


def test_a_run_that_handed_over_what_is_refused_by_now_is_blocked_with_the_way_out(env):
    """It was a text when it was recorded; the code gives a Decimal, which nothing annotates."""
    total = ["1.5"]

    async def run(self, args):
        await untyped({"total": total[0]})
        await api.sleep(10)
        return Ok()

    h = env.start(flow(run, name="TruthHandsOver"))
    total[0] = Decimal("1.5")
    with pytest.raises(errors.NondeterminismError) as caught:
        env.replay(h)
    assert caught.value.produced == "WorkflowFailed, PayloadError"
    assert (
        "argument 1 of tests.acceptance.test_lossy_payloads_and_unknown_messages.untyped has a Decimal at `$.total`"
        in str(caught.value)
    )
    assert "annotate that parameter of untyped, or convert it first: str(value))" in str(caught.value)
    total[0] = "1.5"


def test_aliases_are_names(env):
    async def run(self, args):
        return Ok()

    with pytest.raises(errors.WorkflowDefinitionError, match="aliases"):
        flow(run, aliases="TruthOrder")
    with pytest.raises(errors.WorkflowDefinitionError, match="alias"):
        activity(aliases=[""])
