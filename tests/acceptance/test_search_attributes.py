"""Search attributes and tags: what workflow code sets is what runs are found by, on every host."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from temporalex_django import ContinueAsNew, NoReply, Ok, Stop, VersionedWorkflow, Workflow, api, errors
from tests.support.people import person

DECLARED = {
    "total": Decimal,
    "customer": str,
    "lines": int,
    "paid": bool,
    "due": date,
    "seen": datetime,
    "words": list[str],
}
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ALL = {
    "total": Decimal("12.50"),
    "customer": "O'Brien \"%_\\",
    "lines": 2**63 - 1,
    "paid": False,
    "due": date(2026, 3, 1),
    "seen": NOON,
    "words": ["a", "b", "a"],
}


class Searched(Workflow):
    """Sets what it is told until it is told to go on, or to stop."""

    name = "test.Searched"
    tags = ["of the class"]
    search_attributes = DECLARED

    async def run(self, args: Any) -> Any:
        def put(payload: Any, state: Any) -> Any:
            name, value = payload
            api.set_search_attributes({name: Decimal(value) if name == "total" else value})
            return NoReply(state)

        def shown(payload: Any, state: Any) -> Any:
            api.set_search_attributes({"lines": 1})
            raise LookupError("not like this")

        how = await api.phase(
            None,
            signal={"put": put, "again": lambda _p, _s: Stop("again"), "stop": lambda _p, _s: Stop("stop")},
            update={"shown": shown},
        )
        if how == "again":
            api.set_search_attributes({"customer": "again"})
            return ContinueAsNew(args)
        return Ok(await api.child(Found, id="kid", search_attributes={"of": "kid"}, tags=["small"]) if args else None)


class Found(Workflow):
    """A child with attributes of its own."""

    name = "test.Found"
    search_attributes = {"of": str}

    async def run(self, args: Any) -> Any:
        await api.sleep(5)
        api.set_search_attributes({"of": None})
        return Ok("found")


def ids(env: Any, **attributes: Any) -> list[str]:
    return [handle.id for handle in env.list(Searched, attributes=attributes)]


def test_values_of_every_type_are_given_shown_and_found(env):
    one = env.start(Searched, id="one", search_attributes=ALL, tags=["mine", "of the class"])
    env.start(Searched, id="two", search_attributes={"total": 3, "customer": "o'brien", "words": [], "paid": True})
    env.start(Searched, id="none")
    env.start(Found, id="other", search_attributes={"of": "x"})

    said = one.describe()
    assert said.search_attributes == {**ALL, "words": ["a", "b"]}
    assert [type(said.search_attributes[name]) for name in ("total", "due", "seen")] == [Decimal, date, datetime]
    assert (said.tags, env.handle("none").describe().tags) == (["of the class", "mine"], ["of the class"])
    assert [handle.id for handle in env.list(Searched, tag="mine")] == ["one"]
    assert [handle.id for handle in env.list(Searched)] == ["none", "two", "one"]
    env.start(Searched, id="last", search_attributes={"customer": "z\U0010ffff\U0010ffffx"})
    last = ["last"]
    day = timedelta(days=1)
    for asked, wanted in [
        ({"customer": ALL["customer"]}, ["one"]),
        ({"customer__prefix": "O'"}, ["one"]),
        ({"customer__prefix": "O'Brien \"%"}, ["one"]),
        ({"customer__prefix": "_"}, []),
        ({"total": Decimal("12.5")}, ["one"]),
        ({"total__gt": 3}, ["one"]),
        ({"total__gte": 3}, ["two", "one"]),
        ({"total__lt": Decimal("12.5")}, ["two"]),
        ({"total__lte": Decimal("12.5"), "paid": True}, ["two"]),
        ({"total__gt": 1, "customer": "o'brien"}, ["two"]),
        ({"total__gt": 1, "total__lt": 4}, ["two"]),
        ({"lines": 2**63 - 1}, ["one"]),
        ({"lines__lt": 5}, []),
        ({"paid": False}, ["one"]),
        ({"due": date(2026, 3, 1)}, ["one"]),
        ({"due__gt": date(2026, 3, 1)}, []),
        ({"seen__gte": NOON, "seen__lt": NOON + day}, ["one"]),
        ({"words": "b"}, ["one"]),
        ({"words__prefix": "a"}, ["one"]),
        ({"words": "c"}, []),
        *(({"customer__prefix": text}, last) for text in ("z", "z\U0010ffff", "z\U0010ffff\U0010ffff")),
        ({}, ["last", "none", "two", "one"]),
    ]:
        assert ids(env, **asked) == wanted, asked
    assert [handle.id for handle in env.list(Searched, attributes={"total__gt": 1}, id_prefix="o")] == ["one"]


def test_workflow_code_sets_them_and_they_go_along(env):
    """Kept or rebuilt, through a reset to before they were set, a fork and continue-as-new; closed runs keep theirs."""
    run = env.start(Searched, True, id="one", search_attributes={"customer": "first", "lines": 7})
    run.signal("put", ["total", "10"])
    run.signal("put", ["customer", None])
    assert run.describe().search_attributes == {"total": Decimal(10), "lines": 7}
    assert (ids(env, customer="first"), ids(env, lines=7, total=10)) == ([], ["one"])
    with pytest.raises(errors.UpdateFailed):
        run.update("shown")
    assert ids(env, lines=1) == ["one"]  # its handler did it, and then raised

    forked = run.fork(to=2, id="fork", messages="drop")
    assert forked.describe().search_attributes == {"customer": "first", "lines": 7, "total": Decimal(10)}
    run.reset(to=1, messages="drop")
    assert run.describe().search_attributes == {"customer": "first", "lines": 7}
    assert (ids(env, total=10), ids(env, lines__gt=1)) == (["fork"], ["one", "fork"])

    run.signal("again")
    assert len(run.run_ids) == 3
    assert run.describe().search_attributes == {"customer": "again", "lines": 7}
    run.signal("put", ["lines", 8])
    run.signal("stop")
    kid = env.handle("kid")
    assert (kid.describe().search_attributes, kid.describe().tags) == ({"of": "kid"}, ["small"])
    assert [handle.id for handle in env.list(Found, attributes={"of__prefix": "k"}, tag="small")] == ["kid"]
    env.advance(5)
    assert (run.result(), kid.describe().search_attributes) == ("found", {})
    assert ids(env, customer="again", lines=8) == ["one"]
    assert env.list(Found, attributes={"of": "kid"}) == []
    env.replay_all()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"totl": 1}, r"no search attribute 'totl' is declared \(declared: customer, due, .*; did you mean total\?"),
        ({"total": "1"}, "total must be a Decimal with at most 20 digits before the point and 12 after it, not '1'"),
        ({"total": 1.5}, "total must be a Decimal"),
        ({"total": Decimal("NaN")}, "total must be a Decimal"),
        ({"total": Decimal("1e20")}, "total must be a Decimal"),
        ({"total": Decimal("1e-13")}, "total must be a Decimal"),
        ({"lines": True}, "lines must be a whole number of at most 64 bits, not True"),
        ({"lines": 2**63}, "lines must be a whole number"),
        ({"paid": 1}, "paid must be True or False, not 1"),
        ({"customer": 5}, "customer must be a string of at most 200 characters, not 5"),
        ({"customer": "x" * 201}, "customer must be a string"),
        ({"customer": "a\x00"}, "customer: it cannot be stored: it has a NUL"),
        ({"due": NOON}, "due must be a date, not datetime"),
        ({"seen": NOON.replace(tzinfo=None)}, "seen must be a datetime with a time zone"),
        (
            {"seen": datetime.max.replace(tzinfo=timezone(-timedelta(hours=1)))},
            "seen must be a datetime in the years 2 to 9998",
        ),
        ({"words": "a"}, "words must be a list of at most 50 strings, not 'a'"),
        ({"words": ["a", 5]}, "words must be a string"),
        ([1], "must be a mapping of names to values, not"),
    ],
)
@pytest.mark.hosts("memory")
def test_what_does_not_fit_is_refused_where_it_is_given(env, given, said):
    with pytest.raises(errors.PayloadError, match=f"^start of test.Searched: .*{said}"):
        env.start(Searched, search_attributes=given)

    class Setting(Workflow):
        name = "test.Setting"
        search_attributes = DECLARED

        async def run(self, args: Any) -> Any:
            try:
                api.set_search_attributes({"customer": "whole"} if args is None else args)
            except errors.PayloadError as exc:
                return Ok(exc.message)
            return Ok(None)

    run = env.start(Setting, given)
    said_there = run.result() if isinstance(given, dict) and "seen" not in given and "due" not in given else None
    assert said_there is None or said_there.startswith("set_search_attributes of test.Setting: ")
    assert run.describe().search_attributes == {}
    assert env.list(Searched) == []


@pytest.mark.hosts("memory")
def test_who_lists_needs_the_permission(env):
    env.start(Searched, id="one")
    with pytest.raises(errors.ActionNotPermitted, match="may not view"):
        env.list(Searched, by=person(env, "nobody"))
    assert [one.id for one in env.list(Searched, by=person(env, "clerk", "temporalex_django.view_instance"))] == ["one"]


@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        ({"totl__gt": 1}, TypeError, r"cannot be searched by 'totl__gt' \(.*did you mean total__gt\?"),
        ({"customer__gt": "a"}, TypeError, "cannot be searched by 'customer__gt'"),
        ({"total__prefix": 1}, TypeError, "cannot be searched by"),
        ({5: 1}, TypeError, "cannot be searched by 5"),
        ({"total": "1"}, ValueError, "attributes total: the search attribute total must be a Decimal"),
        ({"words": ["a"]}, ValueError, "words must be a string of at most 200"),
        ({"due": None}, ValueError, "attributes due must be compared with a value, not None"),
        ({"customer__prefix": ""}, ValueError, "customer__prefix must be compared with a value"),
        ("total", ValueError, "attributes must be a mapping of attributes to values, not 'total'"),
    ],
)
@pytest.mark.hosts("memory", "database")
def test_conditions_that_cannot_be_are_refused_with_those_that_can(env, asked, error, said):
    with pytest.raises(error, match=f"^Searched.list: .*{said}"):
        env.list(Searched, attributes=asked)
    with pytest.raises(TypeError, match=r"Searched.list: no such filter: colour \(known: attributes, blocked"):
        env.list(Searched, colour="red")


@pytest.mark.hosts("memory")
def test_tags_and_places_that_cannot_be(env):
    for tags in ("abc", [5], [""], ["x"] * 51):
        with pytest.raises(
            errors.PayloadError, match="start of test.Searched: tags must be a list of at most 50 names"
        ):
            env.start(Searched, tags=tags)
    with pytest.raises(errors.OutsideWorkflow, match="set_search_attributes"):
        api.set_search_attributes({"total": 1})
    with pytest.raises(errors.NotConfigured, match="runs in memory have no subject"):
        env.start(Searched) and env.list(Searched, subject=_Saved())


class _Saved:
    _meta, pk = object(), 1


@pytest.mark.hosts("memory")
def test_wrong_declarations(env):
    del env
    for wrong, said in [
        ({"total": float}, r"search_attributes: total must be str, int, bool, Decimal, datetime, date, list\[str\]"),
        ({"total": [str]}, "search_attributes: total must be"),
        ({"a__b": str}, "'a__b' must be an identifier of at most 100 characters without '__'"),
        ({5: str}, "5 must be an identifier"),
        (["total"], r"search_attributes \['total'\] must be a mapping of fields to types"),
    ]:
        with pytest.raises(errors.WorkflowDefinitionError, match=said):
            type("Wrong", (Workflow,), {"search_attributes": wrong, "run": Found.run})
    with pytest.raises(errors.WorkflowDefinitionError, match="search_attributes: card is also redacted"):
        type("Wrong", (Workflow,), {"search_attributes": {"card": str}, "redacted": ("card",), "run": Found.run})

    kinds = {"run": Found.run, "__module__": __name__}
    first = type("VersionedFoundOne", (Workflow,), {**kinds, "search_attributes": {"of": str, "a": int}})
    second = type("VersionedFoundTwo", (Workflow,), {**kinds, "version": 2, "search_attributes": {"of": str, "b": int}})
    third = type("VersionedFoundThree", (Workflow,), {**kinds, "version": 3, "search_attributes": {"of": int}})
    with pytest.raises(errors.WorkflowDefinitionError, match="search attribute of with different types"):
        type("VersionedWrong", (VersionedWorkflow,), {"__module__": __name__, "versions": {1: first, 3: third}, "current": 1})  # fmt: skip
    both = type("VersionedFound", (VersionedWorkflow,), {"__module__": __name__, "versions": {1: first, 2: second}, "current": 2})  # fmt: skip
    assert both.search_attributes == {"of": str, "a": int, "b": int}
