"""Inputs of activities and children are compared on replay: the same code gives the same, changed code may not."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.conf import settings
from django.test import override_settings

from temporalex_django import Done, Event, GraphWorkflow, Ok, Step, Unique, Workflow, activity, api, errors
from tests.support import hosts
from tests.support.runs import flow, forget, kinds, work

S3CRET = "s3cret-value"


@activity(name="inputs.price")
def price(sku: str, currency: str = "EUR") -> str:
    return f"price of {sku}"


class Order:
    """Stands for what differs from one process to the next: a test turns it."""

    turned = False


@pytest.fixture(autouse=True)
def order() -> Iterator[type[Order]]:
    yield Order
    Order.turned = False


def skus() -> list[str]:
    return ["pot", "cup"] if Order.turned else ["cup", "pot"]


async def prices(self: Any, args: Any) -> Any:
    found = {}
    for sku in skus():
        found[sku] = await price(sku)
        await api.wait_for_signal("go")
    return Ok(found)


@pytest.fixture
def env(request: pytest.FixtureRequest) -> Any:
    """An environment of each host, without the replay at the end: these tests change code under runs."""
    return next(hosts.environment(request.param))


def test_replay_of_the_same_code_fails_on_another_input(env: Any, order: Any) -> None:
    """TX-178: with the event, the place and the path, and what may be the reason."""
    h = env.start(flow(prices))
    h.signal("go")
    env.replay(h)
    order.turned = True
    with pytest.raises(errors.NondeterminismError) as raised:
        env.replay(h)
    said = str(raised.value)
    assert "ActivityScheduled, seq 1, activity inputs.price, sku differs" in said
    assert "a set, from hash() or id()" in said
    assert "test_compared_inputs.py:" in (raised.value.place or "")
    with pytest.raises(errors.NondeterminismError):
        env.replay_all()


def test_a_set_of_another_process_is_found(env: Any) -> None:
    """Another order of the elements of a set, as another hash seed gives."""

    class Sku(str):
        """Hashes as a text does in another process."""

        __slots__ = ()

        def __hash__(self) -> int:
            return -super().__hash__() if Order.turned else super().__hash__()

    async def run(self: Any, args: Any) -> Any:
        found = {str(sku): await price(str(sku)) for sku in {Sku(f"{n}") for n in range(20)}}
        return Ok(found)

    h = env.start(flow(run))
    Order.turned = True
    with pytest.raises(errors.NondeterminismError, match="inputs.price, sku differs"):
        env.replay(h)


def test_histories_list_what_differs_and_fail_when_asked(env: Any) -> None:
    async def before(self: Any, args: Any) -> Any:
        await api.sleep(5)
        await work({"a": [1, {"b": 2}]})
        return Ok()

    async def after(self: Any, args: Any) -> Any:
        await api.sleep(7)
        await work({"a": [1, {"b": 3}]})
        return Ok()

    h = env.start(flow(before))
    env.advance(5)
    assert env.replay_history(flow(before), h.history(), strict=True) == []
    timer, other = env.replay_history(flow(after), h.history())
    assert (timer.kind, timer.path, timer.recorded, timer.produced) == ("duration", "duration", 5, 7)
    assert (other.kind, other.path) == ("input", "value.…[1].…")
    assert (other.recorded, other.produced) == (2, 3)
    assert "test_compared_inputs.py:" in other.place
    assert other.event == next(e.number for e in h.history() if e.kind == "ActivityScheduled")
    with pytest.raises(errors.NondeterminismError, match=r"value\.…\[1\]\.… differs"):
        env.replay_history(flow(after), h.history(), strict=True)


def test_durations_never_fail(env: Any) -> None:
    def sleeping(seconds: int) -> Any:
        async def run(self: Any, args: Any) -> Any:
            await api.sleep(seconds)
            await api.phase({}, signal={"go": lambda _, s: s}, timeout=seconds)
            return Ok()

        return flow(run)

    h = env.start(sleeping(5))
    env.advance(5)
    found = env.replay_history(sleeping(6), h.history(), strict=True)
    assert [one.kind for one in found] == ["duration", "duration"]


@dataclass
class Line:
    sku: str
    count: int = 1


def ordering(line_type: Any, line: Any, **more: Any) -> Any:
    @activity(name="inputs.order")
    def order_line(line: line_type, note: str = "") -> None: ...

    order_line.__wrapped__.__annotations__["line"] = line_type

    async def run(self: Any, args: Any) -> Any:
        await order_line(line, **more)
        return Ok()

    return flow(run)


@dataclass
class LongLine:
    sku: str
    count: int = 1
    gift: bool = False


def test_a_new_field_or_parameter_with_a_default_is_no_difference(env: Any) -> None:
    """The recorded input is read as today's code reads it."""
    h = env.start(ordering(Line, Line("cup")))
    assert env.replay_history(ordering(LongLine, LongLine("cup")), h.history(), strict=True) == []
    assert env.replay_history(ordering(LongLine, LongLine("cup"), note=""), h.history(), strict=True) == []
    [found] = env.replay_history(ordering(LongLine, LongLine("cup", gift=True)), h.history())
    assert (found.path, found.recorded, found.produced) == ("line.gift", False, True)
    [found] = env.replay_history(ordering(LongLine, LongLine("cup"), note="today"), h.history())
    assert (found.path, found.recorded, found.produced) == ("note", "", "today")


