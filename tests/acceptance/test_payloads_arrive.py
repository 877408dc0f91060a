"""Wherever a value is sent, it arrives by types, fields and order of keys, or it is refused where it is sent."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest

from temporalex_django import ContinueAsNew, NoReply, Ok, Reply, Stop, activity, api, errors, query
from tests.support.runs import flow

pydantic = pytest.importorskip("pydantic")


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Base:
    name: str


@dataclass
class Child(Base):
    more: str = ""


class Order(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    key: int = pydantic.Field(alias="theKey")
    due: date = pydantic.Field(validation_alias=pydantic.AliasChoices("due1", "due2"))
    price: Decimal
    colors: set[Color] = set()
    notes: dict[str, int] = pydantic.Field(default_factory=dict)


class Login(pydantic.BaseModel):
    password: pydantic.SecretStr | None = None


ORDER = Order(theKey=1, due1=date(2026, 1, 2), price=Decimal("1.50"), colors={*Color}, notes={"z": 1, "a": 2})
SECRET = Login(password=pydantic.SecretStr("hunter2"))


@activity
def echo(value: Order) -> Order:
    assert isinstance(value, Order)
    return value


@activity
def plain(value: Any) -> Any:
    return value


@activity
def base(value: Base) -> Base:
    return Child(value.name) if value.name == "child" else value


@activity
def login(value: Login | None = None) -> Login:
    return SECRET


def test_a_value_arrives_as_it_was_sent_wherever_it_is_sent(env):
    async def kid(self, args: Order) -> Ok[Order]:
        return Ok(args)

    Kid = flow(kid, name="ArrivesKid")

    def add(order: Order, state):
        assert order == ORDER and list(order.notes) == ["z", "a"]
        return Reply({"z": 1, "a": 2}, [*state, order.key])

    def note(order: Order, state):
        assert order == ORDER
        return NoReply(state)

    async def run(self, args: Order | None) -> Ok[list[Order]]:
        seen = await api.phase([], update={"add": add}, signal={"note": note, "done": lambda _, state: Stop(state)})
        if seen == [1]:
            return ContinueAsNew(args)
        return Ok([await echo(args), await api.child(Kid, args, id=f"kid-{api.info().id}")])

    h = env.start(flow(run, name="Arrives"), ORDER, id="arrives")
    h.signal("note", ORDER)
    assert list(h.update("add", ORDER)) == ["z", "a"]
    h.signal("done")
    h.signal("done")
    result = h.result()
    assert result == [ORDER, ORDER] and [list(one.notes) for one in result] == [["z", "a"]] * 2


def test_keys_keep_their_order_in_arguments_results_and_published_state(env):
    async def run(self, args):
        assert list(args) == ["z", "a", "m"]
        api.publish_state({"b": 1, "a": {"y": 1, "x": 2}})
        answer = await plain({"z": 1, "a": [{"q": 1, "c": 2}]})
        assert (list(answer), list(answer["a"][0])) == (["z", "a"], ["q", "c"])
        await api.sleep(1)
        return Ok({"z": answer, "a": 1})

    @query("state")
    def read(state):
        return state

    h = env.start(flow(run, name="Ordered", read=read), {"z": 1, "a": 2, "m": 3})
    state = h.query("state")
    assert (list(state), list(state["a"])) == (["b", "a"], ["y", "x"])
    env.advance(2)
    assert (list(h.result()), list(h.result()["z"])) == (["z", "a"], ["z", "a"])


def test_a_subclass_is_refused_where_it_is_sent(env):
    async def kid(self, args: Base) -> Ok[Base]:
        return Ok(Child("k") if args.name == "child" else args)

    Kid = flow(kid, name="RefusesKid")
    said = {}

    async def run(self, args: Base | None = None) -> Ok[Any]:
        for name, call in {
            "argument": lambda: base(Child("a", "b")),
            "child": lambda: api.child(Kid, Child("a", "b"), id="kid"),
        }.items():
            try:
                call()
            except errors.PayloadError as exc:
                said[name] = str(exc)
        try:
            await base.options(retry=None)(Base("child"))
        except errors.ActivityFailure as exc:
            said["result"] = str(exc.cause)

        def take(args: Base, state):
            return Stop(state)

        await api.phase(None, signal={"take": take}, update={"ask": take})
        return ContinueAsNew(Child("next"))

    Flow = flow(run, name="Refuses")
    with pytest.raises(errors.PayloadError, match="the input of Refuses has a Child, which would come back as a Base"):
        env.start(Flow, Child("a"))
    h = env.start(Flow)
    assert "argument 1 of" in said["argument"] and "a Child, which would come back as a Base" in said["argument"]
    assert "the input of RefusesKid has a Child" in said["child"]
    assert "a Child, which would come back as a Base" in said["result"]
    for send in (h.signal, h.update):
        with pytest.raises(
            errors.PayloadError, match=f"'{'take' if send == h.signal else 'ask'}' of Refuses has a Chi"
        ):
            send("take" if send == h.signal else "ask", Child("a"))
    h.signal("take", Base("a"))
    with pytest.raises(errors.WorkflowFailed, match="arguments of ContinueAsNew has a Child"):
        h.result()
    with pytest.raises(errors.WorkflowFailed, match="the result of run has a Child"):
        env.start(Kid, Base("child"), id="failing").result()


def test_a_secret_is_refused_wherever_it_is_sent_and_stands_in_no_history(env):
    said = {}

    async def run(self, args: Login | None = None):
        for name, call in {
            "typed": lambda: login(SECRET),
            "untyped": lambda: plain([SECRET]),
            "published": lambda: api.publish_state({"a": SECRET}),
        }.items():
            try:
                call()
            except errors.PayloadError as exc:
                said[name] = str(exc)
        try:
            await login.options(retry=None)()
        except errors.ActivityFailure as exc:
            said["result"] = str(exc.cause)
        await api.phase(
            None, signal={"done": lambda _, state: Stop(state)}, update={"ask": lambda _, s: Reply(SECRET, s)}
        )
        return Ok(SECRET)

    Flow = flow(run, name="Secretive")
    with pytest.raises(errors.PayloadError, match="is a secret|contains a SecretStr"):
        env.start(Flow, SECRET)
    h = env.start(Flow)
    with pytest.raises(errors.PayloadError, match="contains a SecretStr"):
        h.signal("done", SECRET)
    with pytest.raises(errors.UpdateFailed, match="contains a SecretStr"):
        h.update("ask")
    h.signal("done")
    with pytest.raises(errors.WorkflowFailed, match="contains a SecretStr"):
        h.result()
    assert len(said) == 4 and all("PAYLOAD_CODEC" in text for text in said.values())
    assert "hunter2" not in repr(h.history())


def test_a_value_that_no_model_reads_back_is_refused_where_it_is_sent(env):
    broken = Order.model_construct(key="much", due=date(2026, 1, 2), price=Decimal(1))

    async def run(self, args: Any = None) -> Ok[Any]:
        with pytest.raises(errors.PayloadError, match=r"argument 1 of .*echo cannot be read back from JSON: .*key"):
            echo(broken)
        with pytest.raises(errors.PayloadError, match="a datetime, which would come back as another datetime"):
            at(datetime(2026, 1, 1, fold=1))  # noqa: DTZ001
        return Ok()

    env.start(flow(run, name="Unreadable")).result()


@activity
def at(value: datetime) -> None: ...