def test_an_input_that_fits_no_annotation_any_more_is_compared_as_it_is(env: Any) -> None:
    @dataclass
    class Other:
        number: int

    h = env.start(ordering(Line, Line("cup")))
    [found] = env.replay_history(ordering(Other, Other(5)), h.history())
    assert found.path.startswith("args[0]")


def test_inputs_of_children_are_compared(env: Any) -> None:
    class Kid(Workflow):
        name = "InputsKid"

        async def run(self, args: Line) -> Any:
            return Ok(args.sku)

    def parent(line: Any) -> Any:
        async def run(self: Any, args: Any) -> Any:
            return Ok(await api.child(Kid, line, id="kid-of-inputs"))

        return flow(run)

    h = env.start(parent(Line("cup")))
    assert env.replay_history(parent({"sku": "cup"}), h.history(), strict=True) == []
    [found] = env.replay_history(parent(Line("pot")), h.history())
    assert (found.kind, found.path, found.recorded, found.produced) == ("input", "args.sku", "cup", "pot")


def test_a_patch_makes_no_difference(env: Any) -> None:
    async def before(self: Any, args: Any) -> Any:
        await work("old")
        return Ok()

    async def after(self: Any, args: Any) -> Any:
        await work("new" if api.patched("other-input") else "old")
        return Ok()

    old, new = env.start(flow(before)), env.start(flow(after))
    for h in (old, new):
        assert env.replay_history(flow(after), h.history(), strict=True) == []


def test_steps_of_graphs_are_compared(env: Any) -> None:
    class Pick(Step):
        events = ("picked",)

        def execute(self, instance: Any, config: Line, context: Any) -> Any:
            return Event("picked")

    def graph(config: Any) -> Any:
        return type(
            "InputsGraph",
            (GraphWorkflow,),
            {
                "__module__": __name__,
                "unique": Unique(key="inputs"),
                "initial": (Pick, config),
                "transitions": {(Pick, "picked"): Done},
            },
        )

    h = env.start(graph({"sku": "cup"}), {}, value="1")
    assert env.replay_history(graph({"sku": "cup", "count": 1}), h.history(), strict=True) == []
    [found] = env.replay_history(graph({"sku": "pot"}), h.history())
    assert (found.path, found.recorded, found.produced) == ("config.sku", "cup", "pot")


def test_of_an_edited_input_the_original_counts(env: Any) -> None:
    """A reset with another input leaves the code as it is."""

    async def run(self: Any, args: Any) -> Any:
        await work("original")
        await api.wait_for_signal("go")
        return Ok()

    h = env.start(flow(run))
    h.reset(1, edited={1: ["edited"]})
    env.replay(h)  # raises where an input differs
    h.signal("go")
    env.replay(h)

    assert env.replay_history(flow(run), h.history(), strict=True) == []


@pytest.mark.hosts("memory", "database")
def test_at_run_time_a_difference_is_one_warning_without_a_value(env: Any, order: Any, caplog: Any) -> None:
    caplog.set_level(logging.WARNING, "temporalex_django")

    async def run(self: Any, args: Any) -> Any:
        await work({"secret": S3CRET if Order.turned else "other"})
        await api.wait_for_signal("go")
        await api.wait_for_signal("go")
        return Ok("well")

    h = env.start(flow(run))
    order.turned = True
    for _ in range(2):
        forget(env)
        h.signal("go")
    assert h.result() == "well"
    [said] = [one for one in caplog.records if "different input" in one.getMessage()]
    assert "ActivityScheduled, seq 1, activity tests.support.runs.work: value.… differs" in said.getMessage()
    assert "more)" not in said.getMessage()
    assert S3CRET not in caplog.text
    assert "secret" not in said.getMessage()
    assert said.__dict__["workflow_id"] == h.id


@pytest.mark.hosts("memory", "database")
def test_strict_replay_blocks_and_heals(env: Any, order: Any) -> None:
    with override_settings(TEMPORALEX={**getattr(settings, "TEMPORALEX", {}), "STRICT_REPLAY": True}):
        strict = type(env)()
        h = strict.start(flow(prices))
        order.turned = True
        strict.engine.cache.clear()
        h.signal("go")
        assert isinstance(h.blocked, errors.NondeterminismError)
        assert "sku differs" in str(h.blocked)
        assert "pot" not in str(h.blocked)
        assert kinds(h).count("ActivityScheduled") == 1
        order.turned = False
        strict.advance(3600)
        assert h.blocked is None
        h.signal("go")
        assert h.result() == {"cup": "price of cup", "pot": "price of pot"}


def test_messages_name_the_cure_for_a_new_name(env: Any) -> None:
    @activity(name="inputs.old_name")
    def old() -> None: ...

    @activity(name="inputs.new_name")
    def new() -> None: ...

    def calling(act: Any) -> Any:
        async def run(self: Any, args: Any) -> Any:
            await act()
            return Ok()

        return flow(run)

    h = env.start(calling(old))
    with pytest.raises(errors.NondeterminismError, match=r"@activity\(aliases=\['inputs.old_name'\]\)"):
        env.replay_history(calling(new), h.history())
